defmodule Mix.Tasks.Sconce.Import do
  @shortdoc "Adds replays to a corpus"

  @moduledoc """
  Reads Slippi replays into a `Sconce.Corpus`, on all cores, each game once.

      $ mix sconce.import PATH... --into DIR

  A path is a replay or a folder that is searched for `.slp` files. A second run adds only what is
  new; one that was stopped goes on.

    * `--into DIR` - folder of the corpus, required
    * `--min-frames N` - leaves out shorter games, 600 by default
    * `--threads N` - threads that read, one for each processor by default

  It ends with what was added, and what was skipped and why.
  """

  use Mix.Task

  alias Sconce.Corpus

  @switches [into: :string, min_frames: :integer, threads: :integer]
  @usage "usage: mix sconce.import PATH... --into DIR [--min-frames N] [--threads N]"

  @impl true
  def run(args) do
    {opts, paths} = parse!(args)
    Mix.Task.run("app.config")

    case Corpus.import(paths, opts) do
      {:ok, corpus} -> report(corpus)
      {:error, error} -> Mix.raise(Exception.message(error))
    end
  end

  defp parse!(args) do
    case OptionParser.parse(args, strict: @switches) do
      {opts, [_ | _] = paths, []} -> if opts[:into], do: {opts, paths}, else: Mix.raise(@usage)
      {_opts, _paths, [{name, _value} | _]} -> Mix.raise("unknown option #{name}\n#{@usage}")
      {_opts, [], []} -> Mix.raise(@usage)
    end
  end

  defp report(%Corpus{report: report} = corpus) do
    say = &Mix.shell().info/1
    Enum.each(report.skipped, &say.(skipped(&1)))

    say.(
      "added #{report.added} games (#{Corpus.grouped(report.frames)} frames, " <>
        "#{Corpus.size(report.bytes)}) in #{Float.round(report.seconds, 1)} s, " <>
        "#{report.known} known, #{length(report.skipped)} skipped"
    )

    for {what, n} <- report.other_ids, n > 0, do: say.("#{n} #{what} have no row of their own")
    say.(inspect(corpus))
  end

  defp skipped(%{file: file, reason: reason, detail: detail}),
    do: "skipped #{Path.relative_to_cwd(file)}: #{reason} (#{detail})"
end
