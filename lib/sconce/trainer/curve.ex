defmodule Sconce.Trainer.Curve do
  @moduledoc """
  Draws the learning curve of a run: as an SVG for a page, or as a small plot for a terminal.

  Both drawings use the `history` and the `baselines` of a report of `Sconce.Trainer`. The SVG is self-contained and
  shows

    * the training loss (raw, faint, and smoothed), validation NLL as points with a ring around the best, and the NLL of
      the baselines on the same frames as dashed lines. With `loss: :plain` loss and NLL are one quantity and share a
      panel; otherwise each has its own panel;
    * the training loss and the validation NLL of each head, on a logarithmic scale, because a stick that rarely moves
      has a hundredth of the loss of the buttons;
    * the divergence from a teacher, if the run has one;
    * the learning rate, the frames a second during training steps, and the share of time in which training waited for
      data.

  `Sconce.Trainer.Compare` draws several runs together.
  """

  alias Sconce.{Error, Figures, Options}
  alias Sconce.Trainer.Curve.{Page, Plot, Scale}
  alias Sconce.Trainer.{Catalogue, Report}

  @tall 330
  @middle 190
  @short 130

  @loss "#2563eb"
  @nll "#ea580c"
  @rate "#7c3aed"
  @pace "#0d9488"
  @figures ["#db2777", "#0891b2", "#65a30d", "#9333ea"]
  @baselines %{"marginal" => "#64748b", "repeat" => "#0d9488", "pairs" => "#9333ea"}
  @colors ~w(#0d9488 #1d4ed8 #3b82f6 #7c3aed #a855f7 #db2777 #b45309 #64748b)

  @options [title: [type: :string, default: "Learning curve", doc: "The heading."]]

  @doc """
  Returns the curve as the text of an SVG file.

  #{Options.docs(@options)}

      iex> history = for step <- 1..3, do: %{step: step, loss: 1 / step, nll: 2 / step, learning_rate: 0.001}
      iex> side = %{games: 9, frames: 900}
      iex> run = %{history: history, baselines: [], options: %{}, train: side, steps: 3, seconds: 1.0, best_step: 3}
      iex> svg = Sconce.Trainer.Curve.svg(run, title: "A short run")
      iex> svg =~ "900 frames of 9 games · 3 steps in 0:01 · best validation NLL 0.667"
      true
  """
  @spec svg(map, keyword) :: String.t()
  def svg(report, opts \\ []) do
    [title: title] = Options.validate!(opts, @options)
    Report.with!(report, [:history, :baselines, :options, :train, :steps, :seconds, :best_step])
    Page.svg(title, summary(report), legend(report), rows(report))
  end

  @doc """
  Writes `svg/2` to a file. The trainer writes `curve.svg` into the folder of each run.

  A path that does not end in `.svg` is an error of kind `:mismatch`, and a failed write is one of kind `:io`.

      iex> run = %{history: [], baselines: [], options: %{}, train: %{games: 0, frames: 0}, steps: 0, seconds: 0, best_step: nil}
      iex> {:error, error} = Sconce.Trainer.Curve.write(run, "curve.png")
      iex> Exception.message(error)
      "write_curve: curve.png: expected a file that ends in .svg, got .png"
  """
  @spec write(map, Path.t(), keyword) :: :ok | {:error, Error.t()}
  def write(report, path, opts \\ []), do: report |> svg(opts) |> Page.write(path, :write_curve)

  @doc """
  Returns the curve as lines of text, about `width` by `height` characters of braille. It shows the validation NLL if
  there are at least two validations, else the training loss; with fewer than two points the text is empty.

      iex> history = for step <- 1..20, do: %{step: step, loss: 0.5 + 1 / step}
      iex> %{history: history} |> Sconce.Trainer.Curve.text(12, 3) |> String.split("\\n")
      [
        "  training loss",
        "  2.0 ┤⡀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀⠀",
        "      ┤⠱⢄⣀⣀⠀⠀⠀⠀⠀⠀⠀⠀",
        "  0.0 ┤⠀⠀⠀⠀⠉⠉⠉⠉⠉⠉⠉⠉",
        "       1         20 step",
        ""
      ]
  """
  @spec text(map, pos_integer, pos_integer) :: String.t()
  def text(report, width \\ 60, height \\ 8) do
    for {name, size} <- [{"width", width}, {"height", height}], size not in 1..1000 do
      Options.argument!(name, size, "1 to 1000 characters")
    end

    case {points(report, :nll), points(report, :loss)} do
      {[_, _ | _] = points, _loss} -> Plot.text("validation NLL", points, width, height)
      {_nll, [_, _ | _] = points} -> Plot.text("training loss", points, width, height)
      _too_few -> ""
    end
  end

  @doc """
  Returns the points of `key` in the history of a report, as `{step, value}`.

      iex> report = %{history: [%{step: 10, loss: 0.7, nll: nil}, %{step: 20, loss: 0.6, nll: 0.65}]}
      iex> Sconce.Trainer.Curve.points(report, :nll)
      [{20, 0.65}]
  """
  @spec points(map, atom) :: [{non_neg_integer, number}]
  def points(%{history: history}, key) when length(history) >= 0 do
    for %{^key => value, step: step} when value != nil <- history, do: {step, value}
  end

  def points(other, _key), do: Report.with!(other, [:history])

  defp rows(report) do
    losses(report) ++ heads(report) ++ figures(report) ++ [{@short, [rate(report), pace(report)]}]
  end

  # Returns one panel, or two with the NLL above the loss if they are different quantities.
  defp losses(report) do
    loss = {:line, @loss, points(report, :loss)}
    points = {:points, @nll, points(report, :nll), report.best_step, "policy"}
    nll = [points | rules(report)]

    cond do
      plain?(report.options) ->
        [{@tall, [panel("nats a frame", [loss | nll])]}]

      points(report, :nll) == [] ->
        [{@tall, [panel("training loss", [loss])]}]

      true ->
        [
          {@tall, [panel("validation NLL, nats a frame", nll)]},
          {@short, [panel("training loss", [loss])]}
        ]
    end
  end

  defp plain?(%{teacher: path}) when path != nil, do: false
  defp plain?(%{prior_weight: weight}) when weight > 0, do: false
  defp plain?(%{loss: loss}), do: Catalogue.plain?(loss)
  defp plain?(_options), do: false

  defp rules(report) do
    for %{name: name, report: %{nll: nll}} <- report.baselines do
      {:rule, Map.get(@baselines, name, "#64748b"), nll, "#{name} #{Scale.number(nll, 3)}"}
    end
  end

  defp heads(report) do
    by_head("training loss of each head", report, :losses, :loss) ++
      by_head("validation NLL of each head, nats a frame", report, :heads, :nll)
  end

  # A single head would repeat the curve of the sum.
  defp by_head(title, report, list, key) do
    points = for %{^list => [_, _ | _] = heads, step: step} <- report.history, do: {step, heads}

    case points do
      [] ->
        []

      [{_step, first} | _] ->
        [{@middle, [head_panel(title, Enum.map(first, & &1.name), points, key)]}]
    end
  end

  defp head_panel(title, names, history, key) do
    series =
      for {name, color} <- Enum.zip(names, Stream.cycle(@colors)) do
        points =
          for {step, heads} <- history, head <- heads, head.name == name, do: {step, head[key]}

        {_step, last} = List.last(points)
        {:trace, color, points, "#{name} #{Scale.number(last, 3)}"}
      end

    title |> panel(series) |> Map.put(:scale, :log)
  end

  # Panels for the figures of the objectives, such as `teacher_kl`.
  defp figures(report) do
    history = for %{figures: %{} = figures, step: step} <- report.history, do: {step, figures}
    names = for {_step, figures} <- history, {name, _figure} <- figures, uniq: true, do: name

    for {name, color} <- names |> Enum.sort() |> Enum.zip(Stream.cycle(@figures)) do
      points = for {step, %{^name => figure}} <- history, do: {step, figure}
      {@short, [panel(title(name), [{:line, color, points}])]}
    end
  end

  defp title(:teacher_kl), do: "KL to the teacher, nats a frame"
  defp title(name), do: name |> to_string() |> String.replace("_", " ")

  defp rate(report),
    do: panel("learning rate", [{:trace, @rate, points(report, :learning_rate), nil}], "step")

  defp pace(report) do
    series = [{:line, @pace, points(report, :frames_per_second)}]
    title = "frames a second#{waiting(points(report, :data_wait))}"
    title |> panel(series, "step") |> Map.put(:from, [0])
  end

  defp waiting([]), do: ""

  defp waiting(shares) do
    mean = Enum.sum(for {_step, share} <- shares, do: share) / length(shares)
    " · #{Scale.number(100 * mean, 1)} % waiting for data"
  end

  defp panel(title, series, x \\ nil), do: %{title: title, series: series, x: x}

  defp summary(report) do
    train = "#{Figures.grouped(report.train.frames)} frames of #{report.train.games} games"
    steps = "#{Figures.grouped(report.steps)} steps in #{Scale.clock(report.seconds)}"
    best = for {step, nll} <- points(report, :nll), step == report.best_step, do: nll

    case best do
      [nll | _] -> "#{train} · #{steps} · best validation NLL #{Scale.number(nll, 3)}"
      [] -> "#{train} · #{steps}"
    end
  end

  # The legend names the quantities that share a panel.
  defp legend(report) do
    entries = [{"training loss", @loss, :line, :loss}, {"validation NLL", @nll, :points, :nll}]

    shown =
      for {text, color, mark, key} <- entries, points(report, key) != [], do: {text, color, mark}

    if plain?(report.options), do: shown, else: []
  end
end
