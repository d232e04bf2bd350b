defmodule Sconce.Bench.Live do
  @moduledoc "Live games with and without a learner, for `live.exs`."

  alias Sconce.Bench.{Nodes, Pole}
  alias Sconce.{Policy, PPO, Rollout, Serving, Session}

  @frame_us 1_000_000 / 60

  defp games(rollout, count, first),
    do: for(i <- 1..count, do: spawn(fn -> game(rollout, first + i) end))

  defp game(rollout, seed) do
    {:ok, session} = Rollout.open(rollout, seed: seed, steps: 32)
    start = System.monotonic_time(:microsecond) + :rand.uniform(16_000)
    play(session, reset(seed), seed, 0, {start, 0}, fresh())
  end

  defp reset(seed), do: %{seed: seed} |> Pole.reset() |> elem(0)

  defp fresh, do: %{decisions: 0, late: 0, worst: 0, times: []}

  # The n-th frame begins at start + n / 60 s. A decision is late that ends after its frame.
  defp play(session, state, seed, t, {start, n}, told) do
    due = start + round(n * @frame_us)
    wait(due)

    receive do
      {:tell, pid} ->
        send(pid, {:told, told})
        play(session, state, seed, t, {start, n}, fresh())
    after
      0 ->
        begun = System.monotonic_time(:microsecond)
        {:ok, action} = Session.act(session, state)
        ended = System.monotonic_time(:microsecond)
        {next, reward, over, _state} = Pole.step(action.choices, state)
        :ok = Rollout.reward(session, reward)
        late? = ended - due > @frame_us

        told = %{
          told
          | decisions: told.decisions + 1,
            late: told.late + if(late?, do: 1, else: 0),
            worst: max(told.worst, ended - due)
        }

        told = if rem(n, 8) == 0, do: %{told | times: [ended - begun | told.times]}, else: told

        cond do
          over == :terminated ->
            :ok = Rollout.done(session, :terminated)
            play(session, reset(seed + 100_000), seed + 100_000, 0, {start, n + 1}, told)

          t == 499 ->
            :ok = Rollout.done(session, :truncated, next)
            play(session, reset(seed + 100_000), seed + 100_000, 0, {start, n + 1}, told)

          true ->
            play(session, next, seed, t + 1, {start, n + 1}, told)
        end
    end
  end

  @doc "Sleeps until about a millisecond before `due`, in microseconds of monotonic time."
  def wait(due) do
    left = due - System.monotonic_time(:microsecond)
    if left > 1_000, do: Process.sleep(div(left, 1_000))
  end

  defp told(games) do
    for game <- games, do: send(game, {:tell, self()})

    for _game <- games do
      receive do
        {:told, told} -> told
      end
    end
  end

  defp policy do
    spec = [embedding: {:vector, 4}, backbone: :mlp, hidden_sizes: [64, 64], activation: :tanh]

    more = [
      layer_norm: false,
      residual: false,
      dropout: 0.0,
      head_hidden_size: 0,
      value_head: true
    ]

    {:ok, policy} = Policy.init(spec ++ more ++ [heads: [action: {:categorical, 2}]], seed: 1)
    policy
  end

  @doc false
  # Called on another node.
  def far(path, learner, count) do
    parent = self()

    spawn(fn ->
      Process.flag(:trap_exit, true)
      _ = String.to_atom("action")
      {:ok, policy} = Policy.load(path)
      {:ok, serving} = Serving.start_link(policy: policy)
      {:ok, rollout} = Rollout.start_link(serving: serving, learner: learner)
      send(parent, {:far, rollout, games(rollout, count, 10_000)})
      Process.sleep(:infinity)
    end)

    receive do
      {:far, rollout, games} -> {rollout, games}
    end
  end

  defp report(name, all) do
    decisions = all |> Enum.map(& &1.decisions) |> Enum.sum()
    late = all |> Enum.map(& &1.late) |> Enum.sum()
    times = all |> Enum.flat_map(& &1.times) |> Enum.sort()
    at = fn share -> Enum.at(times, min(length(times) - 1, trunc(share * length(times)))) end
    worst = all |> Enum.map(& &1.worst) |> Enum.max()

    IO.puts(
      "#{name}: #{decisions} decisions, #{late} late (#{Float.round(1000 * late / decisions, 3)} in a thousand), " <>
        "median #{at.(0.5)} us, p99 #{at.(0.99)} us, p99.9 #{at.(0.999)} us, latest #{worst} us after its frame began"
    )

    late / decisions
  end

  @doc "Runs the benchmark with the arguments of `live.exs`."
  def main(args) do
    {opts, []} =
      OptionParser.parse!(args, strict: [minutes: :float, games: :integer, nodes: :integer])

    {minutes, count, nodes} = {opts[:minutes] || 10.0, opts[:games] || 32, opts[:nodes] || 1}
    ms = round(minutes * 60_000)
    policy = policy()
    {:ok, serving} = Serving.start_link(policy: policy)
    {:ok, rollout} = Rollout.start_link(serving: serving)
    peer = if nodes == 2, do: peer(policy, rollout, count)
    games = games(rollout, count, 0)
    Process.sleep(min(ms, 60_000))
    control = report("without a learner", told(games))
    if peer, do: report("without a learner, other VM", told(elem(peer, 1)))
    Enum.each(games, &Process.exit(&1, :kill))

    games = games(rollout, count, 1_000)
    out = Path.join(System.tmp_dir!(), "sconce-live-#{System.pid()}")

    options = [
      environments: count * nodes,
      rollout_steps: 64,
      steps: 100_000_000,
      max_minutes: minutes
    ]

    {:ok, run} = PPO.start_link([env: {:live, rollout}, out: out, seed: 1] ++ options)
    {:ok, learned} = PPO.await(run)
    with_learner = report("with a learner", told(games))
    if peer, do: report("with a learner, other VM", told(elem(peer, 1)))
    figures = List.last(learned.history).figures
    {:ok, info} = Rollout.info(rollout)
    best = learned.best_return && Float.round(learned.best_return, 1)

    IO.puts(
      "learner: #{learned.updates} updates of #{div(learned.steps, max(learned.updates, 1))} decisions, best mean return #{best}, last lag #{Float.round(figures.lag, 2)} updates"
    )

    IO.puts(
      "segments: #{info.received} received, #{info.displaced} displaced, #{info.stale} stale, #{info.misfits} misfits"
    )

    IO.puts(
      "more late decisions than without a learner: #{Float.round(1000 * (with_learner - control), 3)} in a thousand (asked: at most 1)"
    )

    File.rm_rf!(out)
  end

  defp peer(policy, rollout, count) do
    path = Path.join(System.tmp_dir!(), "sconce-live-first-#{System.pid()}.safetensors")
    :ok = Policy.save(policy, path)
    Nodes.start!("sconce-live")

    options = %{
      name: :"sconce-far-#{System.pid()}",
      host: String.to_charlist(Nodes.host()),
      args: [~c"-setcookie", Atom.to_charlist(Node.get_cookie()) | Nodes.paths()]
    }

    {:ok, _pid, node} = :peer.start_link(options)
    {:ok, _} = :erpc.call(node, Application, :ensure_all_started, [:sconce])
    :erpc.call(node, __MODULE__, :far, [path, rollout, count])
  end
end
