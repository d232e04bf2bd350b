defmodule Sconce.Bot.Game do
  @moduledoc """
  Figures of one game that a `Sconce.Bot` has played.

  | field | meaning |
  |---|---|
  | `number` | number of the game of this bot, from 1 |
  | `started_at`, `seconds` | start in UTC, and time until the end |
  | `frames` | states of the game that came, without those before the first frame with a decision |
  | `decisions` | frames that the policy or a held choice answered in time |
  | `late` | frames that the neutral input answered, because their deadline had passed |
  | `errors` | frames that the neutral input answered, because the frame or the decision failed; `error` is the last one |
  | `repeated` | frames that came twice; the input was sent again |
  | `skipped` | frame numbers that never came |
  | `out_of_order` | frames that came after later ones |
  | `rollbacks` | frames that came again with other contents |
  | `latency_us` | `median`, `p99` and `max` of the time from a frame to its input, in microseconds |
  | `result` | `:win`, `:loss` or `:draw` by stocks, then percent, of the last frame of a Melee game; else nil |
  | `stocks`, `percent` | `{own, opponent}` in the last frame |
  | `ended` | `:finished`, `{:closed, reason}`, `:restarted` (frame numbers began anew), `:stopped` (the bot has stopped), or what the bridge said |
  | `report` | the `Sconce.Report` of a Melee game, else nil |
  | `rows` | packed frames in order, with `record: true`, else `[]` |

  `frames` is the sum of `decisions`, `late`, `errors`, `repeated`, `out_of_order` and `rollbacks`.
  """

  alias Sconce.{Error, Figures}

  # Buckets of latencies for each octave.
  @parts 16

  @enforce_keys [:number, :started_at, :began]
  defstruct @enforce_keys ++
              [
                :seconds,
                :result,
                :stocks,
                :percent,
                :ended,
                :report,
                :error,
                :first,
                frames: 0,
                decisions: 0,
                late: 0,
                errors: 0,
                repeated: 0,
                skipped: 0,
                out_of_order: 0,
                rollbacks: 0,
                latency_us: nil,
                rows: [],
                buckets: %{},
                longest: 0
              ]

  @type t :: %__MODULE__{
          number: pos_integer,
          started_at: DateTime.t(),
          seconds: float | nil,
          frames: non_neg_integer,
          decisions: non_neg_integer,
          late: non_neg_integer,
          errors: non_neg_integer,
          error: Error.t() | nil,
          repeated: non_neg_integer,
          skipped: non_neg_integer,
          out_of_order: non_neg_integer,
          rollbacks: non_neg_integer,
          latency_us: %{median: float, p99: float, max: float} | nil,
          result: :win | :loss | :draw | nil,
          stocks: {non_neg_integer, non_neg_integer} | nil,
          percent: {float, float} | nil,
          ended: term,
          report: struct | nil,
          rows: [binary]
        }

  @doc false
  def new(number) do
    %__MODULE__{
      number: number,
      started_at: DateTime.utc_now(),
      began: System.monotonic_time(:millisecond)
    }
  end

  @doc false
  # Counts one frame of a kind, which is a field.
  def count(%__MODULE__{} = game, kind),
    do: Map.update!(%{game | frames: game.frames + 1}, kind, &(&1 + 1))

  @doc false
  def took(%__MODULE__{} = game, us) do
    bucket = bucket(us)

    %{
      game
      | buckets: Map.update(game.buckets, bucket, 1, &(&1 + 1)),
        longest: max(us, game.longest)
    }
  end

  @doc false
  # The bucket of a latency in microseconds.
  def bucket(us), do: trunc(:math.log2(us + 1) * @parts)

  @doc false
  # The figures so far, as they are at the end.
  def figures(%__MODULE__{} = game, ended) do
    %{
      game
      | ended: ended,
        seconds: (System.monotonic_time(:millisecond) - game.began) / 1000,
        latency_us: latency(game),
        result: result(game.stocks, game.percent),
        rows: for({_number, row} <- Enum.reverse(game.rows), do: row)
    }
  end

  defp latency(%{buckets: buckets}) when buckets == %{}, do: nil

  defp latency(game) do
    counts = Enum.sort(game.buckets)
    total = counts |> Enum.map(&elem(&1, 1)) |> Enum.sum()

    %{
      median: quantile(counts, 0.5 * total),
      p99: quantile(counts, 0.99 * total),
      max: game.longest / 1
    }
  end

  @doc false
  # The latency of a rank, by the sorted counts of buckets.
  def quantile(counts, rank) do
    {bucket, _count} =
      Enum.reduce_while(counts, 0, fn {bucket, count}, sum ->
        if sum + count >= rank, do: {:halt, {bucket, sum}}, else: {:cont, sum + count}
      end)

    # The middle of the bucket.
    Float.round(:math.pow(2, (bucket + 0.5) / @parts) - 1, 1)
  end

  # Percent counts the other way: less is better.
  defp result({own, opponent}, {percent, of_opponent}) do
    case {own - opponent, of_opponent - percent} do
      {stocks, _} when stocks > 0 -> :win
      {stocks, _} when stocks < 0 -> :loss
      {_even, less} when less > 0 -> :win
      {_even, less} when less < 0 -> :loss
      _even -> :draw
    end
  end

  defp result(_stocks, _percent), do: nil

  defimpl Inspect do
    def inspect(game, _opts) do
      parts = [
        "game #{game.number}",
        Figures.counted(game.frames, "frame"),
        "#{Figures.grouped(game.late)} late",
        game.latency_us && "p99 #{Figures.decimal(game.latency_us.p99)} us",
        game.result && "#{game.result} #{stocks(game.stocks)}"
      ]

      "#Sconce.Bot.Game<#{parts |> Enum.filter(& &1) |> Enum.join(" · ")}>"
    end

    defp stocks({own, opponent}), do: "#{own}:#{opponent}"
  end
end
