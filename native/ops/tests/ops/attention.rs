//! Attention over a sliding window, softmax and the norm of heads compared with slow references.

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use sconce_ops::attention::{Cache, Pairing, Projections, THETA, Window};
use sconce_ops::dropout::{Dropout, Origin};
use sconce_ops::lengths::Lengths;
use sconce_ops::weights::Weight;
use sconce_ops::{
    self as ops, Activation, Affine, HeadNorms, Norm, Residual, attention, attention_weights,
};
use sconce_tensor::rng::Rng;

use crate::common::{apart, backward, differences, noise, record, values};

fn variable(t: &Tensor) -> Tensor {
    Var::from_tensor(t).unwrap().into_inner()
}

/// Sizes of a case.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    heads: usize,
    head_dim: usize,
    window: usize,
    pairing: Pairing,
}

impl Sizes {
    fn window(&self) -> Arc<Window> {
        Arc::new(Window::new(self.heads, self.head_dim, self.window, self.pairing, THETA).unwrap())
    }
}

fn sizes(heads: usize, head_dim: usize, window: usize) -> Sizes {
    Sizes { heads, head_dim, window, pairing: Pairing::Half }
}

/// A cache after `seen` frames of noise.
fn cache(s: Sizes, seen: &[usize], seed: u64) -> Cache {
    let ring = [seen.len(), s.window, s.heads * s.head_dim];
    let wrapped = |&n: &usize| if n < s.window { n } else { s.window + n % s.window };
    let seen: Vec<f32> = seen.iter().map(|n| wrapped(n) as f32).collect();
    Cache {
        keys: noise(&ring, seed),
        values: noise(&ring, seed + 1),
        seen: Tensor::from_vec(seen, (ring[0], 1), &Device::Cpu).unwrap(),
    }
}

fn rotated(x: &[f64], position: usize, pairing: Pairing) -> Vec<f64> {
    let half = x.len() / 2;
    let mut out = x.to_vec();
    for i in 0..half {
        let (p, q) = match pairing {
            Pairing::Half => (i, i + half),
            Pairing::Interleaved => (2 * i, 2 * i + 1),
        };
        let angle = position as f64 * THETA.powf(-2.0 * i as f64 / x.len() as f64);
        out[p] = x[p] * angle.cos() - x[q] * angle.sin();
        out[q] = x[q] * angle.cos() + x[p] * angle.sin();
    }
    out
}

/// The definition in f64, frame by frame over the remembered frames of a game: outputs `[b, t,
/// heads * head_dim]` and weights by age `[b, heads, t, window]`.
fn slow(s: Sizes, qkv: &Tensor, cache: &Cache, lengths: &Lengths) -> (Vec<f64>, Vec<f64>) {
    let (b, t, _) = qkv.dims3().unwrap();
    let d = s.heads * s.head_dim;
    let wide = |t: &Tensor| values(t).into_iter().map(f64::from).collect::<Vec<_>>();
    let (qkv, keys, vals) = (wide(qkv), wide(&cache.keys), wide(&cache.values));
    let seen = values(&cache.seen);
    let (mut y, mut weights) = (vec![0.0; b * t * d], vec![0.0; b * s.heads * t * s.window]);
    for row in 0..b {
        let count = seen[row] as usize;
        let past = count.min(s.window);
        let frames = lengths.as_ref().map_or(t, |l| l[row]);
        for head in 0..s.heads {
            // The query, key or value (part 0, 1, 2) of the remembered frame f.
            let part = |f: usize, part: usize| -> &[f64] {
                let at = head * s.head_dim;
                if f < past {
                    let slot = (count - past + f) % s.window;
                    let ring = if part == 1 { &keys } else { &vals };
                    &ring[(row * s.window + slot) * d + at..][..s.head_dim]
                } else {
                    &qkv[((row * t + f - past) * 3 + part) * d + at..][..s.head_dim]
                }
            };
            for frame in past..past + frames {
                let query = rotated(part(frame, 0), frame, s.pairing);
                let seen = (frame + 1).saturating_sub(s.window)..frame + 1;
                let scores: Vec<f64> = seen
                    .clone()
                    .map(|f| {
                        let key = rotated(part(f, 1), f, s.pairing);
                        let dot: f64 = query.iter().zip(&key).map(|(a, b)| a * b).sum();
                        (dot / (s.head_dim as f64).sqrt()).exp()
                    })
                    .collect();
                let sum: f64 = scores.iter().sum();
                let at = (row * t + frame - past) * d + head * s.head_dim;
                for (f, score) in seen.zip(scores) {
                    for (i, v) in part(f, 2).iter().enumerate() {
                        y[at + i] += score / sum * v;
                    }
                    let query = (row * s.heads + head) * t + frame - past;
                    weights[query * s.window + frame - f] = score / sum;
                }
            }
        }
    }
    (y, weights)
}

