defmodule Sconce.Compress.ShrinkTest do
  use ExUnit.Case, async: true

  alias Sconce.{Compress, Corpus, Error, Policy, Session, Trainer}
  alias Sconce.Test.Scratch

  defmodule Catch do
    use Sconce.Game, fields: [ball: [type: {:range, -1, 1}]], input: [move: [type: {:choice, 3}]]
  end

  @spec_options [
    embedding: {:vector, 64},
    backbone: :gru,
    hidden_size: 48,
    heads: [fire: {:bernoulli, 2}, move: {:categorical, 5}]
  ]

  defp policy!(opts \\ []) do
    {seed, opts} = Keyword.pop(opts, :seed, 1)
    {:ok, policy} = Policy.init(Keyword.merge(@spec_options, opts), seed: seed)
    policy
  end

  # Games whose input follows the side of the ball.
  defp corpus!(dir) do
    games =
      for game <- 1..8 do
        for t <- 1..60 do
          x = :math.sin(game * t * t)
          move = if x > 0.3, do: 2, else: if(x < -0.3, do: 0, else: 1)
          %{frame: %{ball: x}, input: %{move: move}}
        end
      end

    {:ok, corpus} = Corpus.build(Catch, games, into: Path.join(dir, "corpus"))
    corpus
  end

  defp train!(opts) do
    {:ok, run} = Trainer.start_link(opts)
    {:ok, report} = Trainer.await(run)
    {:ok, policy} = Policy.load(Path.join(report.out, "last.safetensors"))
    policy
  end

  test "a smaller policy is an ordinary one: it is saved, plays, and learns from the large one" do
    dir = Scratch.tmp_dir!()
    corpus = corpus!(dir)

    common = [
      corpus: corpus,
      batch_size: 8,
      window_size: 8,
      steps: 80,
      loss: :plain,
      dropout: 0.0
    ]

    common = common ++ [learning_rate: 0.01, warmup_steps: 5]
    sizes = [backbone: :gru, hidden_size: 48, num_layers: 2]
    large = train!(common ++ sizes ++ [out: Path.join(dir, "large")])

    {:ok, small} =
      Compress.Policy.shrink(large, hidden_size: 8, calibration: corpus, calibration_frames: 200)

    {:gru, before} = large.spec.backbone
    assert small.policy.spec.backbone == {:gru, Keyword.replace!(before, :hidden_size, 8)}
    assert [%{name: "backbone.l0"}, %{name: "backbone.l1"}] = small.layers

    for layer <- small.layers do
      assert {length(layer.kept), layer.removed, layer.units} == {8, 40, 48}
      assert layer.kept == Enum.sort(layer.kept)
      assert layer.importance > 0.2 and layer.output_error < 0.4
    end

    assert small.weights == small.policy.num_weights and small.bytes == 4 * small.weights
    assert small.weights_before == large.num_weights
    assert small.weights < 0.2 * small.weights_before

    path = Path.join(dir, "small.safetensors")
    :ok = Policy.save(small.policy, path)
    {:ok, loaded} = Policy.load(path)
    assert inspect(loaded) == inspect(small.policy)
    {:ok, session} = Session.open(loaded, seed: 1)
    assert {:ok, _action} = Session.act(session, %{ball: 0.1})

    teacher = Path.join(dir, "large/last.safetensors")
    taught = [policy: path, teacher: teacher, teacher_direction: :reverse, teacher_weight: 1.0]
    learnt = train!(common ++ taught ++ [out: Path.join(dir, "small")])
    assert learnt.spec == small.policy.spec
    nll = fn path -> elem(Trainer.evaluate(path, corpus, mode: :carry), 1).policy.nll end
    [before, now] = for own <- [path, Path.join(dir, "small/last.safetensors")], do: nll.(own)
    assert now < 0.9 * before
  end

  test "a share of the weights is an upper bound" do
    policy = policy!(backbone: :sliding_window, num_heads: 2, head_dim: 8, window_size: 5)

    for keep <- [0.3, 0.6, 1.0] do
      {:ok, small} = Compress.Policy.shrink(policy, keep: keep)
      assert small.weights <= keep * small.weights_before
    end

    {:ok, same} = Compress.Policy.shrink(policy, keep: 1)
    assert Enum.all?(same.layers, &(&1.removed == 0 and &1.importance == 1.0))

    {:ok, small} = Compress.Policy.shrink(policy, hidden_size: 24, num_heads: 1)
    assert {:sliding_window, sizes} = small.policy.spec.backbone
    assert {sizes[:hidden_size], sizes[:num_heads]} == {24, 1}
    heads = Enum.filter(small.layers, &String.ends_with?(&1.name, "heads"))
    assert heads != [] and Enum.all?(heads, &(&1.units == 2 and &1.removed == 1))
  end

  test "codes are read as numbers" do
    policy = policy!()
    {:ok, coded} = Compress.Policy.quantise(policy)
    {:ok, small} = Compress.Policy.shrink(coded.policy, hidden_size: 32)
    {:ok, mean} = Compress.Policy.average([coded.policy])
    assert {small.policy.bits, mean.bits} == {32, 32}
    {:ok, weight} = Policy.weight(coded.policy, "backbone.weight_hh_l0")
    assert {:ok, ^weight} = Policy.weight(mean, "backbone.weight_hh_l0")
  end

  test "wrong sizes are named" do
    policy = policy!()
    shrink = &Compress.Policy.shrink(policy, &1)

    for opts <- [
          [],
          [keep: 0],
          [keep: 1.5],
          [hidden_size: 0],
          [hidden_sizes: 8],
          [keep: 0.5, hidden_size: 8],
          [hidden_size: 8, damping: 0.1],
          [hidden_size: 8, calibration: 7],
          [size: 8]
        ] do
      assert_raise ArgumentError, fn -> shrink.(opts) end
    end

    assert_raise ArgumentError, ~r/policy/, fn -> Compress.Policy.shrink(:policy, keep: 0.5) end
    assert {:error, %Error{kind: :out_of_range, op: :shrink}} = shrink.(keep: 0.001)
    assert {:error, %Error{kind: :out_of_range}} = shrink.(hidden_size: 49)
    assert {:error, %Error{kind: :out_of_range}} = shrink.(num_heads: 1)
    assert {:error, %Error{kind: :mismatch}} = shrink.(hidden_sizes: [8])

    assert {:error, %Error{kind: :unavailable} = error} =
             Compress.Policy.shrink(policy!(backbone: :mamba), keep: 0.5)

    assert Exception.message(error) =~ "shrink of a mamba"

    dir = Scratch.tmp_dir!()
    nowhere = Path.join(dir, "nowhere")
    assert {:error, %Error{kind: :not_found}} = shrink.(keep: 0.5, calibration: nowhere)

    assert {:error, %Error{kind: :mismatch}} = shrink.(keep: 0.5, calibration: corpus!(dir))
  end

  test "a mean has the numbers of its parts, and wrong ones are named" do
    [a, b] = for seed <- [1, 2], do: policy!(seed: seed)
    floats = fn policy -> elem(Policy.weight(policy, "heads.fire_logits.bias"), 1) end
    numbers = fn policy -> for <<x::float-32-little <- floats.(policy)>>, do: x end
    {:ok, mean} = Compress.Policy.average([a, b], weights: [1, 3])

    for {m, x, y} <- Enum.zip([numbers.(mean), numbers.(a), numbers.(b)]),
        do: assert_in_delta(m, 0.25 * x + 0.75 * y, 1.0e-6)

    average = &Compress.Policy.average/2
    assert {:error, %Error{kind: :mismatch, op: :average}} = average.([a, b], weights: [1.0])
    assert {:error, %Error{kind: :out_of_range}} = average.([a, b], weights: [1.0, -1.0])
    assert {:error, %Error{kind: :out_of_range}} = average.([a, b], weights: [0.0, 0.0])
    other = policy!(hidden_size: 32)
    assert {:error, %Error{kind: :mismatch} = error} = average.([a, other], [])
    assert Exception.message(error) =~ "policy 2"

    for {policies, opts} <- [{[], []}, {a, []}, {[a, :b], []}, {[a], [weights: :all]}],
        do: assert_raise(ArgumentError, fn -> average.(policies, opts) end)
  end
end
