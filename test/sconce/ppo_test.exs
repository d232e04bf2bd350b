defmodule Sconce.PPOTest do
  use ExUnit.Case, async: true

  alias Sconce.{Env, Error, Policy, PPO, Session}

  doctest PPO
  doctest PPO.Curve
  doctest PPO.Progress

  @moduletag :tmp_dir
  @small [environments: 4, rollout_steps: 8, minibatches: 2, hidden_sizes: [8], steps: 96]

  defp run!(opts) do
    {:ok, run} = PPO.start_link(opts)
    run
  end

  defp weights(path) do
    {:ok, policy} = Policy.load(path)
    {:ok, session} = Session.open(policy, deterministic: true)
    for i <- 1..5, {:ok, action} = Session.act(session, [i / 10, 0.1, -i / 20, 0.0]), do: action
  end

  test "a policy that sees images has the learning rates of images, unless one is given" do
    rates = fn opts ->
      settings = Sconce.PPO.Settings.new!([out: "nowhere"] ++ opts)
      {settings.options.learning_rate, settings.options.learning_rate_to}
    end

    assert rates.(env: :cart_pole) == {2.5e-3, nil}
    assert rates.(env: :pixel_cart_pole) == {7.0e-4, 1.0e-4}
    assert rates.(env: :pixel_cart_pole, learning_rate: 1.0e-3) == {1.0e-3, nil}
    assert rates.(env: :pixel_cart_pole, learning_rate_to: 0.0) == {2.5e-3, 0.0}
    assert rates.(env: :pixel_cart_pole, optimiser: [learning_rate: 2.5e-3]) == {2.5e-3, nil}
  end

  test "a run learns, tells its updates and leaves its files", %{tmp_dir: out} do
    run = run!([env: :cart_pole, out: out] ++ @small)
    assert PPO.subscribe(run) == :ok
    assert {:ok, report} = PPO.await(run)
    assert %{stopped: :finished, updates: 3, steps: 96, env: "cart_pole"} = report
    assert length(report.history) == 3

    assert %{figures: %{entropy: entropy, approx_kl: _kl}, rewards: %{alive: 1.0}} =
             hd(report.history)

    assert_in_delta entropy, :math.log(2), 0.05
    assert_receive {:sconce_ppo, ^run, %{event: :start, env: "cart_pole", rows: 4, updates: 3}}
    assert_receive {:sconce_ppo, ^run, %{event: :done, result: {:ok, ^report}}}
    assert %{status: :done, update: %{updates: 3}} = PPO.info(run)

    for name <- ~w(best.safetensors last.safetensors run.json report.json curve.svg),
        do: assert(File.exists?(Path.join(out, name)), name)

    assert File.read!(report.curve) =~ "mean return of 100 episodes"
    assert PPO.report(out) == {:ok, report}
    assert report.spec.critic == :separate
  end

  test "a run learns weights for few bits, and refuses what cannot be quantised", %{tmp_dir: out} do
    wide = Keyword.merge(@small, env: :cart_pole, hidden_sizes: [32, 32])
    run = run!([out: out, quantise: :int4, quantise_group: 16] ++ wide)
    assert {:ok, %{updates: 3, options: %{quantise: "int4"}}} = PPO.await(run)
    assert {:ok, %{updates: 6}} = PPO.await(run!(resume: true, out: out, steps: 192))
    changed = run!(resume: true, out: out, quantise: :int8)
    assert {:error, %Error{kind: :mismatch}} = PPO.await(changed)
    small = run!([env: :cart_pole, out: out <> "/small", quantise: :int8] ++ @small)
    assert {:error, %Error{kind: :mismatch} = error} = PPO.await(small)
    assert Exception.message(error) =~ "quantise: expected a matrix with 32 inputs"

    assert_raise ArgumentError, ~r/:quantise_group/, fn ->
      PPO.start_link([out: out <> "/none", quantise: :int4, quantise_group: 0] ++ wide)
    end
  end

  @league [env: :duel, time_limit: 20, steps: 400, snapshot_every: 1, past_selves: 2]

  test "a league reports the results against its members and keeps its past selves", %{
    tmp_dir: out
  } do
    run = run!([out: out, opponents: [:mixer]] ++ Keyword.merge(@small, @league))
    assert {:ok, report} = PPO.await(run)

    assert [%{name: "mixer"}, %{name: "self 0", elo: elo}, %{name: _}] = report.opponents

    assert report.opponents |> Enum.map(& &1.games) |> Enum.sum() > 0
    assert is_float(elo) and report.best_return == nil
    assert_in_delta report.opponents |> Enum.map(& &1.probability) |> Enum.sum(), 1.0, 1.0e-9
    assert List.last(report.history).opponents == report.opponents
    assert Path.wildcard(out <> "/league/self-*.safetensors") != []
    curve = File.read!(report.curve)
    assert curve =~ "Elo" and curve =~ "mean win rate against the league"
    assert {:ok, ^report} = PPO.report(out)
    assert {:ok, longer} = PPO.await(run!(resume: true, out: out, steps: 500))
    assert longer.updates > report.updates
    changed = run!(resume: true, out: out, past_selves: 3)
    assert {:error, %Error{kind: :mismatch}} = PPO.await(changed)
  end

  test "opponents that cannot be are refused by name", %{tmp_dir: out} do
    start = &PPO.start_link([out: out] ++ Keyword.merge(@small, &1))
    message = ~s(unknown opponent of :duel "strikr", did you mean "striker"?)
    assert_raise ArgumentError, message, fn -> start.(env: :duel, opponents: [:strikr]) end
    refused = &(start.(&1) |> elem(1) |> PPO.await() |> elem(1))
    gone = refused.(env: :duel, opponents: ["gone.safetensors"])
    assert %Error{kind: :not_found} = gone
    assert Exception.message(gone) =~ "gone.safetensors"
    assert %Error{kind: :mismatch} = error = refused.(env: :cart_pole, past_selves: 2)
    assert Exception.message(error) =~ "two seats"
    assert %Error{kind: :mismatch} = refused.(env: :duel, self_play_share: 0.1)
  end

  test "a policy of CartPole reaches a mean return of 195 within 80,000 steps", %{tmp_dir: out} do
    options = [env: :cart_pole, out: out, seed: 1, steps: 80_000, target_return: 195]
    assert {:ok, report} = PPO.await(run!(options))
    assert report.stopped == :target
    assert report.mean_return >= 195
  end

  for overlap <- [false, true] do
    test "a run with overlap: #{overlap} that is stopped and resumed ends as one that was not", %{
      tmp_dir: out
    } do
      resumed_as_whole(out, unquote(overlap))
    end
  end

  test "a small policy learns from a large one alone, on the steps that it plays", %{tmp_dir: out} do
    large = run!(env: :cart_pole, out: out <> "/large", target_return: 475, seed: 3)
    assert {:ok, %{stopped: :target} = large} = PPO.await(large)
    teacher = Path.join(large.out, "best.safetensors")

    opts =
      [env: :cart_pole, hidden_sizes: [8], steps: 61_440, teacher: teacher] ++
        [policy_weight: 0, value_weight: 0, entropy_weight: 0]

    assert {:ok, small} = PPO.await(run!([out: out <> "/small", seed: 4] ++ opts))
    assert small.weights < large.weights / 50
    [first | _rest] = small.history
    last = List.last(small.history)
    assert last.figures.teacher_kl < 0.2 * first.figures.teacher_kl
    assert_in_delta last.loss, last.figures.teacher_kl, 1.0e-9
    {:ok, played} = Env.play(Path.join(small.out, "last.safetensors"), :cart_pole)
    assert played.mean > 400

    both = [teacher: [teacher, teacher], teacher_temperature: 2, out: out <> "/both"]
    small = [env: :cart_pole, policy_weight: 0] ++ both ++ @small
    assert {:ok, %{options: %{teacher: [^teacher, ^teacher]}}} = PPO.await(run!(small))
    assert {:ok, %{updates: 4}} = PPO.await(run!(resume: true, out: both[:out], steps: 128))
    {:ok, plan} = PPO.plan(Keyword.delete(small, :out))
    {:ok, once} = PPO.plan(Keyword.merge(small, teacher: teacher, out: out <> "/none"))
    assert plan.owners.teacher > 1.8 * once.owners.teacher

    for {given, text} <- [
          {[policy_weight: 0], "policy_weight: expected a teacher"},
          {[policy_weight: 0, teacher: teacher, clip: 0.1],
           "clip: expected policy_weight above 0"},
          {[teacher_temperature: 2], "teacher_temperature: expected a teacher"}
        ] do
      run = run!([env: :cart_pole, out: out <> "/refused"] ++ @small ++ given)
      assert {:error, %Error{kind: :mismatch} = error} = PPO.await(run)
      assert Exception.message(error) =~ text
    end

    assert_raise ArgumentError, ~r/option :teacher: expected at least one path/, fn ->
      PPO.start_link([env: :cart_pole, out: out <> "/none", teacher: []] ++ @small)
    end
  end

  test "a module is stepped while the policy learns", %{tmp_dir: out} do
    run = run!([env: Sconce.Test.Worlds.Catch, out: out, overlap: true] ++ @small)
    assert {:ok, %{stopped: :finished, updates: 3}} = PPO.await(run)
    assert {:ok, report} = PPO.await(run!(out: out, resume: true, steps: 160))
    assert {report.updates, report.options.overlap} == {5, true}
    changed = run!(out: out, resume: true, overlap: false)
    assert {:error, %Error{kind: :mismatch}} = PPO.await(changed)
  end

  defp resumed_as_whole(out, overlap) do
    [whole, parts] = for name <- ~w(whole parts), do: Path.join(out, name)
    options = [env: :cart_pole, normalise_observations: true, overlap: overlap] ++ @small
    assert {:ok, _report} = PPO.await(run!([out: whole] ++ options))
    test = self()

    stop = fn
      %{event: :update, updates: 1} -> send(test, :updated)
      _event -> :ok
    end

    run = run!([out: parts, progress: stop] ++ options)
    assert_receive :updated, 5000
    assert PPO.stop(run) == :ok
    assert {:ok, _report} = PPO.await(run)
    assert {:ok, report} = PPO.await(run!(out: parts, resume: true))
    assert {report.updates, report.stopped} == {3, :finished}
    [a, b] = for dir <- [whole, parts], do: weights(Path.join(dir, "last.safetensors"))
    assert a == b
    assert inspect(report.spec) =~ "vector 4 normalised"
  end

  test "a policy of another environment plays with what it has learned", %{tmp_dir: out} do
    assert {:ok, report} = PPO.await(run!([env: :pendulum, out: out] ++ @small))
    assert report.env == "pendulum"
    {:ok, policy} = Policy.load(Path.join(out, "last.safetensors"))
    {:ok, session} = Session.open(policy, deterministic: true)
    assert {:ok, action} = Session.act(session, [1.0, 0.0, 0.0])
    assert [torque] = List.wrap(action.choices.action)
    assert abs(torque) <= 2
  end

  test "a policy with memory learns from sequences", %{tmp_dir: out} do
    options =
      [backbone: :gru, hidden_size: 8, num_layers: 1, sequence_length: 4] ++
        Keyword.delete(@small, :hidden_sizes)

    assert {:ok, report} = PPO.await(run!([env: :cart_pole_velocity_less, out: out] ++ options))
    assert report.updates == 3
    assert report.history |> List.last() |> Map.fetch!(:loss) |> is_float()
  end

  describe "mistakes" do
    test "in options raise and name the option", %{tmp_dir: out} do
      for {opts, said} <- [
            {[env: :cart_pol], "did you mean :cart_pole?"},
            {[], ":env is required"},
            {[env: :cart_pole, clop: 0.1], "did you mean :clip?"},
            {[env: :cart_pole, clip: 0], ":clip"},
            {[env: :cart_pole, environments: 0], ":environments"},
            {[env: :cart_pole, spec: :gru], ":spec"},
            {[env: :cart_pole, heads: [a: {:bernoulli, 1}]], ":heads"},
            {[env: :duel, reward_weights: [tuch: 1.0]], "touch"}
          ] do
        assert_raise ArgumentError, ~r/#{Regex.escape(said)}/, fn ->
          PPO.start_link([out: out] ++ opts)
        end
      end
    end

    test "that the run finds are its error", %{tmp_dir: out} do
      short =
        [env: :cart_pole, out: Path.join(out, "a"), steps: 31] ++ Keyword.delete(@small, :steps)

      assert {:error, %Error{kind: :mismatch} = error} = PPO.await(run!(short))
      assert Exception.message(error) =~ "32" and Exception.message(error) =~ "31"

      none = [out: Path.join(out, "b"), resume: true]
      assert {:error, %Error{kind: :not_found} = error} = PPO.await(run!(none))
      assert Exception.message(error) =~ "env: NAME"

      blind =
        Policy.Spec.new(
          embedding: {:vector, 4},
          heads: [action: {:categorical, 2}],
          backbone: :mlp
        )

      assert {:error, error} =
               PPO.await(run!(env: :cart_pole, out: Path.join(out, "c"), spec: blind))

      assert Exception.message(error) =~ "value"

      other =
        Policy.Spec.new(
          embedding: {:vector, 3},
          heads: [action: {:categorical, 2}],
          value_head: true
        )

      assert {:error, error} =
               PPO.await(run!(env: :cart_pole, out: Path.join(out, "d"), spec: other))

      assert Exception.message(error) =~ "observation of the policy: expected 4, got 3"
    end

    @tag cuda: false
    test "in the device are their error, and a resumed run may have another", %{tmp_dir: out} do
      own = [env: :cart_pole, out: out] ++ @small
      assert {:error, %Error{kind: :unavailable}} = PPO.await(run!([device: :cuda] ++ own))
      assert {:ok, report} = PPO.await(run!([device: :auto] ++ own))
      assert report.options.device =~ "cpu"
      again = [resume: true, out: out, steps: 128]
      assert {:error, %Error{kind: :unavailable}} = PPO.await(run!([device: :cuda] ++ again))
      assert {:ok, %{updates: 4}} = PPO.await(run!([device: :cpu] ++ again))
      assert_raise ArgumentError, ~r/:device/, fn -> PPO.start_link([device: :gpu] ++ own) end
    end

    test "in a resumed run are listed together", %{tmp_dir: out} do
      assert {:ok, _report} = PPO.await(run!([env: :cart_pole, out: out] ++ @small))

      assert {:error, %Error{kind: :mismatch}} =
               PPO.await(run!([env: :cart_pole, out: out] ++ @small))

      again = [out: out, resume: true, clip: 0.3, environments: 8]

      assert {:error, %Error{kind: :mismatch, details: %{differences: differences}}} =
               PPO.await(run!(again))

      assert Enum.sort(for one <- differences, do: one.option) == ["clip", "environments"]
    end

    test "in a saved state are an error, and the state stays", %{tmp_dir: out} do
      assert {:ok, _report} = PPO.await(run!([env: :cart_pole, out: out] ++ @small))
      path = Path.join(out, "last.safetensors")
      whole = File.read!(path)
      File.write!(path, binary_part(whole, 0, div(byte_size(whole), 2)))

      assert {:error, %Error{kind: :corrupt}} =
               PPO.await(run!(out: out, resume: true, steps: 128))

      assert byte_size(File.read!(path)) == div(byte_size(whole), 2)
      File.write!(path, whole)
      assert {:ok, %{updates: 4}} = PPO.await(run!(out: out, resume: true, steps: 128))
    end
  end

  test "a run whose caller is killed ends, and its folder is free for a resume", %{tmp_dir: out} do
    test = self()

    caller =
      spawn(fn ->
        tell = fn event -> if event.event == :update, do: send(test, :updated) end

        run =
          run!(
            [env: :cart_pole, out: out, progress: tell] ++ Keyword.put(@small, :steps, 10_000_000)
          )

        send(test, {:run, run})
        Process.sleep(:infinity)
      end)

    assert_receive {:run, run}
    monitor = Process.monitor(run)
    assert_receive :updated, 5000
    Process.exit(caller, :kill)
    assert_receive {:DOWN, ^monitor, :process, ^run, _reason}, 30_000
    assert {:ok, report} = PPO.await(run!(out: out, resume: true, max_minutes: 1.0e-6))
    assert report.updates >= 1
  end

  test "every environment has a Spec that a run accepts", %{tmp_dir: dir} do
    for name <- Env.names() do
      assert {:ok, spec} = Env.spec(name)
      assert spec.observation_size > 0 and spec.heads != [] and spec.time_limit > 0

      assert {:ok, report} =
               PPO.await(run!([env: name, out: Path.join(dir, "#{name}")] ++ @small))

      assert report.env == to_string(name) and report.updates >= 1

      embedding =
        case spec.observation_shape do
          [size] -> {:vector, size}
          image -> {:net, Sconce.Net.Spec.image(image, 64)}
        end

      assert Policy.Spec.to_options(report.spec)[:embedding] == embedding
      assert for(head <- report.spec.heads, do: {head.name, head.kind}) == spec.heads
    end
  end

  test "progress is a line for each update in a terminal, and rare elsewhere" do
    start = %{
      event: :start,
      env: "cart_pole",
      rows: 32,
      updates: 2,
      steps: 4096,
      weights: 9155,
      threads: 2
    }

    update = %{
      event: :update,
      updates: 1,
      updates_in_all: 2,
      steps: 2048,
      seconds: 0.5,
      mean_return: nil,
      mean_length: nil,
      figures: %{entropy: 0.69, approx_kl: 0.001},
      steps_per_second: 4096.0
    }

    text = fn terminal, events ->
      progress = PPO.Progress.new(terminal: terminal)

      {text, _progress} =
        Enum.map_reduce(events, progress, fn event, progress ->
          PPO.Progress.write(progress, event)
        end)

      IO.iodata_to_binary(text)
    end

    assert text.(false, [start, update]) =~
             "cart_pole · 32 rows · 2 updates of 2,048 steps · 9,155 weights\nupdate 1/2  2,048 steps  return -"

    assert text.(true, [start, update]) =~ "\r\e[Kupdate 1/2"
    assert text.(false, [update, %{update | seconds: 0.6}]) |> String.split("\n") |> length() == 2

    later = %{update | seconds: 0.6, updates: 2, updates_in_all: 9}
    assert text.(false, [update, later, %{event: :done}]) =~ ~r/update 1.*\nupdate 2\/9.*\n\z/
  end
end
