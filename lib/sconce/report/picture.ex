defmodule Sconce.Report.Picture do
  @moduledoc false
  # Draws a game as an SVG: the percent of both players over time, a bar for each conversion, a mark for each lost stock.

  alias Sconce.{Error, Figures}
  alias Sconce.Report.{Game, Table}
  alias Sconce.Trainer.Curve.{Page, Panel, Scale}

  @width 860
  @left 56
  @right 24
  @top 92
  @plot 280
  # Height of the band of a player's conversions, and of the gap above it.
  @band 22
  @gap 10
  @bottom 44
  @colors ["#2563eb", "#dc2626"]
  @fps 60
  @least_percent 100
  @legend "circles: lost stocks, empty for self-destructs · bars: conversions of each player, dark for kills"

  @doc "Returns the picture."
  def svg(%Game{frames: 0} = game), do: Page.sheet(@width, @top, heading(game))

  def svg(%Game{} = game) do
    bands = 2 * (@band + @gap)
    place = place(game)

    Page.sheet(@width, @top + @plot + bands + @bottom, [
      heading(game),
      grid(place),
      for({player, i} <- Enum.with_index(game.players), do: line(player, i, game.last, place)),
      for({player, i} <- Enum.with_index(game.players), do: deaths(player, i, place)),
      for(i <- 0..1, do: band(game, i, place)),
      clock(game, place, @top + @plot + bands)
    ])
  end

  @doc "Writes the picture to a file."
  @spec write(Game.t(), Path.t()) :: :ok | {:error, Error.t()}
  def write(game, path), do: game |> svg() |> Page.write(path, :write_svg)

  # The place of a frame and of a percent.
  defp place(game) do
    span = max(game.last - game.first, 1)
    high = highest(game)
    wide = @width - @left - @right

    %{
      x: fn frame -> @left + wide * (frame - game.first) / span end,
      y: fn percent -> @top + @plot * (1 - (percent |> max(0) |> min(high)) / high) end,
      high: high
    }
  end

  # The upper end of the axis, a multiple of 50 percent.
  defp highest(game) do
    percents = for player <- game.players, {_frame, percent} <- player.line, do: percent
    most = percents |> Enum.max() |> min(999) |> max(@least_percent)
    50 * ceil(most / 50)
  end

  defp heading(%{players: players} = game) do
    [
      text(@left, 76, @legend, ~s(fill="#64748b")),
      text(@left, 30, Table.title(game), ~s(font-size="17" font-weight="600")),
      for {player, i} <- Enum.with_index(players) do
        figures =
          Enum.map_join(
            [openings: "opening", kills: "kill", self_destructs: "self-destruct"],
            ", ",
            fn {key, noun} -> Figures.counted(player[key], noun) end
          )

        label = "#{Table.name(player, 24)} #{Game.character(player)}: #{figures}"
        text(@left + 400 * i, 56, label, ~s(fill="#{color(i)}" font-weight="600"))
      end
    ]
  end

  defp grid(place) do
    for percent <- 0..place.high//50 do
      y = px(place.y.(percent))

      [
        ~s(<path d="M#{@left} #{y}H#{@width - @right}" stroke="#e2e8f0"/>\n),
        text(
          @left - 8,
          Scale.number(place.y.(percent) + 4, 1),
          "#{percent} %",
          ~s(text-anchor="end")
        )
      ]
    end
  end

  # The percent is a staircase: it keeps its value until the next change.
  defp line(%{line: [{frame, percent} | changes]}, i, last, place) do
    steps = for {at, value} <- changes, do: "H#{px(place.x.(at))}V#{px(place.y.(value))}"
    start = "M#{px(place.x.(frame))} #{px(place.y.(percent))}"

    ~s(<path d="#{start}#{steps}H#{px(place.x.(last))}" fill="none" stroke="#{color(i)}" stroke-width="1.5"/>\n)
  end

  # A filled mark is a kill, and an empty one a self-destruct.
  defp deaths(player, i, place) do
    for %{lost: lost} = stock when lost != nil <- player.stocks do
      fill = if lost == :kill, do: color(i), else: "#ffffff"
      what = if lost == :kill, do: "killed", else: "self-destruct"

      ~s(<circle cx="#{px(place.x.(stock.end))}" cy="#{px(place.y.(stock.end_percent))}" r="5" ) <>
        ~s(fill="#{fill}" stroke="#{color(i)}" stroke-width="2"><title>) <>
        "#{Panel.escape("#{Table.clock(stock.end)} #{Table.name(player, 24)}: #{what}")}</title></circle>\n"
    end
  end

  defp band(game, i, place) do
    top = @top + @plot + @gap + i * (@band + @gap)

    [
      ~s(<rect x="#{@left}" y="#{top}" width="#{@width - @left - @right}" height="#{@band}" fill="#f1f5f9"/>\n),
      for conversion <- game.conversions, conversion.player == i do
        bar(conversion, game, top, place)
      end
    ]
  end

  defp bar(conversion, game, top, place) do
    x = place.x.(conversion.start)
    width = max(place.x.(conversion.end || game.last) - x, 1.0)
    damage = Scale.number(conversion.damage, 1)
    end_of_stock = if conversion.kill, do: ", kill", else: ""
    what = "#{Table.clock(conversion.start)} #{conversion.opener}, #{damage} %#{end_of_stock}"
    opacity = if conversion.kill, do: 1, else: 0.55

    ~s(<rect x="#{px(x)}" y="#{top}" width="#{px(width)}" height="#{@band}" fill="#{color(conversion.player)}" ) <>
      ~s(fill-opacity="#{opacity}"><title>#{Panel.escape(what)}</title></rect>\n)
  end

  defp clock(game, place, y) do
    seconds = div(game.last, @fps)
    # About ten marks.
    step = Enum.find([5, 10, 30, 60, 120, 300], 600 * ceil(seconds / 6000), &(seconds <= 10 * &1))

    for second <- 0..max(seconds, 0)//step, second * @fps >= game.first do
      text(px(place.x.(second * @fps)), y + 24, Scale.clock(second), ~s(text-anchor="middle"))
    end
  end

  defp color(i), do: Enum.at(@colors, i)

  defp text(x, y, text, style) do
    fill = if style =~ "fill=", do: "", else: ~s(fill="#0f172a" )
    ~s(<text x="#{x}" y="#{y}" #{fill}#{style}>#{Panel.escape(text)}</text>\n)
  end

  defp px(value), do: Scale.number(value, 1)
end
