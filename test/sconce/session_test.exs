defmodule Sconce.SessionTest do
  # Not async: live sessions are counted per VM.
  use ExUnit.Case, async: false

  import Sconce.Test.SomeNx

  alias Sconce.{Action, Error, Frame, Native, Policy, Session}

  doctest Session

  @heads [fire: {:bernoulli, 2}, move: {:categorical, 4}]
  @own %{
    percent: 12.0,
    facing: 1,
    x: -20.0,
    y: 0.0,
    action: 14,
    character: 1,
    on_ground: true,
    stock: 4
  }
  @frame %Frame{own: @own, opponent: %{@own | x: 20.0, facing: -1}, stage: 31}

  defp policy!(opts \\ []) do
    small = if opts[:backbone] == :mlp, do: [hidden_sizes: [8]], else: [hidden_size: 8]

    {:ok, policy} =
      Policy.init([embedding: {:vector, 2}, heads: @heads] ++ small ++ opts, seed: 3)

    policy
  end

  defp melee!(opts \\ []) do
    {:ok, policy} = Policy.init([hidden_size: 8] ++ opts, seed: 3)
    policy
  end

  defp first(<<number::float-32-little, _rest::binary>>), do: number

  defp open!(policy, opts \\ []) do
    {:ok, session} = Session.open(policy, [seed: 5, window_size: 6] ++ opts)
    session
  end

  defp frame(t), do: [:math.sin(t * 0.7), :math.cos(t * 0.3)]

  defp play!(session, ts, opts \\ []) do
    for t <- ts do
      {:ok, action} = Session.act(session, frame(t), opts)
      action
    end
  end

  defp numbers(action), do: action.logits.fire ++ action.logits.move

  defp frames!(session) do
    {:ok, info} = Session.info(session)
    info.frames
  end

  defp eventually(check, left \\ 500) do
    cond do
      check.() -> :ok
      left == 0 -> flunk("the condition never became true")
      true -> Process.sleep(10) && eventually(check, left - 1)
    end
  end

  # The last frames up to t, padded with copies of the first.
  defp window(t), do: for(k <- (t - 5)..t, do: frame(max(k, 0)))

  defp last_logits(policy, frames) do
    {:ok, %{logits: logits}} = Policy.forward(policy, [frames])
    size = 4 * policy.num_logits
    last = binary_part(logits, byte_size(logits) - size, size)
    for <<v::float-32-little <- last>>, do: v
  end

  describe "a decision" do
    test "is the same for equal seeds and frames, on either lane" do
      for backbone <- [:mlp, :lstm, :gru], mode <- [:carry, :window, {:resync, 4}] do
        policy = policy!(backbone: backbone)
        first = play!(open!(policy, mode: mode, lane: :inline), 0..20)
        assert play!(open!(policy, mode: mode, lane: :worker), 0..20) == first
        assert Enum.map(first, & &1.frame) == Enum.to_list(1..21)
      end
    end

    test "differs for another seed and repeats after a reset" do
      session = open!(policy!())
      first = play!(session, 0..30)
      :ok = Session.reset(session, seed: 6)
      second = play!(session, 0..30)
      assert second != first
      :ok = Session.reset(session)
      assert play!(session, 0..30) == second
      :ok = Session.reset(session)
      assert play!(session, 0..30, seed: 5) == first
    end

    test "draws its own seed if none is given" do
      {:ok, a} = Session.open(policy!())
      {:ok, b} = Session.open(policy!())
      {:ok, info_a} = Session.info(a)
      {:ok, info_b} = Session.info(b)
      assert info_a.seed != info_b.seed
    end

    test "in :window mode equals the model on the last frames" do
      for backbone <- [:mlp, :lstm, :gru] do
        policy = policy!(backbone: backbone)
        session = open!(policy, mode: :window, logits: true)

        for {action, t} <- Enum.with_index(play!(session, 0..12)) do
          want = last_logits(policy, window(t))

          for {g, w} <- Enum.zip(action.logits.fire ++ action.logits.move, want) do
            assert_in_delta g, w, 1.0e-5
          end
        end
      end
    end

    test "in :carry mode follows a window of copies of the first frame" do
      policy = policy!()
      actions = play!(open!(policy, logits: true), 0..12)
      want = last_logits(policy, List.duplicate(frame(0), 5) ++ Enum.map(0..12, &frame/1))
      got = List.last(actions).logits
      for {g, w} <- Enum.zip(got.fire ++ got.move, want), do: assert_in_delta(g, w, 1.0e-5)
    end

    test "follows temperature and determinism" do
      policy = policy!()
      [action] = play!(open!(policy), [0], deterministic: true, logits: true)
      {best, _} = action.logits.move |> Enum.with_index() |> Enum.max() |> then(&{elem(&1, 1), 0})
      assert action.choices.move == best

      cold = play!(open!(policy, temperature: 0.001), 0..20)
      likely = play!(open!(policy, deterministic: true), 0..20)
      assert Enum.map(cold, & &1.choices) == Enum.map(likely, & &1.choices)

      hot = open!(policy) |> play!(0..40, temperature: 1000) |> Enum.map(& &1.choices.move)
      assert hot |> Enum.uniq() |> length() > 1
    end

    test "holds buttons by their thresholds and the held buttons" do
      session = open!(policy!(), deterministic_buttons: true)
      sticky = [press_threshold: 1.0, release_threshold: 0.0]
      fire = fn opts -> hd(play!(session, [0], opts ++ sticky)).choices.fire end

      assert fire.(previous: %{fire: [1, 0], move: 0}) == [1, 0]
      assert fire.([]) == [1, 0]
      assert fire.(previous: [fire: [0, 1], move: 3]) == [0, 1]

      assert fire.(
               press_threshold: 0.0,
               release_threshold: 1.0,
               previous: [fire: [0, 1], move: 3]
             ) ==
               [1, 0]
    end

    test "does not see directions that are projected out, and keeps its memory unchanged" do
      policy = policy!()
      u = for i <- 1..8, do: i - 2.5
      plain = open!(policy, logits: true)
      steered = open!(policy, logits: true, project_out: u)

      for t <- 0..4 do
        {:ok, out} = Policy.forward(policy, [window(t)], project_out: u, return_sequences: false)

        want = for <<v::float-32-little <- out.logits>>, do: v
        {:ok, action} = Session.act(steered, frame(t), deterministic: true)

        # The carried state begins with the window that warms the first state.
        if t == 0 do
          for {x, y} <- Enum.zip(numbers(action), want), do: assert_in_delta(x, y, 1.0e-5)
        end

        {:ok, other} = Session.act(plain, frame(t), deterministic: true, project_out: u)
        assert numbers(other) == numbers(action)
      end

      # Directions of one decision do not affect later ones.
      {:ok, free} = Session.act(steered, frame(5), deterministic: true, project_out: [])
      {:ok, same} = Session.act(plain, frame(5), deterministic: true)
      assert numbers(free) == numbers(same)

      for {bad, kind} <- [{[1.0], :mismatch}, {List.duplicate(0, 8), :out_of_range}] do
        assert {:error, %Error{kind: ^kind}} = Session.open(policy, project_out: bad)
        assert {:error, %Error{kind: ^kind}} = Session.act(plain, frame(6), project_out: bad)
      end

      assert frames!(plain) == 6
    end

    test "treats a previous action of nil as none" do
      session = open!(policy!())
      {:ok, plain} = Session.act(session, frame(0))
      :ok = Session.reset(session)
      assert Session.act(session, frame(0), previous: nil) == {:ok, plain}
    end

    test "accepts a list, a binary or a tensor" do
      binary = <<0.5::float-32-little, -1.0::float-32-little>>
      session = open!(policy!())

      with_nx(fn ->
        frames =
          [[0.5, -1], binary] ++ for shape <- [{2}, {1, 2}], do: tensor(binary, {:f, 32}, shape)

        actions =
          for frame <- frames do
            :ok = Session.reset(session)
            {:ok, action} = Session.act(session, frame)
            action
          end

        assert [action] = Enum.uniq(actions)
        :ok = Session.reset(session)
        {:ok, tensors} = Session.act(session, binary, as: :nx, logits: true)
        assert tensors.choices.move == tensor(<<action.choices.move::16-little>>, {:u, 16}, {})
        assert %{type: {:f, 32}, shape: {4}} = tensors.logits.move

        assert {:error, %Error{kind: :mismatch, details: %{got: "the shape {2, 1}"}}} =
                 Session.act(session, tensor(binary, {:f, 32}, {2, 1}))
      end)
    end
  end

  describe "a Melee session" do
    test "makes the same controller input from a frame, a map and a packed row" do
      session = open!(melee!(), logits: true)
      {:ok, row} = Frame.pack(@frame)

      actions =
        for frame <- [@frame, Map.from_struct(@frame), row] do
          :ok = Session.reset(session)
          {:ok, action} = Session.act(session, frame)
          action
        end

      assert [%Action{} = action, action, action] = actions
      assert action.buttons |> Map.keys() |> Enum.sort() == ~w(a b d_up l r x y z)a
      for stick <- [action.main_stick, action.c_stick], do: assert(stick.x >= 0 and stick.x <= 1)

      assert action.confidence |> Map.keys() |> Enum.sort() ==
               ~w(buttons c main overall shoulder)a

      assert action.logits |> Map.values() |> Enum.map(&length/1) |> Enum.sum() == 81
    end

    test "uses its last output as the previous action, unless the frame has one" do
      for heads <- [:independent, :autoregressive] do
        policy = melee!(heads: heads)
        own = open!(policy)
        told = open!(policy)

        Enum.reduce(1..10, nil, fn t, previous ->
          frame = put_in(@frame.own.x, t * 1.0)
          {:ok, action} = Session.act(own, frame, logits: true)
          frame = %{frame | previous_action: previous}
          assert Session.act(told, frame, logits: true) == {:ok, action}
          action
        end)
      end
    end

    test "keeps the latest inputs for a policy that reads them, as given to forward/3" do
      queue = [embedding: {:melee, queue_depth: 3, num_delays: 9}]
      policy = melee!(queue)
      alone = [frame_delay: 2, mode: :window, window_size: 1, seed: 5]
      {:ok, session} = Session.open(policy, alone)
      assert {:ok, %{frame_delay: 2}} = Session.info(session)

      Enum.reduce(1..6, List.duplicate(65_535, 39), fn t, past ->
        frame = put_in(@frame.own.x, t * 1.0)
        {:ok, out} = Policy.forward(policy, [[frame]], queue: past, frame_delay: 2)
        {:ok, action} = Session.act(session, frame, logits: true)
        assert_in_delta first(out.logits), hd(action.logits.buttons), 1.0e-5
        {:ok, labels} = Action.labels(policy.spec, :action, action)
        Enum.take(labels ++ past, 39)
      end)

      {:ok, snapshot} = Session.snapshot(session)
      {:ok, next} = Session.act(session, @frame)
      {:ok, told} = Session.open(policy, alone)
      assert {:error, %{kind: :mismatch}} = Session.restore(open!(policy), snapshot)
      :ok = Session.restore(told, snapshot)
      assert Session.act(told, @frame) == {:ok, next}
      # Inputs that the session cannot know can be given, and are remembered.
      {:ok, lone} = Session.act(told, @frame, queue: [next, nil, next])
      {:ok, later} = Session.snapshot(told)
      {:ok, remembered} = Session.act(told, @frame, logits: true, previous: next)
      :ok = Session.restore(told, later)
      said = [logits: true, queue: [lone, next, next]]
      assert Session.act(told, @frame, said) == {:ok, remembered}

      for {queue, what} <- [{[:none], "queue"}, {[next, %{next.choices | c_x: 17}], "c_x"}] do
        assert {:error, error} = Session.act(told, @frame, queue: queue)
        assert Exception.message(error) =~ what
      end

      assert {:error, error} = Session.act(told, @frame, queue: List.duplicate(next, 4))
      assert Exception.message(error) == "act: queue (inputs): 4 is outside 0..3"

      assert {:error, error} = Policy.forward(policy, [[@frame]], queue: [1, 2])
      assert Exception.message(error) =~ "queue: expected 39 labels, [.., 3, 13], got 2"
    end

    test "decides differently for another previous action" do
      policy = melee!()

      other = %{
        buttons: %{a: true, b: true},
        main_stick: %{x: 1.0, y: 0.0},
        c_stick: %{x: 0.0, y: 1.0},
        shoulder: 1.0
      }

      {:ok, without} = Session.act(open!(policy, logits: true), @frame)

      {:ok, with_it} =
        Session.act(open!(policy, logits: true), %{@frame | previous_action: other})

      assert without.logits != with_it.logits
    end

    test "refuses wrong frames by name, and is unchanged" do
      session = open!(melee!())
      {:ok, _} = Session.act(session, @frame)
      {:ok, before} = Session.snapshot(session)

      for {frame, kind, sentence} <- [
            {put_in(@frame.own.action, 5000), :out_of_range,
             "act: own.action: 5000 is outside 0..398"},
            {put_in(@frame.own.x, :nan), :non_finite, "frame: own.x is not finite (nan)"},
            {%{@frame | opponent: nil}, :not_found, "frame: opponent not found"},
            {<<1, 2, 3>>, :mismatch, "frame: frame: expected 396 bytes, got 3 bytes"}
          ] do
        assert {:error, %Error{kind: ^kind} = error} = Session.act(session, frame)
        assert Exception.message(error) == sentence
      end

      assert Session.snapshot(session) == {:ok, before}
    end
  end

  describe "a wrong argument" do
    test "is refused and leaves the session unchanged, on both lanes" do
      for lane <- [:inline, :worker], mode <- [:carry, :window] do
        session = open!(policy!(), lane: lane, mode: mode)
        play!(session, 0..3)
        {:ok, before} = Session.snapshot(session)

        for {frame, kind} <- [
              {[1.0], :mismatch},
              {[1.0, 2.0, 3.0], :mismatch},
              {<<0::32>>, :mismatch},
              {nil, :mismatch},
              {[1.0, 1.0e300], :non_finite},
              {<<0, 0, 192, 127, 0, 0, 0, 0>>, :non_finite}
            ] do
          assert {:error, %Error{kind: ^kind}} = Session.act(session, frame)
        end

        for previous <- [:none, %{fire: [1, 0]}, 3] do
          assert {:error, %Error{kind: :mismatch, op: :act}} =
                   Session.act(session, frame(0), previous: previous)
        end

        assert {:error, %Error{kind: :out_of_range, details: %{field: "move"}}} =
                 Session.act(session, frame(0), previous: %{fire: [0, 0], move: 4})

        assert Session.snapshot(session) == {:ok, before}
      end
    end

    test "among the options is refused by name" do
      policy = policy!()
      session = open!(policy)

      for {opts, sentence} <- [
            {[mod: :carry], "unknown option :mod, did you mean :mode?"},
            {[mode: :cary], ~r/:mode/},
            {[mode: {:resync, 0}], ~r/:mode/},
            {[window_size: 0], ~r/:window_size/},
            {[window_size: 100_000], ~r/:window_size/},
            {[temperature: 0], ~r/:temperature/},
            {[press_threshold: 1.5], ~r/:press_threshold/},
            {[lane: :fast], ~r/:lane/},
            {[seed: -1], ~r/:seed/}
          ] do
        assert_raise ArgumentError, sentence, fn -> Session.open(policy, opts) end
      end

      assert_raise ArgumentError, ~r/did you mean :temperature\?/, fn ->
        Session.act(session, frame(0), temprature: 1.0)
      end

      assert_raise ArgumentError, ~r/:deadline_ms/, fn ->
        Session.act(session, frame(0), deadline_ms: -1)
      end

      # The longest timer of the VM.
      assert_raise ArgumentError, ~r/:deadline_ms: .* of at most 4294967295/, fn ->
        Session.act(session, frame(0), deadline_ms: 2 ** 32)
      end

      assert_raise ArgumentError, ~r/snapshot: expected a binary, got: :x/, fn ->
        Session.restore(session, :x)
      end
    end
  end

  describe "a snapshot" do
    test "continues exactly, also in another session" do
      for backbone <- [:mlp, :lstm, :gru], mode <- [:carry, :window, {:resync, 4}] do
        policy = policy!(backbone: backbone)
        session = open!(policy, mode: mode)
        play!(session, 0..8)
        {:ok, snapshot} = Session.snapshot(session)
        rest = play!(session, 9..20)

        other = open!(policy, mode: mode, seed: 99)
        :ok = Session.restore(other, snapshot)
        assert play!(other, 9..20) == rest
        :ok = Session.restore(session, snapshot)
        assert play!(session, 9..20) == rest
      end
    end

    test "that is truncated, changed or of another model is refused" do
      session = open!(policy!(), mode: :window)
      play!(session, 0..8)
      {:ok, snapshot} = Session.snapshot(session)

      for length <- 0..(byte_size(snapshot) - 1) do
        assert {:error, %Error{kind: :corrupt, op: :restore}} =
                 Session.restore(session, binary_part(snapshot, 0, length))
      end

      middle = div(byte_size(snapshot), 2)
      <<head::binary-size(middle), byte, tail::binary>> = snapshot

      assert {:error, %Error{kind: :corrupt}} =
               Session.restore(session, <<head::binary, Bitwise.bxor(byte, 1), tail::binary>>)

      for other <- [
            open!(policy!(), mode: :carry),
            open!(policy!(backbone: :lstm), mode: :window)
          ] do
        assert {:error, %Error{kind: :mismatch}} = Session.restore(other, snapshot)
      end

      assert Session.snapshot(session) == {:ok, snapshot}
    end
  end

  describe "the owner" do
    setup do
      # Sessions of earlier tests end with their processes.
      eventually(fn -> Native.session_count() == 0 end)
    end

    test "is the only process that may call" do
      session = open!(policy!())

      calls = [
        fn -> Session.act(session, frame(0)) end,
        fn -> Session.reset(session) end,
        fn -> Session.snapshot(session) end,
        fn -> Session.restore(session, "") end,
        fn -> Session.info(session) end,
        fn -> Session.transfer(session, self()) end,
        fn -> Session.close(session) end
      ]

      for call <- calls do
        assert {:error, %Error{kind: :busy} = error} = Task.await(Task.async(call))
        assert Exception.message(error) =~ "session (owned by another process) is in use"
      end

      assert frames!(session) == 0
    end

    test "ends the session by closing it" do
      session = open!(policy!(), mode: :window)
      assert Native.session_count() == 1
      assert Session.close(session) == :ok
      assert Native.session_count() == 0
      assert Session.close(session) == :ok

      assert {:error, %Error{kind: :not_found} = error} = Session.act(session, frame(0))
      assert Exception.message(error) == "act: session (closed) not found"
      assert {:error, %Error{kind: :not_found}} = Session.snapshot(session)
      assert {:error, %Error{kind: :not_found}} = Session.transfer(session, self())
      assert Task.await(Task.async(fn -> Session.close(session) end)) == :ok
    end

    test "ends the session by dying, though others hold the handle" do
      {session, owner} = opened_by_another()
      assert Native.session_count() == 1
      Process.exit(owner, :kill)
      eventually(fn -> Native.session_count() == 0 end)
      assert {:error, %Error{kind: :not_found}} = Session.act(session, frame(0))
    end

    test "may transfer the session, and its death then has no effect" do
      {session, owner} = opened_by_another()
      send(owner, {:transfer, self()})
      assert_receive :ok
      Process.exit(owner, :kill)
      assert {:ok, %Action{}} = Session.act(session, frame(0))

      test = self()
      heir = spawn(fn -> receive do: (:go -> send(test, Session.act(session, frame(1)))) end)
      assert Session.transfer(session, heir) == :ok
      assert {:error, %Error{kind: :busy}} = Session.act(session, frame(1))
      send(heir, :go)
      assert_receive {:ok, %Action{frame: 2}}
      eventually(fn -> Native.session_count() == 0 end)
    end

    test "keeps the session if the new owner is dead" do
      session = open!(policy!())
      dead = spawn(fn -> :ok end)
      eventually(fn -> not Process.alive?(dead) end)
      assert {:error, %Error{kind: :not_found, op: :transfer}} = Session.transfer(session, dead)
      assert {:ok, _action} = Session.act(session, frame(0))
    end

    test "may die while its decision is in flight" do
      {:ok, policy} = Policy.init(embedding: {:vector, 2}, heads: @heads)

      {owner, monitor} =
        spawn_monitor(fn ->
          {:ok, session} = Session.open(policy, mode: :window, window_size: 500, lane: :worker)
          # The call times out and the owner dies while a thread has the session.
          Session.act(session, frame(0), deadline_ms: 1)
        end)

      assert_receive {:DOWN, ^monitor, :process, ^owner, :normal}
      eventually(fn -> Native.session_count() == 0 end)
    end

    defp opened_by_another do
      policy = policy!()
      test = self()

      owner =
        spawn(fn ->
          {:ok, session} = Session.open(policy)
          send(test, {:opened, session})

          receive do
            {:transfer, to} -> send(to, Session.transfer(session, to))
          end

          Process.sleep(:infinity)
        end)

      assert_receive {:opened, session}
      {session, owner}
    end
  end

  describe "a game frame" do
    test "has one decision, however often it is asked, until it is rolled back" do
      for lane <- [:inline, :worker] do
        session = open!(policy!(), lane: lane, rollback: 8)
        made = for n <- 1..12, do: elem(Session.act(session, frame(n), game_frame: n), 1)

        for n <- 4..12 do
          assert Session.act(session, frame(99), game_frame: n) == {:ok, Enum.at(made, n - 1)}
        end

        assert {:error, %Error{kind: :not_found, op: :act} = error} =
                 Session.act(session, frame(3), game_frame: 3)

        assert Exception.message(error) =~ "the session keeps frames 12, 11, 10, 9"

        assert frames!(session) == 12
        assert Session.rollback(session, 10) == {:ok, 3}
        assert Session.rollback(session, 10) == {:ok, 0}
        assert frames!(session) == 9
        # The same frame leads to the same choices.
        assert Session.act(session, frame(10), game_frame: 10) == {:ok, Enum.at(made, 9)}

        assert {:error, %Error{kind: :not_found, op: :rollback}} = Session.rollback(session, 1)

        for wrong <- [1.0, 2 ** 63] do
          assert_raise ArgumentError, ~r/game_frame: expected/, fn ->
            Session.rollback(session, wrong)
          end
        end
      end
    end

    test "can be asked again without rollback only if it is the last" do
      session = open!(policy!())
      {:ok, _} = Session.act(session, frame(1), game_frame: 1)
      {:ok, second} = Session.act(session, frame(2), game_frame: 2)
      assert Session.act(session, frame(2), game_frame: 2) == {:ok, second}
      assert {:error, %Error{kind: :not_found}} = Session.act(session, frame(1), game_frame: 1)
      assert {:error, %Error{kind: :not_found}} = Session.rollback(session, 2)
      assert {:ok, 0} = Session.rollback(session, 3)
    end
  end

  describe "many games" do
    test "are decided in one call as each alone, on both lanes" do
      for lane <- [:inline, :worker] do
        policies = [policy!(), policy!(backbone: :mlp), policy!(backbone: :lstm)]

        open = fn ->
          for i <- 0..8 do
            mode = Enum.at([:carry, :window, {:resync, 2}], rem(i, 3))
            policy = Enum.at(policies, div(i, 3))
            {:ok, session} = Session.open(policy, seed: i, window_size: 6, mode: mode, lane: lane)
            session
          end
        end

        {together, alone} = {open.(), open.()}

        for t <- 1..7 do
          games = for {session, i} <- Enum.with_index(together), do: {session, frame(t + i)}
          answers = Session.act_many(games, logits: true)

          for {{session, answer}, i} <- alone |> Enum.zip(answers) |> Enum.with_index() do
            assert Session.act(session, frame(t + i), logits: true) == answer
          end
        end
      end
    end

    test "of a serving are decided by the serving" do
      policy = policy!()
      {:ok, serving} = Sconce.Serving.start_link(policy: policy)
      served = for seed <- 1..3, do: elem(Sconce.Serving.open(serving, seed: seed), 1)
      own = open!(policy)
      alone = for seed <- [1, 0, 2, 3], do: elem(Session.open(policy, seed: seed), 1)
      [a, b, c] = served

      for t <- 1..5 do
        answers =
          Session.act_many(for(s <- [a, own, b, c], do: {s, frame(t)}), deadline_ms: 60_000)

        assert length(answers) == 4

        for {{session, answer}, i} <- alone |> Enum.zip(answers) |> Enum.with_index(), i != 1 do
          assert Session.act(session, frame(t)) == answer
        end
      end

      assert {:ok, %{requests: 15}} = Sconce.Serving.stats(serving)
      :ok = Sconce.Serving.stop(serving)

      assert [{:error, %Error{kind: :unavailable}}, {:ok, %Action{}}] =
               Session.act_many([{a, frame(6)}, {own, frame(6)}])
    end

    test "are not affected by an error of one" do
      policy = policy!()
      [good, twice, closed, other] = for _ <- 1..4, do: open!(policy)
      :ok = Session.close(closed)

      assert [
               {:ok, %Action{frame: 1, logits: nil}},
               {:ok, %Action{frame: 1}},
               {:error, %Error{kind: :busy, op: :act}},
               {:error, %Error{kind: :not_found, op: :act}},
               {:error, %Error{kind: :mismatch}},
               {:error, %Error{kind: :non_finite}},
               {:ok, %Action{frame: 1, logits: %{}}}
             ] =
               Session.act_many([
                 {good, frame(0)},
                 {twice, frame(0)},
                 {twice, frame(0)},
                 {closed, frame(0)},
                 {open!(policy), [1.0]},
                 {open!(policy), <<0x7FC00000::32-little, 0.0::32-float-little>>},
                 {other, frame(0), logits: true}
               ])

      assert Session.act_many([]) == []
      assert_raise ArgumentError, ~r/games: expected/, fn -> Session.act_many([good]) end

      assert_raise ArgumentError, ~r/deadline_ms/, fn ->
        Session.act_many([{good, frame(0), deadline_ms: 3}])
      end
    end

    test "are all undecided if their deadline has passed" do
      for lane <- [:inline, :worker] do
        sessions = for _ <- 1..3, do: open!(policy!(), lane: lane)

        for answer <- Session.act_many(Enum.map(sessions, &{&1, frame(0)}), deadline_ms: 0) do
          assert {:error, %Error{kind: :deadline}} = answer
        end

        for session <- sessions do
          eventually(fn -> match?({:ok, _}, Session.info(session)) end)
          assert frames!(session) == 0
        end

        refute_received {:sconce, _, _}
      end
    end

    test "that are late are all given up, also if one had refused" do
      {:ok, policy} = Policy.init(embedding: {:vector, 2}, heads: @heads)
      closed = open!(policy)
      :ok = Session.close(closed)
      opts = [mode: :window, window_size: 4000]
      sessions = for _ <- 1..2, do: elem(Session.open(policy, opts), 1)
      games = for session <- [closed | sessions], do: {session, frame(0)}

      # On a busy machine the caller may wake up after the thread is done; the test then tries again.
      assert Enum.any?(1..20, fn _attempt ->
               before = Enum.map(sessions, &frames!/1)
               [_closed | answers] = Session.act_many(games, deadline_ms: 1)
               for s <- sessions, do: eventually(fn -> match?({:ok, _}, Session.info(s)) end)
               refute_received {:sconce, _, _}
               late = Enum.all?(answers, &match?({:error, %Error{kind: :deadline}}, &1))
               if late, do: assert(Enum.map(sessions, &frames!/1) == before)
               late
             end)
    end

    test "may exceed the size of one native call" do
      {:ok, policy} = Policy.init(embedding: {:vector, 1}, backbone: :mlp, heads: @heads)
      games = for i <- 1..150, do: {elem(Session.open(policy, seed: i), 1), [i / 150]}
      alone = for {_session, frame} <- games, do: frame
      answers = Session.act_many(games)
      assert length(answers) == 150

      for {{answer, frame}, seed} <- answers |> Enum.zip(alone) |> Enum.with_index(1) do
        {:ok, session} = Session.open(policy, seed: seed)
        assert Session.act(session, frame) == answer
      end
    end
  end

  describe "a deadline" do
    test "that has passed is an error and no decision is made, on both lanes" do
      for lane <- [:inline, :worker] do
        session = open!(policy!(), lane: lane)
        play!(session, 0..1)

        assert {:error, %Error{kind: :deadline, op: :act, details: %{deadline_ms: 0}}} =
                 Session.act(session, frame(2), deadline_ms: 0)

        eventually(fn -> match?({:ok, _}, Session.info(session)) end)
        assert frames!(session) == 2
        refute_received {:sconce, _, _}
      end
    end

    test "gives up a decision in flight, whose session is busy until then" do
      {:ok, policy} = Policy.init(embedding: {:vector, 2}, heads: @heads)
      {:ok, session} = Session.open(policy, mode: :window, window_size: 8000)
      assert session.lane == :worker

      # On a busy machine the caller may wake up after the thread is done; the test then tries again.
      assert Enum.any?(1..20, fn _attempt ->
               before = frames!(session)
               first = Session.act(session, frame(0), deadline_ms: 1)
               second = Session.act(session, frame(0), deadline_ms: 60_000)
               eventually(fn -> match?({:ok, _}, Session.info(session)) end)
               refute_received {:sconce, _, _}
               made = Enum.count([first, second], &match?({:ok, _}, &1))
               assert frames!(session) == before + made

               match?({:error, %Error{kind: :deadline}}, first) and
                 match?({:error, %Error{kind: :busy, details: %{what: "session"}}}, second)
             end)

      assert {:ok, %Action{}} = Session.act(session, frame(0))
    end

    test "in the far future has no effect" do
      for lane <- [:inline, :worker] do
        policy = policy!()
        plain = play!(open!(policy, lane: lane), 0..5)
        assert play!(open!(policy, lane: lane), 0..5, deadline_ms: 60_000) == plain
      end
    end
  end

  test "info and Inspect show mode, lane and measured cost" do
    session = open!(policy!(), mode: {:resync, 4}, lane: :inline)
    play!(session, 0..9)
    {:ok, info} = Session.info(session)

    assert %{mode: {:resync, 4}, window_size: 6, seed: 5, frames: 10} = info
    assert %{lane: :inline, window_lane: :inline} = info
    assert info.step_us > 0 and info.window_us > 0
    # Two moments of a state and three labels, and five frames of two numbers and three labels.
    assert info.bytes == 2 * (2 * 8 * 4 + 3 * 4) + 5 * (2 * 4 + 3 * 4)

    assert inspect(session) =~
             ~r/^#Sconce.Session<vector 2 -> gru 8x2 -> fire\(2\) move\(4\) · resync 4 · packed f32, inline, \d+ us a decision>$/
  end

  test "info shows the path of the steps and the format of the weights" do
    for {backbone, mode, weights, says} <- [
          {:gru, :carry, :f32, {:packed, :f32}},
          {:mamba, :carry, :bf16, {:packed, :bf16}},
          {:mlp, :window, :bf16, {:packed, :bf16}},
          {:gru, :carry, {:int8, 0.0}, {:packed, :bf16}},
          {:lstm, :window, :bf16, {:core, :f32}},
          {:sliding_window, {:resync, 3}, :bf16, {:packed, :bf16}}
        ] do
      spec = [embedding: {:vector, 2}, backbone: backbone, heads: @heads]
      {:ok, policy} = Policy.init(spec, seed: 1)
      {:ok, session} = Session.open(policy, mode: mode, weights: weights, window_size: 4)
      play!(session, 0..9)
      {:ok, info} = Session.info(session)
      assert {info.path, info.weights} == says
      assert inspect(session) =~ " · #{info.path} #{info.weights}, "
    end
  end

  test "matrices within the bound are int8, and info shows them with their errors" do
    spec = [embedding: {:vector, 64}, backbone: :gru, heads: @heads]
    {:ok, policy} = Policy.init(spec, seed: 1)

    open = fn weights ->
      {:ok, session} = Session.open(policy, weights: weights, seed: 1)
      {:ok, info} = Session.info(session)
      {session, info.matrices}
    end

    {session, matrices} = open.(:int8)
    [%{name: "backbone.weight_ih_l0", inputs: 64, error: error} = first | _] = matrices
    assert first.weights == session.weights
    {:ok, %{cpu: cpu}} = Sconce.native_info()
    assert session.weights == if(cpu.avx512_vnni, do: :int8, else: :bf16)
    assert error > 0 and error < 0.02

    {plain, exact} = open.(:f32)
    assert Enum.map(exact, & &1.name) == Enum.map(matrices, & &1.name)
    assert Enum.all?(exact, &(&1.weights == :f32 and &1.error == 0))

    frame = Enum.map(1..64, &:math.sin/1)
    {:ok, near} = Session.act(session, frame, logits: true)
    {:ok, action} = Session.act(plain, frame, logits: true)

    for {x, y} <- Enum.zip(numbers(action), numbers(near)), do: assert_in_delta(x, y, 0.05)

    {_session, bounded} = open.({:int8, error * 0.999})
    assert %{weights: :bf16} = hd(bounded)

    assert {:error, %Error{kind: :out_of_range}} = Session.open(policy, weights: {:int8, 2})
    assert_raise ArgumentError, ~r/:weights/, fn -> Session.open(policy, weights: {:bf16, 2}) end
  end

  test "a window that takes too long for an inline call goes to a thread" do
    {:ok, policy} = Policy.init(embedding: {:vector, 2}, heads: @heads)
    {:ok, session} = Session.open(policy, mode: :window, window_size: 1000)
    {:ok, info} = Session.info(session)
    assert {info.window_lane, session.lane} == {:worker, :worker}
  end
end
