defmodule Sconce.Trainer.Gradients do
  @moduledoc """
  The gradients of a run as an SVG, from what `Sconce.Trainer.gradients/1` reads: for each layer the norm
  of its gradient and how far an update moves it, over the steps, and where the numbers of its last
  gradient lie.

      {:ok, reports} = Sconce.Trainer.gradients("run")
      :ok = Sconce.Trainer.Gradients.write(reports, "gradients.svg")

  A layer is all weights whose names agree but for their last part.
  """

  alias Sconce.{Error, Figures, Options}
  alias Sconce.Trainer.Curve.{Page, Scale}

  # Of a panel: at least, for each layer, and around the rows of the histograms.
  @least 190
  @row 16
  # For the names of layers.
  @right 240
  @colors ~w(#0d9488 #1d4ed8 #ea580c #7c3aed #a855f7 #db2777 #b45309 #64748b #15803d #0891b2)
  # The power of ten at which the first class of a histogram begins, see native/train/src/gradients.rs.
  @lowest -12

  @options [title: [type: :string, default: "Gradients", doc: "The heading."]]

  @doc """
  The SVG's text.

  #{Options.docs(@options)}
  """
  @spec svg([map, ...], keyword) :: String.t()
  def svg(reports, opts \\ []) do
    [title: title] = Options.validate!(opts, @options)

    reports?(reports) ||
      Options.argument!("reports", reports, "what Sconce.Trainer.gradients/1 gives")

    reports = for %{step: step, weights: weights} <- reports, do: {step, layers(weights)}
    {last, layers} = List.last(reports)
    height = max(@least, @row * length(layers))

    rows =
      for {title, key} <- [
            {"norm of the gradient of each layer, before the clip", :norm},
            {"change of each layer in an update / its norm", :update_ratio}
          ],
          do: {height, [traces(title, key, reports)]}

    summary = "#{length(reports)} looks, the last at step #{Figures.grouped(last)}"
    Page.svg(title, summary, [], rows ++ [{@row * length(layers), [histograms(last, layers)]}])
  end

  defp reports?(reports) when length(reports) > 0,
    do: Enum.all?(reports, &match?(%{step: _, weights: [_ | _]}, &1))

  defp reports?(_other), do: false

  @doc "Writes `svg/2` to a file."
  @spec write([map, ...], Path.t(), keyword) :: :ok | {:error, Error.t()}
  def write(reports, path, opts \\ []),
    do: reports |> svg(opts) |> Page.write(path, :write_gradients)

  # `{name, figures}` of each layer, in the order of their first weights.
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

  # All but the last of these would be the same on most lines.
  defp short(name), do: name |> String.split(".") |> Enum.take(-3) |> Enum.join(".")
end
