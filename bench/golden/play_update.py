"""Whole updates of PPO by Stable-Baselines3: its rollout, its advantages, its minibatches, its `train`.

The rollout runs in float32, as that library has it, and what it records is the exact problem. Advantages and update run
in the dtype of the case: for float64 the same code runs on weights and arrays of that type.
"""

import functools
from unittest import mock

import numpy as np
import torch

GAMMA, LAMBDA = 0.99, 0.95
EPOCHS, MINIBATCHES = 2, 2
SIZE, ACTIONS, HIDDEN = 4, 3, 8
ARRAYS = ["observations", "rewards", "episode_starts", "values", "log_probs", "advantages", "returns"]
FIGURES = {"policy_loss": "policy_gradient_loss", "value_loss": "value_loss", "entropy": "entropy_loss",
           "clip_fraction": "clip_fraction", "explained_variance": "explained_variance"}


@functools.cache
def classes():
    """The classes over Stable-Baselines3, which the other families do not need."""
    import gymnasium as gym
    from stable_baselines3 import PPO
    from stable_baselines3.common.policies import ActorCriticPolicy

    class Noise(gym.Env):
        """Observations, rewards and ends at random. Records what each step returns."""

        observation_space = gym.spaces.Box(-np.inf, np.inf, (SIZE,), np.float32)
        action_space = gym.spaces.Discrete(ACTIONS)

        def __init__(self, seed, reward):
            self.rng, self.reward, self.steps = np.random.default_rng(seed), reward, []

        def observation(self):
            return self.rng.standard_normal(SIZE).astype(np.float32)

        def reset(self, seed=None, options=None):
            return self.observation(), {}

        def step(self, action):
            reward = np.float32(self.reward * self.rng.standard_normal())
            terminated, truncated = self.rng.random(2) < 0.1
            self.steps.append((reward, terminated, truncated, self.observation()))
            return self.steps[-1][-1], reward, bool(terminated), bool(truncated), {}

    class Policy(ActorCriticPolicy):
        """A policy that does not cast its observations to float32."""

        def extract_features(self, obs, features_extractor=None):
            return obs

    return PPO, Policy, Noise


def learner(seed, envs, steps, reward, **options):
    """A PPO with environments and without output."""
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.vec_env import DummyVecEnv
    ppo, policy, noise = classes()
    world = DummyVecEnv([functools.partial(noise, seed + i, reward) for i in range(envs)])
    nets = dict(net_arch=dict(pi=[HIDDEN] * 2, vf=[HIDDEN] * 2))
    model = ppo(policy, world, n_steps=steps, batch_size=envs * steps // MINIBATCHES, n_epochs=EPOCHS, gamma=GAMMA,
                gae_lambda=LAMBDA, seed=seed, device="cpu", policy_kwargs=nets, **options)
    model.set_logger(Logger(None, []))
    return model


def rollout(model, steps):
    """Fills the buffer. Returns what the environments returned, each `[time, env]`, and the value after each step."""
    _, callback = model._setup_learn(1)
    buffer, worlds = model.rollout_buffer, model.env.envs
    model.collect_rollouts(model.env, callback, buffer, steps)
    reward, terminated, truncated, last = (
        torch.as_tensor(np.array([[world.steps[t][i] for world in worlds] for t in range(steps)])) for i in range(4))
    with torch.no_grad():
        after = torch.stack([model.policy.predict_values(row[None])[0, 0] for row in last.flatten(0, 1)])
        final = model.policy.predict_values(torch.as_tensor(model._last_obs))[:, 0]
    following = torch.cat([torch.as_tensor(buffer.values)[1:], final[None]])
    next_value = torch.where(terminated | truncated, after.view_as(following), following)
    return reward, terminated, truncated, next_value, final


def widen(model, dtype):
    """Weights and arrays of that dtype."""
    model.policy.to(dtype)
    for name in ARRAYS:
        array = torch.as_tensor(getattr(model.rollout_buffer, name))
        setattr(model.rollout_buffer, name, array.to(dtype).numpy())


