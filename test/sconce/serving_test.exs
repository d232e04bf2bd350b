defmodule Sconce.ServingTest do
  # Not async: sessions and threads are counted per VM.
  use ExUnit.Case, async: false

  alias Sconce.{Action, Error, Native, Policy, Serving, Session}

  doctest Serving
  doctest Serving.Events

  @heads [fire: {:bernoulli, 2}, move: {:categorical, 4}]

  defp policy!(opts \\ []) do
    {seed, opts} = Keyword.pop(opts, :seed, 3)
    small = if opts[:backbone] == :mlp, do: [hidden_sizes: [8]], else: [hidden_size: 8]

    {:ok, policy} =
      Policy.init([embedding: {:vector, 2}, heads: @heads] ++ small ++ opts, seed: seed)

    policy
  end

  defp start!(opts \\ []) do
    opts = Keyword.put_new_lazy(opts, :policy, &policy!/0)

    # With one worker batches are predictable. By measured cost, policies this small would run inline.
    opts = Keyword.merge([workers: 1, lane: :worker], opts)
    pid = start_supervised!({Serving, opts}, id: make_ref())
    {:ok, serving} = Serving.info(pid)
    serving
  end

  defp open!(serving, opts \\ []) do
    {:ok, session} = Serving.open(serving, Keyword.merge([seed: 5, window_size: 6], opts))
    session
  end

  # Saves a checkpoint without a digest, with a weight that bf16 cannot represent.
  defp save_wide!(policy, path) do
    :ok = Policy.save(policy, path)
    bytes = path |> File.read!() |> String.replace("sha256", "sha---")
    File.write!(path, [binary_part(bytes, 0, byte_size(bytes) - 4), <<255, 255, 127, 127>>])
  end

  defp frame(t), do: [:math.sin(t * 0.7), :math.cos(t * 0.3)]

  defp stats!(serving) do
    {:ok, stats} = Serving.stats(serving)
    stats
  end

  defp eventually(check, left \\ 500) do
    cond do
      check.() -> :ok
      left == 0 -> flunk("the condition never became true")
      true -> Process.sleep(10) && eventually(check, left - 1)
    end
  end

  # Holds a worker in a batch until it is released.
  defp occupy!(serving) do
    {:ok, gate} = Native.probe_hold(serving.ref)
    before = stats!(serving).requests
    task = Task.async(fn -> Session.act(open!(serving), frame(0)) end)
    eventually(fn -> match?(%{requests: ^before, waiting: 0}, less_one(stats!(serving))) end)
    {gate, task}
  end

  defp less_one(stats), do: %{stats | requests: stats.requests - 1}

  defp release!({gate, task}) do
    :ok = Native.probe_open(gate)
    assert {:ok, %Action{frame: 1}} = Task.await(task, 60_000)
  end

  defp threads do
    for path <- Path.wildcard("/proc/self/task/*/comm"),
        {:ok, "sconce-serve" <> _} <- [File.read(path)],
        do: path
  end

  describe "a served session" do
    test "decides as a session without a serving" do
      for backbone <- [:mlp, :gru], mode <- [:carry, :window, {:resync, 4}] do
        policy = policy!(backbone: backbone)
        served = open!(start!(policy: policy), mode: mode, logits: true)
        {:ok, own} = Session.open(policy, seed: 5, window_size: 6, mode: mode, logits: true)

        for t <- 0..12 do
          assert Session.act(served, frame(t)) == Session.act(own, frame(t))
        end
      end
    end

    test "decides the same in any batch" do
      policy = policy!()
      serving = start!(policy: policy, max_batch: 5)

      1..16
      |> Enum.map(fn seed ->
        Task.async(fn ->
          session = open!(serving, seed: seed)
          {:ok, own} = Session.open(policy, seed: seed, window_size: 6)

          for t <- 1..30,
              do: {Session.act(session, frame(t + seed)), Session.act(own, frame(t + seed))}
        end)
      end)
      |> Task.await_many(60_000)
      |> Enum.each(fn pairs -> for {served, own} <- pairs, do: assert(served == own) end)

      assert %{requests: 480, answered: 480, waiting: 0, batch_size: %{max: max}} =
               stats!(serving)

      assert max <= 5
    end

    test "has all other functions of a session" do
      serving = start!()
      session = open!(serving)
      assert session.lane == :serving
      assert inspect(session) =~ "packed f32, serving"
      {:ok, first} = Session.act(session, frame(0), deterministic: true)
      {:ok, snapshot} = Session.snapshot(session)
      {:ok, second} = Session.act(session, frame(1))
      :ok = Session.restore(session, snapshot)
      assert Session.act(session, frame(1)) == {:ok, second}
      :ok = Session.reset(session)
      assert Session.act(session, frame(0), deterministic: true) == {:ok, first}
      assert {:ok, %{frames: 1, lane: :serving}} = Session.info(session)

      task =
        Task.async(fn ->
          receive do: (:yours -> Session.act(session, frame(1)))
        end)

      :ok = Session.transfer(session, task.pid)
      send(task.pid, :yours)
      assert Task.await(task) == {:ok, second}
      eventually(fn -> match?({:error, %Error{kind: :not_found}}, Session.info(session)) end)
    end

    test "refuses a wrong frame, and is unchanged" do
      serving = start!()
      session = open!(serving)

      assert {:error, %Error{kind: :non_finite}} =
               Session.act(session, <<0x7FC00000::32-little, 0.0::32-float-little>>)

      assert {:ok, %Action{frame: 1}} = Session.act(session, frame(0))
    end

    test "has the weights of its serving" do
      serving = start!(policy: policy!(backbone: :mlp), weights: :bf16)
      assert %Session{weights: :bf16} = session = open!(serving)
      {:ok, own} = Session.open(serving.policy, seed: 5, weights: :bf16)
      assert Session.act(session, frame(3)) == Session.act(own, frame(3))

      for {option, value} <- [weights: :f32, lane: :inline] do
        assert_raise ArgumentError, ~r/option :#{option} belongs to the serving/, fn ->
          Serving.open(serving, [{option, value}])
        end
      end
    end
  end

  describe "forward" do
    test "equals that of the policy, with the state that the caller keeps" do
      policy = policy!()
      serving = start!(policy: policy)
      games = [[frame(0), frame(1)], [frame(5), frame(6)]]
      {:ok, want} = Policy.forward(policy, games)
      assert Serving.forward(serving, games) == {:ok, want}

      # One more frame of each game is a step of the plan.
      {:ok, next} = Policy.forward(policy, [[frame(2)], [frame(7)]], state: want.state)
      {:ok, step} = Serving.forward(serving, [[frame(2)], [frame(7)]], want.state)
      assert_near(step, next)

      opts = [return_sequences: false, taps: [:trunk]]
      {:ok, tapped} = Policy.forward(policy, games, opts)
      assert Serving.forward(serving, games, nil, opts) == {:ok, tapped}
    end

    test "of many callers is batched, and each gets its own answer" do
      policy = policy!()
      serving = start!(policy: policy)
      held = occupy!(serving)

      tasks =
        for i <- 1..12 do
          Task.async(fn -> {i, Serving.forward(serving, [[frame(i), frame(i + 1)]])} end)
        end

      eventually(fn -> stats!(serving).waiting == 12 end)
      release!(held)
      answers = Task.await_many(tasks, 60_000)

      for {i, {:ok, got}} <- answers do
        {:ok, want} = Policy.forward(policy, [[frame(i), frame(i + 1)]])
        assert_near(got, want)
      end

      assert stats!(serving).batch_size.max == 12
    end

    test "returns the errors of the policy" do
      serving = start!()
      assert {:error, %Error{kind: :mismatch}} = Serving.forward(serving, [[[0.0]]])
      assert {:error, %Error{kind: :mismatch}} = Serving.forward(serving, [[frame(0)]], <<0::64>>)

      assert {:error, %Error{kind: :mismatch, op: :forward}} =
               Serving.forward(serving, [[frame(0)]], nil, taps: [:nonsense])

      assert_raise ArgumentError, ~r/unknown option :state/, fn ->
        Serving.forward(serving, [[frame(0)]], nil, state: nil)
      end
    end

    test "ends at its deadline, and sends no message later" do
      serving = start!()
      rows = [[frame(0)]]

      assert {:error, %Error{kind: :deadline, op: :forward, details: %{deadline_ms: 0}}} =
               Serving.forward(serving, rows, nil, deadline_ms: 0)

      held = occupy!(serving)

      assert {:error, %Error{kind: :deadline, details: %{deadline_ms: 5, waited_ms: waited}}} =
               Serving.forward(serving, rows, nil, deadline_ms: 5)

      assert waited >= 5.0
      assert stats!(serving).waiting == 0
      release!(held)
      assert {:ok, _} = Serving.forward(serving, rows, nil, deadline_ms: 60_000)
      refute_received _
    end

    test "counts its deadline from the call, including packing" do
      serving = start!()
      frames = List.duplicate(frame(0), 200_000)

      assert {:error, %Error{kind: :deadline, details: %{deadline_ms: 5}}} =
               Serving.forward(serving, [frames], nil, deadline_ms: 5)

      # No worker took the request.
      assert %{late: 1, queue_wait_us: %{count: 0}} = stats!(serving)
    end
  end

  defp assert_near(got, want) do
    assert got.shape == want.shape
    assert byte_size(got.logits <> got.state) == byte_size(want.logits <> want.state)

    for {a, b} <- Enum.zip(floats(got.logits <> got.state), floats(want.logits <> want.state)) do
      assert_in_delta a, b, 1.0e-5
    end
  end

  defp floats(binary), do: for(<<number::float-32-little <- binary>>, do: number)

  describe "a busy worker" do
    test "delays callers until their deadline at most, and their sessions are unchanged" do
      serving = start!()
      session = open!(serving)
      held = occupy!(serving)

      assert {:error, %Error{kind: :deadline, op: :act, details: details} = error} =
               Session.act(session, frame(0), deadline_ms: 10)

      assert %{deadline_ms: 10, waited_ms: waited} = details
      assert waited >= 10.0
      assert Exception.message(error) =~ "missed its deadline of 10 ms, after "
      # The request was still queued, and was removed.
      assert stats!(serving).waiting == 0
      assert {:ok, %{frames: 0}} = Session.info(session)
      release!(held)
      assert {:ok, %Action{frame: 1}} = Session.act(session, frame(0), deadline_ms: 60_000)
      assert %{late: 1, answered: 2, requests: 3} = stats!(serving)
      refute_received _
    end

    test "drops a decision that is given up" do
      serving = start!()
      session = open!(serving)
      {:ok, gate} = Native.probe_hold(serving.ref)
      assert {:error, %Error{kind: :deadline}} = Session.act(session, frame(0), deadline_ms: 200)
      assert {:error, %Error{kind: :busy}} = Session.act(session, frame(0))
      :ok = Native.probe_open(gate)
      eventually(fn -> match?({:ok, %{frames: 0}}, Session.info(session)) end)
      assert {:ok, %Action{frame: 1}} = Session.act(session, frame(0))
      refute_received _
    end

    test "has a full queue, which is busy for the next request" do
      serving = start!(max_queue: 2)
      held = occupy!(serving)
      waiting = for _ <- 1..2, do: Task.async(fn -> Session.act(open!(serving), frame(0)) end)
      eventually(fn -> stats!(serving).waiting == 2 end)
      session = open!(serving)

      assert {:error, %Error{kind: :busy, op: :act, details: %{what: "queue of 2 requests"}}} =
               Session.act(session, frame(0))

      assert {:error, %Error{kind: :busy}} = Serving.forward(serving, [[frame(0)]])
      release!(held)
      assert [{:ok, _}, {:ok, _}] = Task.await_many(waiting, 60_000)
      assert {:ok, %Action{frame: 1}} = Session.act(session, frame(0))
      assert %{busy: 2} = stats!(serving)
      refute_received _
    end

    test "is not held up by requests of dead callers" do
      # Sessions of earlier tests may still be closing.
      eventually(fn -> Native.session_count() == 0 end)
      serving = start!()
      held = occupy!(serving)

      callers =
        for i <- 1..4 do
          spawn(fn ->
            if rem(i, 2) == 0,
              do: Session.act(open!(serving), frame(0)),
              else: Serving.forward(serving, [[frame(0)]])
          end)
        end

      eventually(fn -> stats!(serving).waiting == 4 end)
      Enum.each(callers, &Process.exit(&1, :kill))
      eventually(fn -> match?(%{waiting: 0, cancelled: 4}, stats!(serving)) end)
      release!(held)
      eventually(fn -> Native.session_count() == 0 end)
    end

    test "continues after a panic, which answers its batch" do
      serving = start!()
      session = open!(serving)
      {:ok, first} = Session.act(session, frame(0))
      :ok = Native.probe_batch(serving.ref, nil)

      assert {:error, %Error{kind: :panic, details: %{message: "probe"}}} =
               Session.act(session, frame(1))

      {:ok, own} = Session.open(serving.policy, seed: 5, window_size: 6)
      assert {:ok, ^first} = Session.act(own, frame(0))
      assert Session.act(session, frame(1)) == Session.act(own, frame(1))
      assert %{panics: 1} = stats!(serving)
    end
  end

  describe "a step on its caller's scheduler" do
    test "is chosen by measurement or by option, and decides as a worker" do
      assert start!(lane: :auto).lane == :inline
      inline = start!(lane: :inline, workers: 2)
      assert inspect(inline) =~ "packed f32, steps inline, 2 workers"
      worker = start!()
      [here, there] = for serving <- [inline, worker], do: open!(serving, logits: true)
      for t <- 0..20, do: assert(Session.act(here, frame(t)) == Session.act(there, frame(t)))
      # The first decision read a window, so a worker made it.
      assert %{requests: 21, answered: 21, waiting: 0, late: 0} = stats = stats!(inline)

      for histogram <- [:queue_wait_us, :batch_size, :compute_us, :latency_us],
          do: assert(stats[histogram].count == 21)

      assert stats.batch_size.max == 1
    end

    test "is not used for windows" do
      policy = policy!(backbone: :xlstm)
      serving = start!(policy: policy, lane: :inline)
      {:ok, own} = Session.open(policy, seed: 5, window_size: 6, mode: :window)
      session = open!(serving, mode: :window)
      for t <- 0..3, do: assert(Session.act(session, frame(t)) == Session.act(own, frame(t)))
    end

    @tag :tmp_dir
    test "is left to a worker while the weights are not packed", %{tmp_dir: dir} do
      policy = policy!(backbone: :mlp)
      wide = Path.join(dir, "wide.safetensors")
      save_wide!(policy, wide)
      serving = start!(policy: policy, weights: :bf16, lane: :inline)
      session = open!(serving)

      for {swapped, lane, path} <- [
            {policy, :inline, :packed},
            {wide, :worker, :core},
            {policy, :inline, :packed}
          ] do
        :ok = Serving.swap(serving, swapped)
        assert {:ok, %{lane: ^lane, path: ^path}} = Serving.info(serving.pid)
        assert {:ok, _} = Session.act(session, frame(0))
      end

      assert {:ok, %{frames: 3, path: :packed}} = Session.info(session)
    end

    test "leaves the session unchanged if the call is late" do
      serving = start!(policy: policy!(backbone: :mlp), lane: :inline)
      session = open!(serving)

      assert {:error, %Error{kind: :deadline, op: :act}} =
               Session.act(session, frame(0), deadline_ms: 0)

      assert {:ok, %Action{frame: 1}} = Session.act(session, frame(0), deadline_ms: 60_000)
      assert %{requests: 2, late: 1, answered: 1} = stats!(serving)
    end

    test "leaves the session unchanged if the frame is wrong or the step panics" do
      serving = start!(policy: policy!(backbone: :mlp), lane: :inline)
      session = open!(serving)
      {:ok, own} = Session.open(serving.policy, seed: 5, window_size: 6)
      assert Session.act(session, frame(0)) == Session.act(own, frame(0))
      :ok = Native.probe_batch(serving.ref, nil)

      assert {:error, %Error{kind: :panic, details: %{message: "probe"}}} =
               Session.act(session, frame(1))

      not_a_number = <<0x7FC00000::32-little, 0.0::32-float-little>>
      assert {:error, %Error{kind: :non_finite}} = Session.act(session, not_a_number)
      assert Session.act(session, frame(1)) == Session.act(own, frame(1))
      assert %{requests: 4, answered: 4, panics: 1} = stats!(serving)
    end

    test "uses the weights of the last swap, and loses no call of many callers" do
      policies = for seed <- [3, 4], do: policy!(backbone: :mlp, seed: seed)
      serving = start!(policy: hd(policies), lane: :inline)

      callers =
        for seed <- 1..8 do
          Task.async(fn ->
            session = open!(serving, seed: seed)
            act_until_told(session, 1)
          end)
        end

      for policy <- Enum.concat(List.duplicate(policies, 5)),
          do: :ok = Serving.swap(serving, policy)

      for caller <- callers, do: send(caller.pid, :enough)
      made = callers |> Task.await_many(60_000) |> Enum.sum()
      assert %{requests: ^made, answered: ^made, swaps: 10} = stats!(serving)
      session = open!(serving)
      {:ok, own} = Session.open(List.last(policies), seed: 5)
      assert Session.act(session, frame(1)) == Session.act(own, frame(1))
    end

    defp act_until_told(session, t) do
      {:ok, %Action{frame: ^t}} = Session.act(session, frame(t))

      receive do
        :enough -> t
      after
        0 -> act_until_told(session, t + 1)
      end
    end

    test "is possible until the serving drains or ends" do
      for stop <- [:drain, :stop] do
        serving = start!(policy: policy!(backbone: :mlp), lane: :inline)
        session = open!(serving)
        assert {:ok, _} = Session.act(session, frame(0))
        assert apply(Serving, stop, [serving]) == :ok
        assert {:error, %Error{kind: :unavailable}} = Session.act(session, frame(1))
        {:ok, snapshot} = Session.snapshot(session)
        {:ok, own} = Session.open(serving.policy, seed: 5, window_size: 6)
        :ok = Session.restore(own, snapshot)
        assert {:ok, %Action{frame: 2}} = Session.act(own, frame(1))
      end
    end
  end

  describe "swap" do
    test "serves other weights from then on, and sessions keep their memory" do
      [old, new] = for seed <- [3, 4], do: policy!(seed: seed)
      serving = start!(policy: old)
      session = open!(serving)
      for t <- 0..3, do: {:ok, _} = Session.act(session, frame(t))
      {:ok, snapshot} = Session.snapshot(session)
      :ok = Serving.swap(serving, new)
      {:ok, own} = Session.open(new, seed: 5, window_size: 6)
      :ok = Session.restore(own, snapshot)
      for t <- 4..8, do: assert(Session.act(session, frame(t)) == Session.act(own, frame(t)))
      {:ok, forward} = Policy.forward(new, [[frame(0), frame(1)]])
      assert Serving.forward(serving, [[frame(0), frame(1)]]) == {:ok, forward}
      assert %{swaps: 1} = stats!(serving)
      assert {:ok, %{policy: ^new}} = Serving.info(serving.pid)
    end

    @tag :tmp_dir
    test "changes path and format with the weights", %{tmp_dir: dir} do
      policy = policy!()
      serving = start!(policy: policy, weights: :bf16)
      assert {:ok, %{path: :packed, weights: :bf16}} = Serving.info(serving.pid)
      path = Path.join(dir, "wide.safetensors")
      save_wide!(policy, path)
      assert :ok = Serving.swap(serving, path)
      assert {:ok, %{path: :core, weights: :f32}} = Serving.info(serving.pid)
      assert :ok = Serving.swap(serving, policy)
      assert {:ok, %{path: :packed, weights: :bf16}} = Serving.info(serving.pid)
    end

    test "loses no request" do
      policies = for seed <- [3, 4], do: policy!(seed: seed)
      serving = start!(policy: hd(policies))

      callers =
        for seed <- 1..8 do
          Task.async(fn ->
            session = open!(serving, seed: seed)
            for t <- 1..60, do: {:ok, %Action{frame: ^t}} = Session.act(session, frame(t))
          end)
        end

      for policy <- Enum.concat(List.duplicate(policies, 5)),
          do: :ok = Serving.swap(serving, policy)

      Task.await_many(callers, 60_000)
      assert %{requests: 480, answered: 480, swaps: 10} = stats!(serving)
    end

    test "refuses another Spec" do
      serving = start!()

      assert {:error, %Error{kind: :mismatch, op: :swap}} =
               Serving.swap(serving, policy!(backbone: :mlp))

      assert {:ok, _} = Session.act(open!(serving), frame(0))
    end
  end

  describe "the end of a serving" do
    test "by drain finishes earlier requests and refuses later ones" do
      serving = start!()
      session = open!(serving)
      held = occupy!(serving)
      assert {:error, %Error{kind: :deadline, op: :drain}} = Serving.drain(serving, 10)

      assert {:error, %Error{kind: :unavailable, op: :act}} = Session.act(session, frame(0))
      assert {:error, %Error{kind: :unavailable}} = Serving.open(serving)
      assert {:error, %Error{kind: :unavailable}} = Serving.forward(serving, [[frame(0)]])
      {gate, task} = held
      drains = for _ <- 1..2, do: Task.async(fn -> Serving.drain(serving, :infinity) end)
      :ok = Native.probe_open(gate)
      assert Task.await_many(drains, 60_000) == [:ok, :ok]
      # The answer comes before the drain ends.
      assert {:ok, {:ok, %Action{frame: 1}}} = Task.yield(task, 5_000)
      assert Serving.drain(serving) == :ok
      refute_received _
    end

    test "by drain waits until its timeout, and does not begin with a wrong timeout" do
      serving = start!()

      for wrong <- [-1, 1.5, "5", nil, :soon, Integer.pow(10, 12)] do
        assert_raise ArgumentError, ~r/timeout: expected 0 to/, fn ->
          Serving.drain(serving, wrong)
        end
      end

      assert {:ok, _} = Session.act(open!(serving), frame(0))
      :ok = Serving.stop(serving)

      for answer <- [Serving.drain(serving), Serving.swap(serving, serving.policy)] do
        assert {:error, %Error{kind: :unavailable} = error} = answer
        assert Exception.message(error) =~ "has ended"
      end
    end

    test "by stop cancels queued requests, and sessions get an error and keep their memory" do
      serving = start!(max_queue: 8)
      session = open!(serving)
      {:ok, _} = Session.act(session, frame(0))
      held = occupy!(serving)
      waiting = for _ <- 1..3, do: Task.async(fn -> Session.act(open!(serving), frame(0)) end)
      eventually(fn -> stats!(serving).waiting == 3 end)
      :ok = Serving.stop(serving)

      for answer <- Task.await_many(waiting) do
        assert {:error, %Error{kind: :cancelled, op: :act}} = answer
      end

      release!(held)
      assert {:error, %Error{kind: :unavailable}} = Session.act(session, frame(1))
      assert {:error, %Error{kind: :not_found}} = Serving.open(serving.pid)
      assert {:error, %Error{kind: :unavailable}} = Serving.open(serving)
      assert :ok = Serving.stop(serving)
      {:ok, snapshot} = Session.snapshot(session)
      {:ok, own} = Session.open(serving.policy, seed: 5, window_size: 6)
      :ok = Session.restore(own, snapshot)
      assert {:ok, %Action{frame: 2}} = Session.act(own, frame(1))
    end

    test "by a crash has the same effect as by stop" do
      policy = policy!()

      pid =
        start_supervised!(
          {Serving, policy: policy, name: :crashing, workers: 1, lane: :worker},
          restart: :temporary
        )

      {:ok, serving} = Serving.info(:crashing)
      held = occupy!(serving)
      waiting = Task.async(fn -> Session.act(open!(serving), frame(0)) end)
      eventually(fn -> stats!(serving).waiting == 1 end)
      Process.exit(pid, :kill)
      assert {:error, %Error{kind: :cancelled}} = Task.await(waiting)
      release!(held)
      assert {:error, %Error{kind: :not_found}} = Serving.info(:crashing)
    end

    test "leaves no thread and no session" do
      eventually(fn -> threads() == [] and Native.session_count() == 0 end)
      serving = start!(workers: 3)
      session = open!(serving)
      {:ok, _} = Session.act(session, frame(0))
      assert length(threads()) == 3
      :ok = Serving.stop(serving)
      :ok = Session.close(session)
      eventually(fn -> threads() == [] and Native.session_count() == 0 end)
    end
  end

  test "each call has an answer and nothing is left while callers die or give up and weights change" do
    eventually(fn -> threads() == [] and Native.session_count() == 0 end)
    [old, new] = for seed <- [3, 4], do: policy!(seed: seed)
    serving = start!(policy: old, workers: 2, max_queue: 5, max_batch: 3)
    processes = length(Process.list())
    test = self()
    kinds = [:busy, :deadline, :panic]

    callers =
      for seed <- 1..12 do
        spawn_monitor(fn ->
          :rand.seed(:exsss, seed)
          session = open!(serving, seed: seed)

          for t <- 1..150 do
            deadline = Enum.random([0, 1, 5, 60_000])

            answer =
              if rem(t, 5) == 0,
                do: Serving.forward(serving, [[frame(t)]], nil, deadline_ms: deadline),
                else: Session.act(session, frame(t), deadline_ms: deadline)

            send(test, {:outcome, answer})
            if :rand.uniform(200) == 1, do: Process.exit(self(), :kill)
          end

          send(test, {:left, Process.info(self(), :messages)})
        end)
      end

    for i <- 1..40 do
      :ok = Serving.swap(serving, if(rem(i, 2) == 0, do: old, else: new))
      :ok = Native.probe_batch(serving.ref, if(rem(i, 5) == 0, do: nil, else: rem(i, 3)))
      {pid, _monitor} = Enum.random(callers)
      if rem(i, 13) == 0, do: Process.exit(pid, :kill)
    end

    for {pid, monitor} <- callers do
      assert_receive {:DOWN, ^monitor, :process, ^pid, reason} when reason in [:normal, :killed],
                     60_000
    end

    outcomes(kinds)
    eventually(fn -> match?(%{waiting: 0}, stats!(serving)) end)
    :ok = Serving.drain(serving, 60_000)
    stats = stats!(serving)
    assert stats.requests == stats.answered + stats.late + stats.cancelled
    :ok = Serving.stop(serving)
    eventually(fn -> threads() == [] and Native.session_count() == 0 end)
    eventually(fn -> length(Process.list()) < processes end)
  end

  defp outcomes(kinds) do
    receive do
      {:outcome, {:ok, _}} -> outcomes(kinds)
      {:outcome, {:error, %Error{kind: kind}}} -> assert(kind in kinds) && outcomes(kinds)
      {:left, messages} -> assert(messages == {:messages, []}) && outcomes(kinds)
    after
      0 -> :ok
    end
  end

  describe "a serving" do
    test "is found by its name, and prints in one line" do
      policy = policy!(backbone: :mlp)
      options = [policy: policy, name: MyApp.Policy, max_queue: 32, lane: :worker]
      start_supervised!({Serving, options})
      {:ok, serving} = Serving.info(MyApp.Policy)

      assert inspect(serving) ==
               "#Sconce.Serving<MyApp.Policy · vector 2 -> mlp 8 -> fire(2) move(4) · packed f32, " <>
                 "1 worker · batches of 64, queue of 32>"

      {:ok, session} = Serving.open(MyApp.Policy)
      assert {:ok, _} = Session.act(session, frame(0))
      assert {:ok, %{requests: 1}} = Serving.stats(MyApp.Policy)
      assert :ok = Serving.stop(MyApp.Policy)
    end

    test "that is missing is an error" do
      assert {:error, %Error{kind: :not_found, op: :open, details: details}} =
               Serving.open(:nobody)

      assert details == %{what: "serving :nobody"}
      assert {:error, %Error{kind: :not_found}} = Serving.stats(self())
    end

    test "names a wrong argument and the expected one" do
      policy = policy!()

      for {what, wrong} <- [
            {"serving", fn -> Serving.open("nope") end},
            {"serving", fn -> Serving.open(policy) end},
            {"serving", fn -> Serving.open({:ok, self()}) end},
            {"state", fn -> Serving.forward(:nobody, [[frame(0)]], deadline_ms: 5) end},
            {"a policy", fn -> Session.open({:ok, policy}) end},
            {"a session", fn -> Session.act(policy, frame(0)) end}
          ] do
        assert_raise ArgumentError, ~r/#{what}.*, got: /, wrong
      end
    end

    test "refuses unknown options" do
      assert_raise ArgumentError, ~r/option :policy is required/, fn -> Serving.start_link([]) end

      assert_raise ArgumentError, ~r/expected a policy, got: 1/, fn ->
        Serving.start_link(policy: 1)
      end

      assert_raise ArgumentError, ~r/did you mean :max_batch/, fn ->
        Serving.start_link(policy: policy!(), max_bach: 3)
      end
    end

    test "serves sessions of windows, which decide by the path :core" do
      policy = policy!(backbone: :xlstm)
      serving = start!(policy: policy)
      {:ok, own} = Session.open(policy, seed: 5, window_size: 6, mode: :window)
      session = open!(serving, mode: :window)
      assert session.path == :core
      for t <- 0..3, do: assert(Session.act(session, frame(t)) == Session.act(own, frame(t)))
    end
  end

  describe "telemetry" do
    # The host's `:telemetry` if it is loaded, else a fake.
    setup do
      test = self()

      handler = fn name, measured, metadata, _ ->
        send(test, {:told, name, measured, metadata})
      end

      if Sconce.Events.telemetry?(), do: attach(handler), else: fake(handler)
      :ok
    end

    test "has each event as documented" do
      serving = start!(telemetry_ms: 20, name: :told)
      {:ok, _} = Session.act(open!(serving), frame(0))
      assert_receive {:told, [:sconce, :serving, :statistics], %{requests: 1}, _}
      # Each event has only the counts since the one before.
      assert_receive {:told, [:sconce, :serving, :statistics], %{requests: 0} = news, metadata}
      send(self(), {:told, [:sconce, :serving, :statistics], news, metadata})
      :ok = Serving.swap(serving, serving.policy)
      :ok = Serving.drain(serving)
      :ok = Serving.stop(serving)

      for %{telemetry: name, measurements: documented} <- Serving.Events.all() do
        assert_receive {:told, ^name, measured, metadata}
        assert Enum.sort(Map.keys(measured)) == Enum.sort(Keyword.keys(documented))
        assert metadata == %{serving: serving.pid, name: :told}
      end
    end
  end

  defp attach(handler) do
    id = {__MODULE__, make_ref()}
    names = Serving.Events.telemetry_names()
    # `apply` avoids a compiler warning in a host without `:telemetry`.
    :ok = apply(:telemetry, :attach_many, [id, names, handler, nil])
    on_exit(fn -> apply(:telemetry, :detach, [id]) end)
  end

  defp fake(handler) do
    :persistent_term.put(__MODULE__, handler)

    Module.create(
      :telemetry,
      quote do
        def execute(name, measured, metadata),
          do: :persistent_term.get(unquote(__MODULE__)).(name, measured, metadata, nil)
      end,
      Macro.Env.location(__ENV__)
    )

    on_exit(fn ->
      :code.delete(:telemetry)
      :code.purge(:telemetry)
      :persistent_term.erase(__MODULE__)
    end)
  end
end
