defmodule Sconce.Leader.Server do
  @moduledoc false
  # The process of a member: gives messages, times and ends of the child to `Sconce.Leader.Member`, and carries out the
  # effects.
  #
  # The end of the lease, the term and the end of what is known of the leader lie in atomics, which callers on this node
  # read without this process. They are written before the effects are carried out: a member no longer leads when its
  # release is sent.

  use Sconce.Server

  alias Sconce.{Error, Events}
  alias Sconce.Leader.{Member, Post, Times, Vote, Work}

  require Logger

  @registry Sconce.Serving.Registry
  @until 1
  @term 2
  @heard 3
  @granted 4

  defp now, do: System.monotonic_time(:microsecond)

  # Read by callers

  @doc "The term of a member of this node that leads now."
  @spec term(atom) :: {:ok, pos_integer} | {:error, Error.t()}
  def term(name) do
    with {_pid, %{atomics: atomics}} <- entry(name),
         # The term is written before the time, so that it is not an older one.
         until = :atomics.get(atomics, @until),
         term = :atomics.get(atomics, @term),
         true <- now() < until do
      {:ok, term}
    else
      _not -> {:error, unavailable(:term, name, "this member does not lead")}
    end
  end

  @doc "The leader that a member of this node knows: `{node, term, child}`, or nil."
  @spec view(atom) :: {node, pos_integer, pid | nil} | nil
  def view(name) do
    with {_pid, %{atomics: atomics, view: view}} <- entry(name),
         true <- now() < :atomics.get(atomics, @heard) do
      view
    else
      _none -> nil
    end
  end

  @doc """
  Returns the published figures of a member of this node: `leader`, its `term`, the number of `members`, and, if this member leads,
  the number of `granted` votes and `left_us` of the lease; nil without a member.
  """
  @spec glance(atom) :: map | nil
  def glance(name) do
    with {_pid, %{atomics: atomics, members: members}} <- entry(name) do
      left = :atomics.get(atomics, @until) - now()
      {leader, term, _child} = view(name) || {nil, nil, nil}
      {granted, left} = if left > 0, do: {:atomics.get(atomics, @granted), left}, else: {nil, nil}
      %{leader: leader, term: term, members: members, granted: granted, left_us: left}
    end
  end

  defp entry(name) do
    @registry |> Registry.lookup({Sconce.Leader, name}) |> List.first()
  rescue
    # The registry restarts.
    ArgumentError -> nil
  end

  defp unavailable(op, name, reason) do
    details = %{what: "leader of #{inspect(name)}", reason: reason}
    %Error{kind: :unavailable, op: op, details: details}
  end

  # The process

  @impl true
  def init(opts) do
    Process.flag(:trap_exit, true)
    telemetry? = Events.telemetry?()
    atomics = :atomics.new(4, signed: true)
    for slot <- [@until, @heard], do: :atomics.put(atomics, slot, now())
    entry = %{atomics: atomics, view: nil, members: length(opts.members)}
    {:ok, _pid} = Registry.register(@registry, {Sconce.Leader, opts.name}, entry)
    others = List.delete(opts.members, node())

    state = %{
      name: opts.name,
      opts: opts,
      member: member(opts),
      atomics: atomics,
      view: nil,
      posts: Map.new(others, &{&1, Post.start_link(&1, opts.name)}),
      timer: nil,
      work: nil,
      dying: [],
      led: nil,
      counts: %{asked: 0, elections: 0, step_downs: 0},
      times: Times.new(),
      telemetry?: telemetry?,
      subscribers: %{},
      # Callers of `await`: monitor => {ref, from}.
      waiting: %{},
      resigning: [],
      misfits: []
    }

    {:ok, step(state, &Member.tick(&1, &2, wall()))}
  end

  defp member(opts) do
    us = fn ms -> ms * 1000 end

    config = %{
      members: opts.members,
      lease_us: us.(opts.lease_ms),
      renew_us: us.(opts.renew_ms),
      shutdown_us: if(opts.start, do: us.(opts.shutdown_ms), else: 0),
      drift: opts.drift
    }

    # Members that start together wait for different times.
    seed = :erlang.phash2({node(), self(), System.os_time()})
    Member.new(config, node(), self(), now(), candidate: opts.candidate, seed: seed)
  end

  # The time of day does not follow a suspended VM's own clock.
  defp wall, do: System.os_time(:microsecond)

  # Gives the member something to do, and carries out its effects.
  defp step(state, work) do
    {effects, member} = work.(state.member, now())
    state = publish(%{state | member: member})
    effects |> Enum.reduce(state, &effect/2) |> seen() |> timed()
  end

  defp publish(%{member: %{candidate: %{role: role} = candidate}} = state)
       when role in [:leading, :stopping] do
    :atomics.put(state.atomics, @granted, length(granted_by(candidate, now())))
    :atomics.put(state.atomics, @term, candidate.term)
    :atomics.put(state.atomics, @until, candidate.until)
    state
  end

  defp publish(state) do
    :atomics.put(state.atomics, @until, min(:atomics.get(state.atomics, @until), now()))
    state
  end

  defp effect({:send, member, message}, state) do
    Post.post(state.posts[member], {:sconce_leader, node(), message})
    state
  end

  defp effect({:won, term}, state) do
    candidate = state.member.candidate
    state = %{counted(state, :elections) | led: now()}
    state = emit(state, %{event: :elected, term: term, election_us: now() - first(candidate)})
    if start = state.opts.start, do: begun(state, start), else: state
  end

  defp effect({:stop, _reason}, %{work: nil} = state), do: ended(state)

  defp effect({:stop, _reason}, %{work: {pid, _monitor, _child}} = state) do
    Work.stop(pid)
    state
  end

  defp effect(:kill, state), do: killed(state)

  defp effect({:lost, reason}, state) do
    state = state |> killed() |> counted(:step_downs)
    for from <- state.resigning, do: GenServer.reply(from, :ok)
    led_us = now() - state.led
    term = :atomics.get(state.atomics, @term)
    Logger.info("leader #{inspect(state.name)}: #{node()} no longer leads (#{reason})")
    down = %{event: :stepped_down, term: term, led_us: led_us, reason: reason}
    emit(%{state | led: nil, resigning: []}, down)
  end

  defp effect(:failed, state) do
    emit(counted(state, :asked), %{event: :failed, term: state.member.candidate.term})
  end

  defp effect({:misfit, member}, state) do
    if member in state.misfits do
      state
    else
      Logger.warning("leader #{inspect(state.name)}: #{member} has other members or times")
      emit(%{state | misfits: [member | state.misfits]}, %{event: :misfit, member: member})
    end
  end

  # The round of an election that was won is the latest one.
  defp first(candidate), do: Map.get(candidate.asked, candidate.round, now())

  defp counted(state, :elections),
    do: %{state | counts: Map.update!(state.counts, :elections, &(&1 + 1))} |> counted(:asked)

  defp counted(state, name), do: %{state | counts: Map.update!(state.counts, name, &(&1 + 1))}

  # The child

  defp begun(state, start) do
    pid = Work.start_link(start, state.opts.max_restarts, state.name)
    %{state | work: {pid, Process.monitor(pid), nil}}
  end

  defp killed(%{work: nil} = state), do: state

  defp killed(%{work: {pid, _monitor, _child}} = state),
    do: %{state | dying: Work.kill(pid) ++ state.dying}

  # Effects of a member that is within `effect/2` follow those that are left.
  defp ended(%{work: nil, dying: []} = state) do
    send(self(), :ended)
    state
  end

  defp ended(state), do: state

  # What this member knows of the leader

  defp seen(state) do
    time = now()
    {until, view} = known(state, time)
    :atomics.put(state.atomics, @heard, until)
    if view == state.view, do: state, else: changed(state, view)
  end

  defp known(%{member: member, work: work}, time) do
    cond do
      Member.leading?(member, time) ->
        {member.candidate.until, {node(), member.candidate.term, child(work)}}

      found = Member.leader(member, time) ->
        {_id, node, term, child} = found
        {elem(member.heard, 4), if(node != node(), do: {node, term, child})}

      true ->
        {time, nil}
    end
  end

  defp child({_pid, _monitor, child}), do: child
  defp child(nil), do: nil

  defp changed(state, view) do
    key = {Sconce.Leader, state.name}
    Registry.update_value(@registry, key, &%{&1 | view: view})
    state = %{state | view: view}

    case view do
      {node, _term, _child} -> answered(state, node)
      nil -> state
    end
    |> heard(state.view, view)
  end

  defp answered(state, node) do
    for {monitor, {_ref, from}} <- state.waiting do
      Process.demonitor(monitor, [:flush])
      GenServer.reply(from, {:ok, node})
    end

    %{state | waiting: %{}}
  end

  defp heard(state, _before, {node, _term, _child}) when node == node(), do: state
  defp heard(state, _before, nil), do: emit(state, %{event: :leader, leader: nil, term: nil})

  defp heard(state, _before, {node, term, _child}),
    do: emit(state, %{event: :leader, leader: node, term: term})

  defp emit(state, event) do
    for {_monitor, pid} <- state.subscribers, do: send(pid, {:sconce_leader, state.name, event})
    if state.telemetry?, do: Sconce.Leader.Events.execute(event, state.name)
    state
  end

  defp timed(state) do
    if state.timer, do: :erlang.cancel_timer(state.timer)
    heard = with {_id, _member, _term, _work, until} <- state.member.heard, do: until
    # An atom, such as nil, is above all numbers.
    at = min(Member.wake_at(state.member), if(state.view, do: heard))
    timer = if at, do: :erlang.start_timer(millisecond(at), self(), :wake, abs: true)
    %{state | timer: timer}
  end

  # At this time or up to a millisecond later.
  defp millisecond(us), do: Integer.floor_div(us + 999, 1000)

  # Calls

  @impl true
  def handle_call(:leader, _from, state) do
    case view(state.name) do
      {node, _term, _child} -> {:reply, {:ok, node}, state}
      nil -> {:reply, {:error, unavailable(:leader, state.name, "no member leads")}, state}
    end
  end

  def handle_call(:term, _from, state), do: {:reply, term(state.name), state}

  def handle_call({:await, ref}, {caller, _tag} = from, state) do
    case view(state.name) do
      {node, _term, _child} ->
        {:reply, {:ok, node}, state}

      nil ->
        waiting = Map.put(state.waiting, Process.monitor(caller), {ref, from})
        {:noreply, %{state | waiting: waiting}}
    end
  end

  def handle_call(:resign, from, state) do
    if Member.leading?(state.member, now()) do
      state = %{state | resigning: [from | state.resigning]}
      {:noreply, step(state, &Member.resign(&1, &2, :resigned))}
    else
      {:reply, :ok, state}
    end
  end

  def handle_call({:subscribe, pid}, _from, state) do
    subscribers = Map.put(state.subscribers, Process.monitor(pid), pid)
    {:reply, :ok, %{state | subscribers: subscribers}}
  end

  def handle_call(:status, _from, state), do: {:reply, status(state, now()), state}

  defp status(%{member: member} = state, time) do
    {leader, term} =
      case view(state.name) do
        {leader, term, _child} -> {leader, term}
        nil -> {nil, nil}
      end

    holder = Vote.holder(member.vote, time)

    Map.merge(state.counts, %{
      node: node(),
      members: state.opts.members,
      role: if(member.candidate, do: member.candidate.role, else: :voting),
      leader: leader,
      term: term,
      vote: if(is_pid(holder), do: node(holder)),
      quiet_ms: max(member.vote.quiet_until - time, 0) / 1000,
      granted_by: granted_by(member.candidate, time),
      left_ms: left_ms(member, time),
      child: child(state.work),
      round_trips_us: Times.summary(state.times)
    })
  end

  defp granted_by(%{role: role, grants: grants}, time) when role in [:leading, :stopping],
    do: Enum.sort(for {node, until} <- grants, time < until, do: node)

  defp granted_by(_candidate, _time), do: []

  defp left_ms(member, time) do
    if Member.leading?(member, time), do: (member.candidate.until - time) / 1000
  end

  # Messages

  @impl true
  def handle_cast({:given_up, ref}, state) do
    {gone, waiting} = Enum.split_with(state.waiting, &match?({_monitor, {^ref, _from}}, &1))
    for {monitor, _caller} <- gone, do: Process.demonitor(monitor, [:flush])
    {:noreply, %{state | waiting: Map.new(waiting)}}
  end

  @impl true
  def handle_info({:sconce_leader, from, message}, state) when is_atom(from) do
    state = if from == node(), do: state, else: measured(state, message)
    {:noreply, step(state, &Member.message(&1, &2, from, message))}
  end

  def handle_info({:timeout, timer, :wake}, %{timer: timer} = state),
    do: {:noreply, step(state, &Member.tick(&1, &2, wall()))}

  def handle_info({:work, pid, {:started, child}}, %{work: {pid, monitor, _before}} = state) do
    state = %{state | work: {pid, monitor, child}}
    {:noreply, step(state, &put_work(&1, &2, child))}
  end

  def handle_info({:work, pid, {:failed, reason}}, %{work: {pid, _monitor, _child}} = state) do
    Logger.error("leader #{inspect(state.name)}: the child has failed: #{inspect(reason)}")
    {:noreply, step(state, &Member.resign(&1, &2, :child_failed))}
  end

  def handle_info({:DOWN, monitor, :process, pid, _reason}, %{work: {pid, monitor, _}} = state) do
    state = %{state | work: nil}
    # It ends by itself only after a failure in it.
    {:noreply, state |> step(&Member.resign(&1, &2, :child_failed)) |> ended()}
  end

  def handle_info({:DOWN, monitor, :process, _pid, _reason}, state) do
    if monitor in state.dying do
      {:noreply, ended(%{state | dying: List.delete(state.dying, monitor)})}
    else
      subscribers = Map.delete(state.subscribers, monitor)
      {:noreply, %{state | subscribers: subscribers, waiting: Map.delete(state.waiting, monitor)}}
    end
  end

  def handle_info(:ended, %{work: nil, dying: []} = state),
    do: {:noreply, step(state, &Member.ended/2)}

  def handle_info({:EXIT, pid, _reason}, state) do
    posts =
      for {node, post} <- state.posts, into: %{}, do: {node, renewed(post, pid, node, state)}

    state = %{state | posts: posts}
    # Without its entry in a registry that has crashed no caller would see that this member leads.
    if entry(state.name), do: {:noreply, state}, else: {:stop, :no_registry, state}
  end

  defp renewed(pid, pid, node, state), do: Post.start_link(node, state.name)
  defp renewed(post, _other, _node, _state), do: post

  # The child is named to the other members at once.
  defp put_work(%{candidate: %{role: :leading}} = member, now, child),
    do: member |> Member.put_work(now, child) |> Member.tick(now, wall())

  defp put_work(member, _now, _child), do: {[], member}

  defp measured(%{member: %{candidate: %{asked: asked}}} = state, {:granted, _id, round}) do
    case asked do
      %{^round => at} -> %{state | times: Times.add(state.times, now() - at)}
      _old -> state
    end
  end

  defp measured(state, _other), do: state

  # The child ends before the votes are released.
  @impl true
  def terminate(_reason, state) do
    if Member.leading?(state.member, now()), do: last(state), else: killed(state)
  end

  defp last(%{work: nil} = state), do: farewell(state)

  defp last(%{work: {pid, monitor, _child}} = state) do
    Work.stop(pid)
    left_ms = div(state.member.candidate.until - now(), 1000)
    patience_ms = max(min(state.opts.shutdown_ms, left_ms - div(state.opts.shutdown_ms, 2)), 0)

    receive do
      {:DOWN, ^monitor, :process, ^pid, _reason} -> farewell(%{state | work: nil})
    after
      # Its votes are free after the lease.
      patience_ms -> killed(state)
    end
  end

  defp farewell(state) do
    :atomics.put(state.atomics, @until, now())
    led_us = now() - state.led
    term = state.member.candidate.term
    emit(state, %{event: :stepped_down, term: term, led_us: led_us, reason: :stopped})
    release = {:release, self(), state.member.candidate.round}

    for {node, _post} <- state.posts do
      message = {:sconce_leader, node(), release}
      Process.send({state.name, node}, message, [:nosuspend, :noconnect])
    end
  end
end
