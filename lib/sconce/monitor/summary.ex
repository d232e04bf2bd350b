defmodule Sconce.Monitor.Summary do
  @moduledoc false
  # The figures of a watched run: its progress, the time left, its main figure and its curves. The terminal and
  # the live page show the same.

  import Sconce.Monitor.View.Words, only: [gauge: 2]

  alias Sconce.Monitor.Snapshot.Slot

  # The most steps of a progress bar. An atom is greater than every number.
  @most 1_000_000_000_000_000

  @doc "Returns the steps done and all steps; nil for each that is unknown."
  @spec progress(map) :: {number | nil, number | nil}
  def progress(run) do
    done = gauge(run, "step.step") || gauge(run, "update.steps")
    {done, gauge(run, "start.steps") || gauge(run, "step.steps")}
  end

  @doc "Returns the share of the steps that are done, from 0; nil if it is unknown."
  @spec share(map) :: float | nil
  def share(run) do
    case progress(run) do
      {done, all} when done >= 0 and done <= @most and all >= 1 and all <= @most -> done / all
      _unknown -> nil
    end
  end

  @doc "Returns the seconds left to a running run, by its share and its time so far; nil if they are unknown."
  @spec left(map, float | nil) :: float | nil
  def left(run, share) do
    seconds = gauge(run, "step.seconds") || gauge(run, "update.seconds")

    if run.life == :running and is_number(seconds) and is_number(share) and share > 0 and
         abs(seconds) < @most,
       do: seconds / share * (1 - share)
  end

  @main ~w(validation.nll step.loss update.mean_return)

  @doc "Returns the figure by which a run is judged: a loss or a return."
  @spec main(map) :: number | nil
  def main(run), do: Enum.find_value(@main, &gauge(run, &1))

  @first ~w(validation.nll step.loss update.mean_return epoch.val_loss epoch.avg_loss)

  @doc "Returns the series of at least two points, the most telling first, with their names."
  @spec curves(map) :: [{String.t(), Slot.t()}]
  def curves(%{now: now}) do
    curves =
      for %{kind: :series, value: %{points: [_, _ | _]}} = slot <- now.slots,
          do: {String.replace_suffix(slot.name, ".curve", ""), slot}

    Enum.sort_by(curves, fn {name, _slot} -> rank(name) end)
  end

  defp rank(name), do: Enum.find_index(@first, &(&1 == name)) || length(@first)

  @doc "Returns the known gauges. Those of frequent events are first, those of the start last."
  @spec gauges(map) :: [Slot.t()]
  def gauges(%{now: now}) do
    gauges = for %{kind: :gauge, value: value} = slot <- now.slots, value != nil, do: slot
    Enum.sort_by(gauges, &order/1)
  end

  defp order(%{name: name}) do
    events = ~w(step update validation epoch evaluating)
    event = name |> String.split(".") |> hd()
    {Enum.find_index(events, &(&1 == event)) || 9, name}
  end
end
