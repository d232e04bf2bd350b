# What decisions on the callers' schedulers do to everybody else on them:
#
#     mix run bench/schedulers.exs
#     SCONCE_REPLAYS=replays mix run bench/schedulers.exs --seconds 20 --rounds 3 --processes 8
#
# Eight processes act as fast as they can, each with a session of its own on the inline lane. Meanwhile
# another process is woken each millisecond and takes down how late, and one more calls a dirty NIF that
# does nothing and takes down how long that took. Beside them the same with nobody at work, and with
# eight processes that do plain Elixir work, which the VM takes turns between as it likes. The rounds take
# turns too, so that what else this machine does falls on all alike. Times in milliseconds.

for name <- ~w(latency policies), do: Code.require_file("#{name}.exs", __DIR__)

defmodule Schedulers do
  alias Sconce.Bench.{Frames, Machine, Output}
  alias Sconce.{Native, Session}

  @defaults [seconds: 10.0, rounds: 3, processes: 8]
  @switches [seconds: :float, rounds: :integer, processes: :integer]
  @percents [50, 99, 99.9, 100]
  # Milliseconds between two dirty calls.
  @pause 2
  # Steps of a loop that take about as long as a decision.
  @loop 10_000

  @columns [
    {"at work", 22, :left},
    {"turns/s", 9, :right},
    {"ticks", 7, :right},
    {"late p50", 9, :right},
    {"p99", 7, :right},
    {"p99.9", 7, :right},
    {"most", 7, :right},
    {"dirty p50", 10, :right},
    {"p99", 7, :right},
    {"p99.9", 7, :right},
    {"most", 7, :right}
  ]

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = @defaults |> Keyword.merge(opts) |> Map.new()
    IO.puts(Output.header(Machine.describe()))
    {_frames, origin} = Frames.sequence()

    IO.puts(
      "#{opts.processes} processes, #{origin} frames, #{System.schedulers_online()} schedulers\n"
    )

    works = [{"nobody", nil}, {"plain Elixir", &loop/1}] ++ decisions()

    measured =
      for _round <- 1..opts.rounds, {name, work} <- works, do: {name, measure(work, opts)}

    IO.puts(Output.line(@columns, for({title, _width, _side} <- @columns, do: title)))

    for {name, _work} <- works,
        do: IO.puts(line(name, for({^name, found} <- measured, do: found)))
  end

  defp decisions do
    for name <- Policies.names() do
      policy = Policies.init!(name)
      {"act, #{name}", fn turns -> decide(policy, turns) end}
    end
  end

  defp decide(policy, turns) do
    {:ok, session} = Session.open(policy, lane: :inline, seed: 1)
    {frames, _origin} = Frames.sequence()
    decide(session, frames, 0, turns)
  end

  defp decide(session, frames, i, turns) do
    {:ok, _action} = Session.act(session, elem(frames, rem(i, tuple_size(frames))))
    :counters.add(turns, 1, 1)
    decide(session, frames, i + 1, turns)
  end

  defp loop(turns) do
    _sum = spin(@loop, 0)
    :counters.add(turns, 1, 1)
    loop(turns)
  end

  defp spin(0, sum), do: sum
  defp spin(n, sum), do: spin(n - 1, rem(sum * 31 + n, 65_521))

  defp measure(work, opts) do
    turns = :counters.new(1, [])
    workers = for _ <- 1..opts.processes, work, do: spawn_link(fn -> work.(turns) end)
    until = System.monotonic_time(:millisecond) + round(opts.seconds * 1000)
    # What is opened and compiled first is no turn.
    Process.sleep(200)
    before = :counters.get(turns, 1)
    watchers = for watch <- [&ticks/1, &dirty/1], do: Task.async(fn -> watch.(until) end)
    [late, dirty] = Task.await_many(watchers, :infinity)
    made = :counters.get(turns, 1) - before
    work == nil or made > 0 || raise "nothing was done"
    for worker <- workers, do: stop(worker)
    %{turns: made / opts.seconds, late: late, dirty: dirty}
  end

  defp stop(worker) do
    Process.unlink(worker)
    monitor = Process.monitor(worker)
    Process.exit(worker, :kill)
    receive do: ({:DOWN, ^monitor, _, _, _} -> :ok)
  end

  # How much later than each millisecond. Of all that were due when it is woken, each counts as late as it is.
  defp ticks(until) do
    now = System.monotonic_time(:millisecond)
    late = Latency.new(until - now)
    tick(now + 1, until, late)
    Latency.sorted(late)
  end

  defp tick(due, until, _late) when due > until, do: :ok

  defp tick(due, until, late) do
    :erlang.start_timer(due, self(), :tick, abs: true)
    receive do: ({:timeout, _timer, :tick} -> :ok)
    now = System.monotonic_time(:nanosecond)
    last = div(now, 1_000_000)
    for tick <- due..last, do: Latency.add(late, now - tick * 1_000_000)
    tick(last + 1, until, late)
  end

  defp dirty(until) do
    took = Latency.new(div(until - System.monotonic_time(:millisecond), @pause))
    dirty(until, took)
    Latency.sorted(took)
  end

  defp dirty(until, took) do
    if System.monotonic_time(:millisecond) < until do
      Process.sleep(@pause)
      start = System.monotonic_time(:nanosecond)
      :ok = Native.bench_dirty()
      Latency.add(took, System.monotonic_time(:nanosecond) - start)
      dirty(until, took)
    end
  end

  defp line(name, rounds) do
    turns = rounds |> Enum.map(& &1.turns) |> Enum.sum() |> Kernel./(length(rounds))
    late = rounds |> Enum.flat_map(& &1.late) |> Enum.sort()
    dirty = rounds |> Enum.flat_map(& &1.dirty) |> Enum.sort()
    times = Latency.percentiles(late, @percents) ++ Latency.percentiles(dirty, @percents)
    counts = [Machine.decimal(turns), to_string(length(late))]
    Output.line(@columns, [name | counts] ++ Enum.map(times, &Latency.cell(&1, :ms)))
  end
end

Schedulers.main(System.argv())
