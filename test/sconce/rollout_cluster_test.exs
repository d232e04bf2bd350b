defmodule Sconce.RolloutClusterTest do
  # Nodes are names of the whole VM.
  use ExUnit.Case, async: false

  alias Sconce.{Leader, Policy, PPO, Rollout, Serving}
  alias Sconce.Test.{Cluster, LiveGames, Scratch}

  @moduletag timeout: 180_000

  setup_all do
    Cluster.start!()
    :ok
  end

  setup do
    dir = Scratch.tmp_dir!("far")
    spec = [embedding: {:vector, 4}, backbone: :mlp, hidden_sizes: [32], activation: :tanh]
    own = [layer_norm: false, residual: false, dropout: 0.0, head_hidden_size: 0]
    heads = [heads: [action: {:categorical, 2}], value_head: true]
    {:ok, policy} = Policy.init(spec ++ own ++ heads, seed: 1)
    path = Path.join(dir, "first.safetensors")
    :ok = Policy.save(policy, path)
    serving = start_supervised!({Serving, policy: policy})
    %{dir: dir, path: path, serving: serving}
  end

  defp until(check, tries \\ 600) do
    cond do
      check.() -> :ok
      tries == 0 -> flunk("it never came true")
      true -> Process.sleep(50) && until(check, tries - 1)
    end
  end

  defp figures(rollout), do: rollout |> Rollout.info() |> elem(1)

  test "games of another node are learned from, a dead node loses nothing else", context do
    rollout = start_supervised!({Rollout, serving: context.serving, poll_ms: 2})
    {node, os_pid} = Cluster.node!()
    args = [context.path, rollout, 1..6, [poll_ms: 2]]
    far = :erpc.call(node, LiveGames, :start_here, args)
    out = Path.join(context.dir, "run")

    options = [environments: 8, rollout_steps: 64, steps: 1_000_000, max_lag: 50, seed: 1]
    {:ok, run} = PPO.start_link([env: {:live, rollout}, out: out] ++ options)
    PPO.subscribe(run)

    for _ <- 1..10 do
      assert_receive {:sconce_ppo, ^run, %{event: :update, figures: figures}}, 60_000
      assert figures.misfits == 0
    end

    # The far serving has the run's weights.
    until(fn -> (figures(far).version || 0) > 5 end)

    System.cmd("kill", ["-9", os_pid])
    # Games of this node go on.
    games = LiveGames.start(rollout, 100..103)
    assert_receive {:sconce_ppo, ^run, %{event: :update, updates: before}}, 60_000
    until(fn -> PPO.info(run).update.updates > before + 15 end)
    for game <- games, do: send(game, :stop)
    :ok = PPO.stop(run)
    assert {:ok, %{stopped: :stopped}} = PPO.await(run, 60_000)
  end

  test "a node without its learner keeps segments, and sends them when it is back", context do
    {node, _os_pid} = Cluster.node!()
    name = :far_learner
    # The learner does not exist yet.
    args = [context.path, {name, node()}, 1..2, [poll_ms: 5, capacity: 640]]
    far = :erpc.call(node, LiveGames, :start_here, args)
    until(fn -> figures(far).displaced > 0 end)
    rollout = start_supervised!({Rollout, serving: context.serving, name: name, capacity: 640})
    until(fn -> figures(rollout).waiting > 0 end)
    # The learner's queue is full: the far node waits, and nothing here is displaced.
    until(fn -> figures(rollout).decisions > 600 end)
    Process.sleep(200)
    assert %{displaced: 0, misfits: 0} = figures(rollout)
    assert figures(rollout).decisions <= 640
  end

  test "a learner that does not lead refuses what comes from other nodes, until it leads",
       context do
    name = :rollout_leader
    members = [node(), :"nowhere@127.0.0.1"]
    start_supervised!({Leader, name: name, members: members, lease_ms: 600_000})
    rollout = start_supervised!({Rollout, serving: context.serving, name: :far_led, leader: name})
    {node, _os_pid} = Cluster.node!()
    args = [context.path, rollout, 1..2, [poll_ms: 2]]
    far = :erpc.call(node, LiveGames, :start_here, args)
    until(fn -> figures(rollout).refused > 1 end)
    assert %{received: 0} = figures(rollout)
    until(fn -> figures(far).unsent > 0 end)

    :ok = stop_supervised({Leader, name})
    start_supervised!({Leader, name: name, members: [node()], lease_ms: 600_000})
    until(fn -> figures(rollout).received > 2 end)
  end

  test "games find the rollout of the node that leads", context do
    {node, _os_pid} = Cluster.node!()
    learner = {:via, Leader, {{:rollout_led, [node()]}, :rollout_by_name}}
    args = [context.path, learner, 1..2, [poll_ms: 2]]
    _far = :erpc.call(node, LiveGames, :start_here, args)
    own = [serving: context.serving, name: :rollout_by_name, leader: :rollout_led]
    led = [name: :rollout_led, members: [node()], lease_ms: 600_000, start: {Rollout, own}]
    start_supervised!({Leader, led})
    # It does not exist yet.
    until(fn -> Map.get(figures(:rollout_by_name), :received, 0) > 2 end)
  end

  test "segments of other reward terms are misfits, and those of the same ones come", context do
    rollout = start_supervised!({Rollout, serving: context.serving, reward_terms: [:alive]})
    {node, _os_pid} = Cluster.node!()
    args = [context.path, rollout, 1..2, [poll_ms: 2]]
    _other = :erpc.call(node, LiveGames, :start_here, args)
    until(fn -> figures(rollout).misfits > 2 end)
    assert %{received: 0, waiting: 0} = figures(rollout)
    args = [context.path, rollout, 3..4, [poll_ms: 2, reward_terms: [:alive]]]
    _same = :erpc.call(node, LiveGames, :start_here, args)
    until(fn -> figures(rollout).received > 2 end)
  end

  test "bytes that are no segment are counted and not sent again", context do
    rollout = start_supervised!({Rollout, serving: context.serving})

    bad = ["", "SCSEGM01", :crypto.strong_rand_bytes(99)]
    sender = make_ref()
    # A message that is repeated counts once.
    for _ <- 1..2,
        do: assert(GenServer.call(rollout, {:segments, sender, 0, 0, bad}) == {:next, 3})

    assert %{received: 0, waiting: 0, misfits: 3} = figures(rollout)
  end
end
