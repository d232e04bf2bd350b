"""The loss of PPO with action masks, over the distributions of MaskablePPO in sb3-contrib (Huang & Ontanon 2022)."""

import torch

BATCH, CLIP, VALUE_COEF, ENTROPY_COEF = 24, 0.2, 0.5, 0.05
CHOICE, SLOT, BITS = 5, 3, 4


def distributions(choice, slot, bits, allowed):
    """Masked distributions of two choices and of bits, whose logits of 0 and 1 are 0 and the bit's own."""
    from sb3_contrib.common.maskable.distributions import (
        MaskableBernoulliDistribution,
        MaskableMultiCategoricalDistribution,
    )

    choices = MaskableMultiCategoricalDistribution([CHOICE, SLOT])
    choices.proba_distribution(torch.cat([choice, slot], 1))
    choices.apply_masking(allowed[:, : CHOICE + SLOT].numpy())
    pairs = torch.stack([torch.zeros_like(bits), bits], 2).flatten(1)
    pressed = MaskableBernoulliDistribution(BITS)
    pressed.proba_distribution(pairs)
    masks = torch.stack([torch.ones(BATCH, BITS, dtype=torch.bool), allowed[:, CHOICE + SLOT :]], 2)
    pressed.apply_masking(masks.flatten(1).numpy())
    return choices, pressed


def masked_actions(c):
    drawn = [c.randn(BATCH, n, scale=1.5) for n in (CHOICE, SLOT, BITS)]
    choice, slot, bits = (c.input(f"logits.{name}", own, grad=True)
                          for name, own in zip(("choice", "slot", "bits"), drawn))
    allowed = c.uniform(BATCH, CHOICE + SLOT + BITS) < 0.5
    # One class of each choice is allowed; in the first row everything is.
    rows = torch.arange(BATCH)
    allowed[rows, c.randint(CHOICE, BATCH)] = True
    allowed[rows, CHOICE + c.randint(SLOT, BATCH)] = True
    allowed[0] = True
    c.input("allowed", allowed)
    # Actions at random among the allowed ones.
    noise = c.uniform(BATCH, CHOICE + SLOT + BITS)
    own = torch.where(allowed, noise, -torch.ones(()))
    picked = torch.stack([own[:, :CHOICE].argmax(1), own[:, CHOICE : CHOICE + SLOT].argmax(1)], 1)
    keys = (own[:, CHOICE + SLOT :] > 0.4).long()
    c.input("action.choice", picked[:, :1])
    c.input("action.slot", picked[:, 1:])
    c.input("action.bits", keys)

    def scored(*logits):
        choices, pressed = distributions(*logits, allowed)
        return choices.log_prob(picked) + pressed.log_prob(keys), (choices.entropy() + pressed.entropy()).mean()

    log_prob, entropy = scored(choice, slot, bits)
    old = c.input("old_log_prob", scored(*drawn)[0] + c.randn(BATCH, scale=0.2))
    advantage, returns = c.input("advantage", c.randn(BATCH)), c.input("return", c.randn(BATCH))
    value = c.input("value", c.randn(BATCH), grad=True)
    c.input("old_value", c.randn(BATCH))

    # As MaskablePPO.train, whose value loss is the square without the half.
    log_ratio = log_prob - old
    ratio = log_ratio.exp()
    policy = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
    value_loss = 0.5 * (value - returns).square().mean()
    loss = policy + VALUE_COEF * value_loss - ENTROPY_COEF * entropy
    c.output("policy_loss", policy[None])
    c.output("value_loss", value_loss[None])
    c.output("entropy", entropy[None])
    c.output("approx_kl", (ratio - 1 - log_ratio).mean()[None])
    c.output("clip_fraction", ((ratio - 1).abs() > CLIP).to(c.dtype).mean()[None])
    c.output("loss", loss[None])
    c.output("log_prob", log_prob)
    c.backward(loss)
    config = dict(batch=BATCH, clip=CLIP, value_coef=VALUE_COEF, entropy_coef=ENTROPY_COEF, value_clip=None, normalise=None,
                  allowed=True)
    c.describe("sb3-contrib 2.9.2, MaskablePPO", config)


CASES = {"play_ppo_masked_actions": masked_actions}
