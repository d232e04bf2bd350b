//! Policies with fewer units, and means of policies.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sconce_compress::{Hessians, Shrinking, UnitsReport, averaged, hessians, shrunk};
use sconce_data::{Corpus, Schema, VectorGame, View};
use sconce_nn::backbone::Context;
use sconce_nn::policy::Frames;
use sconce_nn::{Policy, Spec};
use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::{tensor, to_vec};
use sconce_tensor::{Kind, Result, pool};
use serde_json::{Value, json};

static RUNNING: AtomicBool = AtomicBool::new(false);

const WIDTH: usize = 20;

fn spec(backbone: Value, kind: &str) -> Spec {
    serde_json::from_value(json!({
        "embedding": {"vector": WIDTH}, "backbone": backbone,
        "heads": {"kind": kind, "stream_size": 12, "prior": false, "parts": [
            {"name": "sign", "kind": {"categorical": 3}, "hidden_size": 16},
            {"name": "large", "kind": {"bernoulli": 2}, "hidden_size": 16},
        ]},
    }))
    .unwrap()
}

fn mlp(hidden_sizes: &[usize], residual: bool) -> Value {
    json!({"mlp": {"hidden_sizes": hidden_sizes, "layer_norm": false, "residual": residual, "activation": "tanh",
        "dropout": 0.0, "input_dropout": 0.0}})
}

fn recurrent(name: &str) -> Value {
    json!({name: {"hidden_size": 24, "num_layers": 2, "layer_norm": false, "input_norm": false, "dropout": 0.0,
        "input_dropout": 0.0}})
}

fn stack(name: &str) -> Value {
    json!({name: {"hidden_size": 24, "num_layers": 2, "input_norm": false, "dropout": 0.0, "input_dropout": 0.0}})
}

fn attention() -> Value {
    json!({"sliding_window": {"hidden_size": 24, "num_layers": 2, "num_heads": 3, "head_dim": 4, "window_size": 6,
        "qk_layernorm": true, "input_norm": true, "dropout": 0.0, "input_dropout": 0.0}})
}

fn to_width(hidden_size: usize) -> Shrinking {
    Shrinking { hidden_size: Some(hidden_size), damping: 0.01, ..Shrinking::default() }
}

fn run(policy: &Policy, of: &Shrinking, found: &Hessians) -> Result<(Policy, Vec<UnitsReport>)> {
    shrunk(policy, of, found, &RUNNING)
}

/// The policy with some values of its weights changed: `change(name, row, column, value)`.
fn changed(policy: &Policy, change: impl Fn(&str, usize, usize, f32) -> f32) -> Policy {
    let mut weights = Weights::new();
    for (name, weight) in policy.weights() {
        let cols = weight.dims().last().copied().unwrap();
        let values = to_vec(weight).unwrap().into_iter().enumerate();
        let values = values.map(|(i, v)| change(name, i / cols, i % cols, v)).collect();
        weights.insert(name.clone(), Weight::from(tensor(values, weight.dims()).unwrap()));
    }
    Policy::from_weights(policy.spec(), weights).unwrap()
}

fn logits(policy: &Policy) -> Vec<f32> {
    let (rng, time) = (Rng::new(5, "frames", 0), 15);
    let frames = Frames {
        batch: 2,
        time,
        continuous: (0..(2 * time * WIDTH) as u64).map(|i| rng.normal(i)).collect(),
        ids: vec![],
        previous: vec![0.0; 2 * time * 3],
    };
    let labels: Vec<f32> = (0..2 * time).flat_map(|i| [(i % 3) as f32, 1.0, 0.0]).collect();
    let state = policy.zero_state(2).unwrap();
    let context = Context::default();
    to_vec(&policy.forward(&frames, Some(&labels), &state, &context).unwrap().0).unwrap()
}

fn close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
}

fn views(spec: &Spec, dir: &Path, frames: usize, of: impl Fn(u64) -> f32) -> Vec<View> {
    let x = (0..(frames * WIDTH) as u64).map(of).collect();
    let game = VectorGame { labels: vec![0.0; 3 * frames], x };
    let corpus = Corpus::build(&Schema::vector(WIDTH, &spec.heads), &[game], dir).unwrap();
    corpus.views(&[0]).unwrap()
}

/// Numbers that depend on each other.
fn dependent(i: u64) -> f32 {
    let (rng, t, at) = (Rng::new(1, "games", 0), i / WIDTH as u64, i % WIDTH as u64);
    rng.normal(t * 8 + at % 4) + 0.3 * rng.normal(t * 8 + 4 + at % 3)
}

