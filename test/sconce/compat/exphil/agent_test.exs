defmodule Sconce.Compat.ExPhil.AgentTest do
  use ExUnit.Case, async: true

  alias Sconce.Compat.ExPhil.{Agent, Play}
  alias Sconce.{Error, Policy, Session}
  alias Sconce.Compat.Melee
  alias Sconce.Test.MeleeStates

  import ExUnit.CaptureLog
  import Sconce.Test.Scratch

  doctest Sconce.Compat.ExPhil.Agent

  @golden "test/golden/exphil"
  @policies ~w(mlp mlp_ln_res mlp_small lstm gru min_gru min_lstm mamba mamba_2 attention lstm_hybrid jamba gated_ssm
               deep_res_lstm)

  defp golden(name), do: Path.join(@golden, "#{name}.bin")

  defp agent(name, opts \\ []) do
    own = [policy_path: golden(name), deterministic: true, session: [seed: 1]]
    {:ok, agent} = own |> Keyword.merge(opts) |> Agent.start_link()
    agent
  end

  # States of a game after the countdown, as ExPhil's bridge passes them on.
  defp states(count, from \\ 0),
    do:
      for(
        number <- from..(from + count - 1),
        do: number |> MeleeStates.state() |> MeleeStates.exphil()
      )

  defp frame(state, port \\ 1, opts \\ []) do
    {:ok, frame} = Melee.frame(state, port, opts)
    %{frame | previous_action: nil}
  end

  defp actions(agent, states, opts \\ []) do
    for state <- states do
      {:ok, action} = Agent.get_action(agent, state, opts)
      action
    end
  end

  describe "a decision" do
    test "is that of a session with ExPhil's window, for every backbone" do
      for name <- @policies do
        {:ok, policy, _notes} = Policy.import(golden(name))
        {:ok, %{notes: notes}} = Policy.info(policy)
        window = [mode: :window, window_size: notes["window_size"]]
        {:ok, session} = Session.open(policy, window)
        agent = agent(name)

        for state <- states(25) do
          {:ok, own} = Session.act(session, frame(state), deterministic: true, logits: true)
          {:ok, action, confidence} = Agent.get_action_with_confidence(agent, state)
          assert {name, Map.delete(action, :logits)} == {name, own.choices}
          assert action.logits == own.logits
          assert confidence == own.confidence
        end
      end
    end

    test "of a stateful GRU or LSTM is that of a session that carries its state" do
      for name <- ~w(gru lstm),
          {opts, mode} <- [{[], :carry}, {[stateful_resync: 7], {:resync, 7}}] do
        {:ok, policy, _notes} = Policy.import(golden(name))
        {:ok, session} = Session.open(policy, mode: mode, window_size: 20)
        agent = agent(name, [stateful_step: true] ++ opts)
        assert Agent.get_config(agent).stateful_step_active

        for state <- states(40) do
          {:ok, own} = Session.act(session, frame(state), deterministic: true)
          {:ok, controller} = Agent.get_controller(agent, state)
          assert controller == Melee.controller(own, :exphil)
        end
      end
    end

    test "of a backbone that ExPhil does not step reads windows, and says so" do
      log = capture_log(fn -> send(self(), {:agent, agent("mamba", stateful_step: true)}) end)
      assert log =~ "the backbone :mamba decides by windows"
      assert_received {:agent, agent}
      assert %{stateful_step: true, stateful_step_active: false} = Agent.get_config(agent)
      assert actions(agent, states(5)) == actions(agent("mamba"), states(5))
    end

    test "sees the own last choice, and not the input that the game reports" do
      pressed = %{Melee.neutral() | buttons: %{Melee.neutral().buttons | a: true}}

      reported =
        for n <- 0..9, do: n |> MeleeStates.state(fn _ -> pressed end) |> MeleeStates.exphil()

      assert actions(agent("gru"), reported) == actions(agent("gru"), states(10))
    end

    test "has the same answer for a state of libmelee_ex" do
      own = for state <- 0..9, do: MeleeStates.state(state)
      assert actions(agent("gru"), own) == actions(agent("gru"), states(10))
    end

    test "is made for the port that is asked, and for the bridge's own port before it" do
      [first | _] = states(1)
      turned = %{first | own_port: 2}
      {:ok, two} = Agent.get_action(agent("mlp"), first, player_port: 2)
      {:ok, one} = Agent.get_action(agent("mlp"), first, player_port: 1)
      {:ok, own} = Agent.get_action(agent("mlp"), turned, player_port: 1)
      assert own == two
      assert own.logits != one.logits
    end

    test "follows the settings of the call before those of the agent" do
      agent = agent("gru", deterministic: false, temperature: 50.0)
      [sampled] = actions(agent, states(1))
      [likely] = actions(agent("gru"), states(1))
      :ok = Agent.reset_buffer(agent)
      assert actions(agent, states(1), deterministic: true) == [likely]
      assert sampled != likely
    end

    test "reads the stage as the game counts it, or as a replay does" do
      fountain = %{(states(1) |> hd()) | stage: 8}
      [in_game] = actions(agent("mlp"), [fountain])
      [in_replay] = actions(agent("mlp", stage_ids: :replay), [fountain])
      assert in_game == hd(actions(agent("mlp", stage_ids: :replay), [%{fountain | stage: 2}]))
      assert in_game != in_replay
    end

    test "keeps a button between two thresholds as it is, and needs both" do
      agent = agent("gru", press_threshold: 0.9, release_threshold: 0.05)
      {:ok, policy, _notes} = Policy.import(golden("gru"))
      {:ok, session} = Session.open(policy, mode: :window, window_size: 20)
      thresholds = [deterministic: true, press_threshold: 0.9, release_threshold: 0.05]

      for state <- states(20) do
        {:ok, own} = Session.act(session, frame(state), thresholds)
        {:ok, action} = Agent.get_action(agent, state)
        assert action.buttons == own.choices.buttons
      end

      assert_raise ArgumentError, ~r/:press_threshold: 0.6: give both thresholds/, fn ->
        Agent.start_link(press_threshold: 0.6)
      end

      assert {:error, %Error{kind: :mismatch}} = Agent.configure(agent, press_threshold: nil)
      assert :ok = Agent.configure(agent, press_threshold: nil, release_threshold: nil)
    end

    test "with the previous action ablated is that of a policy without it" do
      {:ok, policy, _notes} = Policy.import(golden("gru"), config: [use_prev_action: false])
      ablated = agent("gru", ablate_prev_action: true)
      {:ok, same} = Agent.start_link(policy: policy, deterministic: true)
      assert actions(ablated, states(10)) == actions(same, states(10))
      assert logits(agent("gru"), 10) != logits(same, 10)

      {:ok, whole, _notes} = Policy.import(golden("gru"))

      {:error, {:policy_load_failed, error}} =
        Agent.start_link(policy: whole, ablate_prev_action: true)

      assert Exception.message(error) =~ "config: [use_prev_action: false]"
    end

    test "of a style reads the id of the player" do
      [plain] = actions(agent("mlp"), states(1))
      [styled] = actions(agent("mlp", style_id: 3), states(1))
      assert plain.logits != styled.logits
      path = Path.join(tmp_dir!("registry"), "players.json")
      players = ~s("players": ["Plup", "Jmook", "x", "Mango"], "max_players": 112)
      File.write!(path, ~s({"version": 1, "unknown_strategy": "nil", #{players}}))

      assert actions(agent("mlp", style_tag: "Mango", player_registry: path), states(1)) == [
               styled
             ]

      {:error, error} = Agent.start_link(style_tag: "Zain", player_registry: path)

      assert {error.kind, Exception.message(error)} ==
               {:not_found, "start_link: player Zain of #{path} not found"}

      File.write!(path, ~s({"unknown_strategy": "default", #{players}}))
      assert {:ok, _agent} = Agent.start_link(style_tag: "Zain", player_registry: path)
      File.write!(path, "[1]")

      assert {:error, %Error{kind: :corrupt}} =
               Agent.start_link(style_tag: "Zain", player_registry: path)
    end

    test "loses a direction of the trunk, of numbers or of ExPhil's file" do
      direction = for i <- 1..24, do: :math.sin(i)
      {:ok, policy, _notes} = Policy.import(golden("gru"))

      {:ok, session} =
        Session.open(policy, mode: :window, window_size: 20, project_out: direction)

      path = Path.join(tmp_dir!("steer"), "shield.bin")
      File.write!(path, :erlang.term_to_binary(%{v: tensor(direction), meta: %{window: 20}}))

      {:ok, own} = Session.act(session, frame(hd(states(1))), deterministic: true, logits: true)

      for vector <- [direction, path],
          do: assert(logits(agent("gru", steer_vector: vector), 1) == [own.logits])

      assert logits(agent("gru", steer_vector: path, steer_alpha: 0), 1) ==
               logits(agent("gru"), 1)

      assert logits(agent("gru"), 1) != [own.logits]

      assert_raise ArgumentError, ~r/:steer_alpha: 0.5: a direction is removed as a whole/, fn ->
        Agent.start_link(steer_vector: path, steer_alpha: 0.5)
      end

      File.write!(path, :erlang.term_to_binary(%{v: tensor([0.0, 0.0])}))
      assert {:error, %Error{kind: :corrupt}} = Agent.start_link(steer_vector: path)
      assert {:error, %Error{kind: :not_found}} = Agent.start_link(steer_vector: path <> "x")

      {:error, {:policy_load_failed, error}} =
        Agent.start_link(policy: policy, steer_vector: [1.0])

      assert error.kind == :mismatch
    end

    defp tensor(numbers) do
      data = for number <- numbers, into: <<>>, do: <<number::float-32-little>>

      %{
        __struct__: Nx.Tensor,
        data: %{__struct__: Nx.BinaryBackend, state: data},
        type: {:f, 32},
        shape: {length(numbers)},
        names: [nil],
        vectorized_axes: []
      }
    end

    defp logits(agent, count), do: agent |> actions(states(count)) |> Enum.map(& &1.logits)
  end

  describe "a frame number" do
    test "has one decision, and its repetition the same action without a confidence" do
      agent = agent("gru", deterministic: false)
      [first, second | _] = states(3)
      {:ok, action, confidence} = Agent.get_action_with_confidence(agent, first)
      assert confidence.overall > 0

      for _call <- 1..5 do
        {:ok, again, silent} = Agent.get_action_with_confidence(agent, %{first | distance: 9.0})
        assert again == action
        assert silent == %{overall: 0.0, buttons: 0.0, main: 0.0, c: 0.0, shoulder: 0.0}
      end

      {:ok, next} = Agent.get_action(agent, second)
      assert next.logits != action.logits
      assert Agent.get_config(agent).buffer_size == 2
    end

    test "that is missing is decided each time, as in ExPhil" do
      agent = agent("gru")
      [state] = states(1)
      for _call <- 1..3, do: {:ok, _action} = Agent.get_action(agent, %{state | frame: nil})
      assert Agent.get_config(agent).buffer_size == 3
    end

    test "that goes back is decided, and the window goes on until a reset" do
      agent = agent("gru")
      played = actions(agent, states(5, 100))
      {:ok, back} = Agent.get_action(agent, hd(states(1, 100)))
      assert Agent.get_config(agent).buffer_size == 6
      assert back != hd(played)
      :ok = Agent.reset_buffer(agent)
      assert Agent.get_config(agent).buffer_size == 0
      assert actions(agent, states(5, 100)) == played
    end

    test "that is asked again after a reset is decided again" do
      agent = agent("gru")
      [state] = states(1)
      {:ok, first} = Agent.get_action(agent, state)
      :ok = Agent.reset_buffer(agent)
      {:ok, again, confidence} = Agent.get_action_with_confidence(agent, state)
      assert {again, confidence.overall > 0} == {first, true}
    end

    test "that action repeat holds has the action before it, and enters the window" do
      agent = agent("gru", action_repeat: 3)
      answers = for state <- states(9), do: Agent.get_action_with_confidence(agent, state)
      decided = for {:ok, _action, confidence} <- answers, do: confidence.overall > 0
      assert decided == [true, false, false, true, false, false, true, false, false]

      for [{_, a, _}, {_, b, _}, {_, c, _}] <- Enum.chunk_every(answers, 3) do
        assert a == b and b == c
      end
    end
  end

  describe "jump debounce" do
    @debounce 10

    # ExPhil's rule on columns of 0 and 1: `wanted` are X and Y of a choice without it.
    defp debounced({x, y}, {ground?, squat?}, number, before) do
      %{sent: {was_x, was_y}} = before
      air? = not ground?
      since = if before.number, do: number - before.number, else: 1
      jumped? = squat? or (air? and before.air? == false)
      # The window is armed before the frames since the last decision are taken off.
      armed = if jumped?, do: max(before.cooldown, @debounce), else: before.cooldown
      cooldown = max(armed - since, 0)
      new? = x > was_x or y > was_y
      released? = x < was_x or y < was_y

      {sent, cooldown} =
        cond do
          (air? or squat?) and new? and (cooldown > 0 or was_x + was_y > 0) ->
            {{x * was_x, y * was_y}, if(released?, do: @debounce, else: cooldown)}

          released? ->
            {{x, y}, @debounce}

          true ->
            {{x, y}, cooldown}
        end

      {sent, %{sent: sent, cooldown: cooldown, air?: air?, number: number}}
    end

    # A policy that presses X above 50 percent, Y with more than half a shield, and no other button.
    defp forced do
      spec = [embedding: {:melee, layout: :packed}, backbone: :mlp, hidden_sizes: [8]]
      {:ok, policy} = Policy.init(spec, seed: 1)
      {:ok, weights} = Policy.weights(policy)
      none = for {name, shape} <- weights, into: %{}, do: {name, zeros(Tuple.product(shape))}

      own = %{
        "backbone.layers.0.dense.weight" =>
          ones(none, "backbone.layers.0.dense.weight", [0, 288 + 6]),
        "heads.buttons_hidden.weight" => ones(none, "heads.buttons_hidden.weight", [0, 8 + 1]),
        "heads.buttons_logits.weight" =>
          ones(none, "heads.buttons_logits.weight", [2 * 64, 3 * 64 + 1]),
        "heads.buttons_logits.bias" => List.duplicate(-0.5, 8)
      }

      shaped = fn numbers, shape ->
        if tuple_size(shape) == 1, do: numbers, else: Enum.chunk_every(numbers, elem(shape, 1))
      end

      all = Map.merge(none, own)

      {:ok, policy} =
        Policy.put_weights(
          policy,
          for({name, shape} <- weights, into: %{}, do: {name, shaped.(all[name], shape)})
        )

      policy
    end

    defp zeros(n), do: List.duplicate(0.0, n)

    defp ones(all, name, places),
      do: Enum.reduce(places, all[name], &List.replace_at(&2, &1, 1.0))

    defp jumps({x, y}, {ground?, squat?}, number) do
      [state] = states(1)
      action = if squat?, do: 24, else: 14
      own = %{state.players[1] | percent: 100.0 * x, shield_strength: 100.0 * y}
      own = %{own | on_ground: ground?, action: action}
      %{state | frame: number, players: %{state.players | 1 => own}}
    end

    test "is ExPhil's rule for every sequence of presses, of places and of missing frames" do
      policy = forced()

      for seed <- 1..40 do
        :rand.seed(:exsss, {seed, 1, 1})

        {:ok, agent} =
          Agent.start_link(policy: policy, deterministic: true, jump_debounce: @debounce)

        first = %{sent: {0, 0}, cooldown: 0, air?: nil, number: nil}

        Enum.reduce(1..150, {first, 0, {0, 0}, {true, false}}, fn _step,
                                                                  {before, number, wanted, place} ->
          number = number + Enum.random([1, 1, 1, 1, 2, 5])

          wanted =
            if Enum.random(1..3) == 1, do: {Enum.random(0..1), Enum.random(0..1)}, else: wanted

          place =
            if Enum.random(1..4) == 1,
              do: Enum.random([{true, false}, {true, true}, {false, false}]),
              else: place

          state = jumps(wanted, place, number)
          {sent, after_it} = debounced(wanted, place, number, before)
          {:ok, controller} = Agent.get_controller(agent, state)
          {:ok, ^controller} = Agent.get_controller(agent, state)
          pressed = {bit(controller.button_x), bit(controller.button_y)}
          assert {seed, number, wanted, place, pressed} == {seed, number, wanted, place, sent}
          {after_it, number, wanted, place}
        end)
      end
    end

    defp bit(true), do: 1
    defp bit(false), do: 0

    test "counts the frames that action repeat holds" do
      policy = forced()
      start = [policy: policy, deterministic: true, jump_debounce: 4, action_repeat: 2]
      {:ok, agent} = Agent.start_link(start)
      air = {false, false}

      # X is released at frame 3, and pressed in the air from frame 5 on: the window of 4 frames is over at frame 7.
      wanted = [
        {1, {true, false}},
        {1, {true, false}},
        {0, air},
        {0, air},
        {1, air},
        {1, air},
        {1, air},
        {1, air}
      ]

      pressed =
        for {{x, place}, number} <- Enum.with_index(wanted, 1) do
          {:ok, controller} = Agent.get_controller(agent, jumps({x, 0}, place, number))
          controller.button_x
        end

      assert pressed == [true, true, false, false, false, false, true, true]
    end

    test "is off without the option" do
      {:ok, agent} = Agent.start_link(policy: forced(), deterministic: true)

      for {x, number} <- [{1, 1}, {0, 2}, {1, 3}, {0, 4}] do
        {:ok, controller} = Agent.get_controller(agent, jumps({x, 0}, {false, false}, number))
        assert controller.button_x == (x == 1)
      end
    end
  end

  describe "a snapshot" do
    test "leads to the same actions, also sampled ones, in each mode and in another agent" do
      for {name, opts} <- [
            {"gru", []},
            {"lstm", [stateful_step: true]},
            {"mlp", []},
            {"attention", []}
          ] do
        opts = [deterministic: false, jump_debounce: 6, action_repeat: 2] ++ opts
        one = agent(name, opts)
        _before = actions(one, states(9))
        {:ok, snapshot} = Agent.snapshot_state(one)
        # The frame is held, and repeated.
        later = states(20, 8)
        played = actions(one, later)
        assert :ok = Agent.restore_state(one, snapshot)
        assert actions(one, later) == played
        other = agent(name, [session: [seed: 99]] ++ opts)
        assert :ok = Agent.restore_state(other, snapshot)
        assert actions(other, later) == played
      end
    end

    test "that was changed at any byte, or cut off, is refused and changes nothing" do
      agent = agent("gru", stateful_step: true)
      _before = actions(agent, states(3))
      {:ok, snapshot} = Agent.snapshot_state(agent)
      next = states(4, 3)
      played = actions(agent, next)
      :ok = Agent.restore_state(agent, snapshot)

      for at <- 0..(byte_size(snapshot) - 1)//7 do
        <<before::binary-size(at), byte, rest::binary>> = snapshot
        changed = before <> <<Bitwise.bxor(byte, 1)>> <> rest
        assert {:error, {:invalid_snapshot, %Error{}}} = Agent.restore_state(agent, changed)
        assert {:error, {:invalid_snapshot, %Error{}}} = Agent.restore_state(agent, before)
      end

      assert actions(agent, next) == played
    end

    test "with other contents under a right sum is refused" do
      agent = agent("gru")
      _before = actions(agent, states(3))
      {:ok, <<magic::binary-size(14), _sum::32, body::binary>>} = Agent.snapshot_state(agent)
      {session, own, at, action, sent} = :erlang.binary_to_term(body)
      {choices, confidence, logits, frame} = action

      odd = [
        {:odd, own, at, action, sent},
        {session <> "x", own, at, action, sent},
        {session, {0, -1, nil, 1}, at, action, sent},
        {session, {0.5, 0, nil, 1}, at, action, sent},
        {session, own, {0, -1, []}, action, sent},
        {session, own, {:zero, 1, []}, action, sent},
        {session, own, {0, 1, [choices, choices]}, action, sent},
        {session, own, at, :action, sent},
        {session, own, at, {%{choices | main_x: 99}, confidence, logits, frame}, sent},
        {session, own, at,
         {%{choices | buttons: [2, 0, 0, 0, 0, 0, 0, 0]}, confidence, logits, frame}, sent},
        {session, own, at, {choices, %{confidence | main: :high}, logits, frame}, sent},
        {session, own, at, {choices, confidence, %{logits | c_x: [1.0 | 2.0]}, frame}, sent},
        {session, own, at, action, nil},
        []
      ]

      for term <- odd do
        body = :erlang.term_to_binary(term)
        blob = <<magic::binary, :erlang.crc32(body)::32, body::binary>>
        assert {:error, {:invalid_snapshot, %Error{}}} = Agent.restore_state(agent, blob)
      end

      name = "an atom that is new #{System.unique_integer()}"
      atom = <<131, 119, byte_size(name), name::binary>>
      blob = <<magic::binary, :erlang.crc32(atom)::32, atom::binary>>
      assert {:error, {:invalid_snapshot, %Error{}}} = Agent.restore_state(agent, blob)
      assert_raise ArgumentError, fn -> String.to_existing_atom(name) end
    end

    test "of another policy or mode is refused" do
      {:ok, snapshot} = Agent.snapshot_state(agent("gru"))

      for {name, opts} <- [{"lstm", []}, {"gru", [stateful_step: true]}],
          do:
            assert(
              {:error, {:invalid_snapshot, %Error{kind: :mismatch}}} =
                name |> agent(opts) |> Agent.restore_state(snapshot)
            )
    end

    test "needs a policy" do
      {:ok, agent} = Agent.start_link([])
      assert Agent.snapshot_state(agent) == {:error, :not_stateful}
      assert Agent.restore_state(agent, "") == {:error, :not_stateful}
    end
  end

  describe "a policy" do
    test "replaces another one at once, with an empty window, and closes the session before it" do
      agent = agent("gru")
      _before = actions(agent, states(5))
      %{play: %{player: %{session: old}}} = :sys.get_state(agent)
      assert :ok = Agent.load_policy(agent, golden("lstm"))
      assert %{backbone: :lstm, buffer_size: 0} = Agent.get_config(agent)
      assert {:error, %Error{kind: :not_found}} = Session.info(old)
      assert actions(agent, states(5, 5)) == actions(agent("lstm"), states(5, 5))
    end

    test "that cannot be read leaves the present one and its memory" do
      agent = agent("gru")
      played = actions(agent("gru"), states(6))
      _before = actions(agent, states(3))
      assert {:error, {:invalid_policy, %{a: 1}}} = Agent.load_policy(agent, %{a: 1})
      assert {:error, {:invalid_policy, 7}} = Agent.load_policy(agent, 7)
      assert {:error, %Error{kind: :not_found}} = Agent.load_policy(agent, "missing.axon")
      assert {:error, %Error{}} = Agent.load_policy(agent, golden("autoregressive"))

      assert {:error, %Error{}} =
               Agent.load_policy(agent, %{params: %{}, config: %{backbone: :gru}})

      {:ok, cart} =
        Policy.init([embedding: {:vector, 4}, backbone: :mlp, heads: [go: {:bernoulli, 1}]],
          seed: 1
        )

      {:error, error} = Agent.load_policy(agent, cart)
      assert Exception.message(error) =~ "expected frames of Melee and the heads of a controller"
      assert actions(agent, states(3, 3)) == Enum.drop(played, 3)
    end

    test "may be ExPhil's map, which leaves no file behind" do
      map = golden("gru.legacy") |> File.read!() |> :erlang.binary_to_term()

      files = fn ->
        System.tmp_dir!() |> Path.join("sconce-#{System.pid()}-*.bin") |> Path.wildcard()
      end

      {:ok, agent} = Agent.start_link(policy: map, deterministic: true)
      assert files.() == []
      assert actions(agent, states(3)) == actions(agent("gru"), states(3))

      assert {:error, {:policy_load_failed, %Error{}}} =
               Agent.start_link(policy: %{map | config: %{backbone: :odd}})

      assert files.() == []
    end

    test "may be a file of Sconce" do
      {:ok, policy, _notes} = Policy.import(golden("gru"))
      path = Path.join(tmp_dir!("agent_own"), "policy.safetensors")
      {:ok, %{notes: notes}} = Policy.info(policy)
      :ok = Policy.save(policy, path, notes: notes)
      {:ok, agent} = Agent.start_link(policy_path: path, deterministic: true)
      assert actions(agent, states(25)) == actions(agent("gru"), states(25))
    end

    test "with a queue reads the input of each frame, also of frames that were not asked, and forgets it in a new game" do
      spec = [
        embedding: {:melee, layout: :packed, queue_depth: 4, num_delays: 9},
        backbone: :mlp,
        hidden_sizes: [8]
      ]

      {:ok, policy} = Policy.init(spec, seed: 3)
      {:ok, agent} = Agent.start_link(policy: policy, deterministic: true, delay_id: 3)
      {:ok, session} = Session.open(policy, mode: :window, window_size: 1, frame_delay: 3)
      act = &Session.act(session, frame(&1), [deterministic: true, logits: true] ++ &2)
      [a, b, c | _] = states(3)

      {:ok, one} = act.(a, [])
      {:ok, two} = act.(b, [])
      # Three frames are missing: the game held the second input.
      late = %{c | frame: 5}
      {:ok, three} = act.(late, queue: [two, two, two, two])
      assert logits_of(agent, [a, b, late]) == [one.logits, two.logits, three.logits]
      # Two frames are missing, so that the second input is the last of four.
      {:ok, four} = act.(%{c | frame: 8}, queue: [three, three, three, two])
      assert logits_of(agent, [%{c | frame: 8}]) == [four.logits]
      assert logits_of(agent, [a, b]) == [one.logits, two.logits]
    end

    defp logits_of(agent, states), do: agent |> actions(states) |> Enum.map(& &1.logits)
  end

  describe "malformed game states" do
    test "are errors that name the part, and leave the agent and its memory as they are" do
      [agent, undisturbed] = [agent("gru"), agent("gru")]

      for number <- 0..2 do
        for {state, text} <- MeleeStates.malformed(number) do
          {:error, %Error{} = error} = Agent.get_controller(agent, state)
          assert Exception.message(error) =~ text
        end

        [state] = states(1, number)
        assert Agent.get_action(agent, state) == Agent.get_action(undisturbed, state)
      end
    end

    test "with an odd term in any place do not end an agent" do
      agent = agent("mlp_small")
      full = MeleeStates.full(7)

      odd = [
        nil,
        [1 | 2],
        %{},
        {:a, 1},
        5,
        -1,
        "x",
        make_ref(),
        2 ** 2000,
        ~D[2026-01-01],
        :an_atom
      ]

      for state <- [full, MeleeStates.exphil(full)], state <- MeleeStates.odd(state, odd) do
        case Agent.get_controller(agent, state) do
          {:ok, controller} ->
            assert is_boolean(controller.button_a)

          {:error, error} ->
            assert %Error{kind: kind} = error
            assert kind != :cancelled
        end
      end
    end
  end

  describe "the process" do
    test "has an error without a policy, and ExPhil's where the app has it" do
      {:ok, agent} = Agent.start_link([])
      [state] = states(1)

      for call <- [&Agent.get_action/2, &Agent.get_controller/2],
          do: assert({:error, %Error{kind: :not_found, op: :get_action}} = call.(agent, state))

      assert {:error, %Error{kind: :not_found, op: :warmup}} = Agent.warmup(agent)
    end

    test "answers a state that it cannot read by an error, and plays on" do
      agent = agent("gru")
      [a, b] = states(2)
      {:ok, first} = Agent.get_action(agent, a)

      for odd <- [
            nil,
            %{},
            %{b | players: %{}},
            %{b | players: %{1 => b.players[1]}},
            %{b | players: %{1 => %{}, 2 => %{}}},
            %{b | projectiles: [%{}]},
            %{b | stage: 99}
          ] do
        assert {:error, %Error{}} = Agent.get_action(agent, odd)
        assert {:error, %Error{}} = Agent.get_controller_with_confidence(agent, odd)
      end

      assert {:error, %Error{kind: :not_found}} = Agent.get_action(agent, b, player_port: 4)
      assert [^first, next] = actions(agent("gru"), [a, b])
      assert {:ok, ^next} = Agent.get_action(agent, b)
    end

    test "that has ended is an error of its callers" do
      {:ok, agent} = Agent.start_link([])
      :ok = GenServer.stop(agent)
      assert {:error, %Error{kind: :cancelled}} = Agent.get_config(agent)
      assert {:error, %Error{kind: :cancelled}} = Agent.get_action(agent, hd(states(1)))
    end

    test "ends its session with itself" do
      Process.flag(:trap_exit, true)
      agent = agent("gru")
      %{play: %{player: %{session: session}}} = :sys.get_state(agent)
      assert {:error, %Error{kind: :busy}} = Session.info(session)
      Process.exit(agent, :kill)
      assert_receive {:EXIT, ^agent, :killed}
      assert {:error, %Error{kind: :not_found}} = Session.info(session)
    end

    test "has the name of an atom, and does not start twice under it" do
      {:ok, agent} = Agent.start_link(name: :some_agent_of_a_test)
      assert Process.whereis(:some_agent_of_a_test) == agent
      assert Agent.get_config(:some_agent_of_a_test).name == :some_agent_of_a_test
      taken = [name: :some_agent_of_a_test, policy_path: golden("gru")]
      assert Agent.start_link(taken) == {:error, {:already_started, agent}}
    end

    # A registry that runs a function in the caller, after the session was opened and before it is handed over.
    defmodule Between do
      import Kernel, except: [send: 2]

      def whereis_name({fun, _test}) do
        fun.()
        :undefined
      end

      def register_name({_fun, test}, pid) do
        Kernel.send(test, {:agent, pid})
        :yes
      end

      def unregister_name(_term), do: :ok
      def send(_term, _message), do: :ok
    end

    test "ends if its session cannot be handed over" do
      test = self()
      tracer = spawn_link(fn -> forward(test) end)
      :erlang.trace(test, true, [:call, {:tracer, tracer}])
      :erlang.trace_pattern({Play, :open, 1}, [{:_, [], [{:return_trace}]}], [:local])

      close = fn ->
        assert_receive {:session, session}
        :ok = Session.close(session)
      end

      name = {:via, Between, {close, test}}
      answer = Agent.start_link(policy_path: golden("mlp_small"), name: name)
      :erlang.trace(test, false, [:call])
      assert {:error, %Error{kind: :not_found}} = answer
      assert_receive {:agent, agent}
      refute Process.alive?(agent)
    end

    defp forward(test) do
      receive do
        {:trace, ^test, :return_from, {Play, :open, 1}, {:ok, play}} ->
          send(test, {:session, play.player.session})

        _call ->
          forward(test)
      end
    end

    test "is found in ExPhil's registry, if the app has started it" do
      start_supervised!({Registry, keys: :unique, name: ExPhil.Registry})
      {:ok, agent} = Agent.start_link(name: :mewtwo)
      assert Registry.lookup(ExPhil.Registry, {:agent, :mewtwo}) == [{agent, nil}]
      assert Process.whereis(:mewtwo) == nil
      via = {:via, Registry, {ExPhil.Registry, {:agent, :mewtwo}}}
      assert Agent.get_config(via).name == :mewtwo
    end

    test "warms up without a trace in its memory" do
      agent = agent("gru")
      {:ok, _ms} = Agent.warmup(agent)
      assert Agent.get_config(agent).buffer_size == 0
      assert actions(agent, states(3)) == actions(agent("gru"), states(3))
    end

    test "writes the confidence of each decision as a line, at the latest when it ends" do
      path = Path.join(tmp_dir!("uncertainty"), "deep/log.jsonl")
      agent = agent("gru", uncertainty_log: path)

      answers =
        for state <- states(70),
            _twice <- 1..2,
            do: Agent.get_controller_with_confidence(agent, state)

      assert path |> File.stream!() |> Enum.count() == 60
      :ok = GenServer.stop(agent)

      confidences =
        for {:ok, _controller, %{overall: overall} = confidence} <- answers,
            overall > 0,
            do: confidence

      lines =
        for line <- File.stream!(path) do
          {:ok, line} = line |> String.trim() |> Sconce.Monitor.Json.decode()
          line
        end

      assert Enum.map(lines, & &1["f"]) == Enum.to_list(0..69)

      for {line, confidence} <- Enum.zip(lines, confidences),
          part <- [:overall, :buttons, :main, :c, :shoulder],
          do: assert(line["#{part}"] == confidence[part])

      assert {:error, %Error{kind: :io}} = Agent.start_link(uncertainty_log: "/proc/no/log.jsonl")
    end

    test "writes the lines of an agent that its supervisor ends" do
      path = Path.join(tmp_dir!("uncertainty_ends"), "log.jsonl")
      start = [policy_path: golden("mlp"), uncertainty_log: path]
      agent = start_supervised!({Agent, start})
      _played = actions(agent, states(3))
      :ok = stop_supervised!(Agent)
      assert path |> File.stream!() |> Enum.count() == 3
    end
  end

  test "options that Sconce cannot follow raise and say what to do" do
    for {option, text} <- [
          {[use_incremental: true], "the step of ExPhil's gated SSM"},
          {[leace_eraser: "eraser.bin"], "an eraser is not a projection"},
          {[embed_config: %{}], "the file of the policy has its embedding"},
          {[af_convention: :live], "convert action_frame of its states"},
          {[stateful_resync: 30], "it needs stateful_step: true"},
          {[style_tag: "Plup"], "it needs :player_registry"},
          {[policy: %{}, policy_path: "a.bin"], "not both"},
          {[session: [mode: :carry]], "unknown option of :session :mode"},
          {[frame_dleay: 1], "did you mean :frame_delay?"},
          {[name: "mewtwo"], "option :name"}
        ] do
      error = assert_raise ArgumentError, fn -> Agent.start_link(option) end
      assert error.message =~ text
    end
  end

  test "every option of ExPhil's scripts starts an agent with the value that the scripts give by default" do
    scripts = [
      policy_path: golden("gru"),
      deterministic: false,
      temperature: 1.0,
      deterministic_buttons: false,
      press_threshold: nil,
      release_threshold: nil,
      jump_debounce: nil,
      frame_delay: 4,
      delay_id: 4,
      ablate_prev_action: false,
      leace_eraser: nil,
      steer_vector: nil,
      steer_alpha: 1.0,
      style_id: nil,
      style_tag: nil,
      player_registry: nil,
      uncertainty_log: nil,
      stateful_step: false,
      stateful_resync: nil,
      af_convention: :parsed
    ]

    assert {:ok, agent} = Agent.start_link(scripts)
    assert Agent.get_config(agent).frame_delay == 4
  end

  test "the thirteen functions have ExPhil's names and arities" do
    functions = [
      start_link: [1],
      get_action: [2, 3],
      get_action_with_confidence: [2, 3],
      get_controller: [2, 3],
      get_controller_with_confidence: [2, 3],
      load_policy: [2],
      get_config: [1],
      configure: [2],
      reset_buffer: [1],
      warmup: [1],
      warmed_up?: [1],
      snapshot_state: [1],
      restore_state: [2]
    ]

    assert length(functions) == 13

    for {name, arities} <- functions,
        arity <- arities,
        do: assert({name, arity} in Agent.__info__(:functions))
  end
end
