# Rollouts in worlds that are not native: CartPole in Elixir, and Gymnasium's over a port, beside the native one.
#
#     mix run worlds.exs [--python PROGRAM]
#
# Each row has microseconds of one step of 32 environments side by side, with the decisions of a small policy: those of the
# native row are nearly all the policy's. The last row is Gymnasium alone, in one Python process and without a policy.

defmodule Worlds do
  alias Sconce.PPO

  defmodule Pole do
    @behaviour Sconce.Env.World

    @impl true
    def spec(_options),
      do: %{observation_size: 4, input: [action: {:choice, 2}], time_limit: 500}

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

  @alone """
  import sys, time, numpy, gymnasium
  envs = [gymnasium.make("CartPole-v1") for _ in range(32)]
  for i, env in enumerate(envs): env.reset(seed=i)
  actions = numpy.random.default_rng(0).integers(0, 2, (500, 32))
  best = 1e9
  for _ in range(5):
      begun = time.perf_counter()
      for row in actions:
          for env, action in zip(envs, row):
              if env.step(int(action))[2]: env.reset()
      best = min(best, (time.perf_counter() - begun) / 500 * 1e6)
  print(best)
  """

  # The shortest rollout of a run: 64 steps of 32 environments, with the policy's decisions.
  def row(name, world, opts) do
    out = Path.join(System.tmp_dir!(), "sconce-worlds-#{System.pid()}")
    own = [env: world, out: out, steps: 32 * 64 * 30, hidden_sizes: [8], epochs: 1]
    {:ok, run} = PPO.start_link(own ++ opts)
    {:ok, report} = PPO.await(run)
    File.rm_rf!(out)
    rollout = fn point -> 32 * 64 / point.steps_per_second * point.rollout_share end
    us = report.history |> Enum.map(rollout) |> Enum.min() |> Kernel.*(1.0e6 / 64)
    IO.puts("#{String.pad_trailing(name, 36)} #{figure(us)} us a step of 32")
  end

  defp figure(us), do: us |> :erlang.float_to_binary(decimals: 1) |> String.pad_leading(8)

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: [python: :string])
    python = opts[:python] || "python3"
    gym = {Sconce.Env.Gymnasium, id: "CartPole-v1", python: python}
    row("native", :cart_pole, threads: 1)
    row("Elixir, one process", Pole, threads: 1, processes: 1)
    row("Elixir, two processes", Pole, threads: 1, processes: 2)
    row("Gymnasium over a port, one process", gym, threads: 1, processes: 1)
    row("Gymnasium over ports, two processes", gym, threads: 1, processes: 2)
    {us, 0} = System.cmd(python, ["-c", @alone])

    IO.puts(
      "#{String.pad_trailing("Gymnasium alone, one Python", 36)} #{us |> String.trim() |> String.to_float() |> figure()} us a step of 32"
    )
  end
end

Worlds.main(System.argv())
