defmodule Sconce.Serving.Objective do
  @moduledoc false
  # The latency objective of a serving: its process looks at the latencies of the last window, and moves the limit of the gate.

  alias Sconce.Pressure
  alias Sconce.Pressure.Aimd
  alias Sconce.Serving.Gate

  # Requests of a window at least: fewer have no p99.
  @least 20

  @enforce_keys [:gate, :aimd, :seen, :window_ms, :pressure]
  defstruct @enforce_keys

  @type t :: %__MODULE__{gate: Gate.t(), aimd: Aimd.t(), seen: [non_neg_integer]}

  @doc "Returns the objective of a serving with these options, nil without one."
  @spec new(reference, keyword) :: t | nil
  def new(serving, options) do
    if options[:objective_ms] do
      most = options[:max_queue]
      batch = min(options[:max_batch], most)
      # Other work of the machine shall not close the serving.
      step = max(div(batch, 16), 1)

      aimd =
        Aimd.new(
          objective: options[:objective_ms],
          floor: step,
          ceiling: most,
          size: batch,
          increase: step
        )

      gate = Gate.new(serving, aimd.size)
      window_ms = options[:objective_window_ms]
      seen = Gate.counts(gate)

      %__MODULE__{
        gate: gate,
        aimd: aimd,
        seen: seen,
        window_ms: window_ms,
        pressure: options[:pressure]
      }
    end
  end

  @doc "Sends the process of the serving `{:objective, serving}` after the window."
  @spec later(t | nil) :: t | nil
  def later(nil), do: nil

  def later(%__MODULE__{gate: %{serving: serving}, window_ms: window_ms} = objective) do
    Process.send_after(self(), {:objective, serving}, window_ms)
    objective
  end

  @doc "Looks at the window, and tells a move of the limit."
  @spec look(t) :: t
  def look(%__MODULE__{gate: gate, pressure: pressure} = objective) do
    {move, aimd, seen} = Gate.follow(gate, objective.aimd, objective.seen, @least)
    if move != :same, do: Pressure.tell(pressure, event(pressure, move, aimd))
    %{objective | aimd: aimd, seen: seen}
  end

  defp event(pressure, move, aimd) do
    failed = if move == :smaller, do: :deadline
    reason = "p99 of #{Float.round(aimd.last, 2)} ms, objective #{aimd.objective} ms"
    %{Pressure.event(pressure, failed, {move, aimd.size}, nil) | reason: reason}
  end
end
