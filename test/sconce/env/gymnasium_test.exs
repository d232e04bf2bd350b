defmodule Sconce.Env.GymnasiumTest do
  use ExUnit.Case, async: true

  alias Sconce.{Env, PPO}
  alias Sconce.Env.Gymnasium

  describe "with Gymnasium" do
    @describetag :gymnasium

    test "environments of Gymnasium are described with their own limits" do
      {:ok, spec} = Env.spec({Gymnasium, id: "CartPole-v1", make: [max_episode_steps: 50]})
      assert {spec.observation_size, spec.time_limit} == {4, 50}
      assert spec.heads == [action: {:categorical, 2}]
      {:ok, spec} = Env.spec({Gymnasium, id: "Pendulum-v1"})
      assert spec.heads == [action: {:gaussian, 1, -2.0, 2.0}]

      assert_raise RuntimeError, ~r/doesn't exist/, fn -> Env.spec({Gymnasium, id: "Nope-v1"}) end

      assert_raise RuntimeError, ~r/unexpected keyword/, fn ->
        Env.spec({Gymnasium, id: "CartPole-v1", make: [colour: "red"]})
      end
    end

    test "a policy that learns there plays alike in the native environment" do
      out = Sconce.Test.Scratch.tmp_dir!("gymnasium")
      world = {Gymnasium, id: "CartPole-v1"}

      {:ok, run} =
        PPO.start_link(env: world, out: out, steps: 16_384, seed: 1, normalise_observations: true)

      {:ok, report} = PPO.await(run)
      assert report.mean_return > 30
      best = Path.join(out, "best.safetensors")
      {:ok, there} = Env.play(best, world, episodes: 32, processes: 2)
      {:ok, here} = Env.play(best, :cart_pole, episodes: 32)
      assert_in_delta there.mean, here.mean, 0.35 * here.mean
      # New episodes: Python's state is not saved.
      {:ok, longer} = PPO.start_link(resume: true, out: out, env: world, steps: 18_432)
      assert {:ok, %{updates: 9}} = PPO.await(longer)
    end
  end

  test "a program that is missing or ends is an error that names it" do
    assert_raise ArgumentError, ~r/no program "no-python"/, fn ->
      Env.spec({Gymnasium, id: "CartPole-v1", python: "no-python"})
    end

    # The program may end before or after the request is written to it, so this is tried more than once.
    for program <- ["false", "true"], _try <- 1..20 do
      assert_raise RuntimeError, ~r/has #{program} the package gymnasium/, fn ->
        Env.spec({Gymnasium, id: "CartPole-v1", python: program})
      end
    end

    assert_raise ArgumentError, ~r/:id is required/, fn -> Env.spec({Gymnasium, []}) end
  end
end