fn off(got: &Tensor, want: &[f64]) -> f64 {
    let got = values(got);
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).fold(0.0, |m, (g, w)| m.max((f64::from(*g) - w).abs()))
}

const SEEN: [usize; 5] = [0, 1, 4, 7, 100];

#[test]
fn attention_and_its_weights_equal_the_definition() {
    for (heads, head_dim, window) in [(1, 2, 1), (2, 6, 5), (3, 8, 7), (2, 32, 60), (1, 64, 20)] {
        for pairing in [Pairing::Half, Pairing::Interleaved] {
            for time in [1, 2, 3, 4, 9, 70, 150] {
                let s = Sizes { heads, head_dim, window, pairing };
                let qkv = noise(&[5, time, 3 * heads * head_dim], time as u64);
                let cache = cache(s, &SEEN, 3);
                let short = [time, time / 2, 0, 1, time];
                for lengths in [None, Some(short.to_vec().into())] {
                    let (want, weights) = slow(s, &qkv, &cache, &lengths);
                    let (y, _) = attention(&qkv, &cache, &s.window(), lengths.clone()).unwrap();
                    assert!(off(&y, &want) < 1e-5, "{s:?} over {time}: {}", off(&y, &want));
                    let got = attention_weights(&qkv, &cache, &s.window(), lengths).unwrap();
                    assert!(off(&got, &weights) < 1e-5, "weights of {s:?} over {time}");
                }
            }
        }
    }
}

/// Splits a sequence into pieces, with the frames of each row in each piece.
#[test]
fn a_sequence_in_pieces_equals_the_whole() {
    for (s, time) in [(sizes(2, 8, 5), 23), (sizes(2, 32, 60), 150), (sizes(1, 4, 1), 4)] {
        let w = s.window();
        let qkv = noise(&[5, time, 3 * w.width()], 8);
        let start = cache(s, &SEEN, 5);
        let (whole, last) = attention(&qkv, &start, &w, None).unwrap();
        for piece in [1, 2, 4, 21] {
            let (mut now, mut parts) = (start.clone(), vec![]);
            for begin in (0..time).step_by(piece) {
                let part = qkv.narrow(1, begin, piece.min(time - begin)).unwrap();
                let (y, next) = attention(&part, &now, &w, None).unwrap();
                parts.push(y);
                now = next;
            }
            assert!(apart(&Tensor::cat(&parts, 1).unwrap(), &whole) < 1e-5, "{s:?} by {piece}");
            assert_eq!(values(&now.keys), values(&last.keys));
            assert_eq!(values(&now.values), values(&last.values));
            assert_eq!(values(&now.seen), values(&last.seen));
        }
    }
}

#[test]
fn frames_past_a_length_have_no_effect() {
    let s = sizes(2, 8, 5);
    let w = s.window();
    let qkv = noise(&[3, 9, 3 * w.width()], 1);
    let start = cache(s, &[0, 3, 8], 5);
    let lengths = [0usize, 6, 9];
    let (y, last) = attention(&qkv, &start, &w, Some(lengths.to_vec().into())).unwrap();
    for (row, &length) in lengths.iter().enumerate() {
        let own = |t: &Tensor| t.narrow(0, row, 1).unwrap();
        let alone =
            Cache { keys: own(&start.keys), values: own(&start.values), seen: own(&start.seen) };
        let beyond = own(&y).narrow(1, length, 9 - length).unwrap();
        assert!(values(&beyond).iter().all(|v| *v == 0.0));
        let end = match length {
            0 => alone,
            n => {
                let (want, end) =
                    attention(&own(&qkv).narrow(1, 0, n).unwrap(), &alone, &w, None).unwrap();
                assert!(apart(&own(&y).narrow(1, 0, n).unwrap(), &want) < 1e-6);
                end
            }
        };
        assert_eq!(values(&own(&last.keys)), values(&end.keys));
        assert_eq!(values(&own(&last.values)), values(&end.values));
        assert_eq!(values(&own(&last.seen)), values(&end.seen));
    }
}

