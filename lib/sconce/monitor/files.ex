defmodule Sconce.Monitor.Files do
  @moduledoc false
  # The files that this VM writes for watchers: which, where, and when old ones go.

  alias Sconce.{Config, Error}
  alias Sconce.Monitor.{Folder, Snapshot}
  alias Sconce.Monitor.Snapshot.Life

  # Files of runs that stay after their end, and of VMs that were killed.
  @kept %{".run" => 100, ".vm" => 10}

  @doc """
  The path of a new file, in a folder that only this user can read; the folder is made if it does not exist. An error if
  files are turned off or the folder cannot be written.
  """
  @spec new(String.t()) :: {:ok, Path.t()} | {:error, Error.t()}
  def new(name) do
    with :ok <- wanted(), {:ok, folder} <- folder() do
      prune(folder)
      {:ok, Path.join(folder, name)}
    end
  rescue
    # A wrong setting is named where it is asked for; here it must not end the VM.
    error -> unavailable(Exception.message(error))
  end

  defp wanted,
    do: if(Config.get(:monitor), do: :ok, else: unavailable("the setting monitor is false"))

  defp folder do
    folder = Folder.path()

    with {:new, :ok} <- {:new, made(folder)} do
      {:ok, folder}
    else
      {:new, {:error, reason}} ->
        details = %{path: folder, reason: to_string(:file.format_error(reason))}
        {:error, %Error{kind: :io, op: :monitor, details: details}}
    end
  end

  # Only a folder of our own is closed to others.
  defp made(folder) do
    if File.dir?(folder),
      do: :ok,
      else: with(:ok <- File.mkdir_p(folder), do: File.chmod(folder, 0o700))
  end

  defp unavailable(reason) do
    details = %{what: "files of the monitor", reason: reason}
    {:error, %Error{kind: :unavailable, op: :monitor, details: details}}
  end

  @doc "The place of this VM: node, host, command, time."
  @spec place() :: map
  def place do
    {:ok, host} = :inet.gethostname()
    # Mix runs in its tasks alone, not in a script or a release.
    program = if Process.whereis(Mix.ProjectStack), do: ["mix"], else: []
    command = Enum.join(program ++ System.argv(), " ")

    %{
      node: if(Node.alive?(), do: node()),
      host: List.to_string(host),
      pids: Life.pids(),
      command: if(System.argv() != [], do: String.slice(command, 0, 200)),
      started: System.os_time(:millisecond)
    }
  end

  # Removes the oldest files beyond `@kept` of each kind whose writers have ended.
  defp prune(folder) do
    {:ok, paths} = Folder.files(folder)

    for {ending, kept} <- @kept do
      paths
      |> Enum.filter(&(Path.extname(&1) == ending))
      |> Enum.drop(kept)
      |> Enum.filter(&ended?/1)
      |> Enum.each(&File.rm/1)
    end
  end

  defp ended?(path) do
    case Snapshot.open(path) do
      {:ok, snapshot} -> Snapshot.life(snapshot) not in [:running, :silent]
      {:error, _error} -> false
    end
  end
end
