Code.require_file("policies.exs", __DIR__)

# Usage, in this folder: mix run tuner.exs | tee tuner.txt

defmodule TunerBench do
  @moduledoc false
  # The choices of Sconce.Tuner beside an exhaustive sweep: all candidates in turns, several times more often than the tuner
  # measures them. A choice costs its time in the sweep divided by that of the sweep's best.

  alias Sconce.{Native, Policy, PPO, Session, Trainer, Tuner}
  alias Sconce.Native.Call

  @formats [:f32, :bf16, :int8, :int4]
  @rounds 60
  @turns 5

  def run do
    dir = Path.join(System.tmp_dir!(), "sconce-tuner-bench-#{System.pid()}")
    Application.put_env(:sconce, :tuner_dir, dir)
    {:ok, %{machine: machine}} = Tuner.info()
    IO.puts("#{machine.cpu}; #{machine.features}\n")
    worst = [formats(), batch_sizes(), environments()] |> List.flatten() |> Enum.max()
    IO.puts("\nthe worst choice costs #{decimal(worst)} of the best")
    File.rm_rf!(dir)
  end

  defp formats do
    policies =
      [{"mlp 512x512", Policies.init!(:mlp)}, {"gru 256x2", Policies.init!(:gru)}] ++
        [{"gru 32", small(backbone: :gru, hidden_size: 32, num_layers: 1)}] ++
        [{"mlp 64x64", small(backbone: :mlp, hidden_sizes: [64, 64])}]

    for {name, policy} <- policies do
      {first, _session} = timed(fn -> open(policy) end)
      {again, session} = timed(fn -> open(policy) end)
      {:ok, %{entries: entries}} = Tuner.info()
      entry = Enum.find(entries, &(&1.about == Policy.Spec.summary(policy.spec)))
      formats = Enum.map(@formats, &Session.format/1)
      start = &Native.policy_formats_us(policy.ref, &1, formats, @rounds)
      {:ok, times} = Call.run(start)
      sweep = Enum.zip(Enum.map(@formats, &to_string/1), times)
      shown("format of #{name} (#{session.weights})", entry.choice, sweep, "us", first, again)
    end
  end

  defp small(options) do
    heads = [move: {:categorical, 5}]
    {:ok, policy} = Policy.init([embedding: {:vector, 16}, heads: heads] ++ options, seed: 1)
    policy
  end

  defp open(policy) do
    {:ok, session} = Session.open(policy, weights: {:auto, @formats}, seed: 1)
    session
  end

  defp batch_sizes do
    for backbone <- [:gru, :mlp] do
      layers = if backbone == :mlp, do: [hidden_sizes: [64, 64]], else: [hidden_size: 64]
      heads = [move: {:categorical, 5}]
      options = [embedding: {:vector, 32}, heads: heads, backbone: backbone] ++ layers
      spec = Policy.Spec.new(options)
      tune = fn more -> Trainer.tune(spec, [window_size: 32] ++ more) |> elem(1) end
      {first, tuning} = timed(fn -> tune.(initial: 8, max: 512) end)
      {again, _same} = timed(fn -> tune.(initial: 8, max: 512) end)

      speed = fn size ->
        [row] = tune.(initial: size, max: size, tuner: false).rows
        row.frames_per_second
      end

      sizes = [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]
      sweep = swept(sizes, speed)

      shown(
        "batch size of #{backbone} 64",
        "#{tuning.batch_size}",
        sweep,
        "us a frame",
        first,
        again
      )
    end
  end

  defp environments do
    small = [env: :cart_pole, rollout_steps: 32, minibatches: 4]
    tune = fn more -> (small ++ more) |> PPO.tune() |> elem(1) end
    {first, tuning} = timed(fn -> tune.(environments: 4, max: 512) end)
    {again, _same} = timed(fn -> tune.(environments: 4, max: 512) end)

    speed = fn count ->
      [row] = tune.(environments: count, max: count, tuner: false).rows
      row.steps_per_second
    end

    sweep = swept([4, 8, 16, 32, 64, 128, 256, 512], speed)

    [
      shown(
        "environments of CartPole",
        "#{tuning.environments}",
        sweep,
        "us a step",
        first,
        again
      )
    ]
  end

  # Microseconds of each size: the best of several turns.
  defp swept(sizes, speed) do
    rounds = for _turn <- 1..@turns, size <- sizes, do: {size, 1.0e6 / speed.(size)}

    for size <- sizes,
        do: {to_string(size), Enum.min(for({^size, us} <- rounds, do: us))}
  end

  defp shown(name, choice, sweep, unit, first, again) do
    {best, least} = Enum.min_by(sweep, &elem(&1, 1))
    {_label, own} = List.keyfind(sweep, choice, 0)
    all = Enum.map_join(sweep, "  ", fn {label, us} -> "#{label} #{decimal(us)}" end)
    cost = own / least

    IO.puts("#{name}: chose #{choice}, sweep's best #{best}, cost #{decimal(cost)}")
    IO.puts("  sweep, #{unit}: #{all}")
    IO.puts("  measured in #{decimal(first)} ms, from the cache in #{decimal(again)} ms")
    cost
  end

  defp timed(work) do
    {us, answer} = :timer.tc(work)
    {us / 1000, answer}
  end

  defp decimal(number), do: :erlang.float_to_binary(number / 1, decimals: 3)
end

TunerBench.run()