#[test]
fn gradients_of_attention_and_of_its_cache_equal_finite_differences() {
    for pairing in [Pairing::Half, Pairing::Interleaved] {
        for (heads, head_dim, window, time) in [(2, 6, 4, 7), (1, 8, 9, 70), (2, 4, 5, 2)] {
            let s = Sizes { heads, head_dim, window, pairing };
            let w = s.window();
            for lengths in [None, Some(vec![time, time - 1, 0, 1, time].into())] {
                let start = cache(s, &SEEN, 5);
                let qkv = noise(&[5, time, 3 * w.width()], 2);
                differences(vec![qkv, start.keys.clone(), start.values.clone()], |t| {
                    let cache = Cache {
                        keys: (*t[1]).clone(),
                        values: (*t[2]).clone(),
                        seen: start.seen.clone(),
                    };
                    let (y, last) = attention(&t[0], &cache, &w, lengths.clone()).unwrap();
                    Tensor::cat(&[&y, &last.keys, &last.values], 1).unwrap()
                });
            }
        }
    }
}

#[test]
fn gradients_through_two_chunks_equal_those_of_one() {
    record();
    for (s, time, cut) in [(sizes(2, 8, 5), 12, 4), (sizes(1, 32, 60), 512, 200)] {
        let w = s.window();
        let qkv = variable(&noise(&[2, time, 3 * w.width()], 4));
        let start = Cache::empty(&w, 2).unwrap();
        let gradient = |y: &Tensor| {
            let loss = (y * noise(y.dims(), 5)).unwrap().sum_all().unwrap();
            backward(&loss).get(&qkv).unwrap().clone()
        };
        let (whole, _) = attention(&qkv, &start, &w, None).unwrap();
        let of_whole = gradient(&whole);
        let (a, middle) = attention(&qkv.narrow(1, 0, cut).unwrap(), &start, &w, None).unwrap();
        let (b, _) =
            attention(&qkv.narrow(1, cut, time - cut).unwrap(), &middle, &w, None).unwrap();
        let parts = Tensor::cat(&[a, b], 1).unwrap();
        assert!(apart(&parts, &whole) < 1e-5);
        let off = apart(&gradient(&parts), &of_whole);
        assert!(off < 2e-5, "{s:?}: {off}");
    }
}

#[test]
fn large_scores_stay_finite_and_unseen_frames_have_no_effect() {
    record();
    let s = sizes(1, 8, 3);
    let w = s.window();
    let qkv = (noise(&[2, 12, 24], 4) * 100.0).unwrap();
    let mut start = Cache::empty(&w, 2).unwrap();
    start.keys = (start.keys * f64::NAN).unwrap();
    start.values = (start.values * f64::NAN).unwrap();
    let qkv = variable(&qkv);
    let (y, _) = attention(&qkv, &start, &w, None).unwrap();
    let gradients = backward(&y.sqr().unwrap().sum_all().unwrap());
    assert!(values(&y).iter().all(|v| v.is_finite()));
    assert!(values(gradients.get(&qkv).unwrap()).iter().all(|v| v.is_finite()));
}

#[test]
fn one_thread_and_three_give_the_same_bits() {
    record();
    let s = sizes(4, 16, 20);
    let w = s.window();
    let qkv = variable(&noise(&[21, 50, 3 * w.width()], 4));
    let start = cache(s, &[3; 21], 5);
    let bits = |threads| {
        sconce_tensor::pool::set_threads(threads).unwrap();
        let (y, _) = attention(&qkv, &start, &w, None).unwrap();
        let gradients = backward(&y.sqr().unwrap().sum_all().unwrap());
        (values(&y), values(gradients.get(&qkv).unwrap()))
    };
    assert_eq!(bits(1), bits(3));
}

