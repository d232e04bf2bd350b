# A randomised load with all known failures (`Sconce.Bench.Stress`):
#
#     mix run never_hangs.exs --minutes 5
#     mix run never_hangs.exs --minutes 0.5 --callers 24
#
# Callers act, look ahead, and snapshot and restore their sessions' memory, on a serving and without one.
# They are killed during calls and between them. Batches panic on purpose or take long. The queue is shorter
# than the number of callers. Deadlines begin at 0. Weights are swapped for valid ones, for those of another
# policy (refused), and for some whose sums overflow. The serving and its sender process get unknown calls,
# casts and messages. The serving is stopped, drained or killed, and started again. Training runs proceed
# meanwhile, and are finished, stopped, polled, sent such messages, or lose their owners (not with
# --no-runs). A second node on this machine also serves. It is suspended (SIGSTOP) for less and for more
# than the distribution timeout, resumed, killed and restarted (not with --no-far).
#
# Prints the answers by kind, how long calls took beyond their deadline beside the lateness of timers of the
# same length, and leftover resources. The status is 1 if a call takes more than ten seconds, if a call is
# more than 250 ms beyond its deadline while timers are on time, if an answer is wrong, or if processes,
# sessions (of either node), threads, descriptors, atoms or memory are left over.

defmodule NeverHangs do
  require Logger

  alias Sconce.Bench.{Footprint, Machine, Output, Stress}
  alias Sconce.Figures

  @defaults [minutes: 5.0, callers: 24, far: true, runs: true]
  @switches [minutes: :float, callers: :integer, far: :boolean, runs: :boolean]
  # Maximum microseconds beyond a deadline and beyond the lateness of timers.
  @bound_us 250_000

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = Keyword.merge(@defaults, opts)
    IO.puts(Output.header(Machine.describe()))
    IO.puts("#{opts[:callers]} callers, #{opts[:minutes]} minutes\n")
    # Kills and lost nodes produce thousands of log lines.
    Logger.configure(level: :critical)
    seconds = 60 * opts[:minutes]
    report = Stress.run([seconds: seconds] ++ Keyword.take(opts, [:callers, :far, :runs]))
    answers(report.outcomes)
    IO.puts("\nevents: #{counts(report.events)}")

    IO.puts(
      "\nbeyond the deadline, ms    calls       p50     p99   p99.9    most  by more than 5"
    )

    for place <- [:near, :far], do: late("calls, #{place}", report.late[place])
    late("control, timers", report.control)
    IO.puts("")

    for field <- Footprint.fields(), do: left(field, report)
    if far = report.far_sessions, do: IO.puts("sessions left on the other node: #{far}")
    wrong = wrong(report)
    for what <- wrong, do: IO.puts("WRONG: #{what}")
    if wrong != [], do: System.halt(1)
  end

  defp wrong(report) do
    bound = @bound_us + report.control.most

    for(what <- report.crashed ++ report.hung, do: inspect(what)) ++
      for(field <- report.left, do: "#{field} are left") ++
      for(
        {at, %{most: most}} <- report.late,
        most > bound,
        do: "#{at} calls #{div(most, 1000)} ms late"
      ) ++
      if(report.far_sessions in [nil, 0], do: [], else: ["sessions are left on the other node"])
  end

  defp answers(outcomes) do
    calls = Enum.group_by(outcomes, fn {{place, call, _kind}, _n} -> "#{place} #{call}" end)

    for {call, all} <- calls do
      kinds =
        for {{_place, _call, kind}, n} <- Enum.sort_by(all, &(-elem(&1, 1))), n > 0, do: {kind, n}

      IO.puts("#{String.pad_trailing(call, 15)}#{counts(kinds)}")
    end
  end

  defp counts(kinds),
    do: Enum.map_join(kinds, ", ", fn {kind, n} -> "#{kind} #{Figures.grouped(n)}" end)

  defp late(text, summary) do
    times = for key <- [:p50, :p99, :p999, :most], do: ms(Map.fetch!(summary, key))
    count = String.pad_leading(Figures.grouped(summary.count), 11)

    IO.puts(
      String.pad_trailing(text, 21) <> count <> "  " <> Enum.join(times) <> "  #{summary.above}"
    )
  end

  defp ms(us), do: String.pad_leading(:erlang.float_to_binary(us / 1000, decimals: 2), 8)

  defp left(field, %{before: before, after: now}) do
    [from, to] = for there <- [before, now], do: shown(field, there[field])
    IO.puts("#{String.pad_trailing("#{field}", 15)} #{from} before, #{to} after")
  end

  defp shown(_field, nil), do: "unknown"
  defp shown(field, n), do: if(Footprint.bytes?(field), do: Figures.size(n), else: to_string(n))
end

NeverHangs.main(System.argv())
