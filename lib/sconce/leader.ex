defmodule Sconce.Leader do
  alias Sconce.{Error, Options}
  alias Sconce.Leader.Server

  @options [
    name: [
      type: :atom,
      required: true,
      doc: "Name of the group, and of the process on each member's node."
    ],
    members: [
      type: {:list, :atom},
      required: true,
      doc: "All nodes that vote, in any order, the same list on each; three or five are usual."
    ],
    candidate: [
      type: :boolean,
      default: true,
      doc: "Whether this member may lead; otherwise it only votes."
    ],
    start: [
      type: :any,
      default: nil,
      doc: "Child specification of the work that runs only while this member leads."
    ],
    lease_ms: [
      type: :pos_integer,
      default: 10_000,
      min: 50,
      max: 86_400_000,
      doc: "Milliseconds for which a vote is granted, the same on each member."
    ],
    renew_ms: [
      type: {:or, [nil, :pos_integer]},
      default: nil,
      doc:
        "Milliseconds between two renewals, less than half of the lease; `nil` is a fifth of it."
    ],
    shutdown_ms: [
      type: {:or, [nil, :pos_integer]},
      default: nil,
      doc:
        "Milliseconds before the end of the lease at which the child is stopped, less than half of it; `nil` is a " <>
          "fifth. After half of them it is killed."
    ],
    max_restarts: [
      type: :non_neg_integer,
      default: 3,
      max: 1_000_000,
      doc: "Restarts of the child after which this member gives the lead to another."
    ],
    drift: [
      type: :float,
      default: 0.02,
      min: 0.0,
      max: 0.2,
      doc: "Share by which the clock of a member may run fast or slow, the same on each member."
    ]
  ]

  @moduledoc """
  Elects one leader among a fixed list of nodes, for work that must run once in a cluster: a learner, or the process that
  saves an archive.

      # On each of the three nodes, in the supervisor of the app:
      {Sconce.Leader,
       name: :learner,
       members: [:"a@10.0.0.1", :"b@10.0.0.2", :"c@10.0.0.3"],
       start: MyApp.Learner}

  `MyApp.Learner` runs on the node that leads, and on no other one. A member leads while more than half of all members of
  the list have granted it their vote, each for a lease. A part of the network with fewer members elects no leader, and a
  leader in it stops its child before its lease ends.

  `:global` promises less: in a partition each part may have a process of the same name.

  ## What happens

  | event | effect |
  |---|---|
  | a member's process or node dies, and it did not lead | nothing, as long as more than half of the members live |
  | the leader's node dies | another member leads after the end of the lease |
  | `resign/1`, or the leader's supervisor stops it | the child ends first, and another member leads at once |
  | the child has ended more often than `:max_restarts` | the same; this member does not ask for votes for a lease |
  | the leader is on the small side of a partition | its child is stopped, and killed if it does not end, before the lease ends; then the large side elects another one |
  | the leader is on the large side | it goes on, and the others follow it when they are back |
  | no part has more than half of the members | there is no leader until the partition ends |
  | a member restarts | it refuses its vote for a lease, since nothing of its earlier votes is on disk |

  The first election therefore takes a lease, too.

  ## What it promises

  At no time do two members lead, if each clock runs at most `:drift` faster or slower than real time. The time of day
  does not matter for this. No system with leases can promise that a paused process does nothing: a VM that was suspended
  after `leading?/1` has returned `true`, or between the end of the lease and the signal that kills its child, goes on for
  a moment after it resumes. On some machines the clock stops while the machine sleeps. Storage that must never accept an
  old leader should compare terms: `term/1` is a number that grows with each leader, and a store refuses a term below
  the highest one that it has seen. Terms come from the time of day when a majority has restarted; they grow as long as
  the clocks of the members agree within a lease.

  The list of members cannot change while a group runs. Stop all its members for a lease before they start with another
  list, lease or drift; members that differ refuse each other's votes, and send the event `:misfit`.

  ## Calls to the leader

  `{:via, Sconce.Leader, :learner}` is the child on the node that leads, wherever it is, and `{:via, Sconce.Leader, {:learner,
  MyApp.Rollout}}` the process of that name there. Both work on nodes of members. On other nodes the members are named:
  `{:via, Sconce.Leader, {{:learner, members}, MyApp.Rollout}}`. So the games of another node send what they have played
  to the learner that leads:

      learner = {:via, Sconce.Leader, {{:learner, members}, MyApp.Rollout}}
      {:ok, rollout} = Sconce.Rollout.start_link(serving: serving, learner: learner)

  While no member leads, a call exits as one to a dead process does. `Sconce.Rollout` keeps its segments meanwhile.

  ## Options

  #{Options.docs(@options)}
  """

  @typedoc "The pid or the name of a member of a group, also on another node."
  @type leader :: GenServer.server()

  # Milliseconds for which a call waits.
  @call_ms 5_000
  # Milliseconds more than its lease that a member gets from its supervisor to end.
  @farewell_ms 5_000

  @doc false
  def child_spec(opts) do
    lease_ms = if Keyword.keyword?(opts) and is_integer(opts[:lease_ms]), do: opts[:lease_ms]
    name = if Keyword.keyword?(opts), do: opts[:name]

    %{
      id: {__MODULE__, name},
      start: {__MODULE__, :start_link, [opts]},
      shutdown: (lease_ms || @options[:lease_ms][:default]) + @farewell_ms
    }
  end

  @doc """
  Starts a member on this node. The moduledoc has the options.

      iex> {:ok, _pid} = Sconce.Leader.start_link(name: :doctest_leader, members: [node()], lease_ms: 60_000)
      iex> Sconce.Leader.await(:doctest_leader)
      {:ok, node()}
      iex> Sconce.Leader.leading?(:doctest_leader)
      true
      iex> {:ok, term} = Sconce.Leader.term(:doctest_leader)
      iex> term > 0
      true
      iex> status = Sconce.Leader.status(:doctest_leader)
      iex> {status.role, status.granted_by, status.elections}
      {:leading, [node()], 1}
  """
  @spec start_link(keyword) :: GenServer.on_start()
  def start_link(opts) do
    opts = opts |> Options.validate!(@options) |> Map.new()
    # Checks names that no process can have.
    Options.server?(opts.name) || Options.argument!("option :name", opts.name, "an atom")
    members!(opts.members)
    opts = %{opts | start: start!(opts.start)}
    lease = opts.lease_ms
    opts = %{opts | renew_ms: part!(:renew_ms, opts.renew_ms, lease)}
    opts = %{opts | shutdown_ms: part!(:shutdown_ms, opts.shutdown_ms, lease)}
    GenServer.start_link(Server, opts, name: opts.name)
  end

  defp members!(members) do
    expected = "a list of different nodes, with this one (#{node()})"

    (node() in members and Enum.uniq(members) == members) ||
      Options.argument!("option :members", members, expected)
  end

  defp part!(_name, nil, lease), do: max(div(lease, 5), 1)
  defp part!(_name, ms, lease) when ms * 2 < lease, do: ms

  defp part!(name, ms, lease) do
    Options.argument!("option #{inspect(name)}", ms, "less than half of :lease_ms (#{lease})")
  end

  defp start!(nil), do: nil

  defp start!(start) do
    case child(start) do
      %{id: _id, start: {module, function, args}} = spec
      when is_atom(module) and is_atom(function) and is_list(args) ->
        spec

      _other ->
        Options.argument!("option :start", start, "a child specification")
    end
  end

  defp child(start) when is_map(start), do: start

  defp child(start) when (is_atom(start) and start not in [true, false]) or is_tuple(start) do
    Supervisor.child_spec(start, [])
  rescue
    error in [ArgumentError, FunctionClauseError] -> error
  end

  defp child(_other), do: nil

  @doc """
  Returns the node that leads, as far as this member knows: an answer may be late by a lease, and only `leading?/1` of
  the leader itself is certain. Without a leader the error is `:unavailable`.

      iex> {:ok, pid} = Sconce.Leader.start_link(name: :doctest_who, members: [node()], lease_ms: 60_000)
      iex> {:ok, _node} = Sconce.Leader.await(pid)
      iex> Sconce.Leader.leader(:doctest_who)
      {:ok, node()}
      iex> {:ok, _pid} =
      ...>   Sconce.Leader.start_link(name: :doctest_voter, members: [node()], lease_ms: 60_000, candidate: false)
      iex> {:error, error} = Sconce.Leader.leader(:doctest_voter)
      iex> Exception.message(error)
      "leader: leader of :doctest_voter: no member leads"
  """
  @spec leader(leader) :: {:ok, node} | {:error, Error.t()}
  def leader(leader), do: call(leader, :leader, :leader)

  @doc """
  Returns whether this member leads now. With the local name it reads a number, asks no process, and may be called before
  each write; it is also `false` for a member that does not exist. `start_link/1` has an example.
  """
  @spec leading?(leader) :: boolean
  def leading?(leader), do: match?({:ok, _term}, term(leader))

  @doc """
  Returns the term of this member's lead, a number that grows with each leader of the group. If it does not lead, the error
  is `:unavailable`. `start_link/1` has an example.
  """
  @spec term(leader) :: {:ok, pos_integer} | {:error, Error.t()}
  def term(name) when is_atom(name) do
    server!(name)
    Server.term(name)
  end

  def term(leader), do: call(leader, :term, :term)

  @doc """
  Waits until a member leads, this one or another, and returns its node. `start_link/1` has an example.
  """
  @spec await(leader, timeout) :: {:ok, node} | {:error, Error.t()}
  def await(leader, timeout \\ :infinity),
    do: call(leader, {:await, make_ref()}, :await, Options.timeout!(timeout))

  @doc """
  Gives the lead to another member: the child ends first, within `:shutdown_ms`, and this member asks for no vote for a
  lease. Returns when this member no longer leads; without the lead it does nothing.

      iex> {:ok, pid} = Sconce.Leader.start_link(name: :doctest_resign, members: [node()], lease_ms: 60_000)
      iex> {:ok, _node} = Sconce.Leader.await(pid)
      iex> Sconce.Leader.resign(pid)
      :ok
      iex> Sconce.Leader.leading?(:doctest_resign)
      false
  """
  @spec resign(leader) :: :ok | {:error, Error.t()}
  def resign(leader), do: call(leader, :resign, :resign, :infinity)

  @doc """
  Sends the events of `Sconce.Leader.Events` to the caller, as `{:sconce_leader, name, event}`.

      iex> {:ok, pid} = Sconce.Leader.start_link(name: :doctest_events, members: [node()], lease_ms: 60_000)
      iex> Sconce.Leader.subscribe(pid)
      :ok
      iex> {:ok, _node} = Sconce.Leader.await(pid)
      iex> Sconce.Leader.resign(pid)
      :ok
      iex> receive do
      ...>   {:sconce_leader, :doctest_events, %{event: :stepped_down, reason: reason}} -> reason
      ...> end
      :resigned
  """
  @spec subscribe(leader) :: :ok | {:error, Error.t()}
  def subscribe(leader), do: call(leader, {:subscribe, self()}, :subscribe)

  @doc """
  Returns what this member knows. `start_link/1` has an example.

  | key | content |
  |---|---|
  | `node`, `members` | this member, and all |
  | `role` | `:voting` (no candidate), `:idle`, `:asking`, `:leading`, or `:stopping` while the child ends |
  | `leader`, `term` | the node that leads and its term, nil if this member knows of none |
  | `vote` | the node that has this member's vote, or nil |
  | `quiet_ms` | milliseconds for which this member still refuses its vote after its start |
  | `granted_by` | members whose grants count now, for the leader |
  | `left_ms` | milliseconds of the lease that are left, for the leader |
  | `child` | the process of `:start`, if it runs here |
  | `asked`, `elections`, `step_downs` | elections that this member has begun and won, and leads that it has lost |
  | `round_trips_us` | `count`, `p50`, `p99` and `max` of microseconds from a question to the vote of another member |
  """
  @spec status(leader) :: map | {:error, Error.t()}
  def status(leader), do: call(leader, :status, :status)

  defp call(leader, request, op, timeout \\ @call_ms) do
    server!(leader)
    GenServer.call(leader, request, timeout)
  catch
    :exit, {:timeout, _call} ->
      details = %{what: "the answer of the leader", deadline_ms: timeout}
      # An answer after this is dropped with its request.
      with {:await, ref} <- request, do: GenServer.cast(leader, {:given_up, ref})
      {:error, %Error{kind: :deadline, op: op, details: details}}

    :exit, _gone ->
      {:error, %Error{kind: :cancelled, op: op}}
  end

  defp server!(leader) do
    Options.server?(leader) ||
      Options.argument!("leader", leader, "the pid or the name of a member")
  end

  # `{:via, Sconce.Leader, key}`

  @doc false
  def register_name(_key, _pid), do: :no

  @doc false
  def unregister_name(_key), do: :ok

  @doc false
  def send(key, message) do
    case whereis_name(key) do
      pid when is_pid(pid) -> Kernel.send(pid, message)
      :undefined -> exit({:badarg, {key, message}})
    end
  end

  @doc false
  @spec whereis_name(term) :: pid | :undefined
  def whereis_name({{name, [_ | _] = members}, process}) when is_atom(process),
    do: far(members, {name, process})

  def whereis_name({name, [_ | _] = members}), do: far(members, name)
  def whereis_name({name, process}) when is_atom(process), do: near(name, process)
  def whereis_name(name), do: near(name, nil)

  # A member of this node knows the leader; otherwise one of the others does.
  defp far(members, key) do
    with :undefined <- whereis_name(key) do
      members
      |> Enum.shuffle()
      |> Enum.find_value(:undefined, fn member ->
        pid = on(member, __MODULE__, :whereis_name, [key])
        is_pid(pid) and pid
      end)
    end
  end

  defp near(name, process) when is_atom(name) do
    case Server.view(name) do
      {_node, _term, child} when process == nil and is_pid(child) -> child
      {node, _term, _child} when process != nil -> pid(on(node, Process, :whereis, [process]))
      _none -> :undefined
    end
  end

  defp near(_name, _process), do: :undefined

  defp pid(pid) when is_pid(pid), do: pid
  defp pid(_none), do: :undefined

  defp on(node, module, function, args) when node == node(), do: apply(module, function, args)

  defp on(node, module, function, args) do
    :erpc.call(node, module, function, args, @call_ms)
  catch
    _kind, _lost -> nil
  end
end
