defmodule Mix.Tasks.Sconce.MonitorTest do
  # Not async: the folder of the files is a setting of the application.
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch, only: [tmp_dir!: 1, mix: 3]

  alias Mix.Tasks.Sconce.{Monitor, Runs, Train}
  alias Sconce.{Corpus, Policy, Trainer}
  alias Sconce.Monitor.{Folder, Region, Snapshot}

  setup do
    dir = tmp_dir!("monitor-task")
    before = Application.get_env(:sconce, :monitor_dir)
    Application.put_env(:sconce, :monitor_dir, Path.join(dir, "state"))
    File.mkdir_p!(Path.join(dir, "state"))
    on_exit(fn -> Application.put_env(:sconce, :monitor_dir, before) end)
    [dir: dir, state: Path.join(dir, "state")]
  end

  defp begin(dir, opts) do
    games = for n <- 1..3, do: {for(t <- 1..200, do: n / t), for(t <- 1..200, do: rem(t, 2))}
    heads = [fire: {:bernoulli, 1}]
    {:ok, corpus} = Corpus.build({:vector, 1}, games, into: Path.join(dir, "c"), heads: heads)
    spec = [embedding: {:vector, 1}, backbone: :mlp, hidden_sizes: [8], heads: heads]
    small = [batch_size: 2, window_size: 10, stride: 10, val_split: 0, threads: 1]
    out = Path.join(dir, "run")

    {:ok, run} =
      Trainer.start_link([corpus: corpus, out: out, spec: Policy.Spec.new(spec)] ++ small ++ opts)

    run
  end

  defp output(work), do: capture_io(work)

  test "a finished run is drawn by its id, its folder and as the latest", context do
    {:ok, report} = context.dir |> begin(steps: 30) |> Trainer.await()
    [path] = Path.wildcard(Path.join(context.state, "*.run"))
    id = path |> Path.basename() |> Path.rootname()

    for asked <- [[id], [report.out], ["--latest"], [path]] do
      text = output(fn -> Monitor.run(asked ++ ["--once", "--columns", "100"]) end)
      assert text =~ "run #{id} · imitation · done"
      assert text =~ "100 % · step 30 of 30"
      refute text =~ "\e"
    end

    assert output(fn -> Monitor.run(["--once", "--ascii"]) end) =~ ~r/^1 #{id} imitation done/m
    list = output(fn -> Runs.run([]) end)
    assert list =~ ~r/^#{id} imitation done +30\/30/m
    assert list =~ report.out
    assert output(fn -> Runs.run(["tail", id]) end) =~ "#{id}: done."
    assert output(fn -> Runs.run(["stop", id]) end) =~ "does not run any more: done"
  end

  # `script` of util-linux makes a terminal; other systems have another program of this name.
  @tag :pty
  test "in a terminal the view has keys, and leaves the terminal as it was", context do
    {:ok, report} = context.dir |> begin(steps: 30) |> Trainer.await()
    command = "stty rows 24 columns 80; exec mix sconce.monitor --dir #{context.state}"
    env = [{~c"TERM", ~c"xterm"}, {~c"SCONCE_SKIP_NATIVE", ~c"1"}, {~c"SHELL", ~c"/bin/sh"}]
    args = ["-qec", command, "/dev/null"]
    how = [:binary, :exit_status, :use_stdio, :stderr_to_stdout, args: args, env: env]
    port = Port.open({:spawn_executable, System.find_executable("script")}, how)
    first = until(port, "sconce monitor")
    assert first =~ "\e[?1049h\e[?25l"
    Port.command(port, "1")
    assert until(port, "step 30 of 30") =~ "#{report.out}"
    Port.command(port, "0")
    until(port, "sconce monitor")
    Port.command(port, "q")
    assert until(port, :end) =~ "\e[?25h\e[?1049l"
  end

  # The output of a program up to a text, or to its end, which has to be without an error.
  defp until(port, text, output \\ "") do
    if text != :end and output =~ text do
      output
    else
      receive do
        {^port, {:data, data}} -> until(port, text, output <> data)
        {^port, {:exit_status, 0}} when text == :end -> output
        {^port, {:exit_status, status}} -> flunk("ended with #{status}: #{output}")
      after
        60_000 -> flunk("no #{inspect(text)} in #{inspect(output)}")
      end
    end
  end

  test "what is not there is named", context do
    for {args, text} <- [
          {["0000000f", "--once"], "no run 0000000f in #{context.state}"},
          {["--latest", "--once"], "no run in #{context.state}"},
          {["--vm", "1", "--once"], "no VM 1 in"},
          {["a", "b"], "expected one run"},
          {["--latest", "0000000f"], "expected one run"},
          {["--intervall", "1"], "did you mean --interval?"},
          {["--columns", "3"], "--columns"}
        ] do
      assert_raise Mix.Error, ~r/#{Regex.escape(text)}/, fn -> Monitor.run(args) end
    end

    assert_raise Mix.Error, ~r/an id has eight digits/, fn -> Runs.run(["stop", "../../x"]) end
    assert_raise Mix.Error, ~r/0000000f\.run/, fn -> Runs.run(["tail", "0000000f"]) end
    assert_raise Mix.Error, ~r/usage: mix sconce.runs/, fn -> Runs.run(["end"]) end
    assert output(fn -> Runs.run([]) end) =~ "No run in"
  end

  test "a broken file is named", context do
    path = Path.join(context.state, "0000000a.run")
    File.write!(path, String.duplicate("x", 5000))
    assert_raise Mix.Error, ~r/no file of figures/, fn -> Monitor.run(["0000000a", "--once"]) end
    assert_raise Mix.Error, ~r/no file of figures/, fn -> Runs.run(["tail", "0000000a"]) end
    # It hides no other.
    assert output(fn -> Monitor.run(["--once"]) end) =~ "sconce monitor"
  end

  test "a running one is stopped with its state saved", context do
    run = begin(context.dir, steps: 10_000_000)
    :ok = Trainer.subscribe(run)
    assert_receive {:sconce_trainer, ^run, %{event: :step}}, 20_000
    [path] = Path.wildcard(Path.join(context.state, "*.run"))
    id = path |> Path.basename() |> Path.rootname()
    assert output(fn -> Runs.run(["stop", id]) end) =~ "#{id}: stopped."
    assert {:ok, %{stopped: :stopped, out: out}} = Trainer.await(run)
    assert File.exists?(Path.join(out, "last.safetensors"))
    refute File.exists?(Folder.stop(path))
  end

  test "figures are recorded as lines and as a table", context do
    {:ok, _report} = context.dir |> begin(steps: 30) |> Trainer.await()
    file = Path.join(context.dir, "figures")

    for ending <- [".jsonl", ".csv"],
        do: Monitor.run(["--latest", "--record", file <> ending])

    assert [line] = (file <> ".jsonl") |> File.read!() |> String.split("\n", trim: true)
    assert {:ok, %{"figures" => figures, "life" => "done"}} = Sconce.Monitor.Json.decode(line)
    assert figures["step.step"] == 30

    assert [head, row] = (file <> ".csv") |> File.read!() |> String.split("\n", trim: true)
    table = Enum.zip(String.split(head, ","), String.split(row, ",")) |> Map.new()
    assert table["life"] == "done"
    assert table["step.step"] == "30.0"
    # A second recording goes on below.
    Monitor.run(["--latest", "--record", file <> ".csv"])
    assert (file <> ".csv") |> File.read!() |> String.split("\n", trim: true) |> length() == 3

    assert_raise Mix.Error, ~r/no such file or directory/, fn ->
      Monitor.run(["--latest", "--record", Path.join(context.dir, "none/figures.csv")])
    end

    assert_raise Mix.Error, ~r/no space left/, fn ->
      Monitor.run(["--latest", "--record", "/dev/full"])
    end
  end

  test "a run in the background goes on without its starter", context do
    _warm = context.dir |> begin(steps: 1) |> Trainer.await()
    out = Path.join(context.dir, "apart")

    args =
      ~w(--detach --corpus #{context.dir}/c --out #{out} --backbone mlp --hidden-sizes 8) ++
        ~w(--steps 5 --window-size 4 --preset none --val-split 0)

    # The library is built already.
    System.put_env("SCONCE_SKIP_NATIVE", "1")
    on_exit(fn -> System.delete_env("SCONCE_SKIP_NATIVE") end)
    said = output(fn -> Train.run(args) end)
    assert said =~ "mix sconce.monitor #{out} watches it"
    assert [_, pid] = Regex.run(~r/Process (\d+) trains/, said)

    ended? = fn _try ->
      Process.sleep(100)
      match?({_, 1}, System.cmd("kill", ["-0", pid], stderr_to_stdout: true))
    end

    assert Enum.any?(1..500, ended?)
    assert File.exists?(Path.join(out, "report.json")), File.read!(out <> ".log")

    # Without a terminal the view prints, and a run that ends at once is not waited for.
    assert_raise Mix.Error, ~r/ended before it began.*manifest.json not found/s, fn ->
      output(fn -> Train.run(["--monitor", "--corpus", context.dir, "--out", out <> "2"]) end)
    end

    assert_raise Mix.Error, ~r/--out/, fn -> Train.run(["--detach", "--corpus", "c"]) end

    assert_raise Mix.Error, ~r/--detach does not go with --plan/, fn ->
      Train.run(["--plan", "--detach"])
    end
  end

  test "the view of a VM starts no application", context do
    {:ok, region} =
      Region.open(Path.join(context.state, "1-0000000a.vm"), %{kind: "vm", name: "one"}, 8)

    Region.beat(region)
    {:ok, %Snapshot{kind: :vm}} = Snapshot.open(region.path)

    {output, status} =
      mix(
        ["sconce.monitor", "--vm", "1", "--once", "--dir", context.state],
        File.cwd!(),
        [{"MIX_ENV", "test"}, {"SCONCE_SKIP_NATIVE", "1"}]
      )

    assert status == 0, output
    assert output =~ "VM 1 · one"
  end
end
