defmodule Sconce.Trainer.Curve.Scale do
  @moduledoc false
  # Maps numbers to positions and to text: ranges with round ticks, smoothing, times.

  # Returns the range of y, rounded outwards to ticks. It begins at 0 if the lowest value is below 0.4 of the highest.
  def y_range([]), do: {0.0, 1.0}

  def y_range(ys) do
    {low, high} = Enum.min_max(ys)
    low = if low >= 0 and low < 0.4 * high, do: 0.0, else: low
    step = step(max(high - low, abs(high) * 0.01 + 1.0e-9))
    {Float.floor(low / step) * step, (Float.floor(high / step) + 1) * step}
  end

  # Returns a tick distance of 1, 2 or 5 times a power of ten that gives about five ticks.
  defp step(span) do
    rough = span / 5
    power = :math.pow(10, Float.floor(:math.log10(rough)))
    Enum.find([1, 2, 5, 10], &(&1 * power >= rough)) * power
  end

  def ticks({low, high}) do
    step = step(high - low)
    first = ceil(low / step - 1.0e-6)
    for i <- first..floor(high / step + 1.0e-6), do: i * step
  end

  # Returns a logarithmic range whose bounds are 1, 2 or 5 times a power of ten.
  def log_range(ys) do
    case Enum.filter(ys, &(&1 > 0)) do
      [] ->
        {0.1, 1.0}

      above ->
        {low, high} = Enum.min_max(above)
        ladder = ladder(low, high)
        {ladder |> Enum.filter(&(&1 <= low)) |> List.last(), Enum.find(ladder, &(&1 > high))}
    end
  end

  def log_ticks({low, high}) do
    ticks = for value <- ladder(low, high), value >= 0.999 * low, value <= 1.001 * high, do: value
    # With more than seven ticks, only the powers of ten keep theirs.
    if length(ticks) > 7, do: Enum.filter(ticks, &power?/1), else: ticks
  end

  defp ladder(low, high) do
    first = floor(:math.log10(low)) - 1
    last = ceil(:math.log10(high)) + 1
    for power <- first..last, digit <- [1, 2, 5], do: digit * :math.pow(10, power)
  end

  defp power?(value) do
    exponent = :math.log10(value)
    abs(exponent - round(exponent)) < 1.0e-9
  end

  def tick(value, span) when span >= 10_000 and value != 0, do: "#{round(value / 1000)}k"

  def tick(value, span) do
    decimals = max(0, ceil(-:math.log10(step(span)) - 1.0e-9))
    number(value, decimals)
  end

  def place({x, y}, {left, top, width, height}, {x_low, x_high}, {y_low, y_high}) do
    {left + width * (x - x_low) / max(x_high - x_low, 1.0e-9),
     top + height * (1 - (y - y_low) / (y_high - y_low))}
  end

  # Averages a forward and a backward running mean over a fiftieth of the points, which has no lag and covers both ends.
  def smoothed(points) do
    factor = 1 - 1 / max(1, length(points) / 50)
    forth = ema(points, factor)
    back = points |> Enum.reverse() |> ema(factor) |> Enum.reverse()
    Enum.zip_with(forth, back, fn {x, a}, {_x, b} -> {x, (a + b) / 2} end)
  end

  defp ema([], _factor), do: []

  defp ema([{_x, first} | _] = points, factor) do
    {means, _last} =
      Enum.map_reduce(points, first, fn {x, y}, mean ->
        mean = factor * mean + (1 - factor) * y
        {{x, mean}, mean}
      end)

    means
  end

  @doc "Formats a number without trailing zeros."
  def short(value) when value >= 1, do: Integer.to_string(round(value))
  def short(value) when value < 1.0e-4, do: :erlang.float_to_binary(value, scientific: 0)
  def short(value), do: :erlang.float_to_binary(value, [:compact, decimals: 9])

  @doc "Formats a number in scientific notation with two digits, as in 3.2e-4."
  def power(value), do: "~.2e" |> :io_lib.format([value / 1]) |> IO.iodata_to_binary()

  @doc "Formats a number with this count of decimals."
  def number(value, decimals), do: :erlang.float_to_binary(value / 1, decimals: decimals)

  @doc "Formats seconds as 2:05 or 1:02:05."
  def clock(seconds) do
    total = round(seconds)
    {hours, minutes, rest} = {div(total, 3600), rem(div(total, 60), 60), rem(total, 60)}
    two = &String.pad_leading(to_string(&1), 2, "0")
    if hours > 0, do: "#{hours}:#{two.(minutes)}:#{two.(rest)}", else: "#{minutes}:#{two.(rest)}"
  end
end
