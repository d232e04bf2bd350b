# Checks that a run does not notice its watchers, and measures what they cost:
#
#     mix run watched.exs | tee watched.txt                  # three times three runs of four minutes, with a hundred kills each
#     mix run watched.exs --pairs 1 --kills 5 --minutes 0.3
#     mix run watched.exs --pairs 1 --threads 1 --seed 7
#
# The same seeded run, a GRU on games that are made for it, is made in a VM of its own in three ways, one after the other, and
# `--pairs` times, beginning with another way each time:
#
#   alone     without a watcher
#   watched   `mix sconce.monitor RUN` is started in a pseudo-terminal, and killed with SIGKILL within `--linger` seconds after
#             its first picture, `--kills` times, `--at-once` at the same time
#   control   the same, of a copy of the run's files in another folder, made before the first view
#
# A start of Mix takes more than a second of CPU, which the run lacks where all cores are in use: that is the difference of
# control and alone. The views of the control do the same work and touch nothing of the run, so the ratio of watched and
# control is the effect on the run itself. Times decide nothing. `wall` is the time of the run without the start of its VM,
# `step` that of a step by the run's own histogram, `cpu` that of the run's VM, and `views` that of all views together.
#
# At the end a run is killed with SIGKILL, and `mix sconce.monitor RUN --once` must draw it as DEAD, with its last figures.
#
# The status is 1 if the tensors of one file differ between two runs, if a view did not show the run, or ended by itself, or
# was killed after the end of the run, if watchers left a file behind, or if the picture of the dead run is wrong.

