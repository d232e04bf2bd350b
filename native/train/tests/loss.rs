//! The loss over random heads, options and batches, compared with its definition in f64.

use proptest::prelude::*;
use sconce_nn::spec::{Head, HeadKind, Heads, HeadsKind};
use sconce_tensor::Error;
use sconce_train::objective::imitation::{
    FocalHeads, Imitation, LossOptions, PosWeight, Reduction, imitation, nll_rows,
};
use sconce_train::objective::{Denominators, Objective, Rows, SHARD_ROWS, Sums};

/// Two bernoulli heads, so that an error in the order of bit weights shows; one stick, and one other class.
fn heads() -> Heads {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 4 };
    let parts = vec![
        head("buttons", HeadKind::Bernoulli(3)),
        head("main_x", HeadKind::Categorical(5)),
        head("taps", HeadKind::Bernoulli(1)),
        head("shoulder", HeadKind::Categorical(2)),
    ];
    Heads { kind: HeadsKind::Independent, parts, stream_size: 4, prior: false }
}

const LOGITS: usize = 11;
const LABELS: usize = 6;

fn log_sum_exp(x: &[f64]) -> f64 {
    let max = x.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
    max + x.iter().map(|v| (v - max).exp()).sum::<f64>().ln()
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Loss and entropy of one head in one row, term by term as the formulas are printed.
fn reference_head(head: &Head, o: &LossOptions, x: &[f64], t: &[f32], pos: &[f32]) -> (f64, f64) {
    let clamp = f64::from(o.clamp);
    let x: Vec<f64> = x.iter().map(|v| v.clamp(-clamp, clamp)).collect();
    let gamma = o.focal_gamma.map(f64::from);
    match head.kind {
        HeadKind::Bernoulli(n) => {
            let (mut loss, mut entropy) = (0.0, 0.0);
            for i in 0..n {
                let (x, t, w) = (x[i], f64::from(t[i]), f64::from(pos[i]));
                let p = 1.0 / (1.0 + (-x).exp());
                let base = softplus(x) * (1.0 + (w - 1.0) * t) - w * t * x;
                let miss = if t > 0.0 { 1.0 - p } else { p };
                loss += base * gamma.map_or(1.0, |g| miss.powf(g));
                entropy += p * softplus(-x) + (1.0 - p) * softplus(x);
            }
            let bits = if o.bernoulli_reduction == Reduction::Mean { n as f64 } else { 1.0 };
            (f64::from(o.button_weight) * loss / bits, entropy / n as f64)
        }
        HeadKind::Categorical(n) => {
            let (t, smoothing) = (t[0] as usize, f64::from(o.label_smoothing));
            let total = log_sum_exp(&x);
            let share = |j| if j == t { 1.0 - smoothing } else { smoothing / (n - 1) as f64 };
            let mut loss: f64 = (0..n).map(|j| share(j) * (total - x[j])).sum();
            if o.focal_heads == FocalHeads::All {
                loss *= gamma.map_or(1.0, |g| (1.0 - (x[t] - total).exp()).powf(g));
            }
            if let (Some(edge), "main_x") = (o.stick_edge_weight, head.name.as_str()) {
                let centre = (n - 1) as f64 / 2.0;
                loss *= 1.0 + (f64::from(edge) - 1.0) * (t as f64 - centre).abs() / centre;
            }
            (loss, x.iter().map(|v| (v - total).exp() * (total - v)).sum())
        }
        other => panic!("no head here is {other:?}"),
    }
}

/// The part of the loss that has a gradient; `scales` are the normalisers.
fn reference(
    x: &[f64],
    labels: &[f32],
    weights: &[f32],
    o: &LossOptions,
    scales: &[f64; 4],
) -> (f64, [f64; 4]) {
    let heads = heads();
    let pos = if let PosWeight::Given(w) = &o.pos_weight { w.clone() } else { vec![1.0; 4] };
    let (mut total, mut bonus, mut means) = (0.0, 0.0, [0.0; 4]);
    let rows = weights.iter().filter(|w| **w > 0.0).count() as f64;
    let all: f64 = weights.iter().map(|w| f64::from(*w)).sum();
    for (i, &w) in weights.iter().enumerate().filter(|(_, w)| **w > 0.0) {
        for (h, part) in heads.iter().enumerate() {
            let x = &x[i * LOGITS + part.logits..][..part.head.kind.logits()];
            let t = &labels[i * LABELS + part.labels..][..part.head.kind.labels()];
            let pos = if h == 0 { &pos[..3] } else { &pos[3..] };
            let (loss, entropy) = reference_head(part.head, o, x, t, pos);
            total += f64::from(w) * loss * scales[h] / all;
            bonus += entropy / rows;
            means[h] += loss / rows;
        }
    }
    (total - f64::from(o.entropy_weight) * bonus, means)
}

fn any_options() -> impl Strategy<Value = LossOptions> {
    let gamma = prop_oneof![Just(None), Just(Some(2.0f32)), (1.0f32..4.0).prop_map(Some)];
    let pos = prop_oneof![
        Just(PosWeight::None),
        prop::collection::vec(1.0f32..30.0, 4).prop_map(PosWeight::Given)
    ];
    let edge = prop_oneof![Just(None), (0.5f32..3.0).prop_map(Some)];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (0.1f32..3.0, pos, 0.0f32..0.3, gamma, edge, 0.0f32..0.1, flags).prop_map(
        |(button_weight, pos_weight, label_smoothing, focal_gamma, edge, entropy_weight, flags)| {
            LossOptions {
                button_weight,
                pos_weight,
                label_smoothing,
                focal_gamma,
                stick_edge_weight: edge,
                entropy_weight,
                bernoulli_reduction: if flags.0 { Reduction::Mean } else { Reduction::Sum },
                focal_heads: if flags.1 { FocalHeads::All } else { FocalHeads::Bernoulli },
                head_normalize: flags.2,
                clamp: 60.0,
            }
        },
    )
}

#[derive(Debug, Clone)]
struct Batch {
    logits: Vec<f32>,
    labels: Vec<f32>,
    weights: Vec<f32>,
}

fn any_batch(rows: std::ops::Range<usize>) -> impl Strategy<Value = Batch> {
    rows.prop_flat_map(|n| {
        let labels = (0u16..2, 0u16..2, 0u16..2, 0u16..5, 0u16..2, 0u16..2)
            .prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f].map(f32::from));
        let weight = prop_oneof![4 => 0.1f32..3.0, 1 => Just(0.0f32)];
        (
            prop::collection::vec(-6.0f32..6.0, n * LOGITS),
            prop::collection::vec(labels, n),
            prop::collection::vec(weight, n),
        )
            .prop_map(|(logits, labels, mut weights)| {
                weights[0] = 0.5;
                Batch { logits, labels: labels.concat(), weights }
            })
    })
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|v| f64::from(*v)).collect()
}

