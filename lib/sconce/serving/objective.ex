defmodule Sconce.Serving.Objective do
  @moduledoc false
  # The latency objective of a serving: its process looks at the latencies of the last window, and moves the limit of the gate.
  # A second controller moves the largest batch, by the time of the batch in flight that a request meets.

  alias Sconce.{Native, Pressure}
  alias Sconce.Pressure.Aimd
  alias Sconce.Serving.Gate

  # Requests of a window at least: fewer have no p99.
  @least 20

  @enforce_keys [:gate, :aimd, :batch, :seen, :window_ms, :pressure]
  defstruct @enforce_keys

  @type t :: %__MODULE__{
          gate: Gate.t(),
          aimd: Aimd.t(),
          batch: Aimd.t(),
          seen: [non_neg_integer],
          window_ms: pos_integer,
          pressure: Pressure.t()
        }

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

      # A request waits for the batch in flight and for its own.
      largest = options[:max_batch]
      own = [objective: options[:objective_ms] / 2, floor: step, ceiling: largest, increase: step]
      gate = Gate.new(serving, aimd.size)
      window_ms = options[:objective_window_ms]
      seen = Gate.counts(gate)

      %__MODULE__{
        gate: gate,
        aimd: aimd,
        batch: Aimd.new(own),
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

  @doc "Bounds the batch, which begins anew at its bound."
  @spec most(t | nil, pos_integer) :: t | nil
  def most(nil, _max_batch), do: nil

  def most(%__MODULE__{batch: batch} = objective, max_batch) do
    # The first floor is the step.
    floor = min(batch.increase, max_batch)
    %{objective | batch: %{batch | floor: floor, ceiling: max_batch, size: max_batch}}
  end

  @doc "Looks at the window, and tells the moves of the limit and of the batch."
  @spec look(t) :: t
  def look(%__MODULE__{gate: gate, pressure: pressure} = objective) do
    {move, aimd, seen} = Gate.follow(gate, objective.aimd, objective.seen, @least)
    if move != :same, do: Pressure.tell(pressure, event(pressure, move, aimd, "p99"))
    # A window with too few latencies goes on.
    batch = if seen == objective.seen, do: objective.batch, else: batch(objective)
    %{objective | aimd: aimd, batch: batch, seen: seen}
  end

  defp batch(%{gate: %{serving: serving}, batch: batch, pressure: pressure}) do
    with {:ok, {met_ms, largest}} when largest > 0 <- Native.serving_batches(serving),
         {move, moved} when move != :same <- Aimd.observe(batch, met_ms, largest),
         {:ok, true} <- Native.serving_limit(serving, moved.size) do
      Pressure.tell(pressure, event(pressure, move, moved, "batch in flight"))
      moved
    else
      {:same, same} -> same
      _none -> batch
    end
  end

  defp event(pressure, move, aimd, figure) do
    failed = if move == :smaller, do: :deadline
    reason = "#{figure} of #{Float.round(aimd.last, 2)} ms, objective #{aimd.objective} ms"
    %{Pressure.event(pressure, failed, {move, aimd.size}, nil) | reason: reason}
  end
end
