# Compares a run that is killed repeatedly with an uninterrupted one:
#
#     mix run soak.exs                                  # half an hour, twenty kills
#     mix run soak.exs --steps 20000 --kills 5 --minutes 0.5 --save-seconds 1
#
# The same seeded run is made twice concurrently, each process in its own VM. One is uninterrupted; its
# resident memory, file descriptors and threads are printed over time. The other is killed with `kill -9` at
# random moments within `--minutes`, and resumed each time. At the end the tensors of both must have the
# same bits in every file; the status is 1 otherwise. The steps should take longer than the minutes, because
# kills after the end do not count.

defmodule Soak do
  @defaults [steps: 400_000, kills: 20, minutes: 30.0, save_seconds: 60.0, seed: 0, samples: 12]
  @switches [steps: :integer, kills: :integer, minutes: :float, save_seconds: :float] ++
              [seed: :integer, samples: :integer]

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = Keyword.merge(@defaults, opts)
    :rand.seed(:exsss, opts[:seed])
    dir = Path.join(System.tmp_dir!(), "sconce-soak-#{System.pid()}")
    File.mkdir_p!(dir)

    try do
      soak(corpus!(dir), dir, opts)
    after
      File.rm_rf!(dir)
    end
  end

  defp soak(corpus, dir, opts) do
    straight = %{corpus: corpus, out: Path.join(dir, "straight"), opts: opts}
    through = Task.async(fn -> through(straight) end)
    killed = %{straight | out: Path.join(dir, "killed")}
    for n <- 1..opts[:kills]//1, do: kill(killed, n, 60 * opts[:minutes] / opts[:kills])
    {_seconds, samples} = through(killed)
    IO.puts("the last of #{opts[:kills] + 1} processes:")
    table(samples, opts[:samples])

    {seconds, samples} = Task.await(through, :infinity)
    IO.puts("uninterrupted, meanwhile: #{opts[:steps]} steps in #{round(seconds)} s")
    table(samples, opts[:samples])
    compare(straight.out, killed.out)
  end

  # The action repeats the observation of three frames ago.
  defp corpus!(dir) do
    :rand.seed(:exsss, {1, 2, 3})

    games =
      for _game <- 1..24 do
        bits = for _frame <- 1..400, do: :rand.uniform(2) - 1
        {for(bit <- bits, do: [bit * 2.0 - 1.0, 0.5]), [0, 0, 0] ++ Enum.drop(bits, -3)}
      end

    into = Path.join(dir, "corpus")

    {:ok, _} =
      Sconce.Corpus.build({:vector, 2}, games, into: into, heads: [go: {:categorical, 2}])

    into
  end

  defp start(run) do
    opts = [
      corpus: run.corpus,
      out: run.out,
      # The first process has nothing to resume.
      resume: File.exists?(Path.join(run.out, "run.json")),
      steps: run.opts[:steps],
      save_minutes: run.opts[:save_seconds] / 60,
      validate_every: max(div(run.opts[:steps], 10), 1),
      keep_best: 3,
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

    pid = run.out <> ".pid"
    File.rm(pid)

    script = """
    File.write!(#{inspect(pid <> ".new")}, System.pid())
    File.rename!(#{inspect(pid <> ".new")}, #{inspect(pid)})
    {:ok, run} = Sconce.Trainer.start_link(#{inspect(opts, limit: :infinity)})
    {:ok, %{saves: %{failed: []}}} = Sconce.Trainer.await(run)
    """

    vm =
      Task.async(fn ->
        System.cmd("elixir", Sconce.Bench.Child.code_paths() ++ ["-e", script],
          stderr_to_stdout: true
        )
      end)

    {vm, wait_for(pid)}
  end

  defp wait_for(file) do
    case File.read(file) do
      {:ok, pid} -> pid
      _not_yet -> Process.sleep(10) && wait_for(file)
    end
  end

  # Runs to the end. Returns the seconds and the samples taken meanwhile.
  defp through(run) do
    began = now()
    {vm, pid} = start(run)
    {{output, status}, samples} = watch(vm, pid, began, [])
    if status != 0, do: raise("the run ended with #{status}: #{output}")
    {now() - began, samples}
  end

  defp watch(vm, pid, began, samples) do
    case Task.yield(vm, 250) do
      {:ok, outcome} -> {outcome, Enum.reverse(samples)}
      nil -> watch(vm, pid, began, look(pid, began) ++ samples)
    end
  end

  defp look(pid, began) do
    with {:ok, status} <- File.read("/proc/#{pid}/status"),
         {:ok, files} <- File.ls("/proc/#{pid}/fd"),
         [_, kb] <- Regex.run(~r/VmRSS:\s+(\d+)/, status),
         [_, threads] <- Regex.run(~r/Threads:\s+(\d+)/, status) do
      [{now() - began, String.to_integer(kb) / 1024, length(files), String.to_integer(threads)}]
    else
      _gone -> []
    end
  end

  # Up to twice the mean: some are killed before their first step, others after many.
  defp kill(run, n, mean) do
    {vm, pid} = start(run)
    after_ms = round(2000 * mean * :rand.uniform())

    case Task.yield(vm, after_ms) do
      nil ->
        {_output, 0} = System.cmd("kill", ["-9", pid])
        Task.await(vm, 60_000)
        IO.puts("kill #{n} after #{after_ms} ms, #{whole(run.out)}")

      {:ok, {output, 0}} ->
        IO.puts("kill #{n} came too late#{output}")

      {:ok, {output, status}} ->
        raise "the run ended with #{status}: #{output}"
    end
  end

  # Every file in place must be whole.
  defp whole(out) do
    files = Path.wildcard(Path.join(out, "*.safetensors"))

    for file <- files do
      {:ok, _policy} = Sconce.Policy.load(file)
    end

    "#{length(files)} files, all whole"
  end

  defp table(samples, rows) do
    IO.puts("  seconds   resident MB   descriptors   threads")

    for {s, mb, files, threads} <- Enum.take_every(samples, max(div(length(samples), rows), 1)) do
      IO.puts(:io_lib.format("~9.1f ~13.1f ~13w ~9w", [s, mb, files, threads]))
    end
  end

  defp compare(straight, killed) do
    names =
      for file <- Path.wildcard(Path.join(straight, "*.safetensors")), do: Path.basename(file)

    same? =
      Enum.sort(names) ==
        Enum.sort(
          for f <- Path.wildcard(Path.join(killed, "*.safetensors")), do: Path.basename(f)
        )

    other =
      Enum.reject(names, &(tensors(Path.join(straight, &1)) == tensors(Path.join(killed, &1))))

    if same? and other == [] do
      IO.puts("the same bits in #{Enum.join(names, ", ")}")
    else
      IO.puts("DIFFERENT: #{inspect(other)} of #{inspect(names)}")
      System.halt(1)
    end
  end

  # The bytes after the header. The header records how long the run took.
  defp tensors(path) do
    with {:ok, <<length::64-little, _header::binary-size(length), tensors::binary>>} <-
           File.read(path),
         do: tensors
  end

  defp now, do: System.monotonic_time(:millisecond) / 1000
end

Soak.main(System.argv())