#[test]
fn units_that_are_not_read_leave_without_a_change() {
    // Each third unit is read by nothing, so that 16 of 24 units compute the same.
    let is_dead = |unit: usize| unit % 3 == 1;
    for kind in ["independent", "autoregressive"] {
        for (backbone, to) in [
            (mlp(&[24, 24], false), Shrinking { hidden_sizes: Some(vec![16, 16]), ..to_width(16) }),
            (mlp(&[24, 24], true), Shrinking { hidden_sizes: Some(vec![16, 16]), ..to_width(16) }),
            (recurrent("gru"), to_width(16)),
            (recurrent("lstm"), to_width(16)),
        ] {
            let to = match &to.hidden_sizes {
                Some(_) => Shrinking { hidden_size: None, ..to },
                None => to,
            };
            let policy = Policy::init(&spec(backbone, kind), 3).unwrap();
            let read = |name: &str| {
                let inner =
                    ["weight_hh", "weight_ih_l1", "layers.1.dense.weight", "stream_in.weight"];
                inner.iter().any(|own| name.contains(own)) || name.ends_with("_hidden.weight")
            };
            let policy = changed(
                &policy,
                |name, _row, col, v| {
                    if read(name) && is_dead(col) { 0.0 } else { v }
                },
            );
            let (small, reports) = run(&policy, &to, &Hessians::new()).unwrap();
            let kept: Vec<usize> = (0..24).filter(|unit| !is_dead(*unit)).collect();
            assert!(!reports.is_empty());
            for own in &reports {
                assert_eq!((&own.kept, own.units, own.output_error), (&kept, 24, None), "{own:?}");
                assert!((own.importance - 1.0).abs() < 1e-12);
            }
            close(&logits(&small), &logits(&policy));
            assert!(small.num_weights() < policy.num_weights());
            // A calibration finds the same units, and has nothing to adjust.
            let dir = tempfile::tempdir().unwrap();
            let found = hessians(
                &policy,
                &views(policy.spec(), dir.path(), 200, dependent),
                0,
                100,
                &RUNNING,
            );
            let (small, reports) = run(&policy, &to, &found.unwrap()).unwrap();
            for own in &reports {
                assert_eq!(own.kept, kept);
                assert!(own.output_error.unwrap() < 1e-6, "{own:?}");
            }
            close(&logits(&small), &logits(&policy));
        }
    }
}

#[test]
fn a_critic_stays_as_it_is() {
    let mut with = serde_json::to_value(spec(recurrent("gru"), "independent")).unwrap();
    let value = json!({"name": "value", "kind": {"value": 1}, "hidden_size": 16});
    with["heads"]["parts"].as_array_mut().unwrap().push(value);
    with["critic"] = mlp(&[24], false);
    let policy = Policy::init(&serde_json::from_value(with).unwrap(), 3).unwrap();
    let policy = changed(&policy, |name, _row, col, v| {
        let is_read = ["weight_hh", "weight_ih_l1"].iter().any(|own| name.contains(own));
        let is_read = is_read || name.starts_with("heads.") && name.ends_with("_hidden.weight");
        if is_read && col % 3 == 1 { 0.0 } else { v }
    });
    let (small, _) = run(&policy, &to_width(16), &Hessians::new()).unwrap();
    close(&logits(&small), &logits(&policy));
    let critic = policy.weights().iter().filter(|(name, _)| name.starts_with("critic."));
    assert!(critic.clone().count() > 0);
    for (name, weight) in critic {
        assert_eq!(to_vec(weight).unwrap(), to_vec(&small.weights()[name]).unwrap(), "{name}");
    }
}

#[test]
fn heads_that_are_not_read_leave_without_a_change() {
    let policy = Policy::init(&spec(attention(), "independent"), 3).unwrap();
    let policy = changed(&policy, |name, _row, col, v| {
        let is_dead = if name.contains("layers.0") { 1 } else { 0 };
        if name.ends_with(".out.weight") && col / 4 == is_dead { 0.0 } else { v }
    });
    let two = Shrinking { num_heads: Some(2), damping: 0.01, ..Shrinking::default() };
    let (small, reports) = run(&policy, &two, &Hessians::new()).unwrap();
    let kept = |name: &str| &reports.iter().find(|own| own.name == name).unwrap().kept;
    assert_eq!(kept("backbone.layers.0.heads"), &[0, 2]);
    assert_eq!(kept("backbone.layers.1.heads"), &[1, 2]);
    assert_eq!(kept("backbone").len(), 24);
    assert_eq!(small.weights()["backbone.layers.0.qkv.weight"].dims(), [24, 24]);
    close(&logits(&small), &logits(&policy));
}

