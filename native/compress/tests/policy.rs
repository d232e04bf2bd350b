//! Policies whose matrices become integer codes.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use sconce_compress::{
    Coding, Hessians, Keep, MatrixReport, Names, Pruning, Scale, coded, hessians, pruned,
};
use sconce_data::{Builder, Corpus, Schema, VectorGame, View};
use sconce_nn::spec::{Heads, HeadsKind};
use sconce_nn::{Policy, Spec};
use sconce_tensor::rng::Rng;
use sconce_tensor::tensor::to_vec;
use sconce_tensor::{Kind, Result};
use serde_json::json;

static RUNNING: AtomicBool = AtomicBool::new(false);

const WIDTH: usize = 36;

fn spec(backbone: serde_json::Value, kind: &str) -> Spec {
    serde_json::from_value(json!({
        "embedding": {"vector": WIDTH}, "backbone": backbone,
        "heads": {"kind": kind, "stream_size": 32, "prior": false, "parts": [
            {"name": "sign", "kind": {"categorical": 3}, "hidden_size": 32},
            {"name": "large", "kind": {"bernoulli": 2}, "hidden_size": 20},
        ]},
    }))
    .unwrap()
}

fn gru() -> Spec {
    let gru = json!({"gru": {"hidden_size": 40, "num_layers": 2, "layer_norm": true, "input_norm": false,
        "dropout": 0.0, "input_dropout": 0.0}});
    spec(gru, "autoregressive")
}

/// Games whose numbers depend on each other, so that the rounding errors of one can be compensated by others.
fn views(spec: &Spec, dir: &Path) -> Vec<View> {
    let game = |game: u64| {
        let rng = Rng::new(1, "games", game);
        let frame = |t: u64| {
            let own: Vec<f32> = (0..5).map(|i| rng.normal(t * 50 + i)).collect();
            (0..WIDTH).map(move |i| own[i % 5] + 0.1 * ((i as f32) * own[(i + 2) % 5]).sin())
        };
        let x: Vec<f32> = (0..300).flat_map(frame).collect();
        let labels = x.chunks_exact(WIDTH).flat_map(|x| {
            let [sign, large] = [x[0] > 0.0, x[1].abs() > 1.0].map(u8::from);
            [sign, large, u8::from(x[2].abs() > 0.5)].map(f32::from)
        });
        VectorGame { labels: labels.collect(), x }
    };
    let games: Vec<VectorGame> = (0..4).map(game).collect();
    let corpus = Corpus::build(&Schema::vector(WIDTH, &spec.heads), &games, dir).unwrap();
    corpus.views(&[0, 1, 2, 3]).unwrap()
}

fn coding(bits: u32, group: Option<usize>) -> Coding {
    Coding { bits, group, names: Names::default(), damping: 0.01, scale: Scale::default() }
}

fn run(
    policy: &Policy,
    coding: &Coding,
    hessians: &Hessians,
) -> Result<(Policy, Vec<MatrixReport>)> {
    coded(policy, coding, hessians, &RUNNING)
}

