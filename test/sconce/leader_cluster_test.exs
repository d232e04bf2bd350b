defmodule Sconce.LeaderClusterTest do
  # Nodes are names of the whole VM.
  use ExUnit.Case, async: false

  alias Sconce.Leader
  alias Sconce.Test.{Cluster, Leaders}

  @moduletag timeout: 180_000
  # Where leases end: a machine under load may lose them more often, which the tests permit.
  @short [lease_ms: 1_000]
  # Where none ends.
  @long [lease_ms: 600_000, renew_ms: 100]

  setup_all do
    Cluster.start!()
    %{peers: Leaders.nodes!()}
  end

  setup %{peers: peers} do
    name = :"leader#{System.unique_integer([:positive])}"
    nodes = Enum.map(peers, &elem(&1, 0))
    claims = Leaders.claims()
    %{name: name, nodes: nodes, claims: claims}
  end

  defp start(context, opts) do
    %{nodes: nodes, name: name} = context
    Leaders.start(nodes, name, context.claims, opts)
    on_exit(fn -> for node <- nodes, node in Node.list(), do: Leaders.stop([node], name) end)
    if opts[:lease_ms] == @long[:lease_ms], do: Leaders.settle(nodes, name)
    agreed(context)
  end

  # Waits until all nodes follow the same leader, which leads.
  defp agreed(context, nodes \\ nil) do
    nodes = nodes || context.nodes

    until(fn ->
      with [leader] <- Enum.uniq(Leaders.known(nodes, context.name)),
           [^leader] <- Leaders.leading(nodes, context.name),
           do: leader,
           else: (_ -> nil)
    end)
  end

  defp until(check, tries \\ 2_000) do
    cond do
      value = check.() -> value
      tries == 0 -> flunk("it never came true")
      true -> Process.sleep(20) && until(check, tries - 1)
    end
  end

  # The work of two leaders was never done at the same time.
  defp alone(context, which \\ :all) do
    intervals = Leaders.intervals(context.claims, which)
    assert Leaders.overlaps(intervals) == []
    length(intervals)
  end

  test "three nodes elect one of them, whose child others reach", context do
    leader = start(context, @long)
    %{nodes: nodes, name: name} = context
    [other | _] = nodes -- [leader]
    call = [{:via, Leader, name}, :node]
    until(fn -> :erpc.call(other, Leader, :whereis_name, [name]) != :undefined end)
    assert :erpc.call(other, GenServer, :call, call) == leader
    # This node is no member.
    assert GenServer.call({:via, Leader, {name, nodes}}, :node) == leader
    assert GenServer.whereis({:via, Leader, {{name, nodes}, name}}) |> node() == leader

    status = Leaders.on(leader, :status, name)
    assert %{role: :leading, leader: ^leader, elections: 1} = status
    until(fn -> Leaders.on(leader, :status, name).granted_by == Enum.sort(nodes) end)
    assert %{leader: ^leader, vote: ^leader, term: term} = Leaders.on(other, :status, name)
    assert status.term == term
    assert Leaders.on(leader, :status, name).round_trips_us.count > 0
    assert alone(context) == 1
  end

  test "a leader that resigns has stopped its child before another one starts it", context do
    first = start(context, @long)
    {:ok, term} = Leaders.on(first, :term, context.name)
    :ok = Leaders.on(first, :resign, context.name)
    # Its lease would last for minutes.
    second = agreed(context)
    assert second != first
    {:ok, next} = Leaders.on(second, :term, context.name)
    assert next > term
    Leaders.stop([second], context.name)
    # The third leader starts its child when it leads.
    until(fn -> alone(context) >= 3 end)
  end

  test "a member that restarts refuses its vote for a lease", context do
    leader = start(context, @long)
    [other | _] = context.nodes -- [leader]
    pid = :erpc.call(other, Process, :whereis, [context.name])
    :erpc.call(other, Process, :exit, [pid, :kill])

    status =
      until(fn ->
        with %{quiet_ms: quiet} = status when quiet > 0 <-
               Leaders.on(other, :status, context.name),
             true <- status.leader == leader,
             do: status,
             else: (_ -> nil)
      end)

    assert %{vote: nil, role: :idle} = status
    # The others are a majority.
    assert Leaders.leading(context.nodes, context.name) == [leader]
  end

  test "the small side of a partition stops its leader, and the large side elects one", context do
    # The child is killed some tens of milliseconds before the lease ends, in a long lease earlier.
    small = start(context, lease_ms: 4_000, how: :stubborn)
    large = context.nodes -- [small]
    Leaders.cut([small], large)
    leader = agreed(context, large)
    assert leader != small
    until(fn -> Leaders.known([small], context.name) == [nil] end)
    assert Leaders.leading([small], context.name) == []
    assert alone(context) >= 2

    Leaders.heal([small], large)
    agreed(context)
    alone(context)
  end

  test "a leader on the large side goes on, and the small side has none", context do
    start(context, @short)
    [small | large] = Enum.sort_by(context.nodes, &(&1 in Leaders.leading([&1], context.name)))
    Leaders.cut([small], large)
    until(fn -> Leaders.known([small], context.name) == [nil] end)
    leader = agreed(context, large)
    assert leader in large
    Leaders.heal([small], large)
    agreed(context)
    alone(context)
  end

  test "three parts of one node have no leader, and one again afterwards", context do
    start(context, @short)
    [a, b, c] = context.nodes
    Leaders.cut([a], [b, c])
    Leaders.cut([b], [c])
    until(fn -> Leaders.known(context.nodes, context.name) == [nil, nil, nil] end)
    assert Leaders.leading(context.nodes, context.name) == []
    before = length(Leaders.intervals(context.claims, :all))

    Leaders.heal([a], [b, c])
    Leaders.heal([b], [c])
    agreed(context)
    until(fn -> length(Leaders.intervals(context.claims, :all)) > before end)
    alone(context)
  end

  test "a leader whose VM is suspended does not lead when it resumes", context do
    leader = start(context, @short)
    {^leader, os_pid} = List.keyfind(context.peers, leader, 0)
    others = context.nodes -- [leader]
    Cluster.suspend(os_pid)
    agreed(context, others)
    Cluster.resume(os_pid)
    agreed(context)
    # Its child may go on for a moment, and no longer claims to lead.
    alone(context, true)
  end

  test "another node leads after the leader was killed", context do
    peers = [{victim, os_pid} | _] = Leaders.nodes!()
    context = %{context | nodes: Enum.map(peers, &elem(&1, 0))}
    start(context, @short ++ [candidate: true])
    # The victim leads sooner or later.
    until(fn ->
      leading = Leaders.leading(context.nodes, context.name)
      for node <- leading, node != victim, do: Leaders.on(node, :resign, context.name)
      leading == [victim]
    end)

    {:ok, term} = Leaders.on(victim, :term, context.name)
    Cluster.kill(os_pid)
    second = agreed(context, context.nodes -- [victim])
    {:ok, next} = Leaders.on(second, :term, context.name)
    assert next > term
    alone(context)
  end
end
