defmodule Sconce.Bench.Viewer do
  @moduledoc false
  # A program that draws in a pseudo-terminal of its own, of 80 x 24 characters, as in a window: `mix sconce.monitor`. It
  # can be killed at any time. `script` of util-linux makes the terminal.

  use GenServer

  # Only the end of the output is kept, a few pictures.
  @output_bytes 30_000
  # Clock ticks a second in /proc, and milliseconds for the end of a killed program.
  @ticks 100
  @killed_ms 30_000
  # Each picture begins at the first line.
  @home "\e[1;1H"

  @doc "Starts `mix` with these arguments, in the folder and environment of this VM."
  @spec mix([String.t()]) :: {:ok, pid}
  def mix(args), do: GenServer.start_link(__MODULE__, args)

  @doc "Waits until the output has a text, `ms` at most."
  @spec shows(pid, String.t(), timeout) :: :ok | {:error, String.t()}
  def shows(viewer, text, ms) do
    GenServer.call(viewer, {:shows, text}, ms)
  catch
    :exit, {:timeout, _call} -> {:error, "no #{inspect(text)} within #{ms} ms: #{output(viewer)}"}
  end

  @doc "Pictures so far."
  @spec pictures(pid) :: non_neg_integer
  def pictures(viewer), do: GenServer.call(viewer, :pictures)

  @doc "The last bytes of the output."
  @spec output(pid) :: binary
  def output(viewer), do: GenServer.call(viewer, :output)

  @doc "Seconds of CPU of the program itself so far; nil if it has ended."
  @spec cpu_seconds(pid) :: float | nil
  def cpu_seconds(viewer) do
    with os_pid when os_pid != nil <- GenServer.call(viewer, :os_pid), do: seconds(os_pid)
  end

  @doc "Seconds of CPU of a process of the system; nil if it has ended."
  @spec seconds(String.t()) :: float | nil
  def seconds(os_pid) do
    # The name of the program, in parentheses, may contain spaces. User and system time are the fields 14 and 15.
    with {:ok, stat} <- File.read("/proc/#{os_pid}/stat") do
      fields = stat |> String.split(")") |> List.last() |> String.split()
      ticks = for n <- [11, 12], do: fields |> Enum.at(n) |> String.to_integer()
      Enum.sum(ticks) / @ticks
    else
      {:error, _gone} -> nil
    end
  end

  @doc "Kills the program with SIGKILL. Returns the seconds of CPU that it took; nil if it had ended before."
  @spec kill(pid) :: float | nil
  def kill(viewer) do
    monitor = Process.monitor(viewer)
    os_pid = GenServer.call(viewer, :os_pid)
    seconds = os_pid && seconds(os_pid)
    if seconds, do: System.cmd("kill", ["-KILL", os_pid], stderr_to_stdout: true)
    :ok = GenServer.call(viewer, :leave)

    receive do
      {:DOWN, ^monitor, :process, _viewer, _reason} -> seconds
    after
      @killed_ms -> raise "the program #{os_pid} does not end"
    end
  end

  @impl true
  def init(args) do
    script = System.find_executable("script") || raise "no script found, of util-linux"
    quoted = for arg <- args, do: [" '", String.replace(arg, "'", ~S('\'')), "'"]
    # `exec` replaces the shell by the program, so that the child of `script` is the VM.
    command = IO.iodata_to_binary(["stty rows 24 columns 80; exec mix", quoted])
    args = ["-qec", command, "/dev/null"]
    env = [{~c"TERM", ~c"xterm"}, {~c"SHELL", ~c"/bin/sh"}]
    how = [:binary, :exit_status, :stderr_to_stdout, :use_stdio, :hide, args: args, env: env]
    port = Port.open({:spawn_executable, script}, how)
    {:ok, %{port: port, output: "", pictures: 0, waiting: nil, ended: nil, leave: false}}
  end

  @impl true
  def handle_call({:shows, text}, from, state),
    do: {:noreply, answered(%{state | waiting: {text, from}})}

  def handle_call(:pictures, _from, state), do: {:reply, state.pictures, state}
  def handle_call(:output, _from, state), do: {:reply, state.output, state}
  def handle_call(:os_pid, _from, state), do: {:reply, os_pid(state), state}

  def handle_call(:leave, _from, %{ended: nil} = state),
    do: {:reply, :ok, %{state | leave: true}}

  def handle_call(:leave, _from, state), do: {:stop, :normal, :ok, state}

  @impl true
  def handle_info({port, {:data, data}}, %{port: port} = state) do
    # A picture's mark may lie in two parts.
    tail = binary_part(state.output, byte_size(state.output), -min(5, byte_size(state.output)))
    new = length(String.split(tail <> data, @home)) - 1
    state = %{state | output: last(state.output <> data), pictures: state.pictures + new}
    {:noreply, answered(state)}
  end

  def handle_info({port, {:exit_status, _status}}, %{port: port, leave: true} = state),
    do: {:stop, :normal, state}

  def handle_info({port, {:exit_status, status}}, %{port: port} = state),
    do: {:noreply, answered(%{state | ended: status})}

  defp answered(%{waiting: nil} = state), do: state

  defp answered(%{waiting: {text, from}} = state) do
    answer =
      cond do
        String.contains?(state.output, text) -> :ok
        state.ended -> {:error, "it ended with #{state.ended}: #{state.output}"}
        true -> nil
      end

    if answer, do: GenServer.reply(from, answer)
    if answer, do: %{state | waiting: nil}, else: state
  end

  # The child of `script`.
  defp os_pid(%{port: port, ended: nil}) do
    with {:os_pid, script} <- Port.info(port, :os_pid),
         {:ok, children} <- File.read("/proc/#{script}/task/#{script}/children"),
         [os_pid] <- String.split(children),
         do: os_pid,
         else: (_gone -> nil)
  end

  defp os_pid(_ended), do: nil

  defp last(output) when byte_size(output) <= @output_bytes, do: output
  defp last(output), do: binary_part(output, byte_size(output), -@output_bytes)
end
