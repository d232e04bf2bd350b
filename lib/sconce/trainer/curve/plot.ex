defmodule Sconce.Trainer.Curve.Plot do
  @moduledoc false
  # Draws points as characters. A braille cell is two dots wide and four high.

  import Sconce.Figures, only: [grouped: 1]
  import Sconce.Trainer.Curve.Scale

  @doc "Returns the points as braille, with the range of both axes."
  def text(title, points, width, height) do
    {xs, ys} = Enum.unzip(points)
    {low, high} = range = y_range(ys)
    box = {0, 0, 2 * width - 1, 4 * height - 1}
    x_range = Enum.min_max(xs)
    dots = points |> Enum.map(&place(&1, box, x_range, range)) |> joined() |> MapSet.new()
    margin = Enum.max([low, high] |> Enum.map(&String.length(tick(&1, high - low))))

    rows =
      for row <- 0..(height - 1) do
        label = label(row, height, low, high)
        line = for column <- 0..(width - 1), into: "", do: braille(dots, column, row)
        "  #{String.pad_leading(label, margin)} ┤#{line}\n"
      end

    {first, last} = x_range
    ends = String.pad_trailing(grouped(first), width - String.length(grouped(last)))
    pad = String.duplicate(" ", margin + 4)
    IO.iodata_to_binary(["  #{title}\n", rows, pad, ends, grouped(last), " step\n"])
  end

  # Adds the dots on straight lines between neighbouring points.
  defp joined(places) do
    places
    |> Enum.zip(Enum.drop(places, 1))
    |> Enum.flat_map(fn {{x, y}, {to_x, to_y}} ->
      n = max(1, ceil(max(abs(to_x - x), abs(to_y - y))))
      for i <- 0..n, do: {round(x + (to_x - x) * i / n), round(y + (to_y - y) * i / n)}
    end)
  end

  # The bit of each dot in a braille cell. Unicode numbers the top three rows column by column, then the lowest row.
  @braille %{
    {0, 0} => 1,
    {0, 1} => 2,
    {0, 2} => 4,
    {1, 0} => 8,
    {1, 1} => 16,
    {1, 2} => 32,
    {0, 3} => 64,
    {1, 3} => 128
  }

  @doc "Returns the character of a cell, for a set of dots `{x, y}` with y downwards."
  @spec braille(MapSet.t(), integer, integer) :: String.t()
  def braille(dots, column, row) do
    bits = for {{dx, dy}, bit} <- @braille, {2 * column + dx, 4 * row + dy} in dots, do: bit

    <<0x2800 + Enum.sum(bits)::utf8>>
  end

  defp label(0, _height, low, high), do: tick(high, high - low)
  defp label(row, height, low, high) when row == height - 1, do: tick(low, high - low)
  defp label(_row, _height, _low, _high), do: ""
end
