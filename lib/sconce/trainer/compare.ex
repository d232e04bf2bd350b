defmodule Sconce.Trainer.Compare do
  @moduledoc """
  Compares runs: the options in which they differ, and their results.

      {:ok, runs} = Sconce.Trainer.Compare.load(["runs/gru", "runs/mamba"])
      IO.puts(Sconce.Trainer.Compare.table(runs))
      :ok = Sconce.Trainer.Compare.write(runs, "compare.svg")

  The table has a column for each run. The upper rows are the options in which the runs differ, `-` for an option that
  a backbone does not have. The lower rows are the results. `NLL` is that of the best validation in nats a frame, on the
  frames that validations score; `all frames` is the NLL of the best policy on all frames at the end, `-` without an
  evaluation.
  The lowest value of a row has a star if all runs were measured alike: on the same frames of the same games, with the
  same heads and the same delay. Otherwise a line below the table gives the difference. `frames/s` counts only the time
  of training steps.

  ```text
                    gru        mlp
  backbone       gru 64x1    mlp 128
  hidden_size          64          -
  num_layers            1          -
  layer_norm         true      false
  input_norm         true          -
  hidden_sizes          -        128
  residual              -      false

  weights         151,649    133,257
  ended          finished   finished
  steps               240        240
  NLL              3.598*      3.774
  at step             240        240
  all frames            -          -
  time               0:05       0:03
  frames/s         87,934    112,918
  waiting           2.4 %      2.4 %
  ```
  """

  alias Sconce.{Error, Figures, Options, Text, Trainer}
  alias Sconce.Policy.Spec
  alias Sconce.Trainer.{Curve, Report}
  alias Sconce.Trainer.Curve.{Page, Scale}

  @typedoc "A run: its shortest unique name, and its report."
  @type run :: %{name: String.t(), report: Trainer.report()}

  @measures [
    games: "other validation games",
    choices: "other heads",
    delay: "another frame_delay",
    stride: "another validation_stride"
  ]
  # Options that do not change the computation of a run.
  @apart [:resume]
  @tall 330
  @short 150
  @colors ~w(#2563eb #ea580c #0d9488 #9333ea #db2777 #a16207 #475569 #15803d)
  # The fields of a report that this module reads.
  @read [:spec, :options, :train, :validation, :history, :policy, :best_step] ++
          [:weights, :stopped, :steps, :seconds]
  # The most characters of a run's name and of a value.
  @name 12
  @value 24

  @doc """
  Reads the reports of runs from their folders.

  The error is of kind `:not_found` for a folder without a report, because it is not the folder of a run or the run is
  not over, and of kind `:corrupt` for a report that cannot be read. Both name the file.

      iex> dir = Path.join(System.tmp_dir!(), "sconce-compare-" <> System.pid())
      iex> game = {List.duplicate([0.5], 20), List.duplicate(1, 20)}
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, List.duplicate(game, 4), into: Path.join(dir, "corpus"), heads: [go: {:bernoulli, 1}])
      iex> folders = for backbone <- [:gru, :lstm] do
      ...>   out = Path.join(dir, to_string(backbone))
      ...>   small = [backbone: backbone, hidden_size: 4, num_layers: 1, batch_size: 2, window_size: 4, steps: 2]
      ...>   {:ok, run} = Sconce.Trainer.start_link([corpus: corpus, out: out] ++ small)
      ...>   {:ok, _report} = Sconce.Trainer.await(run)
      ...>   out
      ...> end
      iex> {:ok, runs} = Sconce.Trainer.Compare.load(folders)
      iex> for run <- runs, do: run.name
      ["gru", "lstm"]
      iex> runs |> Sconce.Trainer.Compare.table() |> String.split("\\n") |> Enum.take(2)
      ["                  gru       lstm", "backbone      gru 4x1   lstm 4x1"]
      iex> svg = Path.join(dir, "compare.svg")
      iex> Sconce.Trainer.Compare.write(runs, svg)
      :ok
      iex> File.read!(svg) == Sconce.Trainer.Compare.svg(runs)
      true
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec load([Path.t()]) :: {:ok, [run]} | {:error, Error.t()}
  def load(folders) when length(folders) >= 0 do
    folders = Enum.map(folders, &(&1 |> Options.path!() |> Path.expand()))

    folders
    |> Enum.zip(names(folders))
    |> Enum.reduce_while({:ok, []}, fn {folder, name}, {:ok, runs} ->
      case Trainer.report(folder) do
        {:ok, report} -> {:cont, {:ok, runs ++ [%{name: name, report: report}]}}
        {:error, error} -> {:halt, {:error, error}}
      end
    end)
  end

  def load(other), do: Options.argument!("folders", other, "a list of paths")

  defp names(folders) do
    short = Enum.map(folders, &Path.basename/1)
    if short == Enum.uniq(short), do: short, else: Enum.map(folders, &Path.relative_to_cwd/1)
  end

  @doc "Returns the runs as a table; `load/1` has an example."
  @spec table([run]) :: String.t()
  def table(runs) do
    runs = runs!(runs)
    reports = Enum.map(runs, & &1.report)
    above = [["" | Enum.map(runs, & &1.name)] | differences(reports)]
    rows = above ++ [[""]] ++ outcomes(reports)
    widths = widths(above ++ outcomes(reports))
    Enum.map_join(rows, &line(&1, widths)) <> unlike(reports)
  end

  defp runs!([_ | _] = runs) when length(runs) > 0 do
    for run <- runs do
      match?(%{name: name, report: _report} when is_binary(name), run) ||
        Options.argument!("runs", run, "%{name: name, report: report}")

      Report.with!(run.report, @read)
      %{run | name: Text.printable(run.name)}
    end
  end

  defp runs!(other), do: Options.argument!("runs", other, "one or more of %{name:, report:}")

  # Returns a line with the differences in measurement, if there are any; then no value has a star.
  defp unlike(reports) do
    case uneven(reports, :all) ++ uneven(reports, :validations) do
      [] ->
        ""

      [_ | _] = reasons ->
        "\nNo star, as runs were not measured alike: #{reasons |> Enum.uniq() |> Enum.join(", ")}.\n"
    end
  end

  # Returns the conditions of measurement in which the reports with scores on `frames` differ.
  defp uneven(reports, frames) do
    measured = for report <- reports, scored?(report, frames), do: measure(report, frames)

    for what <- measured |> List.first([]) |> Keyword.keys(),
        measured |> Enum.map(& &1[what]) |> Enum.uniq() |> length() > 1,
        do: @measures[what]
  end

  defp scored?(report, :all), do: scored(report) != nil
  defp scored?(report, :validations), do: best(report) != nil

  defp measure(report, frames) do
    stride = if frames == :validations, do: report.options[:validation_stride]

    [
      games: Map.get(report.validation, :digest) || side(report.validation),
      choices: Enum.map(report.spec.heads, &{Spec.text(&1.name), &1.kind}),
      delay: report.options[:frame_delay],
      stride: stride
    ]
  end

  @doc """
  Returns the options in which reports differ, as rows of a name and the value of each report.

      iex> report = %{options: %{seed: 0}, train: %{games: 9, frames: 900}, validation: %{games: 1, frames: 100}}
      iex> reports = for layers <- [1, 2], do: Map.put(report, :spec, Sconce.Policy.Spec.new(backbone: :gru, num_layers: layers))
      iex> Sconce.Trainer.Compare.differences(reports)
      [["backbone", "gru 256x1", "gru 256x2"], ["num_layers", "1", "2"]]
  """
  @spec differences([Trainer.report()]) :: [[String.t()]]
  def differences(reports) when length(reports) >= 0 do
    Enum.each(reports, &Report.with!(&1, [:spec, :options, :train, :validation]))
    policies = Enum.map(reports, &policy/1)
    options = Enum.zip_with(policies, Enum.map(reports, &training/1), &++/2)
    names = Enum.flat_map(policies ++ options, &Keyword.keys/1) |> Enum.uniq()

    for name <- names,
        values = Enum.map(options, &Keyword.get(&1, name, :none)),
        values |> Enum.uniq() |> length() > 1,
        do: [to_string(name) | Enum.map(values, &value/1)]
  end

  def differences(other), do: Options.argument!("reports", other, "a list of reports")

  # Returns embedding, backbone and heads of the Spec as text, then the options of the backbone.
  defp policy(%{spec: %Spec{backbone: {_name, options}} = spec}) do
    [embedding, backbone, heads] = spec |> Spec.summary() |> String.split(" -> ")
    [embedding: embedding, backbone: backbone, heads: heads] ++ options
  end

  defp training(report) do
    {loss, options} = report.options |> Map.drop(@apart) |> Map.pop(:loss, %{})
    sides = [trained_on: side(report.train), measured_on: side(report.validation)]
    Enum.sort(options) ++ Enum.sort(loss) ++ sides
  end

  defp side(%{games: games, frames: frames}),
    do: "#{Figures.grouped(frames)} of #{games} games"

  defp value(:none), do: "-"
  defp value(nil), do: "none"

  defp value(values) when is_list(values),
    do: values |> Enum.map_join(",", &value/1) |> cut(@value)

  defp value(number) when is_float(number), do: Float.to_string(Float.round(number, 9))
  defp value("/" <> _ = path), do: path |> Path.basename() |> cut(@value)
  defp value(value), do: value |> to_string() |> cut(@value)

  defp cut(text, most) do
    text = Text.printable(text)
    if String.length(text) > most, do: String.slice(text, 0, most - 1) <> "…", else: text
  end

  defp outcomes(reports) do
    [
      ["weights" | Enum.map(reports, &Figures.grouped(&1.weights))],
      ["ended" | Enum.map(reports, &to_string(&1.stopped))],
      ["steps" | Enum.map(reports, &Figures.grouped(&1.steps))],
      ["NLL" | reports |> Enum.map(&best/1) |> starred(uneven(reports, :validations))],
      ["at step" | Enum.map(reports, &at/1)],
      ["all frames" | reports |> Enum.map(&scored/1) |> starred(uneven(reports, :all))],
      ["time" | Enum.map(reports, &Scale.clock(&1.seconds))],
      ["frames/s" | Enum.map(reports, &pace/1)],
      ["waiting" | Enum.map(reports, &waiting/1)]
    ]
  end

  defp best(%{best_step: step} = report) do
    Enum.find_value(Curve.points(report, :nll), fn {at, nll} -> at == step && nll end)
  end

  defp at(report), do: if(best(report), do: Figures.grouped(report.best_step), else: "-")

  defp scored(%{policy: nil}), do: nil
  defp scored(%{policy: policy}), do: policy.nll

  defp starred(nlls, uneven) do
    # `Enum.min/1` prefers numbers to nil: in Erlang's term order nil is greater than every number.
    lowest = if uneven == [], do: Enum.min(nlls)
    for nll <- nlls, do: if(nll, do: Scale.number(nll, 3) <> star(nll == lowest), else: "-")
  end

  defp star(true), do: "*"
  defp star(false), do: ""

  # Averages with the harmonic mean, because every point covers the same number of frames.
  defp pace(report) do
    case Curve.points(report, :frames_per_second) do
      [] -> "-"
      points -> Figures.grouped(round(length(points) / Enum.sum(for {_, f} <- points, do: 1 / f)))
    end
  end

  defp waiting(report) do
    case Curve.points(report, :data_wait) do
      [] -> "-"
      points -> Scale.number(100 * mean(points), 1) <> " %"
    end
  end

  defp mean(points), do: Enum.sum(Enum.map(points, &elem(&1, 1))) / length(points)

  defp widths(rows) do
    rows
    |> Enum.zip_with(& &1)
    |> Enum.map(fn c -> c |> Enum.map(&String.length/1) |> Enum.max() end)
  end

  defp line([""], _widths), do: "\n"

  defp line([name | cells], [width | widths]) do
    cells = Enum.zip_with(cells, widths, &("   " <> String.pad_leading(&1, &2)))
    String.trim_trailing(String.pad_trailing(name, width) <> Enum.join(cells)) <> "\n"
  end

  @doc """
  Returns the curves of the runs as the text of one SVG file: validation NLL by steps and by time, training loss
  (comparable only between runs with the same loss), learning rate and frames a second. `load/1` has an example.
  """
  @spec svg([run]) :: String.t()
  def svg(runs) do
    runs = runs |> runs!() |> Enum.zip(Stream.cycle(@colors))
    clock = clock(for {%{report: report}, _color} <- runs, do: report.seconds)

    Page.svg(title(length(runs)), summary(runs), [], [
      {@tall, [panel("validation NLL, nats a frame", runs, &nll/2, "step")]},
      {@short,
       [
         panel("validation NLL by time", runs, &by_time(&1, &2, clock), elem(clock, 0)),
         panel("training loss", runs, &{:line, &2, Curve.points(&1.report, :loss)}, "step")
       ]},
      {@short,
       [
         panel("learning rate", runs, &trace(&1, &2, :learning_rate), "step"),
         "frames a second"
         |> panel(runs, &{:line, &2, Curve.points(&1.report, :frames_per_second)}, "step")
         |> Map.put(:from, [0])
       ]}
    ])
  end

  @doc "Writes `svg/1` to a file; `load/1` has an example."
  @spec write([run], Path.t()) :: :ok | {:error, Error.t()}
  def write(runs, path), do: runs |> svg() |> Page.write(path, :write_curve)

  defp panel(title, runs, series, x),
    do: %{title: title, x: x, series: for({run, color} <- runs, do: series.(run, color))}

  defp nll(%{name: name, report: report}, color),
    do: {:points, color, Curve.points(report, :nll), report.best_step, cut(name, @name)}

  defp by_time(%{report: %{history: history}}, color, {_unit, seconds}) do
    points = for %{nll: nll, seconds: at} when nll != nil <- history, do: {at / seconds, nll}
    {:points, color, points, nil, nil}
  end

  defp trace(%{report: report}, color, key), do: {:trace, color, Curve.points(report, key), nil}

  # Chooses the unit of the time axis by the longest run: hours from 10 h, minutes from 5 min, else seconds.
  defp clock(seconds) do
    case Enum.max(seconds) do
      most when most >= 36_000 -> {"hours", 3600}
      most when most >= 300 -> {"minutes", 60}
      _less -> {"seconds", 1}
    end
  end

  defp title(1), do: "1 run"
  defp title(count), do: "#{count} runs"

  defp summary(runs) do
    scored =
      for {%{name: name, report: report}, _color} <- runs, nll = best(report), do: {nll, name}

    reports = for {%{report: report}, _color} <- runs, do: report

    case {Enum.sort(scored), uneven(reports, :validations)} do
      {[], _none} -> "no run was validated"
      {[{nll, name} | _], []} -> "best validation NLL #{Scale.number(nll, 3)}, #{name}"
      {_scored, reasons} -> "not measured alike: #{Enum.join(reasons, ", ")}"
    end
  end
end
