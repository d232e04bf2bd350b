defmodule Sconce.Bench.Attack.Runs do
  @moduledoc false
  # Items 5, 6, 9 and 11: runs that are stopped, polled, out of disk space, or ended by a signal.

  import Sconce.Bench.Attack, only: [answer: 1]
  import Sconce.Bench.Attack.Fixtures

  alias Sconce.Bench.{Attack, Child, Stress.Stray}
  alias Sconce.{Error, Trainer}

  @polls 200_000

  def rows do
    [
      %Attack{
        item: 5,
        name:
          "accumulation_steps of 2^31 or the largest accepted number, owner killed, then stopped",
        make: &corpus!/1,
        attack: &accumulated/1,
        accept: :answered,
        seconds: nil
      },
      full("a megabyte", 0),
      full("nothing but 8 KB", 8_192),
      %Attack{
        item: 9,
        name: "await(run, 0) 200,000 times",
        make: &corpus!/1,
        attack: &polled/1,
        accept: :answered,
        inputs: @polls,
        mb: nil,
        patience_ms: 180_000
      },
      %Attack{
        item: 9,
        name: "unknown calls, casts and messages to a run and the keeper of runs",
        make: &corpus!/1,
        attack: &stray/1,
        accept: :answered,
        seconds: nil
      }
    ] ++ for(signal <- ~w(TERM HUP QUIT), do: told(signal)) ++ [interrupt()]
  end

  # 5. A run ends soon after its owner, whatever its `accumulation_steps`.

  @ends_ms 3_000

  defp accumulated(dir) do
    most = Enum.find([2 ** 31, 2 ** 24, 2 ** 20, 2 ** 16, 4096, 1024], &accepted?(dir, &1))
    [{"owner killed", owner_killed(dir, most)}, {"stopped", stopped(dir, most)}]
  end

  defp accepted?(dir, steps) do
    _settings = Trainer.Settings.new!(options(dir, "none", steps))
    true
  rescue
    ArgumentError -> false
  end

  defp options(dir, out, steps) do
    dir
    |> Path.join("corpus")
    |> training(Path.join(dir, out))
    |> Keyword.merge(accumulation_steps: steps, epochs: 1)
  end

  defp owner_killed(dir, steps) do
    test = self()

    owner =
      spawn(fn ->
        {:ok, run} = Trainer.start_link(options(dir, "killed", steps))
        send(test, {:run, run})
        Process.sleep(:infinity)
      end)

    run = receive do: ({:run, run} -> run)
    Process.sleep(1_000)
    monitor = Process.monitor(run)
    Process.exit(owner, :kill)
    receive do: ({:DOWN, ^monitor, _, _, _} -> gone(steps)), after: (@ends_ms -> still(steps))
  end

  # The threads must stop with the process.
  defp gone(steps) do
    before = cpu()
    Process.sleep(1_000)
    used = cpu() - before

    if used < 0.3,
      do: {:value, "ended at #{steps}"},
      else: {:raw, "#{used} s of CPU per second are still used"}
  end

  defp still(steps), do: {:raw, "still runs #{@ends_ms} ms later, accumulation_steps #{steps}"}

  # CPU seconds of all threads of this VM. The system reports hundredths of a second.
  defp cpu do
    stat = File.read!("/proc/self/stat")
    fields = stat |> String.split(") ") |> List.last() |> String.split()
    [user, system] = for at <- [11, 12], do: fields |> Enum.at(at) |> String.to_integer()
    (user + system) / 100
  end

  defp stopped(dir, steps) do
    {:ok, run} = Trainer.start_link(options(dir, "stopped", steps))
    Process.sleep(500)
    answer = answer(fn -> with :ok <- Trainer.stop(run), do: Trainer.await(run, @ends_ms) end)
    Process.unlink(run)
    Process.exit(run, :kill)
    if match?({:error, :deadline, _}, answer), do: still(steps), else: answer
  end

  # 6. On a disk of one megabyte, the options fit but the checkpoint does not.

  defp full(what, spare) do
    %Attack{
      item: 6,
      name: "a run on a disk that has room for #{what}",
      make: &small_disk(&1, spare),
      attack: &fill/1,
      accept: &io_with_report/1,
      seconds: nil
    }
  end

  defp small_disk(dir, spare) do
    corpus!(dir)
    disk = Path.join(dir, "disk")
    File.mkdir_p!(disk)

    case System.cmd("mount", ~w(-t tmpfs -o size=1m tmpfs) ++ [disk], stderr_to_stdout: true) do
      {_said, 0} -> leave(disk, spare)
      {said, _status} -> {:skip, "no small disk: #{String.trim(said)}"}
    end
  end

  defp leave(_disk, 0), do: :ok

  defp leave(disk, spare),
    do: File.write!(Path.join(disk, "filler"), :binary.copy("x", 1_048_576 - spare))

  # The weights and the optimiser's moments take three megabytes.
  defp fill(dir) do
    disk = Path.join(dir, "disk")
    opts = dir |> Path.join("corpus") |> training(Path.join(disk, "run"))
    answer = outcome(Keyword.merge(opts, hidden_sizes: [512, 512]), 60_000)

    empty =
      for file <- Path.wildcard(Path.join(disk, "run/*")), empty?(file), do: Path.basename(file)

    [{"run", told_answer(answer)}, {"files", {:value, inspect(empty)}}]
  after
    System.cmd("umount", ["-l", Path.join(dir, "disk")], stderr_to_stdout: true)
  end

  defp empty?(file), do: Path.basename(file) != "lock" and File.stat!(file).size == 0

  defp told_answer({:error, %Error{kind: :io, details: %{report: _}} = error}),
    do: {:error, :io, "with its report: " <> Exception.message(error)}

  defp told_answer(answer), do: answer(fn -> answer end)

  defp io_with_report([{"run", run}, {"files", {:value, empty}}]) do
    run = if match?({:error, :io, "with its report" <> _}, run), do: [], else: [inspect(run)]
    if empty == "[]", do: run, else: run ++ ["files of 0 bytes: #{empty}"]
  end

  # 9. A run that is polled, and a run that gets unknown messages.

  defp long(dir, out),
    do:
      dir
      |> Path.join("corpus")
      |> training(Path.join(dir, out))
      |> Keyword.put(:steps, 100_000_000)

  defp polled(dir) do
    {:ok, run} = Trainer.start_link(long(dir, "run"))
    held = fn -> run |> Process.info(:memory) |> elem(1) end
    before = held.()
    answers = for n <- 1..@polls, reduce: nil, do: (_ -> polled_once(run, n))
    answered(run)
    :erlang.garbage_collect(run)
    grown = held.() - before
    ended = answer(fn -> with :ok <- Trainer.stop(run), do: Trainer.await(run, 60_000) end)
    GenServer.stop(run)

    [{"the last", answers}, {"stop", ended}, {"memory", memory(grown)}]
  end

  defp polled_once(run, _n),
    do: with({:error, %Error{kind: :deadline}} <- Trainer.await(run, 0), do: {:value, "late"})

  # Once the run answers, it has read all earlier messages.
  defp answered(run) do
    with {:error, %Error{kind: :deadline}} <- Trainer.info(run), do: answered(run)
  end

  defp memory(grown) when grown < 1_000_000, do: {:value, "#{grown} bytes more"}
  defp memory(grown), do: {:raw, "#{grown} bytes more in the run's process"}

  defp stray(dir) do
    Process.flag(:trap_exit, true)
    {:ok, run} = Trainer.start_link(long(dir, "run"))
    keeper = Process.whereis(Sconce.Trainer.Keeper)
    Stray.send_all(run)
    Stray.send_all(keeper)

    answers = [
      {"keeper", alive(keeper)},
      {"run", answer(fn -> with :ok <- Trainer.stop(run), do: Trainer.await(run, 60_000) end)}
    ]

    Process.exit(run, :shutdown)
    answers
  end

  defp alive(pid), do: if(Process.alive?(pid), do: {:value, "lives"}, else: {:raw, "ended"})

  # 11. Signals to `mix sconce.train`.

  defp told(signal) do
    %Attack{
      item: 11,
      name: "SIG#{signal} to mix sconce.train after its first steps",
      make: &corpus!/1,
      attack: &signalled(&1, signal),
      where: :here,
      accept: &saved/1,
      seconds: nil
    }
  end

  @step_ms 60_000

  defp command(dir, out) do
    ["sconce.train", "--corpus", Path.join(dir, "corpus"), "--out", Path.join(dir, out)] ++
      ~w(--backbone mlp --hidden-sizes 24 --batch-size 4 --window-size 10 --loss plain) ++
      ~w(--steps 100000000 --save-minutes 60 --validate-every 100000000 --gradient-report 100)
  end

  defp signalled(dir, signal) do
    child = dir |> command("run") |> Child.mix()
    # The gradient report exists once there are steps.
    begun = wait(Path.join(dir, "run/gradients.jsonl"), @step_ms)
    Child.signal(child, signal)
    ended = Child.await(child, 30_000)
    saved = File.exists?(Path.join(dir, "run/last.safetensors"))
    [{signal, %{begun: begun, saved: saved, status: ended.status, output: ended.output}}]
  end

  defp wait(_file, ms) when ms <= 0, do: false
  defp wait(file, ms), do: File.exists?(file) || (Process.sleep(20) && wait(file, ms - 20))

  defp saved([{_signal, %{begun: true, saved: true, status: status}}]) when status != :hung,
    do: []

  defp saved([{_signal, told}]),
    do: ["begun #{told.begun}, saved #{told.saved}, #{Child.ending(told.status)}"]

  defp interrupt do
    %Attack{
      item: 11,
      name: "mix sconce.train warns about data lost by Ctrl-C",
      make: &corpus!/1,
      attack: &begun/1,
      where: :here,
      accept: &says_ctrl_c/1,
      seconds: nil
    }
  end

  defp begun(dir) do
    child =
      dir |> command("run") |> List.delete("60") |> List.delete("--save-minutes") |> Child.mix()

    wait(Path.join(dir, "run/gradients.jsonl"), @step_ms)
    [{"output", Child.kill(child).output}]
  end

  defp says_ctrl_c([{_what, output}]),
    do: if(output =~ ~r/Ctrl-C/, do: [], else: ["the output is #{inspect(output)}"])
end
