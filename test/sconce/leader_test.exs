defmodule Sconce.LeaderTest do
  use ExUnit.Case, async: true

  alias Sconce.{Error, Leader}

  doctest Sconce.Leader
  doctest Sconce.Leader.Events

  defmodule Child do
    use GenServer

    def start_link(test), do: GenServer.start_link(__MODULE__, test)

    @impl true
    def init(test) do
      Process.flag(:trap_exit, true)
      send(test, {:began, self()})
      {:ok, test}
    end

    @impl true
    def handle_info({:end, reason}, test), do: {:stop, reason, test}

    @impl true
    def terminate(reason, test), do: send(test, {:ended, reason})
  end

  # The only member leads at once, and its lease does not end.
  defp start(opts) do
    name = :"leader_test#{System.unique_integer([:positive])}"
    opts = Keyword.merge([name: name, members: [node()], lease_ms: 600_000], opts)
    pid = start_supervised!({Leader, opts}, id: name)
    :ok = Leader.subscribe(pid)
    {name, pid}
  end

  # A child whose end is expected logs an error.
  defp child(opts \\ []), do: Supervisor.child_spec({Child, self()}, opts)

  test "the child runs while the member leads, and has ended when it does not" do
    {name, pid} = start(start: child())
    assert_receive {:began, child}
    assert Leader.leading?(name)
    assert GenServer.whereis({:via, Leader, name}) in [child, nil]
    assert %{role: :leading, left_ms: left} = Leader.status(pid)
    assert left > 0
    assert :ok = Leader.resign(pid)
    assert_received {:ended, :shutdown}
    refute Leader.leading?(name)
    assert_receive {:sconce_leader, ^name, %{event: :stepped_down, reason: :resigned} = down}
    assert down.term > 0 and down.led_us >= 0
    # It gives others a lease.
    assert %{role: :idle, child: nil, step_downs: 1} = Leader.status(pid)
  end

  @tag :capture_log
  test "a child that ends too often costs the lead" do
    {name, pid} = start(start: child(), max_restarts: 1)
    assert_receive {:began, first}
    send(first, {:end, :bad})
    assert_receive {:began, second}
    assert Leader.leading?(name)
    send(second, {:end, :bad})
    assert_receive {:sconce_leader, ^name, %{event: :stepped_down, reason: :child_failed}}
    refute_received {:began, _third}
    assert %{role: :idle} = Leader.status(pid)
  end

  defp until(check), do: check.() || (Process.sleep(1) && until(check))

  @tag :capture_log
  test "a child that cannot start costs the lead, and one that is done does not" do
    bad = %{id: :bad, start: {Agent, :no_such_function, []}}
    {name, pid} = start(start: bad, max_restarts: 0)
    # It may have failed before this process has subscribed.
    until(fn -> match?(%{step_downs: 1, role: :idle}, Leader.status(pid)) end)
    refute Leader.leading?(name)

    {name, _pid} = start(start: child(restart: :transient))
    assert_receive {:began, child}
    ref = Process.monitor(child)
    send(child, {:end, :normal})
    assert_receive {:DOWN, ^ref, :process, _child, :normal}
    assert Leader.leading?(name)
    refute_received {:began, _again}
  end

  test "the child ends with its member, also with a killed one" do
    {name, _pid} = start(start: child())
    assert_receive {:began, _child}
    :ok = stop_supervised(name)
    assert_received {:ended, :shutdown}
    refute Leader.leading?(name)

    {name, pid} = start(start: child())
    assert_receive {:began, child}
    ref = Process.monitor(child)
    Process.exit(pid, :kill)
    assert_receive {:DOWN, ^ref, :process, ^child, :killed}
    # Its supervisor starts it again, and the child of before has ended by then.
    assert_receive {:began, next}
    refute Process.alive?(child)
    assert next != child
    assert {:ok, _node} = Leader.await(name)
  end

  test "a child that still starts does not delay the lease, and is killed with it" do
    test = self()

    slow = %{
      id: :slow,
      start:
        {Task, :start_link, [fn -> send(test, {:began, self()}) && Process.sleep(:infinity) end]}
    }

    # `start` itself does not return.
    stuck = %{id: :stuck, start: {__MODULE__, :stuck, [slow]}}
    {name, pid} = start(start: stuck, shutdown_ms: 100)
    assert_receive {:began, child}
    assert Leader.leading?(name)
    ref = Process.monitor(child)
    assert :ok = Leader.resign(pid)
    assert_receive {:DOWN, ^ref, :process, ^child, :killed}
  end

  def stuck(%{start: {module, function, args}}) do
    {:ok, _pid} = apply(module, function, args)
    Process.sleep(:infinity)
  end

  test "a member without a majority does not lead" do
    # The other members do not exist.
    {name, pid} = start(members: [node(), :"a@127.0.0.1", :"b@127.0.0.1"])
    refute Leader.leading?(name)
    assert {:error, %Error{kind: :unavailable}} = Leader.leader(name)
    assert {:error, %Error{kind: :unavailable}} = Leader.term(pid)
    assert {:error, %Error{kind: :deadline}} = Leader.await(name, 1)
    assert %{role: :idle, vote: nil, quiet_ms: quiet} = Leader.status(name)
    assert quiet > 0
    assert GenServer.whereis({:via, Leader, name}) == nil
    assert :ok = Leader.resign(pid)
  end

  test "a caller that dies or gives up while it waits for a leader is forgotten" do
    # The other members do not exist.
    {name, pid} = start(members: [node(), :"a@127.0.0.1", :"b@127.0.0.1"])
    waiting = fn -> pid |> :sys.get_state() |> Map.fetch!(:waiting) |> Enum.count() end
    caller = spawn(fn -> Leader.await(name) end)
    until(fn -> waiting.() == 1 end)
    Process.exit(caller, :kill)
    until(fn -> waiting.() == 0 end)

    assert {:error, %Error{kind: :deadline}} = Leader.await(name, 1)
    until(fn -> waiting.() == 0 end)
    {:monitors, monitors} = Process.info(pid, :monitors)
    refute {:process, self()} in (monitors -- [process: self()])
  end

  test "calls to a member that does not exist are errors" do
    for call <- [:leader, :await, :resign, :subscribe, :status],
        do: assert({:error, %Error{kind: :cancelled}} = apply(Leader, call, [:no_such_leader]))

    refute Leader.leading?(:no_such_leader)
    assert {:error, %Error{kind: :unavailable}} = Leader.term(:no_such_leader)
    assert GenServer.whereis({:via, Leader, {:no_such_leader, :process}}) == nil
    assert GenServer.whereis({:via, Leader, {{:none, [:"a@127.0.0.1"]}, :process}}) == nil
    assert catch_exit(GenServer.call({:via, Leader, :no_such_leader}, :x)) |> elem(0) == :noproc
  end

  test "wrong options are named" do
    ok = [name: :never_started, members: [node()]]

    for {wrong, pattern} <- [
          {[members: []], ~r/:members/},
          {[members: [node(), node()]], ~r/different nodes/},
          {[members: [:other@host]], ~r/with this one/},
          {[name: nil], ~r/:name/},
          {[renew_ms: 5_000], ~r/:renew_ms.*less than half of :lease_ms \(10000\)/},
          {[shutdown_ms: 9_000], ~r/:shutdown_ms/},
          {[start: :no_such_module], ~r/:start/},
          {[start: %{id: 1}], ~r/:start/},
          {[drift: 0.5], ~r/:drift/},
          {[lease: 1], ~r/did you mean :lease_ms/}
        ] do
      assert_raise ArgumentError, pattern, fn -> Leader.start_link(Keyword.merge(ok, wrong)) end
    end

    assert Process.whereis(:never_started) == nil
  end
end
