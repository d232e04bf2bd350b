defmodule Mix.Tasks.Sconce.ReportTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Mix.Tasks.Sconce.Report
  alias Sconce.{Corpus, Native}

  setup_all do
    dir = Path.join(System.tmp_dir!(), "sconce-report-task-#{System.pid()}")
    on_exit(fn -> File.rm_rf!(dir) end)
    replays = Path.join(dir, "replays")
    :ok = Native.corpus_fixtures(replays)
    [replay | _] = Path.wildcard(replays <> "/valid*.slp")
    {:ok, corpus} = Corpus.import(replay, into: Path.join(dir, "corpus"), progress: false)
    {:ok, corpus: corpus.dir, replay: replay}
  end

  test "one game is printed and drawn", %{corpus: corpus} do
    svg = Path.join(tmp_dir!("report"), "game.svg")

    text =
      capture_io(fn -> Report.run([corpus, "--game", "0", "--out", svg, "--conversions"]) end)

    assert text =~ ~r/^openings +\d+ +\d+$/m
    assert text =~ ~r/^  time  player +opening/m
    assert text =~ "picture  #{svg}"
    assert File.read!(svg) =~ "</svg>"

    text = capture_io(fn -> Report.run([corpus, "--game", "0"]) end)
    refute text =~ "picture"
    refute text =~ "first move       moves"
  end

  test "all games are added up by player or character", %{corpus: corpus} do
    assert capture_io(fn -> Report.run([corpus]) end) =~ ~r/^1 game\nplayer +games +won/

    assert capture_io(fn -> Report.run([corpus, "--by", "character"]) end) =~
             ~r/^character +games/m
  end

  test "an error ends the task with a sentence", %{corpus: corpus, replay: replay} do
    raises = fn args, pattern ->
      assert_raise Mix.Error, pattern, fn -> Report.run(args) end
    end

    raises.([], ~r/^which corpus\?\nusage: mix sconce.report CORPUS/)
    raises.([corpus, "b"], ~r/unknown argument b/)
    raises.([corpus, "--gmae", "1"], ~r/did you mean --game/)
    raises.([corpus, "--out", "a.svg"], ~r/--conversions and --out need --game/)
    raises.([replay], ~r/is a replay: mix sconce.import/)
    raises.([corpus, "--game", "7"], ~r/game/)
    raises.([corpus, "--game", "0", "--out", "a.png"], ~r/expected a file that ends in .svg/)
    none = Path.join(tmp_dir!("report"), "none")
    raises.([none], ~r/none.*not found/)
    folder = Path.dirname(replay)
    raises.([folder], ~r/replays/)
  end
end
