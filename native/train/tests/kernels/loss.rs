//! `loss.cu` compared with `objective::imitation`.

use half::bf16;
use sconce_nn::spec::{Gaussian, Head, HeadKind, Heads, HeadsKind};
use sconce_tensor::rng::Rng;
use sconce_train::objective::imitation::{
    FocalHeads, Imitation, Loss, LossOptions, PosWeight, Reduction, imitation,
};
use sconce_train::objective::{Objective, Sums};

use crate::emulated::Emulated;
use crate::memory::Argument::{Float, Int, Long};
use crate::memory::{Element, Memory, NULL};
use crate::{Kernels, assert_near};

/// The same as in the kernels.
const ROWS: usize = 32;
const SUMS: usize = 3;

/// Two whole parts and one more row.
const N: usize = 2 * ROWS + 1;

/// Heads of fewer classes than lanes in a warp, of as many, and of more; one head of a stick.
fn heads() -> Heads {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 0 };
    let parts = vec![
        head("buttons", HeadKind::Bernoulli(8)),
        head("main_x", HeadKind::Categorical(17)),
        head("one", HeadKind::Categorical(2)),
        head("warp", HeadKind::Categorical(32)),
        head("more", HeadKind::Categorical(77)),
        head("bits", HeadKind::Bernoulli(40)),
        head("aim", HeadKind::Gaussian(Gaussian { size: 3, low: -1.5, high: 2.0 })),
        head("value", HeadKind::Value(1)),
    ];
    Heads { kind: HeadsKind::Independent, parts, stream_size: 0, prior: false }
}

fn ways() -> [LossOptions; 4] {
    let rates: Vec<f64> = (1..=48).map(|i| f64::from(i) / 50.0).collect();
    let full = LossOptions::default().with_press_rates(&rates);
    let given = PosWeight::Given((0..48).map(|i| 0.5 + i as f32 / 16.0).collect());
    [
        LossOptions::plain(),
        LossOptions { head_normalize: true, ..full.clone() },
        // Some logits are beyond the clamp.
        LossOptions { clamp: 2.0, focal_gamma: Some(1.5), pos_weight: given, ..full.clone() },
        LossOptions {
            focal_heads: FocalHeads::Bernoulli,
            bernoulli_reduction: Reduction::Sum,
            ..full
        },
    ]
}

/// Logits that are exact in T, labels, weights of rows.
struct Batch {
    logits: Vec<f32>,
    labels: Vec<f32>,
    weights: Vec<f32>,
}

impl Batch {
    fn new<T: Element>() -> Self {
        let (rng, heads) = (Rng::new(1, "loss", 0), heads());
        let logit = |i: usize| T::of(2.0 * rng.normal(i as u64)).value();
        // Some numbers are at their bounds.
        let label = |(i, kind): (usize, HeadKind)| match kind.classes() {
            0 if i % 7 == 0 => kind.least(),
            0 => kind.least() + rng.uniform(i as u64) * (kind.largest() - kind.least()),
            classes => rng.below(i as u64, classes as u64) as f32,
        };
        let kinds = heads.parts.iter().map(|head| head.kind);
        let kinds: Vec<HeadKind> = kinds.flat_map(|kind| vec![kind; kind.labels()]).collect();
        Batch {
            logits: (0..N * heads.num_logits()).map(logit).collect(),
            labels: (0..N).flat_map(|_| kinds.clone()).enumerate().map(label).collect(),
            weights: (0..N).map(|i| [0.0, 1.0, 2.5, 1.0][i % 4]).collect(),
        }
    }

    fn on_cpu(&self, options: &LossOptions) -> (Loss, Vec<f32>) {
        let mut gradient = vec![0.0; self.logits.len()];
        let weights = Some(self.weights.as_slice());
        let into = Some(gradient.as_mut_slice());
        let loss = imitation(&heads(), &self.logits, &self.labels, weights, options, into);
        (loss.unwrap(), gradient)
    }

