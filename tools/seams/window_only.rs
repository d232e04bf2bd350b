//! A policy with a window-only backbone plays on windows and refuses to carry a state.

use std::sync::Arc;

use sconce_nn::Policy;
use sconce_realtime::Format;
use sconce_serve::session::{Mode, Options, Overrides, Session};
use sconce_tensor::Kind;

const SPEC: &str = r#"{
    "embedding": {"vector": 2},
    "backbone": {"window_mean": {"hidden_size": 8}},
    "heads": {"kind": "independent", "parts": [{"name": "move", "kind": {"categorical": 3}, "hidden_size": 0}],
              "stream_size": 8, "prior": false}
}"#;

fn open(policy: &Arc<Policy>, mode: Mode) -> sconce_tensor::Result<Session> {
    let options = Options {
        mode,
        window_size: 3,
        sampling: Default::default(),
        seed: 1,
        weights: Format::F32,
        lane: None,
        rollback: 0,
        frame_delay: None,
        project_out: None,
    };
    Session::open(policy.clone(), options)
}

#[test]
fn it_plays_on_windows_and_carries_no_state() {
    let policy = Arc::new(Policy::init(&serde_json::from_str(SPEC).unwrap(), 5).unwrap());
    for mode in [Mode::Carry, Mode::Resync(4)] {
        let error = open(&policy, mode).err().unwrap();
        assert_eq!(error.kind(), Kind::Mismatch);
        assert_eq!(error.to_string(), "memory of a window_mean: expected window, got carry");
    }
    let mut session = open(&policy, Mode::Window).unwrap();
    let mut act = |x: [f32; 2]| session.act(&x, &Overrides::default()).unwrap().decision.logits;
    let first = act([1.0, -1.0]);
    act([4.0, 2.0]);
    // The decision depends on the previous frame, and no longer four frames later.
    assert_ne!(act([1.0, -1.0]), first);
    act([1.0, -1.0]);
    assert_eq!(act([1.0, -1.0]), first);
}
