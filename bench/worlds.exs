# Rollouts in worlds that are not native: CartPole in Elixir, and Gymnasium's over a port, beside the native one.
#
#     mix run worlds.exs [--python PROGRAM]
#
# Each row has microseconds of one step of 32 environments side by side, with the decisions of a small policy: those of the
# native row are nearly all the policy's. The last row is Gymnasium alone, in one Python process and without a policy.

defmodule Worlds do
  alias Sconce.Bench.Pole
  alias Sconce.PPO

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
