defmodule Sconce.Bench.Histogram do
  @moduledoc false
  # A histogram of microseconds that many processes record concurrently, even if they are killed. The
  # histogram has eight classes per octave, and the exact maximum.

  @classes 8
  # 31 octaves of microseconds: up to half an hour.
  @octaves 31

  @enforce_keys [:counts, :most]
  defstruct @enforce_keys

  @type t :: %__MODULE__{counts: :counters.counters_ref(), most: :atomics.atomics_ref()}

  @spec new() :: t
  def new do
    %__MODULE__{
      counts: :counters.new(@classes * @octaves + 1, [:write_concurrency]),
      most: :atomics.new(1, signed: false)
    }
  end

  @doc "Records a time; times below one microsecond count as 0."
  @spec add(t, number) :: :ok
  def add(%__MODULE__{counts: counts, most: most}, us) do
    us = max(round(us), 0)
    raise_to(most, us, :atomics.get(most, 1))
    :counters.add(counts, class(us) + 1, 1)
  end

  defp raise_to(most, us, before) when us > before do
    case :atomics.compare_exchange(most, 1, before, us) do
      :ok -> :ok
      other -> raise_to(most, us, other)
    end
  end

  defp raise_to(_most, _us, _before), do: :ok

  defp class(0), do: 0
  defp class(us), do: min(1 + floor(@classes * :math.log2(us)), @classes * @octaves)

  @doc """
  The count, the maximum, some percentiles (the upper ends of their classes), and the count of times in a
  class above that of `limit`.

      iex> histogram = Sconce.Bench.Histogram.new()
      iex> for us <- [0, 0, 100, 9000], do: Sconce.Bench.Histogram.add(histogram, us)
      iex> Sconce.Bench.Histogram.summary(histogram, 5000)
      %{count: 4, p50: 0, p99: 9742, p999: 9742, most: 9000, above: 1}
  """
  @spec summary(t, number) :: map
  def summary(%__MODULE__{counts: counts, most: most}, limit) do
    all = for i <- 0..(@classes * @octaves), do: {i, :counters.get(counts, i + 1)}
    count = all |> Enum.map(&elem(&1, 1)) |> Enum.sum()
    above = for {i, n} <- all, i > class(limit), do: n

    Map.merge(
      %{count: count, most: :atomics.get(most, 1), above: Enum.sum(above)},
      for({name, percent} <- [p50: 50, p99: 99, p999: 99.9], into: %{}) do
        {name, edge(all, ceil(count * percent / 100))}
      end
    )
  end

  defp edge([{_i, n} | rest], rank) when n < rank and rest != [], do: edge(rest, rank - n)
  defp edge([{0, _n} | _rest], _rank), do: 0
  defp edge([{i, _n} | _rest], _rank), do: round(:math.pow(2, i / @classes))
end
