defmodule Sconce.Trainer.Curve.Panel do
  @moduledoc false
  # Draws one plot: axes with round ticks, series inside a frame, labels at the right edge.
  #
  # A panel is a map of `title`, `series`, `x` (the title of the x axis, or nil), `scale` of y (`:linear` by default, or
  # `:log`), `from` (numbers that the y axis must include) and `box`, `{left, top, width, height}`. A series is one of
  #
  #   * `{:line, color, points}`: noisy points, raw and faint, and smoothed
  #   * `{:trace, color, points, label}`: raw points, with a label at the end unless it is nil
  #   * `{:points, color, points, ringed_x, label}`: marks, with a label and the y at the ringed mark
  #   * `{:rule, color, y, label}`: a dashed horizontal line
  #
  # and a point is `{x, y}`.

  import Sconce.Trainer.Curve.Scale
  alias Sconce.Text

  @label_height 15
  # The steep beginning of a run may leave the frame, to keep the rest readable. The frame excludes points that lie
  # above the median by more than `@steep` times the distance from the median to the lowest point, and rules above
  # `@far` times the highest point.
  @steep 4
  @far 1.2

  @doc "Returns a panel as SVG elements."
  def svg(%{box: {left, top, width, height} = box, series: series} = panel) do
    scale = Map.get(panel, :scale, :linear)
    x_scale = Map.get(panel, :x_scale, :linear)
    {left_x, right_x} = across = series |> Enum.flat_map(&xs/1) |> across(x_scale)
    x_limits = {scaled(left_x, x_scale), scaled(right_x, x_scale)}
    {low, high} = range = series |> in_sight() |> Enum.concat(panel[:from] || []) |> range(scale)
    limits = {scaled(low, scale), scaled(high, scale)}
    place = fn {x, y} -> place({scaled(x, x_scale), scaled(y, scale)}, box, x_limits, limits) end
    clip = "panel#{left}-#{top}"

    [
      # The clip is wider than the frame, so that marks on the edge of the frame stay whole.
      ~s(<clipPath id="#{clip}"><rect x="#{left - 8}" y="#{top - 1}" width="#{width + 16}" ),
      ~s(height="#{height + 2}"/>),
      "</clipPath>\n",
      title(panel.title, box),
      y_axis(box, marks(range, scale), place),
      x_axis(panel[:x], box, x_marks(across, x_scale, width), place),
      ~s|<g clip-path="url(##{clip})">\n|,
      Enum.map(series, &drawn(&1, place, box)),
      "</g>\n",
      labels(series, place, box)
    ]
  end

  @doc "Returns the mark of a series for the legend."
  def mark(:line, color, x, y),
    do: ~s(<path d="M#{x} #{y}h18" stroke="#{color}" stroke-width="2"/>\n)

  def mark(:points, color, x, y),
    do: ~s(<circle cx="#{x + 9}" cy="#{y}" r="3.5" fill="#{color}"/>\n)

  # XML forbids the characters that do not print.
  def escape(text) do
    text
    |> Text.printable()
    |> String.replace("&", "&amp;")
    |> String.replace("<", "&lt;")
    |> String.replace(">", "&gt;")
    |> String.replace("\"", "&quot;")
  end

  defp xs({:rule, _color, _y, _label}), do: []
  defp xs(series), do: series |> elem(2) |> Enum.map(&elem(&1, 0))

  defp ys({:rule, _color, y, _label}), do: [y]
  defp ys({:line, _color, points}), do: points |> smoothed() |> numbers() |> not_steep()
  defp ys({:points, _color, points, _ringed, _label}), do: points |> numbers() |> not_steep()
  defp ys({:trace, _color, points, _label}), do: numbers(points)

  defp numbers(points), do: Enum.map(points, &elem(&1, 1))

  defp not_steep([]), do: []

  defp not_steep(ys) do
    [lowest | _] = sorted = Enum.sort(ys)
    median = Enum.at(sorted, div(length(sorted), 2))
    Enum.filter(sorted, &(&1 <= median + @steep * (median - lowest)))
  end

  defp in_sight(series) do
    {rules, curves} = Enum.split_with(series, &match?({:rule, _, _, _}, &1))
    {rules, curves} = {Enum.flat_map(rules, &ys/1), Enum.flat_map(curves, &ys/1)}
    highest = Enum.max(curves, fn -> :infinity end)
    curves ++ Enum.filter(rules, &(highest == :infinity or &1 <= @far * highest))
  end

  defp range(ys, :linear), do: y_range(ys)
  defp range(ys, :log), do: log_range(ys)

  # On a logarithmic axis, values of at most 0 are drawn far below the frame.
  defp scaled(y, :linear), do: y
  defp scaled(y, :log), do: :math.log10(max(y, 1.0e-30))

  # Returns the ticks of the y axis with their labels.
  defp marks({low, high} = range, :linear),
    do: for(value <- ticks(range), do: {value, tick(value, high - low)})

  defp marks(range, :log), do: for(value <- log_ticks(range), do: {value, short(value)})

  defp title(text, {left, top, _width, _height}) do
    ~s(<text x="#{left}" y="#{top - 10}" font-weight="600" fill="#334155">#{escape(text)}</text>\n)
  end

  defp y_axis({left, _top, width, _height}, marks, place) do
    for {value, text} <- marks do
      {_x, y} = place.({0, value})

      [
        ~s(<path d="M#{left} #{px(y)}h#{width}" stroke="#e2e8f0"/>\n),
        ~s(<text x="#{left - 8}" y="#{px(y + 4)}" text-anchor="end" fill="#475569">),
        "#{text}</text>\n"
      ]
    end
  end

  defp across(xs, :linear), do: {0, xs |> Enum.max(fn -> 1 end) |> max(1)}
  defp across(xs, :log), do: log_range(xs)

  # The x axis counts steps, so only integers are labelled.
  defp x_marks(range, :linear, width) do
    for value <- thinned(ticks(range), width),
        value == trunc(value),
        do: {value, Sconce.Figures.grouped(trunc(value))}
  end

  defp x_marks(range, :log, width),
    do: for(value <- thinned(log_ticks(range), width), do: {value, power(value)})

  defp x_axis(title, {left, top, width, height}, marks, place) do
    bottom = top + height

    ticks =
      for {value, text} <- marks do
        {x, _y} = place.({value, 1})

        [
          ~s(<path d="M#{px(x)} #{bottom}v5" stroke="#94a3b8"/>\n),
          ~s(<text x="#{px(x)}" y="#{bottom + 19}" text-anchor="middle" fill="#475569">),
          "#{text}</text>\n"
        ]
      end

    [
      ~s(<path d="M#{left} #{bottom}h#{width}" stroke="#94a3b8"/>\n),
      ticks,
      if(title, do: x_title(title, left + width / 2, bottom), else: "")
    ]
  end

  defp x_title(title, x, bottom) do
    ~s(<text x="#{px(x)}" y="#{bottom + 38}" text-anchor="middle" ) <>
      ~s(fill="#475569">#{escape(title)}</text>\n)
  end

  # Drops every other tick of a narrow panel, whose labels would touch.
  defp thinned(ticks, width) when width < 60 * length(ticks), do: Enum.take_every(ticks, 2)
  defp thinned(ticks, _width), do: ticks

  defp drawn({:line, color, points}, place, _box) do
    [
      path(points, place, ~s(stroke="#{color}" stroke-width="1" stroke-opacity="0.3")),
      path(smoothed(points), place, ~s(stroke="#{color}" stroke-width="2"))
    ]
  end

  defp drawn({:trace, color, points, _label}, place, _box),
    do: path(points, place, ~s(stroke="#{color}" stroke-width="2"))

  defp drawn({:points, color, points, ringed, _label}, place, _box) do
    dots =
      for {x, _y} = point <- points do
        {cx, cy} = place.(point)
        dot = ~s(<circle cx="#{px(cx)}" cy="#{px(cy)}" r="3.5" fill="#{color}"/>\n)
        ring = ~s(<circle cx="#{px(cx)}" cy="#{px(cy)}" r="7" fill="none" stroke="#{color}"/>\n)
        if x == ringed, do: [dot, ring], else: dot
      end

    [path(points, place, ~s(stroke="#{color}" stroke-width="1.5" stroke-opacity="0.6")), dots]
  end

  defp drawn({:rule, color, y, _label}, place, {left, _top, width, _height}) do
    {_x, y} = place.({0, y})

    ~s(<path d="M#{left} #{px(y)}h#{width}" stroke="#{color}" stroke-width="1.5" ) <>
      ~s(stroke-dasharray="6 4"/>\n)
  end

  defp path([], _place, _style), do: ""

  defp path(points, place, style) do
    joined = Enum.map_join(points, "L", fn point -> point |> place.() |> pair() end)
    ~s(<path d="M#{joined}" fill="none" stroke-linejoin="round" #{style}/>\n)
  end

  defp pair({x, y}), do: "#{px(x)} #{px(y)}"
  defp px(value), do: number(value, 1)

  # Places labels at the right edge, and moves them apart if they would overlap.
  defp labels(series, place, {left, top, width, height}) do
    wanted = series |> Enum.flat_map(&label_of(&1, place)) |> Enum.sort()
    room = top + height - @label_height * (length(wanted) - 1)

    {placed, _} =
      wanted
      |> Enum.with_index()
      |> Enum.map_reduce(top - @label_height, fn {{y, color, text, weight}, i}, above ->
        text = if y < top, do: "↑ " <> text, else: text
        y = y |> min(room + @label_height * i) |> max(above + @label_height)

        {~s(<text x="#{left + width + 12}" y="#{px(y + 4)}" fill="#{color}" ) <>
           ~s(font-weight="#{weight}">#{escape(text)}</text>\n), y}
      end)

    placed
  end

  defp label_of({:rule, color, y, text}, place),
    do: [{elem(place.({0, y}), 1), color, text, 400}]

  defp label_of({:trace, color, [_ | _] = points, text}, place) when text != nil,
    do: [{points |> List.last() |> place.() |> elem(1), color, text, 400}]

  defp label_of({:points, color, [_ | _] = points, ringed, text}, place) when text != nil do
    {_x, y} = Enum.find(points, List.last(points), &(elem(&1, 0) == ringed))
    [{elem(place.({0, y}), 1), color, "#{text} #{number(y, 3)}", 600}]
  end

  defp label_of(_series, _place), do: []
end
