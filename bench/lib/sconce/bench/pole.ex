defmodule Sconce.Bench.Pole do
  @moduledoc "CartPole-v1 in Elixir: the game of an app, for benchmarks of worlds and of live games."

  @behaviour Sconce.Env.World

  @impl true
  def spec(_options), do: %{observation_size: 4, input: [action: {:choice, 2}], time_limit: 500}

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
