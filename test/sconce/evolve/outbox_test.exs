defmodule Sconce.Evolve.OutboxTest do
  use ExUnit.Case, async: true

  alias Sconce.Evolve.Outbox

  # Elites with solutions of 12 bytes and measures of 4.
  defp elites(numbers) do
    [
      for(n <- numbers, into: "", do: <<n::32, 0::64>>),
      for(n <- numbers, into: "", do: <<n * 1.0::float-64-little>>),
      for(n <- numbers, into: "", do: <<n::32>>)
    ]
  end

  defp count([_solutions, objectives, _measures]), do: div(byte_size(objectives), 8)
  defp joined(messages), do: Enum.zip_with(messages, &Enum.join/1)

  test "elites are cut by bytes, whole and in order" do
    all = elites(1..10)
    messages = Outbox.messages(all, 80)
    assert Enum.map(messages, &count/1) == [3, 3, 3, 1]
    assert joined(messages) == all
    assert length(Outbox.messages(all, 1)) == 10
    assert Outbox.messages(all) == [all]
    assert Outbox.messages(["", "", ""]) == []
  end

  test "four messages go at most, and each answer lets one more go" do
    big = elites(1..400_000)
    {now, outbox} = Outbox.fill(%Outbox{}, big)
    assert length(now) == 4 and length(outbox.waiting) == 6
    assert Outbox.offer(outbox, elites([1])) == :withheld

    {later, outbox} =
      Enum.map_reduce(1..6, outbox, fn _, outbox ->
        {[one], outbox} = Outbox.answered(outbox)
        {one, outbox}
      end)

    assert joined(now ++ later) == big
    # All have gone, and four have no answer.
    assert Outbox.offer(outbox, elites([1])) == :withheld
    assert {[], outbox} = Outbox.answered(outbox)
    assert {[_one], _outbox} = Outbox.offer(outbox, elites([1]))
  end

  test "messages without an answer for a minute count as lost" do
    {_sent, outbox} =
      Enum.reduce(1..4, {[], %Outbox{}}, fn n, {_, own} -> Outbox.offer(own, elites([n]), 0) end)

    assert Outbox.offer(outbox, elites([5]), 60_000) == :withheld
    assert {[_one], outbox} = Outbox.offer(outbox, elites([5]), 60_001)
    assert outbox.unanswered == 1
    # An answer shows that the other island lives.
    {_sent, outbox} =
      Enum.reduce(1..3, {[], outbox}, fn n, {_, own} -> Outbox.offer(own, elites([n]), 60_001) end)

    {[], outbox} = Outbox.answered(outbox, 100_000)
    assert {[_one], outbox} = Outbox.offer(outbox, elites([6]), 100_000)
    assert Outbox.offer(outbox, elites([7]), 121_000) == :withheld
  end

  test "migrants go while there is room, and are withheld after that" do
    {moves, _outbox} =
      Enum.map_reduce(1..6, %Outbox{}, fn n, outbox ->
        case Outbox.offer(outbox, elites([n])) do
          :withheld -> {:withheld, outbox}
          {[_one], outbox} -> {:sent, outbox}
        end
      end)

    assert moves == [:sent, :sent, :sent, :sent, :withheld, :withheld]
  end
end
