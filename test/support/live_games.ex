defmodule Sconce.Test.LiveGames do
  @moduledoc "Games that cannot be stepped: processes that play a pole with recorded sessions."

  alias Sconce.{Policy, Rollout, Serving, Session}
  alias Sconce.Test.Worlds.Pole

  @doc """
  Starts a game for each seed, linked to the caller. A game ends with the message `:stop`. `reward` makes the report of a
  reward.
  """
  def start(rollout, seeds, opts \\ []) do
    for seed <- seeds, do: spawn_link(fn -> play(rollout, seed, opts) end)
  end

  @doc "Starts serving, rollout and games on this node, until the node ends; returns the rollout."
  def start_here(policy_path, learner, seeds, opts \\ []) do
    parent = self()

    # A name of a loaded policy is an atom only if the atom exists.
    {:module, Pole} = Code.ensure_loaded(Pole)

    spawn(fn ->
      {:ok, policy} = Policy.load(policy_path)
      {:ok, serving} = Serving.start_link(policy: policy)
      {:ok, rollout} = Rollout.start_link([serving: serving, learner: learner] ++ opts)
      send(parent, {:rollout, rollout})
      start(rollout, seeds)
      Process.sleep(:infinity)
    end)

    receive do
      {:rollout, rollout} -> rollout
    end
  end

  defp play(rollout, seed, opts) do
    {reward, opts} = Keyword.pop(opts, :reward, & &1)
    {:ok, session} = Rollout.open(rollout, [seed: seed, steps: 32] ++ opts)
    {seen, state} = Pole.reset(%{seed: seed})
    loop({rollout, session, reward}, seen, state, seed, 0)
  end

  defp loop({rollout, session, report} = game, seen, state, seed, t) do
    receive do
      :stop -> :ok
    after
      0 ->
        {:ok, action} = Session.act(session, seen)
        {next, reward, over, state} = Pole.step(action.choices, state)
        :ok = Rollout.reward(session, report.(reward))
        if rem(t, 16) == 0, do: breathe(rollout)

        case over do
          :running when t < 499 ->
            loop(game, next, state, seed, t + 1)

          how ->
            {how, last} = if how == :running, do: {:truncated, next}, else: {how, nil}
            :ok = Rollout.done(session, how, last)
            {seen, state} = Pole.reset(%{seed: seed + 1000})
            loop(game, seen, state, seed + 1000, 0)
        end
    end
  end

  # A game of a test has no frames a second: it waits while the learner has enough.
  defp breathe(rollout) do
    case Rollout.info(rollout) do
      {:ok, %{waiting: waiting}} when waiting > 96 ->
        Process.sleep(1)
        breathe(rollout)

      _short ->
        :ok
    end
  end
end
