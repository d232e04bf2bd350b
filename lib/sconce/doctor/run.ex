defmodule Sconce.Doctor.Run do
  @moduledoc false
  # Finds what slowed a training run down, from its report or its saved state, and the option that changes that.

  alias Sconce.Figures

  @typedoc "The option to change, `mend`, is nil if no change would help."
  @type finding :: %{name: String.t(), found: String.t(), mend: String.t() | nil}

  # Below this share of the run's time a cause is too small to matter.
  @share 0.05

  @doc "Returns the findings from a report of `Sconce.Trainer.report/1`, or from the same fields of a saved state."
  @spec findings(map, pos_integer) :: [finding]
  def findings(run, processors \\ System.schedulers()) do
    Enum.reject(
      [
        data(run),
        pauses(run),
        saves(run[:saves], run.options),
        threads(run.options, processors),
        memory(run),
        precision(run),
        overflows(run),
        curve(run)
      ],
      &is_nil/1
    )
  end

  defp finding(name, found, mend \\ nil), do: %{name: name, found: found, mend: mend}

  defp data(%{history: history, options: options}) do
    case for %{data_wait: wait} when is_number(wait) <- history, do: wait do
      [] ->
        finding("data", "nothing is known yet: no step was recorded")

      waits ->
        share = Enum.sum(waits) / length(waits)
        mend = if share > @share, do: more_data(options)
        finding("data", "steps waited #{percent(share)} of their time for data", mend)
    end
  end

  defp more_data(%{prefetch: 0}), do: "prefetch: 2"

  defp more_data(%{loader_threads: threads, prefetch: prefetch}),
    do: "loader_threads: #{threads + 1}, or prefetch: #{2 * prefetch}"

  # The median time between two points, times the number of intervals, estimates the time of the steps. The remaining
  # time is validation and saving.
  defp pauses(%{history: history, options: options}) when length(history) > 2 do
    times = Enum.map(history, & &1.seconds)
    steps = times |> Enum.zip(tl(times)) |> Enum.map(fn {a, b} -> b - a end) |> Enum.sort()
    usual = Enum.at(steps, div(length(steps), 2))
    share = max(0.0, 1 - usual * length(steps) / max(List.last(times) - hd(times), 1.0e-9))
    found = "validation and saving took about #{percent(share)} of the time"

    finding("pauses", found, if(share > 0.2, do: fewer_pauses(options)))
  end

  defp pauses(_short), do: nil

  defp fewer_pauses(%{validate_every: nil, validation_stride: stride}),
    do: "validation_stride: #{2 * stride}"

  defp fewer_pauses(%{validate_every: steps, validation_stride: stride}),
    do: "validate_every: #{2 * steps}, or validation_stride: #{2 * stride}"

  defp saves(%{failed: [_ | _] = failed}, _options),
    do:
      finding(
        "saving",
        "failed: #{hd(failed).reason}",
        "free some disk, or choose another out: folder"
      )

  defp saves(%{wait_seconds: wait, seconds: seconds}, options)
       when wait > 1 and wait > seconds / 2,
       do:
         finding(
           "saving",
           "the run waited #{Float.round(wait, 1)} s for the disk",
           "validate_every: a larger number, or save_minutes: #{3 * (options[:save_minutes] || 5)}"
         )

  defp saves(_saved, _options), do: nil

  defp threads(%{threads: threads}, processors) when is_integer(threads) and threads < processors,
    do:
      finding(
        "threads",
        "#{Figures.counted(threads, "thread")} of #{processors} processors",
        "threads: #{processors}"
      )

  defp threads(%{threads: threads}, processors),
    do: finding("threads", "#{threads || processors} of #{processors} processors")

  defp memory(%{micro_batch: windows, options: %{batch_size: batch}}) when windows < batch do
    finding(
      "memory",
      "#{Figures.counted(windows, "window")} of a batch of #{batch} at a time, to keep within the memory",
      "a higher memory_limit, a smaller window_size, or gradient_checkpoint: true"
    )
  end

  defp memory(_whole), do: nil

  defp precision(%{precision: used, options: %{precision: asked}}) when used != asked,
    do:
      finding(
        "precision",
        "computed in #{used}: #{asked} is not faster on this machine",
        "precision: :#{used}"
      )

  defp precision(_as_asked), do: nil

  # A few overflows at the start are normal, because dynamic loss scaling starts too high.
  defp overflows(%{skipped_updates: n, steps: steps}) when n > 20 and n > steps / 100,
    do:
      finding(
        "f16",
        "#{Figures.counted(n, "update")} skipped whose gradient overflowed",
        "precision: :bf16 where it is faster, else :f32"
      )

  defp overflows(_none), do: nil

  defp curve(%{stopped: :early}),
    do:
      finding(
        "end",
        "stopped early: no better validation within patience",
        "patience: a larger number"
      )

  defp curve(%{stopped: :budget}),
    do: finding("end", "stopped by max_minutes", "max_minutes: a larger number")

  defp curve(%{best_step: best, steps: steps}) when is_integer(best) and best < steps / 2 do
    finding(
      "overfitting",
      "the best validation was at step #{Figures.grouped(best)} of #{Figures.grouped(steps)}",
      "more games, dropout:, weight_decay: or mirror:"
    )
  end

  defp curve(_run), do: nil

  defp percent(share), do: "#{Float.round(100 * share, 1)} %"
end
