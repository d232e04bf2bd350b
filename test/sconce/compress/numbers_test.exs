defmodule Sconce.Compress.NumbersTest do
  # Not async: the test defines Nx.
  use ExUnit.Case, async: false

  alias Sconce.Compress

  # Defines the used part of Nx while `fun` runs.
  defp with_nx(fun) do
    tensor = quote do: defstruct([:data, :type, :shape])

    nx =
      quote do
        def as_type(%{type: type} = tensor, type), do: tensor
        def to_binary(tensor), do: tensor.data
        def from_binary(data, type), do: struct(Nx.Tensor, data: data, type: type)
        def reshape(tensor, shape), do: %{tensor | shape: shape}
      end

    modules = [{Nx.Tensor, tensor}, {Nx, nx}]
    for {name, body} <- modules, do: Module.create(name, body, Macro.Env.location(__ENV__))

    try do
      fun.()
    after
      for {name, _body} <- modules, do: :code.delete(name) && :code.purge(name)
    end
  end

  defp tensor(data, type, shape), do: struct(Nx.Tensor, data: data, type: type, shape: shape)

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

  test "without Nx a tensor is refused" do
    tensor = %{__struct__: Nx.Tensor, shape: {1, 1}}
    assert_raise ArgumentError, ~r/Nx is not loaded/, fn -> Compress.quantise(tensor) end
  end
end