#[test]
fn matrices_get_codes_and_other_weights_stay() {
    let policy = Policy::init(&gru(), 1).unwrap();
    let (small, reports) = run(&policy, &coding(4, Some(32)), &Hessians::new()).unwrap();
    let names: Vec<&str> = reports.iter().map(|own| own.name.as_str()).collect();
    assert!(names.contains(&"backbone.weight_ih_l0") && names.contains(&"backbone.weight_hh_l1"));
    for (name, weight) in small.weights() {
        let before = &policy.weights()[name];
        let wide = matches!(before.dims(), [_, inputs] if *inputs >= 32);
        assert_eq!(weight.codes().is_some(), wide, "{name}");
        assert_eq!(names.contains(&name.as_str()), wide, "{name}");
        if !wide {
            assert_eq!(to_vec(weight).unwrap(), to_vec(before).unwrap(), "{name}");
        }
    }
    for own in &reports {
        assert_eq!((own.bits, own.output_error), (4, None));
        assert!((0.03..0.15).contains(&own.error), "{own:?}");
        let row = own.inputs.div_ceil(2) + 4 * own.inputs.div_ceil(32);
        assert_eq!(own.bytes, own.outputs * row);
        assert_eq!(own.group, (own.inputs > 32).then_some(32));
    }
    // Other bits for some: the rest keeps its codes.
    let heads = Coding {
        names: Names { only: vec!["heads.".into()], ..Names::default() },
        ..coding(8, None)
    };
    let (mixed, reports) = run(&small, &heads, &Hessians::new()).unwrap();
    for own in &reports {
        let is_head = own.name.starts_with("heads.");
        assert_eq!(own.bits, if is_head { 8 } else { 4 }, "{}", own.name);
        let same = mixed.weights()[&own.name].codes() == small.weights()[&own.name].codes();
        assert_eq!(same, !is_head);
    }
    let others = Coding {
        names: Names { except: vec!["heads.".into()], ..Names::default() },
        ..coding(8, None)
    };
    let (_, reports) = run(&policy, &others, &Hessians::new()).unwrap();
    let bits = |own: &MatrixReport| if own.name.starts_with("heads.") { 32 } else { 8 };
    assert!(reports.iter().all(|own| own.bits == bits(own)));
}

#[test]
fn searched_scales_lose_less_and_a_session_reads_their_codes() {
    let policy = Policy::init(&gru(), 1).unwrap();
    let with = |scale| Coding { scale, ..coding(4, Some(32)) };
    let none = Default::default();
    let (_, nearest) = run(&policy, &with(Scale::Largest), &none).unwrap();
    let (small, reports) = run(&policy, &with(Scale::Search), &none).unwrap();
    for (own, nearest) in reports.iter().zip(&nearest) {
        assert!(own.error < 0.97 * nearest.error, "{own:?}, {nearest:?}");
        assert_eq!((own.bytes, own.bits), (nearest.bytes, 4));
    }
    let codes = |policy: &Policy| policy.weights()["backbone.weight_ih_l0"].codes().cloned();
    let own = codes(&small).unwrap();
    assert!(own.codes().contains(&-8) && own.scales().iter().any(|scale| *scale < 0.0));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("small.safetensors");
    small.save(&path, json!(null)).unwrap();
    assert_eq!(codes(&Policy::load(&path).unwrap()).unwrap(), own);
    // Eight bits keep their range and sign.
    let (small, _) =
        run(&policy, &Coding { scale: Scale::Search, ..coding(8, None) }, &none).unwrap();
    let own = codes(&small).unwrap();
    assert!(!own.codes().contains(&-128) && own.scales().iter().all(|scale| *scale > 0.0));
}

#[test]
fn a_calibration_leaves_out_frames_without_an_answer() {
    // Two bits: the second head reads the choice of the first.
    let declaration = json!({
        "name": "walk", "version": 1, "fields": [{"name": "x", "kind": "number"}],
        "input": [{"name": "go", "kind": {"flags": ["left"]}}, {"name": "jump", "kind": {"flags": ["up"]}}],
    });
    let schema = Schema::relabelled(Some(serde_json::from_value(declaration).unwrap()));
    let heads = Heads { kind: HeadsKind::Autoregressive, ..schema.heads() };
    let policy = Policy::init(&Spec { embedding: schema.embedding(), heads, ..gru() }, 1).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let inputs = |name: &str, skipped: fn(usize) -> bool, placeholder: f32| {
        let mut builder = Builder::append(&schema, &dir.path().join(name), Some(1)).unwrap();
        let row = |t: usize| match skipped(t) {
            true => [t as f32 / 200.0, 1.0, 0.0, 0.0, placeholder, placeholder, 0.0],
            false => [t as f32 / 200.0, 1.0, 0.0, 0.0, (t % 2) as f32, 1.0, 1.0],
        };
        builder.add_rows(&(0..200).flat_map(row).collect::<Vec<_>>()).unwrap();
        let views = builder.finish().unwrap().views(&[0]).unwrap();
        hessians(&policy, &views, 0, 100, &RUNNING)
    };
    let (zeros, ones) = (
        inputs("zeros", |t| t % 3 == 0, 0.0).unwrap(),
        inputs("ones", |t| t % 3 == 0, 1.0).unwrap(),
    );
    assert_eq!(zeros, ones);
    assert_ne!(zeros, inputs("whole", |_| false, 0.0).unwrap());
    assert!(zeros.keys().any(|name| name.starts_with("heads.")), "{:?}", zeros.keys());
    let none = inputs("none", |_| true, 0.0).unwrap_err();
    assert_eq!(none.kind(), Kind::Mismatch);
}

