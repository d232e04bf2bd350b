# A recorded match, replayed to a bot by another process of this machine at 60 frames a second, beside a no-op control.
#
#     mix run match.exs --corpus CORPUS [--frames 100000] [--hz 60] [--seed 1] [--policy FILE] [--weights bf16] | tee match.txt
#
# The program `test/support/replayer.exs` writes the states of the corpus' games, in the shape of libmelee_ex, and reads
# inputs (`Sconce.Bot.Bridge.Program`). Frames come twice, late in bursts, in another order, and again with other
# contents (a rollback); games end with a menu, with a message, or by a new game; the program dies and is started again.
# The control answers each state with the neutral input at once, through the same program and bridge.
#
# Each state must be answered by one input, and each frame number of a game decided once. The status is 1 otherwise.

unless Code.ensure_loaded?(Sconce.Test.MeleeStates),
  do: Code.require_file("../test/support/melee_states.ex", __DIR__)

defmodule Match do
  alias Sconce.Bench.{Machine, Output}
  alias Sconce.{Bot, Corpus, Figures, Policy}
  alias Sconce.Bot.{Bridge, Reader}
  alias Sconce.Test.MeleeStates

  @switches [
    corpus: :string,
    frames: :integer,
    hz: :float,
    seed: :integer,
    policy: :string,
    weights: :string
  ]
  @defaults [frames: 100_000, hz: 60.0, seed: 1, weights: "stored"]
  @control -40
  # A state that comes later than this after the one before has come alone.
  @alone_us 5_000

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = Keyword.merge(@defaults, opts)
    :rand.seed(:exsss, opts[:seed])
    dir = Path.join(System.tmp_dir!(), "sconce-match-#{System.pid()}")
    File.mkdir_p!(dir)
    IO.puts(Output.header(Machine.describe()))

    try do
      {plan, expected} = plan(games(opts[:corpus]), opts[:frames])
      path = Path.join(dir, "plan")
      MeleeStates.write_plan!(path, plan)
      policy = policy(opts[:policy])
      IO.puts("#{inspect(policy)}, weights #{opts[:weights]}, #{opts[:hz]} frames a second")

      IO.puts(
        "#{Figures.grouped(expected.states)} states in #{expected.games} games: #{inspect(expected.faults)}"
      )

      control = Task.async(fn -> control(bridge(path, dir, "control", 0.5, opts)) end)
      weights = String.to_existing_atom(opts[:weights])
      games = bot(policy, weights, bridge(path, dir, "bot", 0.0, opts), length(plan) / opts[:hz])
      _ = Task.shutdown(control, :brutal_kill)

      of_bot = times(Path.join(dir, "bot"))
      of_control = times(Path.join(dir, "control"))
      print("bot", of_bot)
      print("control", of_control)
      failures = checked(games, expected, of_bot)
      for failure <- failures, do: IO.puts("FAILED: #{failure}")
      if failures != [], do: System.halt(1)
      IO.puts("every state was answered once, and every frame decided once")
    after
      File.rm_rf!(dir)
    end
  end

  defp policy(nil) do
    spec = [embedding: {:melee, layout: :packed}, backbone: :gru, hidden_size: 256, num_layers: 2]
    {:ok, policy} = Policy.init(spec, seed: 1)
    policy
  end

  defp policy(path) do
    {:ok, policy} = Policy.load(path)
    policy
  end

  # The states of each game of a corpus.
  defp games(dir) do
    {:ok, corpus} = Corpus.open(dir)
    {:ok, games} = Corpus.games(corpus)

    for {_game, i} <- Enum.with_index(games) do
      {:ok, recording} = Corpus.recording(corpus, i, 0)
      MeleeStates.of_recording(recording)
    end
  end

  # Messages for about `frames` states, and what a bot must make of them.
  defp plan(games, frames) do
    expected = %{states: 0, games: 0, decided: 0, faults: %{}}

    Stream.cycle(games)
    |> Enum.reduce_while({[], expected}, fn states, {plan, expected} ->
      left = frames - expected.states
      {messages, expected} = game(Enum.take(states, max(left, 200)), expected)
      plan = [ending(rem(expected.games, 3)), messages | plan]
      if expected.states >= frames, do: {:halt, {plan, expected}}, else: {:cont, {plan, expected}}
    end)
    |> then(fn {plan, expected} -> {plan |> Enum.reverse() |> List.flatten(), expected} end)
  end

  # A game ends by a menu, a message, or the next game.
  defp ending(0), do: [{1, {:menu, nil}}, {30, {:menu, nil}}]
  defp ending(1), do: [{1, {:over, :finished}}]
  defp ending(2), do: []

  defp game(states, expected) do
    numbers = states |> Enum.map(& &1.frame) |> Enum.filter(&(&1 >= @control)) |> length()
    expected = %{expected | games: expected.games + 1, decided: expected.decided + numbers}
    faulty(states, [], expected, [])
  end

  defp faulty([], plan, expected, _before), do: {Enum.reverse(plan), expected}

  defp faulty([state | rest], plan, expected, before) do
    before_it = [state | Enum.take(before, 6)]
    playing? = state.frame > @control + 10 and length(rest) > 10

    case playing? && :rand.uniform(20_000) do
      n when n in 1..100 ->
        faulty(
          rest,
          [frame(0, state), frame(1, state) | plan],
          count(expected, :twice, 2),
          before_it
        )

      n when n in 101..160 ->
        [next | rest] = rest
        expected = expected |> count(:reordered, 2) |> Map.update!(:decided, &(&1 - 1))
        faulty(rest, [frame(0, state), frame(1, next) | plan], expected, [next | before_it])

      n when n in 161..210 ->
        again =
          before_it |> Enum.take(1 + :rand.uniform(6)) |> Enum.reverse() |> Enum.map(&other/1)

        messages = for state <- again, do: frame(0, state)
        plan = Enum.reverse([frame(1, state) | messages]) ++ plan
        faulty(rest, plan, count(expected, :rollbacks, 1 + length(again)), before_it)

      n when n in 211..260 ->
        [next | rest] = rest
        plan = [frame(0, next), frame(4, state) | plan]
        faulty(rest, plan, count(expected, :bursts, 2), [next | before_it])

      n when n in 261..264 ->
        # The program dies a second after its last frame, so that no input is on its way.
        expected = count(expected, :deaths, 1)

        faulty(
          rest,
          [{60, :die}, frame(1, state) | plan],
          %{expected | games: expected.games + 1},
          []
        )

      _plain ->
        faulty(rest, [frame(1, state) | plan], count(expected, nil, 1), before_it)
    end
  end

  defp frame(ticks, state), do: {ticks, {:frame, state}}

  # The opponent has another percent after a rollback.
  defp other(state), do: update_in(state.players[2].percent, &(&1 + 0.25))

  defp count(expected, nil, states), do: %{expected | states: expected.states + states}

  defp count(expected, fault, states) do
    faults = Map.update(expected.faults, fault, 1, &(&1 + 1))
    %{expected | states: expected.states + states, faults: faults}
  end

  # The two programs play half a period apart, so that neither waits for the other's processor.
  defp bridge(plan, dir, name, phase, opts) do
    script = Path.expand("../test/support/replayer.exs", __DIR__)
    flags = "-noinput +S 1:1 +sbwt none"
    args = ["--erl", flags, script, plan, "#{opts[:hz]}", Path.join(dir, name), "#{phase}"]
    {Bridge.Program, command: System.find_executable("elixir"), args: args}
  end

  defp bot(policy, weights, bridge, seconds) do
    test = self()

    opts = [
      policy: policy,
      bridge: bridge,
      session: [seed: 1, weights: weights],
      reconnect: 1_000_000,
      on_game: &send(test, {:game, &1})
    ]

    {:ok, bot} = Bot.start_link(opts)
    done(bot, System.monotonic_time(:second) + round(seconds * 1.1) + 60, 0)
    :ok = Bot.over(bot)
    GenServer.stop(bot)
    gathered([])
  end

  # The match is over when no frame has come for ten seconds. A program that was killed takes less to start again.
  defp done(bot, latest, played) do
    Process.sleep(10_000)
    {:ok, info} = Bot.info(bot)
    now = {info.played, info.game && info.game.frames}

    cond do
      System.monotonic_time(:second) > latest -> IO.puts("the match took too long")
      now == played -> :ok
      true -> done(bot, latest, now)
    end
  end

  defp gathered(games) do
    receive do
      {:game, game} -> gathered([game | games])
    after
      500 -> Enum.reverse(games)
    end
  end

  # Answers each state at once.
  defp control({module, opts}) do
    Process.flag(:trap_exit, true)
    controlled(module, opts, Reader.start_link(module, opts, []))
  end

  defp controlled(module, opts, reader) do
    receive do
      {:reader, ^reader, {{:frame, _state}, _came, _took}} ->
        Reader.reply(reader, {:input, struct(Sconce.Action, MeleeStates.neutral())})
        controlled(module, opts, reader)

      {:reader, ^reader, {_event, _came, _took}} ->
        Reader.reply(reader, :none)
        controlled(module, opts, reader)

      {:reader, ^reader, :connected} ->
        controlled(module, opts, reader)

      {:EXIT, ^reader, _reason} ->
        Process.sleep(500)
        controlled(module, opts, Reader.start_link(module, opts, []))
    end
  end

  # Microseconds from each state to its input, in the log of the program, whether it came alone, and the states without
  # an input. A state that comes at once after another one waits for it.
  defp times(path) do
    path
    |> File.stream!()
    |> Enum.reduce({:queue.new(), [], 0, 0}, fn line, {waiting, times, lost, before} ->
      case String.split(line) do
        ["sent", at, "frame"] ->
          at = String.to_integer(at)
          {:queue.in({at, at - before > @alone_us}, waiting), times, lost, at}

        ["sent", at, "die"] ->
          {:queue.new(), times, lost + :queue.len(waiting), String.to_integer(at)}

        ["sent", at, _other] ->
          {waiting, times, lost, String.to_integer(at)}

        ["input", at | _rest] ->
          case :queue.out(waiting) do
            {{:value, {sent, alone?}}, waiting} ->
              {waiting, [{String.to_integer(at) - sent, alone?} | times], lost, before}

            {:empty, waiting} ->
              {waiting, times, lost + 1_000_000, before}
          end
      end
    end)
    |> then(fn {waiting, times, lost, _before} -> {times, lost + :queue.len(waiting)} end)
  end

  defp print(name, {times, lost}) do
    IO.puts("#{name}: #{Figures.grouped(length(times))} inputs, without an answer #{lost}")
    {alone, together} = Enum.split_with(times, &elem(&1, 1))
    print(name, "that came alone", alone)
    print(name, "that came at once after others", together)
  end

  defp print(_name, _which, []), do: :ok

  defp print(name, which, times) do
    times = Enum.map(times, &elem(&1, 0))
    figures = for p <- [50, 95, 99, 99.9], do: "p#{p} #{round(Figures.percentile(times, p))} us"
    count = Figures.grouped(length(times))

    IO.puts(
      "#{name}, #{count} #{which}: #{Enum.join(figures, ", ")}, largest #{Enum.max(times)} us"
    )
  end

  defp checked(games, expected, {times, lost}) do
    sum = fn field -> games |> Enum.map(&Map.fetch!(&1, field)) |> Enum.sum() end

    figures =
      for field <- [
            :frames,
            :decisions,
            :late,
            :repeated,
            :skipped,
            :out_of_order,
            :rollbacks,
            :errors
          ],
          do: {field, sum.(field)}

    IO.puts("figures of #{length(games)} games: #{inspect(figures)}")

    p99 =
      games |> Enum.filter(&(&1.latency_us && &1.frames > 1000)) |> Enum.map(& &1.latency_us.p99)

    IO.puts(
      "p99 within the bot, by game: #{inspect(Enum.map(p99, &round/1), charlists: :as_lists)} us"
    )

    for {true, failure} <- [
          {lost != 0, "#{lost} states have no answer of their own"},
          {length(times) != expected.states,
           "#{length(times)} inputs for #{expected.states} states"},
          {figures[:decisions] + figures[:late] != expected.decided,
           "#{figures[:decisions] + figures[:late]} decisions for #{expected.decided} frames"},
          {figures[:skipped] != 0, "#{figures[:skipped]} frames were skipped"},
          {figures[:errors] != 0, "#{figures[:errors]} errors"},
          {length(games) != expected.games, "#{length(games)} games instead of #{expected.games}"}
        ],
        do: failure
  end
end

Match.main(System.argv())
