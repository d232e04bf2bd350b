defmodule Sconce.Bench.Stress do
  @moduledoc false
  # A randomised load on a serving and on sessions, with all known failures. Callers are killed during and
  # between calls. Batches panic or take long. The queue is full. Deadlines pass. Weights are swapped for valid
  # weights, for weights of another policy, and for weights whose sums overflow. Processes get unknown
  # messages. The serving ends and is started again. Training runs proceed concurrently.

  alias Sconce.Bench.{Footprint, Frames, Histogram, Machine}
  alias Sconce.Bench.Stress.{Caller, Far, Runs, Stray}
  alias Sconce.{Error, Native, Policy, Serving}

  @name __MODULE__.Serving
  @spec_options [
    embedding: {:melee, layout: :packed},
    backbone: :gru,
    hidden_size: 64,
    num_layers: 1,
    head_hidden_size: 0
  ]
  # The queue is shorter than the number of callers, so that it is sometimes full.
  @serving [max_queue: 6, max_batch: 4]
  @controls 4

  # {event, relative frequency}
  @events [kill: 40, kill_in_call: 20, panic: 10, slow: 15, swap: 12, swap_other: 4] ++
            [swap_failing: 3, stray: 6, restart: 3]
  @turns Enum.flat_map(@events, fn {event, often} -> List.duplicate(event, often) end)
  @pause_ms 20
  @slow_ms 25
  # A call that takes this long counts as hung.
  @hung_ms 10_000
  # Sessions and threads end shortly after their callers.
  @settle_ms 10_000
  # Allowed microseconds beyond a deadline.
  @grace_us 5_000

  @doc """
  Runs the load for `seconds` with `callers` callers, after a shorter warm-up that fills all caches and
  pools. With `far: true` a second node also serves, and is suspended, killed and restarted. With
  `runs: true` training runs proceed concurrently. The report has:

    * `outcomes` - counts of the answers by kind, `[{{place, call, kind}, count}]`; the place is `:near` or
      `:far`, and `:near` for the call `:train`;
    * `events` - counts of the events;
    * `crashed`, `hung` - callers that got a wrong answer, or none;
    * `late` (for `near` and `far` calls) - microseconds beyond the deadline, and `control`, the same for
      timers of equal length, see `Sconce.Bench.Histogram.summary/2`; `above` counts those over 5 ms;
    * `before`, `after` - resources, see `Sconce.Bench.Footprint`; `left` holds the fields that have grown;
    * `far_sessions` - sessions left on the other node, nil if they could not be counted.
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
    others = %{other: other!(), failing: failing!(policy)}
    run = &(policy |> new(opts, far) |> load(Map.put(others, :same, policies), &1))
    run.(min(opts.seconds / 4, 10.0))
    rest(System.monotonic_time(:millisecond) + @settle_ms)
    before = Footprint.take()
    report = run.(opts.seconds)
    now = Footprint.settle(before, @settle_ms)
    Map.merge(report, %{before: before, after: now, left: Footprint.left(before, now)})
  end

  # Waits until the sessions of ended callers are gone.
  defp rest(until) do
    Process.sleep(200)

    if Native.session_count() > 0 and System.monotonic_time(:millisecond) < until,
      do: rest(until)
  end

  # A policy that this serving refuses.
  defp other!, do: Machine.value!(Policy.init(Keyword.put(@spec_options, :hidden_size, 32)))

  # Finite weights whose sums overflow.
  defp failing!(policy) do
    Frames.scratched(fn dir ->
      path = Path.join(dir, "policy.safetensors")
      :ok = Policy.save(policy, path)
      <<length::64-little, header::binary-size(length), numbers::binary>> = File.read!(path)
      # Renames the digest's key, because the digest no longer matches.
      header = String.replace(header, "sha256", "sha25_")
      numbers = :binary.copy(<<3.0e38::float-32-little>>, div(byte_size(numbers), 4))
      File.write!(path, [<<length::64-little>>, header, numbers])
      Machine.value!(Policy.load(path))
    end)
  end

  defp new(policy, %{callers: callers} = opts, far) do
    table = Map.put(Map.new(Caller.table()), {:near, :train}, Runs.kinds())

    outcomes =
      for {{place, call}, kinds} <- table, kind <- kinds, into: %{} do
        {{place, call, kind}, :counters.new(1, [:write_concurrency])}
      end

    %{
      name: @name,
      policy: policy,
      far: far,
      runs: opts[:runs],
      kills: :counters.new(1, []),
      stills: :counters.new(1, []),
      # Sessions on the other node; -1 if they were not counted.
      far_left: :atomics.new(1, []),
      far_serves: :atomics.new(1, []),
      callers: callers,
      start: System.monotonic_time(:millisecond),
      stop: :atomics.new(1, []),
      # Milliseconds since the start at which a caller began its call; -1 for none.
      began: :atomics.new(callers, []),
      outcomes: outcomes,
      late: %{near: Histogram.new(), far: Histogram.new()},
      control: Histogram.new()
    }
  end

  defp load(stress, policies, seconds) do
    :atomics.put(stress.far_left, 1, -1)

    state = %{
      stress: stress,
      policies: policies,
      serving: start_serving(stress, :worker),
      lane: :worker,
      callers: for(slot <- 1..stress.callers, into: %{}, do: {caller(stress, slot), slot}),
      others: others(stress),
      events: Map.new(@events, fn {event, _often} -> {event, 0} end),
      crashed: [],
      hung: []
    }

    await_far(stress)
    until = System.monotonic_time(:millisecond) + round(1000 * seconds)
    state |> disturb(until) |> stop() |> report()
  end

  # The VM of the other node takes seconds to start, which do not count as load.
  defp await_far(%{far: nil}), do: :ok

  defp await_far(stress) do
    if :atomics.get(stress.far_serves, 1) == 0 do
      Process.sleep(@pause_ms)
      await_far(stress)
    end
  end

  defp others(stress) do
    runs = if stress.runs, do: [spawn_link(fn -> Runs.keep(stress) end)], else: []
    keeper(stress) ++ runs ++ for(_ <- 1..@controls, do: spawn_link(fn -> control(stress) end))
  end

  # Starts and kills the other node, which loads its policy from a file.
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

  # The control: lateness of a process that makes no calls.
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
      turns = turns(state.lane)
      # Each kind of event happens at least once, even in a short time.
      unseen = for event <- Enum.uniq(turns), state.events[event] == 0, do: event
      event = Enum.random(if unseen == [], do: turns, else: unseen)
      state = event(event, state)
      disturb(%{state | events: Map.update!(state.events, event, &(&1 + 1))}, until)
    else
      state
    end
  end

  # An inline serving computes on a scheduler, which must not sleep, so `:slow` is left out.
  defp turns(:inline), do: @turns -- List.duplicate(:slow, @events[:slow])
  defp turns(:worker), do: @turns

  defp event(:kill, state) do
    {pid, _slot} = Enum.random(state.callers)
    Process.exit(pid, :kill)
    state
  end

  # Kills a caller that is probably in a call.
  defp event(:kill_in_call, %{stress: stress} = state) do
    busy = for {pid, slot} <- state.callers, :atomics.get(stress.began, slot) >= 0, do: pid
    if busy != [], do: Process.exit(Enum.random(busy), :kill)
    state
  end

  defp event(:panic, state), do: next_batch(state, nil)
  defp event(:slow, state), do: next_batch(state, :rand.uniform(@slow_ms))

  defp event(:swap, state) do
    :ok = Serving.swap(@name, Enum.random(state.policies.same))
    state
  end

  defp event(:swap_other, state) do
    {:error, %Error{kind: :mismatch}} = Serving.swap(@name, state.policies.other)
    {:error, %Error{kind: :not_found}} = Serving.swap(@name, "/no/such/policy")
    state
  end

  defp event(:swap_failing, state) do
    :ok = Serving.swap(@name, state.policies.failing)
    Process.sleep(:rand.uniform(@pause_ms))
    event(:swap, state)
  end

  defp event(:stray, state) do
    Stray.send_all(state.serving)
    state
  end

  defp event(:restart, state) do
    case Enum.random([:stop, :drain, :drain_at_once, :kill]) do
      :stop -> :ok = Serving.stop(@name)
      :drain -> drain()
      :drain_at_once -> drain_at_once()
      :kill -> Process.exit(state.serving, :kill)
    end

    pid = state.serving
    receive do: ({:EXIT, ^pid, _reason} -> :ok)
    Process.sleep(:rand.uniform(@pause_ms))
    # Alternates between the lanes.
    lane = if state.lane == :worker, do: :inline, else: :worker
    %{state | serving: start_serving(state.stress, lane), lane: lane}
  end

  defp drain do
    :ok = Serving.drain(@name, @hung_ms)
    :ok = Serving.stop(@name)
  end

  defp drain_at_once do
    with {:error, error} <- Serving.drain(@name, 0), do: %Error{kind: :deadline} = error
    :ok = Serving.stop(@name)
  end

  defp next_batch(state, sleep_ms) do
    {:ok, %{ref: ref}} = Serving.info(@name)
    :ok = Native.probe_batch(ref, sleep_ms)
    state
  end

  # Handles ended callers for some time, and replaces them if `again?`.
  defp bury(%{serving: serving} = state, ms, again?) do
    receive do
      # The serving ended unexpectedly.
      {:EXIT, ^serving, reason} ->
        again = start_serving(state.stress, state.lane)
        bury(note(%{state | serving: again}, {:serving, reason}), ms, again?)

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

    for pid <- [state.serving | state.others], reduce: state do
      state -> receive do: ({:EXIT, ^pid, reason} -> note(state, reason))
    end
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
      events: Map.merge(state.events, nodes(stress)),
      far_sessions: with(-1 <- :atomics.get(stress.far_left, 1), do: nil),
      crashed: state.crashed,
      hung: state.hung,
      late: Map.new(stress.late, fn {at, late} -> {at, Histogram.summary(late, @grace_us)} end),
      control: Histogram.summary(stress.control, @grace_us)
    }
  end

  defp nodes(stress) do
    for {event, counter} <- [kill_node: stress.kills, still_node: stress.stills],
        into: %{},
        do: {event, :counters.get(counter, 1)}
  end
end
