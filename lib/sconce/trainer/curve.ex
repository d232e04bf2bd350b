defmodule Sconce.Trainer.Curve do
  @moduledoc """
  The learning curve of a run: an SVG for a page, a small plot for a terminal.

  Both read the report of `Sconce.Trainer`, its `history` and its `baselines`. The SVG stands alone:
  the training loss (as noted, faint, and smoothed), validation NLL as points with the best one
  ringed, and what the baselines score on the same frames as dashed lines. With `loss: :plain` loss
  and NLL are one quantity and share a panel; otherwise each has its own.
  """

  alias Sconce.{Error, Figures, Options}
  alias Sconce.Trainer.Curve.{Panel, Plot, Scale}
  alias Sconce.Trainer.Settings

  @width 860
  @left 64
  @right 132
  @top 76
  @bottom 50
  @gap 58
  @tall 330
  @short 150

  @loss "#2563eb"
  @nll "#ea580c"
  @baselines %{"marginal" => "#64748b", "repeat" => "#0d9488", "pairs" => "#9333ea"}

  @options [title: [type: :string, default: "Learning curve", doc: "The heading."]]

  @doc """
  The curve as the text of an SVG file.

  #{Options.docs(@options)}
  """
  @spec svg(map, keyword) :: String.t()
  def svg(report, opts \\ []) do
    [title: title] = Options.validate!(opts, @options)
    {panels, bottom} = report |> panels() |> stack()
    height = bottom + @bottom

    IO.iodata_to_binary([
      ~s(<svg xmlns="http://www.w3.org/2000/svg" width="#{@width}" height="#{height}" ),
      ~s(viewBox="0 0 #{@width} #{height}" font-size="12" ),
      ~s(font-family="system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif">\n),
      ~s(<rect width="#{@width}" height="#{height}" fill="#ffffff"/>\n),
      heading(title, summary(report)),
      legend(report),
      Enum.map(panels, &Panel.svg/1),
      "</svg>\n"
    ])
  end

  @doc "Writes `svg/2` to a file."
  @spec write(map, Path.t(), keyword) :: :ok | {:error, Error.t()}
  def write(report, path, opts \\ []) do
    with {:error, reason} <- File.write(path, svg(report, opts)) do
      details = %{path: path, reason: List.to_string(:file.format_error(reason))}
      {:error, %Error{kind: :io, op: :write_curve, details: details}}
    end
  end

  @doc """
  The curve as lines of text, some `width` by `height` characters of braille: the NLL of the
  validations where there are two of them, the training loss otherwise.
  """
  @spec text(map, pos_integer, pos_integer) :: String.t()
  def text(report, width \\ 60, height \\ 8) do
    case {points(report, :nll), points(report, :loss)} do
      {[_, _ | _] = points, _loss} -> Plot.text("validation NLL", points, width, height)
      {_nll, [_, _ | _] = points} -> Plot.text("training loss", points, width, height)
      _too_few -> "no curve: fewer than two points\n"
    end
  end

  defp points(report, key) do
    for %{^key => value, step: step} when value != nil <- report.history, do: {step, value}
  end

  # One panel, or NLL above loss when these are two quantities.
  defp panels(report) do
    loss = {:line, @loss, points(report, :loss)}
    nll = [{:points, @nll, points(report, :nll), report.best_step} | rules(report)]

    cond do
      plain?(report.options) -> [{@tall, "nats a frame", [loss | nll]}]
      points(report, :nll) == [] -> [{@tall, "training loss", [loss]}]
      true -> [{@tall, "validation NLL, nats a frame", nll}, {@short, "training loss", [loss]}]
    end
  end

  defp plain?(%{loss: loss}), do: Settings.plain?(loss)
  defp plain?(_options), do: false

  defp rules(report) do
    for %{name: name, report: %{nll: nll}} <- report.baselines do
      {:rule, Map.get(@baselines, name, "#64748b"), nll, "#{name} #{Scale.number(nll, 3)}"}
    end
  end

  # Panels below each other, and where the last one ends.
  defp stack(panels) do
    {panels, bottom} =
      Enum.map_reduce(panels, @top, fn {height, title, series}, top ->
        box = {@left, top, @width - @left - @right, height}
        {%{box: box, title: title, series: series, last?: false}, top + height + @gap}
      end)

    {List.update_at(panels, -1, &%{&1 | last?: true}), bottom - @gap}
  end

  defp heading(title, summary) do
    [
      ~s(<text x="#{@left}" y="30" font-size="17" font-weight="600" fill="#0f172a">),
      "#{Panel.escape(title)}</text>\n",
      ~s(<text x="#{@left}" y="49" fill="#475569">#{Panel.escape(summary)}</text>\n)
    ]
  end

  defp summary(report) do
    train = "#{Figures.grouped(report.train.frames)} frames of #{report.train.games} games"
    steps = "#{Figures.grouped(report.steps)} steps in #{Scale.clock(report.seconds)}"
    best = for {step, nll} <- points(report, :nll), step == report.best_step, do: nll

    case best do
      [nll | _] -> "#{train} · #{steps} · best validation NLL #{Scale.number(nll, 3)}"
      [] -> "#{train} · #{steps}"
    end
  end

  defp legend(report) do
    entries = [{"training loss", @loss, :line, :loss}, {"validation NLL", @nll, :points, :nll}]

    shown =
      for {text, color, mark, key} <- entries, points(report, key) != [], do: {text, color, mark}

    for {{text, color, mark}, i} <- Enum.with_index(shown) do
      x = @width - 116 * (length(shown) - i) - 8

      [
        Panel.mark(mark, color, x, 45),
        ~s(<text x="#{x + 24}" y="49" fill="#334155">#{text}</text>\n)
      ]
    end
  end
end
