defmodule Sconce.Monitor.Snapshot do
  @moduledoc """
  A reading of the file of figures that each run and each VM keeps while it runs.

  The file is read without touching the VM that writes it, and stays readable after the VM is killed. `open/1`
  reads one file, `list/1` the files of a folder. `mix sconce.monitor` draws them.

      {:ok, snapshots} = Sconce.Monitor.Snapshot.list()
      run = Enum.find(snapshots, & &1.kind == :run)
      Sconce.Monitor.Snapshot.value(run, "step.loss")
      #=> 1.2437

  | field | content |
  |---|---|
  | `path` | the file |
  | `kind` | `:run` or `:vm` |
  | `id` | id of the run, or OS process id of the VM, as text |
  | `meta` | map of what the writer says of itself: `"kind"`, `"out"`, `"host"`, `"command"` |
  | `os_pid` | OS process id of the writer |
  | `started_ms`, `heartbeat_ms` | Unix time of the start and of the last sign of life, in milliseconds |
  | `state` | `:running`, `:done`, `:failed` or `:stopped`, as the writer says; `life/2` also knows a dead one |
  | `slots` | the figures: `name`, `kind`, `unit`, `help`, `value` |

  The figures of a run are named after its events, as in `"step.loss"` (`Sconce.Events`), those of a VM as in
  Prometheus. A gauge whose value is NaN or infinite is unknown, which is nil.
  """

  alias Sconce.{Error, Options}
  alias Sconce.Monitor.Folder
  alias Sconce.Monitor.Snapshot.{Layout, Life, Slot}

  # The most bytes of a file.
  @most 16 * 1024 * 1024
  # Readings of a file whose writer is busy, and milliseconds between two.
  @tries 4
  @pause_ms 2

  @enforce_keys [:path, :kind, :id, :os_pid, :ticks, :started_ms, :heartbeat_ms, :state]
  defstruct @enforce_keys ++ [:read_us, meta: %{}, slots: [], by_name: %{}]

  @type t :: %__MODULE__{}

  @doc """
  Returns the snapshots of a folder, the latest written first; by default that of the setting `:monitor_dir`
  (`Sconce.Config`). Files that cannot be read are left out; `open/1` returns their errors.

      iex> Sconce.Monitor.Snapshot.list("/nowhere")
      {:ok, []}
  """
  @spec list(Path.t() | nil) :: {:ok, [t]} | {:error, Error.t()}
  def list(dir \\ nil) do
    dir = if dir == nil, do: Folder.path(), else: Options.path!(dir)

    with {:ok, paths} <- Folder.files(dir) do
      {:ok, for(path <- paths, {:ok, snapshot} <- [open(path)], do: snapshot)}
    end
  end

  @doc """
  Reads a file of figures.

  The error is of kind `:not_found` without the file, of kind `:io` if the system refuses it, and of kind `:corrupt`
  with the reason if it is cut, of another version or not such a file.

      iex> {:error, error} = Sconce.Monitor.Snapshot.open("/nowhere/01234567.run")
      iex> error.kind
      :not_found
  """
  @spec open(Path.t()) :: {:ok, t} | {:error, Error.t()}
  def open(path), do: path |> Options.path!() |> read(@tries)

  defp read(path, tries) do
    with {:ok, bytes} <- bytes(path), {:ok, snapshot} <- decode(bytes, path) do
      torn =
        for %{kind: kind, value: nil, name: name} <- snapshot.slots,
            kind in [:series, :text],
            do: name

      if torn == [] or tries == 1 do
        {:ok, snapshot}
      else
        Process.sleep(@pause_ms)
        read(path, tries - 1)
      end
    end
  end

  defp bytes(path) do
    with {:ok, %{type: :regular, size: size}} <- File.stat(path) |> named(path),
         :ok <- if(size <= @most, do: :ok, else: corrupt(path, "the file has #{size} bytes")) do
      File.read(path) |> named(path)
    else
      {:ok, _other} -> corrupt(path, "it is no regular file")
      error -> error
    end
  end

  defp named({:error, :enoent}, path),
    do: {:error, %Error{kind: :not_found, op: :monitor, details: %{what: path}}}

  defp named({:error, reason}, path) do
    details = %{path: path, reason: to_string(:file.format_error(reason))}
    {:error, %Error{kind: :io, op: :monitor, details: details}}
  end

  defp named(ok, _path), do: ok

  defp corrupt(path, reason),
    do: {:error, %Error{kind: :corrupt, op: :monitor, details: %{what: path, reason: reason}}}

  defp decode(bytes, path) do
    case Layout.decode(bytes) do
      {:ok, header} ->
        name = Path.basename(path)
        kind = if Path.extname(name) == ".vm", do: :vm, else: :run

        {:ok,
         %__MODULE__{
           path: path,
           kind: kind,
           id: Path.rootname(name),
           os_pid: header.os_pid,
           ticks: header.ticks,
           started_ms: header.started_ms,
           heartbeat_ms: header.heartbeat_ms,
           state: header.state,
           read_us: System.monotonic_time(:microsecond),
           meta: header.meta,
           slots: header.slots,
           by_name: Map.new(header.slots, &{&1.name, &1})
         }}

      {:error, reason} ->
        corrupt(path, reason)
    end
  end

  @doc """
  Returns the value of a figure, nil if the snapshot has none of this name.
  """
  @spec value(t, String.t()) :: term
  def value(%__MODULE__{by_name: by_name}, name) do
    with %Slot{value: value} <- by_name[name], do: value
  end

  @doc """
  Returns what became of the writer: `:running`, `:done`, `:failed`, `:stopped`, `:dead` without its process, or
  `:silent` without a sign of life for ten seconds.
  """
  @spec life(t, integer) :: Life.t()
  def life(%__MODULE__{} = snapshot, now_ms \\ System.os_time(:millisecond)),
    do: Life.of(snapshot, Life.process(snapshot), now_ms)
end
