use std::sync::Arc;

use sconce_nn::{Policy, Spec};
use serde_json::json;

use super::*;

/// Environments of two seats in which row `r` may choose class `(r + step) % 3` alone.
struct Forced {
    spec: EnvSpec,
    masks: Vec<u8>,
    step: usize,
}

impl Forced {
    fn new() -> Self {
        let options = EnvOptions { env: "mountain_car".into(), ..EnvOptions::default() };
        let spec = sconce_env::spec(&options).unwrap();
        let spec = EnvSpec { observation_size: 1, seats: 2, mask_size: 3, ..spec };
        let mut own = Forced { spec, masks: vec![], step: 0 };
        own.force();
        own
    }

    fn force(&mut self) {
        let allowed = |i: usize| u8::from(i % 3 == (i / 3 + self.step) % 3);
        self.masks = (0..3 * self.rows()).map(allowed).collect();
    }
}

impl VectorEnv for Forced {
    fn spec(&self) -> &EnvSpec {
        &self.spec
    }

    fn count(&self) -> usize {
        8
    }

    fn observe(&self, out: &mut [f32]) {
        out.fill(0.5);
    }

    fn masks(&self) -> &[u8] {
        &self.masks
    }

    fn step(&mut self, inputs: &[f32], out: &mut Stepped<'_>) -> Result<()> {
        let wanted = (0..16).map(|row| ((row + self.step) % 3) as f32);
        assert!(wanted.eq(inputs.iter().copied()), "{inputs:?} in step {}", self.step);
        self.step += 1;
        self.force();
        self.observe(out.observations);
        Ok(())
    }

    fn episodes(&mut self, _take: &mut Vec<Episode>) {}

    fn take_terms(&mut self) -> Vec<f64> {
        vec![]
    }

    fn state(&self, _env: usize) -> Vec<f32> {
        vec![]
    }

    fn numbers(&self) -> Result<Numbers> {
        Ok(Numbers::default())
    }

    fn restore(&mut self, _numbers: &Numbers) -> Result<Vec<u32>> {
        Ok(vec![])
    }
}

#[test]
fn the_learner_and_its_opponents_see_the_masks_of_their_own_rows() {
    let spec: Spec = serde_json::from_value(json!({
        "embedding": {"vector": 1},
        "backbone": {"mlp": {"hidden_sizes": [4], "layer_norm": false, "residual": false,
            "dropout": 0.0, "input_dropout": 0.0}},
        "heads": {
            "kind": "independent", "stream_size": 8, "prior": false,
            "parts": [{"name": "action", "kind": {"categorical": 3}, "hidden_size": 0}],
        },
    }))
    .unwrap();
    let policy = Frozen::Learned(Arc::new(Policy::init(&spec, 3).unwrap()));
    let envs = Forced::new();
    let options = EnvOptions { count: 8, ..EnvOptions::default() };
    let opposition = Some(Opposition::new(&envs, &options, 0.25).unwrap());
    let mut arena = Arena { envs: Box::new(envs), opposition };
    arena.meet(7, &policy).unwrap();
    assert_eq!(arena.rows(), 10);
    for _ in 0..6 {
        // The only class that each of the learner's rows may choose.
        let inputs: Vec<f32> = arena
            .masks()
            .chunks_exact(3)
            .map(|mask| mask.iter().position(|allowed| *allowed == 1).unwrap() as f32)
            .collect();
        let mut out = Stepped {
            observations: &mut [0.0; 10],
            rewards: &mut [0.0; 10],
            terminated: &mut [0; 10],
            truncated: &mut [0; 10],
            ended: &mut vec![],
            final_observations: &mut vec![],
        };
        arena.step(&inputs, &mut out).unwrap();
    }
    let alone = Arena { envs: Box::new(Forced::new()), opposition: None };
    assert_eq!(alone.masks().len(), 48);
}
