//! `sample.cu` against the kinds of heads on the CPU.

use sconce_nn::head::{Chance, Gaussian, HeadKind};
use sconce_nn::sampling::Sampling;
use sconce_tensor::rng::Rng;

use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::Memory;
use crate::{Kernels, assert_near};

const ROWS: usize = 300;
const THREADS: usize = 128;
const KINDS: [HeadKind; 5] = [
    HeadKind::Categorical(3),
    HeadKind::Gaussian(Gaussian { size: 2, low: -1.5, high: 2.0 }),
    HeadKind::Value(1),
    HeadKind::Categorical(70),
    HeadKind::Gaussian(Gaussian { size: 1, low: 0.0, high: 1.0 }),
];
const LOGITS: usize = 3 + 4 + 1 + 70 + 2;
const LABELS: usize = 1 + 2 + 1 + 1;
const VALUE: usize = 7;

/// Labels, log-likelihoods and values of all rows, and a logit that is not finite.
type Chosen = [Vec<f32>; 4];

fn logits() -> Vec<f32> {
    let rng = Rng::new(5, "logits", 0);
    (0..ROWS * LOGITS).map(|i| 1.5 * rng.normal(i as u64)).collect()
}

/// The stream of the choices, and the step of the first row.
fn stream() -> (Rng, u64) {
    (Rng::new(6, "choices", 0), (1 << 32) - 100)
}

fn on_cpu(logits: &[f32]) -> Chosen {
    let [mut labels, mut likelihoods, mut values] = [vec![], vec![], vec![]];
    let (rng, first) = stream();
    for (row, logits) in logits.chunks(LOGITS).enumerate() {
        let own = rng.at(first + row as u64);
        let (mut logit, mut label, mut nll) = (0, 0, 0.0);
        for kind in KINDS {
            let x = &logits[logit..logit + kind.logits()];
            let mut chosen = vec![0.0; kind.labels()];
            let sampling = Sampling::default();
            let chance = Chance { sampling: &sampling, rng: &own, index: label as u64, held: None };
            kind.choose(x, &chance, &mut chosen);
            nll += kind.nll(x, &chosen);
            logit += kind.logits();
            label += kind.labels();
            labels.extend(chosen);
        }
        likelihoods.push(-nll as f32);
        values.push(logits[VALUE]);
    }
    [labels, likelihoods, values, vec![0.0]]
}

fn launched(kernels: &impl Kernels, logits: &[f32]) -> Chosen {
    let (mut places, mut terms, mut logit, mut label) = (vec![], vec![], 0, 0);
    for kind in KINDS {
        let number = kind.on_card().unwrap();
        places.extend([number, logit, kind.logits() as i32, label]);
        terms.extend([1.0, 0.0, 0.0, 1.0, kind.least(), kind.largest()]);
        logit += kind.logits() as i32;
        label += kind.labels() as i32;
    }
    let (rng, first) = stream();
    let [key0, key1, ..] = rng.words().map(|word| word as i32);
    let mut logits = Memory::<f32>::of(logits);
    let (mut places, mut terms) = (Memory::exactly(&places), Memory::<f32>::of(&terms));
    let mut labels = Memory::<f32>::unwritten(ROWS * LABELS);
    let mut likelihoods = Memory::<f32>::unwritten(ROWS);
    let mut values = Memory::<f32>::unwritten(ROWS);
    let mut fault = Memory::<f32>::of(&[0.0]);
    kernels.launch(
        "sample",
        [ROWS.div_ceil(THREADS) as u32, 1, 1],
        [THREADS as u32, 1, 1],
        &mut [
            logits.argument(),
            places.argument(),
            terms.argument(),
            labels.argument(),
            likelihoods.argument(),
            values.argument(),
            fault.argument(),
            Long(ROWS as i64),
            Int(KINDS.len() as i32),
            Int(LOGITS as i32),
            Int(LABELS as i32),
            Int(key0),
            Int(key1),
            Long(first as i64),
        ],
    );
    [labels.read(), likelihoods.read(), values.read(), fault.read()]
}

fn choices_are_those_of_the_cpu(kernels: &impl Kernels) {
    let logits = logits();
    let (want, got) = (on_cpu(&logits), launched(kernels, &logits));
    for (name, got, want) in [
        ("labels", &got[0], &want[0]),
        ("log-likelihoods", &got[1], &want[1]),
        ("values", &got[2], &want[2]),
        ("fault", &got[3], &want[3]),
    ] {
        assert_near(name, got, want, 1e-5);
    }
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut logits = logits.clone();
        logits[17 * LOGITS + 30] = bad;
        assert!(!launched(kernels, &logits)[3][0].is_finite(), "{bad}");
    }
}

#[test]
fn choices_that_stay_on_a_card_are_those_of_the_cpu() {
    choices_are_those_of_the_cpu(&Emulated::compile("sample"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn choices_on_a_real_card_are_those_of_the_cpu() {
    let module = sconce_cuda::kernels::SAMPLE;
    choices_are_those_of_the_cpu(&crate::card::Card::open(module.name, module.ptx));
}
