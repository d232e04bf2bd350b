defmodule Sconce.Bench.Attack.Source do
  @moduledoc false
  # Items 12, 13 and 14: properties of the source, and control characters from files in terminal output.

  import Sconce.Bench.Attack, only: [answer: 1]
  import Sconce.Bench.Attack.Fixtures

  alias Sconce.Bench.{Attack, Child}
  alias Sconce.{Corpus, Native}

  @escape "\e[31m\e]0;title\a"
  @patience_ms 60_000
  @root Path.expand("../../../../..", __DIR__)

  def rows do
    [
      %Attack{
        item: 12,
        name: "unbounded std::sync::mpsc channels in the native code",
        attack: fn _dir -> [{"channels", unbounded()}] end,
        where: :here,
        accept: :answered
      },
      %Attack{
        item: 13,
        name: "escape sequences in a manifest's source, shown by errors and inspect",
        make: &sourced/1,
        attack: &shown/1,
        accept: &clean/1
      },
      %Attack{
        item: 13,
        name: "escape sequences in replays' names, printed by mix sconce.import",
        make: &named/1,
        attack: &imported/1,
        where: :here,
        accept: &clean/1,
        seconds: nil
      },
      %Attack{
        item: 14,
        name: "SECURITY.md",
        attack: fn _dir -> [{"SECURITY.md", page()}] end,
        where: :here,
        accept: :answered
      }
    ]
  end

  defp unbounded do
    found =
      for file <- @root |> Path.join("native/*/src/**/*.rs") |> Path.wildcard(),
          {line, n} <- file |> File.stream!() |> Stream.with_index(1),
          line =~ ~r/mpsc::channel\b|\bchannel\(\)|\bunbounded\(/ and not (line =~ ~r{^\s*//}),
          do: "#{Path.relative_to(file, @root)}:#{n}"

    if found == [], do: {:value, "none"}, else: {:raw, Enum.join(found, ", ")}
  end

  defp page do
    case File.read(Path.join(@root, "SECURITY.md")) do
      {:ok, text} -> {:value, "#{byte_size(text)} bytes"}
      {:error, reason} -> {:raw, inspect(reason)}
    end
  end

  # The source name of a game contains escape sequences. The game is damaged, so that errors print the name.
  defp sourced(dir) do
    replays = Path.join(dir, "replays")
    File.mkdir_p!(replays)
    :ok = Native.corpus_fixtures(replays)
    into = Path.join(dir, "corpus")
    {:ok, _corpus} = Corpus.import(replays, into: into, min_frames: 1, progress: false)
    manifest = Path.join(into, "manifest.json")
    text = File.read!(manifest)
    odd = Regex.replace(~r/("source":\s*")/, text, "\\1\\\\u001b[31m\\\\u001b]0;title\\\\u0007")
    odd != text || raise "the manifest names no source"
    File.write!(manifest, odd)
    game = into |> Path.join("games/*") |> Path.wildcard() |> hd()
    bytes = File.read!(game)
    flipped = :binary.copy(<<255>>, 16)
    keep = byte_size(bytes) - 16
    File.write!(game, binary_part(bytes, 0, keep) <> flipped)
  end

  defp shown(dir) do
    into = Path.join(dir, "corpus")
    {:ok, corpus} = Corpus.open(into)
    head = "x" <> @escape

    [
      {"inspect", inspect(corpus)},
      {"verify", text(answer(fn -> Corpus.verify(into, progress: false) end))},
      {"a weight's name", text(answer(fn -> Sconce.Policy.weight(policy!(), head) end))},
      {"a path", text(answer(fn -> Sconce.Policy.load(Path.join(dir, @escape)) end))},
      {"a head's name",
       text(answer(fn -> policy!(heads: [{:"head\e[31m", {:categorical, 2}}]) end))}
    ]
  end

  defp text({:error, _kind, text}), do: text
  defp text({_what, text}), do: text

  defp clean(texts) do
    for {label, text} <- texts,
        [odd] <- [Regex.run(~r/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]/, text)],
        do: "#{label}: #{inspect(odd)} in #{inspect(text, printable_limit: 300)}"
  end

  defp named(dir) do
    replays = Path.join(dir, "replays")
    File.mkdir_p!(replays)
    :ok = Native.corpus_fixtures(replays)
    File.write!(Path.join(replays, "odd#{@escape}.slp"), "no replay")
  end

  defp imported(dir) do
    args = ["sconce.import", Path.join(dir, "replays"), "--into", Path.join(dir, "corpus")]
    ended = (args ++ ["--min-frames", "1"]) |> Child.mix() |> Child.await(@patience_ms)
    [{"output", ended.output}]
  end
end
