defmodule Sconce.Bench.PPO do
  @moduledoc false
  # Cases of `mix bench play`: `Sconce.PPO` learns CartPole with the settings of the peer `jax-fused`.

  alias Sconce.Bench.{Case, Frames, Machine}
  alias Sconce.{Figures, PPO}

  @environments 32
  @rollout 64
  @epochs 4
  @hidden 64
  @observed 4
  @actions 2
  # Steps of an update.
  @steps @environments * @rollout
  @target 475
  @seeds 5
  # Seconds of a run, on average.
  @run_s 0.4
  # The least seconds of updates, so that some are timed at any budget.
  @least_s 0.3

  @settings [
    env: :cart_pole,
    environments: @environments,
    rollout_steps: @rollout,
    epochs: @epochs,
    minibatches: 4,
    hidden_sizes: [@hidden, @hidden],
    discount: 0.99,
    lambda: 0.95,
    clip: 0.2,
    value_weight: 0.5,
    entropy_weight: 0.01,
    normalise_advantages: :population,
    learning_rate: 2.5e-3,
    max_grad_norm: 0.5
  ]

  @doc "All cases, with one thread and with `threads`."
  @spec all(pos_integer) :: [Case.t()]
  def all(threads) do
    for n <- Enum.uniq([1, threads]), bench <- [update(n), solve(n)], do: bench
  end

  defp update(threads) do
    bench("an update", threads, fn _measured -> limit(1, threads) end, fn budget ->
      us = updates(threads, budget)
      rate = @steps / Figures.percentile(us, 50) * 1000
      %{us: us, extra: %{rates: "#{Figures.decimal(rate)} k steps/s"}}
    end)
  end

  # Times each update of one run.
  defp updates(threads, budget) do
    minutes = max(budget, @least_s) / 60
    opts = [seed: 1, threads: threads, steps: 1_000_000_000, max_minutes: minutes]

    {report, events} = run(opts)
    check(report.stopped == :budget, "the run stopped: #{report.stopped}")
    check(report.steps == @steps * report.updates, "#{report.steps} steps")

    for event <- events,
        figure <- Map.values(event.figures),
        do: check(is_float(figure), "figures #{inspect(event.figures)}")

    for {before, later} <- Enum.zip(events, Enum.drop(events, 1)),
        do: (later.seconds - before.seconds) * 1.0e6 / (later.updates - before.updates)
  end

  # Times whole runs, from the call of `start_link/1` to the report.
  defp solve(threads) do
    limit = fn %{extra: %{steps: steps}} -> limit(steps / @steps, threads) end

    bench("from start_link to #{@target}", threads, limit, fn budget ->
      {us, steps} = 1..seeds(budget) |> Enum.map(&solved(&1, threads)) |> Enum.unzip()
      rates = for {us, steps} <- Enum.zip(us, steps), do: steps / us * 1000
      steps = Figures.percentile(steps, 50)

      text =
        "#{Figures.counted(length(us), "seed")}, #{Figures.grouped(round(steps))} steps, " <>
          "#{Figures.decimal(Figures.percentile(rates, 50))} k steps/s"

      %{us: us, extra: %{steps: steps, rates: text}}
    end)
  end

  defp seeds(budget), do: (budget / @run_s) |> ceil() |> max(1) |> min(@seeds)

  defp solved(seed, threads) do
    start = System.monotonic_time(:microsecond)

    {report, _events} =
      run(seed: seed, threads: threads, steps: 2_000_000, target_return: @target)

    us = System.monotonic_time(:microsecond) - start
    check(report.stopped == :target, "seed #{seed} stopped: #{report.stopped}")
    check(report.mean_return >= @target, "seed #{seed}: a return of #{report.mean_return}")
    {us, report.steps}
  end

  # Returns the report of a run and its `:update` events.
  defp run(opts) do
    Frames.scratched(fn folder ->
      at_normal_priority(fn ->
        {:ok, run} = PPO.start_link([out: Path.join(folder, "run")] ++ opts ++ @settings)
        :ok = PPO.subscribe(run)
        report = run |> PPO.await() |> Machine.value!()
        GenServer.stop(run)
        {report, events(run)}
      end)
    end)
  end

  defp events(run) do
    receive do
      {:sconce_ppo, ^run, %{event: :update} = event} -> [event | events(run)]
      {:sconce_ppo, ^run, _other} -> events(run)
    after
      0 -> []
    end
  end

  # Peers run at the normal priority, and a run of Sconce at a lower one by default.
  defp at_normal_priority(work) do
    before = Application.fetch_env(:sconce, :background)
    Application.put_env(:sconce, :background, :normal)

    try do
      work.()
    after
      with {:ok, value} <- before, do: Application.put_env(:sconce, :background, value)
      if before == :error, do: Application.delete_env(:sconce, :background)
    end
  end

  # Two networks, policy and value. The rollout is one pass over the steps, and each epoch a forward and a backward
  # pass. A product has two gradients, but observations need none.
  defp limit(updates, threads) do
    products = for outputs <- [@actions, 1], do: @hidden * (@observed + @hidden + outputs)
    forward = Enum.sum(products)
    learned = 3 * forward - 2 * @observed * @hidden
    flops = 2 * @steps * (forward + @epochs * learned)
    # A tanh of each hidden unit, and the softmax.
    exponentials = @steps * (1 + @epochs) * (4 * @hidden + @actions)

    Machine.flops(updates * flops, updates * exponentials, threads, named(updates))
  end

  defp named(1), do: "an update of #{Figures.grouped(@steps)} steps"
  defp named(updates), do: "#{round(updates)} updates of #{Figures.grouped(@steps)} steps"

  defp bench(text, threads, limit, run) do
    %Case{
      name: "ppo",
      case: "cart_pole, #{text}",
      batch: @environments,
      threads: threads,
      limit: limit,
      run: run
    }
  end

  defp check(true, _text), do: :ok
  defp check(false, text), do: raise(text)
end
