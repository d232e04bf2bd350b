defmodule Sconce.Test.Worlds do
  @moduledoc false
  # Worlds that are modules, for tests.

  defmodule Catch do
    @moduledoc "A basket of three moves under a fruit that falls from one of five columns."
    @behaviour Sconce.Env.World

    @impl true
    def spec(_options),
      do: %{observation_size: 3, input: [move: {:choice, 3}], time_limit: 20, solved: 0.9}

    @impl true
    def reset(%{seed: seed}) do
      {column, _} = :rand.uniform_s(5, :rand.seed_s(:exsss, seed))
      state = %{fruit: column, height: 6, basket: 3}
      {seen(state), state}
    end

    @impl true
    def step(%{move: move}, state) do
      basket = max(1, min(5, state.basket + move - 1))
      state = %{state | height: state.height - 1, basket: basket}
      caught = if state.fruit == basket, do: 1.0, else: -1.0

      if state.height == 0,
        do: {seen(state), caught, :terminated, state},
        else: {seen(state), 0.0, :running, state}
    end

    defp seen(state), do: [state.fruit / 5, state.height / 6, state.basket / 5]
  end

  defmodule Pole do
    @moduledoc "CartPole-v1 in 64-bit numbers."
    @behaviour Sconce.Env.World

    @impl true
    def spec(_options),
      do: %{observation_size: 4, input: [action: {:choice, 2}], time_limit: 500, solved: 475}

    @impl true
    def reset(%{seed: seed}) do
      {state, _} =
        Enum.map_reduce(1..4, :rand.seed_s(:exsss, seed), fn _, rng ->
          {number, rng} = :rand.uniform_s(rng)
          {0.1 * number - 0.05, rng}
        end)

      {state, state}
    end

    @impl true
    def step(%{action: action}, [x, v, angle, spin]) do
      {sin, cos} = {:math.sin(angle), :math.cos(angle)}
      force = 20 * action - 10
      push = (force + 0.05 * spin * spin * sin) / 1.1
      turn = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
      pull = push - 0.05 * turn * cos / 1.1
      state = [x + 0.02 * v, v + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn]
      [x, _, angle, _] = state
      fallen? = abs(x) > 2.4 or abs(angle) > 12 * :math.pi() / 180
      {state, 1.0, if(fallen?, do: :terminated, else: :running), state}
    end
  end

  defmodule Mixed do
    @moduledoc "Every kind of an input and two reward terms; it tells `options[:to]` of its inputs."
    @behaviour Sconce.Env.World

    @impl true
    def spec(_options) do
      %{
        observation_size: 2,
        input: [
          aim: {:axis, -1, 1},
          keys: {:flags, [:jump, :fire]},
          force: {:continuous, 2, -3, 3},
          gear: {:choice, 4}
        ],
        time_limit: 5,
        reward_terms: [:hit, :cost]
      }
    end

    @impl true
    def reset(begin), do: {<<0::32, begin.episode::float-32-little>>, {begin, 0}}

    @impl true
    def step(input, {begin, t}) do
      if begin.options[:to], do: send(begin.options[:to], {:input, begin.env, input})
      {[t + 1, begin.episode], %{hit: 1, cost: -0.5}, :running, {begin, t + 1}}
    end
  end

  defmodule Faulty do
    @moduledoc "It does what `options[:fault]` says in step 3 of environment 1."
    @behaviour Sconce.Env.World

    @impl true
    def spec(_options), do: %{observation_size: 1, input: [go: {:choice, 2}], time_limit: 50}

    @impl true
    def reset(begin) do
      if begin.options[:to], do: send(begin.options[:to], {:begin, begin.env, begin.episode})
      {[0.0], {begin.env, 0, begin.options[:fault]}}
    end

    @impl true
    def step(_input, {1, 2, fault}), do: fault(fault, {1, 3, fault})
    def step(_input, {env, t, fault}), do: {[0.0], 0.0, :running, {env, t + 1, fault}}

    defp fault(nil, state), do: {[0.0], 0.0, :running, state}

    defp fault(:raise, _state), do: raise("boom")
    defp fault(:throw, _state), do: throw(:ball)
    defp fault(:hang, _state), do: Process.sleep(:infinity)
    defp fault(:kill, _state), do: Process.exit(self(), :kill)
    defp fault(:nan, state), do: {<<0, 0, 0xC0, 0x7F>>, 0.0, :running, state}
    defp fault(:infinite, state), do: {<<0, 0, 0x80, 0x7F>>, 0.0, :running, state}
    defp fault(:size, state), do: {[1.0, 2.0], 0.0, :running, state}
    defp fault(:over, state), do: {[1.0], 0.0, :ended, state}
    defp fault(:reward, state), do: {[1.0], nil, :running, state}
    defp fault(:pid, {env, t, _}), do: {[0.0], 0.0, :running, {env, t, self()}}
  end

  defmodule Doors do
    @moduledoc """
    Three doors, of which one is closed, and a key that is not always there. It raises for a closed door and a missing
    key. The reward is 1 for the last open door with the key if it is there. `options[:fault]` is a wrong mask.
    """
    @behaviour Sconce.Env.World

    @impl true
    def spec(_options) do
      %{
        observation_size: 4,
        input: [door: {:choice, 3}, speed: {:continuous, 0, 1}, hands: {:flags, [:key, :lamp]}],
        time_limit: 8,
        solved: 7.5
      }
    end

    @impl true
    def reset(begin) do
      state = begin.seed |> drawn() |> Map.put(:fault, begin.options[:fault])
      {seen(state), state}
    end

    @impl true
    def action_mask(%{fault: nil} = state) do
      %{door: for(door <- 0..2, do: door != state.closed), hands: %{key: state.key?}}
    end

    def action_mask(state), do: state.fault

    @impl true
    def step(input, state) do
      input.door == state.closed && raise "door #{input.door} is closed"
      input.hands.key and not state.key? && raise "there is no key"
      best = if state.closed == 2, do: 1, else: 2
      reward = if input.door == best and input.hands.key == state.key?, do: 1.0, else: 0.0
      state = state.seed |> drawn() |> Map.put(:fault, state.fault)
      {seen(state), reward, :running, state}
    end

    defp drawn(seed) do
      {number, rng} = :rand.uniform_s(6, :rand.seed_s(:exsss, seed))
      {next, _rng} = :rand.uniform_s(1_000_000_000, rng)
      %{closed: rem(number, 3), key?: number > 3, seed: next}
    end

    defp seen(state) do
      for(door <- 0..2, do: if(door == state.closed, do: 0.0, else: 1.0)) ++
        [if(state.key?, do: 1.0, else: 0.0)]
    end
  end

  defmodule Nim do
    @moduledoc """
    Two players in turn take one to three of 5 to 9 stones, and the last stone wins. Who waits may only take 0. It raises
    for a move that is not allowed. `options[:fault]` is given instead of the rewards.
    """
    @behaviour Sconce.Env.World

    @impl true
    def spec(_options), do: %{observation_size: 11, input: [take: {:choice, 4}], seats: 2}

    @impl true
    def reset(%{seed: seed, options: options}) do
      state = %{left: 5 + rem(seed, 5), turn: seed |> div(5) |> rem(2), fault: options[:fault]}
      {seen(state), state}
    end

    @impl true
    def step([_, _] = inputs, %{left: left, turn: turn} = state) do
      takes = for input <- inputs, do: input.take
      {own, [0]} = List.pop_at(takes, turn)
      own in 1..min(left, 3) || raise "#{own} of #{left} stones"
      state = %{state | left: left - own, turn: 1 - turn}
      over? = state.left == 0
      rewards = if over?, do: List.replace_at([-1.0, -1.0], turn, 1.0), else: [0.0, 0.0]
      {seen(state), state.fault || rewards, if(over?, do: :terminated, else: :running), state}
    end

    @impl true
    def action_mask(%{left: left, turn: turn}) do
      moves = [false | for(take <- 1..3, do: take <= left)]

      for seat <- 0..1,
          do: %{take: if(seat == turn, do: moves, else: [true, false, false, false])}
    end

    defp seen(%{left: left, turn: turn}) do
      stones = for n <- 0..9, do: if(n == left, do: 1.0, else: 0.0)
      for seat <- 0..1, do: [if(seat == turn, do: 1.0, else: 0.0) | stones]
    end
  end

  defmodule Columns do
    @moduledoc "A batch: observation, reward and input are one number."
    @behaviour Sconce.Env.Batch

    @impl true
    def spec(options),
      do: %{observation_size: 1, input: [x: {:continuous, -1, 1}], time_limit: options[:limit]}

    @impl true
    def open(%{count: count}), do: :binary.copy(<<0.0::float-32-little>>, count)

    @impl true
    def reset(begins, state), do: {:binary.copy(<<0.0::float-32-little>>, length(begins)), state}

    @impl true
    def step(inputs, active, _state),
      do: {inputs, [inputs], :binary.copy(<<0>>, byte_size(active)), inputs}
  end
end
