defmodule Sconce.Monitor.Graph do
  @moduledoc false
  # Drawings of numbers in characters: sparklines, bars and curves, in Unicode or ASCII.

  alias Sconce.Trainer.Curve.Plot

  @type style :: %{ascii: boolean, colour: boolean}

  @blocks {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}
  @letters {" ", ".", ".", ":", "-", "=", "+", "*", "#"}

  @doc """
  The latest `width` values, the oldest first, by height; an unknown value is a blank.

      iex> Sconce.Monitor.Graph.sparkline([1, 2, nil, 9], 6, %{ascii: false, colour: false})
      "  ▁▂ █"
  """
  @spec sparkline([number | nil], pos_integer, style) :: String.t()
  def sparkline(values, width, style) do
    values = Enum.take(values, -width)
    {low, high} = range(values)
    marks = if style.ascii, do: @letters, else: @blocks

    text =
      Enum.map_join(values, fn
        nil -> " "
        _value when high == low -> elem(marks, 4)
        value -> elem(marks, 1 + round((value - low) / (high - low) * 7))
      end)

    String.pad_leading(text, width)
  end

  @doc """
  A bar of a share from 0 to 1.

      iex> Sconce.Monitor.Graph.bar(0.5, 8, %{ascii: true, colour: false})
      "####----"
  """
  @spec bar(number | nil, pos_integer, style) :: String.t()
  def bar(share, width, style) do
    {full, empty} = if style.ascii, do: {"#", "-"}, else: {"█", "░"}
    n = round(min(max(share || 0, 0), 1) * width)
    String.duplicate(full, n) <> String.duplicate(empty, width - n)
  end

  # Larger numbers would overflow when they are subtracted.
  @largest 1.0e300

  @doc "A curve through points `{x, y}`, of `width` and `height` characters with its axes; none without points."
  @spec curve([{number, number}], pos_integer, pos_integer, style) :: [String.t()]
  def curve(points, width, height, style) do
    points = for {x, y} <- points, is_number(x) and is_number(y), do: {clamped(x), clamped(y)}

    if points == [], do: [], else: plotted(points, width, height, style)
  end

  defp clamped(value), do: value |> max(-@largest) |> min(@largest)

  defp plotted(points, width, height, style) do
    {xs, ys} = Enum.unzip(points)
    {{low, high}, {first, last}} = {Enum.min_max(ys), Enum.min_max(xs)}
    labels = Enum.map([high, low], &number/1)
    margin = labels |> Enum.map(&String.length/1) |> Enum.max()
    {columns, rows} = {max(width - margin - 2, 1), max(height - 1, 1)}
    # A character of Unicode has 2 x 4 dots.
    {wide, tall} = if style.ascii, do: {columns, rows}, else: {2 * columns, 4 * rows}

    dots =
      points
      |> Enum.map(fn {x, y} ->
        {share(x, first, last) * (wide - 1), (1 - share(y, low, high)) * (tall - 1)}
      end)
      |> joined()

    plot =
      for row <- 0..(rows - 1) do
        label = row |> label(rows, labels) |> String.pad_leading(margin)
        label <> axis(style) <> Enum.map_join(0..(columns - 1), &dot(dots, &1, row, style))
      end

    x = String.pad_leading(number(first), margin + 2)
    plot ++ [x <> String.pad_leading(number(last), max(width - String.length(x), 1))]
  end

  defp axis(%{ascii: true}), do: " |"
  defp axis(_unicode), do: " ┤"

  defp share(_value, low, high) when low == high, do: 0.5
  defp share(value, low, high), do: (value / 2 - low / 2) / (high / 2 - low / 2)

  # The dots on straight lines between neighbouring points.
  defp joined([{x, y}]), do: MapSet.new([{round(x), round(y)}])

  defp joined(places) do
    for {{x, y}, {to_x, to_y}} <- Enum.zip(places, tl(places)),
        n = max(1, ceil(max(abs(to_x - x), abs(to_y - y)))),
        i <- 0..n,
        into: MapSet.new(),
        do: {round(x + (to_x - x) * i / n), round(y + (to_y - y) * i / n)}
  end

  defp dot(dots, column, row, %{ascii: true}),
    do: if(MapSet.member?(dots, {column, row}), do: "*", else: " ")

  defp dot(dots, column, row, _unicode), do: Plot.braille(dots, column, row)

  defp label(0, _rows, [high, _low]), do: high
  defp label(row, rows, [_high, low]) when row == rows - 1, do: low
  defp label(_row, _rows, _labels), do: ""

  @doc "A histogram as rows `{label, share, count}` of at most `n` octaves in sequence, those with most values."
  @spec octaves([{number, non_neg_integer}], pos_integer) :: [{number, float, non_neg_integer}]
  def octaves(counts, n) do
    by_octave =
      Enum.reduce(counts, %{}, fn {value, count}, sums ->
        Map.update(sums, octave(value), count, &(&1 + count))
      end)

    most = by_octave |> Map.values() |> Enum.max(fn -> 1 end)

    for octave <-
          by_octave |> Map.keys() |> Enum.min_max(fn -> {1, 0} end) |> window(by_octave, n) do
      count = Map.get(by_octave, octave, 0)
      {2 ** octave, count / most, count}
    end
  end

  # The `n` octaves in sequence that have most values.
  defp window({first, last}, by_octave, n) do
    sum = fn from ->
      Enum.sum(for octave <- from..(from + n - 1), do: Map.get(by_octave, octave, 0))
    end

    from = if last - first < n, do: first, else: Enum.max_by(first..(last - n + 1), sum)
    from..min(last, from + n - 1)//1
  end

  defp octave(value) when value < 1, do: 0
  defp octave(value), do: value |> :math.log2() |> trunc()

  defp range(values) do
    case Enum.reject(values, &is_nil/1) do
      [] -> {0, 0}
      known -> Enum.min_max(known)
    end
  end

  @doc """
  A number in few characters; nil is `-`.

      iex> Enum.map([nil, 0, 12, 1_234_567, 0.00123, 3.14159, 2.5e12], &Sconce.Monitor.Graph.number/1)
      ["-", "0", "12", "1,234,567", "0.00123", "3.142", "2.5e12"]
  """
  @spec number(number | nil) :: String.t()
  def number(nil), do: "-"
  def number(n) when is_integer(n) and abs(n) >= 1_000_000_000_000, do: short(n / 1)
  def number(n) when is_integer(n), do: Sconce.Figures.grouped(n)

  def number(x) when x == 0, do: "0"
  def number(x) when abs(x) >= 1.0e10 or abs(x) < 1.0e-4, do: short(x)

  def number(x) when abs(x) >= 1000, do: x |> round() |> Sconce.Figures.grouped()

  def number(x) do
    digits = 3 - trunc(:math.floor(:math.log10(abs(x))))
    text = :erlang.float_to_binary(x / 1, decimals: min(max(digits, 0), 8))
    if text =~ ".", do: text |> String.trim_trailing("0") |> String.trim_trailing("."), else: text
  end

  defp short(x) do
    [mantissa, exponent] = x |> :erlang.float_to_binary(scientific: 2) |> String.split("e")
    mantissa = mantissa |> String.trim_trailing("0") |> String.trim_trailing(".")
    "#{mantissa}e#{String.to_integer(exponent)}"
  end

  @doc """
  A value with its unit.

      iex> for {value, unit} <- [{1_500, "ns"}, {0.25, "s"}, {2.0e9, "bytes"}, {0.5, "ratio"}, {7, "games"}],
      ...>     do: Sconce.Monitor.Graph.measure(value, unit)
      ["1.5 us", "250 ms", "2.0 GB", "50 %", "7"]
  """
  @spec measure(number | nil, String.t()) :: String.t()
  def measure(nil, _unit), do: "-"
  def measure(value, "ns"), do: time(value / 1)
  def measure(value, "s"), do: time(value * 1.0e9)
  def measure(value, "bytes"), do: Sconce.Figures.size(value)
  def measure(value, "ratio"), do: "#{number(Float.round(value * 100 / 1, 1))} %"
  def measure(value, unit) when unit in ["C", "W"], do: "#{number(value)} #{unit}"
  def measure(value, _unit), do: number(value)

  defp time(ns) when ns < 1.0e3, do: "#{number(Float.round(ns, 1))} ns"
  defp time(ns) when ns < 1.0e6, do: "#{number(Float.round(ns / 1.0e3, 2))} us"
  defp time(ns) when ns < 1.0e9, do: "#{number(Float.round(ns / 1.0e6, 2))} ms"
  defp time(ns), do: "#{number(Float.round(ns / 1.0e9, 2))} s"
end
