defmodule Sconce.Trainer.Report do
  @moduledoc """
  The report of a run or of an evaluation, as text.

  Four tables, each with the policy beside the baselines that were fitted on the training games, on
  all frames and on those whose action differs from the one before (where copying fails):

    * plain NLL in nats a frame: all heads added, and each of them;
    * accuracy of each head: frames whose most likely value is the recorded one, in every bit;
    * precision and recall of each button, with the frames on which it was down.

  | baseline | what it knows |
  |---|---|
  | `marginal` | how often each value occurs |
  | `repeat` | that, and the probability that a head repeats its last value |
  | `pairs` | P(a_t given a_{t-1}), a table for each head |

  Of a small policy that plays CartPole:

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

  @doc "The tables as text; where nothing was scored, a line that says so."
  @spec format(map) :: String.t()
  def format(report) do
    match?(%{policy: _scores, baselines: _of_them}, report) || refuse!(report)

    [run(report) | scores(report)]
    |> Enum.reject(&(&1 == ""))
    |> Enum.join("\n\n")
    |> Text.lines()
  end

  @doc false
  # A report with these fields, for functions that read it.
  @spec with!(term, [atom]) :: map
  def with!(report, fields) do
    whole? = is_map(report) and Enum.all?(fields, &is_map_key(report, &1))
    if whole?, do: report, else: refuse!(report)
  end

  defp refuse!(other),
    do: Options.argument!("report", other, "what Sconce.Trainer.report/1 gives")

  # An evaluation has no run, and tables alone have neither.
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
      "#{title(spec, weights)}\nmeasured on #{side(validation)}#{device(report)}#{precision(report)}"

  defp run(_scores), do: ""

  defp device(%{options: %{device: device}}) when device != "cpu", do: "\ncomputed on #{device}"
  defp device(%{device: device}) when device != "cpu", do: "\ncomputed on #{device}"
  defp device(_cpu), do: ""

  defp parts(%{micro_batch: windows, options: %{batch_size: batch}}) when windows < batch,
    do: "\nto keep within the memory, #{Figures.counted(windows, "window")} of a batch at a time"

  defp parts(_whole), do: ""

  defp precision(%{precision: used, options: %{precision: asked}}) when used != asked,
    do: "\ncomputed in #{used}, as #{asked} gains nothing on this machine"

  defp precision(%{precision: "f16", skipped_updates: n}) when n > 0,
    do: "\ncomputed in f16, #{Figures.grouped(n)} updates skipped whose gradient overflowed"

  defp precision(%{precision: used}) when used != "f32", do: "\ncomputed in #{used}"
  defp precision(_f32), do: ""

  defp loaded(%{batches: n} = flow) when n > 0 do
    rows = Figures.grouped(round(flow.rows_per_second))

    [data, room] =
      for key <- [:data_wait_seconds, :room_wait_seconds], do: Scale.number(flow[key], 2)

    "\nloaded #{rows} rows/s, waited #{data} s for data, the loader #{room} s for room"
  end

  defp loaded(_none), do: ""

  defp unsaved(%{failed: [_ | _] = failed, step: step}) do
    files =
      for file <- failed, do: "\nnot saved (#{file.times} x): #{Text.printable(file.reason)}"

    last = if step, do: "step #{Figures.grouped(step)}", else: "none of this run"
    ["\nthe state on disk is that of ", last | files]
  end

  defp unsaved(_all_saved), do: ""

  @doc """
  A policy in a few words.

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
  defp how(:early), do: "stopped early, as it no longer got better"
  defp how(:budget), do: "stopped at the end of its time"
  defp how(:stopped), do: "stopped on request"

  defp side(%{games: 1, frames: frames}), do: "#{Figures.grouped(frames)} frames of 1 game"

  defp side(%{games: games, frames: frames}),
    do: "#{Figures.grouped(frames)} frames of #{games} games"

  defp scores(%{policy: nil}), do: ["Nothing was scored."]

  defp scores(%{policy: policy, baselines: baselines}) do
    columns = [{"policy", policy} | Enum.map(baselines, &{&1.name, &1.report})]

    [
      "#{Figures.grouped(policy.frames)} frames, #{Figures.grouped(policy.changed_frames)} of them " <>
        "with a changed action",
      table("NLL, nats a frame", columns, nll_rows(policy), &nats/1),
      table("accuracy, %", columns, head_rows(policy, :accuracy), &percent/1),
      table("precision, %", columns, button_rows(policy, :precision), &percent/1),
      table("recall, %", columns, button_rows(policy, :recall), &percent/1)
    ]
  end

  # A row is {label, how to read its number on all frames, how on changed ones}.
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

  # The names of the two halves stand over the policy's columns.
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
