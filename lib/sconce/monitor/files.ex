defmodule Sconce.Monitor.Files do
  @moduledoc false
  # The files that this VM writes for watchers: which, where, and when old ones go.

  alias Sconce.{Config, Error}
  alias Sconce.Monitor.Folder

  # Files of runs that stay after their end, and of VMs that were killed.
  @kept 100

  @doc "The path of a new file, in a folder that only this user can read."
  @spec new(String.t()) :: {:ok, Path.t()} | {:error, Error.t()}
  def new(name) do
    folder = Folder.path()

    with true <- wanted?() or {:error, off()},
         :ok <- File.mkdir_p(folder),
         :ok <- File.chmod(folder, 0o700) do
      prune(folder)
      {:ok, Path.join(folder, name)}
    else
      {:error, %Error{} = error} ->
        {:error, error}

      {:error, reason} ->
        details = %{what: folder, reason: to_string(:file.format_error(reason))}
        {:error, %Error{kind: :io, op: :monitor, details: details}}
    end
  end

  # A wrong setting is named where it is asked for; here it would end the VM.
  defp wanted? do
    Config.get(:monitor)
  rescue
    ArgumentError -> false
  end

  defp off,
    do: %Error{
      kind: :unavailable,
      op: :monitor,
      details: %{what: "files of the monitor", reason: "the setting monitor is false"}
    }

  @doc "The place of this VM: node, host, command, time."
  @spec place() :: map
  def place do
    {:ok, host} = :inet.gethostname()
    command = Enum.join(["mix" | System.argv()], " ")

    %{
      node: if(Node.alive?(), do: node()),
      host: List.to_string(host),
      command: if(System.argv() != [], do: String.slice(command, 0, 500)),
      started: System.os_time(:millisecond)
    }
  end

  # Removes the oldest files beyond `@kept` of each kind. The file of something that lives is newer than those: it is
  # written every second.
  defp prune(folder) do
    for ending <- [".run", ".vm"] do
      folder
      |> Path.join("*" <> ending)
      |> Path.wildcard()
      |> Enum.map(fn path -> {modified(path), path} end)
      |> Enum.sort(:desc)
      |> Enum.drop(@kept)
      |> Enum.each(fn {_time, path} -> File.rm(path) end)
    end
  end

  defp modified(path) do
    case File.stat(path, time: :posix) do
      {:ok, %{mtime: time}} -> time
      {:error, _reason} -> 0
    end
  end
end
