defmodule Mix.Tasks.Sconce.Report do
  alias Sconce.{Corpus, Report, Switches}

  @schema [
    game: [
      type: {:or, [:non_neg_integer, nil]},
      default: nil,
      doc: "Number of the game, from 0; without it all games are added up."
    ],
    by: [
      type: {:in, [:name, :character]},
      default: :name,
      doc: "Rows of the summary of all games."
    ],
    conversions: [
      type: :boolean,
      default: false,
      doc: "With --game: lists each conversion."
    ],
    out: [type: :path, doc: "With --game: SVG file for the picture; without it none is drawn."]
  ]

  @shortdoc "Reports on games: openings, conversions, stocks, self-destructs"

  @moduledoc """
  Prints what happened in the games of a corpus of Melee: openings, conversions,
  kills, damage per opening, stocks and self-destructs. See `Sconce.Report`.

      $ mix sconce.report CORPUS                       # all games, added up
      $ mix sconce.report CORPUS --game 3 --out 3.svg  # one game

  CORPUS is a folder made by `mix sconce.import`. For replays, import them first:

      $ mix sconce.import replays --into corpus

  #{Switches.docs(@schema)}
  """

  use Mix.Task

  @requirements ["app.config"]
  @usage "usage: mix sconce.report CORPUS [--game N] [--out FILE.svg]"

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || report(args)

  defp report(args) do
    {opts, dir} = parse!(args)

    with {:ok, corpus} <- Corpus.open(dir), {:ok, text} <- text(corpus, opts) do
      Mix.shell().info(text)
    else
      {:error, error} -> Switches.fail!(error, @schema)
    end
  end

  defp text(corpus, %{game: nil, by: by}) do
    with {:ok, games} <- Report.games(corpus), do: {:ok, Report.text(Report.sum(games, by: by))}
  end

  defp text(corpus, %{game: index} = opts) do
    with {:ok, game} <- Report.of_corpus(corpus, index), :ok <- draw(game, opts[:out]) do
      listed = if opts.conversions, do: ["\n", Report.conversions(game)], else: []
      picture = if opts[:out], do: ["\npicture  #{opts[:out]}"], else: []
      {:ok, Enum.join([Report.text(game) | listed ++ picture], "\n")}
    end
  end

  defp draw(_game, nil), do: :ok
  defp draw(game, path), do: Report.write(game, path)

  defp parse!(args) do
    {given, rest} = Switches.parse!(args, @schema)
    opts = Map.merge(%{game: nil, by: :name, conversions: false}, Map.new(given))
    {checked!(opts), dir!(rest)}
  rescue
    error in ArgumentError -> Mix.raise("#{Exception.message(error)}\n#{@usage}")
  end

  defp checked!(%{game: nil} = opts) do
    if opts.conversions || opts[:out],
      do: raise(ArgumentError, "--conversions and --out need --game"),
      else: opts
  end

  defp checked!(opts), do: opts

  defp dir!([dir]) do
    if String.ends_with?(String.downcase(dir), ".slp"),
      do: raise(ArgumentError, "#{dir} is a replay: mix sconce.import #{dir} --into CORPUS"),
      else: dir
  end

  defp dir!([]), do: raise(ArgumentError, "which corpus?")
  defp dir!([_first, second | _]), do: raise(ArgumentError, "unknown argument #{second}")
end