#[test]
fn a_calibration_lowers_the_errors_of_outputs() {
    let (spec, dir) = (gru(), tempfile::tempdir().unwrap());
    let policy = Policy::init(&spec, 1).unwrap();
    let views = views(&spec, dir.path());
    let found = hessians(&policy, &views, 0, 400, &RUNNING).unwrap();
    assert_eq!(found["backbone.weight_ih_l0"].size(), WIDTH);
    let (small, reports) = run(&policy, &coding(4, Some(32)), &found).unwrap();
    for own in &reports {
        let [error, nearest] =
            own.output_error.unwrap_or_else(|| panic!("no inputs of {}", own.name));
        assert!(error <= nearest, "{own:?}");
        assert!(error > 0.0 && nearest < 0.2, "{own:?}");
        assert_eq!(small.weights()[&own.name].codes().unwrap().bits(), 4);
    }
    let first = reports.iter().find(|own| own.name == "backbone.weight_ih_l0").unwrap();
    let [error, nearest] = first.output_error.unwrap();
    assert!(error < 0.7 * nearest, "{first:?}");
    // The same bits again, and other bits from fewer frames. One frame suffices.
    let (again, _) = run(&policy, &coding(4, Some(32)), &found).unwrap();
    let codes = |policy: &Policy| policy.weights()["backbone.weight_ih_l0"].codes().cloned();
    assert_eq!(codes(&again), codes(&small));
    let one = hessians(&policy, &views[..1], 0, 1, &RUNNING).unwrap();
    let (other, _) = run(&policy, &coding(4, Some(32)), &one).unwrap();
    assert_ne!(codes(&other), codes(&small));
}

#[test]
fn weights_of_an_input_that_never_fires_are_rounded_and_not_removed() {
    let (spec, dir) = (gru(), tempfile::tempdir().unwrap());
    let policy = Policy::init(&spec, 1).unwrap();
    let rng = Rng::new(3, "games", 0);
    // The third number is always 0.
    let x =
        (0..100 * WIDTH as u64).map(|i| if i % WIDTH as u64 == 2 { 0.0 } else { rng.normal(i) });
    let game = VectorGame { x: x.collect(), labels: vec![0.0; 300] };
    let corpus = Corpus::build(&Schema::vector(WIDTH, &spec.heads), &[game], dir.path()).unwrap();
    let found = hessians(&policy, &corpus.views(&[0]).unwrap(), 0, 40, &RUNNING).unwrap();
    let (small, reports) = run(&policy, &coding(8, None), &found).unwrap();
    let name = "backbone.weight_ih_l0";
    let own = reports.iter().find(|own| own.name == name).unwrap();
    assert!(own.error < 0.01, "{own:?}");
    let weights = [&policy, &small].map(|of| to_vec(&of.weights()[name]).unwrap());
    for (w, v) in weights[0].iter().zip(&weights[1]).skip(2).step_by(WIDTH) {
        assert!((w - v).abs() < 0.01, "{w} became {v}");
    }
}

#[test]
fn inputs_that_never_fire_leave_the_nearest_codes() {
    let (spec, dir) = (gru(), tempfile::tempdir().unwrap());
    let policy = Policy::init(&spec, 1).unwrap();
    let zero = VectorGame { x: vec![0.0; 50 * WIDTH], labels: vec![0.0; 150] };
    let corpus = Corpus::build(&Schema::vector(WIDTH, &spec.heads), &[zero], dir.path()).unwrap();
    let found = hessians(&policy, &corpus.views(&[0]).unwrap(), 0, 20, &RUNNING).unwrap();
    let (small, reports) = run(&policy, &coding(8, None), &found).unwrap();
    let first = reports.iter().find(|own| own.name == "backbone.weight_ih_l0").unwrap();
    assert_eq!(first.output_error, None);
    let (nearest, _) = run(&policy, &coding(8, None), &Hessians::new()).unwrap();
    let codes = |policy: &Policy| policy.weights()["backbone.weight_ih_l0"].codes().cloned();
    assert_eq!(codes(&small), codes(&nearest));
}

