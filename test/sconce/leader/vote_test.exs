defmodule Sconce.Leader.VoteTest do
  use ExUnit.Case, async: true

  alias Sconce.Leader.Vote

  @lease 1000

  defp ask(round, term, leads? \\ false), do: %{round: round, term: term, leads?: leads?}
  defp new, do: Vote.new(@lease, 0, 0)

  defp granted(vote, now, id, ask) do
    assert {:granted, vote} = Vote.ask(vote, now, id, ask)
    vote
  end

  defp refused(vote, now, id, ask) do
    assert {:refused, ^vote} = Vote.ask(vote, now, id, ask)
    vote
  end

  test "a vote belongs to one candidate for a lease, and then to another one with a higher term" do
    vote = new() |> granted(10, :a, ask(1, 5)) |> refused(1009, :b, ask(1, 6))
    assert Vote.holder(vote, 1009) == :a
    assert Vote.holder(vote, 1010) == nil
    vote |> refused(1010, :b, ask(1, 5)) |> granted(1010, :b, ask(1, 6))
  end

  test "a new vote is refused to all until it has been quiet for long enough" do
    vote = Vote.new(@lease, @lease, 0)
    assert Vote.busy_until(vote) == @lease
    vote |> refused(999, :a, ask(1, 5, true)) |> granted(1000, :a, ask(1, 5))
  end

  test "a question that is repeated or late never shortens a grant" do
    vote = new() |> granted(0, :a, ask(1, 5)) |> granted(500, :a, ask(2, 5, true))
    vote = granted(vote, 600, :a, ask(1, 5))
    assert {vote.round, vote.until} == {2, 1600}
  end

  test "a release frees the vote unless a later round was granted" do
    vote = new() |> granted(0, :a, ask(1, 5)) |> granted(500, :a, ask(2, 5, true))
    assert Vote.release(vote, :a, 1) == vote
    assert Vote.release(vote, :b, 9) == vote
    vote |> Vote.release(:a, 2) |> granted(501, :b, ask(1, 6))
  end

  test "a leader renews its term although a candidate without a majority had a higher one" do
    vote = new() |> granted(0, :a, ask(1, 5)) |> granted(1000, :b, ask(1, 7))
    vote |> refused(1500, :a, ask(9, 5, true)) |> granted(2000, :a, ask(9, 5, true))
  end
end