#[test]
fn a_stream_loses_the_same_units_in_every_layer() {
    let cell = "backbone.layers.1.cell.linear_h.weight";
    let reader = "backbone.layers.1.ffn1.weight";
    for (backbone, square) in
        [(stack("min_gru"), cell), (stack("min_lstm"), cell), (attention(), reader)]
    {
        let policy = Policy::init(&spec(backbone, "autoregressive"), 3).unwrap();
        let (small, reports) = run(&policy, &to_width(16), &Hessians::new()).unwrap();
        let kept = |name: &str| reports.iter().find(|own| own.name == name).map(|own| &own.kept);
        let stream = kept("backbone").unwrap();
        assert_eq!(stream.len(), 16);
        let rows = if square == cell { stream } else { kept("backbone.layers.1.ffn1").unwrap() };
        let picked = |name: &str, rows: &[usize], cols: Option<&[usize]>| {
            let (before, after) = (&policy.weights()[name], &small.weights()[name]);
            let width = before.dims().get(1).copied().unwrap_or(1);
            let values = to_vec(before).unwrap();
            let all: Vec<usize> = (0..width).collect();
            let cols = cols.unwrap_or(&all);
            let wanted: Vec<f32> = rows
                .iter()
                .flat_map(|row| {
                    cols.iter().map(|col| values[row * width + col]).collect::<Vec<_>>()
                })
                .collect();
            assert_eq!(to_vec(after).unwrap(), wanted, "{name}");
        };
        picked("backbone.input.weight", stream, None);
        picked("backbone.input.bias", stream, None);
        picked("backbone.norm.weight", stream, None);
        picked(square, rows, Some(stream));
        picked("heads.stream_in.weight", &(0..12).collect::<Vec<_>>(), Some(stream));
        assert!(logits(&small).iter().all(|v| v.is_finite()));
    }
}

#[test]
fn least_squares_lower_the_errors_of_outputs() {
    let (spec, dir) = (spec(recurrent("gru"), "autoregressive"), tempfile::tempdir().unwrap());
    let policy = Policy::init(&spec, 1).unwrap();
    let found =
        hessians(&policy, &views(&spec, dir.path(), 600, dependent), 0, 500, &RUNNING).unwrap();
    let errors = |damping: f64| -> Vec<f64> {
        let (_, reports) = run(&policy, &Shrinking { damping, ..to_width(12) }, &found).unwrap();
        reports.iter().map(|own| own.output_error.unwrap()).collect()
    };
    // With much damping the columns stay as they are.
    for (own, plain) in errors(0.001).iter().zip(errors(1e9)) {
        assert!(*own < 0.5 * plain && plain < 1.0, "{own} beside {plain}");
    }
}

#[test]
fn adjusted_columns_solve_the_normal_equations() {
    let (spec, dir) = (spec(recurrent("gru"), "autoregressive"), tempfile::tempdir().unwrap());
    let policy = Policy::init(&spec, 1).unwrap();
    let found =
        hessians(&policy, &views(&spec, dir.path(), 600, dependent), 0, 500, &RUNNING).unwrap();
    let to = Shrinking { damping: 0.0, ..to_width(12) };
    let (small, reports) = run(&policy, &to, &found).unwrap();
    let (name, kept) = ("heads.stream_in.weight", &reports.last().unwrap().kept);
    let [before, after] = [&policy, &small].map(|of| to_vec(&of.weights()[name]).unwrap());
    let (hessian, size) = (found[name].values(), found[name].size());
    let largest = hessian.iter().fold(0.0f64, |most, v| most.max(v.abs()));
    for (before, after) in before.chunks(size).zip(after.chunks(kept.len())) {
        let mut missing: Vec<f64> = before.iter().map(|w| f64::from(*w)).collect();
        kept.iter().zip(after).for_each(|(at, w)| missing[*at] -= f64::from(*w));
        // (W - W') H has no part along the inputs that stay.
        for at in kept {
            let column = missing.iter().enumerate().map(|(j, d)| d * hessian[j * size + at]);
            let along = column.sum::<f64>();
            assert!(along.abs() < 1e-5 * largest, "{along} beside {largest}");
        }
        let norm: f64 = missing.iter().map(|d| d * d).sum();
        assert!(norm > 0.01, "nothing is missing");
    }
}

