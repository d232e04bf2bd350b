defmodule Sconce.Files do
  @moduledoc false
  # Replaces files atomically: the native side writes a temporary file, syncs it and renames it. On failure the old file
  # stays, or there is none.

  alias Sconce.{Error, Native}

  @doc """
  Writes a file; `op` is the operation that an error names.

  The error is of kind `:io` if the system refuses, and of kind `:mismatch` if a folder or a device has the path.
  """
  @spec write(Path.t(), iodata, atom) :: :ok | {:error, Error.t()}
  def write(path, data, op) do
    with {:error, error} <- Native.file_write(path, IO.iodata_to_binary(data)),
         do: {:error, %{refused(error, path) | op: op}}
  end

  defp refused(%Error{kind: :not_found} = error, path),
    do: %{error | kind: :io, details: %{path: path, reason: "no such file or directory"}}

  defp refused(error, _path), do: error

  @doc "Checks whether a file can be written to `path` now. Long work calls it before it starts."
  @spec check(Path.t()) :: :ok | {:error, File.posix()}
  def check(path) do
    probe = "#{path}.#{System.pid()}.partial"

    if File.dir?(path),
      do: {:error, :eisdir},
      else: with(:ok <- File.write(probe, ""), do: File.rm(probe))
  end
end
