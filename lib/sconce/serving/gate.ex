defmodule Sconce.Serving.Gate do
  @moduledoc false
  # Limits the requests of a serving that are queued or in flight, so that their latency stays below an objective. Callers
  # measure their own requests, and the process of the serving moves the limit by `Sconce.Pressure.Aimd`.
  #
  # A request is admitted if the native serving counts fewer requests than the limit. There is no second counter that a
  # killed caller could leave behind. Callers that ask at the same time may exceed the limit by their number.

  alias Sconce.{Error, Native}
  alias Sconce.Pressure.Aimd

  # Buckets of latencies: 8 for each power of two of microseconds, up to 2^40.
  @per_power 8
  @buckets 40 * @per_power

  @limit 1
  @used 2
  @refused 3

  @enforce_keys [:serving, :state, :latencies]
  defstruct @enforce_keys

  @typedoc "The native serving, its limit and the largest load of the window as atomics, and counts of latencies."
  @type t :: %__MODULE__{
          serving: reference,
          state: :atomics.atomics_ref(),
          latencies: :counters.counters_ref()
        }

  @doc "Returns a gate with this limit."
  @spec new(reference, pos_integer) :: t
  def new(serving, limit) do
    state = :atomics.new(3, signed: false)
    :atomics.put(state, @limit, limit)
    latencies = :counters.new(@buckets, [:write_concurrency])
    %__MODULE__{serving: serving, state: state, latencies: latencies}
  end

  @doc "Runs a request, or returns an error of kind `:busy` at the limit. Without a gate the request runs."
  @spec pass(t | nil, atom, (() -> answer)) :: answer | {:error, Error.t()} when answer: term
  def pass(nil, _op, request), do: request.()

  def pass(%__MODULE__{} = gate, op, request) do
    with :ok <- admit(gate, op) do
      start = System.monotonic_time()
      answer = request.()
      with {:ok, _value} <- answer, do: measured(gate, System.monotonic_time() - start)
      answer
    end
  end

  @doc "Returns `:ok` for a request below the limit, or an error of kind `:busy`. Its latency does not count."
  @spec admit(t | nil, atom) :: :ok | {:error, Error.t()}
  def admit(nil, _op), do: :ok

  def admit(%__MODULE__{serving: serving, state: state}, op) do
    limit = :atomics.get(state, @limit)

    case Native.serving_load(serving) do
      {:ok, load} when load >= limit -> refused(state, op, limit)
      {:ok, load} -> used(state, load + 1)
      error -> error
    end
  end

  defp refused(state, op, limit) do
    :atomics.add(state, @refused, 1)
    used(state, limit)
    {:error, %Error{kind: :busy, op: op, details: %{what: "queue of the serving", limit: limit}}}
  end

  # A concurrent larger load may be lost; the next request counts again.
  defp used(state, load),
    do: if(load > :atomics.get(state, @used), do: :atomics.put(state, @used, load), else: :ok)

  defp measured(gate, time) do
    us = System.convert_time_unit(time, :native, :microsecond)
    :counters.add(gate.latencies, bucket(us), 1)
  end

  @doc false
  def bucket(us), do: min(trunc(@per_power * :math.log2(max(us, 1))) + 1, @buckets)

  # Upper bound of a bucket in milliseconds.
  defp bound(bucket), do: :math.pow(2, bucket / @per_power) / 1_000

  @doc "The counts of latencies so far, for `window/2`."
  @spec counts(t) :: [non_neg_integer]
  def counts(%__MODULE__{latencies: latencies}),
    do: for(bucket <- 1..@buckets, do: :counters.get(latencies, bucket))

  @doc "Latencies since `before`: their count, and the p99 in milliseconds, rounded up to the bound of its bucket."
  @spec window([non_neg_integer], [non_neg_integer]) :: {non_neg_integer, float | nil}
  def window(counts, before) do
    new = Enum.zip_with(counts, before, &-/2)
    count = Enum.sum(new)
    {count, if(count > 0, do: p99(new, div(99 * count + 99, 100), 1))}
  end

  defp p99([count | _rest], rank, bucket) when count >= rank, do: bound(bucket)
  defp p99([count | rest], rank, bucket), do: p99(rest, rank - count, bucket + 1)

  @doc "Moves the limit by the latencies since `before`. Returns the move, the controller and the present counts."
  @spec follow(t, Aimd.t(), [non_neg_integer], pos_integer) ::
          {:smaller | :larger | :same, Aimd.t(), [non_neg_integer]}
  def follow(%__MODULE__{state: state} = gate, aimd, before, least) do
    counts = counts(gate)

    case window(counts, before) do
      # Too few for a p99: the window goes on.
      {count, _p99} when count < least ->
        {:same, aimd, before}

      {_count, p99} ->
        {move, aimd} = Aimd.observe(aimd, p99, :atomics.exchange(state, @used, 0))
        :atomics.put(state, @limit, aimd.size)
        {move, aimd, counts}
    end
  end

  @doc "The limit, and the requests that it has refused."
  @spec info(t | nil) :: %{limit: pos_integer | nil, refused: non_neg_integer}
  def info(nil), do: %{limit: nil, refused: 0}

  def info(%__MODULE__{state: state}),
    do: %{limit: :atomics.get(state, @limit), refused: :atomics.get(state, @refused)}
end
