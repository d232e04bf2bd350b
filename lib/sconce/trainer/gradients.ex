defmodule Sconce.Trainer.Gradients do
  @moduledoc """
  Draws the gradient statistics of a run as an SVG, from the result of `Sconce.Trainer.gradients/1`.

  For each layer it shows the norm of the gradient and the relative size of an update over the steps, and the
  distribution of the last gradient by powers of ten.

      {:ok, reports} = Sconce.Trainer.gradients("run")
      :ok = Sconce.Trainer.Gradients.write(reports, "gradients.svg")

  A layer is the set of weights whose names differ only in the last part.
  """

  alias Sconce.{Error, Figures, Options}
  alias Sconce.Trainer.Curve.{Page, Scale}

  # The least height of a panel, and the height of a layer's row.
  @least 190
  @row 16
  # Width of the margin for the names of layers.
  @right 240
  @colors ~w(#0d9488 #1d4ed8 #ea580c #7c3aed #a855f7 #db2777 #b45309 #64748b #15803d #0891b2)
  # The power of ten at which the first bin of a histogram begins, see native/train/src/gradients.rs.
  @lowest -12

  @options [title: [type: :string, default: "Gradients", doc: "The heading."]]

  @doc """
  Returns the text of the SVG.

  #{Options.docs(@options)}

      iex> histogram = List.duplicate(0, 12) ++ [2, 1, 0, 0]
      iex> weight = %{name: "gru.weight", numbers: 4, norm: 3.0, histogram: histogram, weight_norm: 2.0, update_ratio: 0.5}
      iex> Sconce.Trainer.Gradients.svg([%{step: 100, weights: [weight]}]) =~ "1 look, the last at step 100"
      true
  """
  @spec svg([map, ...], keyword) :: String.t()
  def svg(reports, opts \\ []) do
    [title: title] = Options.validate!(opts, @options)

    reports?(reports) ||
      Options.argument!("reports", reports, "a list of Sconce.Trainer.gradients/1")

    reports = for %{step: step, weights: weights} <- reports, do: {step, layers(weights)}
    {last, layers} = List.last(reports)
    height = max(@least, @row * length(layers))

    rows =
      for {title, key} <- [
            {"norm of the gradient of each layer, before the clip", :norm},
            {"change of each layer in an update / its norm", :update_ratio}
          ],
          do: {height, [traces(title, key, reports)]}

    summary =
      "#{Figures.counted(length(reports), "look")}, the last at step #{Figures.grouped(last)}"

    Page.svg(title, summary, [], rows ++ [{@row * length(layers), [histograms(last, layers)]}])
  end

  defp reports?(reports) when length(reports) > 0,
    do: Enum.all?(reports, &match?(%{step: _, weights: [_ | _]}, &1))

  defp reports?(_other), do: false

  @doc """
  Writes `svg/2` to a file. The trainer writes `gradients.svg` at the end of a run with `:gradient_report`.

      iex> histogram = List.duplicate(0, 12) ++ [2, 1, 0, 0]
      iex> weight = %{name: "gru.weight", numbers: 4, norm: 3.0, histogram: histogram, weight_norm: 2.0, update_ratio: 0.5}
      iex> path = Path.join(System.tmp_dir!(), "sconce-gradients-" <> System.pid() <> ".svg")
      iex> Sconce.Trainer.Gradients.write([%{step: 100, weights: [weight]}], path)
      :ok
      iex> File.rm(path)
      :ok
  """
  @spec write([map, ...], Path.t(), keyword) :: :ok | {:error, Error.t()}
  def write(reports, path, opts \\ []),
    do: reports |> svg(opts) |> Page.write(path, :write_gradients)

  # Returns pairs of a layer and its figures, in the order of the layers' first weights.
  defp layers(weights) do
    by_layer = Enum.group_by(weights, &layer(&1.name))
    names = weights |> Enum.map(&layer(&1.name)) |> Enum.uniq()
    for name <- names, do: {name, figures(by_layer[name])}
  end

  defp layer(name) do
    case name |> String.split(".") |> Enum.drop(-1) do
      [] -> name
      parts -> Enum.join(parts, ".")
    end
  end

  defp figures(weights) do
    moved = length_of(for w <- weights, do: (w.update_ratio || 0) * w.weight_norm)
    weight_norm = length_of(for w <- weights, do: w.weight_norm)

    %{
      norm: length_of(for w <- weights, do: w.norm),
      update_ratio: if(weight_norm > 0, do: moved / weight_norm, else: 0.0),
      histogram: Enum.zip_with(for(w <- weights, do: w.histogram), &Enum.sum/1),
      numbers: Enum.sum(for w <- weights, do: w.numbers)
    }
  end

  defp length_of(numbers), do: :math.sqrt(Enum.sum(for n <- numbers, do: n * n))

  defp traces(title, key, reports) do
    {_last, layers} = List.last(reports)

    series =
      for {{name, _figures}, color} <- Enum.zip(layers, Stream.cycle(@colors)) do
        points = for {step, all} <- reports, {^name, figures} <- all, do: {step, figures[key]}
        {:trace, color, points, short(name)}
      end

    %{title: title, series: series, x: "step", scale: :log, right: @right}
  end

  defp histograms(step, layers) do
    rows =
      for {name, figures} <- layers do
        shares = for count <- figures.histogram, do: count / figures.numbers
        {zeros(1 - Enum.sum(shares), short(name)), shares}
      end

    title = "numbers of the gradients at step #{Figures.grouped(step)}, by their power of ten"
    %{title: title, rows: rows, from: @lowest, x: nil, right: @right}
  end

  defp zeros(share, name) when share < 0.0005, do: name
  defp zeros(share, name), do: "#{name}  #{Scale.number(100 * share, 1)} % 0"

  # Keeps the last three parts of a name; earlier parts are the same for most layers.
  defp short(name), do: name |> String.split(".") |> Enum.take(-3) |> Enum.join(".")
end
