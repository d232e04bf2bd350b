defmodule Sconce.Compress.PolicyTest do
  use ExUnit.Case, async: true

  alias Sconce.{Compress, Env, Error, Policy, Serving, Session, Trainer}
  alias Sconce.Test.Scratch

  doctest Compress.Policy

  @spec_options [
    embedding: {:vector, 64},
    backbone: :gru,
    hidden_size: 48,
    heads: [fire: {:bernoulli, 2}, move: {:categorical, 5}]
  ]

  defp policy! do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    policy
  end

  defp frame(t), do: for(i <- 1..64, do: :math.sin(i * t / 7))

  # The logits of some decisions.
  defp logits(session) do
    for t <- 1..20, {:ok, action} = Session.act(session, frame(t), logits: true) do
      for {_head, logits} <- Enum.sort(action.logits), number <- List.flatten(logits), do: number
    end
    |> List.flatten()
  end

  test "searched scales lose less, and sessions and checkpoints have their codes" do
    policy = policy!()
    {:ok, %{cpu: cpu}} = Sconce.native_info()
    {:ok, nearest} = Compress.Policy.quantise(policy, bits: 4)
    {:ok, small} = Compress.Policy.quantise(policy, bits: 4, scale: :search)

    for {own, other} <- Enum.zip(small.matrices, nearest.matrices),
        do: assert(own.error < other.error)

    assert small.bytes == nearest.bytes
    {:ok, session} = Session.open(small.policy, seed: 1)
    assert session.weights == if(cpu.avx2, do: :int4, else: :f32)
    {:ok, exact} = Session.open(small.policy, seed: 1, weights: :f32)
    decided = logits(session)
    for {x, y} <- Enum.zip(decided, logits(exact)), do: assert_in_delta(x, y, 0.02)

    path = Path.join(Scratch.tmp_dir!(), "searched.safetensors")
    :ok = Policy.save(small.policy, path)
    {:ok, loaded} = Policy.load(path)
    {:ok, again} = Session.open(loaded, seed: 1)
    assert logits(again) == decided
  end

  test "sessions and servings read the codes, and a checkpoint keeps them" do
    policy = policy!()
    path = Path.join(Scratch.tmp_dir!(), "small.safetensors")
    {:ok, %{cpu: cpu}} = Sconce.native_info()

    for {bits, group, most} <- [{8, nil, 0.3}, {4, nil, 0.2}, {4, 128, 0.19}] do
      {:ok, small} = Compress.Policy.quantise(policy, bits: bits, group: group)
      assert small.bytes < most * small.before and small.before == 4 * policy.num_weights
      assert small.policy.bits == bits and policy.bits == 32
      assert inspect(small.policy) =~ " weights · int#{bits} · cpu>"

      :ok = Policy.save(small.policy, path)
      assert File.stat!(path).size < most * small.before + 4096
      {:ok, loaded} = Policy.load(path)
      assert loaded.bits == bits

      {:ok, session} = Session.open(small.policy, seed: 1)
      {:ok, info} = Session.info(session)
      fast = if bits == 8, do: cpu.avx512_vnni, else: cpu.avx2
      assert info.weights == if(fast, do: :"int#{bits}", else: :f32)
      assert Enum.all?(info.matrices, &(&1.error == 0))
      {:ok, exact} = Session.open(small.policy, seed: 1, weights: :f32)
      {:ok, again} = Session.open(loaded, seed: 1)
      {:ok, serving} = Serving.start_link(policy: loaded)
      {:ok, served} = Serving.open(serving, seed: 1)
      decided = logits(session)
      assert decided == logits(again) and decided == logits(served)
      for {x, y} <- Enum.zip(decided, logits(exact)), do: assert_in_delta(x, y, 0.02)
    end
  end

  test "products are stored as two factors, and sessions read them in every format" do
    policy = policy!()
    path = Path.join(Scratch.tmp_dir!(), "product.safetensors")
    {:ok, small} = Compress.Policy.low_rank(policy, rank: 8)
    assert Enum.any?(small.matrices, &(&1.rank == 8))
    assert small.bytes < 0.5 * small.before and small.before == 4 * policy.num_weights
    :ok = Policy.save(small.policy, path)
    assert File.stat!(path).size < small.bytes + 4096
    {:ok, loaded} = Policy.load(path)
    # A mean has the numbers and no factors.
    {:ok, whole} = Compress.Policy.average([small.policy])
    {:ok, exact} = Session.open(whole, seed: 1)
    exact = logits(exact)

    for own <- [small.policy, loaded],
        {format, delta} <- [stored: 1.0e-5, f32: 1.0e-5, bf16: 0.02, int8: 0.02] do
      {:ok, session} = Session.open(own, seed: 1, weights: format)
      {:ok, %{matrices: matrices}} = Session.info(session)
      assert Enum.any?(matrices, &(&1.rank == 8))
      for {x, y} <- Enum.zip(exact, logits(session)), do: assert_in_delta(x, y, delta)
    end

    {:ok, serving} = Serving.start_link(policy: loaded)
    {:ok, served} = Serving.open(serving, seed: 1)
    {:ok, session} = Session.open(loaded, seed: 1)
    assert logits(served) == logits(session)

    :ok = Policy.save(loaded, path, packed: :int8, weights: false)
    assert File.stat!(path).size < 0.25 * small.before + 8192
    {:ok, mapped} = Policy.load(path)
    {:ok, session} = Session.open(mapped, seed: 1)
    for {x, y} <- Enum.zip(exact, logits(session)), do: assert_in_delta(x, y, 0.02)
  end

  test "a calibration finds products that change the outputs less" do
    dir = Scratch.tmp_dir!()
    {:ok, games} = Env.CartPole.demonstrations(games: 3, steps: 80, seed: 1)
    {:ok, corpus} = Env.CartPole.corpus(games, into: Path.join(dir, "corpus"))

    spec = [
      embedding: {:vector, 2},
      backbone: :mlp,
      hidden_sizes: [64, 64],
      heads: [action: {:categorical, 2}]
    ]

    {:ok, policy} = Policy.init(spec, seed: 1)
    {:ok, small} = Compress.Policy.low_rank(policy, energy: 0.99, calibration: corpus)
    {:ok, plain} = Compress.Policy.low_rank(policy, energy: 0.99)
    assert small.bytes < plain.bytes

    for %{rank: rank} = own when rank != nil <- small.matrices do
      assert own.output_error <= own.svd_output_error and own.output_error < 0.11
      assert rank < 16 and own.svd_output_error < 1.0
    end

    assert {:error, %Error{kind: :not_found}} =
             Compress.Policy.low_rank(policy, rank: 4, calibration: Path.join(dir, "none"))

    for {wrong, said} <- [
          {[], ~r/one of :rank, :energy and :error/},
          {[rank: 4, energy: 0.9], ~r/one of :rank, :energy and :error/},
          {[rank: 0], ~r/option :rank/},
          {[energy: 1.1], ~r/option :energy/},
          {[rank: 4, calibration_frames: 9], ~r/needs :calibration/}
        ] do
      assert_raise ArgumentError, said, fn -> Compress.Policy.low_rank(policy, wrong) end
    end
  end

  test "packed codes are mapped" do
    {:ok, small} = Compress.Policy.quantise(policy!(), bits: 4)
    {:ok, session} = Session.open(small.policy, seed: 1)
    {:ok, exact} = Session.open(small.policy, seed: 1, weights: :f32)
    path = Path.join(Scratch.tmp_dir!(), "packed.safetensors")
    :ok = Policy.save(small.policy, path, packed: :stored)
    {:ok, loaded} = Policy.load(path)
    assert {loaded.packed, loaded.bits} == {session.weights, 4}
    {:ok, mapped} = Session.open(loaded, seed: 1)
    # The first windows are computed by steps, which round inputs.
    for {x, y} <- Enum.zip(logits(session), logits(mapped)), do: assert_in_delta(x, y, 0.02)
    {:ok, again} = Session.open(loaded, seed: 1, weights: :f32)
    assert logits(again) == logits(exact)
  end

  test "packed weights in 2:4 are mapped" do
    {:ok, sparse} = Compress.Policy.prune(policy!(), pattern: :two_four)
    {:ok, session} = Session.open(sparse.policy, seed: 1)
    decided = logits(session)
    path = Path.join(Scratch.tmp_dir!(), "packed.safetensors")

    for weights? <- [true, false] do
      :ok = Policy.save(sparse.policy, path, packed: :stored, weights: weights?)
      {:ok, loaded} = Policy.load(path)
      {:ok, mapped} = Session.open(loaded, seed: 1)
      assert loaded.packed == session.weights and mapped.weights == session.weights
      for {x, y} <- Enum.zip(decided, logits(mapped)), do: assert_in_delta(x, y, 1.0e-5)
    end
  end

  test "matrices get other bits by their names" do
    {:ok, first} = Compress.Policy.quantise(policy!(), bits: 4, only: ["backbone."])
    {:ok, both} = Compress.Policy.quantise(first.policy, except: ["backbone."])
    bits = fn small -> Map.new(small.matrices, &{hd(String.split(&1.name, ".")), &1.bits}) end
    assert bits.(first) == %{"backbone" => 4, "heads" => 32}
    assert bits.(both) == %{"backbone" => 4, "heads" => 8}
    assert both.bytes < first.bytes
  end

  test "sessions of any policy round to 4 bits" do
    policy = policy!()
    {:ok, %{cpu: cpu}} = Sconce.native_info()
    {:ok, small} = Session.open(policy, weights: :int4, seed: 1)
    {:ok, info} = Session.info(small)
    assert info.weights in if(cpu.avx2, do: [:int4], else: [:f32, :bf16])
    if cpu.avx2, do: assert(Enum.all?(info.matrices, &(&1.error < 0.2)))
    {:ok, exact} = Session.open(policy, seed: 1)
    for {x, y} <- Enum.zip(logits(small), logits(exact)), do: assert_in_delta(x, y, 0.3)

    # Beyond the bound a matrix has more bits.
    {:ok, bounded} = Session.open(policy, weights: {:int4, 0.0}, seed: 1)
    {:ok, info} = Session.info(bounded)
    refute Enum.any?(info.matrices, &(&1.weights in [:int4, :int8]))
    assert {:error, %Error{kind: :out_of_range}} = Session.open(policy, weights: {:int4, 2})
  end

  test "a calibration on a corpus lowers the errors of outputs" do
    dir = Scratch.tmp_dir!()
    {:ok, games} = Env.CartPole.demonstrations(games: 4, steps: 80)
    {:ok, corpus} = Env.CartPole.corpus(games, into: Path.join(dir, "corpus"))

    opts = [backbone: :mlp, hidden_sizes: [64, 64], steps: 20, batch_size: 8, window_size: 8]
    out = Path.join(dir, "run")
    {:ok, run} = Trainer.start_link([corpus: corpus, out: out] ++ opts)
    {:ok, _report} = Trainer.await(run)
    {:ok, policy} = Policy.load(Path.join(out, "best.safetensors"))

    quantise = &Compress.Policy.quantise(policy, [bits: 4] ++ &1)
    {:ok, small} = quantise.(calibration: corpus, calibration_frames: 200)

    for %{inputs: 64} = matrix <- small.matrices do
      assert matrix.output_error <= matrix.nearest_output_error
      assert matrix.nearest_output_error < 0.3
    end

    for keep <- [[pattern: :two_four], [sparsity: 0.6]] do
      opts = keep ++ [calibration: corpus, calibration_frames: 200]
      {:ok, sparse} = Compress.Policy.prune(policy, opts)

      for %{inputs: 64} = matrix <- sparse.matrices do
        assert matrix.output_error < matrix.magnitude_output_error
        assert matrix.sparsity >= 0.5
      end
    end

    path = Path.join(dir, "small.safetensors")
    :ok = Policy.save(small.policy, path)
    {:ok, report} = Trainer.evaluate(path, corpus)
    assert report.policy.nll > 0

    assert {:error, %Error{kind: :not_found}} = quantise.(calibration: Path.join(dir, "nowhere"))
    {:ok, other} = Policy.init(@spec_options, seed: 1)

    assert {:error, %Error{kind: :mismatch}} =
             Compress.Policy.quantise(other, calibration: corpus)
  end

  test "a pruned policy is read, saved and scored with the logits of f32" do
    policy = policy!()
    path = Path.join(Scratch.tmp_dir!(), "sparse.safetensors")
    {:ok, sparse} = Compress.Policy.prune(policy, pattern: :two_four)
    assert sparse.before == 4 * policy.num_weights and sparse.bytes < 0.62 * sparse.before
    assert Enum.all?(sparse.matrices, &(&1.sparsity == 0.5 and &1.error > 0.1))
    assert Enum.all?(sparse.matrices, &(&1.output_error == nil))
    assert sparse.policy.bits == 32

    :ok = Policy.save(sparse.policy, path)
    assert File.stat!(path).size < sparse.bytes + 4096
    {:ok, loaded} = Policy.load(path)

    {:ok, session} = Session.open(loaded, seed: 1)
    {:ok, info} = Session.info(session)
    {:ok, exact} = Session.open(sparse.policy, seed: 1, weights: :f32)
    {:ok, serving} = Serving.start_link(policy: sparse.policy)
    {:ok, served} = Serving.open(serving, seed: 1)
    decided = logits(session)
    assert decided == logits(exact) and decided == logits(served)

    for matrix <- info.matrices do
      assert matrix.error == 0
      assert {matrix.weights, matrix.bits} in [{:two_four, 17}, {:f32, 32}]
    end

    assert info.weights in [:two_four, :f32]
    {:ok, dense} = Session.info(exact)
    assert dense.weights == :f32 and Enum.all?(dense.matrices, &(&1.weights == :f32))
    assert {:ok, %{weights: :f32}} = Session.info(elem(Session.open(policy, seed: 1), 1))

    {:ok, some} = Compress.Policy.prune(policy, sparsity: 0.75, except: ["heads."])

    for matrix <- some.matrices do
      expected = if String.starts_with?(matrix.name, "heads."), do: 0.0, else: 0.75
      assert_in_delta matrix.sparsity, expected, 1.0e-9
    end

    assert some.bytes == some.before
    assert {:ok, %{policy: %Policy{bits: 4}}} = Compress.Policy.quantise(sparse.policy, bits: 4)
  end

  test "wrong options of a pruning are named" do
    policy = policy!()

    for opts <- [
          [],
          [pattern: :two_four, sparsity: 0.5],
          [pattern: :one_four],
          [sparsity: 1.5],
          [sparsity: 0.5, bits: 4],
          [pattern: :two_four, calibration: 7],
          [pattern: :two_four, damping: 0.1]
        ] do
      assert_raise ArgumentError, fn -> Compress.Policy.prune(policy, opts) end
    end

    assert_raise ArgumentError, ~r/policy/, fn ->
      Compress.Policy.prune(:policy, sparsity: 0.5)
    end

    prune = &Compress.Policy.prune(policy, [pattern: :two_four] ++ &1)
    assert {:error, %Error{kind: :not_found}} = prune.(except: ["trunk"])
    assert {:error, %Error{kind: :not_found}} = prune.(calibration: "nowhere")
  end

  test "wrong options and arguments are named" do
    policy = policy!()

    for opts <- [
          [bits: 5],
          [group: 0],
          [only: "heads"],
          [calibration: 7],
          [damping: 2],
          [bit: 4],
          [damping: 0.1]
        ] do
      assert_raise ArgumentError, fn -> Compress.Policy.quantise(policy, opts) end
    end

    assert_raise ArgumentError, ~r/policy/, fn -> Compress.Policy.quantise(:policy) end

    assert {:error, %Error{kind: :not_found}} = Compress.Policy.quantise(policy, only: ["trunk"])
  end
end
