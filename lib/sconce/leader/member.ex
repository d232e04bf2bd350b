defmodule Sconce.Leader.Member do
  @moduledoc false
  # A member of a group: its vote, and perhaps a candidate. Pure: times, messages and their senders are arguments, and
  # effects are a list. `Sconce.Leader` sends the messages, and a test simulates the network and the clocks.
  #
  # | message | meaning |
  # |---|---|
  # | `{:ask, digest, id, ask}` | a candidate asks for the vote, or a leader renews it |
  # | `{:granted, id, round}` | the answer to a candidate |
  # | `{:refused, id, round, term}` | the answer to a candidate, with the highest term of the member |
  # | `{:misfit, id}` | the answer to a candidate whose members or times are others |
  # | `{:release, id, round}` | a candidate no longer counts the grants up to a round |

  alias Sconce.Leader.{Candidate, Vote}

  @enforce_keys [:member, :config, :digest, :vote]
  defstruct @enforce_keys ++ [candidate: nil, work: nil, heard: nil]

  @type t :: %__MODULE__{}
  @type effect ::
          {:send, term, tuple}
          | {:won, pos_integer}
          | {:stop, atom}
          | :kill
          | {:lost, atom}
          | {:misfit, term}
          | :failed

  @doc """
  A member. `config` has `members`, `lease_us`, `renew_us`, `shutdown_us` and `drift`, a share; `id` names the process,
  no later one has the same.
  """
  @spec new(map, term, term, integer, keyword) :: t
  def new(config, member, id, now, opts \\ []) do
    config = Map.put(config, :valid_us, valid_us(config))
    quiet_us = Keyword.get(opts, :quiet_us, quiet_us(config))

    candidate =
      if Keyword.get(opts, :candidate, true),
        do: Candidate.new(config, id, now, Keyword.get(opts, :seed, 0))

    %__MODULE__{
      member: member,
      config: config,
      digest: digest(config),
      vote: Vote.new(config.lease_us, quiet_us, now),
      candidate: candidate
    }
  end

  # One clock may be slow and the other fast.
  defp valid_us(%{lease_us: lease, drift: drift}), do: floor(lease * (1 - drift) / (1 + drift))

  # The vote of an only member can be granted to this process alone.
  defp quiet_us(%{members: [_one]}), do: 0

  # The grant of the process before this one may end later by its candidate's clock than by this one.
  defp quiet_us(config), do: config.lease_us

  # The version of the messages is a part of what members agree on.
  @version 1

  defp digest(config) do
    agreed = {@version, Enum.sort(config.members), config.lease_us, config.drift}
    :erlang.md5(:erlang.term_to_binary(agreed))
  end

  @doc "Whether this member leads at this time."
  @spec leading?(t, integer) :: boolean
  def leading?(%{candidate: nil}, _now), do: false
  def leading?(m, now), do: Candidate.leading?(m.candidate, now)

  @doc "The leader that this member has heard of: `{id, member, term, work}`, or nil."
  @spec leader(t, integer) :: {term, term, pos_integer, term} | nil
  def leader(%{heard: {id, member, term, work, until}}, now) when now < until,
    do: {id, member, term, work}

  def leader(_m, _now), do: nil

  @doc "The time of the next `tick/3`, or nil."
  @spec wake_at(t) :: integer | nil
  def wake_at(%{candidate: nil}), do: nil
  def wake_at(m), do: Candidate.wake_at(m.candidate)

  @doc "Does what is due at this time."
  @spec tick(t, integer, non_neg_integer) :: {[effect], t}
  def tick(%{candidate: nil} = m, _now, _wall), do: {[], m}

  def tick(m, now, wall) do
    # Terms that this member has granted are known to its candidate.
    candidate = %{m.candidate | seen: max(m.candidate.seen, m.vote.term)}
    candidate |> Candidate.tick(now, wall, busy_until(m)) |> followed(m, now)
  end

  # A member that refuses votes after its start may hear a leader.
  defp busy_until(%{heard: {_id, _member, _term, _work, until}} = m),
    do: max(until, Vote.busy_until(m.vote))

  defp busy_until(m), do: Vote.busy_until(m.vote)

  @doc "Takes a message of a member."
  @spec message(t, integer, term, tuple) :: {[effect], t}
  def message(m, now, from, message) do
    if from in m.config.members, do: taken(m, now, from, message), else: {[], m}
  end

  defp taken(%{digest: digest} = m, now, from, {:ask, digest, id, ask}) do
    {answer, vote} = Vote.ask(m.vote, now, id, ask)
    m = heard(%{m | vote: vote}, now, from, id, ask)

    case answer do
      :granted -> sent(m, now, from, {:granted, id, ask.round})
      :refused -> sent(m, now, from, {:refused, id, ask.round, vote.term})
    end
  end

  defp taken(m, now, from, {:ask, _other, id, _ask}) do
    {effects, m} = sent(m, now, from, {:misfit, id})
    {[{:misfit, from} | effects], m}
  end

  defp taken(m, now, _from, {:release, id, round}) do
    heard? = match?({^id, _member, _term, _work, _until}, m.heard)
    m = %{m | vote: Vote.release(m.vote, id, round), heard: if(heard?, do: nil, else: m.heard)}
    {[], if(now >= busy_until(m), do: freed(m, now, id, heard?), else: m)}
  end

  defp taken(%{candidate: %{id: id}} = m, now, from, {:granted, id, round}),
    do: m.candidate |> Candidate.granted(now, from, round) |> followed(m, now)

  defp taken(%{candidate: %{id: id}} = m, now, from, {:refused, id, round, term}),
    do: m.candidate |> Candidate.refused(now, from, round, term) |> followed(m, now)

  defp taken(%{candidate: %{id: id}} = m, _now, from, {:misfit, id}), do: {[{:misfit, from}], m}
  # An answer to a process that has ended.
  defp taken(m, _now, _from, _message), do: {[], m}

  defp freed(%{candidate: nil} = m, _now, _id, _leader?), do: m
  # A candidate that has failed waits as long as it has chosen.
  defp freed(%{candidate: %{id: id}} = m, _now, id, _leader?), do: m

  defp freed(m, now, _id, leader?),
    do: %{m | candidate: Candidate.freed(m.candidate, now, leader?)}

  # A candidate is no leader.
  defp heard(m, _now, _from, _id, %{leads?: false}), do: m

  # Messages may come out of order: an older term is not the leader's.
  defp heard(%{heard: {other, _, newer, _, until}} = m, now, _from, id, %{term: term})
       when other != id and newer > term and now < until,
       do: m

  defp heard(m, now, from, id, ask),
    do: %{m | heard: {id, from, ask.term, ask.work, now + m.config.lease_us}}

  @doc "Names the process that does the work of this leader, for the other members."
  @spec put_work(t, integer, term) :: t
  def put_work(m, now, work),
    do: %{m | work: work, candidate: %{m.candidate | due: min(m.candidate.due, now)}}

  @doc "Gives the lead to others, if this member has it."
  @spec resign(t, integer, atom) :: {[effect], t}
  def resign(%{candidate: nil} = m, _now, _reason), do: {[], m}

  def resign(m, now, reason),
    do: m.candidate |> Candidate.resign(now, reason) |> followed(m, now)

  @doc "The work of this leader has ended, as `{:stop, reason}` wanted."
  @spec ended(t, integer) :: {[effect], t}
  def ended(m, now), do: m.candidate |> Candidate.ended(now) |> followed(m, now)

  # Effects of the candidate

  defp followed({effects, candidate}, m, now) do
    lost? = m.candidate.role == :asking and candidate.role == :idle
    {more, m} = Enum.flat_map_reduce(effects, %{m | candidate: candidate}, &effect(&1, &2, now))
    {if(lost?, do: [:failed | more], else: more), m}
  end

  defp effect({:ask, ask}, m, now) do
    message = {:ask, m.digest, m.candidate.id, Map.put(ask, :work, m.work)}
    to_all(m, now, message)
  end

  defp effect({:release, round}, m, now), do: to_all(m, now, {:release, m.candidate.id, round})

  defp effect({:release, member, round}, m, now),
    do: sent(m, now, member, {:release, m.candidate.id, round})

  defp effect({:lost, _reason} = lost, m, _now), do: {[lost], %{m | work: nil}}
  defp effect(other, m, _now), do: {[other], m}

  # This member's own answer comes last: a majority of the others may be there by then.
  defp to_all(m, now, message) do
    others = List.delete(m.config.members, m.member) ++ [m.member]
    Enum.flat_map_reduce(others, m, &sent(&2, now, &1, message))
  end

  # Messages to this member itself are taken at once.
  defp sent(%{member: member} = m, now, member, message), do: taken(m, now, member, message)
  defp sent(m, _now, member, message), do: {[{:send, member, message}], m}
end
