defmodule Sconce.Bench.Stress.Caller do
  @moduledoc false
  # One of many processes that make random calls, and may be killed at any moment.

  alias Sconce.Bench.{Frames, Histogram}
  alias Sconce.{Error, Serving, Session}

  # Milliseconds; `nil` waits without a limit.
  @deadlines [0, 1, 2, 4, 8, 16, 50, nil]
  @pause_ms 10

  # {relative frequency, allowed answers}
  @calls [
    act: {70, ~w(ok busy deadline panic cancelled unavailable non_finite)a},
    forward: {8, ~w(ok busy deadline panic cancelled unavailable not_found non_finite)a},
    snapshot: {6, ~w(ok busy)a},
    restore: {6, ~w(ok busy)a},
    reset: {4, ~w(ok busy)a},
    close: {6, ~w(ok)a}
  ]
  @opening ~w(ok busy cancelled unavailable not_found)a
  @turns Enum.flat_map(@calls, fn {call, {often, _kinds}} -> List.duplicate(call, often) end)
  # Places where decisions are computed, all on the near node. Repeats raise the frequency.
  @places ~w(serving serving serving inline worker)a
  # Additional answers if the other node is suspended or gone.
  @far ~w(unavailable cancelled busy deadline)a

  @doc "The deadlines in milliseconds."
  def deadlines, do: Enum.filter(@deadlines, & &1)

  @doc "Calls and their allowed answers, such as `{{:near, :act}, kinds}`. The far node may be gone."
  def table do
    near = [{:open, @opening} | for({call, {_often, kinds}} <- @calls, do: {call, kinds})]

    for {call, kinds} <- near,
        {place, more} <- [near: [], far: @far],
        do: {{place, call}, Enum.uniq(kinds ++ more)}
  end

  @doc "Makes calls until `stress.stop` is set. A wrong answer raises."
  def run(stress, slot) do
    :rand.seed(:exsss)
    turn(stress, slot, nil)
  end

  defp turn(stress, slot, held) do
    if :atomics.get(stress.stop, 1) == 0 do
      held = if held, do: call(Enum.random(@turns), held), else: open(stress, slot)
      Process.sleep(:rand.uniform(@pause_ms) - 1)
      turn(stress, slot, held)
    end
  end

  defp open(stress, slot) do
    at = Enum.random(if stress.far, do: [:far, :far | @places], else: @places)
    place = if at == :far, do: :far, else: :near
    # Placeholder until there is a session.
    held = %{stress: stress, slot: slot, place: place, session: nil, frames: 0, kept: nil}

    opened =
      timed(held, :open, nil, fn ->
        if at in [:far, :serving],
          do: Serving.open(serving(held)),
          else: Session.open(stress.policy, lane: at)
      end)

    with {:ok, session} <- opened, do: %{held | session: session}, else: (_refused -> nil)
  end

  defp serving(%{place: :near, stress: stress}), do: stress.name
  defp serving(%{place: :far, stress: stress}), do: {stress.name, stress.far}

  defp call(:act, held) do
    deadline = Enum.random(@deadlines)
    opts = if deadline, do: [deadline_ms: deadline], else: []

    case timed(held, :act, deadline, fn -> Session.act(held.session, frame(), opts) end) do
      {:ok, %{frame: frame}} ->
        # The session made each answered decision exactly once, and no other decision.
        frame == held.frames + 1 || raise "decision #{frame} after #{held.frames}"
        %{held | frames: frame}

      # The serving has ended.
      {:error, %Error{kind: kind}} when kind in [:unavailable, :cancelled] ->
        call(:close, held)

      {:error, _error} ->
        held
    end
  end

  defp call(:forward, held) do
    deadline = Enum.random(@deadlines)
    opts = [deadline_ms: deadline]

    timed(held, :forward, deadline, fn ->
      Serving.forward(serving(held), [[frame()]], nil, opts)
    end)

    held
  end

  defp call(:snapshot, held) do
    case timed(held, :snapshot, nil, fn -> Session.snapshot(held.session) end) do
      {:ok, snapshot} -> %{held | kept: {snapshot, held.frames}}
      {:error, _error} -> held
    end
  end

  defp call(:restore, %{kept: nil} = held), do: held

  defp call(:restore, %{kept: {snapshot, frames}} = held) do
    case timed(held, :restore, nil, fn -> Session.restore(held.session, snapshot) end) do
      :ok -> %{held | frames: frames}
      {:error, _error} -> held
    end
  end

  defp call(:reset, held) do
    case timed(held, :reset, nil, fn -> Session.reset(held.session) end) do
      :ok -> %{held | frames: 0}
      {:error, _error} -> held
    end
  end

  defp call(:close, held) do
    timed(held, :close, nil, fn -> Session.close(held.session) end)
    nil
  end

  defp frame do
    {frames, _origin} = Frames.sequence()
    elem(frames, :rand.uniform(tuple_size(frames)) - 1)
  end

  # The start is recorded for `Sconce.Bench.Stress`, which detects hung calls.
  defp timed(%{stress: stress, slot: slot, place: place}, call, deadline, fun) do
    :atomics.put(stress.began, slot, System.monotonic_time(:millisecond) - stress.start)
    start = System.monotonic_time(:microsecond)
    answer = fun.()
    took = System.monotonic_time(:microsecond) - start
    :atomics.put(stress.began, slot, -1)
    if deadline, do: Histogram.add(stress.late[place], took - 1000 * deadline)
    counter = stress.outcomes[{place, call, kind(answer)}]
    counter || raise "#{place} #{call}: #{inspect(answer)}"
    :counters.add(counter, 1, 1)
    answer
  end

  defp kind({:error, %Error{kind: kind}}), do: kind
  defp kind({:ok, _value}), do: :ok
  defp kind(:ok), do: :ok
end
