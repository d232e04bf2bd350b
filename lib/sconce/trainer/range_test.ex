defmodule Sconce.Trainer.RangeTest do
  @moduledoc """
  The loss of a few steps whose learning rate grows by the same factor each time (Smith 2017, "Cyclical
  learning rates for training neural networks", section 3.3), see
  `Sconce.Trainer.find_learning_rate/2`. `IO.puts/1` prints the curve and what it suggests, `write/2`
  draws it.

  The loss is smoothed as `m = 0.98 m + 0.02 loss` from zero and corrected by `1 - 0.98^t`. The test
  ends where that lies above four times its lowest value, or a number is not finite. Suggested are
  the rate at which it fell most on its way down (`steepest`), and a tenth of that at which it was lowest
  (`minimum`), among all but the first tenth of the steps and the last five; nil where it did not fall.
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

  @doc "The curve as the text of an SVG file: loss and smoothed loss by the rate, with both suggestions."
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

  # A loss that runs away would leave the rest no room.
  defp in_frame(test) do
    top = 1.2 * (test |> smoothed() |> Enum.map(&elem(&1, 1)) |> Enum.max())
    for {rate, loss} <- curve(test, :loss), do: {rate, min(loss, top)}
  end

  @doc "Writes `svg/1` to a file."
  @spec write(t, Path.t()) :: :ok | {:error, Error.t()}
  def write(%__MODULE__{points: [_ | _]} = test, path),
    do: test |> svg() |> Page.write(path, :write_curve)

  @doc false
  def text(test) do
    rates = for {name, rate} <- suggestions(test), do: "#{name}  #{Scale.power(rate)}\n"
    none = "no rate to suggest: the loss did not fall\n"
    rates = if rates == [], do: [none], else: rates
    IO.iodata_to_binary([plot(test), "\n", rates])
  end

  @doc false
  def suggestions(test) do
    for {name, rate} <- [steepest: test.steepest, minimum: test.minimum],
        rate != nil,
        do: {name, rate}
  end

  # The steps are as far apart as the logarithms of their rates.
  defp plot(%{points: [first, _ | _] = points} = test) do
    last = List.last(points)
    ends = "rates #{Scale.power(first.learning_rate)} to #{Scale.power(last.learning_rate)}"
    end_of = if test.diverged, do: ", where the loss ran away", else: ""
    steps = for {point, step} <- Enum.with_index(points, 1), do: {step, point.smoothed}
    Plot.text("smoothed training loss in #{test.precision}, #{ends}#{end_of}", steps, 60, 8)
  end

  defp plot(_too_few), do: "no curve: fewer than two steps\n"

  defp smoothed(test), do: curve(test, :smoothed)
  defp curve(test, key), do: for(point <- test.points, do: {point.learning_rate, point[key]})

  # Where a rate stands on the curve.
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
