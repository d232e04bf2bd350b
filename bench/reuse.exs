# Does learning again from recorded segments of live play save frames? CartPole in Elixir, 16 games, a run of `Sconce.PPO` with
# `{:live, rollout}`: fresh frames until the mean return of 100 episodes is 200 and 400.
#
#     cd bench && mix run reuse.exs | tee reuse.txt
#     SEEDS=1 mix run reuse.exs
#
# `fresh` has updates of 1,024 new decisions. `again` adds as many of earlier segments, drawn uniformly by seed from those within
# the largest lag. An end of an episode that is learned from again counts once in the mean return. Games wait while the learner has
# 512 decisions that it has not taken, as games with a frame rate would be slower than the learner.

defmodule Reuse do
  alias Sconce.Bench.{Machine, Output, Pole}
  alias Sconce.{Native, Policy, PPO, Rollout, Serving, Session}
  alias Sconce.Policy.Spec

  @games 16
  @waiting 16
  @spec_options [
    embedding: {:vector, 4},
    backbone: :mlp,
    hidden_sizes: [64, 64],
    activation: :tanh,
    layer_norm: false,
    residual: false,
    dropout: 0.0,
    head_hidden_size: 0,
    heads: [action: {:categorical, 2}],
    value_head: true,
    critic: :separate
  ]
  @arms [
    {"fresh, 4 epochs", 0.0, 8, epochs: 4},
    {"again, 4 epochs", 0.5, 8, epochs: 4},
    {"fresh, 8 epochs", 0.0, 8, epochs: 8},
    {"again, 8 epochs", 0.5, 8, epochs: 8},
    {"again, 8 epochs, V-trace", 0.5, 8, epochs: 8, off_policy: :v_trace},
    {"again, 8 epochs, V-trace, lag 30", 0.5, 30, epochs: 8, off_policy: :v_trace}
  ]

  def main do
    seeds = String.to_integer(System.get_env("SEEDS", "3"))
    IO.puts(Output.header(Machine.describe()))
    IO.puts(row(["", "seed", "to 200", "to 400", "updates", "lag", "seconds"]))

    found = for {name, _, _, _} = arm <- @arms, seed <- 1..seeds, do: {name, run(arm, seed)}

    IO.puts("\nmean of #{seeds} seeds")

    for {name, _share, _lag, _more} <- @arms do
      of = for {^name, at} <- found, do: at
      IO.puts(row([name, "", mean(of, 200), mean(of, 400), "", "", ""]))
    end
  end

  defp mean(of, return) do
    all = Enum.map(of, & &1[return])
    if nil in all, do: "-", else: round(Enum.sum(all) / length(all))
  end

  defp row([name | cells]),
    do: String.pad_trailing(name, 34) <> Enum.map_join(cells, &String.pad_leading("#{&1}", 9))

  defp run({name, share, lag, more}, seed) do
    {:ok, policy} = Policy.init(@spec_options, seed: seed)
    {:ok, serving} = Serving.start_link(policy: policy)
    {:ok, rollout} = Rollout.start_link(serving: serving, poll_ms: 1)
    {:ok, %{inbox: front} = source} = Rollout.source(rollout)
    {:ok, back} = Native.inbox_new(Spec.to_native(policy.spec), ["reward"], 65_536)
    {:ok, door} = GenServer.start_link(Reuse.Door, %{source | inbox: back})
    state = %{front: front, back: back, share: share, lag: lag, version: nil, kept: [], owed: 0.0}
    rng = :rand.seed_s(:exsss, seed)
    mixer = spawn_link(fn -> mix(Map.put(state, :rng, rng)) end)

    games =
      for i <- 1..@games, do: spawn_link(fn -> game(rollout, [front, back], 100 * seed + i) end)

    out =
      Path.join(
        System.tmp_dir!(),
        "sconce-reuse-#{System.pid()}-#{System.unique_integer([:positive])}"
      )

    environments = if share > 0, do: 32, else: 16

    options = [
      environments: environments,
      rollout_steps: 64,
      steps: 400_000,
      target_return: 400,
      threads: 1
    ]

    start = System.monotonic_time(:millisecond)

    {:ok, run} =
      PPO.start_link([env: {:live, door}, out: out, seed: seed, max_lag: lag] ++ options ++ more)

    :ok = PPO.subscribe(run)
    at = watch(run, front, %{})
    {:ok, report} = PPO.await(run)
    seconds = div(System.monotonic_time(:millisecond) - start, 1000)
    lags = Enum.map(report.history, & &1.figures.lag)
    behind = Float.round(Enum.sum(lags) / length(lags), 2)
    IO.puts(row([name, seed, at[200] || "-", at[400] || "-", report.updates, behind, seconds]))
    for game <- games, do: send(game, :stop)
    send(mixer, :stop)
    for process <- [run, door, rollout, serving], do: GenServer.stop(process)
    File.rm_rf!(out)
    at
  end

  # Fresh decisions when the mean return was first reached.
  defp watch(run, front, at) do
    receive do
      {:sconce_ppo, ^run, %{event: :update} = event} ->
        {:ok, %{decisions: decisions}} = Native.inbox_counts(front)

        reached =
          for return <- [200, 400], (event.mean_return || 0) >= return, do: {return, decisions}

        watch(run, front, Map.merge(Map.new(reached), at))

      {:sconce_ppo, ^run, %{event: :done}} ->
        at
    end
  end

  # Takes segments from the queue of the games to that of the learner, and older ones between them.
  defp mix(state) do
    {:ok, segments} = Native.inbox_take(state.front, 64)
    state = segments |> Enum.reduce(state, &hand_on/2) |> weights()

    receive do
      :stop -> :ok
    after
      1 -> mix(state)
    end
  end

  defp weights(state) do
    case Native.inbox_newest(state.back) do
      {:ok, {version, ref}} when version != state.version ->
        :ok = Native.inbox_publish(state.front, ref)
        %{state | version: version}

      _same ->
        state
    end
  end

  defp hand_on(segment, state) do
    offer(state.back, segment)
    if state.share > 0, do: segment |> keep(state) |> draw(), else: state
  end

  # One update less than the largest lag: the segment waits for the learner a while.
  defp keep(segment, state) do
    own = read(segment)
    kept = Enum.filter([own | state.kept], &(&1.version > (state.version || 0) - state.lag))
    %{state | kept: kept, owed: state.owed + own.steps * state.share / (1 - state.share)}
  end

  defp draw(%{owed: owed, kept: [_ | _] = kept} = state) when owed > 0 do
    {at, rng} = :rand.uniform_s(length(kept), state.rng)
    own = Enum.at(kept, at - 1)
    offer(state.back, own.again)
    draw(%{state | rng: rng, owed: owed - own.steps})
  end

  defp draw(state), do: state

  defp offer(inbox, segment) do
    with {:ok, 0} <- Native.inbox_offer(inbox, [segment]) do
      Process.sleep(1)
      offer(inbox, segment)
    end
  end

  # The oldest version of the weights, and the segment with another number of its episode and without an end: the recorded value after
  # the last decision says the same to the learner, and the return of the episode is not counted again. The layout is that of
  # native/data/src/recorded.rs.
  defp read(segment) do
    <<"SCSEGM02", stride::binary-8, _over_and_length::binary-16, _number::binary-8, rest::binary>> =
      segment

    <<before_and_value::binary-12, columns::binary>> = rest
    after_columns = Enum.reduce(1..6, columns, fn _column, rest -> skip(rest) end)
    episode = skip(after_columns)
    <<versions::64-little, rest::binary>> = skip(episode)
    made = for <<version::64-little <- binary_part(rest, 0, 8 * versions)>>, do: version
    columns = binary_part(columns, 0, byte_size(columns) - byte_size(after_columns))
    number = <<:rand.uniform(2 ** 62)::64-little>>
    head = ["SCSEGM02", stride, <<0::128>>, number, before_and_value]
    again = IO.iodata_to_binary([head, columns, <<0::64>>, episode])
    %{again: again, steps: versions, version: Enum.min(made)}
  end

  # The bytes after a column of numbers of 4 bytes.
  defp skip(<<length::64-little, rest::binary>>),
    do: binary_part(rest, 4 * length, byte_size(rest) - 4 * length)

  defp game(rollout, inboxes, seed) do
    {:ok, session} = Rollout.open(rollout, seed: seed, steps: 32)
    play({session, inboxes}, reset(seed), seed, 0)
  end

  defp reset(seed), do: %{seed: seed} |> Pole.reset() |> elem(0)

  defp play({session, inboxes} = own, state, seed, t) do
    receive do
      :stop -> :ok
    after
      0 ->
        {:ok, action} = Session.act(session, state)
        {next, reward, over, _state} = Pole.step(action.choices, state)
        :ok = Rollout.reward(session, reward)
        if rem(t, 16) == 0, do: wait(inboxes)

        if over == :running and t < 499 do
          play(own, next, seed, t + 1)
        else
          {over, last} = if over == :running, do: {:truncated, next}, else: {over, nil}
          :ok = Rollout.done(session, over, last)
          play(own, reset(seed + 1000), seed + 1000, 0)
        end
    end
  end

  defp wait(inboxes) do
    waiting =
      for inbox <- inboxes,
          {:ok, %{waiting: waiting}} <- [Native.inbox_counts(inbox)],
          do: waiting

    if Enum.sum(waiting) > @waiting do
      Process.sleep(1)
      wait(inboxes)
    end
  end
end

defmodule Reuse.Door do
  # Answers a run as a rollout does, with another queue.
  use GenServer

  @impl true
  def init(source), do: {:ok, source}

  @impl true
  def handle_call(:source, _from, source), do: {:reply, {:ok, source}, source}
end

Reuse.main()
