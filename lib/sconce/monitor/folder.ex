defmodule Sconce.Monitor.Folder do
  @moduledoc false
  # The folder in which runs and VMs keep the files of their figures: `ID.run` of each run, `PID-ID.vm` of each VM.

  alias Sconce.{Config, Error}

  # The most files that a reader looks at, newest first.
  @most 1_000

  @doc """
  Returns the folder: the setting `:monitor_dir` of `Sconce.Config`, or the user's folder of states.

      iex> Application.put_env(:sconce, :monitor_dir, "/var/lib/sconce")
      iex> path = Sconce.Monitor.Folder.path()
      iex> Application.delete_env(:sconce, :monitor_dir)
      iex> path
      "/var/lib/sconce"
  """
  @spec path() :: String.t()
  def path, do: Path.expand(Config.get(:monitor_dir) || Path.join(state(), "sconce"))

  # The specification of XDG ignores a relative path.
  defp state do
    case System.get_env("XDG_STATE_HOME") do
      "/" <> _ = absolute -> absolute
      _none -> Path.join(System.user_home() || System.tmp_dir!(), ".local/state")
    end
  end

  @doc """
  Returns the paths of the files in a folder, the latest written first. A folder that does not exist is empty.

      iex> Sconce.Monitor.Folder.files("/nowhere")
      {:ok, []}
  """
  @spec files(Path.t()) :: {:ok, [Path.t()]} | {:error, Error.t()}
  def files(dir) do
    case File.ls(dir) do
      {:ok, names} ->
        {:ok, names |> Enum.filter(&ours?/1) |> Enum.map(&Path.join(dir, &1)) |> newest()}

      {:error, :enoent} ->
        {:ok, []}

      {:error, reason} ->
        details = %{path: dir, reason: to_string(:file.format_error(reason))}
        {:error, %Error{kind: :io, op: :monitor, details: details}}
    end
  end

  defp ours?(name), do: name =~ ~r/\A([0-9a-f]{8}\.run|[0-9]{1,10}-[0-9a-f]{8}\.vm)\z/

  @doc "Returns a new id: eight hexadecimal digits. VMs of several machines or containers can have one process id."
  @spec id() :: String.t()
  # Not from `:crypto`, which is an application of its own.
  def id, do: Base.encode16(<<:rand.uniform(0x1_0000_0000) - 1::32>>, case: :lower)

  defp newest(paths) do
    dated =
      for path <- paths,
          {:ok, %{mtime: mtime}} <- [File.stat(path, time: :posix)],
          do: {mtime, path}

    dated |> Enum.sort(:desc) |> Enum.take(@most) |> Enum.map(&elem(&1, 1))
  end

  @doc "Returns the path of the file that asks a run to stop, by the path of its file."
  @spec stop(Path.t()) :: Path.t()
  def stop(run), do: Path.rootname(run) <> ".stop"

  @doc "Returns the path of the latest file of a VM, nil if there is none."
  @spec vm(Path.t(), non_neg_integer) :: Path.t() | nil
  def vm(dir, os_pid) do
    with {:ok, paths} <- files(dir),
         do: Enum.find(paths, &String.starts_with?(Path.basename(&1), "#{os_pid}-")),
         else: (_unread -> nil)
  end
end
