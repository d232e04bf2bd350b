# Eight bots in one VM at 60 frames a second, without and with a training run at background priority beside them.
#
#     mix run bots.exs --corpus CORPUS [--minutes 10] [--bots 8] [--beside-only] | tee bots.txt
#
# Each bot replays a recorded game through a bridge of its own, which is due every 1/60 s. An idle process that wakes every
# 1/60 s is the control: its lateness is that of the machine. A frame is missed if its input is later than the next frame.
# The status is 1 if the bots miss more frames beside the training than the control plus one in a thousand.

unless Code.ensure_loaded?(Sconce.Test.MeleeStates),
  do: Code.require_file("../test/support/melee_states.ex", __DIR__)

defmodule Bots do
  alias Sconce.Bench.{Machine, Output}
  alias Sconce.{Bot, Corpus, Figures, Policy, Trainer}
  alias Sconce.Test.MeleeStates

  @switches [corpus: :string, minutes: :float, bots: :integer, beside_only: :boolean]
  @defaults [minutes: 10.0, bots: 8]
  @frame_us 1_000_000 / 60

  defmodule Clock do
    # A bridge that brings a state every 1/60 s, and keeps the time from the frame's due time to its input.
    @behaviour Sconce.Bot.Bridge
    @frame_us 1_000_000 / 60

    def connect(opts) do
      start = System.monotonic_time(:microsecond) + :rand.uniform(16_000)
      {:ok, %{states: opts[:states], left: [], start: start, n: 0, tell: opts[:tell], due: start}}
    end

    def next(%{left: []} = clock, timeout_ms), do: next(%{clock | left: clock.states}, timeout_ms)

    def next(%{left: [state | rest]} = clock, _timeout_ms) do
      due = clock.start + round(clock.n * @frame_us)
      Sconce.Bench.Live.wait(due)
      {{:frame, state}, %{clock | left: rest, n: clock.n + 1, due: due}}
    end

    def put(clock, _action) do
      :counters.add(clock.tell, 1, 1)
      late = System.monotonic_time(:microsecond) - clock.due
      if late > @frame_us, do: :counters.add(clock.tell, 2, 1)
      if late > :counters.get(clock.tell, 3), do: :counters.put(clock.tell, 3, late)
      {:ok, clock}
    end

    def disconnect(_clock), do: :ok
  end

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = Keyword.merge(@defaults, opts)
    IO.puts(Output.header(Machine.describe()))
    {:ok, corpus} = Corpus.open(opts[:corpus])
    spec = [embedding: {:melee, layout: :packed}, backbone: :gru, hidden_size: 256, num_layers: 2]
    {:ok, policy} = Policy.init(spec, seed: 1)
    ms = round(opts[:minutes] * 60_000)

    unless opts[:beside_only],
      do: phase("alone", policy, corpus, opts[:bots], div(ms, 5), fn -> :ok end)

    out = Path.join(System.tmp_dir!(), "sconce-bots-#{System.pid()}")

    train = fn ->
      {:ok, run} =
        Trainer.start_link(corpus: corpus, out: out, spec: Policy.Spec.new(spec), epochs: 1000)

      run
    end

    missed = phase("beside a training run", policy, corpus, opts[:bots], ms, train)
    File.rm_rf!(out)
    if missed > 1, do: System.halt(1)
  end

  # Prints the figures of a phase, and returns how many frames in a thousand the bots miss more than the control.
  defp phase(name, policy, corpus, count, ms, train) do
    {:ok, games} = Corpus.games(corpus)

    bots =
      for i <- 1..count do
        {:ok, recording} = Corpus.recording(corpus, rem(i, length(games)), 0)
        tell = :counters.new(3, [])
        bridge = {Clock, states: MeleeStates.of_recording(recording), tell: tell}

        {:ok, bot} =
          Bot.start_link(policy: policy, session: [seed: i], bridge: bridge, deadline_ms: 15)

        {bot, tell}
      end

    control = :counters.new(3, [])
    start = System.monotonic_time(:microsecond)
    idle = spawn_link(fn -> idle(control, start, 0) end)
    run = train.()
    # The start of the bots and of the run is not counted.
    Process.sleep(5_000)
    all = [control | for({_bot, tell} <- bots, do: tell)]
    for tell <- all, at <- 1..3, do: :counters.put(tell, at, 0)
    Process.sleep(ms)

    [{beats, behind, longest} | told] =
      for tell <- all,
          do: {:counters.get(tell, 1), :counters.get(tell, 2), :counters.get(tell, 3)}

    steps = if is_pid(run), do: stopped(run)
    late = for {bot, _tell} <- bots, do: stats(bot)
    Process.unlink(idle)
    Process.exit(idle, :kill)

    {frames, missed} =
      {Enum.sum(for {n, _, _} <- told, do: n), Enum.sum(for {_, n, _} <- told, do: n)}

    worst = Enum.max(for {_, _, us} <- told, do: us)

    IO.puts(
      "#{name}: #{Figures.grouped(frames)} frames of #{count} bots, missed #{missed} (#{share(missed, frames)} in a thousand), latest #{worst} us after its due time"
    )

    IO.puts(
      "  neutral because of the deadline: #{late |> Enum.map(&elem(&1, 0)) |> Enum.sum()}; p99 by game #{inspect(Enum.flat_map(late, &elem(&1, 1)), charlists: :as_lists)} us"
    )

    IO.puts(
      "  control: #{Figures.grouped(beats)} beats, missed #{behind} (#{share(behind, beats)} in a thousand), latest #{longest} us"
    )

    if steps, do: IO.puts("  the run made #{Figures.grouped(steps)} steps meanwhile")
    share(missed, frames) - share(behind, beats)
  end

  defp share(part, whole), do: Float.round(1000 * part / max(whole, 1), 3)

  defp stopped(run) do
    %{step: %{step: step}} = Trainer.info(run)
    _ = Trainer.stop(run)
    step
  end

  defp stats(bot) do
    :ok = Bot.over(bot)
    games = Bot.games(bot)
    GenServer.stop(bot)

    {games |> Enum.map(& &1.late) |> Enum.sum(),
     for(game <- games, game.frames > 1000, do: round(game.latency_us.p99))}
  end

  defp idle(control, start, n) do
    due = start + round(n * @frame_us)
    Sconce.Bench.Live.wait(due)
    late = System.monotonic_time(:microsecond) - due
    :counters.add(control, 1, 1)
    if late > @frame_us, do: :counters.add(control, 2, 1)
    if late > :counters.get(control, 3), do: :counters.put(control, 3, late)
    idle(control, start, n + 1)
  end
end

Bots.main(System.argv())