#[test]
fn errors_of_wrong_shapes_give_both_shapes() {
    let s = sizes(2, 8, 5);
    let w = s.window();
    let start = Cache::empty(&w, 2).unwrap();
    let refused = |qkv: &[usize], cache: &Cache, lengths: Lengths| {
        attention(&noise(qkv, 1), cache, &w, lengths).unwrap_err().to_string()
    };
    let said = "queries, keys and values: expected [2, 3, 48], got [2, 3, 47]";
    assert_eq!(refused(&[2, 3, 47], &start, None), said);
    let said = "cached keys: expected [3, 5, 16], got [2, 5, 16]";
    assert_eq!(refused(&[3, 3, 48], &start, None), said);
    let said = "length of a row: 4 is outside 0..3";
    assert_eq!(refused(&[2, 3, 48], &start, Some(vec![1, 4].into())), said);
    for seen in [10.0f32, -1.0, 0.5, f32::NAN] {
        let seen = Tensor::new(&[[0.0f32], [seen]], &Device::Cpu).unwrap();
        let broken = Cache { seen, ..start.clone() };
        let said = refused(&[2, 3, 48], &broken, None);
        assert!(said.starts_with("frames seen by a cache: "), "{said}");
    }
    let said = Window::new(1, 7, 5, Pairing::Half, THETA).unwrap_err().to_string();
    assert_eq!(said, "head_dim of an attention: expected an even number, got 7");
}

#[test]
fn softmax_equals_the_definition_and_obeys_its_mask() {
    let x = (noise(&[7, 37], 1) * 20.0).unwrap();
    let mask: Vec<bool> = (0..7 * 37).map(|i| i % 3 != 0 && i / 37 != 2).collect();
    let want = |mask: &dyn Fn(usize) -> bool| -> Vec<f64> {
        let e: Vec<f64> = values(&x)
            .iter()
            .enumerate()
            .map(|(i, v)| if mask(i) { f64::from(*v).exp() } else { 0.0 })
            .collect();
        let sums: Vec<f64> = e.chunks(37).map(|r| r.iter().sum::<f64>().max(1e-300)).collect();
        e.iter().enumerate().map(|(i, e)| e / sums[i / 37]).collect()
    };
    assert!(off(&ops::softmax(&x).unwrap(), &want(&|_| true)) < 1e-6);
    let masked = ops::masked_softmax(&x, mask.clone().into()).unwrap();
    assert!(off(&masked, &want(&|i| mask[i])) < 1e-6);
    assert!(ops::masked_softmax(&x, vec![true].into()).is_err());

    differences(vec![noise(&[3, 19], 2)], |t| ops::softmax(&t[0]).unwrap());
    let mask: Arc<[bool]> = mask[..57].to_vec().into();
    differences(vec![noise(&[3, 19], 2)], move |t| {
        ops::masked_softmax(&t[0], mask.clone()).unwrap()
    });
}

#[test]
fn the_norm_of_heads_equals_a_layer_norm_of_each_query_and_key() {
    let (heads, d) = (3, 10);
    let qkv = noise(&[2, 70, 3 * heads * d], 1);
    let norm = |weight: &Tensor, bias: &Tensor| {
        let (weight, bias) = (weight.clone().into(), Some(bias.clone().into()));
        Norm { weight, bias, eps: 1e-5 }
    };
    let weights = [2, 3].map(|seed| norm(&noise(&[d], seed), &noise(&[d], seed + 2)));
    let [queries, keys] = weights.clone();
    let y = ops::head_norm(&qkv, &HeadNorms { queries, keys }).unwrap();
    for part in 0..3 {
        let own = |t: &Tensor| t.narrow(2, part * heads * d, heads * d).unwrap();
        let want = match weights.get(part) {
            None => own(&qkv),
            Some(norm) => {
                let x = own(&qkv).reshape((2, 70, heads, d)).unwrap();
                ops::row_norm(&x, norm).unwrap().reshape((2, 70, ())).unwrap()
            }
        };
        assert!(apart(&own(&y), &want) < 1e-6, "part {part}");
    }
    let mut all = vec![noise(&[2, 3, 36], 1)];
    all.extend((2..6).map(|seed| noise(&[6], seed)));
    differences(all, |t| {
        let norm =
            |i: usize| Norm { weight: t[i].clone(), bias: Some(t[i + 1].clone()), eps: 1e-5 };
        ops::head_norm(&t[0], &HeadNorms { queries: norm(1), keys: norm(3) }).unwrap()
    });
    let (four, ten) = (noise(&[4], 1), noise(&[10], 1));
    let refused =
        |queries, keys| ops::head_norm(&qkv, &HeadNorms { queries, keys }).unwrap_err().to_string();
    let said = refused(norm(&four, &four), norm(&ten, &ten));
    assert_eq!(said, "weight of a norm: expected [4], got [10]");
    let said = refused(norm(&four, &four), norm(&four, &four));
    assert_eq!(said, "width of queries, keys and values: expected a multiple of 12, got 90");
}

