defmodule Sconce.Trainer.Curve.Page do
  @moduledoc false
  # Lays out panels in rows under a heading, as the text of a self-contained SVG file.
  #
  # A row is `{height, panels}`; the panels of a row share its width. An entry of the legend is
  # `{text, color, mark}`.

  alias Sconce.{Error, Files, Options}
  alias Sconce.Trainer.Curve.{Heat, Panel}

  @width 860
  @left 64
  @right 132
  @top 92
  @bottom 50
  # Height between rows, for the ticks of the upper x axis and the title of the lower panel; then the height of the axis
  # title.
  @gap 62
  @axis_title 16
  # Width between panels of a row, for the y axis of the right panel.
  @aside 76

  @doc "Returns the page as an SVG."
  def svg(title, summary, legend, rows) do
    {rows, bottom} = stack(rows)
    parts = [heading(title, summary), legend(legend), Enum.map(rows, &panel/1)]
    sheet(@width, bottom + @bottom, parts)
  end

  @doc "Returns an SVG of a size, with parts on a white ground."
  def sheet(width, height, parts) do
    IO.iodata_to_binary([
      ~s(<svg xmlns="http://www.w3.org/2000/svg" width="#{width}" height="#{height}" ),
      ~s(viewBox="0 0 #{width} #{height}" font-size="12" ),
      ~s(font-family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif">\n),
      ~s(<rect width="#{width}" height="#{height}" fill="#ffffff"/>\n),
      parts,
      "</svg>\n"
    ])
  end

  @doc "Writes an SVG to a file; an error names `op` as its operation."
  @spec write(String.t(), Path.t(), atom) :: :ok | {:error, Error.t()}
  def write(svg, path, op) do
    path = Options.path!(path)
    with :ok <- check(path, op), do: Files.write(path, svg, op)
  end

  @doc "Returns an error of kind `:mismatch` for a path with an ending other than `.svg`."
  @spec check(Path.t() | nil, atom) :: :ok | {:error, Error.t()}
  def check(nil, _op), do: :ok

  def check(path, op) do
    ending = path |> Path.extname() |> String.downcase()

    if ending in ["", ".svg"] do
      :ok
    else
      details = %{what: path, expected: "a file that ends in .svg", got: ending}
      {:error, %Error{kind: :mismatch, op: op, details: details}}
    end
  end

  defp panel(%{rows: _rows} = heat), do: Heat.svg(heat)
  defp panel(panel), do: Panel.svg(panel)

  # Gives each panel its box; returns the panels and the bottom of the last row.
  defp stack(rows) do
    {rows, bottom} =
      Enum.map_reduce(rows, @top, fn {height, panels}, top ->
        {beside(panels, top, height), top + height + gap(panels)}
      end)

    {List.flatten(rows), bottom - @gap - @axis_title}
  end

  defp gap(panels), do: if(Enum.any?(panels, & &1.x), do: @gap + @axis_title, else: @gap)

  # A single panel has labels in the right margin, whose width it may set; panels side by side have no labels.
  defp beside([panel], top, height) do
    right = Map.get(panel, :right, @right)
    [Map.put(panel, :box, {@left, top, @width - @left - right, height})]
  end

  defp beside(panels, top, height) do
    count = length(panels)
    wide = @width - @left - div(@left, 2)
    width = div(wide - @aside * (count - 1), count)

    for {panel, i} <- Enum.with_index(panels),
        do: Map.put(panel, :box, {@left + i * (width + @aside), top, width, height})
  end

  defp heading(title, summary) do
    [
      ~s(<text x="#{@left}" y="30" font-size="17" font-weight="600" fill="#0f172a">),
      "#{Panel.escape(title)}</text>\n",
      ~s(<text x="#{@left}" y="50" fill="#475569">#{Panel.escape(summary)}</text>\n)
    ]
  end

  # Places the legend at the right, above the frame of the first panel.
  defp legend(entries) do
    for {{text, color, mark}, i} <- Enum.with_index(entries) do
      x = @width - @right - 124 * (length(entries) - i) + 8
      y = @top - 14

      [
        Panel.mark(mark, color, x, y),
        ~s(<text x="#{x + 24}" y="#{y + 4}" fill="#334155">#{Panel.escape(text)}</text>\n)
      ]
    end
  end
end
