defmodule Sconce.ServingClusterTest do
  # Not async: this VM becomes a node and starts others.
  use ExUnit.Case, async: false

  alias Sconce.{Embedding, Error, Native, Policy, Serving, Session}
  alias Sconce.Session.{Proxy, Remote}
  alias Sconce.Test.{Cluster, Scratch}

  @spec_options [
    embedding: {:vector, 2},
    backbone: :gru,
    hidden_size: 8,
    heads: [fire: {:bernoulli, 2}, move: {:categorical, 4}]
  ]

  setup_all do
    Cluster.start!()
    dir = Path.join(System.tmp_dir!(), "sconce-cluster-#{System.pid()}")
    File.mkdir_p!(dir)
    on_exit(fn -> File.rm_rf!(dir) end)

    for seed <- 1..2 do
      {:ok, policy} = Policy.init(@spec_options, seed: seed)
      :ok = Policy.save(policy, checkpoint(dir, seed))
    end

    {node, os_pid} = Cluster.node!()
    %{dir: dir, node: node, os_pid: os_pid}
  end

  # A serving on the other node, in a group of its own.
  setup %{dir: dir, node: node} do
    group = make_ref()
    far = Cluster.serve!(node, checkpoint(dir, 1), group: group)
    on_exit(fn -> Serving.stop(far) end)
    eventually(fn -> Serving.members(group) == [far] end)
    # Sessions and proxies of the test before have ended.
    eventually(fn -> left_over(node) == {0, 0, 0} end)
    %{group: group, far: far}
  end

  defp checkpoint(dir, seed), do: Path.join(dir, "#{seed}.safetensors")

  defp policy!(%{dir: dir}, seed \\ 1) do
    {:ok, policy} = Policy.load(checkpoint(dir, seed))
    policy
  end

  defp twin!(context, opts \\ []) do
    {:ok, session} = Session.open(policy!(context), [seed: 5] ++ opts)
    session
  end

  defp open!(serving, opts \\ []) do
    {:ok, session} = Serving.open(serving, [seed: 5] ++ opts)
    session
  end

  defp frame(t), do: [:math.sin(t * 0.7), :math.cos(t * 0.3)]

  defp play!(session, ts, opts \\ []) do
    for t <- ts do
      {:ok, action} = Session.act(session, frame(t), opts)
      action
    end
  end

  defp proxies(node), do: DynamicSupervisor.count_children({Sconce.Session.Proxies, node}).active
  defp sessions(node), do: :erpc.call(node, Native, :session_count, [])

  # The numbers of proxies on both nodes, and of sessions on the other.
  defp left_over(node), do: {proxies(node()), proxies(node), sessions(node)}

  # The node that holds the session's memory.
  defp node_of(%{ref: ref}) when is_reference(ref), do: node()
  defp node_of(%{ref: %{pid: pid}}), do: node(pid)

  defp mailbox, do: Process.info(self(), :messages) |> elem(1)

  defp eventually(check, left \\ 500) do
    cond do
      check.() -> :ok
      left == 0 -> flunk("the condition never became true")
      true -> Process.sleep(10) && eventually(check, left - 1)
    end
  end

  describe "a session on another node" do
    test "decides as a local session does", %{far: far, node: node} = context do
      for opts <- [[], [mode: :window, window_size: 6], [rollback: 4]] do
        session = open!(far, opts)
        twin = twin!(context, opts)
        assert node_of(session) == node
        assert inspect(session) =~ "serving on #{node}"
        assert play!(session, 1..9, logits: true) == play!(twin, 1..9, logits: true)

        # A deadline that no call misses changes nothing.
        assert play!(session, 10..12, deadline_ms: 60_000) == play!(twin, 10..12)

        {:ok, snapshot} = Session.snapshot(session)
        assert {:ok, snapshot} == Session.snapshot(twin)
        next = play!(twin, 13..15)
        assert play!(session, 13..15) == next
        assert :ok = Session.restore(session, snapshot)
        assert play!(session, 13..15) == next

        assert :ok = Session.reset(session, seed: 9)
        assert :ok = Session.reset(twin, seed: 9)
        assert play!(session, 1..3) == play!(twin, 1..3)

        {:ok, info} = Session.info(session)
        {:ok, same} = Session.info(twin)

        assert Map.take(info, [:frames, :seed, :mode, :rollback]) ==
                 Map.take(same, [:frames, :seed, :mode, :rollback])

        assert :ok = Session.close(session)
      end

      assert mailbox() == []
    end

    test "chooses what the mask of a frame allows", %{far: far} = context do
      {session, twin} = {open!(far), twin!(context)}

      for t <- 1..12 do
        mask = %{move: for(i <- 0..3, do: rem(i + t, 3) != 0), fire: [rem(t, 2) == 0, false]}
        {:ok, action} = Session.act(session, frame(t), mask: mask, logits: true)
        assert {:ok, action} == Session.act(twin, frame(t), mask: mask, logits: true)
        assert Enum.at(mask.move, action.choices.move)
        assert [_first, 0] = action.choices.fire
      end

      assert {:error, %Error{kind: :mismatch}} =
               Session.act(session, frame(1), mask: %{mve: [true]})

      assert {:error, %Error{kind: :mismatch}} = Session.act(session, frame(1), mask: [true])
    end

    test "decides in one call together with local and remote sessions", %{far: far} = context do
      {:ok, near} = Serving.start_link(policy: policy!(context))
      sessions = [open!(far), twin!(context), open!(near), open!(far)]
      twin = twin!(context)

      for t <- 1..5, opts <- [[], [deadline_ms: 60_000]] do
        {:ok, wanted} = Session.act(twin, frame(t))
        answers = Session.act_many(for(session <- sessions, do: {session, frame(t)}), opts)
        assert answers == for(_session <- sessions, do: {:ok, wanted})
      end

      for session <- sessions do
        twice = Session.act_many([{session, frame(6)}, {session, frame(7)}])
        assert [{:ok, %{frame: 11}}, {:error, %Error{kind: :busy, op: :act}}] = twice
      end

      assert mailbox() == []
    end

    test "rolls back frames of a game", %{far: far} = context do
      session = open!(far, rollback: 4)
      twin = twin!(context, rollback: 4)

      for session <- [session, twin],
          t <- 1..6,
          do: {:ok, _} = Session.act(session, frame(t), game_frame: t)

      assert Session.rollback(session, 4) == {:ok, 3}
      assert Session.rollback(twin, 4) == {:ok, 3}
      {:ok, action} = Session.act(twin, frame(9), game_frame: 4)
      assert {:ok, action} == Session.act(session, frame(9), game_frame: 4)
      assert {:ok, action} == Session.act(session, frame(2), game_frame: 4)
      assert {:error, %Error{kind: :not_found}} = Session.rollback(session, -3)
    end

    test "returns the same errors as a local session", %{far: far} = context do
      session = open!(far)
      twin = twin!(context)

      for call <- [
            &Session.act(&1, [1.0]),
            &Session.act(&1, [1.0e38, :math.pow(10, 300)]),
            &Session.restore(&1, "no snapshot"),
            &Session.act(&1, frame(1), choices: [7]),
            &Task.await(Task.async(fn -> Session.act(&1, frame(1)) end)),
            &Task.await(Task.async(fn -> Session.close(&1) end)),
            &Session.transfer(&1, spawn(fn -> :ok end) |> ended()),
            &Session.close/1,
            &Session.act(&1, frame(1)),
            &Session.close/1
          ] do
        assert call.(session) == call.(twin)
      end

      assert {:error, %Error{kind: :corrupt}} = Serving.open(far, snapshot: "no snapshot")
      assert_raise ArgumentError, fn -> Serving.open(far, window_size: 0) end
    end

    defp ended(pid) do
      ref = Process.monitor(pid)
      assert_receive {:DOWN, ^ref, :process, _pid, _reason}
      pid
    end

    test "can be transferred, and ends with its new owner", %{far: far, node: node} = context do
      session = open!(far)
      me = self()

      other =
        spawn(fn ->
          receive do: (:go -> send(me, Session.act(session, frame(1))))
          receive do: (:end -> :ok)
        end)

      assert :ok = Session.transfer(session, other)
      assert {:error, %Error{kind: :busy}} = Session.act(session, frame(1))
      send(other, :go)
      [action] = play!(twin!(context), [1])
      assert_receive {:ok, ^action}
      send(other, :end)
      eventually(fn -> left_over(node) == {0, 0, 0} end)
    end

    test "ends with its caller", %{far: far, node: node} do
      me = self()

      callers =
        for _ <- 1..20 do
          spawn(fn ->
            session = open!(far)
            send(me, :open)
            Enum.each(Stream.cycle(1..9), &Session.act(session, frame(&1)))
          end)
        end

      for _ <- callers, do: assert_receive(:open)
      assert left_over(node) == {20, 20, 20}
      for pid <- callers, do: Process.exit(pid, :kill)
      eventually(fn -> left_over(node) == {0, 0, 0} end)
    end

    test "leaves the queue when its caller ends, as does a pass", %{far: far} do
      session = open!(far)
      holder = Cluster.hold!(far)
      held = Task.async(fn -> Serving.forward(far, [[frame(1)]]) end)
      eventually(fn -> match?({:ok, %{requests: 1, waiting: 0}}, Serving.stats(far)) end)

      act =
        spawn(fn ->
          receive do: (:go -> Session.act(session, frame(1)))
        end)

      :ok = Session.transfer(session, act)
      send(act, :go)
      pass = spawn(fn -> Serving.forward(far, [[frame(2)]]) end)
      eventually(fn -> match?({:ok, %{requests: 3, waiting: 2}}, Serving.stats(far)) end)
      for pid <- [act, pass], do: Process.exit(pid, :kill)
      eventually(fn -> match?({:ok, %{cancelled: 2, waiting: 0}}, Serving.stats(far)) end)

      send(holder, :release)
      assert {:ok, %{shape: {1, 1, 6}}} = Task.await(held)
    end

    test "outlives its serving and keeps its memory", %{far: far} = context do
      session = open!(far)
      play!(session, 1..4)
      assert :ok = Serving.stop(far)
      assert {:error, %Error{kind: :unavailable, op: :act}} = Session.act(session, frame(5))
      assert {:ok, snapshot} = Session.snapshot(session)

      {:ok, near} = Serving.start_link(policy: policy!(context))
      restored = open!(near, snapshot: snapshot)
      assert play!(restored, 5..9) == context |> twin!() |> play!(1..9) |> Enum.drop(4)
    end
  end

  describe "a call that was given up" do
    # The same proxy process, on this node.
    setup context do
      {:ok, pid} = Serving.start_link(policy: policy!(context))
      {:ok, near} = Serving.info(pid)

      begin = fn wanted ->
        with {:ok, pid, spec, info} <- Proxy.open(self(), near, wanted),
             do: {:ok, Remote.new(pid), spec, info}
      end

      %{open: &Session.open_served([seed: 5] ++ &1, begin)}
    end

    # Sends the message of a call without waiting for its answer.
    defp request(session, t, given_up) do
      {:ok, row} = Embedding.pack(session.spec.embedding, frame(t))
      send_to(session, given_up, :act, [{nil, row, false, nil, nil}])
    end

    defp send_to(%{ref: %{pid: proxy}}, given_up, op, args) do
      id = System.unique_integer([:positive])
      send(proxy, {:sconce, {:erlang.alias(), self(), id, given_up}, op, args, nil})
      id
    end

    test "is taken back even if the next call was given up too", %{open: open} = context do
      {:ok, session} = open.([])
      twin = twin!(context)
      assert play!(session, 1..3) == play!(twin, 1..3)

      first = request(session, 50, nil)
      assert_receive {:sconce, _ref, {:ok, _decision}}
      :sys.suspend(session.ref.pid)
      second = request(session, 51, first)
      request(session, 4, second)
      :sys.resume(session.ref.pid)
      assert_receive {:sconce, _ref, {:ok, {_, _, _, 4}}}
      play!(twin, [4])
      assert play!(session, 5..9) == play!(twin, 5..9)
      assert mailbox() == []
    end

    test "does not reduce the decisions that can be rolled back", %{open: open} = context do
      for n <- [1, 60] do
        {:ok, session} = open.(rollback: n)
        twin = twin!(context, rollback: n)

        for s <- [session, twin],
            t <- 1..(n + 2),
            do: {:ok, _} = Session.act(s, frame(t), game_frame: t)

        late = request(session, 50, nil)
        assert_receive {:sconce, _ref, {:ok, _decision}}
        send_to(session, late, :rollback, [3])
        assert_receive {:sconce, _ref, {:ok, ^n}}
        assert {:ok, n} == Session.rollback(twin, 3)
        assert play!(session, 1..3) == play!(twin, 1..3)
      end
    end

    test "by another process does not affect the owner's calls", %{open: open} = context do
      {:ok, session} = open.([])
      twin = twin!(context)
      assert play!(session, 1..3) == play!(twin, 1..3)
      :sys.suspend(session.ref.pid)
      late = {:error, :deadline}

      give_up = fn ->
        {:error, %Error{kind: kind}} = Session.act(session, frame(50), deadline_ms: 20)
        {:error, kind}
      end

      assert give_up.() == late
      assert Task.await(Task.async(give_up)) == late
      :sys.resume(session.ref.pid)
      assert play!(session, 4..9) == play!(twin, 4..9)
    end
  end

  test "names of heads are atoms where the node has them, and a session makes no atom",
       context do
    %{dir: dir, node: node} = context
    # One name is an atom on the other node only, the other name on neither.
    [there, nowhere] =
      for part <- ["there", "nowhere"], do: Enum.join(["head", "known", part], "_")

    spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8]]
    heads = [{there, {:bernoulli, 1}}, {nowhere, {:bernoulli, 1}}, {"fire", {:bernoulli, 1}}]
    {:ok, policy} = Policy.init(spec ++ [heads: heads], seed: 1)
    path = Path.join(dir, "names.safetensors")
    :ok = Policy.save(policy, path)
    {:ok, _now_there} = Cluster.atom(node, there)
    serving = Cluster.serve!(node, path, [])
    on_exit(fn -> Serving.stop(serving) end)

    {:ok, session} = Serving.open(serving, seed: 5)
    {:ok, twin} = Session.open(policy, seed: 5)
    assert session.spec == policy.spec
    assert {:ok, action} = Session.act(session, [0.1, 0.2])
    assert {:ok, ^action} = Session.act(twin, [0.1, 0.2])
    assert [:fire, ^nowhere, ^there] = Enum.sort(Map.keys(action.choices))
    assert {:ok, %{policy: %{spec: spec}}} = Serving.info(serving)
    assert spec == policy.spec

    for name <- [there, nowhere] do
      assert_raise ArgumentError, fn -> String.to_existing_atom(name) end
    end
  end

  test "a session cannot be used on a third node", %{far: far} do
    session = open!(far)
    {third, _os_pid} = Cluster.node!()

    for {call, args} <- [act: [session, frame(1)], info: [session], close: [session]] do
      assert {:error, %Error{kind: :busy} = error} = :erpc.call(third, Session, call, args)
      assert Exception.message(error) =~ "#{node()}"
    end
  end

  describe "a suspended node" do
    test "causes a deadline error, and the session is unchanged", context do
      %{far: far, os_pid: os_pid} = context
      session = open!(far)
      twin = twin!(context)
      assert play!(session, 1..4) == play!(twin, 1..4)
      Cluster.suspend(os_pid)

      for t <- 1..3 do
        assert {:error, %Error{kind: :deadline, op: :act, details: details}} =
                 Session.act(session, frame(t), deadline_ms: 10)

        assert details.waited_ms >= 10
      end

      assert [{:error, %Error{kind: :deadline}}] =
               Session.act_many([{session, frame(1)}], deadline_ms: 10)

      assert {:error, %Error{kind: :deadline, op: :forward}} =
               Serving.forward(far, [[frame(1)]], nil, deadline_ms: 10)

      Cluster.resume(os_pid)
      assert play!(session, 5..9) == play!(twin, 5..9)

      # These decisions were made after the deadline, and are taken back.
      for t <- 10..30 do
        Session.act(session, frame(t + 50), deadline_ms: 0)
        assert play!(session, [t]) == play!(twin, [t])
      end

      # Late decisions are also taken back after calls that reset the count of decisions.
      for session <- [session, twin] do
        {:ok, snapshot} = Session.snapshot(session)
        play!(session, 31..35)
        :ok = Session.restore(session, snapshot)
      end

      Session.act(session, frame(1), deadline_ms: 0)
      assert play!(session, 31..40) == play!(twin, 31..40)

      assert mailbox() == []
    end

    test "does not block callers whose messages it does not read", %{far: far, os_pid: os_pid} do
      session = open!(far)
      Cluster.suspend(os_pid)
      # More data than a connection buffers.
      note = :binary.copy(<<0>>, 1_000_000)
      sink = spawn(fn -> for _ <- 1..100, do: send(far, note) end)
      eventually(fn -> Process.info(sink, :status) == {:status, :suspended} end)

      assert {:error, %Error{kind: kind}} = Session.act(session, frame(1), deadline_ms: 10)
      assert kind in [:busy, :deadline]

      assert {:error, %Error{kind: :deadline}} =
               Serving.forward(far, [[frame(1)]], nil, deadline_ms: 10)

      Process.exit(sink, :kill)
      Cluster.resume(os_pid)
      assert {:ok, _action} = Session.act(session, frame(1))
    end

    test "is skipped in its group", %{group: group, os_pid: os_pid, dir: dir} do
      {other, _os_pid} = Cluster.node!()
      pid = Cluster.serve!(other, checkpoint(dir, 1), group: group)
      eventually(fn -> length(Serving.members(group)) == 2 end)
      Cluster.suspend(os_pid)
      for _ <- 1..3, do: assert(node_of(open!({:group, group})) == other)
      {:ok, _out} = Serving.forward({:group, group}, [[frame(1)]])
      Serving.stop(pid)

      eventually(fn ->
        match?({:error, %Error{kind: :unavailable}}, Serving.open({:group, group}))
      end)
    end
  end

  describe "a lost node" do
    test "is an error at once, and the session continues elsewhere", %{dir: dir} = context do
      group = make_ref()
      nodes = for _ <- 1..2, do: Cluster.node!()

      for {node, _os_pid} <- nodes, do: Cluster.serve!(node, checkpoint(dir, 1), group: group)
      eventually(fn -> length(Serving.members(group)) == 2 end)

      session = open!({:group, group})
      twin = twin!(context)
      assert play!(session, 1..4) == play!(twin, 1..4)
      {:ok, snapshot} = Session.snapshot(session)
      lost = node_of(session)
      {^lost, os_pid} = List.keyfind(nodes, lost, 0)

      # The node is lost while calls with and without a deadline are in flight.
      Cluster.suspend(os_pid)
      me = self()
      forward = Task.async(fn -> Serving.forward(hd(members(group, lost)), [[frame(1)]]) end)

      spawn(fn ->
        Process.sleep(50)
        Cluster.kill(os_pid)
        send(me, :killed)
      end)

      assert {:error, %Error{kind: :unavailable, op: :act, details: %{node: ^lost}} = error} =
               Session.act(session, frame(5), deadline_ms: 60_000)

      assert Exception.message(error) =~ "#{lost}"
      assert_receive :killed
      assert {:error, %Error{kind: :unavailable, details: %{node: ^lost}}} = Task.await(forward)

      for call <- [
            &Session.act(&1, frame(5)),
            &Session.snapshot/1,
            &Session.info/1,
            &Session.reset/1,
            &Session.close/1
          ] do
        assert {:error, %Error{kind: :unavailable, details: %{node: ^lost}}} = call.(session)
      end

      again = open!({:group, group}, snapshot: snapshot)
      assert node_of(again) != lost
      assert play!(again, 5..9) == play!(twin, 5..9)
      assert mailbox() == []
    end

    defp members(group, node),
      do: Enum.filter(Serving.members(group), &(node(&1) == node))

    test "is the same error as a node that never existed" do
      far = {:policy, :"nobody@127.0.0.1"}
      assert {:error, %Error{kind: :unavailable, op: :open}} = Serving.open(far)
      assert {:error, %Error{kind: :unavailable}} = Serving.forward(far, [[frame(1)]])
      assert {:error, %Error{kind: :unavailable}} = Serving.stats(far)
      assert {:error, %Error{kind: :unavailable}} = Serving.drain(far)
      assert {:error, %Error{kind: :unavailable}} = Serving.stop(far)
    end
  end

  describe "a serving on another node" do
    test "behaves as a local serving", %{far: far, node: node, dir: dir} = context do
      {:ok, info} = Serving.info(far)
      assert {info.pid, info.max_batch} == {far, 64}

      {:ok, wanted} = Policy.forward(policy!(context), [[frame(1), frame(2)]])
      assert {:ok, wanted} == Serving.forward(info, [[frame(1), frame(2)]])

      assert {:ok, wanted} ==
               Serving.forward(far, [[frame(1), frame(2)]], nil, deadline_ms: 60_000)

      # An answer is counted after it is sent.
      eventually(fn -> match?({:ok, %{answered: 2}}, Serving.stats(far)) end)

      named = Cluster.serve!(node, checkpoint(dir, 1), name: :far_policy)
      assert {:ok, %{pid: ^named}} = Serving.info({:far_policy, node})
      assert node_of(open!({:far_policy, node})) == node
      assert :ok = Serving.stop({:far_policy, node})
      assert {:error, %Error{kind: :not_found}} = Serving.info({:far_policy, node})
      assert {:error, %Error{kind: :not_found}} = Serving.open(named)
      assert :ok = Serving.stop(named)
    end

    test "loads weights by their path on its node", %{far: far, node: node, dir: dir} = context do
      other = policy!(context, 2)
      assert {:error, %Error{kind: :mismatch, op: :swap} = error} = Serving.swap(far, other)
      assert Exception.message(error) =~ "#{node}"
      assert :ok = Serving.swap(far, checkpoint(dir, 2))
      assert {:ok, wanted} = Policy.forward(other, [[frame(1), frame(2)]])
      assert {:ok, wanted} == Serving.forward(far, [[frame(1), frame(2)]])
      assert {:error, %Error{kind: :not_found}} = Serving.swap(far, checkpoint(dir, 3))
    end

    test "leaves its group when it drains", %{far: far, group: group} do
      assert :ok = Serving.drain(far)
      assert {:error, %Error{kind: :unavailable}} = Serving.open(far)

      eventually(fn ->
        match?({:error, %Error{kind: :unavailable}}, Serving.open({:group, group}))
      end)
    end
  end

  describe "a group" do
    test "prefers its member on this node", %{group: group} = context do
      assert node_of(open!({:group, group})) != node()
      {:ok, near} = Serving.start_link(policy: policy!(context), group: group)
      assert node_of(open!({:group, group})) == node()
      assert {:ok, %{pid: ^near}} = Serving.info({:group, group})
    end

    test "prefers the least loaded member", %{group: group, node: node, dir: dir, far: far} do
      {other, _os_pid} = Cluster.node!()
      pid = Cluster.serve!(other, checkpoint(dir, 1), group: group)
      eventually(fn -> length(Serving.members(group)) == 2 end)

      for {busy, idle} <- [{far, other}, {pid, node}] do
        session = open!(busy)
        holder = Cluster.hold!(busy)
        task = Task.async(fn -> Serving.forward(busy, [[frame(0)]]) end)
        eventually(fn -> :erpc.call(node(busy), Serving, :load, [busy]) == {:ok, 1} end)
        for _ <- 1..8, do: assert(node_of(open!({:group, group})) == idle)
        send(holder, :release)
        assert {:ok, _out} = Task.await(task)
        Session.close(session)
      end
    end

    test "skips a member of this node that has ended", %{group: group} = context do
      near = start_supervised!({Serving, policy: policy!(context), group: group})
      :sys.suspend(Serving.Group)
      on_exit(fn -> :sys.resume(Serving.Group) end)
      :ok = stop_supervised(Serving)
      assert near in Serving.members(group)
      assert node_of(open!({:group, group})) != node()
      :sys.resume(Serving.Group)
    end

    test "has its members again after a restart of its scope", %{group: group} = context do
      {:ok, near} = Serving.start_link(policy: policy!(context), group: group)
      scope = Process.whereis(Serving.Group)
      Process.exit(scope, :kill)
      eventually(fn -> Process.whereis(Serving.Group) not in [nil, scope] end)
      eventually(fn -> near in Serving.members(group) end)
      eventually(fn -> length(Serving.members(group)) == 2 end)
    end

    test "without members is an error that names it" do
      assert {:error, %Error{kind: :unavailable} = error} = Serving.open({:group, :nobodys})
      assert Exception.message(error) =~ ":nobodys"

      assert {:error, %Error{kind: :unavailable}} =
               Serving.forward({:group, :nobodys}, [[[1.0, 0.0]]])
    end
  end

  test "a session restores a snapshot on the node where it is opened" do
    dir = Scratch.tmp_dir!()
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    :ok = Policy.save(policy, checkpoint(dir, 1))
    {:ok, first} = Session.open(policy, seed: 5)
    play!(first, 1..4)
    {:ok, snapshot} = Session.snapshot(first)
    {:ok, next} = Session.open(policy, snapshot: snapshot)
    assert play!(next, 5..9) == play!(first, 5..9)
  end
end
