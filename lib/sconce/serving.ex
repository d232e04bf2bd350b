defmodule Sconce.Serving do
  alias Sconce.{Device, Error, Native, Options, Policy, Pressure, Session}
  alias Sconce.Policy.Spec
  alias Sconce.Serving.{Catalogue, Gate, Group, Lookup, Pass, Peer}
  alias Sconce.Session.{Proxy, Remote}

  import Sconce.Tensor, only: [is_tensor: 1]

  @moduledoc """
  One `Sconce.Policy` shared by many callers: a supervised process in front of native threads, which answer requests in
  batches as they arrive.

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

  The guide [Sessions and servings](serving.html) covers lanes, statistics, training in the same VM, and other nodes.

  ## Requests

  `open/2` opens an ordinary `Sconce.Session`, whose decisions the serving computes. `forward/4` is for callers that
  keep the state themselves. Neither goes through the process of the serving: the call puts the request into a queue,
  and a native thread (a worker) sends the answer as a message.

  A worker does not wait for a batch to fill up. It takes the queued requests, at most `:max_batch`, and new requests
  queue up while it computes. Another worker starts if a quarter of `:max_batch` is queued, or a request with a
  deadline. Calling processes take turns, so a caller with many requests does not delay the others. The requests of
  one caller leave the queue in order.

  If a single step costs little more than its share of a batch, as with an MLP, the scheduler of the caller computes
  the step (`lane: :inline` in `info/1`, decided by measurement). A full queue never refuses an inline step, and a step
  that began in time is never late. Windows, the first step after a swap, and steps with their own `:project_out` still
  go to a worker.

  ## A latency objective

      Sconce.Serving.start_link(policy: policy, objective_ms: 8)

  With `:objective_ms` the serving limits the requests that are queued or in flight. A request above the limit is `:busy` at
  once, so the caller can act on it while there is time. The limit follows the load by `Sconce.Pressure.Aimd`: it falls by
  three tenths if the p99 of a window exceeds the objective, and grows by a sixteenth of `:max_batch`, which is also its
  floor, while the p99 is below three quarters of it. Latencies are those of `forward/4` and `Sconce.Session.act/3`.

  A second controller moves the largest batch in the same way, up to `:max_batch` or `limit/2`. A request waits for the batch
  in flight and for its own, so the batch falls if the one that a request meets takes more than half of the objective.
  `:max_batch` in `stats/1` has the present value.

  Each move of the limit or the batch is an event, see `Sconce.Pressure`. `bench/pressure.txt` has a load that changes, with
  an objective and without.

  ## Errors

    * `:busy` - the queue is full, or the limit of an `:objective_ms` is reached; for `open/2`, 4,096 sessions are already being opened.
    * `:deadline` - the request was not done within `:deadline_ms`. The details hold `waited_ms`. The error comes in
      time even if the worker computes a long batch. The session is unchanged, and `:busy` while its decision is still
      computed.
    * `:cancelled` - the serving ended while the request waited.
    * `:unavailable` - the serving has ended or drains. `Sconce.Session.snapshot/1` and `Sconce.Session.restore/2` move
      the memory of the session elsewhere.
    * `:panic` - a bug in Sconce ended this batch. Its sessions are unchanged, and the serving continues.

  If a caller dies, its requests leave the queue, and results in flight are dropped.

  ## Other nodes

  A serving may be on another node of the Erlang cluster. Every function accepts its pid or `{name, node}`. With
  `{:group, term}` a function uses one of the servings that were started with that `:group`: the member on this node, or
  else the less loaded of two random members. A member that does not answer is skipped; if none is left, the error is
  `:unavailable`.

  The memory of a session stays on the node where it was opened; frames and actions travel. After a `:deadline` the
  session is unchanged, even if the decision was made and its answer was on its way: the decision is taken back. A
  lost node is an error of kind `:unavailable`, with `node` in the details.

  ## Options

  #{Catalogue.docs(:start)}
  """

  @enforce_keys [:pid, :name, :group, :ref, :policy] ++
                  [:max_batch, :max_queue, :workers, :weights, :lane, :path, :step_us, :device]
  defstruct @enforce_keys ++ [:gate]

  @typedoc "A serving and its settings, see `info/1`."
  @type t :: %__MODULE__{
          pid: pid,
          name: term,
          group: term,
          ref: reference,
          policy: Policy.t(),
          max_batch: pos_integer,
          max_queue: pos_integer,
          workers: pos_integer,
          weights: Session.kept(),
          lane: :inline | :worker,
          path: :packed | :core,
          step_us: float,
          gate: struct | nil
        }

  @typedoc """
  The pid of a serving, its name, `{name, node}`, the struct of `info/1`, or a group, from which each call picks one.
  """
  @type serving :: t | GenServer.server() | {:group, term}

  @doc """
  Starts a serving, linked to the caller. Its native threads end with its process.

  The errors of the start are those of `Sconce.Policy.to/2`, and `:out_of_range` for a `:lane` that is too slow. The
  options are listed above.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy, max_batch: 16, workers: 2)
      iex> {:ok, info} = Sconce.Serving.info(serving)
      iex> {info.max_batch, info.workers}
      {16, 2}
  """
  @spec start_link(keyword) :: GenServer.on_start()
  def start_link(opts) do
    options = Options.validate!(opts, Catalogue.schema(:start))

    is_struct(options[:policy], Policy) ||
      Options.argument!("option :policy", options[:policy], "a policy")

    Options.name!(options[:name])
    options = Keyword.update!(options, :pressure, &Pressure.new(:serve, &1))
    name = if options[:name], do: [name: options[:name]], else: []
    GenServer.start_link(Sconce.Serving.Process, options, name)
  end

  @doc false
  # A serving that `stop/1` ended is not restarted.
  def child_spec(opts) do
    id = opts |> Options.keyword!() |> Keyword.get(:name) || __MODULE__
    %{id: id, start: {__MODULE__, :start_link, [opts]}, restart: :transient}
  end

  @doc """
  Opens a session at the start of a game, owned by the caller, whose decisions this serving computes.

  The result is an ordinary `Sconce.Session`, with modes, snapshots and an owner. The serving sets the format of the
  weights for all its sessions. When the serving ends, the session can no longer decide, but still has its memory for a
  snapshot.

  #{Session.Catalogue.docs(:served)}

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy)
      iex> {:ok, session} = Sconce.Serving.open(serving, seed: 7)
      iex> {:ok, action} = Sconce.Session.act(session, [0.5, -0.5], deadline_ms: 5_000)
      iex> {session.lane, action.frame}
      {:serving, 1}
  """
  @spec open(serving, keyword) :: {:ok, Session.t()} | {:error, Error.t()}
  def open(serving, opts \\ []) do
    case Lookup.find(serving, :open) do
      {:here, serving} -> open_here(serving, opts)
      {:there, node, there} -> Session.open_served(opts, &begin_there(node, there, &1))
      error -> error
    end
  end

  defp open_here(serving, opts) do
    with {:ok, session} <- Session.open_served(opts, &begin(serving, &1)),
         do: {:ok, %{session | gate: serving.gate}}
  end

  @doc false
  # Opens the native session, owned by this process.
  def begin(%{ref: ref, policy: policy}, wanted),
    do: Session.Opening.begin(policy.spec, &Native.serving_open(ref, &1, &2, &3), wanted)

  defp begin_there(node, there, wanted) do
    with {:ok, pid, spec, info} <- Peer.call(node, :open, :open_for, [there, self(), wanted]),
         do: {:ok, Remote.new(pid), spec, info}
  end

  @doc false
  # Opens a session for a caller on another node.
  def open_for(serving, caller, wanted) do
    with {:here, serving} <- Lookup.find(serving, :open),
         do: Proxy.open(caller, serving, wanted)
  end

  @doc """
  Computes logits like `Sconce.Policy.forward/3`, for a caller that keeps the state: `state` is the state that the
  previous call returned, or `nil` at the start of games.

  Frames, answer and options are those of `Sconce.Policy.forward/3`, tensors included, without `:state`. A call with one frame
  of each game uses the packed weights, if the heads are independent and no optional input or output is given. Its
  logits then differ from those of `Sconce.Policy.forward/3` as little as a session's. A further option is

  #{Catalogue.docs(:deadline)}

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy)
      iex> {:ok, first} = Sconce.Serving.forward(serving, [[[0.0, 1.0]]], nil)
      iex> {:ok, next} = Sconce.Serving.forward(serving, [[[0.5, 1.0]]], first.state, deadline_ms: 5_000)
      iex> {next.shape, byte_size(next.logits)}
      {{1, 1, 1}, 4}
  """
  @spec forward(serving, [[term]] | binary | struct, binary | struct | nil, keyword) ::
          {:ok, Policy.output()} | {:error, Error.t()}
  def forward(serving, frames, state \\ nil, opts \\ [])

  def forward(_serving, _frames, state, _opts)
      when not (is_binary(state) or is_nil(state) or is_tensor(state)) do
    expected = "the state of the previous call or nil (options come after it)"
    Options.argument!("state", state, expected)
  end

  def forward(serving, frames, state, opts), do: Pass.forward(serving, frames, state, opts)

  @doc false
  # Computes a pass for a caller on another node, and abandons the pass when that caller ends.
  def forward_for(serving, caller, pass, deadline_ms) do
    start = System.monotonic_time()

    with {:here, serving} <- Lookup.find(serving, :forward),
         do: Pass.run(serving, pass, deadline_ms, start, Process.monitor(caller))
  end

  @doc """
  Replaces the weights between two batches, without losing requests or the memory of sessions.

  Calls that begin after `swap/2` has returned are answered with the new weights. Weights of another Spec are an error
  of kind `:mismatch`; the statistics of a normalised embedding may differ. Weights are not sent to other nodes: a serving on another node takes the path of a checkpoint
  and loads it there, with the errors of `Sconce.Policy.load/2`. An idle session keeps the weights of its last
  decision in memory until its next decision.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, better} = Sconce.Policy.init(spec, seed: 2)
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy)
      iex> Sconce.Serving.swap(serving, better)
      :ok
      iex> {:ok, stats} = Sconce.Serving.stats(serving)
      iex> stats.swaps
      1
  """
  @spec swap(serving, Policy.t() | Path.t()) :: :ok | {:error, Error.t()}
  def swap(serving, %Policy{spec: %Spec{}, device: %Device{}} = policy) do
    case Lookup.find(serving, :swap) do
      {:here, serving} -> Lookup.ask(serving, :swap, {:swap, policy})
      {:there, node, _there} -> {:error, elsewhere(node)}
      error -> error
    end
  end

  def swap(serving, path) do
    path = Options.path!(path)

    here = &with({:ok, policy} <- Policy.load(path), do: swap(&1, policy))
    Lookup.at(serving, :swap, [path], here)
  end

  defp elsewhere(node) do
    details = %{
      what: "policy",
      expected: "the path of a checkpoint on #{node}",
      got: "weights of #{node()}"
    }

    %Error{kind: :mismatch, op: :swap, details: details}
  end

  @doc """
  Changes the maximum requests of a batch while the serving runs, from the next batch on. No answer depends on it.

  More than the `:max_batch` of the start is an error of kind `:out_of_range`. With an `:objective_ms` the number bounds what
  the serving chooses.

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy, max_batch: 32)
      iex> Sconce.Serving.limit(serving, 8)
      :ok
      iex> {:ok, stats} = Sconce.Serving.stats(serving)
      iex> stats.max_batch
      8
      iex> {:error, error} = Sconce.Serving.limit(serving, 33)
      iex> error.kind
      :out_of_range
  """
  @spec limit(serving, pos_integer) :: :ok | {:error, Error.t()}
  def limit(serving, max_batch) when max_batch in 1..4096,
    do: Lookup.at(serving, :limit, [max_batch], &Lookup.ask(&1, :limit, {:limit, max_batch}))

  def limit(_serving, max_batch),
    do: Options.argument!("max_batch", max_batch, "1 to 4096 requests")

  @doc """
  Stops accepting work, leaves the group, and returns when all earlier work is done.

  From then on, calls are errors of kind `:unavailable`. If work is not done within `timeout` milliseconds, it
  continues, and `drain/2` returns an error of kind `:deadline`.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy)
      iex> Sconce.Serving.drain(serving)
      :ok
      iex> {:error, error} = Sconce.Serving.open(serving)
      iex> error.kind
      :unavailable
  """
  @spec drain(serving, timeout) :: :ok | {:error, Error.t()}
  def drain(serving, timeout \\ 5_000) do
    Options.timeout!(timeout)

    here = &Lookup.ask(&1, :drain, {:drain, timeout})
    drained = Lookup.at(serving, :drain, [timeout], patience(timeout), here)

    # The error of a remote call carries the caller's timeout, not the longer one that was used.
    with {:error, %Error{kind: :deadline} = late} <- drained,
         do: {:error, put_in(late.details.deadline_ms, timeout)}
  end

  # The other node gets one more second to return its own `:deadline` error.
  defp patience(:infinity), do: nil
  defp patience(timeout), do: timeout + 1_000

  @doc """
  Ends a serving. Requests in its queue are `:cancelled`; call `drain/2` first to finish them. Stopping a serving that
  has ended is `:ok`.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy)
      iex> {Sconce.Serving.stop(serving), Process.alive?(serving)}
      {:ok, false}
  """
  @spec stop(serving) :: :ok | {:error, Error.t()}
  def stop(serving) do
    with {:error, %Error{kind: :not_found}} <- Lookup.at(serving, :stop, [], &stop_here/1),
         do: :ok
  end

  defp stop_here(%{pid: pid}) do
    GenServer.stop(pid)
  catch
    # The serving has ended in the meantime.
    :exit, _reason -> :ok
  end

  @doc """
  Returns counters and distributions since the start of a serving.

  | counter | meaning |
  |---|---|
  | `requests` | accepted requests |
  | `answered` | requests with an answer, including errors of the policy |
  | `late` | requests that missed their deadline |
  | `cancelled` | requests whose caller or serving ended |
  | `waiting` | requests in the queue |
  | `busy` | requests that a full queue refused |
  | `panics` | batches that a bug ended |
  | `swaps` | replacements of the weights |
  | `max_batch` | requests of a batch at most now, see `limit/2` |
  | `limit` | requests that an objective admits now, nil without one |
  | `refused` | requests that this limit refused |

  | distribution | meaning |
  |---|---|
  | `queue_wait_us` | microseconds from the call to the batch |
  | `compute_us` | microseconds of a batch |
  | `latency_us` | microseconds from the call to the answer |
  | `batch_size` | requests of a batch |

  A distribution is `%{count:, mean:, p50:, p95:, p99:, p999:, max:}`, from a logarithmic histogram with a relative
  resolution of 1/128. Without any values, the numbers are `nil`.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy)
      iex> {:ok, _out} = Sconce.Serving.forward(serving, [[[0.0, 1.0]]])
      iex> {:ok, stats} = Sconce.Serving.stats(serving)
      iex> {stats.requests, stats.answered, stats.waiting, stats.latency_us.count}
      {1, 1, 0, 1}
  """
  @spec stats(serving) :: {:ok, map} | {:error, Error.t()}
  def stats(serving), do: Lookup.at(serving, :stats, [], &stats_here/1)

  defp stats_here(%{ref: ref, gate: gate}) do
    with {:ok, stats} <- Native.serving_stats(ref, false),
         do: {:ok, Map.merge(stats, Gate.info(gate))}
  end

  @doc false
  # Number of requests that are queued or in flight, to compare the load of servings.
  def load(serving),
    do: with({:here, %{ref: ref}} <- Lookup.find(serving, :load), do: Native.serving_load(ref))

  @doc """
  Returns the servings of a group, on all connected nodes.

  Use it for an operation on all of them:

      for pid <- Sconce.Serving.members(:melee), do: Sconce.Serving.swap(pid, "/models/next.safetensors")

  A serving is a member from its start until it drains or ends.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy, group: :members_example)
      iex> Sconce.Serving.members(:members_example) == [serving]
      true
  """
  @spec members(term) :: [pid]
  def members(group), do: Group.members(group)

  @doc """
  Returns a serving as a struct. Every function here accepts the struct instead of the pid or the name, and then skips
  the lookup.

  `path`, `lane` and `step_us` describe how a decision is computed and the time of a single one, as in
  `Sconce.Session.info/1`.

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, serving} = Sconce.Serving.start_link(policy: policy, max_queue: 8)
      iex> {:ok, info} = Sconce.Serving.info(serving)
      iex> {info.max_batch, info.max_queue, info.workers, info.path}
      {64, 8, 1, :packed}
  """
  @spec info(serving) :: {:ok, t} | {:error, Error.t()}
  def info(serving) do
    case Lookup.find(serving, :info) do
      {:here, serving} -> {:ok, serving}
      {:there, node, there} -> info_there(node, there)
      error -> error
    end
  end

  defp info_there(node, there) do
    with {:ok, serving} <- Peer.call(node, :info, :info_for, [there]),
         do: {:ok, update_in(serving.policy.spec, &Spec.new/1)}
  end

  @doc false
  # The answer of `info/1` for a caller on another node.
  def info_for(serving) do
    with {:here, serving} <- Lookup.find(serving, :info),
         do: {:ok, update_in(serving.policy.spec, &Spec.portable/1)}
  end

  defimpl Inspect do
    def inspect(serving, _opts) do
      policy = Spec.summary(serving.policy.spec)
      ways = "#{serving.path} #{serving.weights}, #{lane(serving)}#{workers(serving.workers)}"
      room = "batches of #{serving.max_batch}, queue of #{serving.max_queue}"
      device = Sconce.Device.aside(serving.device)

      Sconce.Text.printable(
        "#Sconce.Serving<#{name(serving)}#{policy} · #{ways} · #{room}#{device}>"
      )
    end

    defp name(%{name: nil}), do: ""
    defp name(%{name: name}), do: "#{Kernel.inspect(name)} · "

    defp lane(%{lane: :inline}), do: "steps inline, "
    defp lane(_serving), do: ""

    defp workers(1), do: "1 worker"
    defp workers(n), do: "#{n} workers"
  end
end
