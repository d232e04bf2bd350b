defmodule Sconce.Monitor.Detached do
  @moduledoc false
  # Starts a Mix task as a process of its own, which outlives this VM and its terminal.

  alias Sconce.Text

  # Milliseconds between two looks at a process, and lines of its log that are shown.
  @look_ms 200
  @most 20

  @doc """
  Waits until a process has begun: `begun?` is true. Returns the end of its log if it ends before.
  """
  @spec await(pos_integer, Path.t(), (() -> boolean)) :: :ok | {:ended, String.t()}
  def await(pid, log, begun?) do
    # The order counts: a process may begin and end between two looks.
    alive? = alive?(pid)

    cond do
      begun?.() ->
        :ok

      alive? ->
        Process.sleep(@look_ms)
        await(pid, log, begun?)

      true ->
        {:ended, last(log)}
    end
  end

  defp alive?(pid),
    do: match?({_, 0}, System.cmd("kill", ["-0", "#{pid}"], stderr_to_stdout: true))

  defp last(log) do
    case File.read(log) do
      {:ok, text} ->
        text |> String.split("\n") |> Enum.take(-@most) |> Enum.join("\n") |> Text.lines()

      {:error, _reason} ->
        ""
    end
  end

  @doc """
  Starts `mix task args` in the background. Its output goes to the file `log`. Returns the process id of the system.
  """
  @spec start(String.t(), [String.t()], Path.t()) :: {:ok, pos_integer} | {:error, String.t()}
  def start(task, args, log) do
    # The process is in a session of its own if the system has `setsid`, and ignores the end of the terminal.
    script = """
    log=$1; shift
    own=$(command -v setsid) || own=
    $own nohup "$@" >>"$log" 2>&1 </dev/null &
    echo $!
    """

    with mix when is_binary(mix) <- System.find_executable("mix") || {:error, "there is no mix"},
         :ok <- File.mkdir_p(Path.dirname(log)),
         :ok <- File.touch(log),
         {text, 0} <-
           System.cmd("sh", ["-c", script, "sh", log, mix, task | args],
             stderr_to_stdout: true,
             env: [{"MIX_ENV", to_string(Mix.env())}]
           ),
         {pid, _rest} <- Integer.parse(text) do
      {:ok, pid}
    else
      {:error, reason} when is_atom(reason) -> {:error, "#{log}: #{:file.format_error(reason)}"}
      {:error, reason} -> {:error, reason}
      _no_shell -> {:error, "the shell could not start it"}
    end
  rescue
    ErlangError -> {:error, "there is no sh"}
  end
end
