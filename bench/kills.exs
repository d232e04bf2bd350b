# Kills everything that writes or reads files with `kill -9`: runs, searches, imports, saves and evaluations.
#
#     mix run kills.exs | tee kills.txt
#     mix run kills.exs --kills 60 --seed 1 --only import
#     SCONCE_REPLAYS=replays mix run kills.exs          # imports real games instead of synthetic ones
#
# Each kind of work is done once without interruption, and once in VMs that are killed at random moments.
# Each VM resumes or restarts the work of the one before, and the last VM may finish. After each kill, every
# file in place is whole. At the end both have the same files, with bit-identical weights, the same games,
# which verify, and the same scores. No partial file is left, and no lock, because a lock would have stopped
# the next VM. `soak.exs` does the same for one long run, and measures its memory. The status is 1 if any of
# this fails.

defmodule Kills do
  alias Sconce.Bench.{Child, Machine, Output}
  alias Sconce.{Corpus, Native, Policy, Trainer}
  alias Sconce.Evolve.Archive

  @switches [kills: :integer, seed: :integer, only: :string]
  @defaults [kills: 60, seed: 0, only: ""]
  # Shares of the kills. Runs get most, because they write the most files.
  @kinds [train: 0.3, search: 0.2, import: 0.2, save: 0.2, evaluate: 0.1]
  @boot_ms 60_000
  @done_ms 300_000

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = Keyword.merge(@defaults, opts)
    :rand.seed(:exsss, opts[:seed])
    dir = Path.join(System.tmp_dir!(), "sconce-kills-#{System.pid()}")
    IO.puts(Output.header(Machine.describe()))

    try do
      context = prepared(dir)
      kinds = for {kind, share} <- @kinds, "#{kind}" =~ opts[:only], do: {kind, share}
      wrong = for {kind, share} <- kinds, do: storm(kind, round(share * opts[:kills]), context)
      if Enum.any?(wrong), do: System.halt(1)
    after
      File.rm_rf!(dir)
    end
  end

  # The action repeats the observation of three frames ago.
  defp prepared(dir) do
    games =
      for _game <- 1..12 do
        bits = for _frame <- 1..300, do: :rand.uniform(2) - 1
        {for(bit <- bits, do: [bit * 2.0 - 1.0, 0.5]), [0, 0, 0] ++ Enum.drop(bits, -3)}
      end

    corpus = Path.join(dir, "vectors")
    heads = [go: {:categorical, 2}]
    {:ok, _corpus} = Corpus.build({:vector, 2}, games, into: corpus, heads: heads)
    checkpoint = Path.join(dir, "policy.safetensors")
    spec = [embedding: {:vector, 2}, heads: heads, backbone: :gru, hidden_size: 128]
    {:ok, policy} = Policy.init(spec, seed: 1)
    :ok = Policy.save(policy, checkpoint)
    %{dir: dir, corpus: corpus, checkpoint: checkpoint, spec: spec, replays: replays(dir)}
  end

  defp replays(dir) do
    with nil <- System.get_env("SCONCE_REPLAYS") do
      made = Path.join(dir, "replays")
      :ok = Native.corpus_fixtures(made)
      made
    end
  end

  # Returns whether something is wrong.
  defp storm(kind, kills, context) do
    [straight, killed] =
      for name <- ~w(straight killed), do: Path.join(context.dir, "#{kind}-#{name}")

    for folder <- [straight, killed], do: File.mkdir_p!(folder)
    whole_ms = through(kind, straight, context)
    times = for _kill <- 1..kills//1, do: killed(kind, killed, context, window(kind, whole_ms))
    last_ms = through(kind, killed, context)

    wrong =
      List.flatten(
        for({_when, wrong} <- times, do: wrong) ++ differences(kind, straight, killed, context)
      )

    hit = Enum.count(times, &(elem(&1, 0) == :killed))

    IO.puts(
      "#{String.pad_trailing("#{kind}", 9)} #{kills} kills, #{hit} before the end; uninterrupted #{whole_ms} ms, " <>
        "the last #{last_ms} ms; #{kept(kind)}#{if wrong == [], do: "", else: ": WRONG"}"
    )

    for what <- Enum.uniq(wrong), do: IO.puts("WRONG: #{kind}: #{what}")
    if kills > 0 and hit < kills / 3, do: IO.puts("too few kills interrupted the work")
    wrong != []
  end

  defp kept(:train), do: "the same files, weights and gradients to the last bit"
  defp kept(:search), do: "the same archive to the last bit, and the same counts"
  defp kept(:import), do: "the same games, which verify"
  defp kept(:save), do: "the same policy, and no other file"
  defp kept(:evaluate), do: "the same scores, an unchanged corpus"

  # Milliseconds after the start within which it is killed.
  defp window(:train, _ms), do: 1_500
  defp window(:search, _ms), do: 1_500
  defp window(:save, _ms), do: 400
  defp window(_kind, ms), do: ms

  # Runs to the end. Returns the milliseconds that it took.
  defp through(kind, folder, context) do
    child = start(kind, folder, context, :once)
    began = now()
    ended = Child.await(child, @done_ms)
    if ended.status != 0, do: raise("#{kind}: #{Child.ending(ended.status)}: #{ended.output}")
    now() - began
  end

  defp killed(kind, folder, context, window) do
    child = start(kind, folder, context, :often)
    ended = Child.ended(child, :rand.uniform(window))
    if ended == nil, do: Child.kill(child)
    wrong = for what <- torn(kind, folder, context), do: "after a kill: #{what}"

    case ended do
      nil ->
        {:killed, wrong}

      %{status: 0} ->
        {again(kind, folder), wrong}

      %{status: status, output: output} ->
        {:ended, ["#{Child.ending(status)}: #{output}" | wrong]}
    end
  end

  # A finished import leaves nothing to interrupt, so it is restarted.
  defp again(:import, folder) do
    File.rm_rf!(Path.join(folder, "corpus"))
    :late
  end

  defp again(_kind, _folder), do: :late

  # Waits until the VM is up, so that kills fall into the work.
  defp start(kind, folder, context, how) do
    begun = Path.join(context.dir, "begun")
    File.rm(begun)

    script = """
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    File.write!(#{inspect(begun)}, "")
    #{script(kind, folder, context, how)}
    """

    child = Child.elixir(script)
    wait(begun, child, @boot_ms)
    child
  end

  defp wait(file, child, ms) do
    cond do
      File.exists?(file) -> :ok
      ms <= 0 -> raise "no VM within #{@boot_ms} ms: #{inspect(Child.kill(child))}"
      true -> Process.sleep(5) && wait(file, child, ms - 5)
    end
  end

  defp script(:train, folder, context, _how) do
    out = Path.join(folder, "run")

    opts = [
      corpus: context.corpus,
      out: out,
      # A run that was killed before it had a folder starts again.
      resume: File.exists?(Path.join(out, "run.json")),
      # Long enough that most kills interrupt it.
      steps: 15_000,
      save_every: 40,
      validate_every: 250,
      gradient_report: 100,
      keep_best: 3,
      backbone: :gru,
      hidden_size: 16,
      batch_size: 8,
      window_size: 20,
      unroll: :carry,
      ema_decay: 0.99,
      loss: :plain
    ]

    """
    {:ok, run} = Sconce.Trainer.start_link(#{inspect(opts, limit: :infinity)})
    {:ok, %{saves: %{failed: []}}} = Sconce.Trainer.await(run)
    """
  end

  # Four emitters, whose strategies are a part of the state. Each generation is saved.
  defp script(:search, folder, _context, _how) do
    out = inspect(Path.join(folder, "run"))

    """
    alias Sconce.Evolve.{Archive, Population, Run, Search}
    spec = Population.spec(:cart_pole, hidden_sizes: [4])
    cells = [cells: {:grid, [20, 20]}, ranges: [{-2.4, 2.4}, {0, 1}], solution_size: Search.size(spec)]
    {:ok, archive} = Archive.new(cells)
    opts = [archive: archive, source: {:cma_me, 4}, batch: 64, measures: [{:final, 0}, {:input, 0}], seed: 5]
    {:ok, search} = Search.new(spec, :cart_pole, opts)

    case Search.resume(search, #{out}) do
      :ok -> :ok
      {:error, %{kind: :not_found}} -> :ok
    end

    {:ok, run} = Run.start_link(search, out: #{out}, generations: 400, save_seconds: 0)
    {:ok, _report} = Run.await(run)
    """
  end

  # A replay that was being read at two kills is skipped as fatal, unless `retry` is set.
  defp script(:import, folder, %{replays: replays}, how) do
    into = Path.join(folder, "corpus")
    opts = [into: into, min_frames: 1, progress: false, retry: how == :once]
    "{:ok, _corpus} = Sconce.Corpus.import(#{inspect(replays)}, #{inspect(opts)})"
  end

  # Saves two policies alternately.
  defp script(:save, folder, %{spec: spec}, how) do
    times = if how == :once, do: 20, else: 1_000_000

    """
    policies = for seed <- 1..2 do
      {:ok, policy} = Sconce.Policy.init(#{inspect(spec)}, seed: seed)
      policy
    end

    for n <- 1..#{times} do
      policy = Enum.at(policies, rem(n, 2))
      :ok = Sconce.Policy.save(policy, #{inspect(Path.join(folder, "policy.safetensors"))})
    end
    """
  end

  defp script(:evaluate, folder, %{checkpoint: checkpoint, corpus: corpus}, _how) do
    """
    {:ok, report} = Sconce.Trainer.evaluate(#{inspect(checkpoint)}, #{inspect(corpus)}, train: #{inspect(corpus)})
    scores = :erlang.term_to_binary(Map.take(report, [:policy, :baselines]))
    File.write!(#{inspect(Path.join(folder, "scores.etf"))}, scores)
    """
  end

  # Files that are in place but not whole.
  defp torn(:import, folder, _context) do
    corpus = Path.join(folder, "corpus")

    # There is no corpus before the first manifest.
    with true <- File.exists?(Path.join(corpus, "manifest.json")),
         {:error, error} <- Corpus.verify(corpus, progress: false) do
      [Exception.message(error)]
    else
      _whole -> []
    end
  end

  defp torn(:evaluate, _folder, %{corpus: corpus}), do: damaged(corpus)

  # The slot that the index does not name may be cut.
  defp torn(:search, folder, _context) do
    with {:ok, path} <- state(Path.join(folder, "run")),
         {:error, error} <- Archive.load(path),
         do: [Exception.message(error)],
         else: (_whole_or_none -> [])
  end

  defp torn(_kind, folder, _context) do
    for file <- Path.wildcard(Path.join(folder, "**/*.safetensors")),
        {:error, error} <- [Policy.load(file)],
        do: Exception.message(error)
  end

  # The archive of a search's state.
  defp state(folder) do
    case index(folder) do
      %{"slot" => slot} -> {:ok, Path.join(folder, "archive-#{slot}.safetensors")}
      nil -> :none
    end
  end

  # The fields of the index as text; there is none before the first save.
  defp index(folder) do
    case File.read(Path.join(folder, "search.json")) do
      {:ok, text} ->
        for [_all, key, value] <- Regex.scan(~r/"(\w+)":("[^"]*"|\[[^\]]*\]|[^,}]+)/, text),
            into: %{},
            do: {key, String.trim(value, "\"")}

      {:error, _none} ->
        nil
    end
  end

  defp damaged(corpus) do
    with {:ok, _found} <- Corpus.verify(corpus, progress: false),
         do: [],
         else: ({:error, error} -> [Exception.message(error)])
  end

  defp differences(:train, straight, killed, _context) do
    [a, b] = for folder <- [straight, killed], do: Path.join(folder, "run")

    other =
      for name <- names(a),
          Path.extname(name) == ".safetensors",
          tensors(a, name) != tensors(b, name),
          do: "different bits in #{name}"

    gradients = for folder <- [a, b], do: Trainer.gradients(folder)
    seen = if match?([same, same], gradients), do: [], else: ["different gradients"]
    other ++ seen ++ other_names(a, b)
  end

  defp differences(:search, straight, killed, _context) do
    [a, b] = for folder <- [straight, killed], do: Path.join(folder, "run")
    states = for folder <- [a, b], {:ok, path} <- [state(folder)], do: File.read!(path)
    counts = for folder <- [a, b], do: Map.delete(index(folder), "slot")
    same = if match?([same, same], states), do: [], else: ["a different archive"]
    counted = if match?([same, same], counts), do: [], else: ["different counts"]
    same ++ counted ++ other_names(a, b)
  end

  defp differences(:import, straight, killed, _context) do
    [a, b] = for folder <- [straight, killed], do: Path.join(folder, "corpus")
    games = for folder <- [a, b], do: games(folder)
    same = if match?([same, same], games), do: [], else: ["different games"]
    same ++ damaged(b) ++ other_names(a, b)
  end

  # The first save after a kill removes the partial file of the killed one.
  defp differences(:save, straight, killed, _context) do
    [a, b] = for folder <- [straight, killed], do: tensors(folder, "policy.safetensors")
    policy = if a == b, do: [], else: ["a different policy"]
    policy ++ other_names(straight, killed)
  end

  defp differences(:evaluate, straight, killed, context) do
    scores = for folder <- [straight, killed], do: File.read!(Path.join(folder, "scores.etf"))
    same = if match?([same, same], scores), do: [], else: ["different scores"]

    parts =
      for file <- Path.wildcard(Path.join(context.corpus, "**/*.partial")), do: "left: #{file}"

    same ++ damaged(context.corpus) ++ parts
  end

  defp games(folder) do
    {:ok, corpus} = Corpus.open(folder)
    {:ok, games} = Corpus.games(corpus)
    games |> Enum.map(&Map.take(&1, [:digest, :frames, :bytes, :ports])) |> Enum.sort()
  end

  defp other_names(a, b) do
    [a, b] = [names(a), names(b)]
    for(name <- b -- a, do: "left: #{name}") ++ for(name <- a -- b, do: "missing: #{name}")
  end

  defp names(folder) do
    files = folder |> Path.join("**/*") |> Path.wildcard(match_dot: true)
    files |> Enum.map(&Path.relative_to(&1, folder)) |> Enum.sort()
  end

  # The bytes after the header. The header records how long the run took.
  defp tensors(folder, name) do
    with {:ok, <<length::64-little, _header::binary-size(length), tensors::binary>>} <-
           File.read(Path.join(folder, name)),
         do: tensors
  end

  defp now, do: System.monotonic_time(:millisecond)
end

Kills.main(System.argv())
