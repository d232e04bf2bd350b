defmodule HostNx.TensorsTest do
  use ExUnit.Case, async: true

  alias Sconce.{Embedding, Env, Policy, Serving, Session}

  @heads [fire: {:bernoulli, 2}, move: {:categorical, 3}]

  defp policy!(opts \\ [hidden_size: 8]) do
    {:ok, policy} = Policy.init([embedding: {:vector, 4}, heads: @heads] ++ opts, seed: 3)
    policy
  end

  defp frames(shape, opts \\ []), do: Nx.divide(Nx.iota(shape, opts), 50)

  describe "forward" do
    test "takes tensors of each rank and gives the numbers of binaries" do
      policy = policy!()
      windows = frames({3, 5, 4})
      {:ok, plain} = Policy.forward(policy, Nx.to_binary(windows), batch: 3)
      {:ok, out} = Policy.forward(policy, windows)
      assert {Nx.shape(out.logits), Nx.type(out.logits)} == {{3, 5, 5}, {:f, 32}}
      assert out.shape == {3, 5, 5}
      assert Nx.to_binary(out.logits) == plain.logits
      assert Nx.shape(out.state) == {3, policy.state_size}
      assert Nx.to_binary(out.state) == plain.state

      {:ok, one} = Policy.forward(policy, windows[1])
      assert Nx.shape(one.logits) == {5, 5}
      {:ok, alone} = Policy.forward(policy, Nx.to_binary(windows[1]))
      assert Nx.to_binary(one.logits) == alone.logits

      {:ok, single} = Policy.forward(policy, windows[1][0])
      assert Nx.shape(single.logits) == {5}
      assert_close(single.logits, one.logits[0])

      for {given, shape} <- [{windows, {3, 5}}, {windows[1], {5}}, {windows[1][0], {5}}] do
        {:ok, last} = Policy.forward(policy, given, return_sequences: false)
        assert Nx.shape(last.logits) == shape
      end
    end

    test "keeps names, and gives tensors or binaries as asked" do
      policy = policy!()
      windows = frames({2, 3, 4}, names: [:games, :frames, :features])
      {:ok, out} = Policy.forward(policy, windows, taps: [:trunk])
      assert Nx.names(out.logits) == [:games, :frames, nil]
      assert Nx.shape(out.taps.trunk) == {2, 3, policy.trunk_width}
      {:ok, out} = Policy.forward(policy, windows[[games: 0]], return_sequences: false)
      assert Nx.names(out.logits) == [nil]

      {:ok, plain} = Policy.forward(policy, windows, as: :binaries)
      assert is_binary(plain.logits) and is_binary(plain.state)
      {:ok, out} = Policy.forward(policy, [[[0.0, 1.0, 2.0, 3.0]]], as: :nx)
      assert Nx.shape(out.logits) == {1, 1, 5}
    end

    test "converts types, and a policy without memory has no state" do
      mlp = policy!(backbone: :mlp)
      numbers = Nx.tensor([[1, -2, 3, 0]])
      {:ok, %{logits: expected, state: nil}} = Policy.forward(mlp, Nx.as_type(numbers, :f32))

      for type <- [:s8, :s64, :f64, :bf16, :f16] do
        {:ok, out} = Policy.forward(mlp, Nx.as_type(numbers, type))
        assert Nx.to_binary(out.logits) == Nx.to_binary(expected)
      end
    end

    test "carries the state of a tensor through steps" do
      policy = policy!()
      windows = frames({2, 6, 4})
      {:ok, all} = Policy.forward(policy, windows)
      {:ok, start} = Policy.forward(policy, windows[[.., 0..3]])
      {:ok, next} = Policy.step(policy, windows[[.., 4]], state: start.state)
      assert Nx.shape(next.logits) == {2, 5}
      {:ok, last} = Policy.step(policy, windows[[.., 5]], state: next.state)
      assert_close(last.logits, all.logits[[.., 5]])
      {:ok, one} = Policy.step(policy, windows[0][0])
      assert Nx.shape(one.logits) == {5}
    end

    test "takes labels and queues of autoregressive heads" do
      policy = policy!(heads_kind: :autoregressive, hidden_size: 8)
      windows = frames({2, 3, 4})
      labels = Nx.broadcast(Nx.tensor([1, 0, 2]), {2, 3, 3})
      flat = Nx.to_flat_list(labels)
      {:ok, plain} = Policy.forward(policy, Nx.to_binary(windows), batch: 2, labels: flat)

      for type <- [:u16, :s64, :u8] do
        {:ok, out} = Policy.forward(policy, windows, labels: Nx.as_type(labels, type))
        assert Nx.to_binary(out.logits) == plain.logits
      end

      refused(Policy.forward(policy, windows, labels: labels[0]), "labels", "{2, 3, 3}")

      refused(
        Policy.forward(policy, windows, labels: Nx.as_type(labels, :f32)),
        "labels",
        "u, 16"
      )

      {:error, error} = Policy.forward(policy, windows, labels: Nx.multiply(labels, -1))
      assert error.details.what == "labels"
    end

    test "refuses shapes and types by name" do
      policy = policy!()
      refused(Policy.forward(policy, frames({2, 3, 5})), "frames", "rows of 4 numbers")
      refused(Policy.forward(policy, frames({1, 1, 1, 4})), "frames", "[b, t, n]")
      refused(Policy.forward(policy, Nx.tensor(1.0)), "frames", "[b, t, n]")
      refused(Policy.step(policy, frames({1, 1, 4})), "frames", "[b, n]")
      refused(Policy.forward(policy, Nx.complex(frames({4}), 0)), "frames", "real numbers")
      vectors = Nx.vectorize(frames({2, 4}), :games)
      refused(Policy.forward(policy, vectors), "frames", "vectorized")
      {:error, error} = Policy.forward(policy, Nx.tensor([1.0, :nan, 0.0, 0.0]))
      assert error.kind == :non_finite
    end

    test "reads and makes tensors without a copy of their bytes" do
      whole = :binary.copy(<<0.5::float-32-little>>, 4 * 20_000)
      part = binary_part(whole, 0, 160_000)
      {:ok, tensor} = part |> Nx.from_binary(:f32) |> Nx.reshape({10_000, 4}) |> read()
      # A copy would refer to its own bytes alone.
      assert :binary.referenced_byte_size(tensor.data) == byte_size(whole)
      made = Sconce.Tensor.from_binary(part, {:f, 32}, {10_000, 4})
      assert :binary.referenced_byte_size(Nx.to_binary(made)) == byte_size(whole)
    end

    defp read(tensor), do: Sconce.Tensor.read(tensor, "frames", :forward, [:floats])
  end

  describe "a serving" do
    test "takes tensors and gives them back" do
      policy = policy!()
      {:ok, serving} = Serving.start_link(policy: policy)
      windows = frames({2, 3, 4})
      {:ok, expected} = Policy.forward(policy, windows)
      {:ok, out} = Serving.forward(serving, windows)
      assert_close(out.logits, expected.logits)
      {:ok, next} = Serving.forward(serving, windows, out.state, return_sequences: false)
      assert Nx.shape(next.logits) == {2, 5}
      refused(Serving.forward(serving, frames({2, 3, 5})), "frames", "rows of 4 numbers")
    end
  end

  describe "sessions" do
    test "decide for tensors as for lists, and give tensors" do
      policy = policy!()
      open = fn -> for seed <- 1..3, do: elem(Session.open(policy, seed: seed), 1) end
      rows = frames({3, 4})
      listed = open.() |> Enum.zip(Nx.to_list(rows)) |> Session.act_many(logits: true)
      assert Session.act_many({open.(), rows}, logits: true) == listed

      pairs = Enum.zip(open.(), Nx.to_batched(rows, 1))
      assert Session.act_many(pairs, logits: true) == listed

      answers = Session.act_many({open.(), rows}, logits: true, as: :nx)

      for {{:ok, plain}, {:ok, action}} <- Enum.zip(listed, answers) do
        assert Nx.to_number(action.choices.move) == plain.choices.move
        assert Nx.to_list(action.choices.fire) == plain.choices.fire
        assert Nx.type(action.choices.fire) == {:u, 16}
        assert Nx.to_list(action.logits.move) == plain.logits.move
      end

      [session | _] = open.()
      {:ok, action} = Session.act(session, rows[0], as: :nx)
      assert action.logits == nil and Nx.shape(action.choices.move) == {}
      refused(Session.act(session, frames({2, 2})), "frame", "one frame")

      for answer <- Session.act_many({open.(), frames({2, 4})}),
          do: refused(answer, "frames", "{3, raw_width}")
    end
  end

  describe "embed" do
    test "takes tensors of any rank" do
      rows = frames({2, 3, 4}, names: [:b, :t, nil])
      {:ok, {features, nil}} = Embedding.embed({:vector, 4}, rows)
      assert Nx.to_binary(features) == Nx.to_binary(rows)
      assert {Nx.shape(features), Nx.names(features)} == {{2, 3, 4}, [:b, :t, nil]}
      {:ok, {features, nil}} = Embedding.embed({:vector, 4}, rows[0][0])
      assert Nx.shape(features) == {4}
      {:ok, {features, nil}} = Embedding.embed({:vector, 2}, [1, 2], as: :nx)
      assert Nx.to_list(features) == [1.0, 2.0]
      {:ok, {<<_::binary-size(96)>>, ""}} = Embedding.embed({:vector, 4}, rows, as: :binaries)
      refused(Embedding.embed({:vector, 3}, rows), "a row of the frames", "12 bytes")
    end

    test "gives the ids of trained tables" do
      player = %Sconce.Frame.Player{
        percent: 10.0,
        facing: 1,
        x: 1.0,
        y: 0.0,
        action: 14,
        character: 1,
        on_ground: true,
        stock: 4
      }

      frame = %Sconce.Frame{own: player, opponent: %{player | x: -3.0}, stage: 31}
      {:ok, row} = Sconce.Frame.pack(frame)
      {:ok, {plain, ids}} = Embedding.embed(:melee, frame)
      rows = Nx.stack(List.duplicate(Nx.from_binary(row, :f32), 3))
      {:ok, {features, tables}} = Embedding.embed(:melee, rows)
      assert Nx.to_binary(features[2]) == plain
      assert {Nx.type(tables), Nx.to_list(tables[1])} == {{:u, 32}, ids}
      {:ok, {_features, tables}} = Embedding.embed(:melee, frame, as: :nx)
      assert Nx.to_list(tables) == ids
      wrong = Nx.multiply(rows, 1.0e6)
      assert {:error, %{kind: :out_of_range}} = Embedding.embed(:melee, wrong)
    end
  end

  test "weights go out and come back, of any float type" do
    policy = policy!()
    {:ok, weights} = Policy.weights(policy, as: :nx)
    {:ok, shapes} = Policy.weights(policy)
    assert Map.new(weights, fn {name, tensor} -> {name, Nx.shape(tensor)} end) == Map.new(shapes)

    {:ok, other} = Policy.init(policy.spec, seed: 9)
    {:ok, same} = Policy.put_weights(other, weights)
    {:ok, back} = Policy.weights(same, as: :nx)
    for {name, tensor} <- weights, do: assert(Nx.to_binary(back[name]) == Nx.to_binary(tensor))

    name = "heads.move_logits.bias"

    for type <- [:f64, :bf16, :f16, :f32, :s32] do
      {:ok, put} = Policy.put_weights(policy, %{name => Nx.tensor([1, 2, -3], type: type)})
      {:ok, data} = Policy.weight(put, name)
      assert data == Nx.to_binary(Nx.tensor([1.0, 2.0, -3.0]))
    end

    refused(Policy.put_weights(policy, %{name => Nx.iota({3, 1})}), name, "{3}")
    refused(Policy.put_weights(policy, %{name => Nx.complex(Nx.iota({3}), 1)}), name, "real")

    for odd <- [Nx.tensor([1.0, :nan, 0.0]), Nx.tensor([1.0e300, 0.0, 0.0], type: :f64)] do
      assert {:error, %{kind: :non_finite, details: %{what: ^name}}} =
               Policy.put_weights(policy, %{name => odd})
    end
  end

  test "environments step with tensors" do
    {:ok, env} = Env.new(:cart_pole, count: 2)
    {:ok, step} = Env.step(env, Nx.tensor([[0], [1]]))
    assert Nx.shape(step.observation) == {2, 4}
  end

  defp refused({:error, error}, what, expected) do
    assert error.kind == :mismatch
    assert error.details.what == what
    assert error.details.expected =~ expected
  end

  defp assert_close(a, b),
    do: assert(Nx.to_number(Nx.all_close(a, b, atol: 1.0e-5, rtol: 0)) == 1)
end
