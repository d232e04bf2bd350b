defmodule Sconce.PPO.PlanTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Error, PPO}
  alias Sconce.Test.Worlds.Catch

  @small [environments: 4, rollout_steps: 8, minibatches: 2, hidden_sizes: [8]]

  test "a plan has bytes by owner and the time of the run, and writes no file" do
    out = Path.join(tmp_dir!("plan"), "run")
    {:ok, plan} = PPO.plan([env: :cart_pole, out: out, steps: 650] ++ @small)
    refute File.exists?(out)
    assert %PPO.Plan{env: :cart_pole, rows: 4, update_steps: 32, updates: 20, steps: 640} = plan
    assert_in_delta plan.seconds, 20 * plan.update_seconds, 1.0e-9
    assert plan.owners.weights == 4 * plan.num_weights
    {update, rest} = Map.split(plan.owners, [:playing, :rollout, :activations])
    {checkpoints, lasting} = Map.pop(rest, :checkpoints)
    peak = max(Enum.sum(Map.values(update)), checkpoints)
    assert plan.bytes == Enum.sum(Map.values(lasting)) + peak

    assert inspect(plan) =~
             ~r"^#Sconce.PPO.Plan<cart_pole · vector 4 -> mlp .* steps/s · .* in all>$"

    text = to_string(plan)
    assert text =~ "an update of 32 steps in 4 rows, 8 batches, "

    for owner <- ~w(weights gradients moments environments rollout activations checkpoints),
        do: assert(text =~ ~r/^#{owner} +[\d.]+ [KM]?B/m)

    assert text =~ ~r/^at the peak +[\d.]+ [KM]B +of .* free$/m
    assert text =~ ~r"^an update +[\d.]+ ms +[\d,]+ steps/s, \d+ % of it play$"m
    assert text =~ ~r/^the run +[\d.]+ ms +20 updates, 640 steps, saves not in it$/m
  end

  test "a module of the app is planned with its own processes, which end" do
    before = Enum.count(Process.list())
    {:ok, plan} = PPO.plan([env: Catch, processes: 2, steps: 640] ++ @small)
    assert to_string(plan) =~ "Sconce.Test.Worlds.Catch · vector 3 -> mlp"
    {:ok, tuning} = PPO.tune([env: Catch, max: 8] ++ @small)
    assert inspect(tuning) =~ ~r/^#Sconce.PPO.Tuning<environments [48] of 4 8>$/
    # Other tests start processes at the same time.
    assert Enum.count(Process.list()) < before + 200
  end

  test "a tuning has the number of environments with the most steps a second" do
    {:ok, tuning} = PPO.tune([env: :cart_pole, max: 15] ++ @small)
    assert [%{environments: 4, update_steps: 32} | _] = tuning.rows
    best = Enum.max_by(tuning.rows, & &1.steps_per_second)
    assert tuning.environments == best.environments
    assert tuning.memory_limit > 0
    text = to_string(tuning)
    assert text =~ "cart_pole · vector 4 -> mlp"

    assert text =~
             "rollouts of 8 steps · 2 batches a pass\nenvironments   an update     steps/s      memory\n"

    assert text =~ ~r"^ +\d+ +[\d.]+ ms +[\d,]+ +[\d.]+ [KM]B  best$"m
    assert text =~ ~r/^stopped: the (last number was not faster|largest number was reached)$/m

    assert {:error, %Error{kind: :out_of_memory, op: :tune}} =
             PPO.tune([env: :cart_pole, memory_limit: "10KB"] ++ @small)
  end

  test "what cannot be measured is refused by name" do
    for {opts, text} <- [
          {[], "option :env is required"},
          {[env: :cart_pole, resume: true], "option :resume"},
          {[env: {:live, :rollout}], "option :env: live games set the pace"},
          {[env: :cart_pol], "cart_pole"},
          {[env: :cart_pole, max: 8], "unknown option :max"},
          {[env: :cart_pole, clip: -1], "option :clip"}
        ] do
      assert_raise ArgumentError, ~r/#{text}/, fn -> PPO.plan(opts) end
    end

    assert_raise ArgumentError, ~r/option :backoff/, fn ->
      PPO.tune(env: :cart_pole, backoff: 2.0)
    end

    assert {:error, %Error{kind: :mismatch, op: :plan, details: %{what: "steps"}}} =
             PPO.plan([env: :cart_pole, steps: 31] ++ @small)

    assert {:error, %Error{kind: :out_of_range, op: :tune}} =
             PPO.tune([env: :cart_pole, max: 3] ++ @small)
  end
end