def train(model):
    """Trains. Returns the permutations drawn, and the norms of the gradients before they were clipped."""
    orders, norms = [], []
    permutation, clip = np.random.permutation, torch.nn.utils.clip_grad_norm_

    def drawn(n):
        orders.append(permutation(n))
        return orders[-1]

    def clipped(*given):
        norms.append(clip(*given))
        return norms[-1]

    with mock.patch("numpy.random.permutation", drawn), mock.patch("torch.nn.utils.clip_grad_norm_", clipped):
        model.train()
    return torch.as_tensor(np.array(orders)), torch.stack(norms)


def update(envs=4, steps=16, reward=1.0, moved=0.15, within=None, batches=EPOCHS * MINIBATCHES, **given):
    """`moved` is the distance from the weights that played. `within` are bounds on all norms of gradients."""
    options = dict(learning_rate=3e-4, clip_range=0.2, vf_coef=0.5, ent_coef=0.01, max_grad_norm=0.5, target_kl=None)
    options.update(given)

    def run(c):
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        model = learner(int(c.randint(1 << 31, 1)), envs, steps, reward, **options)
        weights, buffer = dict(model.policy.named_parameters()), model.rollout_buffer
        for p in weights.values():
            p.data += c.randn(*p.shape, scale=0.2).float()
        reward_, terminated, truncated, next_value, final = rollout(model, steps)
        torch.set_default_dtype(default)

        c.input("observation", torch.as_tensor(buffer.observations))
        c.input("action", torch.as_tensor(buffer.actions)[..., 0])
        c.input("log_prob", torch.as_tensor(buffer.log_probs))
        c.input("value", torch.as_tensor(buffer.values))
        c.input("next_value", next_value)
        c.input("reward", reward_)
        # Stable-Baselines3 adds the discounted value after a truncation to its reward, and sees a termination.
        c.input("reward_with_value", torch.as_tensor(buffer.rewards))
        c.input("terminated", terminated)
        c.input("truncated", truncated)

        widen(model, c.dtype)
        buffer.compute_returns_and_advantage(final.to(c.dtype), (terminated | truncated)[-1].numpy())
        for name, array in (("advantage", "advantages"), ("return", "returns")):
            c.output(name, torch.as_tensor(getattr(buffer, array)))
            setattr(buffer, array, c.cast(torch.as_tensor(getattr(buffer, array))).numpy())
        for name, p in weights.items():
            p.data = c.param(name, p.data + c.randn(*p.shape, scale=moved), grad=False).clone()

        orders, norms = train(model)
        low, high = within or (0.0, np.inf)
        if len(norms) != batches or not low < norms.min() or not norms.max() < high:
            raise AssertionError(f"{c.name}: norms {norms.tolist()}")
        c.input("order", orders)
        for name, p in weights.items():
            c.output(name, p.data)
        if batches == EPOCHS * MINIBATCHES:
            c.output("grad_norm", norms.mean()[None])
            for name, own in FIGURES.items():
                figure = float(model.logger.name_to_value[f"train/{own}"])
                c.output(name, torch.tensor([-figure if name == "entropy" else figure]))
        c.describe("Stable-Baselines3 2.9.2, PPO (Schulman et al. 2017): compute_returns_and_advantage, train",
                   dict(options, envs=envs, steps=steps, actions=ACTIONS, hidden=HIDDEN, gamma=GAMMA, lam=LAMBDA,
                        epochs=EPOCHS, minibatches=MINIBATCHES, batches=batches), output=2e-6, fd=False)
    return run


CASES = {
    "play_update": update(within=(0.5, np.inf)),
    "play_update_unclipped": update(max_grad_norm=100.0, within=(0.0, 100.0)),
    "play_update_stopped": update(target_kl=2.5e-4, learning_rate=3e-3, moved=0.01, batches=3),
    "play_update_halves": update(envs=8, steps=64),
}
