# Randomised load in which everything that can go wrong does (`Sconce.Bench.Stress`):
#
#     mix run bench/never_hangs.exs --minutes 5
#     mix run bench/never_hangs.exs --minutes 0.5 --callers 24
#
# Callers act, look ahead, keep and restore their sessions' memory, on a serving and beside it, and are
# killed at random. Batches panic on purpose or take long, the queue is shorter than the callers are many,
# deadlines begin at 0, weights are swapped, and the serving is stopped, drained or killed and started
# again; a second node on this machine serves as well, is killed outright and starts again (not with
# --no-far). Told are the answers by kind; how long calls took beyond their deadline, beside the lateness of
# processes that wait for a timer as long; and what is left of it all. Status 1 where a call did not
# come back within ten seconds, an answer was wrong, or processes, sessions, threads or memory are left. Times
# are judged on an idle machine, by whoever reads them.

defmodule NeverHangs do
  alias Sconce.Bench.{Machine, Output, Stress}
  alias Sconce.Figures

  @defaults [minutes: 5.0, callers: 24, far: true]
  @switches [minutes: :float, callers: :integer, far: :boolean]
  # Of an allocator that keeps what it was given back.
  @spare_bytes 32_000_000

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = Keyword.merge(@defaults, opts)
    IO.puts(Output.header(Machine.describe()))
    IO.puts("#{opts[:callers]} callers, #{opts[:minutes]} minutes\n")
    seconds = 60 * opts[:minutes]
    report = Stress.run(seconds: seconds, callers: opts[:callers], far: opts[:far])
    answers(report.outcomes)
    IO.puts("\ndone to them: #{counts(report.events)}")

    IO.puts(
      "\nbeyond the deadline, ms    calls       p50     p99   p99.9    most  by more than 5"
    )

    for place <- [:near, :far], do: late("calls, #{place}", report.late[place])
    late("control, timers", report.control)
    IO.puts("")

    left =
      for field <- ~w(processes sessions threads resident_bytes vm_bytes)a,
          do: left(field, report)

    for wrong <- report.crashed ++ report.hung, do: IO.puts("WRONG: #{inspect(wrong)}")
    unless Enum.all?(left) and report.crashed == [] and report.hung == [], do: System.halt(1)
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

  # Whether no more is left than there was.
  defp left(field, %{before: before, after: after_it}) do
    [from, to] = for there <- [before, after_it], do: Map.fetch!(there, field)

    IO.puts(
      "#{String.pad_trailing("#{field}", 15)} #{shown(field, from)} before, #{shown(field, to)} after"
    )

    to == nil or to <= from + spare(field)
  end

  defp spare(field) when field in [:resident_bytes, :vm_bytes], do: @spare_bytes
  defp spare(_field), do: 0

  defp shown(_field, nil), do: "unknown"
  defp shown(field, n) when field in [:resident_bytes, :vm_bytes], do: Figures.size(n)
  defp shown(_field, n), do: to_string(n)
end

NeverHangs.main(System.argv())
