defmodule Latency do
  @moduledoc false
  # Times that processes take down while others watch: nothing on a heap, so that no collection gets longer.

  @doc "Room for `most` times; what comes after them is not kept."
  def new(most), do: {:atomics.new(most, signed: false), :counters.new(1, []), most}

  @doc "Takes down nanoseconds. One process at a time."
  def add({times, count, most}, ns) do
    :counters.add(count, 1, 1)
    at = :counters.get(count, 1)
    if at <= most, do: :atomics.put(times, at, max(ns, 0))
  end

  @doc "Microseconds, the shortest first."
  def sorted({times, count, most}) do
    taken = min(:counters.get(count, 1), most)
    Enum.sort(for(i <- 1..taken//1, do: :atomics.get(times, i) / 1000))
  end

  @doc "Of sorted times those at some percents, nearest rank; nil where there are none."
  def percentiles([], percents), do: for(_percent <- percents, do: nil)

  def percentiles(sorted, percents) do
    times = List.to_tuple(sorted)
    n = tuple_size(times)
    for percent <- percents, do: elem(times, max(ceil(n * percent / 100), 1) - 1)
  end

  @doc "A cell of a table, in the unit that was asked for."
  def cell(nil, _unit), do: "-"
  def cell(us, :us), do: :erlang.float_to_binary(us / 1, decimals: 1)
  def cell(us, :ms), do: :erlang.float_to_binary(us / 1000, decimals: 2)
end
