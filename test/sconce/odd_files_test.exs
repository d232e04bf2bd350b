defmodule Sconce.OddFilesTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Error, Policy, Trainer}

  @small [backbone: :gru, hidden_size: 8, num_layers: 1, head_hidden_size: 16] ++
           [batch_size: 8, window_size: 8, stride: 4, loss: :plain, steps: 2] ++
           [val_split: 0.25, evaluate: false, warmup_steps: 1]

  setup do
    {:ok, dir: tmp_dir!("odd_files")}
  end

  defp odd!(dir) do
    at = &Path.join(dir, &1)
    {"", 0} = System.cmd("mkfifo", [at.("pipe")])
    File.mkdir!(at.("folder"))
    File.ln_s!("/dev/zero", at.("zero"))
    {:ok, file} = :file.open(at.("hole"), [:write, :raw])
    {:ok, _position} = :file.position(file, 9 * 1024 ** 3)
    :ok = :file.truncate(file)
    :ok = :file.close(file)
    for name <- ["pipe", "folder", "zero", "hole"], do: {name, at.(name)}
  end

  defp expected("hole"), do: :corrupt
  defp expected(_name), do: :mismatch

  defp await(opts) do
    {:ok, run} = Trainer.start_link(opts)
    outcome = Trainer.await(run, 60_000)
    GenServer.stop(run)
    outcome
  end

  defp corpus!(dir) do
    into = Path.join(dir, "corpus")
    game = {for(i <- 1..48, do: [1.0 * i]), for(i <- 1..48, do: rem(i, 2))}
    games = List.duplicate(game, 4)
    {:ok, _corpus} = Corpus.build({:vector, 1}, games, into: into, heads: [go: {:categorical, 2}])
    into
  end

  test "a file that is not regular or too large is a typed error at once", %{dir: dir} do
    for {name, path} <- odd!(dir) do
      kind = expected(name)
      assert {:error, %Error{kind: ^kind} = error} = Policy.load(path)
      assert Exception.message(error) =~ path

      for file <- ["manifest.json", "run.json", "last.safetensors", "report.json"] do
        folder = Path.join([dir, "in", name, file])
        File.mkdir_p!(folder)
        File.ln_s!(path, Path.join(folder, file))
      end

      at = &Path.join([dir, "in", name, &1])
      assert {:error, %Error{kind: ^kind}} = Corpus.open(at.("manifest.json"))
      assert {:error, %Error{kind: ^kind}} = Corpus.verify(at.("manifest.json"))
      assert {:error, %Error{kind: ^kind}} = Trainer.report(at.("report.json"))
      assert {:error, %Error{kind: ^kind}} = await(resume: true, out: at.("run.json"))
      assert {:error, %Error{kind: ^kind}} = await(resume: true, out: at.("last.safetensors"))
    end
  end

  test "a named pipe among the replays is skipped, as a lock file it is an error", %{dir: dir} do
    File.mkdir!(Path.join(dir, "replays"))
    {"", 0} = System.cmd("mkfifo", [Path.join(dir, "replays/pipe.slp")])
    into = Path.join(dir, "into")

    assert {:error, %Error{kind: :not_found, details: %{skipped: [skipped]}}} =
             Corpus.import(Path.join(dir, "replays"), into: into)

    assert %{reason: :unreadable, detail: "a named pipe, not a regular file"} = skipped
    corpus = corpus!(dir)
    run = Path.join(dir, "run")
    File.mkdir!(run)
    {"", 0} = System.cmd("mkfifo", [Path.join(run, "lock")])
    assert {:error, %Error{kind: :mismatch}} = await(corpus: corpus, out: run, steps: 1)
  end

  test "a run whose record has an impossible size is an error", %{dir: dir} do
    {corpus, out} = {corpus!(dir), Path.join(dir, "run")}
    assert {:ok, _report} = await([corpus: corpus, out: out] ++ @small)
    record = Path.join(out, "run.json")
    whole = File.read!(record)
    assert whole =~ ~s("hidden_size": 8)

    for size <- ["1000000000000", "18446744073709551615"] do
      File.write!(record, String.replace(whole, ~s("hidden_size": 8), ~s("hidden_size": #{size})))
      assert {:error, %Error{kind: :out_of_range} = error} = await(resume: true, out: out)
      assert Exception.message(error) =~ "hidden_size"
    end

    File.write!(record, String.replace(whole, ~s("hidden_size": 8), ~s("hidden_size": -1)))
    assert {:error, %Error{kind: :corrupt}} = await(resume: true, out: out)
  end

  test "a damaged corpus lets a run start, and ends it with an error", %{dir: dir} do
    corpus = corpus!(dir)
    manifest = Path.join(corpus, "manifest.json")
    whole = File.read!(manifest)

    for {from, to} <- [
          {~s(["go",{"categorical":2}]), ~s(["Odd name",{"categorical":2}])},
          {~s(["go",{"categorical":2}]), ~s(["go",{"categorical":1}])},
          {~s(["go",{"categorical":2}]), ~s(["#{String.duplicate("g", 300)}",{"categorical":2}])},
          {~s("size":1), ~s("size":1000000000000)},
          {~s("vector"), ~s("chess")},
          {"{", "["}
        ] do
      assert whole =~ from
      File.write!(manifest, String.replace(whole, from, to))

      assert {:error, %Error{kind: kind}} =
               await(corpus: corpus, out: Path.join(dir, "run"), steps: 1)

      assert kind in [:corrupt, :mismatch, :out_of_range]
    end
  end
end
