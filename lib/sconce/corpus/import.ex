defmodule Sconce.Corpus.Import do
  @moduledoc false
  # The import of files into a corpus.

  alias Sconce.Corpus.{Catalogue, Filters, Progress}
  alias Sconce.{Error, Game, Native, Options}
  alias Sconce.Game.Declaration
  alias Sconce.Native.Call

  @reasons Map.new(Catalogue.reasons(), &{Atom.to_string(&1), &1})

  @doc "Imports files. Returns the folder of the corpus and the report."
  @spec run(Path.t() | [Path.t()], keyword) ::
          {:ok, Path.t(), Sconce.Corpus.report()} | {:error, Error.t()}
  def run(paths, opts) do
    opts = Options.validate!(opts, Catalogue.schema(:import))
    paths = for path <- paths!(paths), do: path |> Options.path!() |> Path.expand()
    into = Path.expand(opts[:into])

    least = if opts[:game] == :melee, do: 600, else: 1

    filter = opts |> Map.new() |> Map.take(Filters.names() -- [:min_frames]) |> Filters.native()

    options = %{
      min_frames: opts[:min_frames] || least,
      filter: filter,
      threads: opts[:threads] || 0,
      retry: opts[:retry],
      compress: opts[:compress]
    }

    start = importer(opts[:game], paths, into, options)

    with {:ok, report} <- Call.in_background(start, Progress.imported(opts[:progress])),
         report = %{report | skipped: Enum.map(report.skipped, &named/1)},
         :ok <- kept_some(report),
         do: {:ok, into, report}
  end

  defp importer(:melee, paths, into, options),
    do: &Native.corpus_import(&1, paths, into, options)

  defp importer(game, paths, into, options) do
    game = game |> Game.of!() |> Declaration.to_native()
    &Native.corpus_import_tables(&1, game, paths, into, options)
  end

  defp paths!(paths) when length(paths) >= 0, do: paths
  defp paths!(path) when is_binary(path), do: [path]
  defp paths!(other), do: Options.argument!("paths", other, "a path or a list of paths")

  # An import is an error if files were found and none of them was usable.
  defp kept_some(%{added: 0, known: 0, skipped: [_ | _] = skipped}) do
    reasons = skipped |> Enum.frequencies_by(& &1.reason) |> Enum.sort()
    reasons = Enum.map_join(reasons, ", ", fn {reason, n} -> "#{n} #{reason}" end)
    what = "a usable game in #{length(skipped)} files (#{reasons})"
    {:error, %Error{kind: :not_found, op: :import, details: %{what: what, skipped: skipped}}}
  end

  defp kept_some(_report), do: :ok

  defp named(%{reason: reason} = skipped),
    do: %{skipped | reason: Map.fetch!(@reasons, reason)}
end
