defmodule Sconce.Test.Leaders do
  @moduledoc """
  Groups of `Sconce.Leader` on other nodes of this machine, and the work of their leaders, which claims to lead every
  millisecond. Claims have the time of a clock that all processes of the machine share.
  """

  alias Sconce.Leader
  alias Sconce.Test.Cluster

  defmodule Work do
    @moduledoc "Claims to lead, to a process of the test."
    use GenServer

    def start_link(args), do: GenServer.start_link(__MODULE__, args)

    @impl true
    def init({name, claims, how}) do
      if how == :stubborn, do: Process.flag(:trap_exit, true)
      claim({name, claims})
      {:ok, {name, claims}}
    end

    defp claim({name, claims}) do
      # The answer is true at this time, too: the lead began earlier.
      time = :os.perf_counter(:nanosecond)
      leading? = Leader.leading?(name)
      send(claims, {:claim, node(), self(), time, leading?})
      Process.send_after(self(), :claim, 1)
    end

    @impl true
    def handle_info(:claim, state) do
      claim(state)
      {:noreply, state}
    end

    def handle_info({:EXIT, _parent, _reason}, state), do: {:noreply, state}

    @impl true
    def handle_call(:node, _from, state), do: {:reply, node(), state}

    # It goes on until it is killed.
    @impl true
    def terminate(_reason, state) do
      claim(state)
      Process.sleep(1)
      terminate(:again, state)
    end
  end

  @doc "Starts a process that keeps claims until the end of the test."
  def claims, do: spawn_link(fn -> keep([]) end)

  defp keep(all) do
    receive do
      {:claim, _node, _pid, _time, _leading?} = claim -> keep([claim | all])
      {:all, from} -> send(from, {:claims, all}) && keep(all)
    end
  end

  @doc """
  Intervals from the first to the last claim of each leader's work, `{first, last, node}` in order: of all claims, or only
  of those that were right.
  """
  def intervals(claims, which) do
    send(claims, {:all, self()})

    for {_pid, own} <- Enum.group_by(receive(do: ({:claims, all} -> all)), &elem(&1, 2)),
        own =
          for({:claim, node, _, time, right?} <- own, which == :all or right?, do: {time, node}),
        own != [] do
      {{first, node}, {last, _node}} = Enum.min_max(own)
      {first, last, node}
    end
    |> Enum.sort()
  end

  @doc "Pairs of intervals that overlap."
  def overlaps(intervals) do
    for [{_, last, _} = one, {first, _, _} = next] <- Enum.chunk_every(intervals, 2, 1, :discard),
        first <= last,
        do: {one, next}
  end

  @doc "Starts a member on each node. They outlive this call."
  def start(nodes, name, claims, opts \\ []) do
    {how, opts} = Keyword.pop(opts, :how, :plain)
    opts = [name: name, members: nodes, start: {Work, {name, claims, how}}] ++ opts
    for node <- nodes, do: :erpc.call(node, __MODULE__, :start_here, [opts])
  end

  def start_here(opts) do
    {:ok, pid} = Supervisor.start_child(Sconce.Supervisor, {Leader, opts})
    pid
  end

  @doc "Stops the members and forgets them."
  def stop(nodes, name),
    do: for(node <- nodes, do: :erpc.call(node, __MODULE__, :stop_here, [name]))

  def stop_here(name) do
    Supervisor.terminate_child(Sconce.Supervisor, {Leader, name})
    Supervisor.delete_child(Sconce.Supervisor, {Leader, name})
  end

  @doc "Lets members of a new group vote at once: there was none before."
  def settle(nodes, name),
    do: for(node <- nodes, do: :erpc.call(node, __MODULE__, :settle_here, [name]))

  def settle_here(name) do
    now = System.monotonic_time(:microsecond)

    :sys.replace_state(name, fn %{member: m} = state ->
      m = %{m | vote: %{m.vote | quiet_until: now}, candidate: %{m.candidate | due: now}}
      %{state | member: m}
    end)

    # Any message sets the timer.
    send(name, {:sconce_leader, node(), :settled})
  end

  @doc "Nodes that lead now."
  def leading(nodes, name), do: for(node <- nodes, on(node, :leading?, name) == true, do: node)

  @doc "The leader that each node knows, nil for none."
  def known(nodes, name) do
    for node <- nodes,
        do: with({:ok, leader} <- on(node, :leader, name), do: leader, else: (_ -> nil))
  end

  def on(node, function, name), do: :erpc.call(node, Leader, function, [name], 30_000)

  @doc "Cuts the connections between two groups of nodes; this node keeps its own ones."
  def cut(some, others) do
    for {a, b} <- pairs(some, others), do: :erpc.call(a, __MODULE__, :cut_here, [b])
  end

  def cut_here(node) do
    # The other side has another cookie, so that neither side can connect.
    true = Node.set_cookie(node, :"cut-#{node()}")
    Node.disconnect(node)
  end

  @doc "Ends a cut."
  def heal(some, others) do
    cookie = Node.get_cookie()
    for {a, b} <- pairs(some, others), do: :erpc.call(a, Node, :set_cookie, [b, cookie])
  end

  defp pairs(some, others), do: for(a <- some, b <- others, pair <- [{a, b}, {b, a}], do: pair)

  @doc "Starts three nodes, `{node, os_pid}` of each, which do not log the connections that a test cuts."
  def nodes! do
    for _n <- 1..3 do
      {node, os_pid} = Cluster.node!()
      :erpc.call(node, Logger, :configure, [[level: :none]])
      {node, os_pid}
    end
  end
end
