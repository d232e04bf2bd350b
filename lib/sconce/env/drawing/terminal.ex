defmodule Sconce.Env.Drawing.Terminal do
  @moduledoc false
  # Draws shapes as braille. The dots of a cell, two by four, are about square.

  alias Sconce.Trainer.Curve.Plot

  @doc "Returns a picture of shapes as lines of at most `columns` by `rows` characters."
  @spec picture([Sconce.Env.Drawing.shape()], tuple, pos_integer, pos_integer) :: [String.t()]
  def picture(shapes, {left, bottom, right, top}, columns, rows) do
    scale = min((2 * columns - 1) / (right - left), (4 * rows - 1) / (top - bottom))
    place = fn x, y -> {(x - left) * scale, (top - y) * scale} end
    dots = shapes |> Enum.flat_map(&dots(&1, place, scale)) |> MapSet.new()
    wide = ceil((right - left) * scale / 2) |> min(columns)
    high = ceil((top - bottom) * scale / 4) |> min(rows)

    for row <- 0..(high - 1),
        do: for(column <- 0..(wide - 1), into: "", do: Plot.braille(dots, column, row))
  end

  defp dots({:line, [x, y, to_x, to_y], _color}, place, _scale) do
    {{x, y}, {to_x, to_y}} = {place.(x, y), place.(to_x, to_y)}
    n = max(1, ceil(max(abs(to_x - x), abs(to_y - y))))
    for i <- 0..n, do: {round(x + (to_x - x) * i / n), round(y + (to_y - y) * i / n)}
  end

  defp dots({:disc, [x, y, radius], _color}, place, scale) do
    {{x, y}, r} = {place.(x, y), max(radius * scale, 0.5)}

    for dx <- -ceil(r)..ceil(r), dy <- -ceil(r)..ceil(r), dx * dx + dy * dy <= r * r do
      {round(x) + dx, round(y) + dy}
    end
  end

  defp dots({:box, [x, y, width, height], _color}, place, _scale) do
    {{left, bottom}, {right, top}} = {place.(x, y), place.(x + width, y + height)}
    for i <- round(left)..round(right), j <- round(top)..round(bottom), do: {i, j}
  end
end
