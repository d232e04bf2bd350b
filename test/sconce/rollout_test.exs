defmodule Sconce.RolloutTest do
  use ExUnit.Case, async: true

  alias Sconce.{Policy, PPO, Rollout, Serving, Session}
  alias Sconce.Test.{LiveGames, Scratch}

  @spec_options [
    embedding: {:vector, 4},
    backbone: :mlp,
    hidden_sizes: [32],
    activation: :tanh,
    layer_norm: false,
    residual: false,
    dropout: 0.0,
    head_hidden_size: 0,
    heads: [action: {:categorical, 2}],
    value_head: true
  ]

  defp serving!(more \\ []) do
    {:ok, policy} = Policy.init(Keyword.merge(@spec_options, more), seed: 1)
    start_supervised!({Serving, policy: policy}, id: make_ref())
  end

  defp rollout!(serving, more \\ []),
    do: start_supervised!({Rollout, [serving: serving] ++ more}, id: make_ref())

  defp games(rollout, count), do: LiveGames.start(rollout, 1..count)

  test "games of this VM are learned from while they are played, and the serving gets better" do
    serving = serving!()
    rollout = rollout!(serving, poll_ms: 1)
    out = Path.join(Scratch.tmp_dir!("live"), "run")
    all = games(rollout, 8)

    options = [
      environments: 8,
      rollout_steps: 64,
      target_return: 100,
      steps: 100_000,
      max_lag: 20
    ]

    {:ok, run} = PPO.start_link([env: {:live, rollout}, out: out] ++ options)
    {:ok, report} = PPO.await(run)
    assert {report.stopped, report.env} == {:target, "live"}
    figures = List.last(report.history).figures
    assert figures.lag >= 0 and figures.misfits == 0
    # The serving has weights of the run.
    {:ok, info} = Rollout.info(rollout)
    assert info.version > 0
    {:ok, %{swaps: swaps}} = Serving.stats(serving)
    assert swaps > 0
    # The best policy stands in the folder; a live run begins with the weights of its serving.
    assert File.exists?(Path.join(out, "first.safetensors"))
    {:ok, played} = Sconce.Env.play(Path.join(out, "best.safetensors"), :cart_pole, episodes: 20)
    assert played.mean > 80

    {:ok, longer} =
      PPO.start_link(
        resume: true,
        out: out,
        env: {:live, rollout},
        steps: report.steps + 2_048,
        target_return: 1.0e6
      )

    {:ok, more} = PPO.await(longer)
    assert more.updates > report.updates
    for game <- all, do: send(game, :stop)

    assert_raise ArgumentError, ~r/needs {:live, rollout}/, fn ->
      PPO.start_link(resume: true, out: out)
    end
  end

  test "a run that waits for games stops at once, with its state saved" do
    rollout = rollout!(serving!())
    out = Path.join(Scratch.tmp_dir!("live"), "run")
    options = [environments: 2, rollout_steps: 16, minibatches: 2]
    all = games(rollout, 2)
    {:ok, run} = PPO.start_link([env: {:live, rollout}, out: out] ++ options)
    PPO.subscribe(run)
    assert_receive {:sconce_ppo, ^run, %{event: :update}}, 20_000
    for game <- all, do: send(game, :stop)
    :ok = PPO.stop(run)
    assert {:ok, %{stopped: :stopped}} = PPO.await(run, 20_000)
    assert File.exists?(Path.join(out, "last.safetensors"))
  end

  test "an update may be larger than the queue, and a run whose games stop ends by its minutes" do
    rollout = rollout!(serving!(), capacity: 48, poll_ms: 1)
    out = Path.join(Scratch.tmp_dir!("live"), "run")
    all = games(rollout, 4)

    options = [
      environments: 8,
      rollout_steps: 16,
      minibatches: 2,
      max_minutes: 0.03,
      max_lag: 1_000
    ]

    {:ok, run} = PPO.start_link([env: {:live, rollout}, out: out] ++ options)
    PPO.subscribe(run)
    assert_receive {:sconce_ppo, ^run, %{event: :update}}, 20_000
    for game <- all, do: send(game, :stop)
    assert {:ok, %{stopped: :budget}} = PPO.await(run, 20_000)
    # The games would go on with the last weights.
    {:ok, %{swaps: swaps}} = Serving.stats(:sys.get_state(rollout).serving)
    assert swaps > 0

    {:ok, other} =
      PPO.start_link(
        resume: true,
        out: out,
        env: {:live, rollout!(serving!(hidden_sizes: [16]))},
        max_minutes: 1
      )

    assert {:error, %{kind: :mismatch} = error} = PPO.await(other)
    assert Exception.message(error) =~ "Spec of the live games"
  end

  test "late rewards, wrong calls and a policy without a value have errors that say so" do
    serving = serving!()
    rollout = rollout!(serving)
    {:ok, session} = Rollout.open(rollout, steps: 4, hold: 8)
    {:error, error} = Rollout.reward(session, 1.0)
    assert error.kind == :not_found
    for _ <- 1..9, do: {:ok, _} = Session.act(session, [0.1, 0.2, 0.3, 0.4])
    assert Rollout.reward(session, 5, frame: 2) == :ok
    {:error, error} = Rollout.reward(session, 5, frame: 10)
    assert Exception.message(error) =~ "the recording holds 1 to 9"
    {:error, error} = Rollout.reward(session, 1.0e300)
    assert error.kind == :non_finite
    {:error, error} = Session.act(session, [0.1, 0.2, 0.3, 0.4], temperature: 0.5)
    assert Exception.message(error) =~ "recorded decision"
    {:error, error} = Rollout.done(session, :truncated, [0.1])
    assert error.kind == :mismatch
    assert Rollout.done(session, :truncated, [0.1, 0.2, 0.3, 0.4]) == :ok
    {:ok, %{received: 3, decisions: 9, waiting: 3}} = Rollout.info(rollout)
    assert {:ok, %{frame: 1}} = Session.act(session, [0.1, 0.2, 0.3, 0.4])

    assert_raise ArgumentError, ~r/a number/, fn -> Rollout.reward(session, nil) end

    assert_raise ArgumentError, ~r/:terminated or :truncated/, fn ->
      Rollout.done(session, :over)
    end

    {:ok, plain} = Serving.open(serving)
    {:error, error} = Rollout.reward(plain, 1.0)
    assert Exception.message(error) =~ "a recording of the session not found"
    {:error, error} = Rollout.open(rollout, temperature: 0.5)
    assert Exception.message(error) =~ "sampling of a recorded decision"

    {:error, error} = Rollout.start_link(serving: serving!(value_head: false))
    assert Exception.message(error) =~ "a value (value_head: true)"
    assert {:error, %{kind: :cancelled}} = Rollout.info(:no_such_rollout)

    assert_raise ArgumentError, ~r/Spec of its serving/, fn ->
      PPO.start_link(env: {:live, rollout}, out: Scratch.tmp_dir!("live"), hidden_sizes: [8])
    end
  end

  test "a game that dies loses its unfinished segment and nothing else" do
    rollout = rollout!(serving!())
    parent = self()

    {game, monitor} =
      spawn_monitor(fn ->
        {:ok, session} = Rollout.open(rollout, steps: 4)
        for _ <- 1..10, do: {:ok, _} = Session.act(session, [0.1, 0.2, 0.3, 0.4])
        send(parent, :played)
        Process.sleep(:infinity)
      end)

    assert_receive :played
    Process.exit(game, :kill)
    assert_receive {:DOWN, ^monitor, _, _, _}
    assert {:ok, %{received: 2, decisions: 8}} = Rollout.info(rollout)
  end

  test "a policy with memory is recorded from a zero memory, and learns in sequences" do
    own = Keyword.take(@spec_options, [:embedding, :heads, :value_head])
    {:ok, policy} = Policy.init(own ++ [backbone: :gru, hidden_size: 8], seed: 1)
    serving = start_supervised!({Serving, policy: policy}, id: make_ref())
    rollout = rollout!(serving, poll_ms: 1)
    out = Path.join(Scratch.tmp_dir!("live"), "run")
    all = games(rollout, 4)
    options = [environments: 4, rollout_steps: 32, steps: 128 * 6, max_lag: 100]
    {:ok, run} = PPO.start_link([env: {:live, rollout}, out: out] ++ options)
    {:ok, report} = PPO.await(run)
    for game <- all, do: send(game, :stop)
    assert report.updates == 6
    # Ratios to the recorded likelihoods are near 1 in the first pass, so the divergence is small.
    assert hd(report.history).figures.approx_kl < 0.1
  end

  test "named terms are weighed by the run and reported, and wrong ones have errors that say so" do
    serving = serving!()
    rollout = rollout!(serving, reward_terms: [:alive, :time], poll_ms: 1)
    {:ok, session} = Rollout.open(rollout, steps: 2, hold: 4)
    for _ <- 1..3, do: {:ok, _} = Session.act(session, [0.1, 0.2, 0.3, 0.4])
    assert Rollout.reward(session, %{alive: 1, time: -0.5}) == :ok
    assert Rollout.reward(session, [time: -0.25], frame: 1) == :ok
    {:error, error} = Rollout.reward(session, %{alife: 1.0})
    assert Exception.message(error) =~ "reward term alife (the rollout has alive, time)"
    {:error, error} = Rollout.reward(session, 1.0)
    assert Exception.message(error) =~ "a number for each of alive, time"
    {:error, error} = Rollout.reward(session, [time: 1.0e300], frame: 2)
    assert error.kind == :non_finite and Exception.message(error) =~ "reward term time"

    for wrong <- [
          %{"alive" => 1.0},
          %{alive: nil},
          [1.0],
          [:alive | 1.0],
          "alive",
          ~D[2024-01-01]
        ] do
      assert_raise ArgumentError, ~r/a map of terms to numbers/, fn ->
        Rollout.reward(session, wrong)
      end
    end

    Session.close(session)
    {:error, error} = Rollout.start_link(serving: serving, reward_terms: [:hit, :hit])
    assert Exception.message(error) =~ "hit twice"
    {:error, error} = Rollout.start_link(serving: serving, reward_terms: [])
    assert Exception.message(error) =~ "reward_terms"

    assert_raise ArgumentError, ~r/unknown reward term :tim, did you mean :time/, fn ->
      out = Scratch.tmp_dir!("live")
      PPO.start_link(env: {:live, rollout}, out: out, reward_weights: [tim: 1.0])
    end

    out = Path.join(Scratch.tmp_dir!("live"), "run")
    all = LiveGames.start(rollout, 1..4, reward: &%{alive: &1, time: -2 * &1})
    options = [environments: 4, rollout_steps: 32, steps: 128 * 8, max_lag: 100]
    weights = [reward_weights: [time: 0.25]]
    {:ok, run} = PPO.start_link([env: {:live, rollout}, out: out] ++ options ++ weights)
    {:ok, report} = PPO.await(run)
    for game <- all, do: send(game, :stop)
    last = List.last(report.history)
    assert last.rewards == %{alive: 1.0, time: -2.0}
    # Each step counts 1 - 2 / 4.
    assert_in_delta report.mean_return, 0.5 * last.mean_length, 1.0e-6
  end

  test "a live run normalises, stays close to a teacher, and its serving gets the statistics" do
    dir = Scratch.tmp_dir!("live")
    teacher = Path.join(dir, "teacher.safetensors")
    own = Keyword.take(@spec_options, [:embedding, :heads])
    {:ok, policy} = Policy.init(own ++ [backbone: :gru, hidden_size: 8], seed: 3)
    :ok = Policy.save(policy, teacher)
    serving = serving!()
    rollout = rollout!(serving, poll_ms: 1)
    out = Path.join(dir, "run")
    all = games(rollout, 4)

    options = [
      environments: 4,
      rollout_steps: 32,
      steps: 128 * 4,
      max_lag: 100,
      normalise_observations: true,
      normalise_rewards: true,
      teacher: teacher
    ]

    {:ok, run} = PPO.start_link([env: {:live, rollout}, out: out] ++ options)
    {:ok, report} = PPO.await(run)
    assert report.updates == 4
    for point <- report.history, do: assert(point.figures.teacher_kl > 0)
    assert {:normalised, statistics} = report.spec.embedding
    refute File.exists?(Path.join(out, "first.safetensors"))
    {:ok, stored} = Policy.load(Path.join(out, "last.safetensors"))
    assert stored.spec == report.spec

    # The games go on with the last weights and their statistics.
    served = fn -> serving |> Serving.info() |> elem(1) |> then(& &1.policy.spec.embedding) end

    assert Enum.any?(1..200, fn _ ->
             Process.sleep(10) && served.() == {:normalised, statistics}
           end)

    {:ok, session} = Serving.open(serving, seed: 1)
    {:ok, alone} = Session.open(stored, seed: 1)
    frame = [0.3, -0.2, 0.1, 0.4]
    {:ok, one} = Session.act(session, frame, logits: true)
    {:ok, other} = Session.act(alone, frame, logits: true)
    assert one.logits == other.logits

    {:ok, longer} = PPO.start_link(resume: true, out: out, env: {:live, rollout}, steps: 128 * 6)

    {:ok, more} = PPO.await(longer)
    for game <- all, do: send(game, :stop)
    assert more.updates == 6
    assert {:normalised, later} = more.spec.embedding
    assert later != statistics

    # Weights that have learned, and frames of another game.
    {:ok, run} =
      PPO.start_link(
        env: {:live, rollout},
        out: Path.join(dir, "other"),
        normalise_observations: true
      )

    assert {:error, error} = PPO.await(run)
    assert Exception.message(error) =~ "normalise_observations"
    {:ok, narrow} = Policy.init(embedding: {:vector, 3}, heads: own[:heads])
    path = Path.join(dir, "narrow.safetensors")
    :ok = Policy.save(narrow, path)

    {:ok, run} =
      PPO.start_link(env: {:live, rollout}, out: Path.join(dir, "third"), teacher: path)

    assert {:error, error} = PPO.await(run)
    assert Exception.message(error) =~ "embedding of the teacher"
  end
end
