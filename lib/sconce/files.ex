defmodule Sconce.Files do
  @moduledoc false
  # Replaces files atomically: the native side writes a temporary file, syncs it and renames it. On failure the old file
  # remains, if there was one.

  alias Sconce.{Error, Native}

  @doc """
  Writes a file; an error names `op` as its operation.

  The error is of kind `:io` if the system refuses, and of kind `:mismatch` if the path is a folder or a device.
  """
  @spec write(Path.t(), iodata, atom) :: :ok | {:error, Error.t()}
  def write(path, data, op) do
    with {:error, error} <- Native.file_write(path, IO.iodata_to_binary(data)),
         do: {:error, %{refused(error, path) | op: op}}
  end

  defp refused(%Error{kind: :not_found} = error, path),
    do: %{error | kind: :io, details: %{path: path, reason: "no such file or directory"}}

  defp refused(error, _path), do: error

  @doc "Checks whether a file can be written to `path` now. Call it before long work."
  @spec check(Path.t()) :: :ok | {:error, File.posix()}
  def check(path) do
    probe = "#{path}.#{System.pid()}.partial"

    if File.dir?(path),
      do: {:error, :eisdir},
      else: with(:ok <- File.write(probe, ""), do: File.rm(probe))
  end
end
