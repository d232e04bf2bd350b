defmodule Sconce.Bench.Case do
  @moduledoc false
  # One line of the benchmark: the timed work, and the best possible time (the limit).
  #
  # `run` gets a budget in seconds. `run` raises if its output is wrong, and returns the microseconds of each
  # sample and further figures. `limit` computes the limit and its reason from that result.

  alias Sconce.Figures

  @enforce_keys [:name, :case, :batch, :threads, :run, :limit]
  defstruct @enforce_keys

  @type measured :: %{us: [float], extra: map}
  @type t :: %__MODULE__{
          name: String.t(),
          case: String.t(),
          batch: pos_integer,
          threads: pos_integer,
          run: (float -> measured),
          limit: (measured -> {float | nil, String.t()})
        }

  # Calls are timed in groups of about this length, because a single call may be too short for the clock.
  @group_us 20
  @warm_up 3
  # Calls that estimate how many further calls fit into the time.
  @tried 100

  @doc "Title of a case or of its row. `--only` is matched with this title."
  @spec title(t | map) :: String.t()
  def title(%{name: name, case: text}), do: "#{name} #{text}"

  @doc "Runs a case. A failure becomes a row with the reason."
  @spec row(t, float) :: map
  def row(%__MODULE__{} = bench, budget) do
    measured = bench.run.(budget)
    measured.us != [] || raise "nothing was timed"
    {limit_us, reason} = bench.limit.(measured)

    Map.merge(identity(bench), %{
      ok: true,
      median_us: Figures.percentile(measured.us, 50),
      p95_us: Figures.percentile(measured.us, 95),
      p99_us: Figures.percentile(measured.us, 99),
      p999_us: Figures.percentile(measured.us, 99.9),
      n: length(measured.us),
      limit_us: limit_us,
      limit: reason,
      extra: measured.extra
    })
  rescue
    error -> failed(bench, Exception.message(error))
  catch
    kind, reason -> failed(bench, "#{kind} #{inspect(reason)}")
  end

  defp failed(bench, reason) do
    Map.merge(identity(bench), %{
      ok: false,
      median_us: nil,
      p95_us: nil,
      p99_us: nil,
      p999_us: nil,
      n: 0,
      limit_us: nil,
      limit: "FAILED: #{reason}",
      extra: %{}
    })
  end

  defp identity(bench), do: Map.take(bench, [:name, :case, :batch, :threads])

  @doc """
  Calls `fun` for about `seconds`, and at least `least` times. Returns microseconds per call, and the last
  result.
  """
  @spec time(function, float, pos_integer) :: {[float], term}
  def time(fun, seconds, least \\ 20) do
    warm_up = if least < @warm_up, do: 0, else: @warm_up
    for _ <- 1..warm_up//1, do: fun.()
    {us, last} = group(fun, 1)
    # Calls over 20 us are timed alone.
    size = (@group_us / max(us, 0.02)) |> ceil() |> min(1000)
    until = System.monotonic_time(:microsecond) + round(seconds * 1.0e6)
    collect(fun, size, until, least, [], last)
  end

  defp collect(fun, size, until, least, done, last) do
    if least <= 0 and System.monotonic_time(:microsecond) >= until do
      {done, last}
    else
      {us, last} = group(fun, size)
      collect(fun, size, until, least - 1, [us | done], last)
    end
  end

  defp group(fun, size) do
    start = System.monotonic_time(:nanosecond)
    last = repeat(fun, size)
    {(System.monotonic_time(:nanosecond) - start) / 1000 / size, last}
  end

  defp repeat(fun, 1), do: fun.()

  defp repeat(fun, n) do
    fun.()
    repeat(fun, n - 1)
  end

  @doc """
  Calls `fun` with the elements of a tuple in turn, repeatedly, for about `seconds` and at least `least`
  calls. Returns the microseconds of every single call, and the last result. All results must be `{:ok, _}`.
  """
  @spec time_each(tuple, (term -> {:ok, term}), float, pos_integer) :: {[float], {:ok, term}}
  def time_each(inputs, fun, seconds, least) do
    tried = min(@tried, least)
    {us, last} = group(fn -> each(inputs, fun, 1, tried, nil, {:ok, nil}) end, 1)
    n = max(least, round(seconds * 1.0e6 * tried / us))
    # Times are stored off the heap, because they would lengthen garbage collections.
    times = :atomics.new(n, signed: false)
    :erlang.garbage_collect()
    last = each(inputs, fun, 1, n, times, last)
    {for(i <- 1..n, do: :atomics.get(times, i) / 1000), last}
  end

  defp each(_inputs, _fun, i, n, _times, last) when i > n, do: last

  defp each(inputs, fun, i, n, times, _last) do
    input = elem(inputs, rem(i - 1, tuple_size(inputs)))
    start = System.monotonic_time(:nanosecond)
    {:ok, _} = last = fun.(input)
    if times, do: :atomics.put(times, i, System.monotonic_time(:nanosecond) - start)
    each(inputs, fun, i + 1, n, times, last)
  end
end
