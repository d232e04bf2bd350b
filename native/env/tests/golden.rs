//! Comparison of CartPole with single transitions of the reference simulator.
#![allow(clippy::disallowed_methods)]

use std::path::Path;

use safetensors::SafeTensors;
use sconce_env::{CartPole, Environment};

#[test]
fn cartpole_reproduces_the_transitions_of_the_reference() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/golden");
    let bytes = std::fs::read(folder.join("env_cartpole.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let f64s = |name: &str| -> Vec<f64> {
        let data = tensors.tensor(name).unwrap().data();
        data.chunks(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let (state, next) = (f64s("input.state"), f64s("output.next_state"));
    let reward = f64s("output.reward");
    let actions = tensors.tensor("input.action").unwrap().data();
    let ended = tensors.tensor("output.terminated").unwrap().data();
    assert_eq!((state.len(), next.len(), actions.len(), ended.len()), (800, 800, 1600, 200));

    let mut env = CartPole::new(true);
    for i in 0..200 {
        env.reset_to(state[4 * i..][..4].try_into().unwrap());
        let step = env.step(usize::from(actions[8 * i])).unwrap();
        assert_eq!((step.reward, step.terminated), (reward[i], ended[i] == 1), "row {i}");
        for (got, want) in env.state().iter().zip(&next[4 * i..][..4]) {
            assert!((got - want).abs() <= 1e-12 * want.abs().max(1.0), "row {i}: {got} {want}");
        }
    }
}