/// An attention layer with its norm, dropout and residual sum; its inputs are `x`, the cache, then
/// all weights.
struct Layer {
    s: Sizes,
    lengths: Lengths,
    seen: Vec<usize>,
    /// Whether the norm has a shift, whether there is dropout, and whether heads have norms.
    options: [bool; 3],
}

impl Layer {
    const H: usize = 7;

    fn inputs(&self, time: usize) -> Vec<Tensor> {
        let (h, d, batch) = (Self::H, self.s.heads * self.s.head_dim, self.seen.len());
        let n = |shape: &[usize], seed| (noise(shape, seed) * 0.7).unwrap();
        let start = cache(self.s, &self.seen, 1);
        let mut all = vec![n(&[batch, time, h], 3), start.keys, start.values];
        all.extend([n(&[3 * d, h], 4), n(&[3 * d], 5), n(&[h, d], 6), n(&[h], 7)]);
        all.push((n(&[h], 8) + 1.0).unwrap());
        let [shift, _, heads] = self.options;
        all.extend(shift.then(|| n(&[h], 9)));
        all.extend((10..14).filter(|_| heads).map(|seed| n(&[self.s.head_dim], seed)));
        all
    }

    fn around(&self, t: &[Weight]) -> (Residual, Projections, Cache) {
        let [shift, drops, heads] = self.options;
        let mut rest = t[7..].iter().cloned();
        let mut norm = |shift: bool| {
            let weight = rest.next().unwrap();
            Norm { weight, bias: shift.then(|| rest.next().unwrap()), eps: 1e-5 }
        };
        let affine = |i: usize| Affine { weight: t[i].clone(), bias: Some(t[i + 1].clone()) };
        let mask = || Dropout::new(0.3, Rng::new(7, "residual", 1), Origin::default());
        let residual = Residual { norm: norm(shift), dropout: drops.then(mask) };
        let norms = heads.then(|| HeadNorms { queries: norm(true), keys: norm(true) });
        let start = cache(self.s, &self.seen, 1);
        let cache = Cache { keys: (*t[1]).clone(), values: (*t[2]).clone(), seen: start.seen };
        (residual, Projections { qkv: affine(3), norms, out: affine(5) }, cache)
    }

    fn fused(&self, t: &[Weight]) -> [Tensor; 3] {
        let (residual, projections, cache) = self.around(t);
        let (window, lengths) = (self.s.window(), self.lengths.clone());
        let (y, next) =
            ops::attention_residual(&t[0], &residual, &projections, &cache, &window, lengths, true)
                .unwrap();
        let next = next.unwrap();
        [y, next.keys, next.values]
    }

    fn apart(&self, t: &[Weight]) -> [Tensor; 3] {
        let (residual, Projections { qkv, norms, out }, cache) = self.around(t);
        let linear = |x: &Tensor, layer: &Affine| {
            ops::linear(x, &layer.weight, layer.bias.as_ref(), Activation::None).unwrap()
        };
        let mut qkv = linear(&ops::row_norm(&t[0], &residual.norm).unwrap(), &qkv);
        if let Some(norms) = &norms {
            qkv = ops::head_norm(&qkv, norms).unwrap();
        }
        let (y, next) = attention(&qkv, &cache, &self.s.window(), self.lengths.clone()).unwrap();
        let mut y = linear(&y, &out);
        if let Some(dropout) = residual.dropout {
            y = dropout.apply(&y).unwrap();
        }
        [(y + &*t[0]).unwrap(), next.keys, next.values]
    }

    /// The output and both rings as one vector.
    fn flat(parts: [Tensor; 3]) -> Tensor {
        Tensor::cat(&parts.map(|part| part.flatten_all().unwrap()), 0).unwrap()
    }