#[test]
fn wrong_wishes_are_named() {
    let policy = Policy::init(&gru(), 1).unwrap();
    let said = |own: &Coding| run(&policy, own, &Hessians::new()).err().unwrap().to_string();
    for (own, text) in [
        (
            Coding {
                names: Names { only: vec!["nothing".into()], ..Names::default() },
                ..coding(4, None)
            },
            "nothing",
        ),
        (
            Coding {
                names: Names { except: vec!["trunk".into()], ..Names::default() },
                ..coding(4, None)
            },
            "trunk",
        ),
        (coding(5, None), "bits"),
        (coding(4, Some(0)), "group"),
    ] {
        assert!(said(&own).contains(text), "{}", said(&own));
    }
    let small = json!({"mlp": {"hidden_sizes": [8], "layer_norm": false, "residual": false, "dropout": 0.0,
        "input_dropout": 0.0, "activation": "tanh"}});
    let spec =
        Spec { embedding: sconce_nn::spec::Embedding::vector(3), ..spec(small, "independent") };
    let tiny: Spec = serde_json::from_value({
        let mut own = serde_json::to_value(&spec).unwrap();
        own["heads"]["parts"][0]["hidden_size"] = json!(8);
        own["heads"]["parts"][1]["hidden_size"] = json!(8);
        own["heads"]["stream_size"] = json!(8);
        own
    })
    .unwrap();
    let tiny = Policy::init(&tiny, 1).unwrap();
    let error = run(&tiny, &coding(8, None), &Hessians::new()).err().unwrap();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    let stopped = AtomicBool::new(true);
    let cancelled = coded(&policy, &coding(8, None), &Hessians::new(), &stopped).err().unwrap();
    assert_eq!(cancelled.kind(), Kind::Cancelled);
    assert_eq!(hessians(&policy, &[], 0, 9, &RUNNING).err().unwrap().kind(), Kind::Mismatch);
}

fn pruning(keep: Keep) -> Pruning {
    Pruning { keep, names: Names::default(), damping: 0.01 }
}

