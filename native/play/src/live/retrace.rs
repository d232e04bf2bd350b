//! V-trace for segments of older weights: values and likelihoods of the present policy in place of the recorded ones.

use sconce_data::{Extra, Played};
use sconce_nn::Policy;
use sconce_nn::backbone::Context;
use sconce_tensor::Result;

use crate::heads::Choosing;
use crate::returns::{Bars, Discounts, Returns, v_trace};
use crate::segment::{Gather, Gathered, Segment, Sequence, frames, sequences};

/// Sequences of one pass.
const AT_ONCE: usize = 256;

/// What the present policy says of a recorded decision.
struct Said {
    segment: usize,
    /// Index of the decision in its segment.
    at: usize,
    value: f32,
    log_likelihood: f32,
}

/// Computes advantages and targets by V-trace. Values become those of the present policy; likelihoods stay the recorded
/// ones, to which the loss takes its ratios.
///
/// # Errors
/// `NonFinite` for a reward or a value that is not finite.
pub(crate) fn retrace(
    policy: &Policy,
    segments: &mut [Segment],
    discounts: Discounts,
    bars: Bars,
) -> Result<()> {
    segments.iter_mut().for_each(blank);
    let said = said(policy, segments)?;
    let mut ratios: Vec<Vec<f32>> = segments.iter().map(|own| vec![0.0; own.frames()]).collect();
    for Said { segment, at, value, log_likelihood } in said {
        let own = &mut segments[segment];
        own.values[at] = value;
        ratios[segment][at] = log_likelihood - own.log_likelihoods[at];
        // The value after the last decision is the recorded one.
        if let Some(before) = at.checked_sub(own.rows)
            && !own.ends_at(before)
        {
            own.next_values[before] = value;
        }
    }
    for (own, ratios) in segments.iter_mut().zip(&ratios) {
        own.check_finite()?;
        own.returns = v_trace(own.outcomes(), ratios, discounts, bars)?;
    }
    Ok(())
}

/// Gives a segment returns of 0, which a batch copies.
fn blank(segment: &mut Segment) {
    let zeros = || vec![0.0; segment.frames()];
    segment.returns = Returns { advantages: zeros(), targets: zeros() };
}

fn said(policy: &Policy, segments: &[Segment]) -> Result<Vec<Said>> {
    let (heads, zero) = (Choosing::of(&policy.spec().heads)?, policy.zero_state(1)?);
    let gather = Gather::new(policy.spec(), segments, &zero, &[])?;
    let all = if zero.0.is_empty() { frames(segments) } else { sequences(segments) };
    let mut said = vec![];
    for part in all.chunks(AT_ONCE) {
        let Gathered { batch, state, .. } = gather.batch(part)?;
        let (labels, context) = (Some(&batch.labels[..]), Context::default());
        let (logits, _) = policy.forward(&batch.frames, labels, &state, &context)?;
        let mut logits = sconce_tensor::tensor::to_vec(&logits)?;
        let masks = batch.column(|extra| extra == Extra::Played(Played::Mask)).unwrap_or_default();
        let time = batch.frames.time;
        for (i, sequence) in part.iter().enumerate() {
            let Sequence { segment, row, start, len } = *sequence;
            for t in 0..len {
                let n = i * time + t;
                let logits = &mut logits[n * heads.num_logits..][..heads.num_logits];
                let mask = masks.get(n * heads.mask_size..(n + 1) * heads.mask_size);
                heads.forbid(logits, mask.unwrap_or_default());
                let labels = &batch.labels[n * heads.num_labels..][..heads.num_labels];
                said.push(Said {
                    segment,
                    at: (start + t) * segments[segment].rows + row,
                    value: logits[heads.value],
                    log_likelihood: -heads.nll(logits, labels) as f32,
                });
            }
        }
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use sconce_nn::Spec;
    use sconce_nn::heads::NONE;
    use serde_json::json;

    use super::*;

    fn policy(seed: u64, backbone: serde_json::Value) -> Policy {
        let spec: Spec = serde_json::from_value(json!({
            "embedding": {"vector": 1},
            "backbone": backbone,
            "heads": {
                "kind": "independent", "stream_size": 8, "prior": false,
                "parts": [
                    {"name": "go", "kind": {"categorical": 3}, "hidden_size": 0},
                    {"name": "value", "kind": {"value": 1}, "hidden_size": 0},
                ],
            },
        }))
        .unwrap();
        Policy::init(&spec, seed).unwrap()
    }

    /// Two segments of one row, as the policy itself would have recorded them.
    fn segments(policy: &Policy) -> Vec<Segment> {
        let of = |steps: usize, ends: bool| {
            let mut own = Segment::new(policy.spec(), 1, steps, 4);
            own.continuous = (0..steps).map(|t| 0.3 * t as f32 - 1.0).collect();
            own.labels = (0..steps).map(|t| (t % 3) as f32).collect();
            own.previous =
                (0..steps).map(|t| t.checked_sub(1).map_or(NONE, |t| (t % 3) as f32)).collect();
            own.rewards = (0..steps).map(|t| t as f32).collect();
            own.terminated[steps - 1] = u8::from(ends);
            let zero = policy.zero_state(1).unwrap();
            if !zero.0.is_empty() {
                own.states = vec![zero; steps.div_ceil(4)];
            }
            own
        };
        let mut all = vec![of(4, false), of(3, true)];
        all.iter_mut().for_each(blank);
        let said = said(policy, &all).unwrap();
        for Said { segment, at, value, log_likelihood } in said {
            (all[segment].values[at], all[segment].log_likelihoods[at]) = (value, log_likelihood);
        }
        for own in &mut all {
            let next: Vec<f32> = own.values[1..].iter().copied().chain([0.25]).collect();
            own.next_values = next;
        }
        all
    }

    const DISCOUNTS: Discounts = Discounts { gamma: 0.9, lambda: 0.8 };
    const BARS: Bars = Bars { rho: 1.0, c: 1.0 };

    #[test]
    fn v_trace_of_the_policy_that_played_is_the_lambda_return() {
        let mlp = json!({"mlp": {"hidden_sizes": [8], "layer_norm": false, "residual": false,
            "dropout": 0.0, "input_dropout": 0.0}});
        let gru = json!({"gru": {"hidden_size": 8, "num_layers": 1, "layer_norm": false,
            "input_norm": false, "dropout": 0.0, "input_dropout": 0.0}});
        for backbone in [mlp, gru] {
            let own = policy(1, backbone.clone());
            let (mut traced, mut summed) = (segments(&own), segments(&own));
            retrace(&own, &mut traced, DISCOUNTS, BARS).unwrap();
            for (traced, summed) in traced.iter().zip(&mut summed) {
                summed.estimate(DISCOUNTS).unwrap();
                let pairs = traced.returns.targets.iter().zip(&summed.returns.targets);
                assert!(pairs.clone().count() > 0);
                pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} and {b}"));
            }
            // Another policy has other values and ratios, and the likelihoods of those that played stay.
            let mut other = segments(&own);
            retrace(&policy(2, backbone), &mut other, DISCOUNTS, BARS).unwrap();
            assert_ne!(other[0].returns, traced[0].returns);
            assert_eq!(other[0].log_likelihoods, traced[0].log_likelihoods);
            assert_ne!(other[0].values, traced[0].values);
        }
    }
}
