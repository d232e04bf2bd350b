defmodule Sconce.Votes do
  alias Sconce.Compress.Numbers
  alias Sconce.{Error, Native, Options}
  alias Sconce.Native.Call

  @schema [
    choices: [
      type: :pos_integer,
      required: true,
      max: 2 ** 24,
      doc: "Number of choices; a vote is an integer from 0."
    ],
    share: [
      type: :float,
      default: 0.0,
      min: 0.0,
      max: 1.0,
      doc: "A winner has more than this share of the votes of its question: 0.5 is a majority."
    ]
  ]
  # No winner, in native results.
  @none 0xFFFF_FFFF

  @moduledoc """
  Counts votes: of policies that decide together, or of nodes.

      iex> votes = [[0, 2, 2], [1, 1], [0, 1]]
      iex> Sconce.Votes.tally(votes, choices: 3)
      {:ok, %{counts: [[1, 0, 2], [0, 2, 0], [1, 1, 0]], winners: [2, 1, nil]}}

  Who leads across nodes is another question, with messages that are late or lost: see `Sconce.Leader`.
  """

  @doc """
  Counts the votes of each question in one native pass, and names the winners.

  Questions are lists of votes, of any length, or a tensor `{questions, voters}` of integers: an `Nx.Tensor`, or a map of
  `data`, `shape` and `type` with the type `{:u, 32}`. A winner has more votes than each other choice; without one the
  winner is `nil`.

  #{Options.docs(@schema)}

  Kinds of error: `:out_of_range` for a vote for a choice that does not exist, `:mismatch` for another tensor.

      iex> Sconce.Votes.tally([[0, 0, 1, 2]], choices: 3, share: 0.5)
      {:ok, %{counts: [[2, 1, 1]], winners: [nil]}}
      iex> {:error, error} = Sconce.Votes.tally([[0], [5]], choices: 3)
      iex> Exception.message(error)
      "tally: a vote of question 1: 5 is outside 0..2"
  """
  @spec tally([[non_neg_integer]] | struct | map, keyword) ::
          {:ok, %{counts: [[non_neg_integer]], winners: [non_neg_integer | nil]}}
          | {:error, Error.t()}
  def tally(questions, opts) do
    [choices: choices, share: share] = Options.validate!(opts, @schema)

    with {:ok, votes, voters} <- packed(questions),
         {:ok, {counts, winners}} <-
           Call.anywhere(&Native.votes_tally(&1, votes, voters, choices, share)) do
      {:ok, %{counts: rows(counts, 4 * choices), winners: for(n <- words(winners), do: some(n))}}
    end
  end

  defp packed(questions) when is_list(questions) and length(questions) >= 0 do
    votes = for votes <- questions, into: <<>>, do: votes |> list!() |> numbers()
    {:ok, votes, for(votes <- questions, into: <<>>, do: <<length(votes)::32-little>>)}
  end

  defp packed(tensor) when is_map(tensor) do
    case Numbers.read(tensor, {:u, 32}, "votes", :tally) do
      {:ok, %{data: data, shape: {questions, voters}}} ->
        {:ok, data, :binary.copy(<<voters::32-little>>, questions)}

      {:ok, %{shape: shape}} ->
        Numbers.misfit("votes", "a row for each question", "the shape #{inspect(shape)}", :tally)

      {:error, _error} = failed ->
        failed
    end
  end

  defp packed(other), do: expected!(other)

  defp list!(votes) when is_list(votes) and length(votes) >= 0, do: votes
  defp list!(other), do: expected!(other)

  defp numbers(votes), do: for(vote <- votes, into: <<>>, do: <<vote!(vote)::32-little>>)

  defp vote!(vote) when vote in 0..0xFFFF_FFFF, do: vote
  defp vote!(other), do: Options.argument!("vote", other, "an integer from 0 to 2^32 - 1")

  defp expected!(other),
    do: Options.argument!("votes", other, "lists of integers, or a tensor {questions, voters}")

  defp rows(counts, bytes),
    do: for(<<row::binary-size(bytes) <- counts>>, do: words(row))

  defp words(binary), do: for(<<word::32-little <- binary>>, do: word)

  defp some(@none), do: nil
  defp some(winner), do: winner
end