    fn gradients(&self, y: &Tensor, t: &[Weight]) -> Vec<Tensor> {
        let y = (y * noise(y.dims(), 9)).unwrap();
        let store = backward(&y.sum_all().unwrap());
        let gradient = |(i, t)| crate::common::gradient(&format!("input {i}"), t, &store);
        t.iter().enumerate().map(gradient).collect()
    }
}

fn layers() -> impl Iterator<Item = Layer> {
    let options =
        [[true, false, false], [false, true, true], [true, true, false], [true, false, true]];
    let lengths = [None, Some(Arc::from([5, 2, 0])), Some(Arc::from([1, 4, 5])), None];
    options.into_iter().zip(lengths).map(|(options, lengths)| Layer {
        s: sizes(2, 4, 4),
        lengths,
        seen: vec![0, 3, 9],
        options,
    })
}

#[test]
fn a_residual_layer_as_one_op_equals_its_parts() {
    record();
    for layer in layers() {
        let tracked =
            || -> Vec<Weight> { layer.inputs(5).iter().map(|t| variable(t).into()).collect() };
        let (one, two) = (tracked(), tracked());
        let fused = Layer::flat(layer.fused(&one));
        let got = layer.gradients(&fused, &one);
        let parts = Layer::flat(layer.apart(&two));
        let want = layer.gradients(&parts, &two);
        assert_eq!(values(&fused), values(&parts), "{:?}", layer.options);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let scale = values(want).iter().fold(1.0f32, |m, v| m.max(v.abs()));
            let off = apart(got, want) / scale;
            assert!(off < 1e-5, "input {i}: {off}, {:?}", layer.options);
        }
        let again = layer.gradients(&Layer::flat(layer.fused(&one)), &one);
        for (i, (again, got)) in again.iter().zip(&got).enumerate() {
            assert_eq!(values(again), values(got), "input {i}");
        }
    }
}

#[test]
fn gradients_of_a_residual_layer_equal_finite_differences() {
    for layer in layers() {
        differences(layer.inputs(5), |t| Layer::flat(layer.fused(t)));
    }
}

#[test]
fn a_residual_layer_has_the_same_bits_on_one_thread_and_on_three() {
    record();
    let layer = Layer {
        s: sizes(2, 16, 60),
        lengths: None,
        seen: (0..20).map(|row| 7 * row).collect(),
        options: [true, true, true],
    };
    let run = |threads: usize| {
        sconce_tensor::pool::set_threads(threads).unwrap();
        let t: Vec<Weight> = layer.inputs(70).iter().map(|t| variable(t).into()).collect();
        let y = Layer::flat(layer.fused(&t));
        let gradients = layer.gradients(&y, &t);
        (values(&y), gradients.iter().map(values).collect::<Vec<_>>())
    };
    assert!(run(1) == run(3));
}

#[test]
fn a_residual_layer_of_another_width_is_refused() {
    let layer = layers().next().unwrap();
    let mut inputs: Vec<Weight> = layer.inputs(5).into_iter().map(Weight::from).collect();
    let refused = |t: &[Weight]| {
        let (residual, projections, cache) = layer.around(t);
        let window = layer.s.window();
        ops::attention_residual(&t[0], &residual, &projections, &cache, &window, None, true)
            .unwrap_err()
            .to_string()
    };
    let weight = std::mem::replace(&mut inputs[5], noise(&[6, 8], 1).into());
    inputs[6] = noise(&[6], 1).into();
    assert_eq!(refused(&inputs), "widths of an attention's layers: expected [24, 7], got [24, 6]");
    inputs[5] = weight;
    inputs[7] = noise(&[6], 1).into();
    assert_eq!(refused(&inputs), "weight of a norm: expected [7], got [6]");
}

#[test]
fn a_residual_layer_gives_the_same_without_a_cache_output() {
    record();
    for layer in layers() {
        let inputs: Vec<Weight> = layer.inputs(5).into_iter().map(Weight::from).collect();
        let (residual, projections, cache) = layer.around(&inputs);
        let (window, lengths) = (layer.s.window(), &layer.lengths);
        let run = |append| {
            let (x, lengths) = (&inputs[0], lengths.clone());
            ops::attention_residual(x, &residual, &projections, &cache, &window, lengths, append)
                .unwrap()
        };
        let ((y, next), (alone, nothing)) = (run(true), run(false));
        assert!(next.is_some() && nothing.is_none());
        assert_eq!(values(&y), values(&alone));
    }
}
