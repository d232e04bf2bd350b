defmodule Sconce.Bench.Stress do
  @moduledoc false
  # Randomised load on a serving and on sessions, in which everything that can go wrong does: callers are
  # killed, batches panic or take long, the queue is full, deadlines pass, weights are swapped, the serving
  # ends and is started anew.

  alias Sconce.Bench.{Frames, Histogram, Machine, Stress.Caller, Stress.Far}
  alias Sconce.{Native, Policy, Serving}

  @name __MODULE__.Serving
  @spec_options [
    embedding: {:melee, layout: :packed},
    backbone: :gru,
    hidden_size: 64,
    num_layers: 1,
    head_hidden_size: 0
  ]
  # Fewer may wait than there are callers.
  @serving [max_queue: 6, max_batch: 4]
  @controls 4

  # {what is done to them, how often}
  @events [kill: 60, panic: 10, slow: 15, swap: 12, restart: 3]
  @turns Enum.flat_map(@events, fn {event, often} -> List.duplicate(event, often) end)
  @pause_ms 20
  @slow_ms 25
  # A call that takes so long does not come back.
  @hung_ms 10_000
  # What a call may take beyond its deadline.
  @grace_us 5_000

  @doc """
  Loads for `seconds` with so many `callers`, after a shorter time of the same, which is to fill all caches
  and pools. With `far: true` a second node serves as well, and is killed and started again. What is told:

    * `outcomes` - how often each kind of answer came of each kind of call, `[{{place, call, kind}, count}]`,
      the place `:near` or `:far`;
    * `events` - what was done to them;
    * `crashed`, `hung` - callers that got a wrong answer, or none;
    * `late` (of `near` and `far` calls), `control` - microseconds beyond the deadline, and of as long a wait
      for a timer, see `Sconce.Bench.Histogram.summary/2`; `above` is by more than 5 ms;
    * `before`, `after` - what there is of processes, sessions, threads and memory.
  """
  @spec run(keyword) :: map
  def run(opts) do
    Task.await(Task.async(fn -> both(Map.new(opts)) end), :infinity)
  end

  defp both(opts) do
    Process.flag(:trap_exit, true)
    _sequence = Frames.sequence()

    [policy | _] =
      policies = for seed <- 1..2, do: Machine.value!(Policy.init(@spec_options, seed: seed))

    far = if opts[:far], do: Far.start!()
    run = fn seconds -> policy |> new(opts.callers, far) |> load(policies, seconds) end
    run.(min(opts.seconds / 4, 10.0))
    before = footprint()
    report = run.(opts.seconds)
    Map.merge(report, %{before: before, after: footprint()})
  end

  defp new(policy, callers, far) do
    outcomes =
      for {{place, call}, kinds} <- Caller.table(), kind <- kinds, into: %{} do
        {{place, call, kind}, :counters.new(1, [:write_concurrency])}
      end

    %{
      name: @name,
      policy: policy,
      far: far,
      kills: :counters.new(1, []),
      callers: callers,
      start: System.monotonic_time(:millisecond),
      stop: :atomics.new(1, []),
      # Milliseconds since the start, -1 for nobody.
      began: :atomics.new(callers, []),
      outcomes: outcomes,
      late: %{near: Histogram.new(), far: Histogram.new()},
      control: Histogram.new()
    }
  end

  defp load(stress, policies, seconds) do
    state = %{
      stress: stress,
      policies: policies,
      serving: start_serving(stress, :worker),
      lane: :worker,
      callers: for(slot <- 1..stress.callers, into: %{}, do: {caller(stress, slot), slot}),
      others: keeper(stress) ++ for(_ <- 1..@controls, do: spawn_link(fn -> control(stress) end)),
      events: Map.new(@events, fn {event, _often} -> {event, 0} end),
      crashed: [],
      hung: []
    }

    state |> disturb(stress.start + round(1000 * seconds)) |> stop() |> report()
  end

  # Who starts and kills the other node. It reads its policy from a file.
  defp keeper(%{far: nil}), do: []

  defp keeper(stress) do
    keep = fn scratch ->
      checkpoint = Path.join(scratch, "policy.safetensors")
      :ok = Policy.save(stress.policy, checkpoint)
      Far.keep(stress, checkpoint, [name: @name, lane: :worker] ++ @serving)
    end

    [spawn_link(fn -> Frames.scratched(keep) end)]
  end

  defp start_serving(stress, lane) do
    options = [name: @name, policy: stress.policy, lane: lane]
    {:ok, pid} = Serving.start_link(options ++ @serving)
    pid
  end

  defp caller(stress, slot) do
    :atomics.put(stress.began, slot, -1)
    {pid, _monitor} = spawn_monitor(fn -> Caller.run(stress, slot) end)
    pid
  end

  # How late one is who asks nobody.
  defp control(stress) do
    ms = Enum.random(Caller.deadlines())
    start = System.monotonic_time(:microsecond)
    receive do: (:never -> :ok), after: (ms -> :ok)
    Histogram.add(stress.control, System.monotonic_time(:microsecond) - start - 1000 * ms)
    if :atomics.get(stress.stop, 1) == 0, do: control(stress)
  end

  defp disturb(state, until) do
    state = state |> bury(:rand.uniform(@pause_ms), true) |> watch()

    if System.monotonic_time(:millisecond) < until and state.hung == [] and state.crashed == [] do
      event = Enum.random(turns(state.lane))
      state = event(event, state)
      disturb(%{state | events: Map.update!(state.events, event, &(&1 + 1))}, until)
    else
      state
    end
  end

  # What is on a scheduler may not sleep.
  defp turns(:inline), do: @turns -- List.duplicate(:slow, @events[:slow])
  defp turns(:worker), do: @turns

  defp event(:kill, state) do
    {pid, _slot} = Enum.random(state.callers)
    Process.exit(pid, :kill)
    state
  end

  defp event(:panic, state), do: next_batch(state, nil)
  defp event(:slow, state), do: next_batch(state, :rand.uniform(@slow_ms))

  defp event(:swap, state) do
    :ok = Serving.swap(@name, Enum.random(state.policies))
    state
  end

  defp event(:restart, state) do
    case Enum.random([:stop, :drain, :kill]) do
      :stop -> :ok = Serving.stop(@name)
      :drain -> drain()
      :kill -> Process.exit(state.serving, :kill)
    end

    pid = state.serving
    receive do: ({:EXIT, ^pid, _reason} -> :ok)
    Process.sleep(:rand.uniform(@pause_ms))
    # Each of its kinds in turn.
    lane = if state.lane == :worker, do: :inline, else: :worker
    %{state | serving: start_serving(state.stress, lane), lane: lane}
  end

  defp drain do
    :ok = Serving.drain(@name, @hung_ms)
    :ok = Serving.stop(@name)
  end

  defp next_batch(state, sleep_ms) do
    {:ok, %{ref: ref}} = Serving.info(@name)
    :ok = Native.probe_batch(ref, sleep_ms)
    state
  end

  # The dead, for a while; others take their places where there shall be any.
  defp bury(state, ms, again?) do
    receive do
      {:DOWN, _monitor, :process, pid, reason} ->
        {slot, callers} = Map.pop!(state.callers, pid)
        state = note(%{state | callers: callers}, reason)

        state =
          if again?, do: put_in(state.callers[caller(state.stress, slot)], slot), else: state

        bury(state, ms, again?)
    after
      ms -> state
    end
  end

  defp note(state, reason) when reason in [:killed, :normal], do: state
  defp note(state, reason), do: %{state | crashed: [reason | state.crashed]}

  defp watch(%{stress: stress} = state) do
    now = System.monotonic_time(:millisecond) - stress.start

    hung =
      for {pid, slot} <- state.callers,
          began = :atomics.get(stress.began, slot),
          began >= 0 and now - began > @hung_ms,
          do: Process.info(pid, :current_stacktrace)

    %{state | hung: hung}
  end

  defp stop(%{stress: stress} = state) do
    :atomics.put(stress.stop, 1, 1)
    state = end_callers(state, System.monotonic_time(:millisecond) + @hung_ms)
    :ok = Serving.stop(@name)
    for pid <- [state.serving | state.others], do: receive(do: ({:EXIT, ^pid, _reason} -> :ok))
    state
  end

  defp end_callers(%{callers: callers} = state, _until) when callers == %{}, do: state

  defp end_callers(state, until) do
    if System.monotonic_time(:millisecond) < until do
      state |> bury(10, false) |> end_callers(until)
    else
      hung = for {pid, _slot} <- state.callers, do: Process.info(pid, :current_stacktrace)
      for {pid, _slot} <- state.callers, do: Process.exit(pid, :kill)
      %{state | hung: hung}
    end
  end

  defp report(%{stress: stress} = state) do
    outcomes = for {what, counter} <- stress.outcomes, do: {what, :counters.get(counter, 1)}

    %{
      outcomes: Enum.sort(outcomes),
      events: Map.put(state.events, :kill_node, :counters.get(stress.kills, 1)),
      crashed: state.crashed,
      hung: state.hung,
      late: Map.new(stress.late, fn {at, late} -> {at, Histogram.summary(late, @grace_us)} end),
      control: Histogram.summary(stress.control, @grace_us)
    }
  end

  @settle_ms 5_000

  # Sessions and threads end a little after their callers.
  defp footprint do
    settle(System.monotonic_time(:millisecond) + @settle_ms)
    for pid <- Process.list(), do: :erlang.garbage_collect(pid)

    %{
      processes: length(Process.list()),
      sessions: Native.session_count(),
      vm_bytes: :erlang.memory(:total),
      threads: status("Threads"),
      resident_bytes: with(kb when is_integer(kb) <- status("VmRSS"), do: 1024 * kb)
    }
  end

  defp settle(until) do
    Process.sleep(200)

    if Native.session_count() > 0 and System.monotonic_time(:millisecond) < until,
      do: settle(until)
  end

  # Nil where the system does not tell.
  defp status(field) do
    with {:ok, text} <- File.read("/proc/self/status"),
         [_, number] <- Regex.run(~r/#{field}:\s+(\d+)/, text) do
      String.to_integer(number)
    else
      _ -> nil
    end
  end
end
