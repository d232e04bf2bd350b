//! Masks of recorded segments.

use std::sync::Mutex;

use sconce_data::Sink;
use sconce_serve::session::{Overrides, Recording, Session};
use sconce_serve::{Format, Model};

use super::super::*;
use crate::returns::{Bars, Discounts};

#[derive(Default)]
struct All(Mutex<Vec<Recorded>>);

impl Sink for All {
    fn terms(&self) -> Arc<[String]> {
        Arc::new(["reward".to_string()])
    }

    fn put(&self, segment: Recorded) {
        self.0.lock().unwrap().push(segment);
    }
}

fn policy() -> Arc<Policy> {
    let spec: Spec = serde_json::from_value(json!({
        "embedding": {"vector": 2},
        "backbone": {"gru": {"hidden_size": 8, "num_layers": 1, "layer_norm": false,
            "input_norm": false, "dropout": 0.0, "input_dropout": 0.0}},
        "heads": {
            "kind": "autoregressive", "stream_size": 8, "prior": false,
            "parts": [
                {"name": "keys", "kind": {"bernoulli": 2}, "hidden_size": 0},
                {"name": "move", "kind": {"categorical": 3}, "hidden_size": 0},
                {"name": "value", "kind": {"value": 1}, "hidden_size": 0},
            ],
        },
    }))
    .unwrap();
    Arc::new(Policy::init(&spec, 3).unwrap())
}

#[test]
fn a_recorded_segment_has_the_masks_of_its_decisions_and_v_trace_repeats_their_likelihoods() {
    let (policy, all) = (policy(), Arc::<All>::default());
    let model = Arc::new(Model::new(policy.clone(), Format::F32).unwrap());
    let options = serde_json::from_value(json!({
        "mode": "carry", "window_size": 4, "seed": 1,
        "sampling": sconce_nn::sampling::Sampling::default(),
    }));
    let mut session = Session::over(model, options.unwrap()).unwrap();
    session.record(all.clone(), Recording { steps: 6, stride: 3, hold: 0 }).unwrap();
    // The second half of the episode has no masks.
    let mask = |t: usize| (t < 6).then(|| vec![1, 0, u8::from(t.is_multiple_of(2)), 1, 0]);
    for t in 0..12 {
        let overrides = Overrides { mask: mask(t), ..Overrides::default() };
        session.act(&[0.3 * t as f32, -0.2], &overrides).unwrap();
        session.reward(None, t as f32).unwrap();
    }
    session.done(Over::Terminated, None).unwrap();
    let (heads, zero) =
        (Choosing::of(&policy.spec().heads).unwrap(), policy.zero_state(1).unwrap());
    let taken = std::mem::take(&mut *all.0.lock().unwrap());
    let read = |recorded: &Recorded| {
        // Segments of other nodes come as bytes.
        let recorded = Recorded::from_bytes(&recorded.to_bytes()).unwrap();
        segment(policy.spec(), &heads, &zero, recorded, &[1.0]).unwrap()
    };
    let mut traced: Vec<Segment> = taken.iter().map(read).collect();
    assert_eq!(traced[0].mask, (0..6).flat_map(|t| mask(t).unwrap()).collect::<Vec<_>>());
    assert!(traced[1].mask.is_empty());
    let mut summed = traced.clone();
    let discounts = Discounts { gamma: 0.9, lambda: 0.8 };
    retrace(&policy, &mut traced, discounts, Bars { rho: 9.0, c: 9.0 }).unwrap();
    for (traced, summed) in traced.iter().zip(&mut summed) {
        summed.estimate(discounts).unwrap();
        let pairs = traced.returns.targets.iter().zip(&summed.returns.targets);
        pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-4, "{a} and {b}"));
    }
}