    /// Sums of the heads, and the gradient, from two parts of the batch.
    fn launched<T: Element>(
        &self,
        kernels: &impl Kernels,
        options: &LossOptions,
    ) -> (Loss, Vec<f32>) {
        let heads = heads();
        let objective = Imitation::new(&heads, options).unwrap();
        let cut = ROWS + 5;
        let parts = [self.rows(0..cut), self.rows(cut..N)];
        let first = objective.two_passes().then(|| {
            let mut card = Card::<T>::new(&objective, &vec![1.0; 2 + heads.parts.len()]);
            for (i, part) in parts.iter().enumerate() {
                card.pass(kernels, part, false, i > 0);
            }
            Sums(card.totals.exact().to_vec())
        });
        let denominators = objective.divisors(&self.weights, first.as_ref()).unwrap();
        let mut card = Card::<T>::new(&objective, &denominators.numbers());
        let gradients = parts.iter().enumerate();
        let gradients = gradients.map(|(i, part)| card.pass(kernels, part, true, i > 0).unwrap());
        let gradient = gradients.collect::<Vec<_>>().concat();
        let sums = Sums(card.totals.exact().to_vec());
        (objective.loss(&sums, &denominators).unwrap(), gradient)
    }

    fn rows(&self, rows: std::ops::Range<usize>) -> Batch {
        let heads = heads();
        let of = |width: usize| rows.start * width..rows.end * width;
        Batch {
            logits: self.logits[of(heads.num_logits())].to_vec(),
            labels: self.labels[of(heads.num_labels())].to_vec(),
            weights: self.weights[rows.clone()].to_vec(),
        }
    }
}

/// Memory of a card that lasts from one pass to the next.
struct Card<T> {
    places: Memory<i32>,
    terms: Memory<f32>,
    pos_weights: Memory<f32>,
    denominators: Memory<f64>,
    totals: Memory<f64>,
    entropy_weight: f32,
    clamp: f32,
    of: std::marker::PhantomData<T>,
}

impl<T: Element> Card<T> {
    fn new(objective: &Imitation, denominators: &[f64]) -> Self {
        let table = objective.table();
        let places: Vec<f32> = table.places.iter().map(|place| *place as f32).collect();
        Card {
            places: Memory::of(&places),
            terms: Memory::of(&table.terms),
            pos_weights: Memory::of(&table.pos_weights),
            denominators: Memory::exactly(denominators),
            totals: Memory::unwritten(heads().parts.len() * SUMS),
            entropy_weight: table.entropy_weight,
            clamp: table.clamp,
            of: std::marker::PhantomData,
        }
    }

    /// Adds to the totals or overwrites them. Returns the gradient on request.
    fn pass(
        &mut self,
        kernels: &impl Kernels,
        batch: &Batch,
        gradient: bool,
        accumulate: bool,
    ) -> Option<Vec<f32>> {
        let heads = heads();
        let (n, count) = (batch.weights.len(), heads.parts.len());
        let blocks = n.div_ceil(ROWS);
        let mut logits = Memory::<T>::of(&batch.logits);
        let mut labels = Memory::<f32>::of(&batch.labels);
        let mut weights = Memory::<f32>::of(&batch.weights);
        let mut slope = Memory::<T>::unwritten(batch.logits.len());
        let mut parts = Memory::<f64>::unwritten(blocks * count * SUMS);
        kernels.launch(
            &format!("loss_{}", T::NAME),
            [blocks as u32, count as u32, 1],
            [256, 1, 1],
            &mut [
                logits.argument(),
                labels.argument(),
                weights.argument(),
                self.places.argument(),
                self.terms.argument(),
                self.pos_weights.argument(),
                self.denominators.argument(),
                if gradient { slope.argument() } else { NULL },
                parts.argument(),
                Long(n as i64),
                Int(heads.num_logits() as i32),
                Int(heads.num_labels() as i32),
                Float(self.entropy_weight),
                Float(self.clamp),
            ],
        );
        kernels.launch(
            "loss_totals",
            [(count * SUMS).div_ceil(4) as u32, 1, 1],
            [128, 1, 1],
            &mut [
                parts.argument(),
                self.totals.argument(),
                Int(blocks as i32),
                Int((count * SUMS) as i32),
                Int(accumulate.into()),
            ],
        );
        parts.read();
        gradient.then(|| slope.read())
    }
}

