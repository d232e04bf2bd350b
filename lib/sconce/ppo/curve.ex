defmodule Sconce.PPO.Curve do
  @moduledoc """
  Draws the learning curve of a run of `Sconce.PPO`: as an SVG for a page, or as a small plot for a terminal.

  The SVG shows the mean return of the last 100 episodes, the entropy of the policy, the divergence of an update, the
  share of actions beyond the clip, the share of the variance that the value explains, its loss, and the pace. That of a
  league also shows the Elo of the policy and its mean win rate against the members.
  """

  alias Sconce.{Env, Error, Figures, Options}
  alias Sconce.Env.Hosting
  alias Sconce.Trainer.Curve.{Page, Plot, Scale}
  alias Sconce.Trainer.Report

  @tall 300
  @short 120
  @colors %{
    mean_return: "#2563eb",
    entropy: "#7c3aed",
    approx_kl: "#db2777",
    clip_fraction: "#ea580c",
    explained_variance: "#0d9488",
    value_loss: "#0891b2",
    steps_per_second: "#65a30d",
    elo: "#b45309",
    win_rate: "#15803d"
  }

  @doc """
  Returns the curve as the text of an SVG file.

      iex> point = %{steps: 64, mean_return: 20.0, steps_per_second: 1.0e5, explained_variance: 0.1, figures: %{}}
      iex> report = %{env: "cart_pole", history: [point, %{point | steps: 128}], steps: 128, seconds: 1.0, best_return: 20.0}
      iex> Sconce.PPO.Curve.svg(report) =~ "128 steps in 0:01 · best mean return 20.0"
      true
  """
  @spec svg(map) :: String.t()
  def svg(report) do
    Report.with!(report, [:env, :history, :steps, :seconds, :best_return])
    Page.svg("Learning #{report.env}", summary(report), [], rows(report))
  end

  @doc """
  Writes `svg/1` to a file. A path that does not end in `.svg` is an error of kind `:mismatch`, and a failed write is
  one of kind `:io`.

      iex> report = %{env: "cart_pole", history: [], steps: 0, seconds: 0.0, best_return: nil}
      iex> path = Path.join(System.tmp_dir!(), "sconce-curve-#{System.pid()}.svg")
      iex> Sconce.PPO.Curve.write(report, path)
      :ok
      iex> File.rm!(path)
      :ok
      iex> {:error, error} = Sconce.PPO.Curve.write(report, "curve.png")
      iex> error.kind
      :mismatch
  """
  @spec write(map, Path.t()) :: :ok | {:error, Error.t()}
  def write(report, path), do: report |> svg() |> Page.write(path, :write_curve)

  @doc """
  Returns the mean returns as lines of text, about `width` by `height` characters of braille; empty with fewer than
  two points.

      iex> history = for i <- 1..3, do: %{steps: 64 * i, mean_return: 20.0 * i, figures: %{}}
      iex> text = Sconce.PPO.Curve.text(%{history: history}, 20, 3)
      iex> text |> String.split("\\n") |> hd()
      "  mean return of 100 episodes"
      iex> Sconce.PPO.Curve.text(%{history: []})
      ""
  """
  @spec text(map, pos_integer, pos_integer) :: String.t()
  def text(report, width \\ 60, height \\ 8) do
    for {name, size} <- [{"width", width}, {"height", height}], size not in 1..1000 do
      Options.argument!(name, size, "1 to 1000 characters")
    end

    case points(report, :mean_return) do
      [_, _ | _] = points -> Plot.text("mean return of 100 episodes", points, width, height)
      _too_few -> ""
    end
  end

  @doc """
  Returns the points of `key` in the history of a report, as `{steps, value}`. A point without a value is left out.

      iex> history = [
      ...>   %{steps: 64, mean_return: nil, figures: %{entropy: 0.69}},
      ...>   %{steps: 128, mean_return: 20.0, figures: %{entropy: 0.68}}
      ...> ]
      iex> Sconce.PPO.Curve.points(%{history: history}, :mean_return)
      [{128, 20.0}]
      iex> Sconce.PPO.Curve.points(%{history: history}, :entropy)
      [{64, 0.69}, {128, 0.68}]
  """
  @spec points(map, atom) :: [{non_neg_integer, number}]
  def points(%{history: history}, key) when is_list(history) do
    for %{steps: steps} = point <- history, value = value(point, key), do: {steps, value}
  end

  def points(other, _key), do: Report.with!(other, [:history])

  defp value(point, key), do: Map.get_lazy(point, key, fn -> point[:figures][key] end)

  defp rows(report) do
    pairs = [[:entropy, :approx_kl], [:clip_fraction, :explained_variance]]
    last = [:value_loss, :steps_per_second]
    first = [{@tall, [panel(report, :mean_return)]}]

    first ++
      league(report) ++
      for(keys <- pairs, do: {@short, Enum.map(keys, &panel(report, &1))}) ++
      [{@short, Enum.map(last, &Map.put(panel(report, &1), :x, "steps"))}]
  end

  # The Elo, and the mean of the recent win rates against all members.
  defp league(%{history: history} = report) do
    rates =
      for %{steps: steps, opponents: [_ | _] = members} <- history,
          do: {steps, Enum.sum(Enum.map(members, & &1.win_rate)) / length(members)}

    win_rate = %{title: title(:win_rate), series: [{:line, @colors.win_rate, rates}], x: nil}
    if rates == [], do: [], else: [{@short, [panel(report, :elo), win_rate]}]
  end

  defp panel(report, :mean_return) do
    trace = {:trace, @colors.mean_return, points(report, :mean_return), nil}
    %{title: "mean return of 100 episodes", series: [trace | solved(report)], x: nil}
  end

  defp panel(report, key),
    do: %{title: title(key), series: [{:line, @colors[key], points(report, key)}], x: nil}

  defp solved(report) do
    native = Enum.find(Env.names(), &(to_string(&1) == report.env))

    with env when env != nil <- native || Hosting.named(report.env),
         {:ok, %{solved: solved}} when solved != nil <- Env.spec(env),
         do: [{:rule, "#64748b", solved, "solved #{Scale.number(solved, 0)}"}],
         else: (_ -> [])
  end

  defp title(:approx_kl), do: "divergence of an update, nats"
  defp title(:entropy), do: "entropy, nats"
  defp title(:clip_fraction), do: "share of actions beyond the clip"
  defp title(:elo), do: "Elo"
  defp title(:win_rate), do: "mean win rate against the league"
  defp title(:steps_per_second), do: "steps a second"
  defp title(key), do: key |> to_string() |> String.replace("_", " ")

  defp summary(report) do
    best = report.best_return
    best = if best, do: " · best mean return #{Scale.number(best, 1)}", else: ""
    "#{Figures.grouped(report.steps)} steps in #{Scale.clock(report.seconds)}#{best}"
  end
end
