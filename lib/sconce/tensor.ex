defmodule Sconce.Tensor do
  @moduledoc false
  # Nx is never required: whoever has a tensor has Nx. Called by `apply/3`, as no compiler knows it.

  @doc "The numbers of a tensor as 32-bit floats."
  @spec floats(struct) :: binary
  def floats(%{__struct__: Nx.Tensor} = tensor) do
    loaded!()
    apply(Nx, :to_binary, [apply(Nx, :as_type, [tensor, {:f, 32}])])
  end

  defp loaded!,
    do:
      Code.ensure_loaded?(Nx) ||
        raise(ArgumentError, "tensor: expected numbers, as Nx is not loaded")

  @doc "The numbers of a tensor as they are, none cut to fewer bits."
  @spec numbers(struct) :: [number | atom]
  def numbers(%{__struct__: Nx.Tensor} = tensor) do
    loaded!()
    apply(Nx, :to_flat_list, [tensor])
  end

  @doc "Whether tensors can be made."
  @spec nx?() :: boolean
  def nx?, do: Code.ensure_loaded?(Nx) and function_exported?(Nx, :from_binary, 2)

  @doc "A tensor of these bytes."
  @spec from_binary(binary, {atom, pos_integer}, tuple) :: struct
  def from_binary(data, type, shape),
    do: apply(Nx, :reshape, [apply(Nx, :from_binary, [data, type]), shape])
end