defmodule Watched do
  alias Sconce.Bench.{Child, Footprint, Machine, Output, Viewer}
  alias Sconce.{Corpus, Figures, Monitor, Trainer}
  alias Sconce.Monitor.{Graph, Snapshot}

  @defaults [pairs: 3, kills: 100, minutes: 4.0, at_once: 2, linger: 1.5, threads: 0, seed: 0]
  @switches [pairs: :integer, kills: :integer, minutes: :float, at_once: :integer] ++
              [linger: :float, threads: :integer, seed: :integer]
  @arms ~w(alone watched control)
  # Steps of the first run, which measures how many a minute has.
  @first_steps 3_000
  @boot_ms 60_000
  @view_ms 60_000
  @run_ms 7_200_000
  @columns_of_once 80

  @columns [
    {"pair", 4, :right},
    {"run", 7, :left},
    {"wall s", 7, :right},
    {"steps/s", 8, :right},
    {"step p50 us", 11, :right},
    {"p99 us", 8, :right},
    {"cpu s", 7, :right},
    {"kills", 5, :right},
    {"views cpu s", 11, :right},
    {"peak MB", 7, :right},
    {"weights", 0, :left}
  ]

  # This script is also the VM with the run.
  def main(["--train", dir, steps, threads]),
    do: train(dir, String.to_integer(steps), String.to_integer(threads))

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = @defaults |> Keyword.merge(opts) |> Map.new()
    :rand.seed(:exsss, opts.seed)
    dir = Path.join(System.tmp_dir!(), "sconce-watched-#{System.pid()}")
    IO.puts(Output.header(Machine.describe()))

    right? =
      try do
        games!(Path.join(dir, "corpus"), opts.seed)
        steps = steps(dir, opts)
        compared?(dir, steps, opts) and dead?(dir, opts)
      after
        File.rm_rf!(dir)
      end

    if not right?, do: System.halt(1)
  end

  # The action repeats the observation of three frames ago.
  defp games!(into, seed) do
    :rand.seed(:exsss, {seed, 2, 3})

    games =
      for _game <- 1..24 do
        bits = for _frame <- 1..400, do: :rand.uniform(2) - 1
        {for(bit <- bits, do: [bit * 2.0 - 1.0, 0.5]), [0, 0, 0] ++ Enum.drop(bits, -3)}
      end

    heads = [go: {:categorical, 2}]
    {:ok, _corpus} = Corpus.build({:vector, 2}, games, into: into, heads: heads)
  end

  # The steps that take `--minutes` without a watcher.
  defp steps(dir, opts) do
    found = measured("alone", Path.join(dir, "first"), dir, @first_steps, opts)
    steps = max(round(@first_steps / found.wall_s * 60 * opts.minutes), @first_steps)
    IO.puts("#{Figures.grouped(steps)} steps, #{opts.kills} views of each watched run\n")
    steps
  end

  defp compared?(dir, steps, opts) do
    IO.puts(Output.line(@columns, for({title, _width, _side} <- @columns, do: title)))

    pairs =
      for pair <- 1..opts.pairs//1 do
        {later, first} = Enum.split(@arms, rem(pair - 1, length(@arms)))
        for arm <- first ++ later, into: %{}, do: {arm, shown(pair, arm, dir, steps, opts)}
      end

    ratios(pairs)
    views(pairs)
    wrong = for arms <- pairs, {_arm, found} <- arms, wrong <- found.wrong, do: wrong
    same?(pairs) and wrong == []
  end

  defp shown(pair, arm, dir, steps, opts) do
    found = measured(arm, Path.join(dir, "#{pair}-#{arm}"), dir, steps, opts)
    cpu = found.views_cpu

    cells = [
      "#{pair}",
      arm,
      decimal(found.wall_s, 1),
      Figures.grouped(round(steps / found.wall_s)),
      decimal(found.p50 / 1000, 1),
      decimal(found.p99 / 1000, 1),
      decimal(found.cpu_s, 1),
      "#{length(cpu)}",
      decimal(Enum.sum(cpu), 1),
      decimal(found.peak / 1.0e6, 1),
      String.slice(found.digest, 0, 12)
    ]

    IO.puts(Output.line(@columns, cells))
    for wrong <- found.wrong, do: IO.puts("WRONG: pair #{pair}, #{arm}: #{wrong}")
    found
  end

  defp decimal(number, decimals), do: :erlang.float_to_binary(number / 1, decimals: decimals)

  defp ratios(pairs) do
    names = ["wall", "step p50", "p99", "run's cpu", "peak"]
    titles = Enum.map_join(names, &String.pad_leading(&1, 11))
    IO.puts("\n" <> String.pad_trailing("median ratio", 18) <> titles)

    for {arm, base} <- [{"watched", "alone"}, {"control", "alone"}, {"watched", "control"}] do
      cells =
        for key <- [:wall_s, :p50, :p99, :cpu_s, :peak] do
          ratio = median(for arms <- pairs, do: arms[arm][key] / arms[base][key])
          String.pad_leading(decimal(ratio, 3), 11)
        end

      IO.puts(String.pad_trailing("#{arm} / #{base}", 18) <> Enum.join(cells))
    end
  end

  defp median(values) do
    sorted = Enum.sort(values)
    n = length(sorted)
    (Enum.at(sorted, div(n - 1, 2)) + Enum.at(sorted, div(n, 2))) / 2
  end

  defp views(pairs) do
    for arm <- ["watched", "control"] do
      cpu = for arms <- pairs, seconds <- arms[arm].views_cpu, do: seconds
      wall = Enum.sum(for arms <- pairs, do: arms[arm].wall_s)
      cores = decimal(Enum.sum(cpu) / wall, 2)

      if cpu != [] do
        each = "#{decimal(Enum.sum(cpu) / length(cpu), 2)} s of CPU each"
        IO.puts("#{arm}: #{length(cpu)} views, #{each}, #{cores} cores over the time of the runs")
      end
    end
  end

  defp same?(pairs) do
    digests = for arms <- pairs, {_arm, found} <- arms, do: {found.names, found.digest}

    case Enum.uniq(digests) do
      [{names, digest}] ->
        IO.puts("the same bits in all runs: #{Enum.join(names, ", ")}, SHA-256 #{digest}")
        true

      several ->
        IO.puts("WRONG: different weights: #{inspect(several)}")
        false
    end
  end

  # One run

  defp measured(arm, here, dir, steps, opts) do
    run = start(here, dir, steps, opts)

    try do
      viewed = viewed(arm, run, opts)
      found = run.dir |> wait("result", run.child, @run_ms) |> :erlang.binary_to_term()
      {names, digest} = digest(run.out)
      ended!(run.child)

      wrong =
        for({:error, reason} <- viewed, do: reason) ++ missing(arm, viewed, opts) ++ left(run)

      views = %{views_cpu: for({:ok, seconds} <- viewed, do: seconds)}
      found |> Map.merge(views) |> Map.merge(%{names: names, digest: digest, wrong: wrong})
    after
      Child.signal(run.child, "KILL")
      File.rm_rf!(here)
    end
  end

  defp start(here, dir, steps, opts) do
    File.mkdir_p!(here)
    [out, state] = for name <- ~w(run state), do: Path.join(here, name)
    File.ln_s!(Path.join(dir, "corpus"), Path.join(here, "corpus"))
    arguments = ["--train", here, "#{steps}", "#{opts.threads}"]
    env = "export SCONCE_MONITOR_DIR='#{state}'"
    child = Child.script(__ENV__.file, arguments, limit: env)
    %{child: child, dir: here, out: out, state: state}
  end

  defp ended!(child) do
    %{status: status, output: output} = Child.await(child, @boot_ms)
    if status != 0, do: raise("the run: #{Child.ending(status)}: #{output}")
  end

  defp viewed("alone", _run, _opts), do: []

  defp viewed(arm, run, opts) do
    id = begun(run, @boot_ms)
    folder = if arm == "watched", do: run.state, else: copied(run)
    counts = for i <- 1..opts.at_once, do: div(opts.kills + i - 1, opts.at_once)

    counts
    |> Enum.map(&Task.async(fn -> killed(&1, arm, id, folder, run, opts) end))
    |> Task.await_many(:infinity)
    |> Enum.concat()
  end

  # Waits for the file of the run, and for figures in it. Returns the run's id.
  defp begun(run, ms) do
    with {:ok, snapshots} <- Snapshot.list(run.state),
         %{id: id} = found <- Enum.find(snapshots, &(&1.kind == :run)),
         step when is_number(step) and step > 0 <- Snapshot.value(found, "step.step") do
      id
    else
      _not_yet when ms <= 0 -> raise "no run: #{inspect(Child.kill(run.child))}"
      _not_yet -> Process.sleep(50) && begun(run, ms - 50)
    end
  end

  defp copied(run) do
    folder = Path.join(run.dir, "copy")
    File.cp_r!(run.state, folder)
    folder
  end

  # Returns `{:ok, seconds of CPU}` for each view that was killed while it showed the run.
  defp killed(0, _arm, _id, _folder, _run, _opts), do: []

  defp killed(n, arm, id, folder, run, opts) do
    if running?(run),
      do: [view(arm, id, folder, run, opts) | killed(n - 1, arm, id, folder, run, opts)],
      else: []
  end

  defp running?(run), do: not File.exists?(Path.join(run.dir, "result"))

  defp view(arm, id, folder, run, opts) do
    {:ok, viewer} = Viewer.mix(["sconce.monitor", run.out, "--dir", folder])
    # The last line of a picture.
    drawn = Viewer.shows(viewer, "q ends", @view_ms)
    Process.sleep(round(:rand.uniform() * opts.linger * 1000))
    output = Viewer.output(viewer)
    running? = running?(run)
    seconds = Viewer.kill(viewer)

    cond do
      not running? -> {:error, "a view was killed after the end of the run: more --minutes"}
      drawn != :ok -> drawn
      seconds == nil -> {:error, "a view ended by itself: #{inspect(output)}"}
      not shows?(arm, output, id) -> {:error, "a view shows another picture: #{inspect(output)}"}
      true -> {:ok, seconds}
    end
  end

  # A copy is silent after ten seconds.
  defp shows?("watched", output, id), do: output =~ "run #{id}" and output =~ "running"
  defp shows?("control", output, id), do: output =~ "run #{id}"

  defp missing("alone", [], _opts), do: []

  defp missing(_arm, viewed, opts) do
    case opts.kills - length(viewed) do
      0 -> []
      n -> ["#{n} views had no time: more --minutes"]
    end
  end

  # The file of the VM goes at its end, and that of the run stays.
  defp left(run) do
    case File.ls!(run.state) |> Enum.reject(&(&1 =~ ~r/\A[0-9a-f]{8}\.run\z/)) do
      [] -> []
      left -> ["left behind: #{inspect(left)}"]
    end
  end

  # The files of weights and the digest of their tensors. The header before them records how long the run took.
  defp digest(out) do
    paths = out |> Path.join("*.safetensors") |> Path.wildcard()

    tensors =
      for path <- paths do
        <<length::64-little, _header::binary-size(length), tensors::binary>> = File.read!(path)
        [Path.basename(path), tensors]
      end

    {Enum.map(paths, &Path.basename/1),
     Base.encode16(:crypto.hash(:sha256, tensors), case: :lower)}
  end

  defp wait(dir, name, child, ms) do
    cond do
      File.exists?(Path.join(dir, name)) -> File.read!(Path.join(dir, name))
      ms <= 0 -> raise "no #{name}: #{inspect(Child.kill(child))}"
      ended = Child.ended(child, 50) -> raise "#{Child.ending(ended.status)}: #{ended.output}"
      true -> wait(dir, name, child, ms - 50)
    end
  end

  # A run that is killed

  defp dead?(dir, opts) do
    run = start(Path.join(dir, "dead"), dir, 1_000_000_000, opts)

    try do
      id = begun(run, @boot_ms)
      path = Path.join(run.state, id <> ".run")
      Process.sleep(3_000)
      {:ok, before} = Snapshot.open(path)
      killed_ms = System.os_time(:millisecond)
      %{status: 137} = Child.kill(run.child)
      {:ok, last} = Snapshot.open(path)
      {text, status} = once(run)

      IO.puts(
        "\na run that was killed, #{killed_ms - last.heartbeat_ms} ms after its last figures:\n"
      )

      IO.puts(text)
      wrong = if status == 0, do: [], else: ["the view ended with #{status}"]
      wrong = wrong ++ older(before, last) ++ differs(text, id, last)
      for one <- wrong, do: IO.puts("WRONG: #{one}")
      wrong == []
    after
      Child.signal(run.child, "KILL")
    end
  end

  defp once(run) do
    size = ["--columns", "#{@columns_of_once}"]
    arguments = ["sconce.monitor", run.out, "--once", "--dir", run.state] ++ size
    System.cmd("mix", arguments, stderr_to_stdout: true)
  end

  defp older(before, last) do
    [a, b] = for snapshot <- [before, last], do: Snapshot.value(snapshot, "step.step")
    if b >= a, do: [], else: ["step #{b} after the kill, and #{a} before it"]
  end

  # The picture must have the figures of the file.
  defp differs(text, id, last) do
    {_date, {hour, minute, second}} =
      last.heartbeat_ms |> div(1000) |> :calendar.system_time_to_local_time(:second)

    clock = Enum.map_join([hour, minute, second], ":", &String.pad_leading("#{&1}", 2, "0"))
    step = Figures.grouped(round(Snapshot.value(last, "step.step")))

    figures =
      for name <- ~w(step.loss step.grad_norm step.learning_rate step.epoch) do
        number = Graph.measure(Snapshot.value(last, name), "")
        ~r/\Q#{name}\E +\Q#{number}\E /
      end

    for pattern <-
          [
            ~r/^run #{id} · imitation · DEAD · /,
            ~r/^process gone \(killed\?\), last figures at #{clock}, \d+ s ago$/m,
            ~r/ · step #{step} of 1,000,000,000( |$)/m
          ] ++ figures,
        not (text =~ pattern),
        do: "the picture has no #{inspect(pattern)}"
  end

  # The VM with the run

  defp train(dir, steps, threads) do
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    start = System.monotonic_time(:nanosecond)
    own = if threads > 0, do: [threads: threads], else: []
    {:ok, run} = Trainer.start_link(settings(dir, steps) ++ own)
    {:ok, %{saves: %{failed: []}}} = Trainer.await(run)
    wall = (System.monotonic_time(:nanosecond) - start) / 1.0e9
    {:ok, %{"sconce_train_step_seconds" => %{count: ^steps} = times}} = Monitor.read()

    result = %{
      wall_s: wall,
      p50: times.p50,
      p99: times.p99,
      cpu_s: Viewer.seconds(System.pid()),
      peak: Footprint.peak()
    }

    path = Path.join(dir, "result")
    File.write!(path <> ".new", :erlang.term_to_binary(result))
    File.rename!(path <> ".new", path)
  end

  defp settings(dir, steps) do
    [
      corpus: Path.join(dir, "corpus"),
      out: Path.join(dir, "run"),
      steps: steps,
      validate_every: max(div(min(steps, 100_000), 10), 1),
      keep_best: 2,
      backbone: :gru,
      hidden_size: 32,
      batch_size: 16,
      window_size: 20,
      stride: 10,
      unroll: :carry,
      ema_decay: 0.99,
      loss: :plain,
      evaluate: false
    ]
  end
end

Watched.main(System.argv())
