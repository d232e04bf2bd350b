defmodule Sconce.Projection do
  @moduledoc false
  # Directions to project out of trunk vectors, in the form that the native side reads.

  alias Sconce.{Error, Tensor}

  @doc """
  Packs one or several vectors as consecutive 32-bit floats; `nil` for none.
  """
  @spec pack(term) :: {:ok, binary | nil} | {:error, Error.t()}
  def pack(vectors) when is_nil(vectors) or is_binary(vectors), do: {:ok, vectors}
  def pack(%{__struct__: Nx.Tensor} = tensor), do: {:ok, Tensor.floats(tensor)}

  def pack(vectors) when length(vectors) >= 0 do
    parts = Enum.map(vectors, &part/1)
    if :error in parts, do: mismatch(vectors), else: {:ok, IO.iodata_to_binary(parts)}
  end

  def pack(other), do: mismatch(other)

  # A larger number would become an infinity in 32 bits.
  @largest 3.4028234e38

  defp part(number) when is_number(number) and abs(number) <= @largest,
    do: <<number / 1::float-32-little>>

  defp part(vector) do
    case pack(vector) do
      {:ok, binary} when is_binary(binary) -> binary
      _other -> :error
    end
  end

  defp mismatch(got) do
    details = %{
      what: "project_out",
      expected: "numbers",
      got: inspect(got, limit: 5, printable_limit: 80)
    }

    {:error, %Error{kind: :mismatch, op: :project_out, details: details}}
  end
end
