defmodule Sconce.Rollout.WindowTest do
  use ExUnit.Case, async: true

  alias Sconce.Rollout.Window

  defp segment(number, bytes \\ 10),
    do: <<number::32, 0::size(bytes)-unit(8)>> |> binary_part(0, bytes)

  defp number(<<number::32, _rest::binary>>), do: number

  defp all(window, flush?, messages \\ []) do
    case Window.next(window, flush?) do
      nil -> {Enum.reverse(messages), window}
      {message, window} -> all(window, flush?, [message | messages])
    end
  end

  defp sizes(messages), do: for({first, segments} <- messages, do: {first, length(segments)})

  test "messages are cut by bytes, and a part waits for the next look" do
    window = Window.new(35, 10) |> Window.add(for n <- 0..7, do: segment(n))
    {messages, window} = all(window, false)
    assert sizes(messages) == [{0, 3}, {3, 3}]
    {rest, _window} = all(window, true)
    assert sizes(rest) == [{6, 2}]
  end

  test "a segment larger than a message goes alone" do
    window = Window.new(35, 10) |> Window.add([segment(0, 100), segment(1), segment(2, 40)])
    {messages, _window} = all(window, true)
    assert sizes(messages) == [{0, 1}, {1, 1}, {2, 1}]
  end

  test "messages without an answer have a limit, and memory is bounded by it" do
    window = Window.new(20, 3) |> Window.add(for n <- 0..5, do: segment(n))
    assert Window.room(window) == 0
    {messages, window} = all(window, true)
    assert sizes(messages) == [{0, 2}, {2, 2}, {4, 2}]
    window = Window.answered(window, 2)
    assert {Window.room(window), Window.held(window)} == {20, 4}
    window = Window.add(window, [segment(6), segment(7)])
    assert {[{6, [_, _]}], window} = all(window, true)
    # An answer stands for all before it.
    window = window |> Window.answered(8) |> Window.answered(4)
    assert {Window.held(window), Window.room(window)} == {0, 60}
  end

  test "what is not confirmed goes again in its order" do
    window = Window.new(20, 3) |> Window.add(for n <- 0..5, do: segment(n))
    {_messages, window} = all(window, true)
    {messages, _window} = window |> Window.answered(1) |> Window.back() |> all(true)
    assert for({_first, some} <- messages, one <- some, do: number(one)) == [1, 2, 3, 4, 5]
    assert sizes(messages) == [{1, 2}, {3, 2}, {5, 1}]
  end

  test "a receiver takes what is new, and asks again after a gap" do
    some = for n <- 4..6, do: segment(n)
    assert {^some, 4} = Window.received(4, 0, 4, some)
    assert {[_, _], 5} = Window.received(5, 0, 4, some)
    assert {[], 9} = Window.received(9, 0, 4, some)
    assert {[], 2} = Window.received(2, 0, 4, some)
    # One that has forgotten its sender begins with the oldest segment that is not confirmed.
    assert {^some, 4} = Window.received(nil, 4, 4, some)
    assert {[], 1} = Window.received(nil, 1, 4, some)
  end

  # A learner with a queue of `room` segments that forgets, lags and loses answers by chance.
  defp deliver({first, segments}, base, learner) do
    {new, number} = Window.received(learner.expected, base, first, segments)
    taken = Enum.take(new, learner.room)
    expected = number + length(taken)
    numbers = Enum.map(taken, &number/1)

    learner = %{
      learner
      | expected: expected,
        got: learner.got ++ numbers,
        room: learner.room - length(taken)
    }

    {expected, learner}
  end

  for seed <- 1..20 do
    test "nothing is lost and the order is kept when answers are lost and the queue is full (#{seed})" do
      :rand.seed(:exsss, {unquote(seed), 1, 2})
      count = 200
      learner = %{expected: nil, got: [], room: 0}
      window = Window.new(35, 3)
      got = play(window, Enum.map(0..(count - 1), &segment/1), learner, count, 0)
      assert got == Enum.to_list(0..(count - 1))
    end
  end

  defp play(_window, _waiting, %{got: got}, count, rounds)
       when length(got) >= count or rounds > 5_000,
       do: got

  defp play(window, waiting, learner, count, rounds) do
    {new, waiting} = Enum.split(waiting, div(Window.room(window), 10))
    {messages, window} = window |> Window.add(new) |> all(true)
    assert window.bytes <= 3 * 35
    base = window.base

    {answers, learner} =
      Enum.map_reduce(messages, learner, fn message, learner ->
        deliver(message, base, %{learner | room: learner.room + :rand.uniform(4) - 1})
      end)

    # The last answers are lost: the sender goes back.
    kept = Enum.take(answers, :rand.uniform(4) - 1)
    window = kept |> Enum.reduce(window, &Window.answered(&2, &1)) |> Window.back()
    play(window, waiting, learner, count, rounds + 1)
  end
end
