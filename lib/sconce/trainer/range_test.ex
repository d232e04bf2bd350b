defmodule Sconce.Trainer.RangeTest do
  @moduledoc """
  The result of a learning rate range test, from `Sconce.Trainer.find_learning_rate/2`: the loss of steps whose learning
  rate grows by a constant factor (Smith 2017, "Cyclical learning rates for training neural networks", section 3.3).
  `IO.puts/1` prints the curve and the suggestions, `write/2` draws them.

  The loss is smoothed as `m = 0.98 m + 0.02 loss` from zero and corrected by `1 - 0.98^t`. The test ends if the
  smoothed loss exceeds four times its lowest value, or if a value is not finite. It suggests two rates, ignoring the
  first tenth of the steps and the last five: `steepest`, at which the loss fell most before its minimum, and `minimum`,
  a tenth of the rate of the lowest loss. Both are nil if the loss did not fall.
  """

  alias Sconce.Error
  alias Sconce.Policy.Spec
  alias Sconce.Trainer.Curve.{Page, Plot, Scale}

  @enforce_keys [:spec, :points, :steepest, :minimum, :diverged, :threads, :precision]
  defstruct @enforce_keys

  @type point :: %{learning_rate: float, loss: float, smoothed: float}
  @type t :: %__MODULE__{
          spec: Spec.t(),
          points: [point],
          steepest: float | nil,
          minimum: float | nil,
          diverged: boolean,
          threads: pos_integer,
          precision: String.t()
        }

  @loss "#94a3b8"
  @smoothed "#2563eb"
  @marked "#ea580c"

  @doc false
  def new(native, spec), do: struct!(__MODULE__, Map.put(native, :spec, spec))

  @doc """
  Returns the curve as the text of an SVG file: loss and smoothed loss against the rate, with both suggestions.

      iex> points = for i <- 1..4, do: %{learning_rate: :math.pow(10, -i), loss: i / 1, smoothed: i / 1}
      iex> test = %Sconce.Trainer.RangeTest{spec: Sconce.Policy.Spec.new(), points: points, steepest: 0.01,
      ...>   minimum: 0.001, diverged: false, threads: 1, precision: "f32"}
      iex> Sconce.Trainer.RangeTest.svg(test) =~ "steepest 1.0e-2 · minimum 1.0e-3"
      true
  """
  @spec svg(t) :: String.t()
  def svg(%__MODULE__{points: [_ | _]} = test) do
    marks =
      for {name, rate} <- suggestions(test), {x, _y} = point = at(test, rate) do
        {:points, @marked, [point], x, "#{name}"}
      end

    curves = [{:trace, @loss, in_frame(test), nil}, {:trace, @smoothed, smoothed(test), nil}]
    panel = %{title: "training loss", series: curves ++ marks, x: "learning rate", x_scale: :log}
    Page.svg("Learning rate range test", summary(test), [], [{330, [panel]}])
  end

  defp summary(test) do
    rates = for {name, rate} <- suggestions(test), do: "#{name} #{Scale.power(rate)}"
    Enum.join([Spec.summary(test.spec) | rates], " · ")
  end

  # Drops points of a diverging loss, which would flatten the rest of the curve.
  defp in_frame(test) do
    top = 1.2 * (test |> smoothed() |> Enum.map(&elem(&1, 1)) |> Enum.max())
    for {rate, loss} <- curve(test, :loss), do: {rate, min(loss, top)}
  end

  @doc """
  Writes `svg/1` to a file.

      iex> points = for i <- 1..4, do: %{learning_rate: :math.pow(10, -i), loss: i / 1, smoothed: i / 1}
      iex> test = %Sconce.Trainer.RangeTest{spec: Sconce.Policy.Spec.new(), points: points, steepest: nil,
      ...>   minimum: nil, diverged: false, threads: 1, precision: "f32"}
      iex> path = Path.join(System.tmp_dir!(), "sconce-range-" <> System.pid() <> ".svg")
      iex> Sconce.Trainer.RangeTest.write(test, path)
      :ok
      iex> File.rm(path)
      :ok
  """
  @spec write(t, Path.t()) :: :ok | {:error, Error.t()}
  def write(%__MODULE__{points: [_ | _]} = test, path),
    do: test |> svg() |> Page.write(path, :write_curve)

  @doc false
  def text(test) do
    rates = for {name, rate} <- suggestions(test), do: "#{name}  #{Scale.power(rate)}\n"
    none = "no suggestion: the loss did not fall\n"
    rates = if rates == [], do: [none], else: rates
    IO.iodata_to_binary([plot(test), "\n", rates])
  end

  @doc false
  def suggestions(test) do
    for {name, rate} <- [steepest: test.steepest, minimum: test.minimum],
        rate != nil,
        do: {name, rate}
  end

  # The rates grow by a constant factor, so the steps are equally spaced on a logarithmic axis.
  defp plot(%{points: [first, _ | _] = points} = test) do
    last = List.last(points)
    ends = "rates #{Scale.power(first.learning_rate)} to #{Scale.power(last.learning_rate)}"
    end_of = if test.diverged, do: ", where the loss diverged", else: ""
    steps = for {point, step} <- Enum.with_index(points, 1), do: {step, point.smoothed}
    Plot.text("smoothed training loss in #{test.precision}, #{ends}#{end_of}", steps, 60, 8)
  end

  defp plot(_too_few), do: "no curve: fewer than two steps\n"

  defp smoothed(test), do: curve(test, :smoothed)
  defp curve(test, key), do: for(point <- test.points, do: {point.learning_rate, point[key]})

  # Returns the point of the smoothed curve that is nearest to a rate.
  defp at(test, rate), do: test |> smoothed() |> Enum.min_by(fn {x, _y} -> abs(x - rate) end)

  defimpl Inspect do
    alias Sconce.Trainer.Curve.Scale
    alias Sconce.Trainer.RangeTest

    def inspect(test, _opts) do
      rates = for {name, rate} <- RangeTest.suggestions(test), do: "#{name} #{Scale.power(rate)}"
      "#Sconce.Trainer.RangeTest<#{Enum.join(["#{length(test.points)} steps" | rates], " · ")}>"
    end
  end

  defimpl String.Chars do
    def to_string(test), do: Sconce.Trainer.RangeTest.text(test)
  end
end