fn compute(batch: &Batch, options: &LossOptions) -> (f64, Vec<f64>, Vec<f32>) {
    let Batch { logits, labels, weights } = batch;
    let mut grad = vec![f32::NAN; logits.len()];
    let loss =
        imitation(&heads(), logits, labels, Some(weights), options, Some(&mut grad)).unwrap();
    (loss.value, loss.per_head, grad)
}

fn scales(means: [f64; 4], options: &LossOptions) -> [f64; 4] {
    means.map(|m| if options.head_normalize { 1.0 / m.max(0.1) } else { 1.0 })
}

proptest! {
    #[test]
    fn loss_and_gradient_are_those_of_the_definition(
        batch in any_batch(1..5),
        options in any_options(),
    ) {
        let (value, per_head, grad) = compute(&batch, &options);
        let loss = |x: &[f64], scales| reference(x, &batch.labels, &batch.weights, &options, scales);
        let mut x = wide(&batch.logits);
        let scales = scales(loss(&x, &[1.0; 4]).1, &options);
        let (want, means) = loss(&x, &scales);
        prop_assert!((value - want).abs() <= 2e-6 * want.abs().max(1.0), "{} {}", value, want);
        for (got, want) in per_head.iter().zip(means) {
            prop_assert!((got - want).abs() <= 2e-6 * want.abs().max(1.0), "{} {}", got, want);
        }
        for i in 0..x.len() {
            let (at, h) = (x[i], 1e-5);
            x[i] = at + h;
            let up = loss(&x, &scales).0;
            x[i] = at - h;
            let down = loss(&x, &scales).0;
            x[i] = at;
            let want = (up - down) / (2.0 * h);
            let got = f64::from(grad[i]);
            prop_assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "{}: {} {}", i, got, want);
        }
    }

    #[test]
    fn plain_loss_is_the_mean_nll(batch in any_batch(1..40)) {
        let Batch { logits, labels, .. } = batch;
        let n = labels.len() / LABELS;
        let mut nll = vec![0.0; n * 4];
        nll_rows(&heads(), &logits, &labels, &mut nll).unwrap();
        let loss = imitation(&heads(), &logits, &labels, None, &LossOptions::plain(), None).unwrap();
        let mean = wide(&nll).iter().sum::<f64>() / n as f64;
        prop_assert!((loss.value - mean).abs() < 1e-6 * mean.max(1.0), "{} {}", loss.value, mean);
        for (row, sample) in nll.chunks(4).zip(&loss.per_sample) {
            prop_assert!((row.iter().sum::<f32>() - sample).abs() < 1e-5 * sample.max(1.0));
        }
    }

    #[test]
    fn shards_in_any_order_of_work_give_the_same_bits(
        batch in any_batch(SHARD_ROWS * 2..SHARD_ROWS * 3),
        options in any_options(),
    ) {
        let (value, _, grad) = compute(&batch, &options);
        let (sharded_value, sharded_grad) = sharded(&batch, &options);
        prop_assert_eq!(value.to_bits(), sharded_value.to_bits());
        prop_assert_eq!(grad, sharded_grad);
    }
}

