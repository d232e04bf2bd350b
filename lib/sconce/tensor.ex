defmodule Sconce.Tensor do
  @moduledoc false
  # Converts Nx tensors. Nx is an optional library of the host, so this module calls Nx by `apply/3`, for which the
  # compiler gives no warning.

  @doc "The values of a tensor as 32-bit floats."
  @spec floats(struct) :: binary
  def floats(%{__struct__: Nx.Tensor} = tensor), do: to_binary(tensor, {:f, 32})

  @doc "The values of a tensor, converted to a type."
  @spec to_binary(struct, {atom, pos_integer}) :: binary
  def to_binary(%{__struct__: Nx.Tensor} = tensor, type) do
    loaded!()
    apply(Nx, :to_binary, [apply(Nx, :as_type, [tensor, type])])
  end

  defp loaded!,
    do:
      Code.ensure_loaded?(Nx) ||
        raise(ArgumentError, "tensor: expected numbers, because Nx is not loaded")

  @doc "The values of a tensor, without loss of precision."
  @spec numbers(struct) :: [number | atom]
  def numbers(%{__struct__: Nx.Tensor} = tensor) do
    loaded!()
    apply(Nx, :to_flat_list, [tensor])
  end

  @doc "Whether Nx is loaded, so that tensors can be made."
  @spec nx?() :: boolean
  def nx?, do: Code.ensure_loaded?(Nx) and function_exported?(Nx, :from_binary, 2)

  @doc "The tensor with these bytes, type and shape."
  @spec from_binary(binary, {atom, pos_integer}, tuple) :: struct
  def from_binary(data, type, shape),
    do: apply(Nx, :reshape, [apply(Nx, :from_binary, [data, type]), shape])
end
