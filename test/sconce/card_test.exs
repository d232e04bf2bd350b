defmodule Sconce.CardTest do
  @moduledoc """
  Compares policies on an NVIDIA card with the same policies on the CPU. `bin/test-cuda` runs the tests on the emulated
  card.
  """
  use ExUnit.Case, async: false

  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Error, Policy, PPO, Serving, Session, Trainer}
  alias Sconce.Trainer.Report

  @moduletag :gpu
  @moduletag timeout: 300_000

  @backbones [
    {:mlp, hidden_sizes: [16]},
    {:gru, hidden_size: 12, num_layers: 2},
    {:lstm, hidden_size: 12, num_layers: 1},
    {:mamba, hidden_size: 12, num_layers: 1},
    {:sliding_window, hidden_size: 12, num_layers: 1, num_heads: 2, head_dim: 6, window_size: 5}
  ]

  defp policy!({backbone, options}, more \\ []) do
    spec = [
      embedding: {:vector, 3},
      backbone: backbone,
      heads: [go: {:bernoulli, 2}, way: {:categorical, 4}]
    ]

    {:ok, policy} = Policy.init(spec ++ options, [seed: 5] ++ more)
    policy
  end

  defp frames(count, seed) do
    state = :rand.seed_s(:exsss, seed)
    {frames, _} = Enum.map_reduce(1..count, state, fn _, state -> frame(state) end)
    frames
  end

  defp frame(state), do: Enum.map_reduce(1..3, state, fn _, s -> :rand.uniform_s(s) end)

  defp play(session, frames) do
    for frame <- frames do
      {:ok, action} = Session.act(session, frame, logits: true)
      action
    end
  end

  defp numbers(binary), do: for(<<x::float-32-little <- binary>>, do: x)

  defp assert_near(got, want) do
    assert length(got) == length(want)
    for {g, w} <- Enum.zip(got, want), do: assert_in_delta(g, w, 1.0e-4)
  end

  test "a policy names its card, computes the same there, and moves back" do
    for backbone <- @backbones do
      here = policy!(backbone)
      there = policy!(backbone, device: :cuda)
      assert inspect(there) =~ ~r/ · cuda:0>$/
      assert {:ok, %{device: "cuda:0"}} = Policy.info(there)

      frames = frames(7, 1)
      {:ok, want} = Policy.forward(here, [frames])
      {:ok, got} = Policy.forward(there, [frames])
      assert_near(numbers(got.logits), numbers(want.logits))
      assert_near(numbers(got.state), numbers(want.state))

      {:ok, back} = Policy.to(there, :cpu)
      assert Policy.forward(back, [frames]) == Policy.forward(here, [frames])
    end
  end

  test "a checkpoint of one device loads on the other" do
    path = Path.join(tmp_dir!("card"), "policy.safetensors")
    there = policy!(hd(@backbones), device: :cuda)
    :ok = Policy.save(there, path)
    {:ok, here} = Policy.load(path)
    {:ok, again} = Policy.load(path, device: {:cuda, 0})
    frames = frames(2, 2)
    {:ok, want} = Policy.forward(here, [frames])
    {:ok, got} = Policy.forward(again, [frames])
    assert_near(numbers(got.logits), numbers(want.logits))
  end

  test "a session plays, rolls back, resets and moves as on the CPU" do
    for backbone <- @backbones, mode <- [:carry, :window] do
      here = policy!(backbone)
      {:ok, there} = Policy.to(here, :cuda)
      options = [mode: mode, window_size: 5, seed: 3, rollback: 3]
      {:ok, want} = Session.open(here, options)
      {:ok, got} = Session.open(there, options)
      assert inspect(got) =~ ~r/ · cuda:0>$/

      frames = frames(12, 3)

      for {g, w} <- Enum.zip(play(got, frames), play(want, frames)) do
        assert g.choices == w.choices
      end

      {:ok, snapshot} = Session.snapshot(got)
      [next | _] = frames(1, 4)
      {:ok, action} = Session.act(got, next)
      {:ok, same} = Session.open(there, options ++ [snapshot: snapshot])
      assert {:ok, ^action} = Session.act(same, next)
      {:ok, moved} = Session.open(here, options ++ [snapshot: snapshot])
      {:ok, on_cpu} = Session.act(moved, next)
      assert on_cpu.choices == action.choices
    end
  end

  test "a serving on a card steps the games of many callers together" do
    there = policy!({:gru, hidden_size: 12, num_layers: 2}, device: :cuda)
    {:ok, serving} = Serving.start_link(policy: there, max_batch: 16)
    {:ok, info} = Serving.info(serving)
    assert inspect(info) =~ "cuda:0"

    played =
      1..24
      |> Task.async_stream(
        fn game ->
          {:ok, session} = Serving.open(serving, seed: game)
          Enum.map(play(session, frames(6, game)), & &1.choices)
        end,
        max_concurrency: 24,
        timeout: 60_000
      )
      |> Enum.map(fn {:ok, actions} -> actions end)

    {:ok, here} = Policy.to(there, :cpu)

    for {actions, game} <- Enum.zip(played, 1..24) do
      {:ok, session} = Session.open(here, seed: game)
      assert actions == Enum.map(play(session, frames(6, game)), & &1.choices)
    end

    # Weights from the CPU are copied to the serving's device.
    :ok = Serving.swap(serving, here)
  end

  test "replaced weights leave the card, from a policy or a path" do
    here = policy!({:mlp, hidden_sizes: [256, 256]})
    {:ok, info} = Policy.info(here)
    path = Path.join(tmp_dir!("swap"), "weights.safetensors")
    :ok = Policy.save(here, path)
    serving = start_supervised!({Serving, policy: here, device: :cuda})

    for weights <- List.duplicate(here, 6) ++ List.duplicate(path, 6) do
      assert :ok == Task.await(Task.async(fn -> Serving.swap(serving, weights) end))
    end

    # `release` waits for memory that is still being freed.
    :ok = Serving.swap(serving, here)
    {:ok, _bytes} = Sconce.GPU.release()
    {:ok, %{weights: bytes}} = Sconce.GPU.ledger()
    assert bytes <= 2 * 4 * info.num_weights
  end

  test "options that only a CPU supports are refused by name" do
    there = policy!(hd(@backbones), device: :cuda)
    assert {:error, %Error{kind: :unavailable}} = Session.open(there, lane: :inline)
    assert {:error, %Error{kind: :unavailable}} = Session.open(there, weights: :int8)
    # The CPU supports int8 weights.
    assert {:ok, _session} = Session.open(there, weights: :int8, device: :cpu)
  end

  test "a run trains on a card as on the CPU, and resumes and is scored on either" do
    dir = tmp_dir!("card")

    games =
      for seed <- 1..6 do
        frames = frames(60, seed)
        {frames, Enum.map(frames, fn [x | _] -> [if(x > 0.5, do: 1, else: 0)] end)}
      end

    corpus = Path.join(dir, "corpus")
    {:ok, _} = Corpus.build({:vector, 3}, games, into: corpus, heads: [go: {:bernoulli, 1}])

    for {backbone, options} <- @backbones do
      run = fn device, out, steps ->
        {:ok, run} =
          Trainer.start_link(
            [corpus: corpus, out: Path.join(dir, "#{backbone}-#{out}"), device: device] ++
              [
                steps: steps,
                lr_schedule: :constant,
                batch_size: 4,
                window_size: 8,
                stride: 8,
                warmup_steps: 2
              ] ++
              [backbone: backbone, learning_rate: 1.0e-2, seed: 7] ++ options
          )

        {:ok, report} = Trainer.await(run, 240_000)
        report
      end

      want = run.(:cpu, "cpu", 12)
      got = run.(:cuda, "cuda", 12)
      assert Report.format(got) =~ "\ncomputed on cuda:0"
      assert_in_delta got.policy.nll, want.policy.nll, 2.0e-3

      last = Path.join([dir, "#{backbone}-cuda", "last.safetensors"])
      {:ok, there} = Trainer.evaluate(last, corpus, device: :cuda)
      {:ok, here} = Trainer.evaluate(last, corpus)
      assert there.device == "cuda:0"
      assert_in_delta there.policy.nll, here.policy.nll, 1.0e-4

      {:ok, resumed} =
        Trainer.start_link(
          out: Path.join(dir, "#{backbone}-cuda"),
          resume: true,
          steps: 14,
          device: :cpu
        )

      assert {:ok, _report} = Trainer.await(resumed, 60_000)
    end

    {:ok, run} =
      Trainer.start_link(
        [corpus: corpus, out: Path.join(dir, "quantised"), device: :cuda, quantise: :int8] ++
          [backbone: :gru, hidden_size: 32, steps: 2]
      )

    assert {:error, %Error{kind: :unavailable} = error} = Trainer.await(run, 60_000)
    assert Exception.message(error) =~ "quantise on a card"
  end

  test "a population computes and plays on a card as on the CPU" do
    alias Sconce.Evolve.{Archive, Population, Search}
    spec = Population.spec(:cart_pole, hidden_sizes: [6])

    for storage <- [:f32, :bf16, :int8] do
      [here, there] =
        for device <- [:cpu, :cuda] do
          {:ok, own} = Population.new(spec, count: 50, seed: 2, storage: storage, device: device)
          own
        end

      assert inspect(there) =~ ~r/ · cuda:0>$/
      assert Population.read(there) == Population.read(here)

      for _turn <- 1..2 do
        [{:ok, want}, {:ok, got}] =
          for own <- [here, there], do: Population.forward(own, [0.1, -0.2, 0.3, 0.4])

        for {g, w} <- Enum.zip(got, want), do: assert_near(g, w)
        own = [time_limit: 40, episodes: 2, measures: [{:final, 0}, :length]]

        [{:ok, want}, {:ok, got}] =
          for one <- [here, there], do: Population.episodes(one, :cart_pole, own)

        # A rounding error may turn a close decision.
        same = for {g, w} <- Enum.zip(got.returns, want.returns), abs(g - w) < 1.0e-3, do: g
        assert length(same) >= 48
        assert length(got.measures) == 50
        for own <- [here, there], do: assert(:ok = Population.vary(own, seed: 4))
      end
    end

    {:ok, there} = Population.new(Population.spec(:billiards), count: 2, device: :cuda)
    assert {:error, %Error{kind: :unavailable} = error} = Population.episodes(there, :billiards)
    assert Exception.message(error) =~ "billiards on a card"

    size = Search.size(spec)
    ranges = [{-3, 3}, {0, 1}]
    {:ok, archive} = Archive.new(cells: {:grid, [4, 4]}, ranges: ranges, solution_size: size)
    own = [archive: archive, batch: 40, measures: [{:final, 0}, {:input, 0}], device: :cuda]
    {:ok, search} = Search.new(spec, :cart_pole, own)
    assert {:ok, %{evaluations: 120}} = Search.run(search, 3)
  end

  test "holographic vectors on a card are those of the CPU" do
    alias Sconce.HRR
    {:ok, time} = HRR.from_tensor(frames(4, 1) |> Enum.map(&List.flatten(List.duplicate(&1, 16))))

    assert {:error, %Error{kind: :unavailable}} =
             with({:ok, on} <- HRR.on(time, :cuda), do: HRR.bind(on, on))

    {:ok, a} = HRR.atoms(4, 256, seed: 1)
    {:ok, b} = HRR.atoms(4, 256, seed: 2, kind: :gaussian)
    {:ok, a} = HRR.in_domain(a, :time)
    {:ok, there_a} = HRR.on(a, :cuda)
    {:ok, there_b} = HRR.on(b, :cuda)

    [want, got] =
      for {a, b} <- [{a, b}, {there_a, there_b}] do
        {:ok, bound} = HRR.bind(a, b)
        {:ok, back} = HRR.unbind(bound, b)
        {:ok, sum} = HRR.superpose(back, group: 2, weights: [1, 2])
        {:ok, codes} = HRR.quantise(b)
        {:ok, cosines} = HRR.similarity(sum, b)
        {:ok, rounded} = HRR.similarity(sum, codes)
        {:ok, sum} = HRR.on(sum, :cpu)
        {:ok, numbers} = HRR.to_tensor(sum)
        [numbers, cosines, rounded]
      end

    for {got, want} <- Enum.zip(got, want),
        {g, w} <- Enum.zip(got, want),
        do: assert_near(g, w)

    for refused <- [
          HRR.take(there_a, [0]),
          HRR.bind(there_a, b),
          HRR.cleanup(there_a, there_b),
          HRR.unbind(there_a, there_b, exact: true),
          HRR.to_tensor(there_a)
        ] do
      assert {:error, %Error{kind: :unavailable, details: %{what: what}}} = refused
      assert what =~ "on a card"
    end
  end

  test "a run learns from play on a card as on the CPU, and resumes on either" do
    dir = tmp_dir!("card")

    learn = fn name, opts ->
      small = [environments: 20, rollout_steps: 16, minibatches: 2, hidden_sizes: [8], seed: 3]
      out = [out: Path.join(dir, name)]
      opts = if opts[:resume], do: out ++ opts, else: out ++ small ++ opts
      {:ok, run} = PPO.start_link(opts)
      PPO.await(run, 240_000)
    end

    for env <- [:cart_pole, :mountain_car_continuous] do
      {:ok, want} = learn.("#{env}-cpu", env: env, steps: 960)
      {:ok, got} = learn.("#{env}-card", env: env, steps: 960, device: :cuda)
      assert {got.updates, got.options.device} == {3, "cuda:0"}
      points = Enum.zip(got.history, want.history)
      for {g, w} <- points, do: assert_in_delta(g.loss, w.loss, 1.0e-3 * max(1, abs(w.loss)))
      {:ok, longer} = learn.("#{env}-card", resume: true, steps: 1280, device: :cpu)
      {:ok, cpu} = learn.("#{env}-cpu", resume: true, steps: 1280)

      assert_in_delta longer.history |> List.last() |> Map.fetch!(:loss),
                      cpu.history |> List.last() |> Map.fetch!(:loss),
                      1.0e-2
    end

    for {name, opts} <- [
          {"memory", [env: :cart_pole, backbone: :gru]},
          {"normalise_rewards", [env: :cart_pole, normalise_rewards: true]},
          {"past_selves", [env: :duel, past_selves: 2]},
          {"quantise", [env: :cart_pole, quantise: :int8]},
          {"autoregressive", [env: :duel, heads_kind: :autoregressive]}
        ] do
      {:ok, run} =
        PPO.start_link([out: Path.join(dir, name), device: :cuda, steps: 10_000] ++ opts)

      assert {:error, %Error{kind: :unavailable} = error} = PPO.await(run, 60_000)
      assert Exception.message(error) =~ name
    end
  end
end
