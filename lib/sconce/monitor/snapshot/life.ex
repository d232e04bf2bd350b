defmodule Sconce.Monitor.Snapshot.Life do
  @moduledoc false
  # Whether the writer of a snapshot lives: by its state, its process and its heartbeat.

  # The writer writes its heartbeat each second; after this many milliseconds it is silent.
  @silent_ms 10_000

  @type t :: :running | :done | :failed | :stopped | :dead | :silent

  @doc """
  Returns the life of a writer. `process` is what is known of its process: `:gone`, `:there` or `:unknown`.
  """
  @spec of(map, atom, integer) :: t
  def of(%{state: state}, _process, _now_ms) when state != :running, do: state
  def of(_snapshot, :gone, _now_ms), do: :dead
  def of(%{heartbeat_ms: beat}, _process, now_ms) when now_ms - beat > @silent_ms, do: :silent
  def of(_snapshot, _process, _now_ms), do: :running

  @doc "Looks for the process of a snapshot; one of another host or container is `:unknown`."
  @spec process(map, Path.t()) :: :there | :gone | :unknown
  def process(%{os_pid: pid, ticks: ticks, meta: meta}, proc \\ "/proc") do
    cond do
      Map.get(meta, "host", host()) != host() or Map.get(meta, "pids", pids()) != pids() ->
        :unknown

      not File.exists?(Path.join(proc, "self/stat")) ->
        asked(pid)

      true ->
        found(File.read(Path.join(proc, "#{pid}/stat")), ticks)
    end
  end

  # Without /proc the system tells by a signal that does nothing.
  defp asked(pid) do
    case System.cmd("kill", ["-0", "#{pid}"], stderr_to_stdout: true) do
      {_nothing, 0} -> :there
      {reason, _status} -> if reason =~ ~r/no such process/i, do: :gone, else: :unknown
    end
  rescue
    _no_such_program -> :unknown
  end

  @doc "Returns the namespace of this VM's process id, nil if the system has none."
  @spec pids() :: String.t() | nil
  def pids do
    case File.read_link("/proc/self/ns/pid") do
      {:ok, name} -> name
      {:error, _reason} -> nil
    end
  end

  # The name of the program, in parentheses, may contain spaces and parentheses.
  defp found({:ok, stat}, ticks) do
    [state | fields] = stat |> String.split(")") |> List.last() |> String.split()
    # The third field is the state, the 22nd the start.
    started = fields |> Enum.at(18, "0") |> String.to_integer()

    # A zombie has ended, and its parent has not asked for its status.
    if state in ["Z", "X"] or (ticks != 0 and started != ticks), do: :gone, else: :there
  end

  defp found({:error, :enoent}, _ticks), do: :gone
  defp found({:error, _reason}, _ticks), do: :unknown

  @doc "Returns the name of this machine."
  @spec host() :: String.t()
  def host do
    {:ok, name} = :inet.gethostname()
    to_string(name)
  end
end
