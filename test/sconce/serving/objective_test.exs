defmodule Sconce.Serving.ObjectiveTest do
  use ExUnit.Case, async: true

  alias Sconce.{Native, Policy, Serving, Session}
  alias Sconce.Serving.Gate

  @spec_options [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8]] ++
                  [heads: [go: {:bernoulli, 1}]]

  setup do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    %{policy: policy}
  end

  # A serving that looks at its latencies only when a test says so.
  defp serving(policy, opts) do
    own = [policy: policy, lane: :worker, objective_ms: 4, objective_window_ms: 3_600_000]
    serving = start_supervised!({Serving, own ++ opts})
    {:ok, info} = Serving.info(serving)
    {serving, info}
  end

  defp measure(gate, us, times), do: :counters.add(gate.latencies, Gate.bucket(us), times)

  # After the process has looked.
  defp look(serving, %{ref: ref}) do
    send(serving, {:objective, ref})
    _state = :sys.get_state(serving)
    {:ok, stats} = Serving.stats(serving)
    stats.limit
  end

  describe "the buckets of latencies" do
    test "hold each latency within an eighth of a power of two" do
      for us <- [1, 2, 7, 100, 999, 1_000, 65_536, 1_000_000, 60_000_000] do
        counts = for bucket <- 1..320, do: if(bucket == Gate.bucket(us), do: 1, else: 0)
        {1, bound} = Gate.window(counts, List.duplicate(0, 320))
        assert us / 1_000 <= bound and bound <= us / 1_000 * :math.pow(2, 1 / 8) + 1.0e-9
      end

      assert Gate.bucket(2 ** 70) == 320
      assert Gate.bucket(0) == 1
    end

    test "give the p99 of what is new" do
      none = List.duplicate(0, 320)
      before = List.replace_at(none, 300, 50)
      after_it = before |> List.replace_at(79, 98) |> List.replace_at(159, 2)
      assert {100, p99} = Gate.window(after_it, before)
      assert_in_delta p99, :math.pow(2, 160 / 8) / 1_000, 1.0e-6
      assert Gate.window(before, before) == {0, nil}
    end
  end

  test "the limit falls by its latencies, rests, and grows again when it is in use", %{
    policy: policy
  } do
    test = self()
    told = [pressure: [progress: &send(test, {:told, &1})]]
    {serving, info} = serving(policy, [max_batch: 32] ++ told)
    assert look(serving, info) == 32
    # Too few for a p99.
    measure(info.gate, 9_000, 19)
    assert look(serving, info) == 32
    measure(info.gate, 9_000, 1)
    assert look(serving, info) == 22
    assert_received {:told, %{event: :pressure, failed: :deadline, decision: :smaller} = event}
    assert {event.size, event.where} == {22, :serve}
    assert event.reason =~ ~r/p99 of .* ms, objective 4.0 ms/

    # Two windows still hold requests of the larger limit.
    for _ <- 1..2 do
      measure(info.gate, 9_000, 100)
      assert look(serving, info) == 22
    end

    measure(info.gate, 1_000, 100)
    assert look(serving, info) == 22
    # A half of the limit was in use.
    :atomics.put(info.gate.state, 2, 11)
    measure(info.gate, 1_000, 100)
    assert look(serving, info) == 24
    assert_received {:told, %{decision: :larger, size: 24, failed: nil}}
  end

  test "the batch falls while a request meets one that takes more than half of the objective", %{
    policy: policy
  } do
    test = self()
    told = [pressure: [progress: &send(test, {:told, &1})]]
    {serving, info} = serving(policy, [max_batch: 32] ++ told)

    # The batch takes longer than half of the objective, although most requests are answered in time.
    slow = fn ->
      Native.probe_batch(info.ref, 20)
      {:ok, _out} = Serving.forward(serving, [[[0.1, 0.2]]])
      measure(info.gate, 3_500, 1_000)
      32 = look(serving, info)
      {:ok, stats} = Serving.stats(serving)
      stats.max_batch
    end

    assert slow.() == 22
    assert_received {:told, %{event: :pressure, failed: :deadline, decision: :smaller} = event}
    assert {event.size, event.where} == {22, :serve}
    assert event.reason =~ ~r/batch in flight of .* ms, objective 2.0 ms/
    # Two windows may still hold batches of the larger size.
    assert [slow.(), slow.(), slow.()] == [22, 22, 15]
    # A limit of the user is a bound for it.
    assert :ok = Serving.limit(serving, 10)
    assert {:ok, %{max_batch: 10}} = Serving.stats(serving)
    assert [slow.(), slow.(), slow.()] == [10, 10, 7]
    assert {:error, %{kind: :out_of_range, op: :limit}} = Serving.limit(serving, 33)
    assert {:ok, %{max_batch: 7}} = Serving.stats(serving)
  end

  test "without an objective the batch has the limit of the user", %{policy: policy} do
    serving = start_supervised!({Serving, policy: policy, max_batch: 16})
    assert {:ok, %{max_batch: 16}} = Serving.stats(serving)
    assert :ok = Serving.limit(serving, 1)
    assert {:ok, %{max_batch: 1}} = Serving.stats(serving)
    assert {:ok, _out} = Serving.forward(serving, [[[0.1, 0.2]]])

    for wrong <- [0, 4097, nil, 2.0],
        do: assert_raise(ArgumentError, fn -> Serving.limit(serving, wrong) end)

    assert :ok = Serving.stop(serving)
    assert {:error, %{kind: :not_found}} = Serving.limit(serving, 2)
  end

  test "a request above the limit is busy, and those below it are answered", %{policy: policy} do
    {serving, info} = serving(policy, max_batch: 2)
    {:ok, session} = Serving.open(serving)
    {:ok, hold} = Native.probe_hold(info.ref)
    pass = fn -> Serving.forward(serving, [[[0.1, 0.2]]]) end
    waiting = for _ <- 1..2, do: Task.async(pass)
    until(fn -> match?({:ok, load} when load >= 2, Serving.load(serving)) end)

    assert {:error, error} = Serving.forward(serving, [[[0.1, 0.2]]])
    assert {error.kind, error.op, error.details.limit} == {:busy, :forward, 2}
    assert Exception.message(error) == "forward: queue of the serving is full"
    assert {:error, %{kind: :busy, op: :act}} = Session.act(session, [0.1, 0.2])
    assert [{:error, %{kind: :busy}}] = Session.act_many([{session, [0.1, 0.2]}])
    Native.probe_open(hold)
    for task <- waiting, do: assert({:ok, _out} = Task.await(task, 30_000))
    # The refused decisions have changed nothing.
    assert {:ok, %{frame: 1}} = Session.act(session, [0.1, 0.2])
    {:ok, stats} = Serving.stats(serving)
    assert {stats.limit, stats.refused, stats.busy} == {2, 3, 0}
  end

  test "a caller that was killed leaves nothing behind", %{policy: policy} do
    {serving, info} = serving(policy, max_batch: 1)
    {:ok, hold} = Native.probe_hold(info.ref)
    {pid, monitor} = spawn_monitor(fn -> Serving.forward(serving, [[[0.1, 0.2]]]) end)
    until(fn -> match?({:ok, load} when load >= 1, Serving.load(serving)) end)
    Process.exit(pid, :kill)
    assert_receive {:DOWN, ^monitor, _, _, _}
    Native.probe_open(hold)
    until(fn -> match?({:ok, _out}, Serving.forward(serving, [[[0.1, 0.2]]])) end)
  end

  test "without an objective nothing is limited", %{policy: policy} do
    serving = start_supervised!({Serving, policy: policy})
    {:ok, _out} = Serving.forward(serving, [[[0.1, 0.2]]])
    {:ok, stats} = Serving.stats(serving)
    assert {stats.limit, stats.refused} == {nil, 0}
  end

  test "a serving takes another device only if it is allowed", %{policy: policy} do
    Process.flag(:trap_exit, true)
    gone = [policy: policy, device: {:cuda, 9_999}]
    assert {:error, %{kind: :unavailable}} = Serving.start_link(gone)
    test = self()
    own = [other_device: :cpu, progress: &send(test, {:told, &1})]
    {:ok, serving} = Serving.start_link(gone ++ [pressure: own])
    {:ok, info} = Serving.info(serving)
    assert to_string(info.device) == "cpu"
    assert_received {:told, %{decision: :other_device, device: :cpu, where: :serve}}
    assert {:ok, _out} = Serving.forward(serving, [[[0.1, 0.2]]])

    assert_raise ArgumentError, ~r/:rows/, fn ->
      Serving.start_link(gone ++ [pressure: [rows: 5]])
    end
  end

  defp until(check), do: check.() || (Process.sleep(2) && until(check))
end
