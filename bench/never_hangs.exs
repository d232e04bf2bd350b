# Randomised load in which everything that can go wrong does (`Sconce.Bench.Stress`):
#
#     mix run never_hangs.exs --minutes 5
#     mix run never_hangs.exs --minutes 0.5 --callers 24
#
# Callers act, look ahead, keep and restore their sessions' memory, on a serving and beside it, and are
# killed in their calls and between them. Batches panic on purpose or take long, the queue is shorter than the callers
# are many, deadlines begin at 0, weights are swapped for others, for those of another policy (refused) and for some
# whose sums overflow, the serving and its sender's process get calls, casts and messages that they do not know, and
# the serving is stopped, drained or killed and started again. Training runs go on meanwhile, which end, are
# stopped, polled, sent such messages, or lose their owners (not with --no-runs). A second node on this machine serves
# as well: it stands still (SIGSTOP) for less and for more than distribution waits for it, goes on, is killed outright
# and starts again (not with --no-far). Printed are the answers by kind; how long calls took beyond their
# deadline, beside the lateness of processes that wait for a timer as long; and what is left of it all. Status 1 where
# a call did not come back within ten seconds, one with a deadline more than 250 ms after it while timers were in
# time, an answer was wrong, or processes, sessions (of either node), threads, descriptors, atoms or memory are left.

defmodule NeverHangs do
  require Logger

  alias Sconce.Bench.{Footprint, Machine, Output, Stress}
  alias Sconce.Figures

  @defaults [minutes: 5.0, callers: 24, far: true, runs: true]
  @switches [minutes: :float, callers: :integer, far: :boolean, runs: :boolean]
  # Microseconds beyond its deadline, and beyond what timers were late.
  @bound_us 250_000

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = Keyword.merge(@defaults, opts)
    IO.puts(Output.header(Machine.describe()))
    IO.puts("#{opts[:callers]} callers, #{opts[:minutes]} minutes\n")
    # What is killed, and nodes that are lost, are logged by the thousand.
    Logger.configure(level: :critical)
    seconds = 60 * opts[:minutes]
    report = Stress.run([seconds: seconds] ++ Keyword.take(opts, [:callers, :far, :runs]))
    answers(report.outcomes)
    IO.puts("\ndone to them: #{counts(report.events)}")

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
