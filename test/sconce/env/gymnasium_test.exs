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

    @environments """
    import gymnasium, numpy
    from gymnasium import spaces

    class Stairs(gymnasium.Env):
        observation_space = spaces.Box(0.0, 5.0, (1,), numpy.float32)
        action_space = spaces.MultiDiscrete([3, 2])

        def seen(self):
            return numpy.array([self.step_], numpy.float32)

        def allowed(self):
            assert self.step_ < 5, "no mask after the end"
            return [i != self.step_ % 3 for i in range(3)] + [True, self.step_ % 2 == 0]

        def reset(self, seed=None, options=None):
            self.step_ = 0
            return self.seen(), self.info()

        def step(self, action):
            assert self.allowed()[action[0]] and self.allowed()[3 + action[1]], f"{action} is not allowed"
            self.step_ += 1
            over = self.step_ == 5
            return self.seen(), 1.0, over, False, {} if over else self.info()

    class Method(Stairs):
        def info(self):
            return {}

        def action_masks(self):
            return numpy.array(self.allowed())

    class Info(Stairs):
        def info(self):
            return {"action_mask": self.allowed()}

    class Keys(Stairs):
        action_space = spaces.MultiBinary(2)

        def allowed(self):
            return [True, self.step_ % 2 == 0, True, False]

        def info(self):
            return {"action_mask": self.allowed()}

        def step(self, action):
            assert not action[1] and (not action[0] or self.step_ % 2 == 0), f"{action} is not allowed"
            self.step_ += 1
            return self.seen(), 1.0, self.step_ == 5, False, self.info()

    for env in (Method, Info, Keys):
        gymnasium.register(f"{env.__name__}-v0", env)
    """

    test "masks are those of action_masks() or of the infos" do
      out = Sconce.Test.Scratch.tmp_dir!("gymnasium_masks")
      File.write!(Path.join(out, "stairs.py"), @environments)
      # A Python that finds the module.
      python = Path.join(out, "python")
      path = Enum.join([out | List.wrap(System.get_env("PYTHONPATH"))], ":")
      File.write!(python, ~s(#!/bin/sh\nPYTHONPATH="#{path}" exec python3 "$@"\n))
      File.chmod!(python, 0o755)

      for {id, size} <- [{"Method-v0", 5}, {"Info-v0", 5}, {"Keys-v0", 2}] do
        world = {Gymnasium, id: id, python: python, import: "stairs"}
        assert {:ok, %{mask_size: ^size} = spec} = Env.spec(world)
        run = Path.join(out, id)
        opts = [environments: 6, rollout_steps: 16, minibatches: 2, hidden_sizes: [8], seed: 1]
        {:ok, run} = PPO.start_link([env: world, out: run, steps: 192, processes: 2] ++ opts)
        assert {:ok, %{episodes: episodes}} = PPO.await(run)
        assert episodes > 24

        {:ok, policy} =
          Sconce.Policy.init([embedding: {:vector, 1}, backbone: :mlp, heads: spec.heads], seed: 2)

        for deterministic <- [true, false] do
          opts = [episodes: 5, deterministic: deterministic]
          assert {:ok, %{returns: [5.0, 5.0, 5.0, 5.0, 5.0]}} = Env.play(policy, world, opts)
        end
      end
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
