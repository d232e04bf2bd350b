defmodule Sconce.CorpusTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Error, Native}

  doctest Sconce.Corpus

  @skipped [:corrupt, :not_two_players, :too_short, :truncated]

  setup do
    dir = tmp_dir!("corpus")
    replays = Path.join(dir, "replays")
    :ok = Native.corpus_fixtures(replays)
    {:ok, replays: replays, into: Path.join(dir, "corpus")}
  end

  test "an import that keeps no file is an error that lists each file" do
    dir = tmp_dir!("none")
    for name <- ~w(a b), do: File.write!(Path.join(dir, name <> ".slp"), "no replay")
    into = Path.join(dir, "into")
    assert {:error, %Error{kind: :not_found, details: details}} = Corpus.import(dir, into: into)
    assert details.what == "a usable game in 2 files (1 duplicate, 1 truncated)"

    assert [%{reason: :truncated}, %{reason: :duplicate}] =
             Enum.sort_by(details.skipped, & &1.reason, :desc)

    assert_raise Mix.Error,
                 ~r/a usable game in 2 files \(1 duplicate, 1 truncated\) not found/,
                 fn ->
                   ExUnit.CaptureIO.capture_io(fn ->
                     Mix.Tasks.Sconce.Import.run([dir, "--into", into])
                   end)
                 end

    refute File.exists?(into)
    assert {:error, %Error{kind: :mismatch} = error} = Corpus.import(dir, into: dir)

    assert Exception.message(error) =~
             "folder #{dir}: expected an empty folder, or one of a corpus"
  end

  test "a compressed corpus gives the same batches in fewer bytes", %{
    replays: replays,
    into: into
  } do
    assert {:ok, plain} = Corpus.import(replays, into: into)
    assert {:ok, packed} = Corpus.import(replays, into: into <> "-packed", compress: true)
    assert packed.report.added == plain.report.added
    assert packed.info.bytes < plain.info.bytes / 2
    options = [batch_size: 4, window_size: 20, as: :binaries, seed: 3]
    batches = &(&1 |> Sconce.Loader.stream(options) |> Enum.map(fn b -> Map.delete(b, :flow) end))
    assert batches.(plain) == batches.(packed)
    assert {:ok, %{games: 9}} = Corpus.verify(packed, progress: false)
  end

  test "a corpus that is built may be compressed" do
    dir = tmp_dir!("built-packed")
    games = [{List.duplicate(0.5, 4000), List.duplicate(1, 4000)}]
    options = [into: dir, heads: [go: {:bernoulli, 1}], compress: true]
    assert {:ok, corpus} = Corpus.build({:vector, 1}, games, options)
    assert corpus.info.bytes < 4000

    walk =
      Sconce.Game.new!(
        name: :walk,
        fields: [x: [type: :number]],
        input: [step: [type: {:choice, 3}]]
      )

    rows = for n <- 1..2000, do: %{frame: %{x: n / 2000}, input: %{step: rem(n, 3)}}
    assert {:ok, corpus} = Corpus.build(walk, [rows], into: dir <> "-rows", compress: true)
    assert {:ok, %{games: 1}} = Corpus.verify(corpus, progress: false)
    assert corpus.info.frames == 2000
  end

  test "a corpus is verified, with progress" do
    dir = tmp_dir!("verify")
    games = for n <- 1..3, do: {List.duplicate(n / 4, 20), List.duplicate(1, 20)}
    {:ok, corpus} = Corpus.build({:vector, 1}, games, into: dir, heads: [go: {:bernoulli, 1}])
    test = self()
    assert {:ok, found} = Corpus.verify(corpus, progress: &send(test, {:seen, &1.done}))
    assert %{games: 3, unrecorded: 0} = found
    assert found.bytes == corpus.info.bytes
    for n <- 1..3, do: assert_received({:seen, ^n})
  end

  test "names of characters ignore case" do
    for name <- ["Mr. Game & Watch", "mr. game & watch", "MR. GAME & WATCH"],
        do: assert(Corpus.character_id(name) == {:ok, 24})

    assert Corpus.character_id("mister") == :error
  end

  describe "import" do
    test "reads what it can and gives a reason for each skipped file", %{
      replays: replays,
      into: into
    } do
      {:error, error} = Corpus.open(replays)

      assert Exception.message(error) =~
               "a folder of replays, which mix sconce.import makes a corpus"

      assert {:ok, %Corpus{report: report} = corpus} = Corpus.import(replays, into: into)
      assert %{added: 9, known: 0, frames: 7200} = report
      assert Enum.map(report.skipped, & &1.reason) |> Enum.sort() == @skipped

      for %{file: file, reason: reason, detail: detail} <- report.skipped do
        assert Path.basename(file, ".slp") == to_string(reason)
        assert detail != ""
      end

      assert %{schema: :melee, games: 9, views: 18, characters: [{1, 9}, {2, 9}]} =
               Corpus.info(corpus)

      assert inspect(corpus) =~
               ~r/^#Sconce.Corpus<melee · 9 games · 7,200 frames · Fox 9, Captain Falcon 9 · .* MB>$/
    end

    test "adds only new files the second time", %{replays: replays, into: into} do
      [first | rest] = Path.wildcard(replays <> "/*.slp") |> Enum.filter(&(&1 =~ "valid"))
      assert {:ok, %{report: %{added: 1}}} = Corpus.import(first, into: into)

      assert {:ok, %{report: %{added: added, known: 1}}} =
               Corpus.import([first | rest], into: into)

      assert added == length(rest)
    end

    test "reports its progress", %{replays: replays, into: into} do
      me = self()
      assert {:ok, _corpus} = Corpus.import(replays, into: into, progress: &send(me, {:at, &1}))
      for done <- 1..13, do: assert_received({:at, %{done: ^done, total: 13}})
    end

    test "ends with its caller, and keeps finished games", %{replays: replays, into: into} do
      me = self()

      {pid, monitor} =
        spawn_monitor(fn ->
          Corpus.import(replays, into: into, threads: 1, progress: &hold(me, &1))
        end)

      assert_receive {:at, %{added: 1}}
      Process.exit(pid, :kill)
      assert_receive {:DOWN, ^monitor, :process, ^pid, :killed}
      assert {:ok, %{report: report}} = eventually(fn -> Corpus.import(replays, into: into) end)
      assert report.known + report.adopted >= 1
      assert report.added + report.known == 9
    end

    test "an exception in the progress function ends it", %{replays: replays, into: into} do
      assert_raise RuntimeError, "enough", fn ->
        Corpus.import(replays, into: into, progress: fn _progress -> raise "enough" end)
      end

      refute_received {:sconce, _ref, _answer}
      assert {:ok, %{info: %{games: 9}}} = Corpus.import(replays, into: into)
    end

    test "a folder without replays is named, and makes no corpus", %{replays: replays, into: into} do
      empty = Path.join(replays, "empty")
      File.mkdir_p!(Path.join(empty, "deeper"))
      File.write!(Path.join(empty, "notes.txt"), "none")

      for paths <- [empty, [replays, empty]] do
        assert {:error, %Error{kind: :not_found, op: :import, details: %{what: what}}} =
                 Corpus.import(paths, into: into)

        assert what == "replays (.slp) in #{empty}"
      end

      refute File.exists?(into)
    end

    test "errors are values, wrong options raise", %{replays: replays, into: into} do
      assert {:error, %Error{kind: :not_found}} = Corpus.import(replays <> "/none", into: into)

      assert {:error, %Error{kind: :io, op: :import, details: %{path: path}}} =
               Corpus.import(replays, into: Path.join(replays, "valid.slp/corpus"))

      assert path =~ "valid.slp/corpus"

      assert_raise ArgumentError, ~r/did you mean :min_frames/, fn ->
        Corpus.import(replays, into: into, min_frame: 3)
      end

      assert_raise ArgumentError, ~r/:into is required/, fn -> Corpus.import(replays, []) end
    end

    test "mix sconce.import prints a report", %{replays: replays, into: into} do
      text = capture_io(fn -> Mix.Task.rerun("sconce.import", [replays, "--into", into]) end)
      assert text =~ "added 9 games (7,200 frames"
      assert text =~ "too_short.slp: too_short (599 frames of at least 600)"
      assert text =~ "16 actions have no row of their own"
    end

    test "mix sconce.import names an argument that it does not know", %{
      replays: replays,
      into: into
    } do
      for {more, sentence} <- [
            {[], ~r/^usage: mix sconce.import/},
            {["--into", into, "--thread", "2"],
             ~r/^unknown option --thread, did you mean --threads/},
            {["--into", into, "--threads", "two"],
             ~r/^--threads cannot be "two", expected a pos/},
            {["--into", into, "--threads", "-1"], ~r/^--threads cannot be "-1", expected a pos/},
            {["--into"], ~r/^--into needs a value/}
          ] do
        assert_raise Mix.Error, sentence, fn ->
          Mix.Task.rerun("sconce.import", [replays | more])
        end
      end
    end

    test "the reasons to skip a file are those of the native side" do
      [_, body] =
        Regex.run(~r/pub enum Reason \{(.*?)\n\}/s, File.read!("native/data/src/refusal.rs"))

      native =
        for [_, name] <- Regex.scan(~r/^ +([A-Z]\w+),$/m, body),
            do: name |> Macro.underscore() |> String.to_atom()

      {:ok, types} = Code.Typespec.fetch_types(Corpus)
      [{:type, _, :union, own}] = for {:type, {:reason, type, []}} <- types, do: type
      assert Enum.sort(for {:atom, _, name} <- own, do: name) == Enum.sort(native)
    end
  end

  describe "open" do
    test "a missing or incomplete corpus is an error", %{replays: replays, into: into} do
      assert {:error, %Error{kind: :not_found, op: :open}} = Corpus.open(into)
      {:ok, corpus} = Corpus.import(replays, into: into)
      assert {:ok, %{info: info, report: nil}} = Corpus.open(into)
      assert info == corpus.info
      File.write!(Path.join(into, "manifest.json"), "{\"format\":")
      assert {:error, %Error{kind: :corrupt}} = Corpus.open(into)
    end

    test "the folder of a corpus stays the same when the VM moves to another", %{into: into} do
      {:ok, _corpus} = Corpus.build({:vector, 1}, [], heads: [go: {:bernoulli, 1}], into: into)
      {:ok, corpus} = Corpus.open(Path.relative_to_cwd(into) |> Path.join("."))
      assert corpus.dir == into
    end

    test "a wrong argument is named", %{replays: replays, into: into} do
      {:ok, corpus} = Corpus.import(Path.join(replays, "cpu.slp"), into: into)
      assert_raise ArgumentError, ~r/game: .*-1/, fn -> Corpus.recording(corpus, -1) end
      assert_raise ArgumentError, ~r/player: .*2/, fn -> Corpus.recording(corpus, 0, 2) end

      assert_raise ArgumentError, ~r/expected a path, got: <<255>>/, fn ->
        Corpus.open(<<255>>)
      end

      assert Corpus.character(-1) == "character -1"
      assert Corpus.character(27) == "character 27"
    end

    test "games carry their metadata", %{replays: replays, into: into} do
      {:ok, corpus} = Corpus.import(Path.join(replays, "cpu.slp"), into: into)
      assert {:ok, [game]} = Corpus.games(corpus)
      assert %{source: "cpu.slp", version: "3.14.0", stage: 32, kinds: ["human", "cpu"]} = game
      assert %{ports: [1, 2], characters: [1, 2], frames: 800, tags: ["Player 0", _]} = game
      assert byte_size(game.digest) == 64
    end
  end

  describe "build" do
    @heads [move: {:categorical, 3}, fire: {:bernoulli, 2}]

    test "takes lists and binaries", %{into: into} do
      lists = {[[0.5, 1], [2, 3]], [[0, 1, 0], [2, 0, 1]]}
      binaries = {<<1.0::float-32-little, 2.0::float-32-little>>, <<1::16-little, 0::32>>}

      assert {:ok, corpus} =
               Corpus.build({:vector, 2}, [lists, binaries], heads: @heads, into: into)

      assert %{schema: {:vector, 2}, games: 2, views: 2, frames: 3} = corpus.info
      assert inspect(corpus) =~ "#Sconce.Corpus<vector 2 · 2 games · 3 frames · "
      assert {:ok, %{info: %{games: 2}}} = Corpus.open(into)
    end

    test "names the part that does not fit", %{into: into} do
      build = &Corpus.build({:vector, 2}, [&1], heads: @heads, into: into)
      assert {:error, %Error{kind: :mismatch}} = build.({[1, 2, 3], [0, 0, 0]})
      assert {:error, %Error{kind: :mismatch}} = build.({<<1, 2, 3>>, <<>>})
      assert {:error, %Error{kind: :out_of_range} = error} = build.({[1, 2], [3, 0, 0]})
      assert Exception.message(error) == "build: game 0, frame 0, label 0: 3 is outside 0..2"
      nan = <<0, 0, 0xC0, 0x7F>>
      assert {:error, %Error{kind: :non_finite}} = build.({nan <> nan, [0, 0, 0]})

      for {game, sentence} <- [
            {:a, ~r/^game 1: expected {x, labels}, got: :a/},
            {{[1, 2], [0, 0, 0], :more}, ~r/^game 1: expected {x, labels}/},
            {{[1, :b], [0, 0, 0]}, ~r/^game 1: expected numbers of 32 bits, got: :b/},
            {{[1, 1.0e300], [0, 0, 0]}, ~r/^game 1: expected numbers of 32 bits, got: 1.0e300/},
            {{[1, 2], [65_536, 0, 0]}, ~r/^game 1: expected labels of 0..65535, got: 65536/},
            {{[1, 2], [-1, 0, 0]}, ~r/^game 1: expected labels of 0..65535, got: -1/},
            {{[1, 2], 7}, ~r/^game 1: expected a binary, a list or a tensor, got: 7/}
          ] do
        assert_raise ArgumentError, sentence, fn ->
          games = [{[1, 2], [0, 0, 0]}, game]
          Corpus.build({:vector, 2}, games, heads: @heads, into: into)
        end
      end

      assert_raise ArgumentError, ~r/head :move/, fn ->
        Corpus.build({:vector, 2}, [], heads: [move: 3], into: into)
      end
    end
  end

  test "the table of fields prints" do
    text = capture_io(fn -> Corpus.print_fields() end)
    assert text =~ "pre.buttons_physical"
    assert text =~ "post.velocities.self_y"
  end

  # Waits until the first game is finished; earlier files were skipped.
  defp hold(_pid, %{added: 0}), do: :ok

  defp hold(pid, progress) do
    send(pid, {:at, progress})
    Process.sleep(:infinity)
  end

  # The thread of a dead caller still finishes its present file.
  defp eventually(fun, tries \\ 100) do
    case fun.() do
      {:error, %Error{kind: :busy}} when tries > 0 ->
        Process.sleep(50)
        eventually(fun, tries - 1)

      outcome ->
        outcome
    end
  end
end
