defmodule Sconce.Evolve.Picture do
  @moduledoc false
  # Draws the objectives of an archive as the text of an SVG file.

  alias Sconce.Figures
  alias Sconce.Trainer.Curve.{Page, Panel, Scale}

  @left 76
  @top 76
  @side 480
  @bar 18
  @gap 24
  @margin 70
  @bottom 56
  # Dark blue, teal and yellow: light and dark stay apart without colors.
  @colors [{49, 18, 98}, {45, 96, 144}, {32, 150, 128}, {122, 200, 80}, {253, 231, 37}]

  @doc "Returns the picture of pixels, with figures of `stats` in its heading."
  def svg(%{rows: rows, ranges: ranges}, stats, opts) do
    range = opts[:range] || range(rows)
    width = @left + @side + @gap + @bar + @margin

    Page.sheet(width, @top + @side + @bottom, [
      heading(stats, opts[:title]),
      frame(),
      pixels(rows, range),
      axes(ranges, opts[:axes]),
      bar(range, @left + @side + @gap)
    ])
  end

  defp range(rows) do
    case for(row <- rows, value <- row, value != nil, do: value) do
      [] -> {0.0, 1.0}
      values -> Enum.min_max(values)
    end
  end

  defp heading(stats, title) do
    filled = "#{Figures.grouped(stats.elites)} of #{Figures.counted(stats.cells, "cell")}"
    best = if stats.best, do: ", best #{number(stats.best)}", else: ""
    summary = "#{filled}, QD score #{number(stats.qd_score)}#{best}"

    [
      text(@left, 30, title, ~s(font-size="17" font-weight="600")),
      text(@left, 50, summary)
    ]
  end

  defp frame do
    ~s(<rect x="#{@left}" y="#{@top}" width="#{@side}" height="#{@side}" fill="#f1f5f9" stroke="#94a3b8"/>\n)
  end

  # Neighbours of one color in a row are one rectangle. The first row is the lowest one.
  defp pixels(rows, range) do
    height = @side / length(rows)

    for {row, y} <- Enum.with_index(rows) do
      width = @side / length(row)
      top = @top + @side - (y + 1) * height

      row
      |> Enum.map(&(&1 && color(&1, range)))
      |> Enum.with_index()
      |> Enum.chunk_by(&elem(&1, 0))
      |> Enum.map(&run(&1, width, top, height))
    end
  end

  defp run([{nil, _x} | _more], _width, _top, _height), do: ""

  defp run([{color, x} | _more] = run, width, top, height) do
    ~s(<rect x="#{px(@left + x * width)}" y="#{px(top)}" width="#{px(length(run) * width)}" ) <>
      ~s(height="#{px(height)}" fill="#{color}" shape-rendering="crispEdges"/>\n)
  end

  # A range of one number, or one that is turned around, has the last color.
  defp color(value, {low, high}) when high > low,
    do: mixed((value - low) / (high - low))

  defp color(_value, _range), do: mixed(1.0)

  defp mixed(share) do
    place = 4 * (share |> max(0.0) |> min(1.0))
    at = min(trunc(place), 3)
    [{r, g, b}, {r2, g2, b2}] = Enum.slice(@colors, at, 2)
    part = place - at

    [r, g, b] =
      for {from, to} <- [{r, r2}, {g, g2}, {b, b2}], do: round(from + part * (to - from))

    "rgb(#{r},#{g},#{b})"
  end

  defp axes([x, y], {x_name, y_name}) do
    bottom = @top + @side
    [[x_low, x_high], [y_low, y_high]] = [pair(x), pair(y)]
    middle = @left + div(@side, 2)
    turned = ~s{text-anchor="middle" transform="rotate(-90 20 #{@top + div(@side, 2)})"}

    [
      text(@left, bottom + 18, number(x_low)),
      text(@left + @side, bottom + 18, number(x_high), ~s(text-anchor="end")),
      text(middle, bottom + 38, x_name, ~s(text-anchor="middle")),
      text(@left - 8, bottom, number(y_low), ~s(text-anchor="end")),
      text(@left - 8, @top + 12, number(y_high), ~s(text-anchor="end")),
      text(20, @top + div(@side, 2), y_name, turned)
    ]
  end

  defp pair([_low, _high] = pair), do: pair

  defp bar({low, high}, left) do
    steps = 48
    height = @side / steps

    [
      for i <- 0..(steps - 1) do
        y = @top + @side - (i + 1) * height

        ~s(<rect x="#{left}" y="#{px(y)}" width="#{@bar}" height="#{px(height)}" ) <>
          ~s(fill="#{mixed(i / (steps - 1))}" shape-rendering="crispEdges"/>\n)
      end,
      text(left + @bar + 6, @top + @side, number(low)),
      text(left + @bar + 6, @top + 12, number(high)),
      text(left, @top - 8, "objective")
    ]
  end

  defp text(x, y, text, style \\ ""),
    do: ~s(<text x="#{x}" y="#{y}" fill="#0f172a" #{style}>#{Panel.escape(text)}</text>\n)

  # Three decimals, or powers of ten for numbers that are very large or very small.
  defp number(value) when value == 0, do: "0"

  defp number(value) when abs(value) >= 0.001 and abs(value) < 1.0e6,
    do: Scale.number(value / 1, 3)

  defp number(value), do: :erlang.float_to_binary(value / 1, scientific: 2)

  defp px(value), do: Scale.number(value, 2)
end
