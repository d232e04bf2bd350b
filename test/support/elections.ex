defmodule Sconce.Test.Elections do
  @moduledoc """
  Simulates a group of `Sconce.Leader.Member` with a network that loses, delays, repeats and reorders messages, partitions,
  clocks that drift, members that crash and restart, and wakes that come late. Everything follows from a seed.

  Two members that lead at a time are found: a lead begins at an event, so it is enough to look after each event.
  """

  alias Sconce.Leader.Member

  @lease_us 10_000
  @drifts [0.0, 0.02, 0.2]

  @doc """
  Runs a schedule. Returns `{:ok, summary}`, or `{:error, what, trace}` with the latest events. `bug` plants a mistake.
  """
  def run(seed, opts \\ []) do
    :rand.seed(:exsss, seed)
    faults? = Keyword.get(opts, :faults?, true)
    count = Enum.random(opts[:members] || [3, 3, 3, 5, 5, 2, 4])
    members = Enum.to_list(1..count)

    sim = %{
      time: 0,
      number: 0,
      queue: :gb_sets.new(),
      members: members,
      bug: opts[:bug],
      drift: opts[:drift] || Enum.random(@drifts),
      # Wakes are late in some schedules: then work may go on after the end of its lease, and only leads are compared.
      late?: Keyword.get(opts, :late?, Enum.random([false, true])),
      loss: Enum.random([0.0, 0.0, 0.05, 0.3]),
      twice: Enum.random([0.0, 0.1, 0.5]),
      slow: opts[:slow] || if(faults?, do: Enum.random([0.0, 0.05, 0.3]), else: 0.0),
      faults?: faults?,
      groups: nil,
      nodes: %{},
      working: %{},
      wins: [],
      failed: 0,
      trace: []
    }

    sim = Enum.reduce(members, sim, &at(&2, :rand.uniform(@lease_us), {:start, &1}))
    sim = if sim.faults?, do: faults(sim), else: sim
    sim = loop(sim, (opts[:leases] || 15) * @lease_us)
    {:ok, %{elections: length(sim.wins), failed: sim.failed, leaders: leaders(sim)}}
  catch
    {:wrong, what, sim} -> {:error, what, Enum.reverse(Enum.take(sim.trace, 40))}
  end

  defp faults(sim) do
    sim
    |> at(:rand.uniform(4 * @lease_us), :crash)
    |> at(:rand.uniform(6 * @lease_us), :cut)
    |> at(:rand.uniform(6 * @lease_us), :resign)
    |> at(:rand.uniform(2 * @lease_us), :drift)
  end

  # Events

  defp at(sim, delay, event) do
    key = {sim.time + max(round(delay), 0), sim.number, event}
    %{sim | queue: :gb_sets.add(key, sim.queue), number: sim.number + 1}
  end

  defp loop(sim, most) do
    {{time, _number, event}, queue} = :gb_sets.take_smallest(sim.queue)

    if time > most do
      sim
    else
      sim = %{sim | time: time, queue: queue, trace: [{time, event} | sim.trace]}
      sim |> event(event) |> checked() |> loop(most)
    end
  end

  defp event(sim, {:start, member}) do
    id = {member, sim.number}
    node = %{id: id, offset: :rand.uniform(1_000_000) - 500_000, at: sim.time, rate: rate(sim)}
    node = Map.put(node, :skew, :rand.uniform(@lease_us) - div(@lease_us, 2))
    config = %{members: sim.members, lease_us: @lease_us, renew_us: 2_000, shutdown_us: 2_000}
    config = Map.put(config, :drift, if(sim.bug == :no_margin, do: 0.0, else: sim.drift))
    quiet = if sim.bug == :no_quiet, do: [quiet_us: 0], else: []
    opts = quiet ++ [seed: sim.number, candidate: not sim.faults? or :rand.uniform(8) > 1]
    m = Member.new(config, member, id, local(node, sim.time), opts)
    sim |> put(member, Map.merge(node, %{m: m, token: nil})) |> woken(member)
  end

  defp event(sim, {:wake, member, token}) do
    case sim.nodes[member] do
      %{token: ^token} = node -> step(sim, member, &Member.tick(&1, &2, wall(sim, node)))
      _older -> sim
    end
  end

  defp event(sim, {:deliver, member, from, message}) do
    case sim.nodes do
      %{^member => _node} ->
        step(planted(sim, member, message), member, &take(&1, &2, from, message, sim.bug))

      _down ->
        sim
    end
  end

  defp event(sim, {:ended, member, id}) do
    case sim do
      %{nodes: %{^member => %{id: ^id}}, working: %{^member => ^id}} ->
        sim = %{sim | working: Map.delete(sim.working, member)}
        step(sim, member, &Member.ended/2)

      _gone ->
        sim
    end
  end

  defp event(sim, :crash) do
    sim = at(sim, :rand.uniform(4 * @lease_us), :crash)
    # Leaders and their voters are the interesting ones.
    member = Enum.random(leaders(sim) ++ sim.members)

    if is_map_key(sim.nodes, member) do
      down = Enum.random([10, 500, @lease_us, 3 * @lease_us])

      sim = %{
        sim
        | nodes: Map.delete(sim.nodes, member),
          working: Map.delete(sim.working, member)
      }

      at(sim, :rand.uniform(down), {:start, member})
    else
      sim
    end
  end

  defp event(sim, :cut) do
    groups = Map.new(sim.members, &{&1, :rand.uniform(3)})
    sim = at(%{sim | groups: groups}, :rand.uniform(3 * @lease_us), :heal)
    at(sim, :rand.uniform(8 * @lease_us), :cut)
  end

  defp event(sim, :heal), do: %{sim | groups: nil}

  defp event(sim, :resign) do
    sim = at(sim, :rand.uniform(6 * @lease_us), :resign)

    Enum.reduce(leaders(sim), sim, fn member, sim ->
      step(sim, member, &Member.resign(&1, &2, :resigned))
    end)
  end

  defp event(sim, :drift) do
    sim = at(sim, :rand.uniform(2 * @lease_us), :drift)
    member = Enum.random(sim.members)

    case sim.nodes do
      %{^member => node} ->
        node = %{node | offset: local(node, sim.time), at: sim.time, rate: rate(sim)}
        sim |> put(member, node) |> woken(member)

      _down ->
        sim
    end
  end

  # Clocks

  defp rate(%{drift: drift}), do: Enum.random([1 - drift, 1.0, 1 + drift])
  defp local(node, time), do: node.offset + floor((time - node.at) * node.rate)
  defp wall(sim, node), do: max(1_000_000 + sim.time + node.skew, 0)

  # Members

  defp put(sim, member, node), do: %{sim | nodes: Map.put(sim.nodes, member, node)}

  defp step(sim, member, work) do
    node = sim.nodes[member]
    {effects, m} = work.(node.m, local(node, sim.time))
    sim = put(sim, member, %{node | m: m})
    effects |> Enum.reduce(sim, &effect(&2, member, &1)) |> woken(member)
  end

  defp woken(sim, member) do
    node = sim.nodes[member]

    case Member.wake_at(node.m) do
      nil ->
        sim

      wake_at ->
        delay = ceil((wake_at - local(node, sim.time)) / node.rate)
        late = if sim.late? and :rand.uniform(10) == 1, do: :rand.uniform(2 * @lease_us), else: 0
        token = sim.number

        sim
        |> put(member, %{node | token: token})
        |> at(max(delay, 1) + late, {:wake, member, token})
    end
  end

  defp effect(sim, member, {:send, to, message}) do
    sim = sent(sim, member, to, message)
    if :rand.uniform() < sim.twice, do: sent(sim, member, to, message), else: sim
  end

  defp effect(sim, member, {:won, term}) do
    for {time, earlier} <- Enum.take(sim.wins, 1), earlier >= term do
      throw({:wrong, {:term, term, earlier, time}, sim})
    end

    working = Map.put(sim.working, member, sim.nodes[member].id)
    %{sim | wins: [{sim.time, term} | sim.wins], working: working}
  end

  defp effect(sim, member, {:stop, _reason}) do
    at(sim, :rand.uniform(Enum.random([10, 4_000])), {:ended, member, sim.nodes[member].id})
  end

  defp effect(sim, member, :kill), do: at(sim, 0, {:ended, member, sim.nodes[member].id})

  defp effect(sim, member, {:lost, _reason}),
    do: %{sim | working: Map.delete(sim.working, member)}

  defp effect(sim, _member, :failed), do: %{sim | failed: sim.failed + 1}

  defp sent(sim, from, to, message) do
    cut? = sim.groups != nil and sim.groups[from] != sim.groups[to]
    lost? = sim.faults? and :rand.uniform() < sim.loss
    slow? = :rand.uniform() < sim.slow
    delay = if slow?, do: :rand.uniform(2 * @lease_us), else: :rand.uniform(200)
    if cut? or lost?, do: sim, else: at(sim, delay, {:deliver, to, from, message})
  end

  defp take(m, now, from, message, bug), do: Member.message(m, now, from, mistaken(message, bug))

  # A voter that ignores the round of a release.
  defp mistaken({:release, id, _round}, :any_release), do: {:release, id, 1_000_000_000}
  # A voter that takes each candidate for the leader, whose term it does not compare.
  defp mistaken({:ask, digest, id, ask}, :any_term), do: {:ask, digest, id, %{ask | leads?: true}}
  defp mistaken(message, _bug), do: message

  # A candidate that counts a grant from its arrival.
  defp planted(%{bug: :from_arrival} = sim, member, {:granted, {member, _} = id, round}) do
    case sim.nodes[member] do
      %{id: ^id, m: %{candidate: %{asked: %{^round => _at}} = candidate} = m} = node ->
        asked = Map.put(candidate.asked, round, local(node, sim.time))
        put(sim, member, %{node | m: %{m | candidate: %{candidate | asked: asked}}})

      _late ->
        sim
    end
  end

  # A voter that forgets its vote halfway.
  defp planted(%{bug: :half_lease} = sim, member, _message) do
    node = sim.nodes[member]
    vote = %{node.m.vote | lease_us: div(@lease_us, 2)}
    put(sim, member, %{node | m: %{node.m | vote: vote}})
  end

  defp planted(sim, _member, _message), do: sim

  # The property

  defp leaders(sim) do
    for {member, node} <- sim.nodes, Member.leading?(node.m, local(node, sim.time)), do: member
  end

  defp checked(sim) do
    case leaders(sim) do
      [_one, _two | _] = several -> throw({:wrong, {:leaders, several}, sim})
      _one -> :ok
    end

    if not sim.late? and map_size(sim.working) > 1,
      do: throw({:wrong, {:working, sim.working}, sim}),
      else: sim
  end
end
