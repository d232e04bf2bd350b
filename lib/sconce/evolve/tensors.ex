defmodule Sconce.Evolve.Tensors do
  @moduledoc false
  # Tensors that archives and strategies take and give.

  alias Sconce.Compress.Numbers
  alias Sconce.{Error, Options, Tensor}

  @forms %{lists: :list, binaries: :map, nx: :nx}
  # The most candidates of a call.
  @most 2 ** 31

  @as [
    as: [
      type: {:in, [:lists, :binaries, :nx]},
      default: :lists,
      doc: "Form of results: nested lists, maps of `data`, `shape` and `type`, or Nx tensors."
    ]
  ]

  @doc "The option `:as`."
  def schema, do: @as

  @doc "The form of results, checked."
  @spec form!(atom) :: Numbers.form()
  def form!(as) do
    as == :nx && Tensor.nx!("option :as")
    Map.fetch!(@forms, as)
  end

  @doc "Checks a number of candidates."
  @spec count!(term) :: pos_integer
  def count!(count) when count in 1..@most, do: count
  def count!(other), do: Options.argument!("count", other, "an integer from 1 to #{@most}")

  @doc "Reads rows of `width` numbers as a binary; an empty list has no rows."
  @spec rows(term, Numbers.type(), pos_integer, String.t(), atom) ::
          {:ok, binary} | {:error, Error.t()}
  def rows(tensor, type, width, what, op) do
    case Numbers.read(tensor, type, what, op) do
      {:ok, %{shape: {_count, ^width}, data: data}} ->
        {:ok, data}

      {:ok, %{shape: {0}}} ->
        {:ok, ""}

      {:ok, %{shape: shape}} ->
        Numbers.misfit(what, "rows of #{inspect(width)}", "the shape #{inspect(shape)}", op)

      error ->
        error
    end
  end

  @doc "Reads a tensor of any shape as a binary."
  @spec flat(term, Numbers.type(), String.t(), atom) :: {:ok, binary} | {:error, Error.t()}
  def flat(tensor, type, what, op) do
    with {:ok, %{data: data}} <- Numbers.read(tensor, type, what, op), do: {:ok, data}
  end

  @doc "Reads a vector as a binary, of 64-bit floats unless another type is given."
  @spec vector(term, Numbers.type(), String.t(), atom) :: {:ok, binary} | {:error, Error.t()}
  def vector(tensor, type \\ {:f, 64}, what, op) do
    case Numbers.read(tensor, type, what, op) do
      {:ok, %{shape: {_count}, data: data}} ->
        {:ok, data}

      {:ok, %{shape: shape}} ->
        Numbers.misfit(what, "a vector", "the shape #{inspect(shape)}", op)

      error ->
        error
    end
  end

  @doc "A tensor of rows of `width`, or a vector for a `width` of `nil`."
  @spec write(binary, Numbers.type(), pos_integer | nil, Numbers.form()) :: term
  def write(data, {_kind, bits} = type, nil, form),
    do: Numbers.write(data, type, {div(byte_size(data) * 8, bits)}, form)

  def write(data, {_kind, bits} = type, width, form),
    do: Numbers.write(data, type, {div(byte_size(data) * 8, bits * width), width}, form)
end
