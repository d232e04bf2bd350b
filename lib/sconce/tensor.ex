defmodule Sconce.Tensor do
  @moduledoc false
  # Converts Nx tensors. Nx is an optional library of the host, so this module calls Nx by `apply/3`, for which the
  # compiler gives no warning.
  #
  # The struct is a tensor without Nx: its bytes, little-endian and row-major, its shape and type, and the names of its
  # dimensions. The bytes of an `Nx.BinaryBackend` are taken and given by reference.

  alias Sconce.{Error, Loaded}

  @enforce_keys [:data, :shape, :type]
  defstruct @enforce_keys ++ [names: []]

  @type type :: {atom, pos_integer}
  @type t :: %__MODULE__{data: binary | {:card, struct}, shape: tuple, type: type, names: [atom]}

  @doc "Whether the term is an Nx tensor."
  defguard is_tensor(term)
           when is_struct(term) and :erlang.map_get(:__struct__, term) == Nx.Tensor

  @doc """
  Reads a tensor of numbers: real ones as 32-bit floats, and integers unchanged or, with `:floats`, as floats, too.
  `what` names the tensor in errors.
  """
  @spec read(struct, String.t(), atom, [:floats]) :: {:ok, t} | {:error, Error.t()}
  def read(%{__struct__: Nx.Tensor} = tensor, what, op, how \\ []) do
    loaded!()
    type = tensor.type

    with :ok <- real(tensor, what, op) do
      type = if how == [:floats] or elem(type, 0) in [:f, :bf], do: {:f, 32}, else: type
      {:ok, of(tensor, to_binary(tensor, type), type)}
    end
  end

  @doc """
  Reads a tensor of real numbers as 32-bit floats that stay in memory of its backend: the data is `{:card, tensor}`.
  """
  @spec read_there(struct, String.t(), atom) :: {:ok, t} | {:error, Error.t()}
  def read_there(%{__struct__: Nx.Tensor} = tensor, what, op) do
    loaded!()

    with :ok <- real(tensor, what, op),
         do: {:ok, of(tensor, {:card, apply(Nx, :as_type, [tensor, {:f, 32}])}, {:f, 32})}
  end

  defp real(%{type: type} = tensor, what, op) do
    cond do
      Map.get(tensor, :vectorized_axes, []) != [] ->
        {:error, misfit(what, "a tensor without vectorized axes", "some", op)}

      elem(type, 0) not in [:f, :bf, :s, :u] ->
        {:error, misfit(what, "real numbers", "the type #{inspect(type)}", op)}

      true ->
        :ok
    end
  end

  defp of(tensor, data, type) do
    names = Map.get(tensor, :names) || []
    %__MODULE__{data: data, shape: tensor.shape, type: type, names: names}
  end

  @doc "Whether two shapes are equal, dimensions of one number aside."
  @spec alike?(tuple, tuple) :: boolean
  def alike?(shape, other), do: wide(shape) == wide(other)

  defp wide(shape), do: for(size <- Tuple.to_list(shape), size != 1, do: size)

  @doc "An error of kind `:mismatch`."
  @spec misfit(String.t(), String.t(), String.t(), atom) :: Error.t()
  def misfit(what, expected, got, op) do
    details = %{what: what, expected: expected, got: got}
    %Error{kind: :mismatch, op: op, details: details}
  end

  @doc "The values of a tensor as 32-bit floats."
  @spec floats(struct) :: binary
  def floats(%{__struct__: Nx.Tensor} = tensor), do: to_binary(tensor, {:f, 32})

  @doc "The values of a tensor, converted to a type."
  @spec to_binary(struct, type) :: binary
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
  def nx?, do: Loaded.loaded?(Nx) and function_exported?(Nx, :from_binary, 2)

  @doc "Raises `ArgumentError` that names `what` unless tensors can be made."
  @spec nx!(String.t()) :: true
  def nx!(what), do: nx?() || raise(ArgumentError, "#{what}: Nx is not loaded")

  @doc "The tensor with these bytes, type, shape and names of dimensions."
  @spec from_binary(binary, type, tuple, [atom]) :: struct
  def from_binary(data, type, shape, names \\ []) do
    flat = apply(Nx, :from_binary, [data, type])

    if Enum.any?(names),
      do: apply(Nx, :reshape, [flat, shape, [names: names]]),
      else: apply(Nx, :reshape, [flat, shape])
  end
end
