//! `ppo.cu` compared with `objective::Clipped`.

use sconce_data::{Batch, Extra, Played};
use sconce_nn::head::Gaussian;
use sconce_nn::spec::{Head, HeadKind, Heads, HeadsKind};
use sconce_play::objective::{Clipped, Normalise, Terms};
use sconce_tensor::rng::Rng;
use sconce_train::objective::{Objective, Rows};

use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::Memory;
use crate::{Kernels, assert_near};

/// Frames of a segment, and rows of a batch: two whole parts and some rows more.
const FRAMES: usize = 130;
const N: usize = 71;
const SUMS: usize = 5;

fn heads() -> Heads {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 0 };
    let parts = vec![
        head("act", HeadKind::Categorical(4)),
        head("value", HeadKind::Value(1)),
        head("move", HeadKind::Gaussian(Gaussian { size: 2, low: -1.0, high: 1.5 })),
        head("many", HeadKind::Categorical(40)),
    ];
    Heads { kind: HeadsKind::Independent, parts, stream_size: 8, prior: false }
}

const VALUE: usize = 4;

fn numbers(name: &str, n: usize, scale: f32) -> Vec<f32> {
    let rng = Rng::new(3, name, 0);
    (0..n as u64).map(|i| scale * rng.normal(i)).collect()
}

/// A segment, and a batch of some of its frames in another order.
struct Case {
    logits: Vec<f32>,
    labels: Vec<f32>,
    log_likelihoods: Vec<f32>,
    values: Vec<f32>,
    advantages: Vec<f32>,
    targets: Vec<f32>,
    order: Vec<u32>,
    terms: Terms,
}

impl Case {
    fn new(terms: Terms) -> Self {
        let (heads, rng) = (heads(), Rng::new(3, "labels", 0));
        let kinds = heads.parts.iter().map(|head| head.kind);
        let kinds: Vec<HeadKind> = kinds.flat_map(|kind| vec![kind; kind.labels()]).collect();
        let label = |(i, kind): (usize, &HeadKind)| match kind.classes() {
            0 => kind.least() + rng.uniform(i as u64) * (kind.largest() - kind.least()),
            classes => rng.below(i as u64, classes as u64) as f32,
        };
        let labels: Vec<f32> = (0..FRAMES).flat_map(|_| &kinds).enumerate().map(label).collect();
        let order: Vec<u32> = (0..N as u32).map(|i| i * 57 % FRAMES as u32).collect();
        let logits = numbers("logits", N * heads.num_logits(), 0.5);
        // Ratios near 1, on both sides of the clip.
        let mut log_likelihoods = numbers("ratios", FRAMES, 0.2);
        for (row, logits) in logits.chunks(heads.num_logits()).enumerate() {
            let frame = order[row] as usize;
            let own = &labels[frame * kinds.len()..][..kinds.len()];
            let nll = heads.iter().map(|part| {
                let span = part.logits..part.logits + part.head.kind.logits();
                let labels = &own[part.labels..part.labels + part.head.kind.labels()];
                part.head.kind.nll(&logits[span], labels)
            });
            log_likelihoods[frame] -= nll.sum::<f64>() as f32;
        }
        Case {
            logits,
            labels,
            log_likelihoods,
            values: numbers("values", FRAMES, 0.5),
            advantages: numbers("advantages", FRAMES, 2.0),
            targets: numbers("targets", FRAMES, 1.0),
            order,
            terms,
        }
    }

    /// The column of the batch.
    fn of(&self, column: &[f32]) -> Vec<f32> {
        let width = column.len() / FRAMES;
        let row = |frame: &u32| column[*frame as usize * width..][..width].to_vec();
        self.order.iter().flat_map(row).collect()
    }

    /// Sums and gradient.
    fn on_cpu(&self) -> (Vec<f64>, Vec<f32>) {
        let beside = [
            (Played::Advantage, &self.advantages),
            (Played::Target, &self.targets),
            (Played::LogLikelihood, &self.log_likelihoods),
            (Played::Value, &self.values),
        ];
        let beside = beside.map(|(played, column)| (Extra::Played(played), self.of(column)));
        let batch = Batch {
            labels: self.of(&self.labels),
            weights: vec![1.0; N],
            beside: beside.into(),
            ..Batch::default()
        };
        let objective = Clipped::new(&heads(), self.terms).unwrap();
        let whole = objective.denominators(&batch, None).unwrap();
        let rows = Rows { logits: &self.logits, companions: vec![], batch: &batch, range: 0..N };
        let mut gradient = vec![0.0; self.logits.len()];
        let sums = objective.rows(&rows, &whole, Some(&mut gradient)).unwrap();
        (sums.0, gradient)
    }

