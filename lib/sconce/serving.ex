defmodule Sconce.Serving do
  alias Sconce.{Error, Events, Native, Options, Policy, Session}
  alias Sconce.Native.Call
  alias Sconce.Policy.Spec
  alias Sconce.Serving.Events, as: Told

  @registry Sconce.Serving.Registry

  @start [
    policy: [type: :any, required: true, doc: "The `Sconce.Policy` that is served."],
    name: [
      type: :any,
      default: nil,
      doc: "An atom, `{:global, term}` or `{:via, module, term}`, as of any process."
    ],
    max_batch: [
      type: :pos_integer,
      max: 4096,
      default: 64,
      doc: "Requests that are computed together, at most."
    ],
    max_queue: [
      type: :pos_integer,
      max: 1_048_576,
      default: 1024,
      doc: "Requests that may wait; the next one is `:busy`."
    ],
    workers: [
      type: :pos_integer,
      max: 256,
      default: 2,
      doc: "Native threads that compute, each a batch of its own."
    ],
    weights: [
      type: {:in, [:f32, :bf16]},
      default: :f32,
      doc: "How the matrices of a packed policy are kept, as in `Sconce.Session`."
    ],
    telemetry_ms: [
      type: :pos_integer,
      max: 4_294_967_295,
      default: 10_000,
      doc: "Between two `:statistics` events, where there is `:telemetry`."
    ]
  ]

  @deadline [
    deadline_ms: [
      type: {:or, [:non_neg_integer, nil]},
      max: 4_294_967_295,
      default: nil,
      doc: "After so many milliseconds the answer is an error of kind `:deadline`."
    ]
  ]

  @moduledoc """
  One `Sconce.Policy` shared by many callers: a supervised process in front of native threads, which
  answer requests by the batch, as they come.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, heads: [action: {:categorical, 2}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy)
      iex> {:ok, session} = Sconce.Serving.open(serving, seed: 7)
      iex> {:ok, action} = Sconce.Session.act(session, [0.1, -0.2], deterministic: true, deadline_ms: 5_000)
      iex> action.choices
      %{action: 1}
      iex> {:ok, stats} = Sconce.Serving.stats(serving)
      iex> {stats.requests, stats.answered, stats.late}
      {1, 1, 0}
      iex> Sconce.Serving.stop(serving)
      :ok

  In a supervision tree:

      children = [{Sconce.Serving, policy: policy, name: MyApp.Policy}]

  ## Requests

  `open/2` gives an ordinary `Sconce.Session`, whose `Sconce.Session.act/3` is then computed here;
  `forward/4` is for callers who keep the state themselves. Neither passes through the process: the
  caller's own call puts the request into the queue, and a native thread answers by message.

  Nobody waits for company. An idle worker takes what there is, and while it computes, the next batch
  grows to `:max_batch` at most. A further worker joins in for a quarter of that, or for a request with a
  deadline. Callers, which are processes, take turns: one that asks for much at once does not hold
  up the others. The requests of one caller are answered in their order.

  ## Errors

    * `:busy` - the queue is full, at once;
    * `:deadline` - not done within `:deadline_ms`, with `waited_ms` in the details. The answer comes
      in time even while the worker is at a long batch. The session stays as it was; if its decision was
      being computed, it is `:busy` until that ends;
    * `:cancelled` - the serving ended while the request waited;
    * `:unavailable` - the serving has ended, or drains: `Sconce.Session.snapshot/1` and
      `Sconce.Session.restore/2` carry the session's memory elsewhere;
    * `:panic` - a bug in Sconce hit this batch. Its sessions are as they were, and the serving goes on.

  A caller that dies leaves the queue, and what is computed for it is dropped.

  ## Weights

  `swap/2` puts other weights of the same Spec in the place of those that are served, between two batches:
  no request is lost, and sessions keep their memory. A session that waits idly keeps the weights of its
  last decision in memory until the next.

  ## Options

  #{Options.docs(@start)}
  """

  use GenServer

  @enforce_keys [:pid, :name, :ref, :policy] ++
                  [:max_batch, :max_queue, :workers, :weights, :path, :step_us]
  defstruct @enforce_keys

  @typedoc "A serving as it was started, see `info/1`."
  @type t :: %__MODULE__{
          pid: pid,
          name: term,
          ref: reference,
          policy: Policy.t(),
          max_batch: pos_integer,
          max_queue: pos_integer,
          workers: pos_integer,
          weights: :f32 | :bf16,
          path: :packed | :core,
          step_us: float
        }

  @typedoc "The pid of a serving, its name, or what `info/1` gave."
  @type serving :: t | GenServer.server()

  @doc """
  Starts a serving, linked to the caller.

  It ends with its process, whatever ends that. `Sconce.Policy`'s own errors are those of the start.
  """
  @spec start_link(keyword) :: GenServer.on_start()
  def start_link(opts) do
    options = Options.validate!(opts, @start)

    is_struct(options[:policy], Policy) ||
      raise ArgumentError, "option :policy: expected a policy, got: #{inspect(options[:policy])}"

    name = if options[:name], do: [name: options[:name]], else: []
    GenServer.start_link(__MODULE__, options, name)
  end

  @doc false
  # What `stop/1` ended stays ended.
  def child_spec(opts) do
    id = Keyword.get(opts, :name) || __MODULE__
    %{id: id, start: {__MODULE__, :start_link, [opts]}, restart: :transient}
  end

  @doc """
  Opens a session at the start of a game, owned by the caller, whose decisions are made here.

  It is a `Sconce.Session` like any other, with its modes, snapshots and owner. How weights are kept is
  the serving's matter. With the serving it loses who decides, not its memory.

  #{Options.docs(Session.served_options())}
  """
  @spec open(serving, keyword) :: {:ok, Session.t()} | {:error, Error.t()}
  def open(serving, opts \\ []) do
    with {:ok, serving} <- fetch(serving, :open) do
      Session.open_served(serving.policy.spec, opts, fn ref, options, project_out ->
        Native.serving_open(serving.ref, ref, options, project_out)
      end)
    end
  end

  @doc """
  `Sconce.Policy.forward/3` of a caller who keeps the state: `state` is what the call before gave, or `nil`
  for games that begin.

  Frames, answer and options are the same but for `:state`. One frame of each game is stepped by what was
  packed, if heads are independent and nothing else is given or asked for: its numbers are as near to
  `Sconce.Policy.forward/3` as a session's. Besides there is

  #{Options.docs(@deadline)}

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy)
      iex> {:ok, first} = Sconce.Serving.forward(serving, [[[0.0, 1.0]]], nil)
      iex> {:ok, next} = Sconce.Serving.forward(serving, [[[0.5, 1.0]]], first.state, deadline_ms: 5_000)
      iex> {next.shape, byte_size(next.logits)}
      {{1, 1, 1}, 4}
  """
  @spec forward(serving, [[term]] | binary, binary | nil, keyword) ::
          {:ok, Policy.output()} | {:error, Error.t()}
  def forward(serving, frames, state \\ nil, opts \\ [])
      when is_binary(state) or is_nil(state) do
    options =
      Options.validate!(opts, Keyword.delete(Policy.forward_options(), :state) ++ @deadline)

    {[deadline_ms: deadline_ms], options} = Keyword.split(options, [:deadline_ms])

    with {:ok, %{ref: ref, policy: policy}} <- fetch(serving, :forward) do
      Policy.pass(policy, frames, [state: state] ++ options, fn rows, shape, given, look ->
        wait(deadline_ms, &submit(ref, &1, rows, shape, given, {look, deadline_ms}))
      end)
    end
  end

  # More rows take too long to copy for a scheduler.
  @inline_bytes 65_536

  defp submit(serving, ref, rows, shape, given, how) when byte_size(rows) <= @inline_bytes,
    do: Native.serving_forward(serving, ref, rows, shape, given, how)

  defp submit(serving, ref, rows, shape, given, how),
    do: Native.serving_forward_many(serving, ref, rows, shape, given, how)

  defp wait(deadline_ms, submit) do
    start = System.monotonic_time()
    ref = make_ref()

    with {:ok, ticket} <- submit.(ref) do
      receive do
        {:sconce, ^ref, answer} -> answer
      after
        deadline_ms || :infinity ->
          # Either it will not be made, or its answer is on the way.
          if Native.serving_abandon(ticket),
            do: {:error, Error.late(:forward, deadline_ms, start)},
            else: receive(do: ({:sconce, ^ref, answer} -> answer))
      end
    end
  end

  @doc """
  Serves other weights of the same Spec from the next batch on; of another Spec they are a `:mismatch`.

  Calls that begin after this has returned are answered with the new weights.
  """
  @spec swap(serving, Policy.t()) :: :ok | {:error, Error.t()}
  def swap(serving, %Policy{} = policy), do: ask(serving, :swap, {:swap, policy})

  @doc """
  Takes no more work, and returns when what came before is done.

  From then on calls are `:unavailable`. Work that is not done within `timeout` milliseconds goes on, and
  the answer is an error of kind `:deadline`.
  """
  @spec drain(serving, timeout) :: :ok | {:error, Error.t()}
  def drain(serving, timeout \\ 5_000), do: ask(serving, :drain, {:drain, timeout})

  @doc """
  Ends a serving. What waits in its queue is `:cancelled`, unless `drain/2` came before.
  """
  @spec stop(serving) :: :ok
  def stop(serving) do
    with {:ok, %{pid: pid}} <- fetch(serving, :stop), do: GenServer.stop(pid)
    :ok
  catch
    # It has ended meanwhile.
    :exit, _reason -> :ok
  end

  @doc """
  What a serving did since its start.

  Counters: `requests` that were let in; of them `answered` (also with an error of the policy), `late` and
  `cancelled`, whose caller or whose serving ended; `busy`, refused by a full queue; `panics`, batches
  that a bug ended; `swaps`. Those that are left are `waiting`, or in a batch.

  Distributions, each `%{count:, mean:, p50:, p95:, p99:, p999:, max:}`, of log histograms that know a number
  to a thirty-second of itself, and `nil` where nothing came: `queue_wait_us`, from the call to the batch;
  `compute_us`, of a batch; `latency_us`, from the call to the answer; `batch_size`.
  """
  @spec stats(serving) :: {:ok, map} | {:error, Error.t()}
  def stats(serving) do
    with {:ok, %{ref: ref}} <- fetch(serving, :stats), do: Native.serving_stats(ref, false)
  end

  @doc """
  A serving as a struct, which every function here takes instead of the pid or the name.

  `path` and `step_us` are what makes a decision and what one alone takes, as in `Sconce.Session`.

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy, max_queue: 8)
      iex> {:ok, info} = Sconce.Serving.info(serving)
      iex> {info.max_batch, info.max_queue, info.workers, info.path}
      {64, 8, 2, :packed}
  """
  @spec info(serving) :: {:ok, t} | {:error, Error.t()}
  def info(serving), do: fetch(serving, :info)

  defp ask(serving, op, message) do
    with {:ok, %{pid: pid}} <- fetch(serving, op), do: GenServer.call(pid, message, :infinity)
  catch
    :exit, _reason -> {:error, %Error{kind: :cancelled, op: op}}
  end

  defp fetch(%__MODULE__{} = serving, _op), do: {:ok, serving}

  defp fetch(serving, op) do
    with pid when is_pid(pid) and node(pid) == node() <- GenServer.whereis(serving),
         [{^pid, serving}] <- Registry.lookup(@registry, pid) do
      {:ok, serving}
    else
      _none ->
        details = %{what: "serving #{inspect(serving)}"}
        {:error, %Error{kind: :not_found, op: op, details: details}}
    end
  end

  @impl true
  def init(options) do
    native = options |> Keyword.take([:max_batch, :max_queue, :workers, :weights]) |> Map.new()
    policy = options[:policy]

    with {:ok, ref} <- Call.run(&Native.serving_start(&1, policy.ref, native)),
         {:ok, info} <- Native.serving_info(ref) do
      serving = new(ref, options, info)
      {:ok, _registry} = Registry.register(@registry, self(), serving)
      state = %{serving: serving, drains: %{}, telemetry_ms: options[:telemetry_ms]}
      {:ok, state, {:continue, :telemetry}}
    else
      {:error, error} -> {:stop, error}
    end
  end

  defp new(ref, options, info) do
    %__MODULE__{
      pid: self(),
      name: options[:name],
      ref: ref,
      policy: options[:policy],
      max_batch: options[:max_batch],
      max_queue: options[:max_queue],
      workers: options[:workers],
      weights: if(info.packed, do: options[:weights], else: :f32),
      path: if(info.packed, do: :packed, else: :core),
      step_us: info.step_us
    }
  end

  @impl true
  def handle_continue(:telemetry, state) do
    telemetry? = Events.telemetry?()
    if telemetry?, do: later(state)
    {:noreply, Map.put(state, :telemetry?, telemetry?)}
  end

  defp later(state), do: Process.send_after(self(), :statistics, state.telemetry_ms)

  @impl true
  def handle_call({:swap, policy}, _from, %{serving: serving} = state) do
    case Call.run(&Native.serving_swap(serving.ref, &1, policy.ref)) do
      {:ok, true} ->
        serving = %{serving | policy: policy}
        Registry.update_value(@registry, self(), fn _before -> serving end)
        tell(state, :swap, %{})
        {:reply, :ok, %{state | serving: serving}}

      error ->
        {:reply, error, state}
    end
  end

  def handle_call({:drain, timeout}, from, state) do
    ref = make_ref()
    :ok = Native.serving_drain(state.serving.ref, ref)
    start = System.monotonic_time()
    if timeout != :infinity, do: Process.send_after(self(), {:late, ref}, timeout)
    {:noreply, put_in(state.drains[ref], {from, timeout, start})}
  end

  @impl true
  def handle_info({:sconce, ref, {:ok, true}}, state), do: {:noreply, drained(state, ref, :ok)}

  def handle_info({:late, ref}, state), do: {:noreply, drained(state, ref, :late)}

  def handle_info(:statistics, %{serving: serving} = state) do
    with {:ok, news} <- Native.serving_stats(serving.ref, true) do
      tell(state, :statistics, Told.flat(news))
    end

    later(state)
    {:noreply, state}
  end

  def handle_info(_other, state), do: {:noreply, state}

  # Whichever comes first answers.
  defp drained(state, ref, how) do
    case pop_in(state.drains[ref]) do
      {nil, state} ->
        state

      {{from, timeout, start}, state} ->
        if how == :ok, do: tell(state, :drained, %{seconds: seconds_since(start)})
        answer = if how == :ok, do: :ok, else: {:error, Error.late(:drain, timeout, start)}
        GenServer.reply(from, answer)
        state
    end
  end

  defp seconds_since(start) do
    System.convert_time_unit(System.monotonic_time() - start, :native, :microsecond) / 1.0e6
  end

  @impl true
  def terminate(_reason, state) do
    Native.serving_stop(state.serving.ref)
    tell(state, :stop, %{})
  end

  defp tell(%{telemetry?: true, serving: serving}, name, measurements),
    do: Told.execute(name, measurements, %{serving: serving.pid, name: serving.name})

  defp tell(_state, _name, _measurements), do: :ok

  defimpl Inspect do
    def inspect(serving, _opts) do
      policy = Spec.summary(serving.policy.spec)
      ways = "#{serving.path} #{serving.weights}, #{workers(serving.workers)}"
      room = "batches of #{serving.max_batch}, queue of #{serving.max_queue}"
      "#Sconce.Serving<#{name(serving)}#{policy} · #{ways} · #{room}>"
    end

    defp name(%{name: nil}), do: ""
    defp name(%{name: name}), do: "#{Kernel.inspect(name)} · "

    defp workers(1), do: "1 worker"
    defp workers(n), do: "#{n} workers"
  end
end
