defmodule Mix.Tasks.Sconce.Import do
  alias Sconce.{Config, Corpus, Figures, Switches, Text}

  @schema [
    into: [type: :path, doc: "Folder of the corpus, required."],
    min_frames: [type: :pos_integer, default: 600, doc: "Shorter games are left out."],
    max_frames: [type: :pos_integer, doc: "Longer games are left out."],
    stages: [
      type: {:list, {:or, [:non_neg_integer, :string]}},
      doc: "Keeps games on these stages, names or ids."
    ],
    characters: [
      type: {:list, {:or, [:non_neg_integer, :string]}},
      doc: "Keeps games in which a player has one of these characters."
    ],
    min_damage_dealt: [type: :float, doc: "Least damage that a player dealt, in percent."],
    min_damage_taken: [type: :float, doc: "Least damage that the same player took, in percent."],
    humans: [type: :boolean, default: false, doc: "Leaves out games with a computer player."],
    unique: [
      type: :boolean,
      default: false,
      doc: "Leaves out a game with the same values as another, such as a second recording."
    ],
    min_quality: [type: :float, doc: "Least quality of a game, from 0 to 100."],
    compress: [type: :boolean, default: false, doc: "Writes the added games compressed."],
    threads: [type: :pos_integer, doc: "Threads that read; by default one for each processor."],
    retry: [
      type: :boolean,
      default: false,
      doc: "Also reads replays that were open at two deaths of an import."
    ]
  ]

  @shortdoc "Adds replays to a corpus"

  @moduledoc """
  Imports Slippi replays into a `Sconce.Corpus` on all cores, each game once.

      $ mix sconce.import PATH... --into DIR

  PATH is a replay, or a folder that is searched for `.slp` files. The default is
  the folder named by `EXPHIL_REPLAYS_DIR` or `config :sconce, replays: DIR`. A
  second run adds only new games; an interrupted one resumes.

  #{Switches.docs(@schema)}

  The output names each skipped file with the reason, and counts the added games
  and the skipped files by reason.
  The exit status is 1 if files were found and none of them could be imported.
  """

  use Mix.Task

  @usage "usage: mix sconce.import PATH... --into DIR [--min-frames N] [--stages NAME,NAME] [--compress] [--threads N] [--retry]"

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || add(args)

  defp add(args) do
    {opts, paths} = parse!(args)
    Mix.Task.run("app.config")

    case Corpus.import(paths, opts) do
      {:ok, corpus} -> report(corpus)
      {:error, error} -> refuse(error)
    end
  end

  defp parse!(args) do
    case Switches.parse!(args, @schema) do
      {opts, []} -> needed!(opts, List.wrap(Config.get(:replays)))
      {opts, paths} -> needed!(opts, paths)
    end
  rescue
    error in ArgumentError -> Mix.raise("#{Switches.message(error, @schema)}\n#{@usage}")
  end

  defp needed!(opts, paths) do
    if opts[:into] && paths != [], do: {opts, paths}, else: Mix.raise(@usage)
  end

  defp refuse(error) do
    for file <- Map.get(error.details, :skipped, []), do: Mix.shell().info(skipped(file))
    Switches.fail!(error, @schema)
  end

  defp report(%Corpus{report: report} = corpus) do
    say = &Mix.shell().info/1
    Enum.each(report.skipped, &say.(skipped(&1)))
    Enum.each(report.interrupted, &say.(interrupted(&1)))

    say.(
      "added #{Figures.counted(report.added, "game")} (#{Figures.grouped(report.frames)} frames, " <>
        "#{Figures.size(report.bytes)}) in #{Float.round(report.seconds, 1)} s, " <>
        "#{report.known} known, #{length(report.skipped)} skipped"
    )

    if report.skipped != [], do: say.("skipped: #{by_reason(report.skipped)}")
    for {what, n} <- report.other_ids, n > 0, do: say.("#{n} #{what} have no row of their own")
    say.(inspect(corpus))
  end

  defp by_reason(skipped) do
    counts = skipped |> Enum.frequencies_by(& &1.reason) |> Enum.sort()
    Enum.map_join(counts, ", ", fn {reason, n} -> "#{n} #{reason}" end)
  end

  defp skipped(%{file: file, reason: reason, detail: detail}),
    do: Text.printable("skipped #{Path.relative_to_cwd(file)}: #{reason} (#{detail})")

  defp interrupted(%{file: file, digest: digest, deaths: deaths}) do
    name = if file == "", do: "a replay of SHA-256 #{digest}", else: file
    Text.printable("#{name} was being read when an import died (#{deaths})")
  end
end
