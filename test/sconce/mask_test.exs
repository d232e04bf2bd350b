defmodule Sconce.MaskTest do
  use ExUnit.Case, async: true

  alias Sconce.{Game, Mask, Policy, PPO, Rollout, Serving, Session}
  alias Sconce.Policy.Spec
  alias Sconce.Test.Scratch
  alias Sconce.Test.Worlds.Doors

  @heads [keys: {:bernoulli, 2}, force: {:gaussian, 1}, move: {:categorical, 4}]

  defp policy!(more \\ []) do
    options = [embedding: {:vector, 2}, backbone: :gru, hidden_size: 8, heads: @heads]
    {:ok, policy} = Policy.init(Keyword.merge(options, more), seed: 1)
    policy
  end

  defp frame(t), do: [:math.sin(t * 0.7), :math.cos(t * 0.3)]

  # A mask of frame `t`, and whether an action is among those that it allows.
  defp mask(t), do: %{move: for(i <- 0..3, do: rem(i + t, 3) != 0), keys: [rem(t, 2) == 0, false]}

  defp allows?(mask, %{choices: %{move: move, keys: keys}}) do
    Enum.at(mask.move, move) and
      Enum.all?(Enum.zip(keys, mask.keys), fn {key, allowed?} -> key == 0 or allowed? end)
  end

  defp forbidden(logits, mask),
    do: for({logit, allowed?} <- Enum.zip(logits, mask), do: allowed? == logit > -1.0e9)

  describe "a session" do
    test "never chooses what is not allowed, and marks its logits" do
      for heads_kind <- [:independent, :autoregressive],
          mode <- [:carry, :window, {:resync, 5}],
          sampling <- [[], [temperature: 1000.0], [deterministic: true, press_threshold: 0.0]] do
        policy = policy!(heads_kind: heads_kind)
        {:ok, session} = Session.open(policy, mode: mode, window_size: 4, seed: 3)

        for t <- 1..60 do
          opts = [mask: mask(t), logits: true] ++ sampling
          {:ok, action} = Session.act(session, frame(t), opts)
          assert allows?(mask(t), action)
          assert Enum.all?(forbidden(action.logits.move, mask(t).move))
          assert Enum.all?(forbidden(action.logits.keys, mask(t).keys))
        end
      end
    end

    test "draws from the softmax of the allowed logits" do
      policy = policy!()
      {:ok, plain} = Session.open(policy, seed: 3)
      {:ok, %{logits: %{move: logits}}} = Session.act(plain, frame(1), logits: true)
      [_, a, _, b] = logits
      share = :math.exp(b) / (:math.exp(a) + :math.exp(b))

      chosen =
        for seed <- 1..4000 do
          {:ok, session} = Session.open(policy, seed: seed)
          opts = [mask: %{move: [false, true, false, true]}]
          {:ok, action} = Session.act(session, frame(1), opts)
          Session.close(session)
          action.choices.move
        end

      assert Enum.uniq(chosen) -- [1, 3] == []
      assert_in_delta Enum.count(chosen, &(&1 == 3)) / 4000, share, 0.03
    end

    test "is as without a mask where everything is allowed, and after nil" do
      policy = policy!()
      {:ok, one} = Session.open(policy, seed: 3)
      {:ok, two} = Session.open(policy, seed: 3)

      for {mask, t} <- Enum.with_index([nil, %{}, %{move: [1, 1, 1, 1]}, List.duplicate(true, 6)]) do
        assert Session.act(one, frame(t), logits: true) ==
                 Session.act(two, frame(t), logits: true, mask: mask)
      end
    end

    test "has masks of its own among many games, and scores given choices" do
      policy = policy!()
      games = for seed <- 1..20, {:ok, session} = Session.open(policy, seed: seed), do: session
      twins = for seed <- 1..20, {:ok, session} = Session.open(policy, seed: seed), do: session

      for t <- 1..10 do
        entries =
          for {game, i} <- Enum.with_index(games), do: {game, frame(i), [mask: mask(t + i)]}

        answers = Session.act_many(entries)

        for {{{:ok, action}, twin}, i} <- Enum.zip(answers, twins) |> Enum.with_index() do
          assert allows?(mask(t + i), action)
          assert {:ok, action} == Session.act(twin, frame(i), mask: mask(t + i))
        end
      end

      {:ok, session} = Session.open(policy, seed: 1)
      choices = %{keys: [1, 0], force: [0.5], move: 2}
      opts = [choices: choices, mask: %{move: [false, true, true, true]}]
      {:ok, action} = Session.act(session, frame(1), opts)
      assert action.choices.move == 2

      {:error, error} =
        Session.act(session, frame(1), choices: choices, mask: %{keys: [false, true]})

      assert Exception.message(error) =~ "keys: expected an action that the mask allows"
    end

    test "refuses a wrong mask by name, and is unchanged" do
      {:ok, session} = Session.open(policy!(), seed: 3)

      for {mask, text} <- [
            {%{move: [true]}, "mask of move: expected 4 booleans, got 1"},
            {%{move: [false, false, false, false]},
             "mask of move: expected a class that is allowed, got none"},
            {%{move: [true, true, :no, true]}, "mask of move: expected booleans, got :no"},
            {%{keys: %{jump: true}}, "mask of keys: expected 2 booleans"},
            {%{mve: [true]}, "mask: expected a map of keys, force, move, got :mve"},
            {%{force: [true]}, "mask of force: expected none, because a number has no mask"},
            {[true], "mask: expected 6 entries, got 1"},
            {List.duplicate(true, 7), "mask: expected 6 entries, got 7"},
            {[true, true, false, false, false, false], "mask of move: expected a class"},
            {:all, "mask: expected a map of keys, force, move, got :all"},
            {[true | false], "mask: expected a map of"},
            {%{move: [true | false]}, "mask of move: expected 4 booleans"}
          ] do
        assert {:error, %{kind: :mismatch, op: :act} = error} =
                 Session.act(session, frame(1), mask: mask)

        assert Exception.message(error) =~ text
      end

      assert {:ok, %{frame: 1}} = Session.act(session, frame(1))
    end
  end

  test "a serving's sessions have masks, also beside others without" do
    policy = policy!()
    serving = start_supervised!({Serving, policy: policy})
    {:ok, twin} = Session.open(policy, seed: 1)
    {:ok, masked} = Serving.open(serving, seed: 1)
    {:ok, free} = Serving.open(serving, seed: 2)

    for t <- 1..30 do
      answers = Session.act_many([{masked, frame(t), [mask: mask(t)]}, {free, frame(t)}])
      assert [{:ok, action}, {:ok, _}] = answers
      assert {:ok, action} == Session.act(twin, frame(t), mask: mask(t))
      assert allows?(mask(t), action)
    end

    assert {:error, %{kind: :mismatch}} = Session.act(masked, frame(1), mask: %{mve: []})
  end

  test "flags of a game and buttons of a controller have their names" do
    input = [keys: [type: {:flags, [:left, :smash]}], power: [type: {:axis, 0, 1}, steps: 5]]
    game = Game.new!(name: :pong, version: 1, fields: [x: [type: :number]], input: input)
    {:ok, policy} = Policy.init([embedding: game, backbone: :mlp, hidden_sizes: [8]], seed: 1)
    {:ok, session} = Session.open(policy)
    mask = %{keys: %{smash: false}, power: [false, false, false, true, false]}

    for t <- 1..50 do
      {:ok, action} = Session.act(session, %{x: t}, mask: mask, temperature: 1000.0)
      assert %{keys: %{smash: false}, power: 0.75} = action.input
    end

    {:ok, melee} = Policy.init(backbone: :mlp, hidden_sizes: [8])
    parts = Mask.of_heads(melee.spec)
    assert {:ok, mask} = Mask.pack(parts, %{buttons: %{z: false, d_up: false}, shoulder: nil})
    assert Enum.take(mask, 9) == [1, 1, 1, 1, 0, 1, 1, 0, 1]
    assert length(mask) == 8 + 4 * 17 + 5

    assert {:error, %{what: "mask of buttons", got: ":start"}} =
             Mask.pack(parts, %{buttons: %{start: true}})

    # Names arrive from another node as text.
    far = Spec.portable(policy!().spec)
    assert {:ok, [0, 1, 1, 1, 1, 1]} = far |> Mask.of_heads() |> Mask.pack(%{keys: [false, true]})
  end

  test "a live game is learned from with its masks" do
    {:ok, spec} = Sconce.Env.spec(Doors)

    {:ok, policy} =
      Policy.init(
        [embedding: {:vector, 4}, backbone: :mlp, hidden_sizes: [32], activation: :tanh] ++
          [layer_norm: false, residual: false, dropout: 0.0, head_hidden_size: 0] ++
          [heads: spec.heads, value_head: true],
        seed: 1
      )

    serving = start_supervised!({Serving, policy: policy})
    rollout = start_supervised!({Rollout, serving: serving, poll_ms: 1})
    out = Path.join(Scratch.tmp_dir!("live_masks"), "run")
    games = for seed <- 1..8, do: spawn_link(fn -> play(rollout, seed) end)

    {:ok, run} =
      PPO.start_link(
        env: {:live, rollout},
        out: out,
        environments: 8,
        rollout_steps: 64,
        learning_rate: 3.0e-3,
        target_return: 7.0,
        steps: 300_000
      )

    {:ok, report} = PPO.await(run)
    for game <- games, do: send(game, :stop)
    assert report.stopped == :target

    # The likelihoods of the loss are those of the games: a first update without lag has ratios near 1.
    assert hd(report.history).figures.approx_kl < 0.1
    {:ok, played} = Sconce.Env.play(Path.join(out, "last.safetensors"), Doors, episodes: 50)
    assert played.mean > 6.5
  end

  defp play(rollout, seed) do
    {:ok, session} = Rollout.open(rollout, seed: seed, steps: 32)
    {seen, state} = Doors.reset(%{seed: seed, options: []})
    live(rollout, session, seen, state, 1, seed)
  end

  # The world raises for an action that is not allowed, which would end the test.
  defp live(rollout, session, seen, state, t, seed) do
    receive do
      :stop -> :ok
    after
      0 ->
        %{door: doors, hands: %{key: key?}} = Doors.action_mask(state)
        mask = %{door: doors, hands: [key?, true]}
        {:ok, action} = Session.act(session, seen, mask: mask)
        [key, lamp] = action.choices.hands
        hands = %{key: key == 1, lamp: lamp == 1}
        input = %{door: action.choices.door, speed: action.choices.speed, hands: hands}
        {next, reward, :running, state} = Doors.step(input, state)
        :ok = Rollout.reward(session, reward)

        if t == 8 do
          Process.sleep(1)
          :ok = Rollout.done(session, :truncated, next)
          {seen, state} = Doors.reset(%{seed: seed + 1000, options: []})
          live(rollout, session, seen, state, 1, seed + 1000)
        else
          live(rollout, session, next, state, t + 1, seed)
        end
    end
  end
end
