defmodule Sconce.Leader.Vote do
  @moduledoc false
  # The vote of one member: it is granted to one candidate at a time, for a lease by this member's monotonic clock.
  # Pure: the time is an argument, in microseconds.
  #
  # A new vote is granted to none for the time `quiet_us`. Nothing is on disk, so that the process before this one may
  # have granted the vote just before it ended, for at most one lease.

  @enforce_keys [:lease_us, :quiet_until]
  defstruct @enforce_keys ++ [term: 0, holder: nil, round: 0, until: 0]

  @type id :: term
  @type t :: %__MODULE__{
          lease_us: pos_integer,
          quiet_until: integer,
          term: non_neg_integer,
          holder: id | nil,
          round: non_neg_integer,
          until: integer
        }

  @spec new(pos_integer, non_neg_integer, integer) :: t
  def new(lease_us, quiet_us, now),
    do: %__MODULE__{lease_us: lease_us, quiet_until: now + quiet_us, until: now}

  @doc """
  Grants the vote to the candidate `id` until a lease from now, or refuses it.

  A candidate needs a term above all terms of earlier grants. A leader renews the term that it has: since its election
  no other candidate has had a majority.
  """
  @spec ask(t, integer, id, map) :: {:granted | :refused, t}
  def ask(vote, now, id, ask) do
    if free?(vote, now, id) and (ask.leads? or above?(vote, id, ask.term)),
      do: {:granted, granted(vote, now, id, ask)},
      else: {:refused, vote}
  end

  # A grant that still counts for another candidate is kept.
  defp free?(vote, now, id), do: now >= vote.quiet_until and holder(vote, now) in [nil, id]

  # A repeated question of the same candidate has the term of its grant.
  defp above?(%{term: term} = vote, id, asked),
    do: asked > term or (asked == term and vote.holder == id)

  # Messages may be late or repeated: an earlier question never shortens a grant.
  defp granted(%{holder: id} = vote, now, id, ask) do
    until = max(vote.until, now + vote.lease_us)
    %{vote | until: until, round: max(vote.round, ask.round), term: max(vote.term, ask.term)}
  end

  defp granted(vote, now, id, ask) do
    term = max(vote.term, ask.term)
    %{vote | holder: id, until: now + vote.lease_us, round: ask.round, term: term}
  end

  @doc """
  Takes back the grants of the rounds up to `round`, which the candidate no longer counts. A later grant stays, as the
  candidate may count it.
  """
  @spec release(t, id, non_neg_integer) :: t
  def release(%{holder: id, round: granted} = vote, id, round) when granted <= round,
    do: %{vote | holder: nil}

  def release(vote, _id, _round), do: vote

  @doc "The candidate that has the vote, or nil."
  @spec holder(t, integer) :: id | nil
  def holder(vote, now), do: if(now < vote.until, do: vote.holder)

  @doc "The time before which no other candidate gets the vote."
  @spec busy_until(t) :: integer
  def busy_until(%{holder: nil, quiet_until: quiet}), do: quiet
  def busy_until(%{until: until, quiet_until: quiet}), do: max(until, quiet)
end