/// The loss in shards, as with threads: the last shard is computed first, and sums are added in order.
fn sharded(batch: &Batch, options: &LossOptions) -> (f64, Vec<f32>) {
    let imitation = Imitation::new(&heads(), options).unwrap();
    let n = batch.weights.len();
    let Batch { labels, weights, .. } = batch.clone();
    let whole = sconce_data::Batch { labels, weights, ..sconce_data::Batch::default() };
    let rows: Vec<_> = (0..n.div_ceil(SHARD_ROWS))
        .map(|s| {
            let range = s * SHARD_ROWS..n.min((s + 1) * SHARD_ROWS);
            let logits = &batch.logits[range.start * LOGITS..range.end * LOGITS];
            Rows { logits, companions: vec![], batch: &whole, range }
        })
        .collect();
    let add = |mut parts: Vec<Sums>| {
        let mut total = parts.remove(0);
        parts.iter().for_each(|p| total.add(p));
        total
    };
    let unit = Denominators::of(&[1.0]).unwrap();
    let alone = |rows| imitation.rows(rows, &unit, None).unwrap();
    let first = imitation.two_passes().then(|| add(rows.iter().map(alone).collect()));
    let denominators = imitation.denominators(&whole, first.as_ref()).unwrap();
    let mut grad = vec![f32::NAN; batch.logits.len()];
    let work = rows.iter().zip(grad.chunks_mut(SHARD_ROWS * LOGITS)).rev();
    let parts = work.map(|(r, g)| imitation.rows(r, &denominators, Some(g)).unwrap());
    let mut parts: Vec<_> = parts.collect();
    parts.reverse();
    (imitation.finish(&add(parts), &denominators).unwrap().total, grad)
}

fn one_row() -> Batch {
    Batch {
        logits: vec![0.5; LOGITS],
        labels: vec![0.0, 1.0, 0.0, 4.0, 1.0, 0.0],
        weights: vec![1.0],
    }
}

