defmodule HostApp.Chaos do
  @moduledoc "A supervisor whose agent and bots are killed while they play. The app goes on."

  alias Sconce.Compat.ExPhil.Agent
  alias HostApp.{Match, Play}

  # A child is killed about every 20 frames, at most 400 microseconds after a frame begins.
  @every 20
  @within_us 400
  @patience_ms 5_000
  # The agent and two bots, each with one session.
  @children 3

  @doc "Plays frames with an agent and two bots, and returns one line."
  def run(policy, frames, seed) do
    :rand.seed(:exsss, {seed, seed, seed})
    Process.register(self(), HostApp.Game)
    0 = sessions(0)
    {:ok, supervisor} = start(policy)

    {count, _reader} =
      Enum.reduce(0..(frames - 1), {%{}, nil}, fn number, {count, reader} ->
        count = if :rand.uniform(@every) == 1, do: killed(supervisor, count), else: count
        state = Match.state(number)
        reader = newest(reader)
        answers = [agent(state), step(state), bridge(reader, state)]
        {Enum.reduce(answers, count, &counted(&2, &1)), reader}
      end)

    open = sessions(@children)
    :ok = Supervisor.stop(supervisor)
    Process.unregister(HostApp.Game)

    "chaos: #{count[:killed]} killed, #{count[:ok]} inputs, #{count[:error]} errors, " <>
      "#{count[:hangs] || 0} hang, #{open} sessions open, #{sessions(0)} at the end"
  end

  defp start(policy) do
    bot = Play.bot(policy)
    bridge = [bridge: {HostApp.Bridge, game: HostApp.Game}, reconnect_ms: 1]

    children = [
      {Agent, name: :chaos, policy_path: policy, deterministic: true},
      Supervisor.child_spec({Sconce.Bot, [name: HostApp.Step] ++ bot},
        id: :step,
        restart: :permanent
      ),
      Supervisor.child_spec({Sconce.Bot, [name: HostApp.Bridged] ++ bridge ++ bot},
        id: :bridged,
        restart: :permanent
      )
    ]

    Supervisor.start_link(children, strategy: :one_for_one, max_restarts: 1_000_000)
  end

  # The child dies at some time of the frames that follow, within a call or between two.
  defp killed(supervisor, count) do
    {_id, pid, _type, _modules} = supervisor |> Supervisor.which_children() |> Enum.random()
    after_us = :rand.uniform(@within_us)

    if is_pid(pid) do
      spawn(fn ->
        wait(System.monotonic_time(:microsecond) + after_us)
        Process.exit(pid, :kill)
      end)
    end

    counted(count, if(is_pid(pid), do: :killed, else: :restarting))
  end

  defp wait(until), do: if(System.monotonic_time(:microsecond) < until, do: wait(until))

  defp counted(count, kind), do: Map.update(count, kind, 1, &(&1 + 1))

  defp agent(state) do
    agent = {:via, Registry, {ExPhil.Registry, {:agent, :chaos}}}

    with {:ok, %ExPhil.Bridge.ControllerState{}} <- Agent.get_controller(agent, state),
         do: :ok,
         else: (error -> named(error))
  end

  defp step(state) do
    with {:ok, %Sconce.Action{}} <- Sconce.Bot.step(HostApp.Step, state),
         do: :ok,
         else: (error -> named(error))
  end

  defp named({:error, %Sconce.Error{kind: kind}}) when kind in [:cancelled, :busy, :not_found],
    do: :error

  # The bridge that has connected last.
  defp newest(reader) do
    receive do
      {:connected, reader} -> newest(reader)
    after
      0 -> reader
    end
  end

  defp bridge(nil, _state), do: :error

  defp bridge(reader, state) do
    monitor = Process.monitor(reader)
    send(reader, {:frame, self(), state})

    answer =
      receive do
        {:input, ^reader, %Sconce.Action{}} -> :ok
        {:DOWN, ^monitor, :process, ^reader, _reason} -> :error
      after
        @patience_ms -> :hangs
      end

    Process.demonitor(monitor, [:flush])
    answer
  end

  # The number of open sessions, once it is the expected one. Sessions end with their processes, and the figure is sampled
  # now and then.
  defp sessions(expected, until \\ System.monotonic_time(:millisecond) + @patience_ms) do
    {:ok, values} = Sconce.Monitor.read()
    open = trunc(values["sconce_sessions"] || 0)

    if open == expected or System.monotonic_time(:millisecond) > until do
      open
    else
      Process.sleep(20)
      sessions(expected, until)
    end
  end
end
