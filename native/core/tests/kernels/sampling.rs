//! `native/cuda/kernels/sampling.cu` beside `Sampling::choose`.

use half::bf16;
use sconce_core::rng::Rng;
use sconce_core::sampling::Sampling;
use sconce_core::spec::{HeadKind, NONE};

use crate::Kernels;
use crate::emulated::Emulated;
use crate::memory::Argument::{Float, Int};
use crate::memory::{Element, Memory};

const ROWS: usize = 70;
/// Of all heads of a row, and the first of the one that is looked at.
const LABELS: usize = 13;
const FIRST: usize = 3;

const KINDS: [HeadKind; 4] = [
    HeadKind::Bernoulli(8),
    HeadKind::Categorical(17),
    HeadKind::Categorical(150),
    HeadKind::Bernoulli(1),
];

fn samplings() -> [Sampling; 4] {
    let plain = Sampling::default();
    let thresholds = Sampling { press_threshold: 0.6, release_threshold: 0.3, ..plain.clone() };
    [
        Sampling { temperature: 0.5, ..plain.clone() },
        Sampling { deterministic_buttons: true, temperature: 1.5, ..thresholds.clone() },
        Sampling { deterministic: true, ..thresholds },
        plain,
    ]
}

/// Choices of all rows, and what the next head reads of them.
type Results = [Vec<f32>; 2];

struct Case {
    kind: HeadKind,
    sampling: Sampling,
    logits: Vec<f32>,
    previous: Vec<u16>,
    rngs: Vec<Rng>,
}

impl Case {
    fn new<T: Element>(kind: HeadKind, sampling: Sampling) -> Self {
        let rng = Rng::new(2, "logits", kind.logits() as u64);
        let numbers = (0..(ROWS * kind.logits()) as u64).map(|i| T::of(rng.normal(i)).value());
        // Rows of nothing before among them.
        let label =
            |i: usize| if i / LABELS % 3 == 1 { NONE } else { (rng.u32(i as u64) % 2) as u16 };
        Case {
            kind,
            sampling,
            logits: numbers.collect(),
            previous: (0..ROWS * LABELS).map(label).collect(),
            rngs: (0..ROWS as u64).map(|row| Rng::new(row, "act", (row + 7) << 30)).collect(),
        }
    }

    fn on_cpu(&self) -> Results {
        let (width, labels) = (self.kind.logits(), self.kind.labels());
        let (mut choices, mut flat) = (vec![], vec![]);
        for (row, logits) in self.logits.chunks(width).enumerate() {
            let held = &self.previous[row * LABELS + FIRST..][..labels];
            let held = (held[0] != NONE).then_some(held);
            let mut own = vec![0; labels];
            let rng = &self.rngs[row];
            self.sampling.choose(self.kind, logits, rng, FIRST as u64, held, &mut own);
            flat.extend((0..width).map(|i| match self.kind {
                HeadKind::Bernoulli(_) => f32::from(own[i]),
                HeadKind::Categorical(_) => f32::from(u8::from(usize::from(own[0]) == i)),
            }));
            choices.extend(own.iter().map(|label| f32::from(*label)));
        }
        [choices, flat]
    }

    fn launched<T: Element>(&self, kernels: &impl Kernels) -> Results {
        let (width, labels) = (self.kind.logits(), self.kind.labels());
        let mut logits = Memory::<T>::of(&self.logits);
        let previous: Vec<u32> = self.previous.iter().map(|label| u32::from(*label)).collect();
        let mut previous = Memory::exactly(&previous);
        let words: Vec<u32> = self.rngs.iter().flat_map(Rng::words).collect();
        let mut generators = Memory::exactly(&words);
        let mut choices = Memory::exactly(&[77u32; ROWS * LABELS]);
        let mut flat = Memory::<T>::unwritten(self.logits.len());
        let Sampling { temperature, press_threshold, release_threshold, .. } = self.sampling;
        let flag = |flag: bool| Int(i32::from(flag));
        let arguments = &mut [
            logits.argument(),
            previous.argument(),
            generators.argument(),
            choices.argument(),
            flat.argument(),
            Int(ROWS as i32),
            Int(width as i32),
            Int(LABELS as i32),
            Int(FIRST as i32),
            flag(matches!(self.kind, HeadKind::Categorical(_))),
            Float(temperature),
            Float(press_threshold),
            Float(release_threshold),
            flag(self.sampling.deterministic),
            flag(self.sampling.deterministic_buttons),
        ];
        kernels.launch(&format!("sample_{}", T::NAME), [3, 1, 1], [32, 1, 1], arguments);
        let choices = choices.read();
        let mut own = vec![];
        for row in choices.chunks(LABELS) {
            let (mine, others) = (FIRST..FIRST + labels, [&row[..FIRST], &row[FIRST + labels..]]);
            assert!(others.concat().iter().all(|label| *label == 77.0), "labels of other heads");
            own.extend(&row[mine]);
        }
        [own, flat.read()]
    }
}

fn choices_are_those_of_the_cpu<T: Element>(kernels: &impl Kernels) {
    for kind in KINDS {
        for sampling in samplings() {
            let case = Case::new::<T>(kind, sampling.clone());
            let (got, want) = (case.launched::<T>(kernels), case.on_cpu());
            assert_eq!(got, want, "{kind:?}, {sampling:?}");
        }
    }
}

#[test]
fn choices_are_those_of_the_cpu_whatever_the_type_of_the_logits() {
    let kernels = Emulated::compile("sampling");
    choices_are_those_of_the_cpu::<f32>(&kernels);
    choices_are_those_of_the_cpu::<bf16>(&kernels);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn choices_on_a_card_are_those_of_the_cpu() {
    let ptx = include_str!("../../../cuda/kernels/sampling.ptx");
    let kernels = crate::card::Card::open("sampling", ptx);
    choices_are_those_of_the_cpu::<f32>(&kernels);
    choices_are_those_of_the_cpu::<bf16>(&kernels);
}