    fn launched(&self, kernels: &impl Kernels) -> (Vec<f64>, Vec<f32>) {
        let heads = heads();
        let (mut places, mut terms) = (vec![], vec![]);
        for part in heads.iter() {
            let kind = part.head.kind;
            let own = [part.logits, kind.logits(), part.labels].map(|place| place as i32);
            places.push(kind.on_card().unwrap());
            places.extend(own);
            terms.extend([1.0, 0.0, 0.0, 1.0, kind.least(), kind.largest()]);
        }
        let freedom = match self.terms.normalise {
            Normalise::None => -1,
            Normalise::Sample => 1,
            Normalise::Population => 0,
        };
        let Terms { clip, value_clip, value_weight, entropy_weight, .. } = self.terms;
        let mut weights =
            Memory::exactly(&[clip, value_clip.unwrap_or(-1.0), value_weight, entropy_weight]);
        let columns = [
            &self.logits,
            &self.labels,
            &self.log_likelihoods,
            &self.values,
            &self.advantages,
            &self.targets,
        ];
        let [mut logits, mut labels, mut likelihoods, mut values, mut advantages, mut targets] =
            columns.map(|own| Memory::<f32>::of(own));
        let mut order = Memory::exactly(&self.order);
        let mut moments = Memory::<f64>::unwritten(2);
        kernels.launch(
            "ppo_moments",
            [1; 3],
            [256, 1, 1],
            &mut [
                advantages.argument(),
                order.argument(),
                moments.argument(),
                Long(N as i64),
                Int(freedom),
            ],
        );
        let (mut places, mut terms) = (Memory::exactly(&places), Memory::<f32>::of(&terms));
        let mut pos_weights = Memory::<f32>::of(&vec![1.0; heads.num_logits()]);
        let mut gradient = Memory::<f32>::unwritten(self.logits.len());
        let blocks = N.div_ceil(32);
        let mut parts = Memory::<f64>::unwritten(blocks * SUMS);
        kernels.launch(
            "ppo_loss",
            [blocks as u32, 1, 1],
            [256, 1, 1],
            &mut [
                logits.argument(),
                labels.argument(),
                likelihoods.argument(),
                values.argument(),
                advantages.argument(),
                targets.argument(),
                order.argument(),
                places.argument(),
                terms.argument(),
                pos_weights.argument(),
                weights.argument(),
                moments.argument(),
                gradient.argument(),
                parts.argument(),
                Long(N as i64),
                Int(heads.parts.len() as i32),
                Int(heads.num_logits() as i32),
                Int(heads.num_labels() as i32),
                Int(VALUE as i32),
            ],
        );
        let mut sums = vec![0.0; SUMS];
        for part in parts.exact().chunks(SUMS) {
            sums.iter_mut().zip(part).for_each(|(sum, own)| *sum += own);
        }
        (sums, gradient.read())
    }
}

fn losses_are_those_of_the_cpu(kernels: &impl Kernels) {
    let plain = Terms {
        clip: 0.2,
        policy_weight: 1.0,
        value_clip: None,
        value_weight: 0.5,
        entropy_weight: 0.01,
        normalise: Normalise::Sample,
    };
    for terms in [
        plain,
        Terms { normalise: Normalise::None, value_clip: Some(0.3), ..plain },
        Terms { normalise: Normalise::Population, entropy_weight: 0.0, clip: 0.05, ..plain },
    ] {
        let case = Case::new(terms);
        let ((want, slope), (got, got_slope)) = (case.on_cpu(), case.launched(kernels));
        assert!(want[4] > 0.0 && want[4] < N as f64, "{want:?}");
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "{got} is not {want}");
        }
        // A gradient gets smaller as the batch gets larger.
        let scale = slope.iter().fold(0.0f32, |most, v| most.max(v.abs())).recip();
        let scaled = |slope: &[f32]| slope.iter().map(|v| v * scale).collect::<Vec<_>>();
        assert_near("gradient", &scaled(&got_slope), &scaled(&slope), 1e-5);
    }
}

#[test]
fn the_loss_and_its_gradient_are_those_of_the_cpu() {
    losses_are_those_of_the_cpu(&Emulated::compile("ppo"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn the_loss_on_a_card_is_that_of_the_cpu() {
    let module = sconce_cuda::kernels::PPO;
    losses_are_those_of_the_cpu(&crate::card::Card::open(module.name, module.ptx));
}
