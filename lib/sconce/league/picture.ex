defmodule Sconce.League.Picture do
  @moduledoc false
  # Draws a league as an SVG: a cell for each pair, and a mark with its interval for each rating.

  alias Sconce.League
  alias Sconce.Trainer.Curve.{Page, Panel, Scale}

  @top 96
  @label 190
  @ratings 220
  @gap 24
  @margin 20
  # The range of a cell's size, and the smallest size with a number in it.
  @smallest 12
  @largest 54
  @numbered 30
  @matrix 540
  @wins {37, 99, 235}
  @losses {220, 38, 38}

  @doc "Returns the picture, with the players in the given order."
  def svg(league, order) do
    n = length(order)
    size = @matrix |> div(n) |> max(@smallest) |> min(@largest)
    width = @label + n * size + @gap + @ratings + @margin
    height = @top + n * size + 48
    rows = Enum.with_index(order)

    Page.sheet(width, height, [
      heading(league, n),
      for({at, i} <- rows, do: row(league, at, i, order, size)),
      ratings(league, rows, size, @label + n * size + @gap)
    ])
  end

  defp heading(league, n) do
    label = League.label(league)
    title = if label, do: "League in #{label}", else: "League"
    played = "#{n} players, #{League.played(league)}; win rate of the row against the column"

    [
      text(
        @margin,
        30,
        title,
        ~s(font-size="17" font-weight="600")
      ),
      text(@margin, 50, played),
      text(@margin, 66, League.apart(league) || ""),
      text(@label, @top - 26, "win rate", ~s(font-weight="600"))
    ]
  end

  defp row(league, at, i, order, size) do
    y = @top + i * size

    name =
      league.players |> Enum.at(at) |> String.slice(-24, 24) |> whole(Enum.at(league.players, at))

    rates = Enum.at(league.payoff, at)
    middle = @label + i * size + div(size, 2)

    [
      text(@label - 8, y + div(size, 2) + 4, "#{name} #{i + 1}", ~s(text-anchor="end")),
      text(middle, @top - 8, "#{i + 1}", ~s(text-anchor="middle")),
      for {other, j} <- Enum.with_index(order), other != at do
        cell(Enum.at(rates, other), @label + j * size, y, size)
      end
    ]
  end

  # A name of fewer than 24 characters has no last 24.
  defp whole("", name), do: name
  defp whole(end_of_name, _name), do: end_of_name

  defp cell(rate, x, y, size) do
    number = if size >= @numbered, do: League.shown(rate), else: ""

    [
      ~s(<rect x="#{x}" y="#{y}" width="#{size - 1}" height="#{size - 1}" fill="#{color(rate)}"/>\n),
      text(x + div(size, 2), y + div(size, 2) + 4, number, ~s(text-anchor="middle"))
    ]
  end

  # White at 0.5, blue for wins and red for losses; grey for players that have not met.
  defp color(nil), do: "rgb(226,232,240)"

  defp color(rate) do
    share = 0.85 * abs(2 * rate - 1)
    {r, g, b} = if rate >= 0.5, do: @wins, else: @losses
    mixed = for part <- [r, g, b], do: round(255 + share * (part - 255))
    "rgb(#{Enum.join(mixed, ",")})"
  end

  defp ratings(league, rows, size, left) do
    low = league.ratings |> Enum.map(& &1.low) |> Enum.min()
    high = league.ratings |> Enum.map(& &1.high) |> Enum.max()
    place = fn elo -> left + (elo - low) / max(high - low, 1.0) * (@ratings - 50) end

    [
      text(left, @top - 26, "Elo", ~s(font-weight="600")),
      for {at, i} <- rows do
        rating(Enum.at(league.ratings, at), @top + i * size + div(size, 2), place, left)
      end
    ]
  end

  defp rating(%{elo: elo, low: low, high: high}, y, place, left) do
    [
      ~s(<path d="M#{px(place.(low))} #{y}H#{px(place.(high))}" stroke="#64748b" stroke-width="2"/>\n),
      ~s(<circle cx="#{px(place.(elo))}" cy="#{y}" r="4" fill="#0f172a"/>\n),
      text(left + @ratings - 40, y + 4, "#{round(elo)}")
    ]
  end

  defp text(x, y, text, style \\ "")
  defp text(_x, _y, "", _style), do: ""

  defp text(x, y, text, style),
    do: ~s(<text x="#{x}" y="#{y}" fill="#0f172a" #{style}>#{Panel.escape(text)}</text>\n)

  defp px(value), do: Scale.number(value, 1)
end
