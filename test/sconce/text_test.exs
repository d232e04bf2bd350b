defmodule Sconce.TextTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  alias Sconce.{Corpus, Error, Native, Policy, Text}
  alias Sconce.Policy.Spec
  alias Sconce.Trainer.{Compare, Progress}
  alias Sconce.Trainer.Curve.Panel

  doctest Text

  # Renames the window, clears the screen, reverses the reading direction, and is not UTF-8.
  @evil "\e]0;mine\a\e[2J\u202Egpj.\u009B31m" <> <<0xFF>>
  # `@evil` without its invalid byte, usable as a file name.
  @path "\e]0;mine\a\e[2J\u202Egpj.\u009B31m"

  test "printed text contains no control characters" do
    shown = Text.printable(@evil)
    assert shown == ~S(\e]0;mine\a\e[2J\u{202E}gpj.\x9B31m\xFF)
    assert plain?(shown)

    for c <- Enum.concat([0..0xD7FF, 0xE000..0x2FFFF, 0xE0000..0xE00FF]) do
      assert plain?(Text.printable(<<c::utf8>>))
    end

    for byte <- 0x80..0xFF, do: assert(Text.printable(<<byte>>) =~ ~r/\A\\x[89A-F][0-9A-F]\z/)
  end

  test "printable text stays unchanged" do
    for text <- ["Fox 12, Mewtwo 5 …", "Müller · 大乱闘 · 🦊", "C:\\replays", "vector 2 -> gru 8x1"] do
      assert Text.printable(text) == text
    end

    assert Text.lines("a\nb\e") == "a\nb\\e"
  end

  test "a long text keeps both ends, and its middle is not read" do
    text = "begin" <> String.duplicate("x", 10_000_000) <> "end"
    shown = Text.printable(text)
    assert String.length(shown) < 4_010
    assert String.starts_with?(shown, "begin")
    assert String.ends_with?(shown, "end")
    # Multi-byte characters stand on both sides of the cut.
    assert plain?(Text.printable(String.duplicate("大", 5_000)))
    assert plain?(Text.printable(String.duplicate(@evil, 5_000)))
  end

  test "an error shows the path of its file as printable text" do
    path = Path.join(System.tmp_dir!(), @path)
    {:error, error} = Policy.load(path)
    assert error.details.what =~ @path
    assert plain?(Exception.message(error))
    assert Exception.message(error) =~ ~S(\e]0;mine\a\e[2J\u{202E})

    {:error, error} = Corpus.open(path)
    assert plain?(Exception.message(error))

    for kind <- Error.kinds(), key <- [:what, :path, :message, :mend, :weights] do
      details = %{key => @evil, reason: @evil, expected: @evil, got: @evil, weights: [@evil]}
      assert plain?(Exception.message(%Error{kind: kind, op: :load, details: details}))
    end
  end

  test "a head with a wrong name is refused, by a checkpoint and by a corpus" do
    spec =
      Spec.new(embedding: {:vector, 1}, backbone: :mlp, heads: [{"abcdefgh", {:bernoulli, 1}}])

    forged = put_in(spec.heads, [%{hd(spec.heads) | name: @path}])
    assert {:error, %Error{kind: :mismatch} = error} = Policy.init(forged)
    assert plain?(Exception.message(error))
    assert plain?(inspect(forged))

    dir = tmp_dir!("text")
    path = Path.join(dir, "policy.safetensors")
    {:ok, policy} = Policy.init(spec)
    :ok = Policy.save(policy, path)
    # `\d` is DEL, the only ASCII control character that JSON allows unescaped.
    File.write!(path, path |> File.read!() |> String.replace("abcdefgh", "abc\dDefg"))
    assert {:error, %Error{} = error} = Policy.load(path)
    assert plain?(Exception.message(error))

    corpus = Path.join(dir, "corpus")
    games = [{[0.0, 1.0], [0, 1]}]
    heads = [{"abcdefgh", {:bernoulli, 1}}]
    {:ok, _corpus} = Corpus.build({:vector, 1}, games, into: corpus, heads: heads)
    manifest = Path.join(corpus, "manifest.json")
    File.write!(manifest, manifest |> File.read!() |> String.replace("abcdefgh", ~S(\u001b[2J)))
    assert {:error, %Error{} = error} = Corpus.open(corpus)
    assert plain?(Exception.message(error))
  end

  test "tasks, errors and a corpus show sources of games and skipped files as printable text" do
    dir = tmp_dir!("text")
    fixtures = Path.join(dir, "fixtures")
    :ok = Native.corpus_fixtures(fixtures)
    replays = Path.join(dir, @path)
    File.mkdir_p!(replays)

    for file <- File.ls!(fixtures),
        do: File.cp!(Path.join(fixtures, file), Path.join(replays, @path <> file))

    File.write!(Path.join(replays, @path <> "not one.slp"), "nothing")
    corpus = Path.join(dir, "corpus")

    printed =
      capture_io(fn ->
        Mix.Tasks.Sconce.Import.run([replays, "--into", corpus, "--min-frames", "1"])
      end)

    assert printed =~ "skipped"
    assert printed =~ ~S(\e]0;mine)
    assert printed |> String.split("\n") |> Enum.all?(&plain?/1)

    {:ok, corpus} = Corpus.open(corpus)
    assert plain?(inspect(corpus))
    {:ok, [game | _]} = Corpus.games(corpus)
    assert game.source =~ "\e]0;mine"
    file = Path.join([corpus.dir, "games", Path.basename(game.file)])
    file = if File.exists?(file), do: file, else: Path.join(corpus.dir, game.file)
    bytes = File.read!(file)
    size = byte_size(bytes) - 1
    <<kept::binary-size(size), last>> = bytes
    File.write!(file, <<kept::binary, Bitwise.bxor(last, 1)>>)
    assert {:error, %Error{kind: :corrupt} = error} = Corpus.verify(corpus, progress: false)
    assert plain?(Exception.message(error))
  end

  test "progress lines, tables and pictures show names and reasons as printable text" do
    progress = Progress.new(terminal: false, label: @path)
    event = %{event: :save_failed, step: 1, reason: @evil}
    {text, _progress} = Progress.write(progress, event)
    line = IO.iodata_to_binary(text)
    assert String.ends_with?(line, "\n")
    assert plain?(String.trim_trailing(line, "\n"))

    assert Panel.escape("<a & \"#{@path}\">") ==
             "&lt;a &amp; &quot;" <> Text.printable(@path) <> "&quot;&gt;"

    policy = [embedding: {:vector, 1}, backbone: :mlp, heads: [{"abcdefgh", {:bernoulli, 1}}]]
    spec = Spec.new(policy)
    side = %{games: 1, frames: 1}

    report = %{
      spec: spec,
      options: %{teacher: @evil, frame_delay: 0, validation_stride: 1},
      history: [],
      baselines: [],
      weights: 1,
      stopped: :finished,
      steps: 1,
      best_step: nil,
      policy: nil,
      seconds: 1.0,
      train: side,
      validation: side
    }

    other = %{report | options: %{report.options | teacher: "other"}}
    table = Compare.table([%{name: @path, report: report}, %{name: "b", report: other}])
    assert table |> String.split("\n") |> Enum.all?(&plain?/1)
    assert table =~ "teacher"
  end

  @hidden ~r/[\p{Cc}\x{061C}\x{200B}-\x{200F}\x{2028}-\x{202E}\x{2060}-\x{206F}\x{FEFF}]/u

  defp plain?(text), do: String.valid?(text) and not (text =~ @hidden)
end
