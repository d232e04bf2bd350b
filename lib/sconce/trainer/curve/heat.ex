defmodule Sconce.Trainer.Curve.Heat do
  @moduledoc false
  # Draws a heat map with one histogram in each row. A darker cell has a larger share.
  #
  # A heat map is a map of `title`, `rows` (`{label, shares}`, where each cell has a share of the row), `from` (the
  # power of ten of the first cell) and `box`, `{left, top, width, height}`.

  alias Sconce.Trainer.Curve.{Panel, Scale}

  @color "#1d4ed8"

  @doc "Returns a heat map as SVG elements."
  def svg(%{title: title, rows: [{_label, first} | _] = rows, from: from, box: box}) do
    {left, top, width, height} = box
    cell = {width / length(first), height / length(rows)}

    [
      ~s(<text x="#{left}" y="#{top - 10}" font-weight="600" fill="#334155">),
      "#{Panel.escape(title)}</text>\n",
      for({row, i} <- Enum.with_index(rows), do: row(row, top + i * elem(cell, 1), left, cell)),
      for(i <- 0..(length(first) - 1)//3, do: mark(from + i, left + i * elem(cell, 0), box))
    ]
  end

  defp row({label, shares}, top, left, {width, height}) do
    [
      for {share, i} <- Enum.with_index(shares), share > 0 do
        ~s(<rect x="#{px(left + i * width)}" y="#{px(top)}" width="#{px(width - 1)}" ) <>
          ~s(height="#{px(height - 1)}" fill="#{@color}" fill-opacity="#{opacity(share)}"/>\n)
      end,
      ~s(<text x="#{px(left + width * length(shares) + 8)}" y="#{px(top + height / 2 + 4)}" ),
      ~s(fill="#334155">#{Panel.escape(label)}</text>\n)
    ]
  end

  # The square root and an opacity of at least 0.08 keep small shares visible.
  defp opacity(share), do: Scale.number(0.08 + 0.92 * :math.sqrt(share), 2)

  defp mark(power, x, {_left, top, _width, height}) do
    ~s(<text x="#{px(x)}" y="#{top + height + 19}" text-anchor="middle" fill="#475569">) <>
      "1e#{power}</text>\n"
  end

  defp px(value), do: Scale.number(value, 1)
end
