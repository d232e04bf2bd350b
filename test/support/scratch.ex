defmodule Sconce.Test.Scratch do
  @moduledoc "Folders, files and processes of a test, which do not outlive it."

  import ExUnit.Callbacks, only: [on_exit: 1]

  @doc "Makes a fresh folder, removed when the test ends."
  def tmp_dir!(name \\ "scratch") do
    unique = "sconce-#{name}-#{System.pid()}-#{System.unique_integer([:positive])}"
    path = Path.join(System.tmp_dir!(), unique)
    File.mkdir_p!(path)
    on_exit(fn -> File.rm_rf!(path) end)
    path
  end

  @doc "Runs `mix args` in `dir` in an OS process of its own; returns `{output, status}`."
  def mix(args, dir, env \\ []) do
    run("mix", args, dir, env)
  end

  @doc """
  Runs a script with this Sconce in a VM that can write no file longer than `kilobytes`: a longer write fails, as on a
  full disk.
  """
  def elixir_within(script, kilobytes) do
    # The unit of `ulimit` is 512 bytes; without the trap a signal would kill the VM.
    limited = ~s(trap '' XFSZ; ulimit -f #{2 * kilobytes}; exec elixir -pa "$1" -e "$2")
    args = ["-c", limited, "sh", Application.app_dir(:sconce, "ebin"), script]
    run("sh", args, System.tmp_dir!())
  end

  @doc """
  Starts a script with this Sconce in a VM of its own. The VM is killed once `due` returns true, unless it ends
  first.
  """
  def elixir_until(script, due) do
    pid = Path.join(tmp_dir!("vm"), "pid")
    script = "File.write!(#{inspect(pid)}, System.pid())\n" <> script
    args = ["-pa", Application.app_dir(:sconce, "ebin"), "-e", script]
    vm = Task.async(fn -> run("elixir", args, System.tmp_dir!()) end)
    kill_when(due, vm, pid)
  end

  @doc """
  Runs a script with this Sconce in a VM of its own, which gets a signal after it has written its id to the file `pid`;
  `before` is called just before the signal. Returns whether the VM then ended by itself.
  """
  def elixir_told_to_stop(script, pid, before, signal \\ "TERM") do
    args = ["-pa", Application.app_dir(:sconce, "ebin"), "-e", script]
    vm = Task.async(fn -> heard("elixir", args) end)
    wait_for(pid, vm)
    before.()
    {_output, 0} = System.cmd("kill", ["-" <> signal, File.read!(pid)])
    {_output, status} = Task.await(vm, 60_000)
    status == 0
  end

  # Under `nohup` the tests ignore SIGHUP, and the program would inherit that.
  defp heard(program, args) do
    default = ["--default-signal=HUP"]

    case run("env", default ++ ["true"], System.tmp_dir!()) do
      {_output, 0} -> run("env", default ++ [program | args], System.tmp_dir!())
      _older_env -> run(program, args, System.tmp_dir!())
    end
  end

  defp wait_for(file, vm) do
    cond do
      outcome = Task.yield(vm, 10) -> raise "the VM ended too early: #{inspect(outcome)}"
      match?({:ok, <<_, _::binary>>}, File.read(file)) -> :ok
      true -> wait_for(file, vm)
    end
  end

  defp kill_when(due, vm, pid) do
    cond do
      outcome = Task.yield(vm, 10) ->
        raise "the VM ended too early: #{inspect(outcome)}"

      due.() ->
        {_output, 0} = System.cmd("kill", ["-9", File.read!(pid)])
        Task.await(vm, 30_000)

      true ->
        kill_when(due, vm, pid)
    end
  end

  @doc """
  Runs a program in `dir` without the settings of this test run, except for the limit of the CPU's features, on which
  bits depend; returns `{output, status}`.
  """
  def run(program, args, dir, env \\ []) do
    clean =
      for {"SCONCE_" <> _ = name, _value} <- System.get_env(),
          name != "SCONCE_CPU",
          do: {name, nil}

    apart = [{"MIX_ENV", "prod"}, {"MIX_BUILD_PATH", nil}, {"CI", nil}, {"LC_ALL", "C.UTF-8"}]
    # Beside other tests a run at background priority takes too long.
    apart = apart ++ [{"SCONCE_BACKGROUND", "normal"}]
    System.cmd(program, args, cd: dir, stderr_to_stdout: true, env: clean ++ apart ++ env)
  end
end
