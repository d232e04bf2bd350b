defmodule Latency do
  @moduledoc false
  # Collects times of measuring processes off the heap, so that garbage collections do not grow.

  @doc "A buffer for `most` times; later times are dropped."
  def new(most), do: {:atomics.new(most, signed: false), :counters.new(1, []), most}

  @doc "Records nanoseconds. One process at a time."
  def add({times, count, most}, ns) do
    :counters.add(count, 1, 1)
    at = :counters.get(count, 1)
    if at <= most, do: :atomics.put(times, at, max(ns, 0))
  end

  @doc "The recorded times in microseconds, sorted ascending."
  def sorted({times, count, most}) do
    taken = min(:counters.get(count, 1), most)
    Enum.sort(for(i <- 1..taken//1, do: :atomics.get(times, i) / 1000))
  end

  @doc "Percentiles of sorted times, nearest rank; nil if there are none."
  def percentiles([], percents), do: for(_percent <- percents, do: nil)

  def percentiles(sorted, percents) do
    times = List.to_tuple(sorted)
    n = tuple_size(times)
    for percent <- percents, do: elem(times, max(ceil(n * percent / 100), 1) - 1)
  end

  @doc "Formats a time for a table, in the given unit."
  def cell(nil, _unit), do: "-"
  def cell(us, :us), do: :erlang.float_to_binary(us / 1, decimals: 1)
  def cell(us, :ms), do: :erlang.float_to_binary(us / 1000, decimals: 2)

  @bar 50

  @doc """
  A histogram of sorted times as text: one line per half octave, with its count and a bar. The bar's length
  is logarithmic in the count, so that one late call among a million is visible.
  """
  def histogram(sorted) do
    counts = Enum.frequencies_by(sorted, &floor(2 * :math.log2(max(&1, 1.0))))
    {first, last} = counts |> Map.keys() |> Enum.min_max()
    longest = counts |> Map.values() |> Enum.max() |> bar()

    Enum.map_join(first..last, "\n", fn at ->
      count = Map.get(counts, at, 0)
      bar = String.duplicate("#", round(@bar * bar(count) / longest))
      from = at |> edge() |> String.pad_leading(8)
      String.trim_trailing("#{from} us  #{String.pad_leading("#{count}", 8)}  #{bar}")
    end)
  end

  defp edge(at), do: cell(:math.pow(2, at / 2), :us)

  defp bar(0), do: 0
  defp bar(count), do: :math.log2(count) + 1
end
