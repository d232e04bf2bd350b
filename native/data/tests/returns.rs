//! Extra columns: stored columns, and returns computed from rewards.

use sconce_data::{Beside, Builder, Extra, Reader, Sampler, SamplerOptions, Schema};
use sconce_game::Declaration;
use serde_json::json;

/// Three games of 20, 30 and 7 frames; the reward of frame t is t + 1.
#[test]
fn a_batch_has_the_discounted_returns_of_its_frames() {
    let declaration: Declaration = serde_json::from_value(json!({
        "name": "walk", "version": 1,
        "fields": [{"name": "t", "kind": {"range": {"min": 0.0, "max": 100.0}},
                    "scale": {"between": {"min": 0.0, "max": 100.0}}}],
        "input": [{"name": "go", "kind": {"choice": 2}}],
    }))
    .unwrap();
    let schema = Schema::declared(declaration, &[Beside::Reward, Beside::LogLikelihood]);
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::new(&schema, &dir.path().join("corpus")).unwrap();
    let lengths = [20, 30, 7];
    for frames in lengths {
        // A frame, an input, a reward, and the log-likelihood of the input.
        let row = |t: usize| [t as f32, 1.0, t as f32 + 1.0, -0.5];
        builder.add_rows(&(0..frames).flat_map(row).collect::<Vec<_>>()).unwrap();
    }
    let corpus = builder.finish().unwrap();
    let views = corpus.views(&[0, 1, 2]).unwrap();
    for (discount, delay) in [(0.9, 0), (1.0, 2), (0.0, 1)] {
        let beside = vec![Extra::Return { discount }, Extra::Stored(Beside::LogLikelihood)];
        let reader = Reader::new(schema.embedding(), schema.heads(), delay);
        let reader = Reader { beside, ..reader };
        let options = SamplerOptions { window: 5, stride: 1, ..SamplerOptions::default() };
        let sampler = Sampler::new(views.clone(), reader, options).unwrap();
        for step in 0..6 {
            let batch = sampler.batch(step, 4).unwrap();
            let returns = batch.column(|extra| matches!(extra, Extra::Return { .. })).unwrap();
            let likely = batch.column(|extra| matches!(extra, Extra::Stored(_))).unwrap();
            assert!(likely.iter().all(|number| *number == -0.5));
            let width = batch.frames.continuous.len() / returns.len();
            for (row, got) in batch.frames.continuous.chunks(width).zip(returns) {
                // With discount 0, a return is the reward of the answer.
                let t = (row[0] + 1.0) * 50.0;
                let near = (got - (t + delay as f32 + 1.0)).abs() < 1e-3;
                assert!(near || discount > 0.0, "{got} at {t}");
            }
        }
        for view in &views {
            let frames = view.frames();
            let mut got = vec![0.0; view.len(delay)];
            view.returns(0, delay, discount, &mut got).unwrap();
            for (t, got) in got.iter().enumerate() {
                let rewards = (t + delay..frames).map(|row| row as f64 + 1.0);
                let each = rewards.enumerate();
                let want: f64 =
                    each.map(|(k, reward)| f64::from(discount).powi(k as i32) * reward).sum();
                assert!(
                    (f64::from(*got) - want).abs() < 1e-4 * want,
                    "{t} of {frames}: {got}, not {want}"
                );
            }
            assert!(view.returns(frames - delay, delay, discount, &mut [0.0]).is_err());
        }
    }
}
