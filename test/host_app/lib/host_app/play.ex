defmodule HostApp.Play do
  @moduledoc """
  Games of this app: each function plays frames with a policy of ExPhil's and returns one line about them.

  A line ends with a digest of all inputs. It is the same for the same frames, in whatever way the app runs.
  """

  alias Sconce.Compat.ExPhil.Agent
  alias Sconce.Compat.Melee, as: States
  alias HostApp.Match

  @port 1

  @doc "The app asks its agent, some frames twice, as a loop does that is faster than the game."
  def agent(policy, frames) do
    {:ok, agent} = Agent.start_link(name: :host, jump_debounce: 10, deterministic: true)
    {:error, %{__struct__: ExPhil.Error.AgentError, reason: :no_policy_loaded}} = ask(agent, 0)
    [{^agent, _value}] = Registry.lookup(ExPhil.Registry, {:agent, :host})
    :ok = Agent.load_policy(agent, policy)
    {:ok, _ms} = Agent.warmup(agent)
    :ok = Agent.reset_buffer(agent)

    inputs =
      for number <- 0..(frames - 1) do
        {:ok, %ExPhil.Bridge.ControllerState{} = input, _confidence} = ask(agent, number)
        if rem(number, 3) == 0, do: {:ok, ^input, %{overall: 0.0}} = ask(agent, number)
        Map.from_struct(input)
      end

    :ok = GenServer.stop(agent)
    line("agent", inputs)
  end

  defp ask(agent, number),
    do: Agent.get_controller_with_confidence(agent, Match.state(number), player_port: @port)

  @doc "The app drives a bot by `Sconce.Bot.step/3`."
  def step(policy, frames) do
    {:ok, bot} = Sconce.Bot.start_link(bot(policy))
    inputs = for number <- 0..(frames - 1), do: stepped(bot, number)
    :ok = Sconce.Bot.over(bot)
    [%{decisions: ^frames}] = Sconce.Bot.games(bot)
    :ok = GenServer.stop(bot)
    line("step", inputs)
  end

  defp stepped(bot, number) do
    {:ok, action} = Sconce.Bot.step(bot, Match.state(number))
    input(action)
  end

  @doc "The bot reads frames from a bridge of the app, and this process is the game."
  def bridge(policy, frames) do
    Process.register(self(), HostApp.Game)

    {:ok, bot} =
      Sconce.Bot.start_link([bridge: {HostApp.Bridge, game: HostApp.Game}] ++ bot(policy))

    reader = receive do: ({:connected, reader} -> reader)

    inputs =
      for number <- 0..(frames - 1) do
        send(reader, {:frame, self(), Match.state(number)})
        receive do: ({:input, ^reader, action} -> input(action))
      end

    :ok = GenServer.stop(bot)
    Process.unregister(HostApp.Game)
    line("bridge", inputs)
  end

  @doc "Options of a bot that decides each frame, on a machine of any speed."
  def bot(policy) do
    {:ok, policy, _notes} = Sconce.Policy.import(policy)
    session = [mode: :window, window_size: 20, deterministic: true]
    [policy: policy, port: @port, session: session, deadline_ms: 60_000, jump_debounce: 10]
  end

  @doc "An input as a map, with or without a library."
  def input(action), do: States.controller(action, :bridge)

  @doc "The line about a game."
  def line(name, inputs),
    do: "#{name}: #{length(inputs)} inputs, digest #{:erlang.phash2(inputs)}"
end