#[test]
fn matrices_are_pruned_and_other_weights_stay() {
    let policy = Policy::init(&gru(), 1).unwrap();
    let prune = |policy: &Policy, pruning: &Pruning| {
        pruned(policy, pruning, &Hessians::new(), &RUNNING).unwrap()
    };
    for (keep, sparsity) in
        [(Keep::TwoFour, 0.5), (Keep::Sparsity(0.75), 0.75), (Keep::Sparsity(0.0), 0.0)]
    {
        let (sparse, reports) = prune(&policy, &pruning(keep));
        for own in &reports {
            assert!((own.sparsity - sparsity).abs() < 0.02, "{own:?}");
            assert_eq!(own.output_error, None);
            assert!(own.error < sparsity.max(1e-9), "{own:?}");
            let groups = own.outputs * own.inputs.div_ceil(4);
            let two_four = 8 * groups + own.outputs * own.inputs.div_ceil(4).div_ceil(2);
            let plain = 4 * own.outputs * own.inputs;
            // A small matrix without many weights may be in 2:4 by chance.
            assert!(
                own.bytes == two_four || (keep != Keep::TwoFour && own.bytes == plain),
                "{own:?}"
            );
        }
        for (name, weight) in sparse.weights() {
            let before = to_vec(&policy.weights()[name]).unwrap();
            let after = to_vec(weight).unwrap();
            let chosen = reports.iter().any(|own| own.name == *name);
            let kept = |(w, v): (&f32, &f32)| w == v || (chosen && *v == 0.0);
            assert!(before.iter().zip(&after).all(kept), "{name}");
            assert_eq!(before == after, !chosen || sparsity == 0.0, "{name}");
            // The largest two of four, or of each output the largest.
            let inputs = weight.dims().last().copied().unwrap();
            let width = if keep == Keep::TwoFour { 4 } else { inputs };
            let groups = |all: &[f32]| -> Vec<Vec<f32>> {
                all.chunks(inputs).flat_map(|row| row.chunks(width).map(<[f32]>::to_vec)).collect()
            };
            for (before, after) in groups(&before).iter().zip(&groups(&after)) {
                let gone = before.iter().zip(after).filter(|(_, v)| **v == 0.0);
                let most = gone.map(|(w, _)| w.abs()).fold(0.0, f32::max);
                assert!(after.iter().all(|v| *v == 0.0 || v.abs() >= most), "{name}");
            }
        }
    }
    // Matrices that are left out stay as they are, with their codes.
    let (small, _) = run(&policy, &coding(4, Some(32)), &Hessians::new()).unwrap();
    let names = Names { except: vec!["heads.".into()], ..Names::default() };
    let (mixed, reports) = prune(&small, &Pruning { names, ..pruning(Keep::TwoFour) });
    for own in &reports {
        let is_head = own.name.starts_with("heads.");
        assert_eq!(mixed.weights()[&own.name].codes().is_some(), is_head, "{}", own.name);
        let codes = small.weights()[&own.name].codes().unwrap();
        assert!(if is_head { own.bytes == codes.size() } else { own.sparsity >= 0.5 }, "{own:?}");
    }
    let names = Names { only: vec!["trunk".into()], ..Names::default() };
    let error =
        pruned(&policy, &Pruning { names, ..pruning(Keep::TwoFour) }, &Hessians::new(), &RUNNING);
    assert_eq!(error.err().unwrap().kind(), Kind::NotFound);
    let error = pruned(&policy, &pruning(Keep::Sparsity(1.5)), &Hessians::new(), &RUNNING);
    assert_eq!(error.err().unwrap().kind(), Kind::OutOfRange);
}

#[test]
fn matrices_in_two_four_that_stay_have_the_bytes_of_a_checkpoint() {
    let policy = Policy::init(&gru(), 1).unwrap();
    let (sparse, kept) =
        pruned(&policy, &pruning(Keep::TwoFour), &Hessians::new(), &RUNNING).unwrap();
    let names = Names { only: vec!["heads.".into()], ..Names::default() };
    let (_, reports) =
        run(&sparse, &Coding { names, ..coding(8, None) }, &Hessians::new()).unwrap();
    let stays = |own: &&MatrixReport| !own.name.starts_with("heads.");
    assert!(reports.iter().filter(stays).count() >= 4);
    for own in reports.iter().filter(stays) {
        let bytes = kept.iter().find(|other| other.name == own.name).unwrap().bytes;
        assert_eq!((own.bits, own.bytes), (32, bytes), "{}", own.name);
        assert!(own.bytes < own.outputs * own.inputs * 3, "{}", own.name);
    }
}

#[test]
fn a_calibration_lowers_the_errors_of_outputs_of_pruned_matrices() {
    let (spec, dir) = (gru(), tempfile::tempdir().unwrap());
    let policy = Policy::init(&spec, 1).unwrap();
    let found = hessians(&policy, &views(&spec, dir.path()), 0, 400, &RUNNING).unwrap();
    for keep in [Keep::TwoFour, Keep::Sparsity(0.6)] {
        let (sparse, reports) = pruned(&policy, &pruning(keep), &found, &RUNNING).unwrap();
        for own in &reports {
            let [error, of_largest] = own.output_error.unwrap();
            assert!(error < 0.95 * of_largest, "{own:?}");
            assert!(own.sparsity >= if keep == Keep::TwoFour { 0.5 } else { 0.58 }, "{own:?}");
        }
        // The same bits again.
        let (again, _) = pruned(&policy, &pruning(keep), &found, &RUNNING).unwrap();
        for (name, weight) in sparse.weights() {
            assert_eq!(to_vec(weight).unwrap(), to_vec(&again.weights()[name]).unwrap());
        }
    }
}
