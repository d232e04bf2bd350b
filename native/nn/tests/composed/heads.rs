//! Decisions of heads with composed ops and on a card, against those on a CPU.

use candle_core::{DType, Device, Tensor};
use sconce_nn::heads::{Decision, Heads, NONE};
use sconce_nn::sampling::{Draw, FORBIDDEN, Sampling};
use sconce_nn::spec::{self, HeadsKind};
use sconce_ops::weights::{Builder, Source, Weights};
use sconce_tensor::rng::Rng;

use crate::common::composed::elsewhere;
use crate::common::{apart, noise};

const ROWS: usize = 9;
const WIDTH: usize = 6;

/// A device and a type of numbers.
type Place<'a> = (&'a Device, DType);

fn there(t: &Tensor, (device, dtype): Place) -> Tensor {
    t.to_device(device).unwrap().to_dtype(dtype).unwrap()
}

/// Random weights of heads without zeros, on a device.
fn weights(spec: &spec::Heads, place: Place) -> Weights {
    let b = Builder::new(Source::Seed(1), false);
    Heads::new(spec, WIDTH, &b).unwrap();
    let drawn = b.finish().unwrap().into_iter().enumerate().map(|(i, (name, weight))| {
        let weight = there(&noise(weight.dims(), i as u64), place);
        (name, weight.into())
    });
    drawn.collect()
}

fn decide(
    kind: HeadsKind,
    prior: bool,
    sampling: &Sampling,
    mask: Option<&[u8]>,
    place: Place,
) -> Decision {
    let spec = spec::Heads { prior, ..spec::Heads::controller(kind) };
    let stored = Source::Stored(weights(&spec, place));
    let heads = Heads::new(&spec, WIDTH, &Builder::new(stored, false)).unwrap();
    let trunk = there(&noise(&[ROWS, WIDTH], 7), place);
    let rngs: Vec<Rng> = (0..ROWS as u64).map(|row| Rng::new(row, "act", 3)).collect();
    let labels = spec.num_labels();
    let previous = |i: usize| if i / labels % 3 == 1 { NONE } else { (i % 2) as f32 };
    let previous: Vec<f32> = (0..ROWS * labels).map(previous).collect();
    let draw = Draw { sampling, rngs: &rngs, given: None, mask };
    heads.act(&trunk.into(), &previous, draw).unwrap()
}

#[test]
fn independent_and_autoregressive_heads_choose_the_same_on_every_device() {
    let plain = Sampling { temperature: 0.7, ..Sampling::default() };
    let sure = Sampling { deterministic: true, ..plain.clone() };
    // Every third button and class is not allowed.
    let size = spec::Heads::controller(HeadsKind::Independent).mask_size();
    let mask: Vec<u8> = (0..ROWS * size).map(|i| u8::from(!i.is_multiple_of(3))).collect();
    let buttons = Sampling { deterministic_buttons: true, press_threshold: 0.8, ..plain.clone() };
    for (device, dtype) in elsewhere() {
        for sampling in [&plain, &sure, &buttons] {
            for kind in [HeadsKind::Independent, HeadsKind::Autoregressive] {
                for (prior, mask) in [(false, None), (true, None), (true, Some(&mask[..]))] {
                    let want = decide(kind, prior, sampling, mask, (&Device::Cpu, DType::F32));
                    let got = decide(kind, prior, sampling, mask, (&device, dtype));
                    let what = format!(
                        "{kind:?}, prior {prior}, mask {}, {sampling:?} of {dtype:?} on {device:?}",
                        mask.is_some()
                    );
                    assert_eq!(got.choices, want.choices, "{what}");
                    let marked = |v: &[f32]| v.iter().map(|x| *x == FORBIDDEN).collect::<Vec<_>>();
                    assert_eq!(marked(&got.logits), marked(&want.logits), "{what}");
                    let numbers = |v: &[f32]| {
                        let small: Vec<f32> =
                            v.iter().map(|x| if *x == FORBIDDEN { 0.0 } else { *x }).collect();
                        Tensor::from_slice(&small, v.len(), &Device::Cpu).unwrap()
                    };
                    assert!(apart(&numbers(&got.logits), &numbers(&want.logits)) < 1e-4, "{what}");
                }
            }
        }
    }
}