#[test]
fn the_share_of_weights_chooses_the_largest_width() {
    let policy = Policy::init(&spec(recurrent("gru"), "independent"), 1).unwrap();
    let keep = |keep: f64| Shrinking { keep: Some(keep), damping: 0.01, ..Shrinking::default() };
    let (half, reports) = run(&policy, &keep(0.5), &Hessians::new()).unwrap();
    assert_eq!(reports[0].kept.len(), 8);
    let (next, _) = run(&policy, &to_width(16), &Hessians::new()).unwrap();
    assert!(2 * next.num_weights() > policy.num_weights());
    let (wider, _) = run(&policy, &to_width(24), &Hessians::new()).unwrap();
    assert!(2 * half.num_weights() <= policy.num_weights());
    assert_eq!(wider.num_weights(), policy.num_weights());
    for (name, weight) in wider.weights() {
        assert_eq!(to_vec(weight).unwrap(), to_vec(&policy.weights()[name]).unwrap(), "{name}");
    }
    let error = run(&policy, &keep(0.01), &Hessians::new()).err().unwrap();
    assert_eq!(error.kind(), Kind::OutOfRange, "{error}");
    assert!(error.to_string().contains("keep"), "{error}");
}

#[test]
fn a_frame_suffices_and_inputs_that_never_fire_fall_back_to_norms() {
    let spec = spec(mlp(&[24, 24], false), "independent");
    let policy = Policy::init(&spec, 1).unwrap();
    let to = Shrinking { hidden_sizes: Some(vec![12, 12]), damping: 0.01, ..Shrinking::default() };
    let (_, plain) = run(&policy, &to, &Hessians::new()).unwrap();
    let quiet = changed(&policy, |name, _, _, v| if name.contains("bias") { 0.0 } else { v });
    for (policy, frames, is_quiet) in [(&policy, 1, false), (&quiet, 30, true)] {
        let dir = tempfile::tempdir().unwrap();
        let views = views(&spec, dir.path(), frames, |i| if is_quiet { 0.0 } else { dependent(i) });
        let found = hessians(policy, &views, 0, 20, &RUNNING).unwrap();
        let (small, reports) = run(policy, &to, &found).unwrap();
        assert!(logits(&small).iter().all(|v| v.is_finite()));
        if is_quiet {
            let kept =
                |all: &[UnitsReport]| all.iter().map(|own| own.kept.clone()).collect::<Vec<_>>();
            assert_eq!(kept(&reports), kept(&plain));
        }
    }
    // Nothing tells units of weights of 0 apart, so the first stay.
    let zero = changed(&policy, |_, _, _, _| 0.0);
    let (small, reports) = run(&zero, &to, &Hessians::new()).unwrap();
    assert_eq!(reports[0].kept, (0..12).collect::<Vec<_>>());
    assert!(logits(&small).iter().all(|v| *v == 0.0));
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let (spec, dir) = (spec(recurrent("gru"), "independent"), tempfile::tempdir().unwrap());
    let policy = Policy::init(&spec, 1).unwrap();
    let views = views(&spec, dir.path(), 300, dependent);
    let made = || {
        let found = hessians(&policy, &views, 0, 200, &RUNNING).unwrap();
        let (small, _) = run(&policy, &to_width(16), &found).unwrap();
        small.weights().values().flat_map(|weight| to_vec(weight).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(made(), pool::serial(made));
}

#[test]
fn wrong_sizes_are_named() {
    let gru = Policy::init(&spec(recurrent("gru"), "independent"), 1).unwrap();
    let deep = Policy::init(&spec(mlp(&[24, 16], true), "independent"), 1).unwrap();
    let two = Policy::init(&spec(stack("min_gru"), "independent"), 1).unwrap();
    let heads = Policy::init(&spec(attention(), "independent"), 1).unwrap();
    let mut narrow = stack("min_gru");
    narrow["min_gru"]["hidden_size"] = json!(WIDTH);
    let narrow = Policy::init(&spec(narrow, "independent"), 1).unwrap();
    let mamba = json!({"mamba": {"hidden_size": 16, "num_layers": 1, "state_size": 4, "expand_factor": 2, "conv_size": 4,
        "input_norm": false, "dropout": 0.0, "input_dropout": 0.0}});
    let mamba = Policy::init(&spec(mamba, "independent"), 1).unwrap();
    let mut stored = recurrent("gru");
    stored["gru"]["initial_state"] = json!(true);
    let stored = Policy::init(&spec(stored, "independent"), 1).unwrap();
    let infinite = changed(&gru, |name, row, col, v| {
        if name == "backbone.weight_hh_l1" && (row, col) == (0, 3) { f32::INFINITY } else { v }
    });
    let widths =
        |all: &[usize]| Shrinking { hidden_sizes: Some(all.to_vec()), ..Shrinking::default() };
    let num_heads = |n| Shrinking { num_heads: Some(n), ..Shrinking::default() };
    for (policy, to, text, kind) in [
        (&gru, to_width(0), "hidden_size: 0 is outside 1..24", Kind::OutOfRange),
        (&gru, to_width(25), "hidden_size: 25 is outside 1..24", Kind::OutOfRange),
        (&gru, widths(&[8, 8]), "shrink of a gru: expected hidden_size", Kind::Mismatch),
        (&gru, num_heads(2), "num_heads", Kind::OutOfRange),
        (&heads, num_heads(0), "num_heads: 0 is outside 1..3", Kind::OutOfRange),
        (&heads, num_heads(4), "num_heads", Kind::OutOfRange),
        (&deep, to_width(8), "expected hidden_sizes", Kind::Mismatch),
        (&deep, widths(&[8]), "expected 2 widths, got 1", Kind::Mismatch),
        (
            &deep,
            widths(&[8, 8]),
            "equal widths where those of the policy are equal",
            Kind::Mismatch,
        ),
        (&two, to_width(WIDTH), "another number than the width of a frame", Kind::Mismatch),
        (&narrow, to_width(8), "shrink of a min_gru", Kind::Unavailable),
        (&mamba, to_width(8), "shrink of a mamba", Kind::Unavailable),
        (&stored, to_width(8), "its initial state is stored", Kind::Unavailable),
        (&infinite, to_width(8), "backbone.weight_hh_l1", Kind::NonFinite),
    ] {
        for error in [to.check(policy).err(), run(policy, &to, &Hessians::new()).err()] {
            let error = error.unwrap_or_else(|| panic!("{to:?} passed"));
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
    let stopped = AtomicBool::new(true);
    let cancelled = shrunk(&gru, &to_width(8), &Hessians::new(), &stopped).err().unwrap();
    assert_eq!(cancelled.kind(), Kind::Cancelled);
}

#[test]
fn a_mean_of_policies_is_that_of_their_weights() {
    let spec = spec(recurrent("gru"), "autoregressive");
    let policies: Vec<Arc<Policy>> =
        (1..4).map(|seed| Arc::new(Policy::init(&spec, seed).unwrap())).collect();
    let mean = averaged(&policies, &[1.0, 0.0, 3.0]).unwrap();
    for (name, weight) in mean.weights() {
        let all: Vec<Vec<f32>> =
            policies.iter().map(|own| to_vec(&own.weights()[name]).unwrap()).collect();
        for (i, v) in to_vec(weight).unwrap().into_iter().enumerate() {
            let want = 0.25 * f64::from(all[0][i]) + 0.75 * f64::from(all[2][i]);
            assert!((f64::from(v) - want).abs() <= 1e-7 * want.abs().max(1e-3), "{name}: {v}");
        }
    }
    let one = averaged(&policies[..1], &[7.0]).unwrap();
    assert_eq!(logits(&one), logits(&policies[0]));
}

#[test]
fn means_of_other_policies_and_wrong_shares_are_named() {
    let policy = |hidden_size: usize, delay: usize| {
        let mut gru = recurrent("gru");
        gru["gru"]["hidden_size"] = json!(hidden_size);
        let policy = Policy::init(&spec(gru, "independent"), 1).unwrap();
        Arc::new(policy.noting(json!({"frame_delay": delay})))
    };
    let said = |policies: &[Arc<Policy>], shares: &[f64]| {
        averaged(policies, shares).err().unwrap().to_string()
    };
    let two = [policy(8, 0), policy(8, 0)];
    assert!(averaged(&two, &[1.0, 1.0]).is_ok());
    assert!(said(&[], &[]).contains("a policy"));
    assert!(said(&two, &[1.0]).contains("expected 2 numbers"));
    assert!(said(&two, &[1.0, -0.5]).contains("weights: -0.5 is outside"));
    assert!(said(&two, &[0.0, 0.0]).contains("sum of weights"));
    assert!(said(&[policy(8, 0), policy(9, 0)], &[1.0, 1.0]).contains("Spec of policy 2"));
    let text = said(&[policy(8, 0), policy(8, 3)], &[1.0, 1.0]);
    assert!(text.contains("frame_delay of policy 2"), "{text}");
    let broken = changed(&two[0], |_, _, _, _| f32::NAN).noting(json!({"frame_delay": 0}));
    assert!(said(&[two[0].clone(), Arc::new(broken)], &[1.0, 1.0]).contains("not finite"));
}
