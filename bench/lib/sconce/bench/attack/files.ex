defmodule Sconce.Bench.Attack.Files do
  @moduledoc false
  # Items 1, 2, 3 and 8: odd contents of replays, checkpoints, corpora and runs, and special files at their paths.

  import Sconce.Bench.Attack, only: [answer: 1]
  import Sconce.Bench.Attack.Fixtures

  alias Sconce.Bench.Attack
  alias Sconce.{Corpus, Loader, Native, Policy, Serving, Trainer}

  @sparse_bytes 9_000_000_000
  @kinds [
    fifo: "a FIFO",
    folder: "a folder",
    zero: "a link to /dev/zero",
    sparse: "9 GB of holes"
  ]
  # Maximum wait for opening a FIFO, which may block.
  @patience_ms 12_000

  def rows, do: deep() ++ odd_files() ++ [frozen()] ++ atoms() ++ wide() ++ damaged()

  # 1. Metadata of a replay.

  defp deep do
    for depth <- [5_000, 1_000_000] do
      %Attack{
        item: 1,
        name: "replay with metadata nested #{depth} deep, imported twice beside good games",
        make: &deep(&1, depth),
        attack: &import_twice/1,
        accept: &one_skipped/1,
        seconds: 10.0
      }
    end
  end

  defp deep(dir, depth) do
    replays = replays!(dir)
    # The last byte closes the object that contains the metadata.
    bytes = replays |> Path.join("valid.slp") |> File.read!()
    head = binary_part(bytes, 0, byte_size(bytes) - 1) <> "U\x08metadata"
    File.write!(Path.join(replays, "deep.slp"), [head, List.duplicate("{U\x01a", depth)])
  end

  defp replays!(dir) do
    replays = Path.join(dir, "replays")
    File.mkdir_p!(replays)
    :ok = Native.corpus_fixtures(replays)
    replays
  end

  defp import_twice(dir), do: [{"import", imported(dir)}, {"again", imported(dir)}]

  defp imported(dir) do
    paths = Path.join(dir, "replays")
    options = [into: Path.join(dir, "corpus"), min_frames: 1, progress: false]

    case Corpus.import(paths, options) do
      {:ok, %{report: report}} -> {:report, report}
      {:error, error} -> answer(fn -> {:error, error} end)
    end
  end

  # The good games are kept, and the bad game is reported with name and reason.
  defp one_skipped(answers) do
    for {label, answer} <- answers, not odd_skipped?(answer), do: "#{label}: #{inspect(answer)}"
  end

  defp odd_skipped?({:report, report}) do
    report.added + report.known > 0 and
      Enum.any?(report.skipped, &(Path.basename(&1.file) in ["deep.slp", "odd.slp"]))
  end

  defp odd_skipped?(_other), do: false

  # 3. Special files at the path of a regular file.

  defp odd_files do
    for {kind, what} <- @kinds, {name, make, file, attack, accept} <- places() do
      %Attack{
        item: 3,
        name: "#{what} for #{name}",
        make: &odd_file(&1, make, file, kind),
        attack: attack,
        # A folder is searched for replays, whatever its name, so the other games are kept.
        accept: if({kind, file} == {:folder, "replays/odd.slp"}, do: &kept_games/1, else: accept),
        patience_ms: @patience_ms
      }
    end
  end

  # {description, function that makes the folder, path of the special file, its reader, allowed answers}
  defp places do
    run = &run_folder/1
    corpus = &corpus!/1

    [
      {"Policy.load", &checkpoint!/1, "policy.safetensors",
       &answer(fn -> Policy.load(Path.join(&1, "policy.safetensors")) end), :typed},
      {"Serving.swap", &checkpoint!/1, "policy.safetensors", &swapped/1, :typed},
      {"Corpus.open (manifest)", corpus, "corpus/manifest.json",
       &answer(fn -> Corpus.open(Path.join(&1, "corpus")) end), :typed},
      {"Corpus.open (ExPhil's manifest)", &exphil/1, "corpus/manifest.jsonl",
       &answer(fn -> Corpus.open(Path.join(&1, "corpus")) end), :typed},
      {"Corpus.open (ExPhil's embeddings)", &exphil/1, "corpus/embeddings.bin",
       &answer(fn -> Corpus.open(Path.join(&1, "corpus")) end), :typed},
      {"Loader.stream (a game)", corpus, :game, &batches/1, :typed},
      {"Corpus.verify (a game)", corpus, :game,
       &answer(fn -> Corpus.verify(Path.join(&1, "corpus"), progress: false) end), :typed},
      {"resume (run.json)", run, "run/run.json", &resumed/1, :typed},
      {"resume (last.safetensors)", run, "run/last.safetensors", &resumed/1, :typed},
      {"Trainer.report", run, "run/report.json",
       &answer(fn -> Trainer.report(Path.join(&1, "run")) end), :typed},
      {"Trainer.gradients", run, "run/gradients.jsonl",
       &answer(fn -> Trainer.gradients(Path.join(&1, "run")) end), :typed},
      {"Trainer.evaluate", run, "run/best.safetensors", &evaluated/1, :typed},
      {"a teacher", run, "run/best.safetensors", &taught/1, :typed},
      {"import (a replay)", &replays!/1, "replays/odd.slp", &import_twice/1, &one_skipped/1},
      {"import (in games/)", &imported_folder/1, "corpus/games/odd.safetensors", &import_twice/1,
       &kept_games/1},
      {"import (a known game)", &imported_folder/1, :game, &import_twice/1, &kept_games/1}
    ]
  end

  defp odd_file(dir, make, file, kind) do
    make.(dir)
    path = if file == :game, do: game(dir), else: Path.join(dir, file)
    File.rm_rf!(path)
    File.mkdir_p!(Path.dirname(path))
    place(kind, path)
  end

  defp place(:fifo, path) do
    case System.cmd("mkfifo", [path], stderr_to_stdout: true) do
      {_said, 0} -> :ok
      {said, _status} -> {:skip, said}
    end
  end

  defp place(:folder, path), do: File.mkdir_p!(path)
  defp place(:zero, path), do: File.ln_s!("/dev/zero", path)

  defp place(:sparse, path) do
    {:ok, file} = :file.open(path, [:write, :raw])
    {:ok, _at} = :file.position(file, @sparse_bytes)
    :ok = :file.truncate(file)
    :file.close(file)
  end

  defp game(dir), do: dir |> Path.join("corpus/games/*") |> Path.wildcard() |> hd()

  defp run_folder(dir),
    do: {:ok, _report} = dir |> corpus!() |> run!(Path.join(dir, "run"), gradient_report: 1)

  defp imported_folder(dir) do
    replays!(dir)
    {:report, _report} = imported(dir)
  end

  # A corpus in ExPhil's format: one game of twenty frames with two values each.
  defp exphil(dir) do
    folder = Path.join(dir, "corpus")
    File.mkdir_p!(folder)
    embeddings = <<"EMBD", 1::32-little, 20::64-little, 2::64-little, 1::32-little, 0::32>>
    labels = <<"LBLS", 1::32-little, 20::64-little, 6::32-little, 0::32>>
    File.write!(Path.join(folder, "embeddings.bin"), [embeddings, :binary.copy(<<0>>, 160)])
    File.write!(Path.join(folder, "labels.bin"), [labels, :binary.copy(<<0>>, 120)])
    game = ~s({"path":"a.slp","start":0,"frames":20,"port":1}\n)
    File.write!(Path.join(folder, "manifest.jsonl"), game)
    {:ok, _corpus} = Corpus.open(folder)
  end

  defp resumed(dir),
    do:
      answer(fn -> outcome(resume: true, steps: 4, decay_steps: 4, out: Path.join(dir, "run")) end)

  defp evaluated(dir) do
    [best, corpus] = for name <- ["run/best.safetensors", "corpus"], do: Path.join(dir, name)
    answer(fn -> Trainer.evaluate(best, corpus) end)
  end

  defp taught(dir) do
    opts = dir |> Path.join("corpus") |> training(Path.join(dir, "other"))
    answer(fn -> outcome([teacher: Path.join(dir, "run/best.safetensors")] ++ opts) end)
  end

  defp swapped(dir) do
    {:ok, serving} = Serving.start_link(policy: policy!())
    answer = answer(fn -> Serving.swap(serving, Path.join(dir, "policy.safetensors")) end)
    Serving.stop(serving)
    answer
  end

  # Games are read on first use, so errors appear when batches are made.
  defp batches(dir) do
    answer(fn ->
      with {:ok, corpus} <- Corpus.open(Path.join(dir, "corpus")),
           do: corpus |> Loader.stream(batch_size: 4, window_size: 10, epochs: 1) |> Enum.count()
    end)
  end

  # The other games are kept, or the error names the file.
  defp kept_games(answers) do
    for {label, answer} <- answers, why = not_kept(answer), do: "#{label}: #{why}"
  end

  defp not_kept({:report, %{added: added, known: known}}) when added + known > 0, do: nil
  defp not_kept({:error, kind, _text}) when kind != :deadline, do: nil
  defp not_kept(other), do: inspect(other)

  defp frozen do
    %Attack{
      item: 3,
      name: "twelve FIFOs for Policy.load at once, and a file that is read meanwhile",
      make: fn dir -> for n <- 1..12, do: place(:fifo, Path.join(dir, "fifo-#{n}")) end,
      attack: &frozen/1,
      accept: :answered,
      patience_ms: @patience_ms
    }
  end

  defp frozen(dir) do
    loads = for n <- 1..12, do: Task.async(fn -> Policy.load(Path.join(dir, "fifo-#{n}")) end)
    Process.sleep(200)
    read = Task.async(fn -> File.read(__ENV__.file) end)

    read =
      case Task.yield(read, 1_500) do
        {:ok, _read} -> {"read", {:value, "read"}}
        nil -> {"read", {:raw, "no file can be read"}}
      end

    [read | for(load <- loads, do: {"load", answer(fn -> Task.await(load, 1_000) end)})]
  end

  # 2. Names in files.

  @checkpoints 1_000
  @names 64

  defp atoms do
    [
      %Attack{
        item: 2,
        name: "1,000 checkpoints with 64 fresh names of heads each",
        make: &named_checkpoints/1,
        attack:
          &for(
            path <- files(&1, "*.safetensors"),
            do: {path, answer(fn -> Policy.load(path) end)}
          ),
        accept: :answered,
        inputs: @checkpoints
      },
      %Attack{
        item: 2,
        name: "200 corpora with 64 fresh names of heads each, opened and looked at",
        make: &named_corpora/1,
        attack: &for(dir <- files(&1, "*/corpus"), do: {dir, answer(fn -> looked_at(dir) end)}),
        accept: :answered,
        inputs: 200
      },
      %Attack{
        item: 2,
        name: "50 reports of runs with 64 fresh names of heads each",
        make: &named_reports/1,
        attack: &for(dir <- files(&1, "run-*"), do: {dir, answer(fn -> Trainer.report(dir) end)}),
        accept: :answered,
        inputs: 50
      }
    ]
  end

  defp files(dir, pattern), do: dir |> Path.join(pattern) |> Path.wildcard()

  # All names have the same length, so that one can replace another in a file.
  defp names(n), do: for(at <- 0..(@names - 1), do: name(n, at))
  defp name(n, at), do: "head_#{pad(n)}_#{pad(at)}"
  defp pad(n), do: n |> to_string() |> String.pad_leading(4, "0")
  # Creates atoms only in the VM that makes the files. The atoms of the child VM are counted.
  defp heads(n), do: for(name <- names(n), do: {String.to_atom(name), {:categorical, 2}})

  defp named_checkpoints(dir) do
    for n <- 1..@checkpoints do
      path = Path.join(dir, "#{pad(n)}.safetensors")
      :ok = Policy.save(policy!(heads: heads(n), head_hidden_size: 0), path)
    end
  end

  defp named_corpora(dir),
    do: for(n <- 1..200, do: corpus!(Path.join(dir, pad(n)), 1, 20, heads(n)))

  defp looked_at(dir) do
    with {:ok, corpus} <- Corpus.open(dir), {:ok, _games} <- Corpus.games(corpus) do
      _shown = inspect(corpus)
      Loader.info(corpus, batch_size: 1, window_size: 10)
    end
  end

  defp named_reports(dir) do
    run = Path.join(dir, "run")
    {:ok, _report} = dir |> corpus!(4, 30, heads(0)) |> run!(run)
    report = File.read!(Path.join(run, "report.json"))

    for n <- 1..50 do
      folder = Path.join(dir, "run-#{pad(n)}")
      File.mkdir_p!(folder)

      File.write!(
        Path.join(folder, "report.json"),
        String.replace(report, "head_0000_", "head_#{pad(n)}_")
      )
    end
  end

  # 8. Contents of a file: each number and each text is replaced in turn.

  @numbers ~w(0 -1 0.5 1000000000000 18446744073709551616 1e400 null "odd")
  @texts ["\"\"", "\"odd\\u001b[31m\"", "5", "null", "[]"]
  # Milliseconds that a run may take if it starts in spite of its input.
  @begun_ms 300

  defp wide do
    for {file, use} <- [
          {"run/run.json", &resume_copy/1},
          {"corpus/manifest.json", &train_copy/1},
          {"run/report.json", &report_copy/1}
        ] do
      %Attack{
        item: 8,
        name: "each number and text of #{Path.basename(file)} replaced by odd ones",
        make: fn dir -> dir |> corpus!(2, 60) |> run!(Path.join(dir, "run")) end,
        attack: &mutants(&1, file, use),
        accept: :answered,
        seconds: nil,
        patience_ms: 400_000
      }
    end
  end

  defp mutants(dir, file, use) do
    text = File.read!(Path.join(dir, file))
    copy = Path.join(dir, "copy")
    [folder | _] = Path.split(file)

    for {at, length, odd} <- replaced(text) do
      File.rm_rf!(copy)
      File.cp_r!(Path.join(dir, folder), copy)
      <<before::binary-size(at), was::binary-size(length), rest::binary>> = text
      File.write!(Path.join(copy, Path.basename(file)), [before, odd, rest])
      {"#{was} to #{odd}", answer(fn -> use.(copy) end)}
    end
  end

  # Position and length of each number and text, with each replacement.
  defp replaced(text) do
    for [{at, length}] <- Regex.scan(~r/"[^"]*"|-?[0-9][0-9.e+-]*/, text, return: :index),
        odd <- if(binary_part(text, at, 1) == "\"", do: @texts, else: @numbers),
        do: {at, length, odd}
  end

  defp resume_copy(copy), do: outcome([resume: true, out: copy], @begun_ms)
  defp train_copy(copy), do: copy |> training(copy <> "-run") |> outcome(@begun_ms)
  defp report_copy(copy), do: Trainer.report(copy)

  defp damaged do
    [
      %Attack{
        item: 8,
        name: "a damaged corpus for start_link, plan, evaluate and a loader",
        make: fn dir -> run_folder(dir) end,
        attack: &damaged/1,
        inputs: 9 * 4
      }
    ]
  end

  # {description, function that damages a corpus}
  defp damages do
    manifest = fn text ->
      fn corpus -> File.write!(Path.join(corpus, "manifest.json"), text) end
    end

    [
      {"an empty text", manifest.("")},
      {"half a text", manifest.("{\"schema\":")},
      {"bytes", manifest.(<<255, 0, 255>>)},
      {"a list", manifest.("[]")},
      {"an empty object", manifest.("{}")},
      {"100,000 lists", manifest.(String.duplicate("[", 100_000))},
      {"a folder",
       &(File.rm!(Path.join(&1, "manifest.json")) && File.mkdir!(Path.join(&1, "manifest.json")))},
      {"a missing game", &File.rm!(first_game(&1))},
      {"a game cut short", &File.write!(first_game(&1), "short")}
    ]
  end

  defp first_game(corpus), do: corpus |> Path.join("games/*") |> Path.wildcard() |> hd()

  defp damaged(dir) do
    for {what, damage} <- damages(), {how, use} <- uses(dir) do
      corpus = Path.join(dir, "damaged")
      File.rm_rf!(corpus)
      File.cp_r!(Path.join(dir, "corpus"), corpus)
      damage.(corpus)
      {"#{what}, #{how}", answer(fn -> use.(corpus) end)}
    end
  end

  defp uses(dir) do
    best = Path.join(dir, "run/best.safetensors")

    [
      {"start_link", &(&1 |> training(Path.join(dir, "new")) |> outcome())},
      {"plan", &Trainer.plan(Keyword.delete(training(&1, ""), :out))},
      {"evaluate", &Trainer.evaluate(best, &1)},
      {"loader", &Loader.info(&1, batch_size: 2, window_size: 10)}
    ]
  end
end