fn error(batch: &Batch, options: &LossOptions) -> Error {
    let Batch { logits, labels, weights } = batch;
    imitation(&heads(), logits, labels, Some(weights), options, None).unwrap_err()
}

#[test]
fn logits_beyond_the_clamp_have_no_gradient() {
    let mut batch = one_row();
    for (i, x) in [(0, 61.0), (3, -61.0), (7, 300.0)] {
        batch.logits[i] = x;
    }
    let options = LossOptions { entropy_weight: 0.1, ..LossOptions::plain() };
    let (_, _, grad) = compute(&batch, &options);
    for (i, g) in grad.iter().enumerate() {
        assert_eq!(*g == 0.0, [0, 3, 7].contains(&i), "{i}: {g}");
    }
}

#[test]
fn a_row_of_weight_zero_is_not_part_of_the_batch() {
    let (one, mut two) = (one_row(), one_row());
    two.logits.extend([3.0; LOGITS]);
    two.labels.extend([f32::INFINITY; LABELS]);
    two.weights.push(0.0);
    let options = LossOptions { head_normalize: true, ..LossOptions::default() }
        .with_press_rates(&[0.1, 0.2, 0.3, 0.4]);
    let (value, per_head, grad) = compute(&one, &options);
    let (value2, per_head2, grad2) = compute(&two, &options);
    assert_eq!((value, per_head), (value2, per_head2));
    assert_eq!(grad, grad2[..LOGITS]);
    assert_eq!(grad2[LOGITS..], [0.0; LOGITS]);
}

#[test]
fn bad_input_is_named() {
    let plain = LossOptions::plain();
    let mut batch = one_row();
    batch.labels[3] = 5.0;
    assert_eq!(error(&batch, &plain).to_string(), "label of main_x: 5 is outside 0..4");
    batch.labels[3] = 0.0;
    batch.labels[4] = 2.0;
    assert_eq!(error(&batch, &plain).to_string(), "label of taps: 2 is outside 0..1");
    let mut batch = one_row();
    batch.logits[4] = f32::INFINITY;
    assert_eq!(error(&batch, &plain).to_string(), "logit of main_x is not finite (inf)");
    let mut batch = one_row();
    batch.weights[0] = -1.0;
    assert!(matches!(error(&batch, &plain), Error::OutOfRange { .. }));
    batch.weights[0] = 0.0;
    assert!(matches!(error(&batch, &plain), Error::OutOfRange { .. }));
    batch.weights.push(0.0);
    assert!(matches!(error(&batch, &plain), Error::Mismatch { .. }));
}

#[test]
fn bad_options_are_named() {
    let batch = one_row();
    let expect = |options: LossOptions, start: &str| {
        let text = error(&batch, &options).to_string();
        assert!(text.starts_with(start), "{text}");
    };
    expect(LossOptions::default(), "pos_weight: expected numbers from the press rates, got auto");
    let plain = LossOptions::plain;
    expect(LossOptions { pos_weight: PosWeight::Given(vec![1.0; 3]), ..plain() }, "pos_weight");
    expect(LossOptions { label_smoothing: 1.5, ..plain() }, "label_smoothing: 1.5 is outside");
    expect(LossOptions { focal_gamma: Some(f32::NAN), ..plain() }, "focal_gamma");
    expect(LossOptions { clamp: 0.0, ..plain() }, "clamp");
}

#[test]
fn options_survive_json_and_refuse_unknown_names() {
    let options = LossOptions {
        pos_weight: PosWeight::Given(vec![1.0, 30.0]),
        focal_gamma: Some(2.5),
        ..LossOptions::default()
    };
    let text = serde_json::to_string(&options).unwrap();
    assert_eq!(serde_json::from_str::<LossOptions>(&text).unwrap(), options);
    assert_eq!(serde_json::from_str::<LossOptions>("{}").unwrap(), LossOptions::default());
    assert!(serde_json::from_str::<LossOptions>(r#"{"button_wieght": 2}"#).is_err());
}
