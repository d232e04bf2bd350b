defmodule Sconce.Bench.Child do
  @moduledoc false
  # A program in its own OS process, which may be killed, limited or crash: a VM with this Sconce, or a Mix
  # task.

  @enforce_keys [:port, :os_pid, :start]
  defstruct @enforce_keys

  @type t :: %__MODULE__{port: port, os_pid: String.t(), start: integer}
  @typedoc "`status` is the exit status, 128 plus the signal that ended the program, or `:hung`."
  @type ended :: %{status: non_neg_integer | :hung, output: binary, ms: non_neg_integer}

  # Only the end of the output is kept.
  @output_bytes 200_000
  @killed_ms 30_000

  @doc """
  Starts a VM that runs `script` with this Sconce. Options:

    * `limit` - a line of shell that runs before the VM, such as `"ulimit -v 6000000"`;
    * `cd` - the working folder.
  """
  @spec elixir(String.t(), keyword) :: t
  def elixir(script, opts \\ []) do
    start(["elixir"] ++ code_paths() ++ ["-e", script], opts)
  end

  @doc "Starts a VM that runs the script `file` with these arguments and this Sconce. Options are those of `elixir/2`."
  @spec script(Path.t(), [String.t()], keyword) :: t
  def script(file, args, opts \\ []), do: start(["elixir"] ++ code_paths() ++ [file | args], opts)

  @doc "Switches of `elixir` that add the modules of Sconce and of its benchmarks."
  @spec code_paths() :: [String.t()]
  def code_paths do
    Enum.flat_map([:sconce, :sconce_bench], &["-pa", Application.app_dir(&1, "ebin")])
  end

  @doc "Starts `mix` with these arguments, in the folder and environment of this VM."
  @spec mix([String.t()], keyword) :: t
  def mix(args, opts \\ []), do: start(["mix" | args], opts)

  defp start(command, opts) do
    limit = Keyword.get(opts, :limit, ":")
    shell = System.find_executable("sh") || raise "no sh found"
    # `exec` replaces the shell by the command, so that the process id stays the same.
    args = ["-c", "#{limit}; exec \"$@\"", "sh" | command]
    how = [:binary, :exit_status, :stderr_to_stdout, :use_stdio, :hide, args: args]
    port = Port.open({:spawn_executable, shell}, how ++ Keyword.take(opts, [:cd]))
    os_pid = with {:os_pid, pid} <- Port.info(port, :os_pid), do: pid
    %__MODULE__{port: port, os_pid: to_string(os_pid), start: now()}
  end

  @doc "Waits for the end. After `ms` the program is killed, and `status` is `:hung`."
  @spec await(t, timeout) :: ended
  def await(child, ms \\ :infinity), do: collect(child, until(ms), "", nil)

  @doc "The output and the status if the program ends within `ms`; otherwise `nil`, and the program keeps running."
  @spec ended(t, non_neg_integer) :: ended | nil
  def ended(%{port: port} = child, ms) do
    receive do
      {^port, {:exit_status, status}} -> told(child, status, "")
    after
      ms -> nil
    end
  end

  @doc "Sends a signal by name, such as `\"KILL\"`. A program that has ended is left alone."
  @spec signal(t, String.t()) :: :ok
  def signal(%{os_pid: os_pid}, name) do
    {_said, _status} = System.cmd("kill", ["-#{name}", os_pid], stderr_to_stdout: true)
    :ok
  end

  @doc "Kills the program and waits for its end."
  @spec kill(t) :: ended
  def kill(child) do
    signal(child, "KILL")
    await(child, @killed_ms)
  end

  @doc """
  Describes an exit status.

      iex> Sconce.Bench.Child.ending(139)
      "VM died: signal 11"
  """
  @spec ending(non_neg_integer | :hung) :: String.t()
  def ending(:hung), do: "hung: no answer"
  def ending(status) when status > 128, do: "VM died: signal #{status - 128}"
  def ending(status), do: "VM ended with status #{status}"

  defp collect(%{port: port} = child, until, output, hung) do
    receive do
      {^port, {:data, data}} -> collect(child, until, last(output <> data), hung)
      {^port, {:exit_status, status}} -> told(child, hung || status, output)
    after
      left(until) ->
        signal(child, "KILL")
        collect(child, now() + @killed_ms, output, :hung)
    end
  end

  # Output printed before the program's end may still be in the mailbox.
  defp told(%{port: port, start: start} = child, status, output) do
    receive do
      {^port, {:data, data}} -> told(child, status, last(output <> data))
    after
      0 -> %{status: status, output: output, ms: now() - start}
    end
  end

  defp last(output) when byte_size(output) <= @output_bytes, do: output
  defp last(output), do: binary_part(output, byte_size(output), -@output_bytes)

  defp until(:infinity), do: :infinity
  defp until(ms), do: now() + ms

  defp left(:infinity), do: :infinity
  defp left(until), do: max(until - now(), 0)

  defp now, do: System.monotonic_time(:millisecond)
end
