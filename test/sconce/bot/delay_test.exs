defmodule Sconce.Bot.DelayTest do
  use ExUnit.Case, async: true

  alias Sconce.Bot
  alias Sconce.Bot.Delay
  alias Sconce.Policy
  alias Sconce.Test.MeleeStates

  # A game that shows the inputs of a bot `lag` frames later.
  defp played(lag, opts \\ []) do
    {:ok, policy} =
      Policy.init([embedding: {:melee, layout: :packed}, backbone: :gru, hidden_size: 8], seed: 1)

    bot =
      start_supervised!(
        {Bot, [policy: policy, frame_delay: :measure, deadline_ms: 10_000] ++ opts},
        id: make_ref()
      )

    Enum.reduce(-123..-30, %{}, fn number, sent ->
      shown = Map.get(sent, number - lag, MeleeStates.neutral())
      {:ok, input} = Bot.step(bot, MeleeStates.state(number, fn _ -> shown end))
      Map.put(sent, number, input)
    end)

    {:ok, info} = Bot.info(bot)
    info.delay
  end

  test "the countdown shows the delay of the inputs" do
    for lag <- [1, 2, 5, 19, 30], do: assert(played(lag) == lag - 1)
  end

  test "inputs that never show, or that are lost at random, give no delay" do
    assert played(1_000) == nil

    noise = fn number -> rem(number * 7919, 11) < 5 end

    delay =
      Enum.reduce(-123..-40, Delay.new(), fn number, delay ->
        side = fn yes? -> %{main_stick: %{x: if(yes?, do: 1.0, else: 0.0)}, buttons: %{}} end
        {x, _y} = Delay.probe(number) || {0.5, 0.5}
        Delay.add(delay, number, side.(x > 0.5), side.(noise.(number)))
      end)

    assert Delay.measure(delay) == nil
  end

  test "the session of the game that is measured has the delay" do
    {:ok, policy} =
      Policy.init(
        [
          embedding: {:melee, layout: :packed, queue_depth: 4, num_delays: 9},
          backbone: :mlp,
          hidden_sizes: [8]
        ],
        seed: 1
      )

    options = [policy: policy, frame_delay: :measure, session: [seed: 1]]
    options = Sconce.Options.validate!(options, Sconce.Bot.Catalogue.schema(:start))
    {:ok, turn} = Sconce.Bot.Turn.open(options)

    {turn, _sent} =
      Enum.reduce(-123..-30, {turn, %{}}, fn number, {turn, sent} ->
        shown = Map.get(sent, number - 5, MeleeStates.neutral())
        state = MeleeStates.state(number, fn _ -> shown end)

        {{:input, input}, turn} =
          Sconce.Bot.Turn.event(turn, {:frame, state}, System.monotonic_time())

        {turn, Map.put(sent, number, input)}
      end)

    assert {:ok, %{frame_delay: 4}} = Sconce.Session.info(turn.player.session)
  end

  test "the probe ends before players have control" do
    assert Delay.probe(-121) == nil
    assert {_x, 0.5} = Delay.probe(-120)
    assert Delay.probe(-57) == nil
    sequence = for number <- -120..-58, {x, _} = Delay.probe(number), do: x

    # A maximal sequence has one more of one value, and a balanced overlap with each of its shifts.
    assert abs(Enum.count(sequence, &(&1 == 1.0)) - 31.5) == 0.5

    for shift <- 1..62 do
      {left, right} = Enum.split(sequence, shift)
      same = sequence |> Enum.zip(right ++ left) |> Enum.count(fn {a, b} -> a == b end)
      assert same == 31
    end
  end
end
