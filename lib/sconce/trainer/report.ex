defmodule Sconce.Trainer.Report do
  @moduledoc """
  Formats the report of a run or of an evaluation as text.

  The text has four tables. Each compares the policy with baselines fitted on the training games, on all
  frames and on changed frames. The action of a changed frame differs from the previous one, so copying it fails:

    * plain NLL in nats a frame: the sum of all heads, and each head;
    * accuracy of each head: the share of frames whose most likely value equals the recorded one in every bit;
    * precision and recall of each button, with the number of frames on which the button was down.

  | baseline | knows |
  |---|---|
  | `marginal` | how often each value occurs |
  | `repeat` | also the probability that a head repeats its last value |
  | `pairs` | P(a_t given a_{t-1}), a table for each head |

  The report of a small policy for CartPole begins:

  ```text
  5,500 frames, 3,754 of them with a changed action

  NLL, nats a frame      all                                  changed
                      policy  marginal    repeat     pairs     policy  marginal    repeat     pairs
  all heads            0.360     0.693     0.693     0.621      0.308     0.693     0.693     0.386
  action               0.360     0.693     0.693     0.621      0.308     0.693     0.693     0.386
  ```
  """

  alias Sconce.{Figures, Options, Text}
  alias Sconce.Policy.Spec
  alias Sconce.Trainer.Curve.Scale

  @label 16
  @cell 10

  @doc """
  Returns the tables as text, or a line that says that nothing was scored.

      iex> scores = fn nll -> %{nll: nll, nll_changed: nll, frames: 480, changed_frames: 90, heads: [], buttons: []} end
      iex> report = %{policy: scores.(0.36), baselines: [%{name: "pairs", report: scores.(0.621)}]}
      iex> report |> Sconce.Trainer.Report.format() |> String.split("\\n")
      [
        "480 frames, 90 of them with a changed action",
        "",
        "NLL, nats a frame      all              changed",
        "                    policy     pairs     policy     pairs",
        "all heads            0.360     0.621      0.360     0.621"
      ]
  """
  @spec format(map) :: String.t()
  def format(report) do
    match?(%{policy: _scores, baselines: _of_them}, report) || refuse!(report)
    joined([run(report) | scores(report)])
  end

  @doc false
  # Returns a short form for one screen: the run and the NLL of all heads.
  @spec brief(map) :: String.t()
  def brief(report), do: joined([run(Map.delete(report, :loader)), summary(report)])

  defp joined(parts),
    do: parts |> Enum.reject(&(&1 == "")) |> Enum.join("\n\n") |> Text.lines()

  defp summary(%{policy: nil}), do: "Nothing was scored."

  defp summary(%{policy: policy, baselines: baselines}) do
    head = String.pad_trailing("NLL, nats a frame", @label + 2) <> cells(["all", "changed"])

    rows =
      for {name, scores} <- columns(policy, baselines),
          do:
            String.pad_trailing(name, @label + 2) <>
              cells([nats(scores.nll), nats(scores.nll_changed)])

    Enum.join([head | rows], "\n")
  end

  defp columns(policy, baselines),
    do: [{"policy", policy} | Enum.map(baselines, &{&1.name, &1.report})]

  @doc false
  # Returns the report if it has these fields; raises for any other term.
  @spec with!(term, [atom]) :: map
  def with!(report, fields) do
    whole? = is_map(report) and Enum.all?(fields, &is_map_key(report, &1))
    if whole?, do: report, else: refuse!(report)
  end

  defp refuse!(other),
    do: Options.argument!("report", other, "a report of Sconce.Trainer.report/1")

  # Describes the run. An evaluation has none, and a map with only scores has no title either.
  defp run(%{stopped: stopped, train: train, validation: validation} = report) do
    best = if report.best_step, do: ", best at #{Figures.grouped(report.best_step)}", else: ""
    steps = "#{Figures.grouped(report.steps)} steps in #{Scale.clock(report.seconds)}"

    """
    #{title(report.spec, report.weights)}
    #{how(stopped)}: #{steps}#{best}
    trained on #{side(train)}, measured on #{side(validation)}\
    #{device(report)}#{parts(report)}#{precision(report)}#{loaded(report[:loader])}#{unsaved(report[:saves])}\
    """
  end

  defp run(%{spec: spec, weights: weights, validation: validation} = report),
    do:
      "#{title(spec, weights)}\nmeasured on #{side(validation)}#{device(report)}#{precision(report)}#{differs(report)}"

  defp run(_scores), do: ""

  defp differs(%{differs: share}) when is_number(share),
    do:
      "\n#{Figures.decimal(100 * share)} % of the likeliest actions differ from those of the reference"

  defp differs(_without_reference), do: ""

  defp device(%{options: %{device: device}}) when device != "cpu", do: "\ncomputed on #{device}"
  defp device(%{device: device}) when device != "cpu", do: "\ncomputed on #{device}"
  defp device(_cpu), do: ""

  defp parts(%{micro_batch: windows, options: %{batch_size: batch}}) when windows < batch,
    do: "\nto fit into the memory, #{Figures.counted(windows, "window")} of a batch at a time"

  defp parts(_whole), do: ""

  defp precision(%{precision: used, options: %{precision: asked}}) when used != asked,
    do: "\ncomputed in #{used}, as #{asked} gains nothing on this machine"

  defp precision(%{precision: "f16", skipped_updates: n}) when n > 0,
    do: "\ncomputed in f16, #{Figures.grouped(n)} updates skipped after an overflow"

  defp precision(%{precision: used}) when used != "f32", do: "\ncomputed in #{used}"
  defp precision(_f32), do: ""

  defp loaded(%{batches: n} = flow) when n > 0 do
    rows = Figures.grouped(round(flow.rows_per_second))

    [data, room] =
      for key <- [:data_wait_seconds, :room_wait_seconds], do: Scale.number(flow[key], 2)

    "\nloaded #{rows} rows/s; training waited #{data} s for data, the loader #{room} s for room"
  end

  defp loaded(_none), do: ""

  defp unsaved(%{failed: [_ | _] = failed, step: step}) do
    files =
      for file <- failed, do: "\nnot saved (#{file.times} x): #{Text.printable(file.reason)}"

    last = if step, do: "is that of step #{Figures.grouped(step)}", else: "is not of this run"
    ["\nthe state on disk ", last | files]
  end

  defp unsaved(_all_saved), do: ""

  @doc """
  Returns a policy in one line: its Spec and its number of weights.

      iex> spec = Sconce.Policy.Spec.new(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> Sconce.Trainer.Report.title(spec, 1_100_000)
      "vector 2 -> gru 256x2 -> go(1) · 1.1 M weights"
  """
  @spec title(Spec.t(), non_neg_integer) :: String.t()
  def title(%Spec{backbone: {_, _}} = spec, weights) when weights in 0..0xFFFF_FFFF_FFFF,
    do: "#{Spec.summary(spec)} · #{magnitude(weights)} weights"

  def title(%Spec{backbone: {_, _}}, other),
    do: Options.argument!("weights", other, "a number of weights")

  defp magnitude(n) when n >= 1_000_000, do: "#{Scale.number(n / 1_000_000, 1)} M"
  defp magnitude(n) when n >= 10_000, do: "#{div(n, 1000)} k"
  defp magnitude(n), do: Figures.grouped(n)

  defp how(:finished), do: "finished"
  defp how(:early), do: "stopped early, without further improvement"
  defp how(:budget), do: "stopped at its time limit"
  defp how(:stopped), do: "stopped on request"

  defp side(%{games: 1, frames: frames}), do: "#{Figures.grouped(frames)} frames of 1 game"

  defp side(%{games: games, frames: frames}),
    do: "#{Figures.grouped(frames)} frames of #{games} games"

  defp scores(%{policy: nil}), do: ["Nothing was scored."]

  defp scores(%{policy: policy, baselines: baselines}) do
    columns = columns(policy, baselines)

    [
      "#{Figures.grouped(policy.frames)} frames, #{Figures.grouped(policy.changed_frames)} of them " <>
        "with a changed action",
      table("NLL, nats a frame", columns, nll_rows(policy), &nats/1),
      table("accuracy, %", columns, head_rows(policy, :accuracy), &percent/1),
      table("precision, %", columns, button_rows(policy, :precision), &percent/1),
      table("recall, %", columns, button_rows(policy, :recall), &percent/1)
    ]
  end

  # A row is a label and two functions that return its value: on all frames, and on changed frames.
  defp nll_rows(policy) do
    total = {"all heads", & &1.nll, & &1.nll_changed}
    if policy.heads == [], do: [total], else: [total | head_rows(policy, :nll)]
  end

  defp head_rows(policy, key) do
    for %{name: name} <- policy.heads, do: row(Text.printable(name), :heads, name, key)
  end

  defp button_rows(policy, key) do
    for %{name: name, presses: presses} <- policy.buttons,
        do: row("#{name} #{Figures.grouped(presses)}", :buttons, name, key)
  end

  defp row(label, part, name, key) do
    changed = :"#{key}_changed"
    {label, &number(&1, part, name, key), &number(&1, part, name, changed)}
  end

  defp number(metrics, part, name, key) do
    metrics |> Map.fetch!(part) |> Enum.find(%{}, &(&1.name == name)) |> Map.get(key)
  end

  defp table(_title, _columns, [], _show), do: ""

  defp table(title, columns, rows, show) do
    names = Enum.map(columns, &elem(&1, 0))
    wide = @cell * length(columns)

    head = [
      title_line(title, wide),
      String.pad_trailing("", @label) <> cells(names) <> " " <> cells(names)
    ]

    body =
      for {label, all, changed} <- rows do
        numbers = fn read -> for {_name, metrics} <- columns, do: show.(read.(metrics)) end

        String.pad_trailing(label, @label) <>
          cells(numbers.(all)) <> " " <> cells(numbers.(changed))
      end

    Enum.map_join(head ++ body, "\n", &String.trim_trailing/1)
  end

  # Places "all" and "changed" above the policy's column of each half.
  defp title_line(title, wide) do
    left = String.pad_trailing(title, @label + @cell - 3) <> "all"
    String.pad_trailing(left, @label + wide + 1 + @cell - 7) <> "changed"
  end

  defp cells(texts), do: Enum.map_join(texts, &String.pad_leading(&1, @cell))

  defp nats(nil), do: "-"
  defp nats(value), do: Scale.number(value, 3)
  defp percent(nil), do: "-"
  defp percent(value), do: Scale.number(100 * value, 1)
end
