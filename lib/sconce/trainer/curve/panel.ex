defmodule Sconce.Trainer.Curve.Panel do
  @moduledoc false
  # One plot: axes with round ticks, series inside a frame, labels at its right edge.
  #
  # A series is `{:line, color, points}`, `{:points, color, points, ringed_x}` or
  # `{:rule, color, y, label}`; a point is `{x, y}`.

  import Sconce.Figures, only: [grouped: 1]
  import Sconce.Trainer.Curve.Scale

  @label_height 15
  # The steep beginning of a run may leave the frame, so that the rest of it can be seen.
  @in_sight 0.97

  @doc "A panel as SVG elements."
  def svg(%{box: {left, top, width, height} = box, series: series} = panel) do
    {_, x_max} = x_range = {0, series |> Enum.flat_map(&xs/1) |> Enum.max(fn -> 1 end) |> max(1)}
    y_range = series |> Enum.flat_map(&ys/1) |> y_range()
    place = &place(&1, box, x_range, y_range)
    clip = "panel#{top}"

    [
      # Wider than the frame, so that marks on its sides stay whole.
      ~s(<clipPath id="#{clip}"><rect x="#{left - 8}" y="#{top}" width="#{width + 16}" ),
      ~s(height="#{height}"/>),
      "</clipPath>\n",
      y_axis(panel.title, box, y_range),
      x_axis(panel.last?, box, x_max),
      ~s|<g clip-path="url(##{clip})">\n|,
      Enum.map(series, &drawn(&1, place, box)),
      "</g>\n",
      labels(series, place, box)
    ]
  end

  @doc "A sample of how a series is drawn, for the legend."
  def mark(:line, color, x, y),
    do: ~s(<path d="M#{x} #{y}h18" stroke="#{color}" stroke-width="2"/>\n)

  def mark(:points, color, x, y),
    do: ~s(<circle cx="#{x + 9}" cy="#{y}" r="3.5" fill="#{color}"/>\n)

  def escape(text) do
    text
    |> String.replace("&", "&amp;")
    |> String.replace("<", "&lt;")
    |> String.replace(">", "&gt;")
  end

  defp xs({:line, _color, points}), do: Enum.map(points, &elem(&1, 0))
  defp xs({:points, _color, points, _ringed}), do: Enum.map(points, &elem(&1, 0))
  defp xs({:rule, _color, _y, _label}), do: []

  defp ys({:line, _color, points}) do
    sorted = points |> smoothed() |> Enum.map(&elem(&1, 1)) |> Enum.sort()
    Enum.take(sorted, ceil(length(sorted) * @in_sight))
  end

  defp ys({:points, _color, points, _ringed}), do: Enum.map(points, &elem(&1, 1))
  defp ys({:rule, _color, y, _label}), do: [y]

  defp y_axis(title, {left, top, width, height} = box, {low, high}) do
    middle = top + height / 2

    grid =
      for value <- ticks({low, high}) do
        {_x, y} = place({0, value}, box, {0, 1}, {low, high})

        [
          ~s(<path d="M#{left} #{px(y)}h#{width}" stroke="#e2e8f0"/>\n),
          ~s(<text x="#{left - 8}" y="#{px(y + 4)}" text-anchor="end" fill="#475569">),
          "#{tick(value, high - low)}</text>\n"
        ]
      end

    [
      grid,
      ~s|<text transform="translate(18 #{px(middle)}) rotate(-90)" text-anchor="middle" |,
      ~s(fill="#475569">#{escape(title)}</text>\n)
    ]
  end

  defp x_axis(last?, {left, top, width, height} = box, x_max) do
    bottom = top + height

    ticks =
      for value <- ticks({0, x_max}), value == trunc(value) do
        {x, _y} = place({value, 0}, box, {0, x_max}, {0, 1})

        [
          ~s(<path d="M#{px(x)} #{bottom}v5" stroke="#94a3b8"/>\n),
          ~s(<text x="#{px(x)}" y="#{bottom + 19}" text-anchor="middle" fill="#475569">),
          "#{grouped(trunc(value))}</text>\n"
        ]
      end

    title =
      if last?,
        do:
          ~s(<text x="#{left + width / 2}" y="#{bottom + 38}" text-anchor="middle" ) <>
            ~s(fill="#475569">step</text>\n),
        else: ""

    [~s(<path d="M#{left} #{bottom}h#{width}" stroke="#94a3b8"/>\n), ticks, title]
  end

  defp drawn({:line, color, points}, place, _box) do
    [
      path(points, place, ~s(stroke="#{color}" stroke-width="1" stroke-opacity="0.3")),
      path(smoothed(points), place, ~s(stroke="#{color}" stroke-width="2"))
    ]
  end

  defp drawn({:points, color, points, ringed}, place, _box) do
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

  # Names of the rules and the last validation at the right edge, pushed apart where they would
  # cover each other.
  defp labels(series, place, {left, top, width, height}) do
    wanted = series |> Enum.flat_map(&label_of(&1, place)) |> Enum.sort()
    room = top + height - @label_height * (length(wanted) - 1)

    {placed, _} =
      wanted
      |> Enum.with_index()
      |> Enum.map_reduce(top - @label_height, fn {{y, color, text, weight}, i}, above ->
        y = y |> min(room + @label_height * i) |> max(above + @label_height)

        {~s(<text x="#{left + width + 12}" y="#{px(y + 4)}" fill="#{color}" ) <>
           ~s(font-weight="#{weight}">#{escape(text)}</text>\n), y}
      end)

    placed
  end

  defp label_of({:rule, color, y, text}, place),
    do: [{elem(place.({0, y}), 1), color, text, 400}]

  defp label_of({:points, color, [_ | _] = points, ringed}, place) do
    {_x, y} = Enum.find(points, List.last(points), &(elem(&1, 0) == ringed))
    [{elem(place.({0, y}), 1), color, "policy #{number(y, 3)}", 600}]
  end

  defp label_of(_series, _place), do: []
end
