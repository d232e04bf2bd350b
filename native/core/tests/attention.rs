//! Attention over a sliding window, softmax and the norm of heads against slow references.

mod common;

use std::sync::Arc;

use candle_core::{Device, Tensor, Var};
use common::{apart, differences, noise, values};
use sconce_core::backbone::Lengths;
use sconce_core::ops::attention::{Cache, Pairing, THETA, Window};
use sconce_core::ops::{self, attention, attention_weights};

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

/// A cache as it is after `seen` frames, of noise.
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

/// The definition, frame by frame over the frames of a game that are remembered, in f64: results
/// `[b, t, heads * head_dim]` and weights by age `[b, heads, t, window]`.
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
            // Frame f of the remembered ones: part 0, 1, 2 of its query, key and value.
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
fn attention_and_its_weights_are_the_definition() {
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

/// Cuts of a sequence, and how many frames of each row lie in each.
#[test]
fn a_sequence_in_pieces_is_the_sequence() {
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
fn frames_beyond_a_length_are_as_if_they_were_not_there() {
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
fn gradients_of_attention_reach_the_cache_and_are_its_finite_differences() {
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
fn gradients_through_two_chunks_are_those_of_one() {
    for (s, time, cut) in [(sizes(2, 8, 5), 12, 4), (sizes(1, 32, 60), 512, 200)] {
        let w = s.window();
        let qkv = variable(&noise(&[2, time, 3 * w.width()], 4));
        let start = Cache::empty(&w, 2).unwrap();
        let gradient = |y: &Tensor| {
            let loss = (y * noise(y.dims(), 5)).unwrap().sum_all().unwrap();
            loss.backward().unwrap().get(&qkv).unwrap().clone()
        };
        let (whole, _) = attention(&qkv, &start, &w, None).unwrap();
        let (a, middle) = attention(&qkv.narrow(1, 0, cut).unwrap(), &start, &w, None).unwrap();
        let (b, _) =
            attention(&qkv.narrow(1, cut, time - cut).unwrap(), &middle, &w, None).unwrap();
        let parts = Tensor::cat(&[a, b], 1).unwrap();
        assert!(apart(&parts, &whole) < 1e-5);
        let off = apart(&gradient(&parts), &gradient(&whole));
        assert!(off < 2e-5, "{s:?}: {off}");
    }
}

#[test]
fn large_scores_stay_finite_and_what_is_not_seen_does_not_matter() {
    let s = sizes(1, 8, 3);
    let w = s.window();
    let qkv = (noise(&[2, 12, 24], 4) * 100.0).unwrap();
    let mut start = Cache::empty(&w, 2).unwrap();
    start.keys = (start.keys * f64::NAN).unwrap();
    start.values = (start.values * f64::NAN).unwrap();
    let qkv = variable(&qkv);
    let (y, _) = attention(&qkv, &start, &w, None).unwrap();
    let gradients = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    assert!(values(&y).iter().all(|v| v.is_finite()));
    assert!(values(gradients.get(&qkv).unwrap()).iter().all(|v| v.is_finite()));
}

#[test]
fn one_thread_and_three_give_the_same_bits() {
    let s = sizes(4, 16, 20);
    let w = s.window();
    let qkv = variable(&noise(&[21, 50, 3 * w.width()], 4));
    let start = cache(s, &[3; 21], 5);
    let bits = |threads| {
        sconce_core::pool::set_threads(threads).unwrap();
        let (y, _) = attention(&qkv, &start, &w, None).unwrap();
        let gradients = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        (values(&y), values(gradients.get(&qkv).unwrap()))
    };
    assert_eq!(bits(1), bits(3));
}

#[test]
fn shapes_that_do_not_fit_are_errors_that_give_both() {
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
fn softmax_is_the_definition_and_leaves_out_what_the_mask_says() {
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
fn the_norm_of_heads_is_a_layer_norm_of_each_query_and_key() {
    let (heads, d) = (3, 10);
    let qkv = noise(&[2, 70, 3 * heads * d], 1);
    let weights = [noise(&[2, d], 2), noise(&[2, d], 3)];
    let y = ops::head_norm(&qkv, &weights[0], &weights[1], 1e-5).unwrap();
    for part in 0..3 {
        let own = |t: &Tensor| t.narrow(2, part * heads * d, heads * d).unwrap();
        let want = match weights.get(part) {
            None => own(&qkv),
            Some(w) => {
                let x = own(&qkv).reshape((2, 70, heads, d)).unwrap();
                let row = |i: usize| w.get(i).unwrap().into();
                let norm = ops::Norm { weight: row(0), bias: Some(row(1)), eps: 1e-5 };
                ops::row_norm(&x, &norm).unwrap().reshape((2, 70, ())).unwrap()
            }
        };
        assert!(apart(&own(&y), &want) < 1e-6, "part {part}");
    }
    differences(vec![noise(&[2, 3, 36], 1), noise(&[2, 6], 2), noise(&[2, 6], 3)], |t| {
        ops::head_norm(&t[0], &t[1], &t[2], 1e-5).unwrap()
    });
    let said = ops::head_norm(&qkv, &noise(&[2, 4], 1), &weights[1], 1e-5).unwrap_err().to_string();
    assert_eq!(said, "weight and bias of the norm of keys: expected [2, 4], got [2, 10]");
}