/// `rounding` is the rounding error of the gradient, which is written in T.
fn losses_are_those_of_the_cpu<T: Element>(kernels: &impl Kernels, rounding: f32) {
    let batch = Batch::new::<T>();
    for (way, options) in ways().iter().enumerate() {
        let (want, slope) = batch.on_cpu(options);
        let (got, got_slope) = batch.launched::<T>(kernels, options);
        let near = |got: f64, want: f64, what: &str| {
            assert!(
                (got - want).abs() <= 1e-6 * want.abs(),
                "{what}, way {way}: {got}, not {want}"
            );
        };
        near(got.value, want.value, "loss");
        near(got.entropy_bonus, want.entropy_bonus, "entropy");
        for (got, want) in got.per_head.iter().zip(&want.per_head) {
            near(*got, *want, "loss of a head");
        }
        // A gradient gets smaller as the batch gets larger.
        let scale = slope.iter().fold(0.0f32, |most, v| most.max(v.abs())).recip();
        let scaled = |slope: &[f32]| slope.iter().map(|v| v * scale).collect::<Vec<_>>();
        let what = format!("gradient, way {way}");
        assert_near(&what, &scaled(&got_slope), &scaled(&slope), rounding);
    }
}

fn what_is_not_finite_or_no_class_is_a_nan(kernels: &impl Kernels) {
    let heads = heads();
    let (width, labels) = (heads.num_logits(), heads.num_labels());
    let options = LossOptions::plain();
    let objective = Imitation::new(&heads, &options).unwrap();
    let sums = |change: &dyn Fn(&mut Batch)| {
        let mut batch = Batch::new::<f32>();
        change(&mut batch);
        let denominators = objective.divisors(&batch.weights, None).unwrap();
        let mut card = Card::<f32>::new(&objective, &denominators.numbers());
        let gradient = card.pass(kernels, &batch, true, false).unwrap();
        let row = gradient[width..2 * width].iter().any(|v| v.is_nan());
        let error = objective.loss(&Sums(card.totals.exact().to_vec()), &denominators);
        (row, error.err().map(|error| error.to_string()))
    };
    let told = |head: &str| (true, Some(format!("loss of {head} is not finite (NaN)")));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        // The first row has weight 0.
        assert_eq!(sums(&|batch| batch.logits[0] = bad), (false, None));
        assert_eq!(sums(&|batch| batch.logits[width + 3] = bad), told("buttons"));
        assert_eq!(sums(&|batch| batch.logits[width + 9] = bad), told("main_x"));
        let deviations = heads.iter().find(|part| part.head.name == "aim").unwrap().logits + 3;
        assert_eq!(sums(&|batch| batch.logits[width + deviations] = bad), told("aim"));
    }
    assert_eq!(sums(&|batch| batch.labels[labels] = 2.0), told("buttons"));
    assert_eq!(sums(&|batch| batch.labels[labels + 8] = 17.0), told("main_x"));
    assert_eq!(sums(&|batch| batch.labels[8] = 17.0), (false, None));
}

#[test]
fn losses_in_f32_are_those_of_the_cpu() {
    losses_are_those_of_the_cpu::<f32>(&Emulated::compile("loss"), 2e-6);
}

#[test]
fn losses_in_bf16_are_those_of_the_cpu_with_gradients_rounded_once() {
    losses_are_those_of_the_cpu::<bf16>(&Emulated::compile("loss"), 1.0 / 256.0);
}

#[test]
fn a_logit_that_is_not_finite_and_an_invalid_label_make_the_loss_nan() {
    what_is_not_finite_or_no_class_is_a_nan(&Emulated::compile("loss"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn losses_on_a_card_are_those_of_the_cpu() {
    let module = sconce_cuda::kernels::LOSS;
    let kernels = crate::card::Card::open(module.name, module.ptx);
    losses_are_those_of_the_cpu::<f32>(&kernels, 2e-6);
    losses_are_those_of_the_cpu::<bf16>(&kernels, 1.0 / 256.0);
    what_is_not_finite_or_no_class_is_a_nan(&kernels);
}
