defmodule Sconce.Compat.ExPhil.Steering do
  @moduledoc false
  # Directions to remove from trunk vectors, of ExPhil's files or as numbers.

  alias Sconce.{Error, Projection}

  # Names in the files of ExPhil's script. A file is read without new atoms, so they must exist.
  @names [:v, :meta, :policy, :replays, :window, :hidden, :shield_frames, :ground_frames] ++
           [:total_frames, :raw_contrast_norm, :shield_set, :extracted_at] ++
           [:data, :state, :type, :shape, :names, :vectorized_axes, Nx.Tensor, Nx.BinaryBackend]

  @doc false
  def names, do: @names

  @doc "The packed directions, or nil, of the options `:steer_vector` and `:steer_alpha`."
  @spec read(term, float | nil) :: {:ok, binary | nil} | {:error, Error.t()}
  def read(nil, _alpha), do: {:ok, nil}
  def read(_vector, alpha) when alpha == 0, do: {:ok, nil}

  def read(path, _alpha) when is_binary(path) do
    with {:ok, bytes} <- file(path), do: direction(bytes, path)
  end

  def read(numbers, _alpha), do: Projection.pack(numbers)

  defp file(path) do
    with {:error, reason} <- File.read(path) do
      kind = if reason == :enoent, do: :not_found, else: :io
      reason = reason |> :file.format_error() |> to_string()
      {:error, %Error{kind: kind, op: :load, details: %{what: path, path: path, reason: reason}}}
    end
  end

  defp direction(bytes, path) do
    case term(bytes) do
      {:ok, %{v: %{data: %{state: values}, type: {:f, 32}, shape: {n}}}}
      when n > 0 and byte_size(values) == 4 * n ->
        if finite?(values), do: {:ok, values}, else: corrupt(path, "the direction has no length")

      _other ->
        corrupt(path, "not ExPhil's file of a direction; give its numbers as a list")
    end
  end

  defp term(bytes) do
    {:ok, :erlang.binary_to_term(bytes, [:safe])}
  rescue
    ArgumentError -> :error
  end

  # A NaN or an infinity is no float in a pattern.
  defp finite?(values) do
    numbers = for <<number::float-32-little <- values>>, do: number
    length(numbers) * 4 == byte_size(values) and Enum.any?(numbers, &(&1 != 0.0))
  end

  defp corrupt(path, reason),
    do: {:error, %Error{kind: :corrupt, op: :load, details: %{what: path, reason: reason}}}
end
