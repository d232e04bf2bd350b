# Long: the docs of serving stand here, beside its API and its process.
defmodule Sconce.Serving do
  alias Sconce.{Deadline, Device, Error, Events, Native, Options, Policy, Session}
  alias Sconce.Native.Call
  alias Sconce.Serving.Events, as: Told
  alias Sconce.Policy.Spec
  alias Sconce.Serving.{Catalogue, Group, Lookup, Pass, Peer, Sender}
  alias Sconce.Session.{Proxy, Remote}

  @rejoin_ms 20

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

  Where a step alone takes little more than one of many at once, as those of an MLP do, the way to a native thread
  and back is not worth it: the caller's own call makes it (`lane: :inline` in `info/1`, by measure) and waits for
  nothing, so that no queue is full and a step that began in time is not late; callers take turns by step. Windows,
  the first step after a swap and steps with `:project_out` of their own are a worker's even so.

  For workers nobody waits for company. An idle worker takes what there is, and while it computes, the next batch
  grows to `:max_batch` at most. A further worker joins in for a quarter of that, or for a request with a
  deadline. Callers, which are processes, take turns: one that asks for much at once does not hold
  up the others. The requests of one caller leave the queue in their order.

  ## Errors

    * `:busy` - the queue is full, at once. Of `open/2`: more than 4,096 sessions are being opened;
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

  ## Beside other work

  Decisions never wait for training or import in the same VM. Native threads are of two classes with workers of their
  own: those that callers wait for keep the priority of the VM; those that train, evaluate, plan, import or read for a
  `Sconce.Loader` give way to every other thread, on Linux by nice 19 (`config :sconce, background: :nice`, see
  `Sconce.Config`). Training is therefore slower in a busy VM, and hardly goes on while ordinary threads want all
  processors: `:normal` shares the processors evenly, and delays everything else more. A run on a card keeps its
  priority, as its thread does little but launch. In a container with a quota of CPU time, priorities do not help once
  the quota is used up: give training fewer `:threads` there than the quota has processors.

  ## Flags of the VM

  `bench/schedulers.exs` measures decisions, timers and dirty calls beside training and import under the VM's flags, and
  `bench/schedulers.txt` has its figures: two cores, a 1 ms ticker, p99.9 of its delay, one run each.

    * `config :sconce, background:` - the ticker is 5 ms late beside training and 8 ms beside import, as it is beside
      plain Elixir at work (5 to 10 ms). With `:normal` it is 14 and 39 ms late.
    * `+S` - leave it at one scheduler for each processor. With twice as many, a served decision beside plain Elixir work
      takes 4 ms instead of 0.4 ms in the middle, and 21 ms instead of 8 ms at p99.9. With one, Elixir does half the work.
    * `+sbwt none` (also `+sbwtdcpu none`, `+sbwtdio none`) - training and import are 4 and 10 % faster, and nothing is
      later. With `very_long` the ticker beside import is 24 ms late instead of 8 ms.
    * `+SDcpu`, `+sbt` - leave them out: no difference was seen on two cores. A bound scheduler cannot leave a processor
      on which something else runs, though native threads do run on all of them.

  `test/host_app/rel/vm.args.eex` is such a file for a release. `mix sconce.doctor` names flags of its VM that hurt.

  ## Across machines

  Nodes of Erlang distribution serve each other. Wherever a serving is expected here, it may be on another node:
  its pid, `{name, node}`, or `{:group, term}` for one of those that were started with that `:group`. Of a group
  each call picks the member of this node, or else the less loaded of two that are drawn; one that does not
  answer is passed over, and where none is left the error is `:unavailable`.

      # In the supervision tree of every node:
      children = [{Sconce.Serving, policy: policy, group: :melee}]

      # On any of them:
      {:ok, session} = Sconce.Serving.open({:group, :melee})
      {:ok, action} = Sconce.Session.act(session, frame, deadline_ms: 8)

  A session's memory stays on the node where it was opened; frames and actions travel. A process there owns it in
  the place of the caller, one request after the other, and ends with the caller and with the connection. The
  session in the caller's hand is used as any other, and may be transferred among the processes of its node.
  While its owner lives, only `Sconce.Session.close/1` ends it: it is not collected as garbage.

  With a `:deadline_ms` the answer is there by then whatever the other node does. After a `:deadline` the session
  is as it was, also if the decision had been made by then and its answer was under way: it is taken back. A
  connection that takes no more is `:busy`. A node that goes down is `:unavailable` as soon as this one knows of it,
  with `node` in the details; how soon that is for a network that is cut without a word `:net_ticktime` of the
  kernel says. Calls without a deadline wait for that.

  What was on a lost node goes on elsewhere from the last snapshot, exactly. A node that stands still is not lost
  for a while yet, and a game goes elsewhere after some `:deadline`s in a row:

      def act(%{session: session} = game, frame) do
        case Sconce.Session.act(session, frame, deadline_ms: 8) do
          {:ok, action} -> {:ok, action, keep(%{game | late: 0}, action)}
          {:error, %Sconce.Error{kind: :unavailable}} -> go_on(game, frame)
          {:error, %Sconce.Error{kind: :deadline}} when game.late == 2 -> go_on(game, frame)
          {:error, %Sconce.Error{kind: :deadline}} -> {:late, %{game | late: game.late + 1}}
          error -> error
        end
      end

      # The old session is not closed, which would wait for its node: it ends with this process.
      defp go_on(game, frame) do
        with {:ok, session} <- Sconce.Serving.open({:group, :melee}, snapshot: game.snapshot),
             do: act(%{game | session: session, late: 0}, frame)
      end

      # Every second, right after a decision came in time; what came since then is forgotten with the node. `nil`
      # at the start of a game.
      defp keep(game, %{frame: frame}) when rem(frame, 60) == 0 do
        case Sconce.Session.snapshot(game.session) do
          {:ok, snapshot} -> %{game | snapshot: snapshot}
          {:error, _lost} -> game
        end
      end

      defp keep(game, _action), do: game

  A call without a `:deadline_ms`, as `Sconce.Session.snapshot/1` is, waits for a node that stands still until
  distribution knows that it is gone: a game that cannot wait takes its snapshots where it has the time.

  `forward/4` sends its frames as they are given, of which a binary of raw rows is the smallest. Who calls it often
  asks for a member once, by `info/1`.

  ## Options

  #{Catalogue.docs(:start)}
  """

  use Sconce.Server

  @enforce_keys [:pid, :name, :group, :ref, :policy] ++
                  [:max_batch, :max_queue, :workers, :weights, :lane, :path, :step_us, :device]
  defstruct @enforce_keys

  @typedoc "A serving as it was started, see `info/1`."
  @type t :: %__MODULE__{
          pid: pid,
          name: term,
          group: term,
          ref: reference,
          policy: Policy.t(),
          max_batch: pos_integer,
          max_queue: pos_integer,
          workers: pos_integer,
          weights: Session.weights(),
          lane: :inline | :worker,
          path: :packed | :core,
          step_us: float
        }

  @typedoc """
  The pid of a serving, its name, `{name, node}`, or what `info/1` gave; or a group, of which each call picks one.
  """
  @type serving :: t | GenServer.server() | {:group, term}

  @doc """
  Starts a serving, linked to the caller.

  It ends with its process, whatever ends that. `Sconce.Policy`'s own errors are those of the start.
  """
  @spec start_link(keyword) :: GenServer.on_start()
  def start_link(opts) do
    options = Options.validate!(opts, Catalogue.schema(:start))

    is_struct(options[:policy], Policy) ||
      Options.argument!("option :policy", options[:policy], "a policy")

    Options.name!(options[:name])
    name = if options[:name], do: [name: options[:name]], else: []
    GenServer.start_link(__MODULE__, options, name)
  end

  @doc false
  # What `stop/1` ended stays ended.
  def child_spec(opts) do
    id = opts |> Options.keyword!() |> Keyword.get(:name) || __MODULE__
    %{id: id, start: {__MODULE__, :start_link, [opts]}, restart: :transient}
  end

  @doc """
  Opens a session at the start of a game, owned by the caller, whose decisions are made here.

  It is a `Sconce.Session` like any other, with its modes, snapshots and owner. How weights are kept is
  the serving's matter. With the serving it loses who decides, not its memory.

  #{Session.Catalogue.docs(:served)}
  """
  @spec open(serving, keyword) :: {:ok, Session.t()} | {:error, Error.t()}
  def open(serving, opts \\ []) do
    case Lookup.find(serving, :open) do
      {:here, serving} -> Session.open_served(opts, &begin(serving, &1))
      {:there, node, there} -> Session.open_served(opts, &begin_there(node, there, &1))
      error -> error
    end
  end

  @doc false
  # The native session, owned by this process.
  def begin(%{ref: ref, policy: policy}, wanted),
    do: Session.begin(policy.spec, &Native.serving_open(ref, &1, &2, &3), wanted)

  defp begin_there(node, there, wanted) do
    with {:ok, pid, spec, info} <- Peer.call(node, :open, :open_for, [there, self(), wanted]),
         do: {:ok, Remote.new(pid), spec, info}
  end

  @doc false
  # Of a caller on another node.
  def open_for(serving, caller, wanted) do
    with {:here, serving} <- Lookup.find(serving, :open),
         do: Proxy.open(caller, serving, wanted)
  end

  @doc """
  `Sconce.Policy.forward/3` of a caller who keeps the state: `state` is what the call before gave, or `nil`
  for games that begin.

  Frames, answer and options are the same but for `:state`. One frame of each game is stepped by what was
  packed, if heads are independent and nothing else is given or asked for: its numbers are as near to
  `Sconce.Policy.forward/3` as a session's. Besides there is

  #{Catalogue.docs(:deadline)}

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

  def forward(_serving, _frames, state, _opts) when not (is_binary(state) or is_nil(state)) do
    expected = "what the call before gave or nil (options come behind it)"
    Options.argument!("state", state, expected)
  end

  def forward(serving, frames, state, opts) do
    start = System.monotonic_time()

    options = Options.validate!(opts, Catalogue.schema(:forward))

    {[deadline_ms: deadline_ms], options} = Keyword.split(options, [:deadline_ms])
    pass = {frames, [state: state] ++ options}

    serving
    |> Lookup.find(:forward, deadline_ms, start)
    |> forward_at(pass, deadline_ms, start)
    |> Deadline.of_call(deadline_ms, start)
  end

  defp forward_at({:here, serving}, pass, deadline_ms, start),
    do: Pass.run(serving, pass, deadline_ms, start, nil)

  defp forward_at({:there, node, there}, pass, deadline_ms, start) do
    args = [there, self(), pass, Deadline.left(deadline_ms, start)]
    Peer.call(node, :forward, :forward_for, args, deadline_ms, start)
  end

  defp forward_at(error, _pass, _deadline_ms, _start), do: error

  @doc false
  # Of a caller on another node, and given up when that ends.
  def forward_for(serving, caller, pass, deadline_ms) do
    start = System.monotonic_time()

    with {:here, serving} <- Lookup.find(serving, :forward),
         do: Pass.run(serving, pass, deadline_ms, start, Process.monitor(caller))
  end

  @doc """
  Serves other weights of the same Spec from the next batch on; of another Spec they are a `:mismatch`.

  Calls that begin after this has returned are answered with the new weights. Weights stay on their node: a
  serving on another takes the path of a checkpoint, which is read there, and the errors of
  `Sconce.Policy.load/2` are its own.
  """
  @spec swap(serving, Policy.t() | Path.t()) :: :ok | {:error, Error.t()}
  def swap(serving, %Policy{spec: %Spec{}, device: %Device{}} = policy) do
    case Lookup.find(serving, :swap) do
      {:here, serving} -> ask(serving, :swap, {:swap, policy})
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
  Takes no more work, leaves its group, and returns when what came before is done.

  From then on calls are `:unavailable`. Work that is not done within `timeout` milliseconds goes on, and
  the answer is an error of kind `:deadline`.
  """
  @spec drain(serving, timeout) :: :ok | {:error, Error.t()}
  def drain(serving, timeout \\ 5_000) do
    Options.timeout!(timeout)

    here = &ask(&1, :drain, {:drain, timeout})
    drained = Lookup.at(serving, :drain, [timeout], patience(timeout), here)

    # Of a node that was waited for a while longer.
    with {:error, %Error{kind: :deadline} = late} <- drained,
         do: {:error, put_in(late.details.deadline_ms, timeout)}
  end

  # The other node may take its time to say that it is late.
  defp patience(:infinity), do: nil
  defp patience(timeout), do: timeout + 1_000

  @doc """
  Ends a serving. What waits in its queue is `:cancelled`, unless `drain/2` came before.
  """
  @spec stop(serving) :: :ok | {:error, Error.t()}
  def stop(serving) do
    with {:error, %Error{kind: :not_found}} <- Lookup.at(serving, :stop, [], &stop_here/1),
         do: :ok
  end

  defp stop_here(%{pid: pid}) do
    GenServer.stop(pid)
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
  to a 128th of itself, and `nil` where nothing came: `queue_wait_us`, from the call to the batch;
  `compute_us`, of a batch; `latency_us`, from the call to the answer; `batch_size`.
  """
  @spec stats(serving) :: {:ok, map} | {:error, Error.t()}
  def stats(serving), do: Lookup.at(serving, :stats, [], &Native.serving_stats(&1.ref, false))

  @doc false
  # Requests that wait here or are at work: where there are fewer, there is room for more.
  def load(serving),
    do: with({:here, %{ref: ref}} <- Lookup.find(serving, :load), do: Native.serving_load(ref))

  @doc """
  The servings of a group, on all nodes that are connected.

  For what all of them shall do:

      for pid <- Sconce.Serving.members(:melee), do: Sconce.Serving.swap(pid, "/models/next.safetensors")
  """
  @spec members(term) :: [pid]
  def members(group), do: Group.members(group)

  @doc """
  A serving as a struct, which every function here takes instead of the pid or the name.

  `path` and `step_us` are what makes a decision and what one alone takes, as in `Sconce.Session`.

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
  # Of a caller on another node.
  def info_for(serving) do
    with {:here, serving} <- Lookup.find(serving, :info),
         do: {:ok, update_in(serving.policy.spec, &Spec.portable/1)}
  end

  defp ask(%{pid: pid}, op, message) do
    GenServer.call(pid, message, :infinity)
  catch
    :exit, {:noproc, _call} ->
      {:error,
       %Error{kind: :unavailable, op: op, details: %{what: "serving", reason: "has ended"}}}

    :exit, _reason ->
      {:error, %Error{kind: :cancelled, op: op}}
  end

  @impl true
  def init(options) do
    taken = Keyword.take(options, [:max_batch, :max_queue, :workers, :weights, :lane])

    native =
      taken
      |> Keyword.update!(:weights, &Session.format/1)
      |> Keyword.update!(:lane, &if(&1 != :auto, do: &1))
      |> Map.new()

    sender = Sender.start_link()

    with {:ok, policy} <- Policy.to(options[:policy], options[:device]),
         options = Keyword.merge(options, policy: policy, device: policy.device),
         {:ok, ref} <- Call.run(&Native.serving_start(&1, policy.ref, native, sender)),
         :ok <- Sender.send_of(sender, ref),
         {:ok, info} <- Native.serving_info(ref) do
      serving = new(ref, options, info)
      Lookup.register(serving)
      scope = Group.join(serving.group, self())
      state = %{serving: serving, options: options, scope: scope, drain: nil, drains: %{}}
      {:ok, state, {:continue, :telemetry}}
    else
      {:error, error} -> {:stop, error}
    end
  end

  defp new(ref, options, info) do
    %__MODULE__{
      pid: self(),
      name: options[:name],
      group: options[:group],
      ref: ref,
      policy: options[:policy],
      max_batch: options[:max_batch],
      max_queue: options[:max_queue],
      workers: options[:workers],
      weights: if(info.packed, do: options[:weights], else: :f32),
      lane: if(info.lane == "inline", do: :inline, else: :worker),
      path: if(info.packed, do: :packed, else: :core),
      step_us: info.step_us,
      device: options[:device]
    }
  end

  # The weights before, which may be a card's, would stay until this process has other garbage.
  @impl true
  def handle_continue(:forget, state) do
    :erlang.garbage_collect()
    {:noreply, state}
  end

  def handle_continue(:telemetry, state) do
    telemetry? = Events.telemetry?()
    if telemetry?, do: later(state)
    {:noreply, Map.put(state, :telemetry?, telemetry?)}
  end

  # With the handle, so that no other message starts a second clock.
  defp later(%{serving: %{ref: ref}} = state),
    do: Process.send_after(self(), {:statistics, ref}, state.options[:telemetry_ms])

  @impl true
  def handle_call(
        {:swap, %Policy{device: %Device{}} = policy},
        _from,
        %{serving: serving} = state
      ) do
    # What was packed of the weights before may not be packed of these.
    with {:ok, policy} <- Policy.to(policy, serving.device),
         {:ok, true} <- Call.run(&Native.serving_swap(serving.ref, &1, policy.ref)),
         {:ok, info} <- Native.serving_info(serving.ref) do
      options = Keyword.replace!(state.options, :policy, policy)
      serving = new(serving.ref, options, info)
      Lookup.update(serving)
      tell(state, :swap, %{})
      {:reply, :ok, %{state | serving: serving, options: options}, {:continue, :forget}}
    else
      error -> {:reply, error, state}
    end
  end

  def handle_call({:drain, timeout}, from, state)
      when timeout == :infinity or (is_integer(timeout) and timeout >= 0) do
    Group.leave(state.serving.group, self())
    state = drain_once(state)
    ref = make_ref()
    start = System.monotonic_time()
    if timeout != :infinity, do: Process.send_after(self(), {:late, ref}, timeout)
    {:noreply, put_in(%{state | scope: nil}, [:drains, ref], {from, timeout, start})}
  end

  @impl true
  def handle_info({:sconce, ref, {:ok, true}}, %{drain: ref} = state) do
    callers = Map.keys(state.drains)
    {:noreply, Enum.reduce(callers, %{state | drain: nil}, &drained(&2, &1, :ok))}
  end

  def handle_info({:late, ref}, state), do: {:noreply, drained(state, ref, :late)}

  def handle_info({:statistics, ref}, %{serving: %{ref: ref} = serving} = state) do
    with {:ok, news} <- Native.serving_stats(serving.ref, true) do
      tell(state, :statistics, Told.flat(news))
    end

    later(state)
    {:noreply, state}
  end

  # The scope of the groups has ended, and has forgotten this one; until it is there again each try ends so.
  def handle_info({:DOWN, scope, :process, _scope, _reason}, %{scope: scope} = state) do
    Process.send_after(self(), {:join, scope}, @rejoin_ms)
    {:noreply, state}
  end

  def handle_info({:join, scope}, %{scope: scope, serving: serving} = state) when scope != nil,
    do: {:noreply, %{state | scope: Group.join(serving.group, self())}}

  # The native side is asked once, however many callers wait and however often each of them asks.
  defp drain_once(%{drain: nil} = state) do
    ref = make_ref()
    :ok = Native.serving_drain(state.serving.ref, ref)
    %{state | drain: ref}
  end

  defp drain_once(state), do: state

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
