defmodule Sconce.Env.WorldTest do
  use ExUnit.Case, async: true

  alias Sconce.{Env, League, Policy, PPO}
  alias Sconce.Test.Worlds.{Catch, Columns, Doors, Faulty, Mixed, Nim, Pole}

  setup do
    %{dir: Sconce.Test.Scratch.tmp_dir!("world")}
  end

  @small [environments: 4, rollout_steps: 16, minibatches: 2, hidden_sizes: [8], seed: 1]

  defp learn(world, out, opts) do
    {:ok, run} = PPO.start_link([env: world, out: out] ++ Keyword.merge(@small, opts))
    answer = PPO.await(run)
    GenServer.stop(run)
    answer
  end

  defp best(out), do: File.read!(Path.join(out, "last.safetensors"))

  test "a world describes itself with the options of a run" do
    {:ok, spec} = Env.spec(Mixed, frame_stack: 3, time_limit: 7)
    assert {spec.name, spec.observation_size, spec.time_limit} == {Mixed, 6, 7}
    assert spec.reward_terms == ["hit", "cost"]

    assert spec.heads == [
             aim: {:categorical, 17},
             keys: {:bernoulli, 2},
             force: {:gaussian, 2, -3.0, 3.0},
             gear: {:categorical, 4}
           ]

    assert {:ok, %{name: {Catch, [size: 5]}}} = Env.spec({Catch, [size: 5]})
    assert_raise ArgumentError, ~r/unknown environment/, fn -> Env.spec(String) end

    assert_raise ArgumentError, ~r/reward term/, fn ->
      Env.spec(Mixed, reward_weights: [hat: 1])
    end

    assert_raise ArgumentError, ~r/unknown environment/, fn -> Env.new(Catch) end

    assert_raise ArgumentError, ~r/:cart_pole is native/, fn ->
      PPO.start_link(env: :cart_pole, out: "never", processes: 2)
    end
  end

  test "a policy learns to catch, and the best one is played without a name", %{dir: dir} do
    opts = [environments: 32, rollout_steps: 32, steps: 200_000, target_return: 0.95]
    {:ok, report} = learn(Catch, dir, opts ++ [hidden_sizes: [32], processes: 2])
    assert report.stopped == :target
    assert report.env == "Sconce.Test.Worlds.Catch"
    {:ok, played} = Env.play(Path.join(dir, "best.safetensors"), nil, episodes: 50)
    assert played.env == Catch
    assert played.mean > 0.9
    assert played.terminated == 50
    assert Enum.all?(played.lengths, &(&1 == 6))
    {:ok, trace} = Env.trace(Path.join(dir, "best.safetensors"))
    assert {length(trace.states), trace.terminated} == {7, true}
  end

  test "results do not depend on processes and threads, and go on where they stopped", %{dir: dir} do
    out = &Path.join(dir, &1)
    long = [environments: 33, steps: 33 * 16 * 4]
    {:ok, one} = learn(Pole, out.("one"), long ++ [processes: 1, threads: 1])
    {:ok, many} = learn(Pole, out.("many"), long ++ [processes: 5, threads: 2])
    {:ok, _} = learn(Pole, out.("half"), environments: 33, steps: 33 * 16 * 2, processes: 3)
    {:ok, run} = PPO.start_link(resume: true, out: out.("half"), steps: 33 * 16 * 4, processes: 2)
    {:ok, resumed} = PPO.await(run)
    figures = &for point <- &1.history, do: {point.loss, point.mean_return, point.grad_norm}
    assert figures.(one) == figures.(many)
    assert figures.(one) == figures.(resumed)

    weights =
      &(Policy.load(Path.join(out.(&1), "last.safetensors")) |> elem(1) |> Policy.weights())

    assert weights.("one") == weights.("many")
    assert weights.("one") == weights.("half")
  end

  test "a world gets each part of an input in its own form, and terms are weighed", %{dir: dir} do
    {:ok, report} =
      learn({Mixed, [to: self()]}, dir,
        steps: 64,
        reward_weights: [cost: 4.0],
        sequence_length: 4
      )

    for _ <- 1..64 do
      assert_received {:input, env, %{aim: aim, keys: keys, force: [_, _] = force, gear: gear}}
      assert env in 0..3 and gear in 0..3 and is_integer(gear)
      assert aim >= -1 and aim <= 1 and aim * 8 == trunc(aim * 8)
      assert %{jump: jump?, fire: fire?} = keys
      assert is_boolean(jump?) and is_boolean(fire?)
      assert Enum.all?(force, &(abs(&1) <= 3))
    end

    assert [%{rewards: %{hit: 1.0, cost: -0.5}, mean_return: mean}] = report.history
    # Five steps of 1 - 4 * 0.5.
    assert mean == -5.0
  end

  for {fault, kind, text} <- [
        {:raise, :panic, "boom"},
        {:throw, :panic, "ball"},
        {:size, :panic, "expected 1 numbers"},
        {:over, :panic, ":terminated"},
        {:reward, :panic, "expected a number"},
        {:nan, :non_finite, "observation of environment 1 of {Sconce.Test.Worlds.Faulty"},
        {:infinite, :non_finite, "observation of environment 1"},
        {:hang, :deadline, "missed its deadline of 200 ms"},
        {:kill, :unavailable, "has ended"}
      ] do
    test "a world with the fault #{fault} ends the run with an error of kind #{kind}", %{dir: dir} do
      before = Process.list()

      opts = [steps: 6_400, step_timeout_ms: 200, processes: 2]
      {:error, error} = learn({Faulty, [fault: unquote(fault)]}, dir, opts)
      assert error.kind == unquote(kind)
      assert Exception.message(error) =~ unquote(text)
      # A killed process may live a moment longer.
      for pid <- Process.list() -- before, host?(pid) do
        monitor = Process.monitor(pid)
        assert_receive {:DOWN, ^monitor, _, _, _}
      end

      {:ok, policy} =
        Policy.init(embedding: {:vector, 1}, backbone: :mlp, heads: [go: {:categorical, 2}])

      world = {Faulty, [fault: unquote(fault)]}
      {:error, error} = Env.play(policy, world, episodes: 3, step_timeout_ms: 200)
      assert error.kind == unquote(kind)
    end
  end

  defp host_of?(pid, ancestor) do
    with [dictionary: own] <- Process.info(pid, [:dictionary]),
         {Sconce.Env.Host, :init, 1} <- own[:"$initial_call"],
         do: ancestor in own[:"$ancestors"],
         else: (_other -> false)
  end

  # Whether a process steps environments that this test has begun.
  defp host?(pid) do
    host_of?(pid, self())
  end

  test "a run that fails keeps its last saved state, and goes on with a mended world", %{dir: dir} do
    {:ok, _} = learn({Faulty, []}, dir, steps: 128)
    state = best(dir)

    {:ok, run} =
      PPO.start_link(resume: true, out: dir, env: {Faulty, [fault: :raise]}, steps: 6_400)

    # The options of a world are a part of its name.
    assert {:error, %{kind: :mismatch}} = PPO.await(run)
    assert best(dir) == state
    {:ok, run} = PPO.start_link(resume: true, out: dir, steps: 256)
    assert {:ok, %{updates: 4}} = PPO.await(run)
  end

  test "an environment whose state has a process begins its next episode when a run resumes", %{
    dir: dir
  } do
    world = {Faulty, fault: :pid, to: self()}
    # Episodes of 50 steps, so that none ends in the 48 steps of this run.
    {:ok, %{updates: 3}} = learn(world, dir, steps: 3 * 64)
    for env <- 0..3, do: assert_received({:begin, ^env, 0})
    refute_received {:begin, _env, 1}
    {:ok, run} = PPO.start_link(resume: true, out: dir, env: world, steps: 3 * 64 + 64)
    assert {:ok, %{updates: 4}} = PPO.await(run)
    # All begin as the world is opened; then only environment 1 has lost its state.
    for env <- 0..3, do: assert_received({:begin, ^env, 0})
    assert_received {:begin, 1, 1}
  end

  test "a batch steps all its environments in one call", %{dir: dir} do
    {:ok, report} = learn({Columns, [limit: 4]}, dir, steps: 640)
    assert report.episodes == 640 / 4
    {:ok, run} = PPO.start_link(resume: true, out: dir, env: {Columns, [limit: 4]}, steps: 704)
    assert {:ok, %{updates: 11}} = PPO.await(run)
  end

  describe "two seats" do
    @nim [environments: 32, rollout_steps: 32, hidden_sizes: [32], learning_rate: 3.0e-3]

    test "a policy that plays both learns to win, and its matches are played", %{dir: dir} do
      assert {:ok, %{seats: 2, mask_size: 4, players: []}} = Env.spec(Nim)
      {:ok, report} = learn(Nim, dir, @nim ++ [steps: 150_000])
      # The returns of two seats add up to 0.
      assert [%{mean_return: nil} | _] = report.history
      {:ok, spec} = Env.spec(Nim)

      {:ok, new} =
        Policy.init(
          embedding: {:vector, 11},
          backbone: :mlp,
          hidden_sizes: [8],
          heads: spec.heads
        )

      last = Path.join(dir, "last.safetensors")
      {:ok, league} = League.play([{"last", last}, {"new", new}], env: Nim, games: 200)
      assert league.payoff |> hd() |> List.last() > 0.75

      assert inspect(league) ==
               "#Sconce.League<Sconce.Test.Worlds.Nim · 2 players · 200 games a pair · best last>"

      assert League.table(league) =~ "Sconce.Test.Worlds.Nim · 200 games a pair"
      assert League.svg(league) =~ "League in Sconce.Test.Worlds.Nim"
      # The notes of the policy name the world, and processes change nothing.
      {:ok, again} = League.play([{"last", last}, {"new", new}], games: 200, processes: 3)
      assert again == league
      assert {:ok, %{terminated: 20, lengths: lengths}} = Env.play(last, Nim, episodes: 20)
      assert Enum.all?(lengths, &(&1 in 2..9))
    end

    test "a league has the same weights with any number of processes, and when it resumes", %{
      dir: dir
    } do
      out = &Path.join(dir, &1)
      steps = 33 * 2 * 16
      own = [environments: 33, past_selves: 3, snapshot_every: 1, self_play_share: 0.3]
      {:ok, report} = learn(Nim, out.("one"), own ++ [steps: 4 * steps, processes: 1, threads: 1])
      assert ["self 0" | _] = for(member <- report.opponents, do: member.name)
      assert is_float(List.last(report.history).mean_return)
      {:ok, _} = learn(Nim, out.("many"), own ++ [steps: 4 * steps, processes: 4, threads: 2])
      {:ok, _} = learn(Nim, out.("half"), own ++ [steps: 2 * steps, processes: 3])
      {:ok, run} = PPO.start_link(resume: true, out: out.("half"), steps: 4 * steps)
      {:ok, _} = PPO.await(run)

      weights =
        &(Policy.load(Path.join(out.(&1), "last.safetensors")) |> elem(1) |> Policy.weights())

      assert weights.("one") == weights.("many")
      assert weights.("one") == weights.("half")
      # A member of a file plays too.
      opponents = [opponents: [Path.join(out.("one"), "last.safetensors")]]

      {:ok, %{opponents: [%{games: games}]}} =
        learn(Nim, out.("against"), [steps: steps] ++ opponents)

      assert games > 0
    end

    test "what is of one seat only is an error that names it", %{dir: dir} do
      {:error, error} = learn({Nim, [fault: 1.0]}, dir, steps: 640)
      assert error.kind == :panic

      assert Exception.message(error) =~
               "rewards of Sconce.Test.Worlds.Nim: expected a list of 2, one for each seat, got: 1.0"

      {:error, error} = learn({Nim, [fault: [1.0, :much]]}, dir, steps: 640)
      assert Exception.message(error) =~ "expected a number, got: :much"
    end

    test "scripted players are refused where there is none", %{dir: dir} do
      message = "unknown opponent of Sconce.Test.Worlds.Nim \"mixer\", there is none"
      start = &PPO.start_link([env: Nim, out: dir] ++ &1)
      assert_raise ArgumentError, message, fn -> start.(opponents: [:mixer]) end
      {:error, error} = Env.spec(Nim, opponent: :mixer)
      assert Exception.message(error) =~ "expected a world with scripted players"
      message = "unknown player of Sconce.Test.Worlds.Nim \"mixer\", there is none"
      assert_raise ArgumentError, message, fn -> League.play([:mixer, :idle], env: Nim) end
      {:error, error} = League.play(["mixer", "idle"], env: Catch)
      assert Exception.message(error) =~ "seats of Sconce.Test.Worlds.Catch: expected 2, got 1"
    end
  end

  describe "action masks" do
    test "a policy learns where a forbidden action raises, and plays there greedily and by chance",
         %{dir: dir} do
      assert {:ok, %{mask_size: 5}} = Env.spec(Doors)
      assert {:ok, %{mask_size: 0}} = Env.spec(Catch)
      opts = [environments: 32, rollout_steps: 32, steps: 300_000, target_return: 7.5]
      {:ok, report} = learn(Doors, dir, opts ++ [hidden_sizes: [32], learning_rate: 3.0e-3])
      assert report.stopped == :target

      for deterministic <- [true, false] do
        opts = [episodes: 100, deterministic: deterministic, processes: 3]
        {:ok, played} = Env.play(Path.join(dir, "best.safetensors"), nil, opts)
        assert played.mean > 7
      end

      # A policy that has learned nothing chooses what is allowed, too.
      {:ok, spec} = Env.spec(Doors)

      for backbone <- [:mlp, :gru], heads_kind <- [:independent, :autoregressive], seed <- 1..5 do
        {:ok, policy} =
          Policy.init(
            [
              embedding: {:vector, 4},
              backbone: backbone,
              heads: spec.heads,
              heads_kind: heads_kind
            ],
            seed: seed
          )

        opts = [episodes: 20, seed: seed, deterministic: rem(seed, 2) == 0]
        assert {:ok, %{lengths: lengths}} = Env.play(policy, Doors, opts)
        assert Enum.all?(lengths, &(&1 == 8))
      end
    end

    test "a run with masks has the same weights with any number of processes, and when it resumes",
         %{dir: dir} do
      out = &Path.join(dir, &1)
      long = [environments: 33, steps: 33 * 16 * 4]
      {:ok, _} = learn(Doors, out.("one"), long ++ [processes: 1, threads: 1])
      {:ok, _} = learn(Doors, out.("many"), long ++ [processes: 5, threads: 2])
      {:ok, _} = learn(Doors, out.("half"), environments: 33, steps: 33 * 16 * 2, processes: 3)
      {:ok, run} = PPO.start_link(resume: true, out: out.("half"), steps: 33 * 16 * 4)
      {:ok, _} = PPO.await(run)

      weights =
        &(Policy.load(Path.join(out.(&1), "last.safetensors")) |> elem(1) |> Policy.weights())

      assert weights.("one") == weights.("many")
      assert weights.("one") == weights.("half")
    end

    for {fault, text} <- [
          {%{door: [true, false]},
           "mask of door of Sconce.Test.Worlds.Doors: expected 3 booleans"},
          {%{door: [false, false, false]},
           "mask of door of .*: expected a class that is allowed"},
          {%{door: [true, 2, true]}, "mask of door of .*: expected booleans, got: 2"},
          {%{hands: %{hat: true}}, "mask of hands of .*: expected flags key, lamp, got: :hat"},
          {%{hands: [true]}, "mask of hands of .*: expected 2 booleans"},
          {%{dor: [true, true, true]}, "mask of .*: expected a map of door, .*, got: :dor"},
          {%{speed: [true]}, "mask of speed of .*: expected none, because a number has no mask"},
          {[true, true], "mask of .*: expected 5 entries, got: 2"},
          {:all, "mask of .*: expected a map of door, speed, hands, got: :all"}
        ] do
      test "the mask #{inspect(fault)} is an error that names it", %{dir: dir} do
        {:error, error} = learn({Doors, [fault: unquote(Macro.escape(fault))]}, dir, steps: 640)
        assert error.kind == :panic
        assert Exception.message(error) =~ ~r/#{unquote(text)}/
      end
    end

    test "a mask without a function, or of numbers alone, is refused where the run is started", %{
      dir: dir
    } do
      defmodule Masked do
        def spec(options), do: Map.new(options)
        def reset(_begin), do: {[0.0], nil}
        def step(_input, state), do: {[0.0], 0, :running, state}
      end

      world = {Masked, observation_size: 1, input: [x: {:choice, 2}], masks: true}

      assert_raise ArgumentError, ~r"masks of .*Masked: expected a function action_mask/1", fn ->
        PPO.start_link(env: world, out: dir)
      end

      defmodule Numbers do
        def spec(_options), do: %{observation_size: 1, input: [x: {:continuous, 0, 1}]}
        def reset(_begin), do: {[0.0], nil}
        def step(_input, state), do: {[0.0], 0, :running, state}
        def action_mask(_state), do: %{}
      end

      assert {:error, %{kind: :mismatch} = error} = Env.spec(Numbers)
      assert Exception.message(error) =~ "input with masks"
      assert {:error, error} = Env.spec(Doors, action_repeat: 2)
      assert Exception.message(error) =~ "action_repeat"
    end

    test "a batch has the masks of all its environments", %{dir: dir} do
      defmodule Taps do
        # Tap `t` of three may not be opened at step `t`, modulo 3.
        @behaviour Sconce.Env.Batch

        @impl true
        def spec(_options), do: %{observation_size: 1, input: [tap: {:choice, 3}], time_limit: 5}

        @impl true
        def open(%{count: count}), do: List.duplicate(0, count)

        @impl true
        def reset(begins, steps) do
          steps = Enum.reduce(begins, steps, &List.replace_at(&2, &1.at, 0))
          {:binary.copy(<<0.0::float-32-little>>, length(begins)), steps}
        end

        @impl true
        def action_masks(steps),
          do: for(step <- steps, tap <- 0..2, do: if(rem(step, 3) == tap, do: 0, else: 1))

        @impl true
        def step(inputs, active, steps) do
          taps = for <<tap::float-32-little <- inputs>>, do: trunc(tap)
          rows = [steps, taps, :binary.bin_to_list(active)]
          for [step, tap, 1] <- Enum.zip_with(rows, & &1), do: true = tap != rem(step, 3)
          zeros = :binary.copy(<<0.0::float-32-little>>, length(steps))
          {zeros, zeros, :binary.copy(<<0>>, length(steps)), Enum.map(steps, &(&1 + 1))}
        end
      end

      assert {:ok, %{episodes: 128}} = learn(Taps, dir, steps: 640, processes: 2)
    end
  end

  test "the processes end with the run, also when its owner dies", %{dir: dir} do
    parent = self()

    {owner, monitor} =
      spawn_monitor(fn ->
        {:ok, run} = PPO.start_link([env: Pole, out: dir, steps: 10_000_000] ++ @small)
        PPO.subscribe(run)
        receive do: ({:sconce_ppo, ^run, %{event: :update}} -> send(parent, {:run, run}))
        Process.sleep(:infinity)
      end)

    assert_receive {:run, run}, 10_000
    ended = Process.monitor(run)

    hosts = for pid <- Process.list(), host_of?(pid, run), do: {pid, Process.monitor(pid)}

    assert hosts != []
    Process.exit(owner, :kill)
    assert_receive {:DOWN, ^monitor, _, _, :killed}
    assert_receive {:DOWN, ^ended, _, _, _}, 30_000
    for {_pid, host} <- hosts, do: assert_receive({:DOWN, ^host, _, _, _}, 5_000)
  end

  test "a wrong description raises where the run is started", %{dir: dir} do
    defmodule Wrong do
      def spec(options), do: options
      def reset(_begin), do: {[], nil}
      def step(_input, _state), do: {[], 0, :running, nil}
    end

    for {spec, text} <- [
          {%{}, ~r/observation_size/},
          {%{observation_size: 0, input: []}, ~r/observation_size/},
          {%{observation_size: 1, input: []}, ~r/at least one part/},
          {%{observation_size: 1, input: [x: :number]}, ~r/no type :number/},
          {%{observation_size: 1, input: [x: {:choice, 2}], limit: 3}, ~r/limit/},
          {nil, ~r/a map/}
        ] do
      assert_raise ArgumentError, text, fn -> PPO.start_link(env: {Wrong, spec}, out: dir) end
    end
  end
end
