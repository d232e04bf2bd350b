defmodule Sconce.Leader.Candidate do
  @moduledoc false
  # A candidate: it asks all members for their votes, in rounds, and leads while it has grants of a majority. Pure: the
  # time is an argument, in microseconds of this member's monotonic clock.
  #
  # A grant counts from the time at which its round was asked, and less than the lease: `valid_us` is shorter by twice
  # the permitted drift of clocks. The member granted later than that, for a whole lease, so that the grant ends here
  # before it ends there. Two majorities have a member in common, so that at no time two candidates lead.
  #
  # Grants of rounds up to `floor` never count again: the candidate has released them.

  @enforce_keys [:id, :members, :lease_us, :valid_us, :renew_us, :shutdown_us, :due, :rand]
  defstruct @enforce_keys ++
              [
                role: :idle,
                term: 0,
                seen: 0,
                round: 0,
                floor: 0,
                until: nil,
                asked: %{},
                grants: %{},
                refused: [],
                tries: 0,
                back_until: nil,
                ending: nil
              ]

  @type role :: :idle | :asking | :leading | :stopping
  @type effect ::
          {:ask, map}
          | {:release, non_neg_integer}
          | {:release, term, non_neg_integer}
          | {:won, pos_integer}
          | {:stop, atom}
          | :kill
          | {:lost, atom}
  @type t :: %__MODULE__{}

  @doc """
  A candidate `id`. `config` has `members`, `lease_us`, `valid_us`, `renew_us`, and `shutdown_us`: the time before the
  end of the lease at which the work of the leader is stopped.
  """
  @spec new(map, term, integer, term) :: t
  def new(config, id, now, seed) do
    own = Map.take(config, [:members, :lease_us, :valid_us, :renew_us, :shutdown_us])
    struct!(__MODULE__, Map.merge(own, %{id: id, due: now, rand: :rand.seed_s(:exsss, seed)}))
  end

  @doc "Whether grants of a majority count now."
  @spec leading?(t, integer) :: boolean
  def leading?(%{role: role, until: until}, now),
    do: role in [:leading, :stopping] and now < until

  @doc "The time of the next `tick/4`."
  @spec wake_at(t) :: integer
  def wake_at(%{role: role} = c) when role in [:idle, :asking], do: c.due
  def wake_at(%{role: :leading} = c), do: min(c.due, c.until - c.shutdown_us)
  def wake_at(%{role: :stopping, ending: {_reason, nil}} = c), do: c.until
  def wake_at(%{role: :stopping, ending: {_reason, kill_at}} = c), do: min(kill_at, c.until)

  @doc """
  Does what is due. `wall` is the time of day in microseconds, from which new terms come; `busy_until` is the time before
  which this member's own vote is not free.
  """
  @spec tick(t, integer, non_neg_integer, integer) :: {[effect], t}
  def tick(%{role: :idle, due: due} = c, now, _wall, _busy) when now < due, do: {[], c}

  def tick(%{role: :idle} = c, now, _wall, busy) when now < busy do
    {wait, c} = random(c, spread(c))
    {[], %{c | due: busy + wait}}
  end

  def tick(%{role: :idle} = c, now, wall, _busy) do
    # A majority that has restarted knows no terms: the time of day is above the earlier ones.
    c = %{c | role: :asking, term: max(c.seen + 1, wall), refused: [], grants: %{}}
    {effects, c} = ask(%{c | seen: c.term}, now)
    {effects, %{c | due: now + patience(c)}}
  end

  def tick(%{role: :asking, due: due} = c, now, _wall, _busy) when now >= due, do: failed(c, now)
  def tick(%{role: :asking} = c, _now, _wall, _busy), do: {[], c}

  def tick(%{role: :leading, until: until} = c, now, _wall, _busy) when now >= until,
    do: lost(c, now, :expired)

  def tick(%{role: :leading, until: until, shutdown_us: shutdown} = c, now, _wall, _busy)
      when now >= until - shutdown,
      do: stop(c, now, :expired)

  def tick(%{role: :leading, due: due} = c, now, _wall, _busy) when now >= due, do: ask(c, now)
  def tick(%{role: :leading} = c, _now, _wall, _busy), do: {[], c}

  def tick(%{role: :stopping, ending: {reason, kill_at}} = c, now, _wall, _busy) do
    cond do
      now >= c.until -> lost(c, now, reason)
      kill_at != nil and now >= kill_at -> {[:kill], %{c | ending: {reason, nil}}}
      true -> {[], c}
    end
  end

  # Rounds

  defp ask(c, now) do
    round = c.round + 1
    ask = %{round: round, term: c.term, leads?: c.role == :leading}
    asked = for {r, at} <- c.asked, now < at + c.valid_us, into: %{}, do: {r, at}
    {[{:ask, ask}], %{c | round: round, asked: Map.put(asked, round, now), due: now + c.renew_us}}
  end

  @doc "A member has granted its vote in a round."
  @spec granted(t, integer, term, non_neg_integer) :: {[effect], t}
  def granted(c, now, member, round) do
    case c.asked do
      %{^round => at} when c.role in [:asking, :leading] -> counted(c, now, member, at)
      # The vote is of no use here, and may be to others.
      _released when round <= c.floor -> {[{:release, member, c.floor}], c}
      _late -> {[], c}
    end
  end

  defp counted(c, now, member, at) do
    grants = Map.update(c.grants, member, at + c.valid_us, &max(&1, at + c.valid_us))
    c = %{c | grants: grants, until: majority_until(grants, quorum(c))}

    if c.role == :asking and c.until != nil and now < c.until,
      # The first renewal says who leads.
      do: {[{:won, c.term}], %{c | role: :leading, due: now, tries: 0}},
      else: {[], c}
  end

  # The time until which as many grants count as are needed.
  defp majority_until(grants, quorum),
    do: grants |> Map.values() |> Enum.sort(:desc) |> Enum.at(quorum - 1)

  @doc "Votes that are needed: more than half of the members."
  @spec quorum(t) :: pos_integer
  def quorum(%{members: members}), do: div(length(members), 2) + 1

  @doc "A member has refused its vote in a round; `term` is the highest one that it knows."
  @spec refused(t, integer, term, non_neg_integer, non_neg_integer) :: {[effect], t}
  def refused(c, now, member, round, term) do
    c = %{c | seen: max(c.seen, term)}

    if c.role == :asking and round == c.round do
      c = %{c | refused: Enum.uniq([member | c.refused])}
      hopeless? = length(c.members) - length(c.refused) < quorum(c)
      if hopeless?, do: failed(c, now), else: {[], c}
    else
      {[], c}
    end
  end

  # Ends

  defp failed(c, now) do
    {wait, c} = random(c, spread(c))
    {effects, c} = released(%{c | tries: c.tries + 1})
    {effects, later(%{c | role: :idle}, now + wait)}
  end

  @doc "Gives the lead to others: this candidate asks for no vote for a lease."
  @spec resign(t, integer, atom) :: {[effect], t}
  def resign(%{role: :leading, shutdown_us: 0} = c, now, reason), do: lost(c, now, reason)
  def resign(%{role: :leading} = c, now, reason), do: stop(c, now, reason)
  def resign(c, _now, _reason), do: {[], c}

  # The work gets half of the time to end by itself, and is then killed.
  defp stop(c, now, reason) do
    kill_at = min(now + c.shutdown_us, c.until - div(c.shutdown_us, 2))
    {[{:stop, reason}], %{c | role: :stopping, ending: {reason, kill_at}}}
  end

  @doc "The work of the leader has ended, as `{:stop, reason}` wanted."
  @spec ended(t, integer) :: {[effect], t}
  def ended(%{role: :stopping, ending: {reason, _kill_at}} = c, now), do: lost(c, now, reason)
  def ended(c, _now), do: {[], c}

  # The order matters: the release follows the end.
  defp lost(c, now, reason) do
    back = if reason == :expired, do: now, else: now + c.lease_us
    {wait, c} = random(c, spread(c))
    {effects, c} = released(%{c | back_until: back})
    {[{:lost, reason} | effects], later(%{c | role: :idle, ending: nil}, now + wait)}
  end

  defp released(c) do
    c = %{c | floor: c.round, asked: %{}, grants: %{}, until: nil}
    {[{:release, c.round}], c}
  end

  @doc "This member's vote is free earlier than was known, by a leader (`leader?`) or by another candidate."
  @spec freed(t, integer, boolean) :: t
  def freed(%{role: :idle} = c, now, leader?) do
    {wait, c} = random(c, if(leader?, do: div(c.lease_us, 200), else: spread(c)))
    later(c, min(c.due, now + wait))
  end

  def freed(c, _now, _leader?), do: c

  defp later(%{back_until: nil} = c, due), do: %{c | due: due}
  defp later(c, due), do: %{c | due: max(due, c.back_until)}

  # Members that are dead do not answer, so an election that others have refused ends soon; a slow network gets more.
  defp patience(c), do: div(c.lease_us, 40) * Bitwise.bsl(1, min(c.tries, 4))

  # Candidates that ask at the same time take votes from each other, so each waits for a random time, which doubles.
  defp spread(c), do: div(c.lease_us, 20) * Bitwise.bsl(1, min(c.tries, 3))

  defp random(c, most) do
    {wait, rand} = :rand.uniform_s(most + 1, c.rand)
    {wait - 1, %{c | rand: rand}}
  end
end
