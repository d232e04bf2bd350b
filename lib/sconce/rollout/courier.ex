defmodule Sconce.Rollout.Courier do
  @moduledoc false
  # Carries the segments of a rollout to its learner on another node, and the learner's weights back. It is a process of
  # its own, so that a node that is cut off waits alone; it is linked to its rollout.

  alias Sconce.{Error, Native}
  alias Sconce.Native.Call

  # Segments of one message.
  @at_once 64
  # Milliseconds for which a call waits.
  @call_ms 10_000
  # Milliseconds of rest after a call that failed.
  @rest_ms 500

  @doc "Starts a courier. `unsent` is a counter of the segments that it holds."
  @spec start_link(reference, GenServer.server(), pos_integer, :counters.counters_ref()) :: pid
  def start_link(inbox, learner, poll_ms, unsent) do
    # Names the sender of its segments.
    state = %{inbox: inbox, learner: learner, ref: make_ref(), version: nil, number: 0, held: []}
    spawn_link(fn -> loop(Map.merge(state, %{poll_ms: poll_ms, unsent: unsent})) end)
  end

  defp loop(state) do
    state = exchange(state)
    :counters.put(state.unsent, 1, length(state.held))
    Process.sleep(state.poll_ms)
    loop(state)
  end

  defp exchange(state) do
    state |> weights() |> segments()
  catch
    # The learner's node is cut off, or its rollout does not exist yet. Segments stay.
    :exit, _reason ->
      Process.sleep(@rest_ms)
      state
  end

  defp weights(state) do
    with {version, bytes} when is_binary(bytes) <-
           GenServer.call(state.learner, {:weights, state.version}, @call_ms),
         {:ok, ref} <- Call.run(&Native.policy_of_bytes(&1, bytes)),
         :ok <- Native.inbox_publish(state.inbox, ref) do
      %{state | version: version}
    else
      :known -> state
      {:error, %Error{}} -> state
    end
  end

  defp segments(%{held: []} = state) do
    case Native.inbox_take(state.inbox, @at_once) do
      {:ok, [_ | _] = held} -> sent(%{state | held: held, number: state.number + 1})
      _none -> state
    end
  end

  defp segments(state), do: sent(state)

  # A message that is repeated has the number of the first one, so that its segments are learned from once.
  defp sent(state) do
    case GenServer.call(state.learner, {:segments, state.ref, state.number, state.held}, @call_ms) do
      {:ok, taken} -> %{state | held: Enum.drop(state.held, taken), number: state.number + 1}
      {:error, %Error{}} -> state
    end
  catch
    :exit, _reason ->
      :counters.put(state.unsent, 1, length(state.held))
      Process.sleep(@rest_ms)
      state
  end
end
