# Measures the lateness of processes and decisions beside other work in one VM, under settings of the VM and
# of Sconce:
#
#     mix run schedulers.exs
#     SCONCE_REPLAYS=replays mix run schedulers.exs --seconds 10 --rounds 3 --only "default|idle"
#
# Each setting runs in its own VM. Beside each load, one process is woken every millisecond and records its
# lateness. Others decide every 4 ms with their own sessions, some on the inline lane and some on a
# serving's worker, and record the time of each decision. One more calls a no-op dirty NIF. The loads are:
# none; eight processes of plain Elixir work; eight processes that decide as fast as they can; a training
# run and an import with their default threads, alone and beside plain Elixir work. Settings alternate
# within a round, so that other work on the machine affects all equally. Times are in milliseconds; `work/s`
# is the throughput of the load in loops, decisions, frames or games.

for name <- ~w(latency policies), do: Code.require_file("#{name}.exs", __DIR__)

defmodule Schedulers do
  alias Sconce.Bench.{Frames, Machine, Output}
  alias Sconce.{Corpus, Figures, Native, Serving, Session, Trainer}

  @defaults [seconds: 5.0, rounds: 3, processes: 8, only: ".*", loads: ".*"]
  @switches [
    seconds: :float,
    rounds: :integer,
    processes: :integer,
    only: :string,
    loads: :string,
    child: :string
  ]

  # {name, flags of the VM, variables}
  @settings [
    {"default", "", []},
    {"background normal", "", [{"SCONCE_BACKGROUND", "normal"}]},
    {"background idle", "", [{"SCONCE_BACKGROUND", "idle"}]},
    {"+sbwt none", "+sbwt none +sbwtdcpu none +sbwtdio none", []},
    {"+sbwt very_long", "+sbwt very_long +sbwtdcpu very_long +sbwtdio very_long", []},
    {"+sbt db", "+sbt db", []},
    {"+SDcpu 1:1", "+SDcpu 1:1", []},
    {"+S 1:1", "+S 1:1", []},
    {"+S twice", "+S #{2 * System.schedulers()}:#{2 * System.schedulers()}", []}
  ]
  @loads ["none", "plain Elixir", "act, mlp", "act, gru", "training", "import"] ++
           ["training, Elixir", "import, Elixir"]

  @percents [50, 99, 99.9]
  # Milliseconds between two dirty calls, and between two decisions of one process.
  @pause 2
  @turn 4
  @players 4
  # Loop iterations that take about as long as a decision.
  @loop 10_000
  # Waits until startup work (opening, compiling, first reads) is over.
  @settle_ms 1_500

  @columns [
    {"setting", 18, :left},
    {"load", 17, :left},
    {"work/s", 10, :right},
    {"tick p50", 9, :right},
    {"p99", 7, :right},
    {"p99.9", 7, :right},
    {"act p50", 8, :right},
    {"p99", 7, :right},
    {"p99.9", 7, :right},
    {"served p50", 11, :right},
    {"p99", 7, :right},
    {"p99.9", 7, :right},
    {"dirty p50", 10, :right},
    {"p99", 7, :right},
    {"p99.9", 7, :right}
  ]

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = @defaults |> Keyword.merge(opts) |> Map.new()
    if opts[:child], do: child(opts), else: parent(opts, args)
  end

  defp parent(opts, args) do
    IO.puts([Output.header(Machine.describe()), "commit ", commit()])
    {_frames, origin} = Frames.sequence()
    IO.puts("#{opts.processes} processes, #{origin} frames, #{System.schedulers()} schedulers\n")

    settings =
      for {name, _, _} = setting <- @settings, name =~ Regex.compile!(opts.only), do: setting

    measured =
      Frames.scratched(fn scratch ->
        games = games(scratch)
        corpus = Path.join(scratch, "corpus")
        {:ok, _corpus} = Corpus.import(games, into: corpus, progress: false)

        for _round <- 1..opts.rounds, setting <- settings do
          {elem(setting, 0), measured(setting, scratch, args)}
        end
      end)

    IO.puts(Output.line(@columns, for({title, _width, _side} <- @columns, do: title)))

    for {name, _flags, _variables} <- settings, load <- @loads do
      found = for {^name, loads} <- measured, {^load, one} <- loads, do: one
      if found != [], do: IO.puts(line(name, load, found))
    end
  end

  defp commit do
    case System.cmd("git", ["rev-parse", "--short", "HEAD"], stderr_to_stdout: true) do
      {commit, 0} -> String.trim(commit)
      _no_git -> "unknown"
    end
  end

  defp games(scratch) do
    case System.get_env("SCONCE_REPLAYS") do
      nil -> Frames.make_games(Path.join(scratch, "games"))
      dir -> Frames.replays(dir)
    end
  end

  # Starts a VM with this setting, and reads the times that it leaves in a file.
  defp measured({_name, flags, variables}, scratch, args) do
    given = System.get_env("ELIXIR_ERL_OPTIONS", "")
    env = [{"ELIXIR_ERL_OPTIONS", String.trim("#{given} #{flags}")} | variables]
    run = ["run", "--no-compile", __ENV__.file] ++ args ++ ["--child", scratch]
    {output, status} = System.cmd("mix", run, env: env, stderr_to_stdout: true)
    status == 0 || raise output
    scratch |> Path.join("measured") |> File.read!() |> :erlang.binary_to_term()
  end

  defp child(%{child: scratch} = opts) do
    frames = Frames.sequence()
    loads = for load <- @loads, load =~ Regex.compile!(opts.loads), do: load
    measured = for load <- loads, do: {load, measure(load, scratch, frames, opts)}
    scratch |> Path.join("measured") |> File.write!(:erlang.term_to_binary(measured))
  end

  defp measure(load, scratch, {frames, _origin}, opts) do
    done = :counters.new(1, [])
    works = start(load, done, scratch, opts.processes)
    Process.sleep(@settle_ms)
    until = System.monotonic_time(:millisecond) + round(opts.seconds * 1000)
    before = :counters.get(done, 1)
    policy = Policies.init!(:gru)
    {:ok, serving} = Serving.start_link(policy: policy, lane: :worker)

    own = fn -> Session.open(policy, lane: :inline, seed: 1) end
    served = fn -> Serving.open(serving, seed: 1) end
    watch = fn name, fun -> {name, Task.async(fn -> fun.(until) end)} end

    watchers =
      [watch.(:tick, &ticks/1), watch.(:dirty, &dirty/1)] ++
        for {name, open} <- [act: own, served: served],
            player <- 1..@players,
            do: watch.(name, &play(&1, open, frames, player))

    times = for {name, task} <- watchers, do: {name, Task.await(task, :infinity)}
    made = :counters.get(done, 1) - before
    :ok = Serving.stop(serving)
    Enum.each(works, & &1.())
    %{rate: made / opts.seconds, times: times}
  end

  # Starts a load. Returns the functions that stop it.
  defp start("none", _done, _scratch, _n), do: []
  defp start("plain Elixir", done, _scratch, n), do: processes(n, fn -> loop(done) end)
  defp start("act, mlp", done, _scratch, n), do: deciding(:mlp, done, n)
  defp start("act, gru", done, _scratch, n), do: deciding(:gru, done, n)
  defp start("training", done, scratch, _n), do: [training(done, scratch)]
  defp start("import", done, scratch, _n), do: [importing(done, scratch)]

  defp start("training, Elixir", done, scratch, n),
    do: [training(done, scratch) | processes(n, fn -> loop(:counters.new(1, [])) end)]

  defp start("import, Elixir", done, scratch, n),
    do: [importing(done, scratch) | processes(n, fn -> loop(:counters.new(1, [])) end)]

  defp processes(n, work) do
    for _ <- 1..n do
      worker = spawn_link(work)
      fn -> stop(worker) end
    end
  end

  defp deciding(name, done, n) do
    policy = Policies.init!(name)
    {frames, _origin} = Frames.sequence()

    processes(n, fn ->
      {:ok, session} = Session.open(policy, lane: :inline, seed: 1)
      decide(session, frames, 0, done)
    end)
  end

  defp decide(session, frames, i, done) do
    {:ok, _action} = Session.act(session, elem(frames, rem(i, tuple_size(frames))))
    :counters.add(done, 1, 1)
    decide(session, frames, i + 1, done)
  end

  defp loop(done) do
    _sum = spin(@loop, 0)
    :counters.add(done, 1, 1)
    loop(done)
  end

  defp spin(0, sum), do: sum
  defp spin(n, sum), do: spin(n - 1, rem(sum * 31 + n, 65_521))

  @training [batch_size: 16, window_size: 60, steps: 1_000_000] ++
              [backbone: :gru, hidden_size: 256, num_layers: 2, seed: 1, prefetch: 2]

  defp training(done, scratch) do
    out = Path.join(scratch, "run-#{System.unique_integer([:positive])}")
    frames = @training[:batch_size] * @training[:window_size]

    progress = fn
      %{event: :step} -> :counters.add(done, 1, frames)
      _other -> :ok
    end

    opts = [corpus: Path.join(scratch, "corpus"), out: out, progress: progress]
    {:ok, run} = Trainer.start_link(opts ++ @training)
    fn -> GenServer.stop(run, :normal, :infinity) end
  end

  defp importing(done, scratch) do
    worker = spawn_link(fn -> import_all(games(scratch), done, scratch) end)
    fn -> stop(worker) end
  end

  defp import_all(games, done, scratch) do
    into = Path.join(scratch, "import-#{System.unique_integer([:positive])}")
    progress = fn _told -> :counters.add(done, 1, 1) end
    {:ok, _corpus} = Corpus.import(games, into: into, progress: progress)
    File.rm_rf!(into)
    import_all(games, done, scratch)
  end

  defp stop(worker) do
    Process.unlink(worker)
    monitor = Process.monitor(worker)
    Process.exit(worker, :kill)
    receive do: ({:DOWN, ^monitor, _, _, _} -> :ok)
  end

  defp play(until, open, frames, player) do
    {:ok, session} = open.()
    took = Latency.new(room(until, @turn))
    # The first decision also processes a window.
    {:ok, _action} = Session.act(session, elem(frames, 0))
    play(until, session, frames, player, took)
    Session.close(session)
    Latency.sorted(took)
  end

  defp play(until, session, frames, i, took) do
    if System.monotonic_time(:millisecond) < until do
      Process.sleep(@turn)
      frame = elem(frames, rem(i, tuple_size(frames)))
      start = System.monotonic_time(:nanosecond)
      {:ok, _action} = Session.act(session, frame)
      Latency.add(took, System.monotonic_time(:nanosecond) - start)
      play(until, session, frames, i + 1, took)
    end
  end

  # Lateness relative to each millisecond. If several ticks are due at one wake-up, each is recorded.
  defp ticks(until) do
    now = System.monotonic_time(:millisecond)
    late = Latency.new(room(until, 1))
    tick(now + 1, until, late)
    Latency.sorted(late)
  end

  defp tick(due, until, _late) when due > until, do: :ok

  defp tick(due, until, late) do
    :erlang.start_timer(due, self(), :tick, abs: true)
    receive do: ({:timeout, _timer, :tick} -> :ok)
    now = System.monotonic_time(:nanosecond)
    last = div(now, 1_000_000)
    for tick <- due..last, do: Latency.add(late, now - tick * 1_000_000)
    tick(last + 1, until, late)
  end

  defp dirty(until) do
    took = Latency.new(room(until, @pause))
    dirty(until, took)
    Latency.sorted(took)
  end

  defp dirty(until, took) do
    if System.monotonic_time(:millisecond) < until do
      Process.sleep(@pause)
      start = System.monotonic_time(:nanosecond)
      :ok = Native.bench_dirty()
      Latency.add(took, System.monotonic_time(:nanosecond) - start)
      dirty(until, took)
    end
  end

  # Times that are due until then, plus some spare room.
  defp room(until, each), do: div(max(until - System.monotonic_time(:millisecond), 0), each) + 100

  defp line(setting, load, rounds) do
    rate = Enum.sum(for one <- rounds, do: one.rate) / length(rounds)

    times =
      for name <- [:tick, :act, :served, :dirty] do
        taken = for one <- rounds, {^name, times} <- one.times, time <- times, do: time
        taken |> Enum.sort() |> Latency.percentiles(@percents)
      end

    cells = times |> List.flatten() |> Enum.map(&Latency.cell(&1, :ms))
    Output.line(@columns, [setting, load, Figures.decimal(rate) | cells])
  end
end

Schedulers.main(System.argv())
