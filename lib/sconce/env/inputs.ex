defmodule Sconce.Env.Inputs do
  @moduledoc false
  # Inputs and masks of environments in the form that the native side reads.

  alias Sconce.{Error, Options, Tensor}

  @doc "Returns numbers as 32-bit floats, little-endian: of a binary, a list of any nesting, or an Nx tensor."
  @spec pack(term) :: {:ok, binary} | {:error, Error.t()}
  def pack(binary) when is_binary(binary), do: {:ok, binary}
  def pack(%{__struct__: Nx.Tensor} = tensor), do: {:ok, Tensor.floats(tensor)}

  def pack(list) when length(list) >= 0 do
    {:ok, packed(list)}
  rescue
    # Something in the list is not a number.
    ArgumentError -> {:error, misfit(list)}
  end

  def pack(other),
    do: Options.argument!("inputs", other, "a binary of 32-bit floats, a list or an Nx tensor")

  # Raises `ArgumentError` for a term that is no number and no proper list.
  defp packed(list) when length(list) >= 0, do: for(item <- list, into: <<>>, do: packed(item))
  defp packed(number), do: <<number::float-32-little>>

  defp misfit(list) do
    got = inspect(list, limit: 20, printable_limit: 80)
    details = %{what: "inputs", expected: "numbers of 32 bits", got: got}
    %Error{kind: :mismatch, op: :step, details: details}
  end

  @doc "Returns a mask with one byte for each environment: of booleans, a binary, or an Nx tensor."
  @spec mask(term) :: binary
  def mask(binary) when is_binary(binary), do: binary
  def mask(%{__struct__: Nx.Tensor} = tensor), do: tensor |> Tensor.numbers() |> mask()

  def mask(list) when length(list) >= 0,
    do: for(flag <- list, into: <<>>, do: <<byte!(flag, list)>>)

  def mask(other), do: refuse(other)

  defp byte!(flag, _list) when flag in [1, true], do: 1
  defp byte!(flag, _list) when flag in [0, false], do: 0
  defp byte!(_flag, list), do: refuse(list)

  defp refuse(mask),
    do: Options.argument!("mask", mask, "booleans, one for each environment")
end
