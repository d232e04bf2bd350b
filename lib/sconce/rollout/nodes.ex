defmodule Sconce.Rollout.Nodes do
  @moduledoc false
  # The answers of a rollout to the couriers of other nodes. The state is that of `Sconce.Rollout`.

  alias Sconce.{Error, Leader, Native}
  alias Sconce.Native.Call
  alias Sconce.Rollout.Window

  require Logger

  # Other nodes whose last message is remembered.
  @senders 10_000

  @doc """
  Takes segments, of which some may find the queue full. The answer is the number of the first segment that is not taken
  yet.
  """
  @spec segments(map, reference, integer, integer, [binary]) :: {:reply, term, map}
  def segments(state, sender, base, first, segments),
    do: leading(state, &offered(&1, sender, base, first, segments))

  @doc "The newest weights, unless the other node has them."
  @spec weights(map, term) :: {:reply, term, map}
  def weights(state, known), do: leading(state, &newest(&1, known))

  @doc "Keeps an error of the weights. The first of equal errors is logged."
  @spec failed(map, Error.t()) :: map
  def failed(%{error: error} = state, error), do: state

  def failed(state, error) do
    Logger.warning("weights of a rollout: #{Exception.message(error)}")
    %{state | error: error}
  end

  # A learner that no longer leads answers no other node: their segments are for the next one.
  defp leading(%{leader: nil} = state, answer), do: answer.(state)

  defp leading(state, answer) do
    with {:error, error} <- Leader.term(state.leader),
         do: {:reply, {:error, error}, %{state | refused: state.refused + 1}},
         else: ({:ok, _term} -> answer.(state))
  end

  defp offered(state, sender, base, first, segments) do
    {new, number} = Window.received(state.senders[sender], base, first, segments)

    case new == [] || Native.inbox_offer(state.inbox, new) do
      true -> {:reply, {:next, number}, state}
      {:ok, taken} -> {:reply, {:next, number + taken}, expecting(state, sender, number + taken)}
      error -> {:reply, error, state}
    end
  end

  defp newest(state, known) do
    case Native.inbox_newest(state.inbox) do
      {:ok, {version, ref}} when version != known ->
        state = packed(state, version, ref)
        {:reply, state.packed || :known, state}

      _same ->
        {:reply, :known, state}
    end
  end

  defp expecting(state, sender, number),
    do: %{state | senders: remembered(state.senders, sender, number)}

  defp remembered(senders, sender, last) when map_size(senders) < @senders,
    do: Map.put(senders, sender, last)

  # Senders that have ended are not known as such; the others send again.
  defp remembered(_senders, sender, last), do: %{sender => last}

  # The bytes of a version are made once for all nodes.
  defp packed(%{packed: {version, _bytes}} = state, version, _ref), do: state

  defp packed(state, version, ref) do
    case Call.run(&Native.policy_bytes(ref, &1)) do
      {:ok, bytes} -> %{state | packed: {version, bytes}}
      {:error, error} -> failed(state, error)
    end
  end
end
