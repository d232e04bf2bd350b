defmodule Sconce.Run.Again do
  @moduledoc false
  # What follows the error of a run, by the table of `Sconce.Pressure`: another start from the last saved state, perhaps on
  # another device, or the end.

  alias Sconce.{Error, Pressure}

  # These are of other places: a run has no size of its own here, no cold tier, and no unit of work to leave out.
  @never [:smaller, :cold, :skip]
  # Events after which the folder of a run has a state of this run.
  @saving [:checkpoint, :saved, :resumed]

  @doc """
  Decides by the `pressure` of a run, which is nil for a run that never starts again. `seen` are its events so far by name,
  and `begun?` says whether the failed attempt has begun its work.

  Returns `{:again, wait_ms, saved?, device, event, pressure}`, or `{:over, event, pressure}` with an event or nil.
  """
  @spec decide(Pressure.t() | nil, Error.t(), map, boolean) ::
          {:again, non_neg_integer, boolean, term, map, Pressure.t()}
          | {:over, map | nil, Pressure.t() | nil}
  def decide(pressure, error, seen, begun?) do
    case pressure && Pressure.failed(error) do
      nil ->
        {:over, nil, pressure}

      failed ->
        decided(pressure, failed, error, Enum.any?(@saving, &is_map_key(seen, &1)), begun?)
    end
  end

  defp decided(pressure, failed, error, saved?, begun?) do
    # Without a saved state, or with an error at the start, the same again would be the same error.
    without = if saved? and begun?, do: @never, else: [:retry | @never]
    {decision, pressure} = Pressure.decide(pressure, failed, without)
    event = Pressure.event(pressure, failed, decision, error)

    case decision do
      {:retry, wait_ms} -> {:again, wait_ms, saved?, device(pressure.place), event, pressure}
      {:other_device, device} -> {:again, 0, saved?, device, event, pressure}
      :stop -> {:over, event, pressure}
    end
  end

  defp device({:device, device}), do: device
  defp device(_none), do: nil

  @doc "The event of a decision that the native side has made and reported by its own event."
  @spec native(Pressure.t() | nil, map) :: map | nil
  def native(%Pressure{} = pressure, %{event: :out_of_memory, micro_batch: windows}),
    do: Pressure.event(pressure, :memory, {:smaller, windows}, nil, by: :native)

  def native(%Pressure{} = pressure, %{event: :grown, micro_batch: windows}),
    do: Pressure.event(pressure, nil, {:larger, windows}, nil, by: :native)

  def native(_pressure, _event), do: nil
end
