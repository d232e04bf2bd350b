defmodule Sconce.Compat.Origin do
  @moduledoc false
  # The writer of a file of a policy, by its first bytes: names the function that reads the file in the error of
  # another one.

  alias Sconce.Error

  @first 4096

  @doc "Completes the error of `Sconce.Policy.load/2` or `Sconce.Policy.import/2` on a file."
  @spec mend(Error.t(), Path.t()) :: Error.t()
  def mend(%Error{op: :load, kind: :corrupt} = error, path) do
    if of(path) == :other,
      do: mending(error, "Sconce.Policy.import/2 reads files of ExPhil, Axon and Edifice"),
      else: error
  end

  def mend(%Error{op: :import, details: details} = error, path) do
    cond do
      of(path) == :sconce ->
        mending(error, "Sconce.Policy.load/2 reads checkpoints of Sconce, as this one")

      error.kind == :not_found and String.contains?("#{details[:what]}", ": the config of a ") ->
        mending(error, "config: FILE, an export of the same network, or its values as a list")

      true ->
        error
    end
  end

  def mend(error, _path), do: error

  defp mending(error, how), do: %{error | details: Map.put(error.details, :mend, how)}

  defp of(path) do
    case File.open(path, [:read, :binary, :raw], &:file.read(&1, @first)) do
      {:ok, {:ok, bytes}} -> writer(bytes)
      _unread -> :unknown
    end
  end

  # Safetensors: the length of the header, and JSON.
  defp writer(<<_length::little-64, ?{, _rest::binary>> = bytes) do
    cond do
      bytes =~ ~s("sconce":) -> :sconce
      # An archive or a strategy.
      bytes =~ ~s("sconce.) -> :unknown
      true -> :other
    end
  end

  # A term, `Nx.serialize`, and an export whose metadata are a term.
  defp writer(<<131, _rest::binary>>), do: :other
  defp writer("nx" <> _rest), do: :other
  defp writer(<<deflated, _length::32, 131, _rest::binary>>) when deflated in [0, 1], do: :other
  defp writer(_bytes), do: :unknown
end
