defmodule Sconce.Evolve.Neat.Graph do
  @moduledoc false
  # Draws a genome as the text of an SVG file: a column of nodes for each layer.

  alias Sconce.Figures
  alias Sconce.Trainer.Curve.{Page, Panel, Scale}

  @left 60
  @top 84
  @column 130
  @row 56
  @bottom 40
  @radius 14
  @least_width 360
  # Sizes beyond have smaller distances.
  @most_width 2400
  @most_height 2400
  @positive "#0d6e6e"
  @negative "#c2410c"
  @fills %{input: "#e0f2fe", bias: "#f1f5f9", output: "#fef3c7", hidden: "#ffffff"}

  @doc "Returns the picture of a genome whose nodes have these layers."
  def svg(%{nodes: nodes, connections: connections}, layers, opts) do
    columns = nodes |> Enum.zip(layers) |> Enum.group_by(&elem(&1, 1), &elem(&1, 0))
    last = Enum.max(layers)
    tallest = columns |> Enum.map(fn {_layer, nodes} -> length(nodes) end) |> Enum.max()
    inner = {min(last * @column, @most_width), min((tallest - 1) * @row, @most_height)}
    places = places(columns, last, inner)
    largest = connections |> Enum.map(&abs(&1.weight)) |> Enum.max(fn -> 1.0 end)
    {width, height} = inner

    Page.sheet(max(width + 2 * @left, @least_width), height + @top + @bottom, [
      heading(nodes, connections, opts[:title]),
      # Disabled connections lie below the others.
      connections |> Enum.sort_by(& &1.enabled) |> Enum.map(&line(&1, places, largest)),
      Enum.map(nodes, &node(&1, places))
    ])
  end

  # The nodes of a column are centered.
  defp places(columns, last, {width, height}) do
    for {layer, nodes} <- columns, {node, at} <- Enum.with_index(nodes), into: %{} do
      x = @left + width * layer / max(last, 1)
      {node.id, {x, @top + height * (at + 0.5) / length(nodes)}}
    end
  end

  defp heading(nodes, connections, title) do
    hidden = Enum.count(nodes, &(&1.kind == :hidden))
    enabled = Enum.count(connections, & &1.enabled)
    of = "#{Figures.grouped(enabled)} of #{Figures.counted(length(connections), "connection")}"

    [
      text(20, 30, title, ~s(font-size="17" font-weight="600")),
      text(20, 50, "#{Figures.counted(hidden, "hidden node")}, #{of} enabled")
    ]
  end

  defp line(connection, places, largest) do
    {x, y} = places[connection.source]
    {x2, y2} = places[connection.target]
    color = if connection.weight < 0, do: @negative, else: @positive
    width = 0.75 + 4.25 * abs(connection.weight) / max(largest, 1.0e-6)
    dashed = if connection.enabled, do: "", else: ~s( stroke-dasharray="4 4" opacity="0.4")
    # A curve, because nodes of other layers may lie on the straight line.
    bend = (x2 - x) / 2

    path =
      "M#{px(x)} #{px(y)}C#{px(x + bend)} #{px(y)} #{px(x2 - bend)} #{px(y2)} #{px(x2)} #{px(y2)}"

    ~s(<path d="#{path}" fill="none" stroke="#{color}" stroke-width="#{px(width)}"#{dashed}>) <>
      "<title>#{number(connection.weight)}</title></path>\n"
  end

  defp node(%{id: id, kind: kind}, places) do
    {x, y} = places[id]
    fill = Map.fetch!(@fills, kind)

    [
      ~s(<circle cx="#{px(x)}" cy="#{px(y)}" r="#{@radius}" fill="#{fill}" stroke="#334155"/>\n),
      text(px(x), px(y + 4), label(kind, id), ~s(text-anchor="middle"))
    ]
  end

  defp label(:bias, _id), do: "1"
  defp label(_kind, id), do: Integer.to_string(id)

  defp text(x, y, text, style \\ ""),
    do: ~s(<text x="#{x}" y="#{y}" fill="#0f172a" #{style}>#{Panel.escape(text)}</text>\n)

  defp number(value), do: Scale.number(value / 1, 3)

  defp px(value), do: Scale.number(value / 1, 2)
end
