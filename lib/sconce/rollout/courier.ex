defmodule Sconce.Rollout.Courier do
  @moduledoc false
  # Carries the segments of a rollout to its learner on another node, and the learner's weights back. It is a process of
  # its own, so that a node that is cut off waits alone; it is linked to its rollout.

  alias Sconce.{Error, Native, Pressure}
  alias Sconce.Native.Call
  alias Sconce.Rollout.Window

  # Segments that are taken from the inbox at once.
  @at_once 64
  # Milliseconds for which a call waits.
  @call_ms 10_000

  @doc """
  Starts a courier. `unsent` is a counter of the segments that it holds. `options` are those of `Sconce.Rollout`, with
  `:pressure` as a `Sconce.Pressure`.
  """
  @spec start_link(reference, GenServer.server(), keyword, :counters.counters_ref()) :: pid
  def start_link(inbox, learner, options, unsent) do
    state = %{
      inbox: inbox,
      learner: learner,
      # Names the sender of its segments.
      ref: make_ref(),
      version: nil,
      window: Window.new(options[:batch_bytes], options[:in_flight]),
      flights: :queue.new(),
      mean: nil,
      poll_ms: options[:poll_ms],
      pressure: options[:pressure],
      unsent: unsent
    }

    rollout = self()
    # A link alone would leave the courier behind when the rollout ends normally.
    spawn_link(fn -> loop(state, Process.monitor(rollout)) end)
  end

  defp loop(state, rollout) do
    state = exchange(state)
    :counters.put(state.unsent, 1, Window.held(state.window))

    receive do
      {:DOWN, ^rollout, :process, _pid, _reason} -> :ok
    after
      state.poll_ms -> loop(state, rollout)
    end
  end

  defp exchange(state) do
    with {:ok, state} <- weights(state), {:ok, state} <- carry(state) do
      {_same, pressure} = Pressure.went_well(state.pressure)
      %{state | pressure: pressure}
    else
      {:lost, state} -> lost(state)
    end
  end

  # The learner's node is cut off, or its rollout does not exist yet. Segments stay.
  defp lost(state) do
    # An answer that comes later is dropped.
    for {request, _after_it} <- :queue.to_list(state.flights),
        do: :gen_server.receive_response(request, 0)

    state = %{state | flights: :queue.new(), window: Window.back(state.window)}
    :counters.put(state.unsent, 1, Window.held(state.window))
    error = %Error{kind: :deadline, op: :rollout, details: late()}
    {decision, pressure} = Pressure.decide(state.pressure, :deadline)
    Pressure.tell(pressure, Pressure.event(pressure, :deadline, decision, error))

    case decision do
      {:retry, wait_ms} -> Process.sleep(wait_ms)
      _end -> exit({:shutdown, error})
    end

    %{state | pressure: pressure}
  end

  defp late, do: %{what: "the answer of the learner", deadline_ms: @call_ms}

  defp weights(state) do
    with {version, bytes} when is_binary(bytes) <-
           GenServer.call(state.learner, {:weights, state.version}, @call_ms),
         {:ok, ref} <- Call.run(&Native.policy_of_bytes(&1, bytes)),
         :ok <- Native.inbox_publish(state.inbox, ref) do
      {:ok, %{state | version: version}}
    else
      :known -> {:ok, state}
      {:error, %Error{}} -> {:ok, state}
    end
  catch
    :exit, _reason -> {:lost, state}
  end

  # Sends all that is there, while the learner takes it.
  defp carry(state) do
    state = collected(state)

    case Window.next(state.window, true) do
      {{first, segments}, window} ->
        message = {:segments, state.ref, window.base, first, segments}
        flight = {:gen_server.send_request(state.learner, message), first + length(segments)}
        carry(%{state | window: window, flights: :queue.in(flight, state.flights)})

      nil ->
        if :queue.is_empty(state.flights), do: {:ok, state}, else: answer(state)
    end
  end

  # Waits for the answer to the oldest message.
  defp answer(state) do
    {{:value, {request, after_it}}, flights} = :queue.out(state.flights)

    case :gen_server.receive_response(request, @call_ms) do
      {:reply, {:next, number}} ->
        state = %{state | flights: flights, window: Window.answered(state.window, number)}
        # A full queue, or a gap after one: the rest goes again at the next look.
        if number < after_it, do: stalled(state), else: carry(state)

      {:reply, {:error, %Error{}}} ->
        stalled(%{state | flights: flights, window: Window.answered(state.window, 0)})

      _lost ->
        {:lost, %{state | flights: flights}}
    end
  end

  # Takes the answers to all messages that are on their way, and goes back.
  defp stalled(state) do
    case :queue.out(state.flights) do
      {:empty, _flights} ->
        {:ok, %{state | window: Window.back(state.window)}}

      {{:value, {request, _after_it}}, flights} ->
        state = %{state | flights: flights}

        case :gen_server.receive_response(request, @call_ms) do
          {:reply, {:next, number}} ->
            stalled(%{state | window: Window.answered(state.window, number)})

          {:reply, _error} ->
            stalled(state)

          _lost ->
            {:lost, state}
        end
    end
  end

  # Takes segments from the inbox while there is room. The others are displaced by newer ones when the inbox is full.
  defp collected(%{window: window, mean: mean} = state) do
    room = Window.room(window)
    most = if mean, do: min(div(room, mean) + 1, @at_once), else: @at_once

    with true <- room > 0, {:ok, [_ | _] = segments} <- Native.inbox_take(state.inbox, most) do
      bytes = segments |> Enum.map(&byte_size/1) |> Enum.sum()
      mean = max(div(bytes, length(segments)), 1)
      state = %{state | window: Window.add(window, segments), mean: mean}
      if length(segments) == most, do: collected(state), else: state
    else
      _none -> state
    end
  end
end
