defmodule Sconce.Policy.TensorsTest do
  # Not async: the tests define Nx. Those with Nx itself are in test/host_nx.
  use ExUnit.Case, async: false

  import Sconce.Test.SomeNx

  alias Sconce.{Embedding, Error, Policy, Serving, Session}

  @f32 {:f, 32}

  setup do
    spec = [embedding: {:vector, 2}, heads: [move: {:categorical, 3}], hidden_size: 8]
    {:ok, policy} = Policy.init(spec, seed: 1)
    rows = for n <- 1..12, into: <<>>, do: <<n / 12::float-32-little>>
    {:ok, policy: policy, rows: rows}
  end

  test "frames of each rank give logits of their leading dimensions", context do
    %{policy: policy, rows: rows} = context

    with_nx(fn ->
      for {shape, {batch, time}, logits, last} <- [
            {{2, 3, 2}, {2, 3}, {2, 3, 3}, {2, 3}},
            {{6, 2}, {1, 6}, {6, 3}, {3}}
          ] do
        frames = tensor(rows, @f32, shape)
        {:ok, plain} = Policy.forward(policy, rows, batch: batch)
        {:ok, out} = Policy.forward(policy, frames)
        assert {out.logits, out.shape} == {tensor(plain.logits, @f32, logits), logits}
        assert out.state == tensor(plain.state, @f32, {batch, policy.state_size})
        assert byte_size(plain.logits) == 4 * 3 * batch * time

        {:ok, out} = Policy.forward(policy, frames, return_sequences: false)
        assert out.logits.shape == last
        assert Policy.forward(policy, frames, as: :binaries) == {:ok, plain}
      end

      {:ok, one} = Policy.forward(policy, tensor(binary_part(rows, 0, 8), @f32, {2}))
      assert one.logits.shape == {3}

      {:ok, next} =
        Policy.step(policy, tensor(binary_part(rows, 8, 8), @f32, {2}), state: one.state)

      assert next.logits.shape == {3}
      {:ok, all} = Policy.forward(policy, binary_part(rows, 0, 16))
      assert_close(next.logits.data, binary_part(all.logits, 12, 12))
    end)
  end

  test "names of dimensions stay", %{policy: policy, rows: rows} do
    with_nx(fn ->
      frames = %{tensor(rows, @f32, {2, 3, 2}) | names: [:games, nil, :numbers]}
      {:ok, out} = Policy.forward(policy, frames, taps: [:trunk])
      assert out.logits.names == [:games, nil, nil]
      assert out.taps.trunk.shape == {2, 3, policy.trunk_width}
      {:ok, out} = Policy.forward(policy, frames, return_sequences: false)
      assert out.logits.names == [:games, nil]
    end)
  end

  test "a serving takes tensors of frames and of the state", %{policy: policy, rows: rows} do
    {:ok, serving} = Serving.start_link(policy: policy)

    with_nx(fn ->
      frames = tensor(rows, @f32, {2, 3, 2})
      {:ok, out} = Serving.forward(serving, frames)
      assert {out.logits.shape, out.state.shape} == {{2, 3, 3}, {2, policy.state_size}}
      {:ok, next} = Serving.forward(serving, frames, out.state)
      {:ok, plain} = Serving.forward(serving, rows, out.state.data, batch: 2)
      assert next.logits.data == plain.logits
    end)
  end

  test "sessions split a tensor among them", %{policy: policy, rows: rows} do
    open = fn -> for seed <- 1..6, do: elem(Session.open(policy, seed: seed), 1) end

    with_nx(fn ->
      frames = for <<row::binary-size(8) <- rows>>, do: row
      listed = open.() |> Enum.zip(frames) |> Session.act_many()
      assert Session.act_many({open.(), tensor(rows, @f32, {6, 2})}) == listed

      assert [{:error, %Error{kind: :mismatch}} | _] =
               wrong = Session.act_many({open.(), tensor(rows, @f32, {2, 6})})

      assert length(wrong) == 6
    end)
  end

  test "rows are embedded together", %{rows: rows} do
    with_nx(fn ->
      frames = tensor(rows, @f32, {2, 3, 2})
      assert {:ok, {features, nil}} = Embedding.embed({:vector, 2}, frames)
      assert features == frames
      assert Embedding.embed({:vector, 2}, frames, as: :binaries) == {:ok, {rows, ""}}
    end)
  end

  test "weights are tensors, and come back", %{policy: policy} do
    {:ok, other} = Policy.init(policy.spec, seed: 2)

    with_nx(fn ->
      {:ok, weights} = Policy.weights(policy, as: :nx)
      {:ok, same} = Policy.put_weights(other, weights)
      assert Policy.weights(same, as: :nx) == {:ok, weights}
    end)
  end

  test "wrong shapes and types are refused by name", %{policy: policy, rows: rows} do
    with_nx(fn ->
      for {frames, expected} <- [
            {tensor(rows, @f32, {2, 2, 3}), "rows of 2 numbers"},
            {tensor(rows, @f32, {1, 1, 6, 2}), "a tensor [b, t, n], [t, n] or [n]"},
            {tensor(rows, @f32, {}), "a tensor [b, t, n], [t, n] or [n]"},
            {tensor(rows, {:c, 64}, {3, 2}), "real numbers"},
            {tensor(rows, @f32, {6, 2}) |> Map.put(:vectorized_axes, games: 6),
             "a tensor without vectorized axes"}
          ] do
        assert {:error, %Error{kind: :mismatch, op: :forward, details: details}} =
                 Policy.forward(policy, frames)

        assert {details.what, details.expected} == {"frames", expected}
      end

      frames = tensor(rows, @f32, {2, 3, 2})
      labels = tensor(<<0::48>>, {:u, 8}, {3, 2})

      assert {:error, %Error{kind: :mismatch, details: %{what: "labels", expected: shape}}} =
               Policy.forward(policy, frames, labels: labels)

      assert shape == "the shape {2, 3, 1}"
    end)
  end

  defp assert_close(a, b) do
    for {x, y} <- Enum.zip(floats(a), floats(b)), do: assert_in_delta(x, y, 1.0e-5)
    assert byte_size(a) == byte_size(b)
  end

  defp floats(binary), do: for(<<v::float-32-little <- binary>>, do: v)
end
