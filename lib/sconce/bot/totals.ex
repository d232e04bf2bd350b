defmodule Sconce.Bot.Totals do
  @moduledoc false
  # Counts over all games of a bot, which the monitor reads without asking the bot.

  alias Sconce.Bot.Game

  @frames 1
  @late 2
  @errors 3
  @before_times 3
  # Buckets up to 2^24 microseconds.
  @buckets 385

  @type t :: :counters.counters_ref()

  @spec new() :: t
  def new, do: :counters.new(@before_times + @buckets, [])

  @doc "Counts one frame of a kind, which is a field of `Sconce.Bot.Game`."
  @spec count(t, atom) :: :ok
  def count(totals, kind) do
    :counters.add(totals, @frames, 1)

    case kind do
      :late -> :counters.add(totals, @late, 1)
      :errors -> :counters.add(totals, @errors, 1)
      _other -> :ok
    end
  end

  @doc "Counts the time of one answer."
  @spec took(t, number) :: :ok
  def took(totals, us) do
    bucket = min(Game.bucket(us), @buckets - 1)
    :counters.add(totals, @before_times + 1 + bucket, 1)
  end

  @spec read(t) :: map
  def read(totals) do
    late = :counters.get(totals, @late)

    counts =
      for bucket <- 0..(@buckets - 1),
          count = :counters.get(totals, @before_times + 1 + bucket),
          count > 0,
          do: {bucket, count}

    answers = counts |> Enum.map(&elem(&1, 1)) |> Enum.sum()

    %{
      frames: :counters.get(totals, @frames),
      late: late,
      neutral: late + :counters.get(totals, @errors),
      p50_us: if(answers > 0, do: Game.quantile(counts, 0.5 * answers)),
      p99_us: if(answers > 0, do: Game.quantile(counts, 0.99 * answers))
    }
  end
end
