defmodule Sconce.VotesTest do
  use ExUnit.Case, async: true
  doctest Sconce.Votes

  alias Sconce.{Error, Votes}

  # The counts of many votes, which a native thread makes, are those of plain Elixir, and so are those of few votes.
  test "counts and winners are those of plain Elixir" do
    :rand.seed(:exsss, {1, 2, 3})

    for {questions, voters} <- [{3, 7}, {200, 101}, {4000, 101}] do
      votes =
        for _q <- 1..questions, do: for(_v <- 1..:rand.uniform(voters), do: :rand.uniform(5) - 1)

      {:ok, %{counts: counts, winners: winners}} = Votes.tally(votes, choices: 5, share: 0.2)

      for {own, row, winner} <- Enum.zip([votes, counts, winners]) do
        frequencies = Enum.frequencies(own)
        assert row == for(choice <- 0..4, do: Map.get(frequencies, choice, 0))
        most = Enum.max(row)
        best = for {^most, choice} <- Enum.with_index(row), do: choice
        expected = if match?([_one], best) and most > 0.2 * length(own), do: hd(best)
        assert winner == expected
      end
    end
  end

  test "tensors are taken, and wrong votes are named" do
    data = for vote <- [0, 1, 1, 2, 2, 2], into: <<>>, do: <<vote::32-little>>
    tensor = %{data: data, shape: {2, 3}, type: {:u, 32}}
    assert {:ok, %{winners: [1, 2]}} = Votes.tally(tensor, choices: 3)
    assert {:error, %Error{kind: :mismatch}} = Votes.tally(%{tensor | shape: {6}}, choices: 3)
    assert {:error, %Error{kind: :mismatch}} = Votes.tally(%{tensor | type: {:f, 32}}, choices: 3)
    assert Votes.tally([], choices: 3) == {:ok, %{counts: [], winners: []}}

    assert_raise ArgumentError, ~r/vote: expected an integer/, fn ->
      Votes.tally([[-1]], choices: 3)
    end

    assert_raise ArgumentError, ~r/votes: expected lists/, fn -> Votes.tally([1], choices: 3) end
    assert_raise ArgumentError, ~r/option :choices/, fn -> Votes.tally([[1]], []) end
  end
end
