defmodule Sconce.Report.Table do
  @moduledoc false
  # Writes reports as lines of at most 80 columns.

  alias Sconce.{Corpus, Figures, Text}
  alias Sconce.Report.{Game, Summary}
  alias Sconce.Trainer.Curve.Scale

  @label 22
  @cell 19
  @name 18
  @fps 60
  @openings [neutral_win: "neutral win", counter_attack: "counter-attack", trade: "trade"]

  # {label, key, how the figure is written}; of a player.
  @figures [
    {"openings", :openings, :count},
    {"  neutral wins", :neutral_wins, :count},
    {"  counter-attacks", :counter_attacks, :count},
    {"  trades", :trades, :count},
    {"neutral win ratio", :neutral_win_ratio, :share},
    {"damage per opening", :damage_per_opening, :tenths},
    {"openings per kill", :openings_per_kill, :tenths},
    {"kills", :kills, :count},
    {"stocks lost", :stocks_lost, :count},
    {"  self-destructs", :self_destructs, :count},
    {"stocks left", :stocks_left, :count},
    {"damage taken", :damage_taken, :tenths}
  ]

  # {head, key, how the figure is written, width}; of a row of a summary.
  @summary [
    {"games", :games, :count, 6},
    {"won", :wins, :count, 5},
    {"openings", :openings_per_game, :tenths, 9},
    {"dmg/op", :damage_per_opening, :tenths, 8},
    {"op/kill", :openings_per_kill, :tenths, 8},
    {"neutral", :neutral_win_ratio, :share, 8},
    {"kills", :kills_per_game, :tenths, 7},
    {"SDs", :self_destructs_per_game, :tenths, 6}
  ]

  @doc "Returns the report of a game."
  def game(%Game{players: players} = game) do
    rows = for {label, key, form} <- @figures, do: row(label, players, &written(form, &1[key]))
    heads = [cells("", Enum.map(players, &name(&1, @name)))]

    characters =
      if game.frames > 0, do: [cells("", Enum.map(players, &Game.character/1))], else: []

    Enum.join(
      [title(game), ""] ++ heads ++ characters ++ rows ++ facts(game) ++ [""] ++ stocks(game),
      "\n"
    )
    |> String.trim_trailing()
  end

  defp row(label, players, write), do: cells(label, Enum.map(players, write))

  defp cells(label, [first, second]) do
    String.pad_trailing(label, @label) <>
      String.pad_leading(first, @cell) <> String.pad_leading(second, @cell)
  end

  @doc "Returns the first line of a report."
  def title(%Game{} = game) do
    name = game.title && game.title |> Text.printable() |> String.slice(0, 36)
    length = if game.frames > 0, do: Scale.clock(game.frames / @fps), else: "no frames"
    [name, game.stage && stage(game.stage), length] |> Enum.reject(&is_nil/1) |> Enum.join(" · ")
  end

  defp stage(id) do
    Enum.find(Corpus.stages(), "stage #{id}", &(Corpus.stage_id(&1) == {:ok, id}))
  end

  defp facts(game) do
    [
      cells("usual first move", for(i <- 0..1, do: opener(Game.usual_opener(game, i)))),
      cells("best conversion", for(i <- 0..1, do: best(Game.best(game, i))))
    ]
  end

  defp opener(nil), do: "-"
  defp opener({move, count}), do: "#{move} #{count}"

  defp best(nil), do: "-"
  defp best(conversion), do: "#{tenths(conversion.damage)} at #{clock(conversion.start)}"

  defp stocks(%Game{players: players}) do
    for player <- players, stock <- player.stocks, stock.lost do
      cause = if stock.lost == :kill, do: "killed", else: "self-destruct"

      "#{lead(clock(stock.end), 6)}  #{name(player, @name) |> String.pad_trailing(@name)}  stock #{stock.count}  " <>
        "#{lead(tenths(stock.end_percent), 6)} %  #{cause}"
    end
    |> Enum.sort()
    |> case do
      [] -> []
      lines -> ["lost stocks" | lines]
    end
  end

  @doc "Returns the conversions of a game."
  def conversions(%Game{} = game) do
    head = "  time  player        opening         first move       moves  percent"
    Enum.join([head | Enum.map(game.conversions, &conversion(&1, game.players))], "\n")
  end

  defp conversion(conversion, players) do
    percent = "#{tenths(conversion.start_percent)} to #{tenths(conversion.end_percent)}"

    [
      lead(clock(conversion.start), 6),
      players |> Enum.at(conversion.player) |> name(12) |> String.pad_trailing(12),
      @openings |> Keyword.fetch!(conversion.opening) |> String.pad_trailing(14),
      String.pad_trailing(conversion.opener, 15),
      lead("#{length(conversion.moves)}", 5),
      percent <> if(conversion.kill, do: ", kill", else: "")
    ]
    |> Enum.join("  ")
  end

  @doc "Returns a summary."
  def summary(%Summary{rows: rows, games: games, by: by} = summary) do
    head = for {head, _key, _form, width} <- @summary, do: lead(head, width)
    label = if by == :name, do: "player", else: "character"

    lines =
      for row <- rows do
        cells = for {_, key, form, width} <- @summary, do: lead(written(form, row[key]), width)
        name(%{name: Summary.label(summary, row)}, @label) |> line(cells)
      end

    Enum.join([Figures.counted(games, "game"), line(label, head) | lines], "\n")
  end

  defp line(label, cells), do: String.pad_trailing(label, @label) <> Enum.join(cells)

  @doc "Returns a player's name of at most `most` characters."
  def name(%{name: name}, most), do: name |> Text.printable() |> String.slice(0, most)

  @doc "Returns a frame number as a time of the game, in whole seconds since GO."
  def clock(frame), do: frame |> max(0) |> div(@fps) |> Scale.clock()

  defp lead(text, width), do: String.pad_leading(text, width)

  defp written(_form, nil), do: "-"
  defp written(:count, value), do: Figures.grouped(value)
  defp written(:tenths, value), do: tenths(value)
  defp written(:share, value), do: "#{round(100 * value)} %"

  defp tenths(value), do: Scale.number(value, 1)
end
