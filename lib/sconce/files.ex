defmodule Sconce.Files do
  @moduledoc false
  # Files that are whole or not there: written beside their place, synced and renamed by the native side. A failure
  # leaves the old file, or none.

  alias Sconce.{Error, Native}

  @doc """
  Writes a file; `op` is the error's.

  Of kind `:io` where the system refuses, of kind `:mismatch` where a folder or a device has the name.
  """
  @spec write(Path.t(), iodata, atom) :: :ok | {:error, Error.t()}
  def write(path, data, op) do
    with {:error, error} <- Native.file_write(path, IO.iodata_to_binary(data)),
         do: {:error, %{refused(error, path) | op: op}}
  end

  defp refused(%Error{kind: :not_found} = error, path),
    do: %{error | kind: :io, details: %{path: path, reason: "no such file or directory"}}

  defp refused(error, _path), do: error

  @doc "Whether a file could be written there now, for work that takes long before it has something to write."
  @spec check(Path.t()) :: :ok | {:error, File.posix()}
  def check(path) do
    probe = "#{path}.#{System.pid()}.partial"

    if File.dir?(path),
      do: {:error, :eisdir},
      else: with(:ok <- File.write(probe, ""), do: File.rm(probe))
  end
end
