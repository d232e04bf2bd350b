defmodule Sconce.Monitor.Detached do
  @moduledoc false
  # Starts a Mix task as a process of its own, which outlives this VM and its terminal.

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
