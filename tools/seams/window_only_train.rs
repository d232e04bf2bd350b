//! A run refuses to carry the state of a window-only backbone, from batch to batch and within a window.

use std::sync::atomic::AtomicBool;

use sconce_tensor::Kind;
use sconce_train::options::{Mode, TrainOptions};
use sconce_train::plan::plan;

const SPEC: &str = r#"{
    "embedding": {"vector": 2},
    "backbone": {"window_mean": {"hidden_size": 8}},
    "heads": {"kind": "independent", "parts": [{"name": "move", "kind": {"categorical": 3}, "hidden_size": 0}],
              "stream_size": 8, "prior": false}
}"#;

#[test]
fn options_that_carry_state_are_refused_by_name() {
    let refused: [fn(&mut TrainOptions); 3] = [
        |options| options.data.unroll = Mode::Carry,
        |options| options.saving.validation_mode = Mode::Carry,
        |options| options.optimiser.truncate_bptt = Some(4),
    ];
    for refused in refused {
        let mut options = TrainOptions::default();
        options.data.window_size = 8;
        refused(&mut options);
        let error = plan(&serde_json::from_str(SPEC).unwrap(), &options, None, &AtomicBool::new(false));
        let error = error.err().unwrap();
        assert_eq!(error.kind(), Kind::Mismatch);
        assert_eq!(error.to_string(), "memory of a window_mean: expected window, got carry");
    }
}
