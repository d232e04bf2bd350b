defmodule Sconce.Compress.NumbersTest do
  # Not async: the test defines Nx.
  use ExUnit.Case, async: false

  import Sconce.Test.SomeNx

  alias Sconce.Compress

  test "tensors give tensors, with the bytes of maps" do
    with_nx(fn ->
      data = for v <- [0.5, -1.0, 0.25, 2.0], into: <<>>, do: <<v::float-32-little>>
      plain = %{data: data, shape: {1, 4}, type: {:f, 32}}
      opts = [bits: 4, zero_point: true]
      {:ok, mapped} = Compress.quantise(plain, opts)
      {:ok, found} = Compress.quantise(tensor(data, {:f, 32}, {1, 4}), opts)
      assert found.codes == tensor(mapped.codes.data, {:u, 8}, {1, 4})
      assert found.scales == tensor(mapped.scales.data, {:f, 32}, {1})
      assert found.zeros == tensor(mapped.zeros.data, {:u, 8}, {1})
      {:ok, back} = Compress.dequantise(found)
      {:ok, same} = Compress.dequantise(mapped)
      assert back == tensor(same.data, {:f, 32}, {1, 4})
      {:ok, whole} = Compress.quantise(tensor(data, {:f, 32}, {1, 4}), per: :tensor)
      assert whole.scales.shape == {}
    end)
  end

  test "tensors of fractions are no labels, which Nx would truncate" do
    with_nx(fn ->
      half = tensor(<<0.5::float-32-little>>, {:f, 32}, {1, 1})

      assert {:error, error} =
               Compress.distillation_loss([[0.3]], [[0.1]], kind: :bernoulli, target: half)

      assert Exception.message(error) ==
               "distillation_loss: target: expected the type {:u, 8}, got {:f, 32}"
    end)
  end

  test "without Nx a tensor is refused" do
    tensor = %{__struct__: Nx.Tensor, shape: {1, 1}}
    assert_raise ArgumentError, ~r/Nx is not loaded/, fn -> Compress.quantise(tensor) end
  end
end
