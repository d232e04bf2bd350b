defmodule Sconce.Compress.Numbers do
  @moduledoc false
  # Tensors of callers as binaries, and back in the form in which they came: a list of any nesting, a map of `data`,
  # `shape` and `type`, or an Nx tensor.

  alias Sconce.{Error, Options, Tensor}

  @enforce_keys [:data, :shape, :form]
  defstruct @enforce_keys

  @type form :: :list | :map | :nx
  @type type :: {atom, pos_integer}
  @type t :: %__MODULE__{data: binary, shape: tuple, form: form}

  @expected "nested lists of numbers, a map of :data, :shape and :type, or an Nx tensor"
  # The largest size of a dimension.
  @most 2 ** 40
  # The largest floats of 32 and of 64 bits.
  @most_float (2 - 2.0 ** -23) * 2.0 ** 127
  @most_wide 1.7976931348623157e308

  @doc """
  Reads a tensor of this type; `what` names it in errors. Integers of lists and numbers of an Nx tensor are converted. A
  term that is no tensor raises `ArgumentError`.
  """
  @spec read(term, {atom, pos_integer}, String.t(), atom) :: {:ok, t} | {:error, Error.t()}
  def read(tensor, type \\ {:f, 32}, what, op)

  def read(%{__struct__: Nx.Tensor} = tensor, type, _what, _op)
      when elem(type, 0) == :f or :erlang.map_get(:type, tensor) == type do
    data = Tensor.to_binary(tensor, type)
    {:ok, %__MODULE__{data: data, shape: tensor.shape, form: :nx}}
  end

  # Nx would truncate fractions, and wrap numbers out of range.
  def read(%{__struct__: Nx.Tensor, type: {kind, _bits} = own}, type, what, op)
      when kind not in [:s, :u],
      do: misfit(what, "the type #{inspect(type)}", inspect(own), op)

  def read(%{__struct__: Nx.Tensor} = tensor, type, what, op) do
    wide = Tensor.to_binary(tensor, {:s, 64})
    data = for <<number::signed-64-little <- wide>>, into: <<>>, do: packed(number, type)
    {:ok, %__MODULE__{data: data, shape: tensor.shape, form: :nx}}
  rescue
    ArgumentError -> misfit(what, "numbers of #{elem(type, 1)} bits", "others", op)
  end

  def read(%{data: data, shape: shape, type: given}, type, what, op)
      when is_binary(data) and is_tuple(shape) do
    cond do
      given != type ->
        misfit(what, "the type #{inspect(type)}", shown(given), op)

      byte_size(data) != bytes(shape, type) ->
        misfit(what, "bytes of the shape #{shown(shape)}", "#{byte_size(data)} bytes", op)

      true ->
        {:ok, %__MODULE__{data: data, shape: shape, form: :map}}
    end
  end

  def read(tensor, type, what, op) when is_number(tensor) or length(tensor) >= 0 do
    case shape(tensor) do
      {:ok, shape} ->
        {:ok, %__MODULE__{data: packed(tensor, type), shape: List.to_tuple(shape), form: :list}}

      :error ->
        misfit(what, "lists of equal lengths", shown(tensor), op)
    end
  rescue
    # Something in the list is no number of this type.
    ArgumentError -> misfit(what, "numbers of #{elem(type, 1)} bits", shown(tensor), op)
  end

  def read(other, _type, what, _op), do: Options.argument!(what, other, @expected)

  @doc "Reads a matrix of 32-bit floats."
  @spec matrix(term, String.t(), atom) :: {:ok, t} | {:error, Error.t()}
  def matrix(tensor, what, op) do
    with {:ok, %{shape: shape}} when tuple_size(shape) != 2 <- read(tensor, what, op),
         do: misfit(what, "a matrix", "the shape #{shown(shape)}", op)
  end

  @doc "Reads a tensor that may be missing, as a binary; it has this shape if there is one."
  @spec optional(term, {atom, pos_integer}, String.t(), atom, tuple | nil) ::
          {:ok, binary | nil} | {:error, Error.t()}
  def optional(tensor, type, what, op, shape \\ nil)
  def optional(nil, _type, _what, _op, _shape), do: {:ok, nil}

  def optional(tensor, type, what, op, shape) do
    case read(tensor, type, what, op) do
      {:ok, %{shape: got}} when shape != nil and got != shape ->
        misfit(what, "the shape #{shown(shape)}", shown(got), op)

      {:ok, numbers} ->
        {:ok, numbers.data}

      error ->
        error
    end
  end

  @doc "Reads an order of this many columns; `nil` is their own. The native side refuses columns that come twice."
  @spec order(term, non_neg_integer, atom) :: {:ok, [non_neg_integer]} | {:error, Error.t()}
  def order(nil, _cols, _op), do: {:ok, []}

  def order(order, cols, op) when length(order) >= 0 do
    cond do
      not Enum.all?(order, &(is_integer(&1) and &1 in 0..@most)) -> no_order!(order)
      length(order) in [0, cols] -> {:ok, order}
      true -> misfit("order", "each of #{cols} columns once", "#{length(order)} columns", op)
    end
  end

  def order(other, _cols, _op), do: no_order!(other)

  defp no_order!(other), do: Options.argument!("order", other, "indices of columns")

  @doc "The shape as rows of the last dimension; a number is a row of one."
  @spec rows(t) :: {non_neg_integer, non_neg_integer}
  def rows(%__MODULE__{shape: shape}) do
    {before, last} = shape |> Tuple.to_list() |> Enum.split(-1)
    {Enum.product(before), Enum.product(last)}
  end

  @doc "A tensor of this form. `nil` stays `nil`."
  @spec write(binary | nil, {atom, pos_integer}, tuple, form) :: term
  def write(nil, _type, _shape, _form), do: nil
  def write(data, type, shape, :map), do: %{data: data, type: type, shape: shape}
  def write(data, type, shape, :nx), do: Tensor.from_binary(data, type, shape)
  def write(data, type, shape, :list), do: data |> unpacked(type) |> nested(Tuple.to_list(shape))

  # The bytes of a shape, or nil if it is none.
  defp bytes(shape, {_kind, bits}) do
    sizes = Tuple.to_list(shape)

    if Enum.all?(sizes, &(is_integer(&1) and &1 in 0..@most)),
      do: Enum.product(sizes) * div(bits, 8)
  end

  # The sizes of each dimension, or `:error` for lists that are no tensor.
  defp shape([]), do: {:ok, [0]}

  defp shape(list) when length(list) >= 0 do
    case list |> Enum.map(&shape/1) |> Enum.uniq() do
      [{:ok, inner}] -> {:ok, [length(list) | inner]}
      _several -> :error
    end
  end

  defp shape(_number), do: {:ok, []}

  defp packed(list, type) when length(list) >= 0,
    do: for(item <- list, into: <<>>, do: packed(item, type))

  # Some versions of Erlang raise for larger numbers, and others make an infinity of them.
  defp packed(number, {:f, 32}) when abs(number) <= @most_float,
    do: <<number::float-32-little>>

  defp packed(number, {:f, 64}) when abs(number) <= @most_wide, do: <<number::float-64-little>>

  defp packed(true, {:u, 8}), do: <<1>>
  defp packed(false, {:u, 8}), do: <<0>>

  defp packed(number, {kind, bits}) when is_integer(number) do
    lowest = if kind == :s, do: -(2 ** (bits - 1)), else: 0
    number in lowest..(lowest + 2 ** bits - 1) || raise ArgumentError
    <<number::size(bits)-little>>
  end

  defp packed(_other, _type), do: raise(ArgumentError)

  defp unpacked(data, {:f, 32}), do: for(<<v::float-32-little <- data>>, do: v)
  defp unpacked(data, {:f, 64}), do: for(<<v::float-64-little <- data>>, do: v)
  defp unpacked(data, {:u, 32}), do: for(<<v::32-little <- data>>, do: v)
  defp unpacked(data, {:s, 8}), do: for(<<v::signed-8 <- data>>, do: v)
  defp unpacked(data, {:u, 8}), do: :binary.bin_to_list(data)

  defp nested([number], []), do: number
  defp nested(flat, [_size]), do: flat

  defp nested(flat, [_size | rest]),
    do: flat |> Enum.chunk_every(Enum.product(rest)) |> Enum.map(&nested(&1, rest))

  @doc "An error of kind `:mismatch`."
  @spec misfit(String.t(), String.t(), String.t(), atom) :: {:error, Error.t()}
  def misfit(what, expected, got, op) do
    details = %{what: what, expected: expected, got: got}
    {:error, %Error{kind: :mismatch, op: op, details: details}}
  end

  defp shown(term), do: inspect(term, limit: 20, printable_limit: 80)
end
