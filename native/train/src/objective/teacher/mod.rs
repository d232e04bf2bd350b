//! A frozen policy that a run stays close to, and the divergence of the learner's logits from its logits on the
//! batches of the run.
//!
//! The divergence is the Kullback-Leibler divergence of the joint distributions of a frame's action. Heads and bits are
//! independent of each other given the recorded action, so their divergences are added. Autoregressive heads, of the
//! teacher or of the learner, condition on the recorded action. Where an action mask is recorded, both distributions are
//! those over the allowed actions.

use std::sync::{Arc, Mutex};

use sconce_data::{Extra, Played};
use sconce_nn::head::Direction;
use sconce_nn::sampling::{FORBIDDEN, forbid};
use sconce_nn::spec::{Head, HeadKind, Heads};
use sconce_nn::{Policy, Spec};
use sconce_tensor::digest::of_file;
use sconce_tensor::{Device, Error, Result};

use super::{Companion, Denominators, Figures, Objective, Rows, Setup, Sums};
use crate::options::TrainOptions;

/// A policy to stay close to.
pub struct Teacher {
    companion: Companion,
    spans: Spans,
    direction: Direction,
    /// Factor on the divergence, which is added to the loss.
    weight: Factor,
}

/// The factor on a divergence, which its holder may change between two updates.
#[derive(Debug, Clone)]
pub struct Factor(Arc<Mutex<f64>>);

impl Factor {
    /// A factor that all copies of it share.
    pub fn new(factor: f64) -> Self {
        Factor(Arc::new(Mutex::new(factor)))
    }

    /// Sets the factor of later updates.
    pub fn set(&self, factor: f64) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = factor;
    }

    fn now(&self) -> f64 {
        *self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The teacher of a run, if its options name one.
///
/// # Errors
/// `Mismatch` for a teacher of another game, action space or frame delay. A file without a delay is assumed to have the
/// delay of the run.
pub(crate) fn of(setup: &Setup<'_>) -> Result<Option<Box<dyn Objective>>> {
    let Setup { options, spec, device, .. } = *setup;
    let Some(path) = &options.objective.teacher else { return Ok(None) };
    let policy = Policy::load(path)?.on(device)?;
    fits(&policy, spec, options)?;
    let (direction, weight) =
        (options.objective.teacher_direction, Factor::new(options.objective.teacher_weight));
    let teacher = Teacher::new(policy, of_file(path)?, &spec.heads, direction, weight)?;
    Ok(Some(Box::new(teacher)))
}

const NAME: &str = "teacher";

impl Objective for Teacher {
    fn name(&self) -> &'static str {
        NAME
    }

    fn copy_on(&self, device: &Device) -> Result<Box<dyn Objective>> {
        let (companion, spans) = (self.companion.copy_on(device)?, self.spans.clone());
        let (direction, weight) = (self.direction, self.weight.clone());
        Ok(Box::new(Teacher { companion, spans, direction, weight }))
    }

    fn companion(&self) -> Option<&Companion> {
        Some(&self.companion)
    }

    fn rows(
        &self,
        rows: &Rows<'_>,
        whole: &Denominators,
        gradient: Option<&mut [f32]>,
    ) -> Result<Sums> {
        Ok(Sums(vec![self.pull().rows(rows, rows.companion, whole, gradient)]))
    }

    fn finish(&self, sums: &Sums, whole: &Denominators) -> Result<Figures> {
        let kl = whole.mean() * sums.0.first().copied().unwrap_or(0.0);
        let named = [("teacher_kl".to_string(), kl)].into_iter().collect();
        Ok(Figures { total: self.weight.now() * kl, named, ..Figures::default() })
    }
}

impl Teacher {
    /// Keeps a learner with `heads` close to `policy`, whose file has this digest.
    ///
    /// # Errors
    /// `Mismatch` for another action space.
    pub fn new(
        policy: Policy,
        digest: String,
        heads: &Heads,
        direction: Direction,
        weight: Factor,
    ) -> Result<Self> {
        same_actions(heads, &policy.spec().heads)?;
        let spans = Spans::new(heads, &policy.spec().heads);
        let companion = Companion::new(policy, NAME, digest);
        Ok(Teacher { companion, spans, direction, weight })
    }

    fn pull(&self) -> Pull<'_> {
        Pull { spans: &self.spans, direction: self.direction, weight: self.weight.now() }
    }
}

/// Pulls the learner's logits towards other logits.
pub(crate) struct Pull<'a> {
    pub spans: &'a Spans,
    pub direction: Direction,
    /// Factor on the divergence, which is added to the loss.
    pub weight: f64,
}

impl Pull<'_> {
    /// Returns the weighted sum of these rows' divergences from `y`. Overwrites `gradient` with the gradient of this
    /// term of the batch's loss.
    pub(crate) fn rows(
        &self,
        rows: &Rows<'_>,
        y: &[f32],
        whole: &Denominators,
        gradient: Option<&mut [f32]>,
    ) -> f64 {
        let mut none = vec![];
        let gradient = match gradient {
            Some(gradient) => gradient,
            None => {
                none.resize(rows.logits.len(), 0.0);
                &mut none
            }
        };
        gradient.fill(0.0);
        let mask = rows.batch.column(|extra| extra == Extra::Played(Played::Mask));
        let (weights, scale) = (rows.weights(), whole.mean());
        let Some(mask) = mask else { return self.add(rows.logits, y, weights, scale, gradient) };
        let (mut x, mut y) = (rows.logits.to_vec(), y.to_vec());
        self.spans.forbid(&mut x, &mut y, rows.of(mask));
        let sum = self.add(&x, &y, weights, scale, gradient);
        let forbidden = gradient.iter_mut().zip(&x).filter(|(_, x)| **x <= FORBIDDEN);
        forbidden.for_each(|(gradient, _)| *gradient = 0.0);
        sum
    }

    /// Returns the sum over rows of divergence times weight, in nats. Adds the gradient of that sum, times `scale` and
    /// the factor of the pull, to `grad`.
    ///
    /// # Shapes
    /// `x` (the learner's logits), `y` (the other logits) and `grad` `[n, num_logits]`, `weights [n]`
    fn add(&self, x: &[f32], y: &[f32], weights: &[f32], scale: f64, grad: &mut [f32]) -> f64 {
        let Spans { heads, own, theirs, .. } = self.spans;
        let rows = x.chunks_exact(*own).zip(y.chunks_exact(*theirs)).zip(weights);
        let rows = rows.zip(grad.chunks_exact_mut(*own));
        let counted = rows.filter(|((_, weight), _)| **weight != 0.0);
        let sums = counted.map(|(((x, y), &weight), grad)| {
            let weight = f64::from(weight);
            let scale = self.weight * scale * weight;
            let of_head = |Span { kind, own, theirs, .. }: &Span| {
                let span = |from: usize| from..from + kind.logits();
                let (x, y, grad) = (&x[span(*own)], &y[span(*theirs)], &mut grad[span(*own)]);
                kind.divergence(self.direction, x, y, scale, grad)
            };
            weight * heads.iter().map(of_head).sum::<f64>()
        });
        sums.sum()
    }
}

/// Heads with labels.
#[derive(Debug, Clone)]
pub(crate) struct Spans {
    heads: Vec<Span>,
    /// Number of logits in a row of the learner.
    own: usize,
    /// Number of logits in a row of the other policy.
    theirs: usize,
    /// Entries in an action mask.
    mask: usize,
}

/// A head, with the offsets of its logits in a row of each policy and of its entries in an action mask.
#[derive(Debug, Clone, Copy)]
struct Span {
    kind: HeadKind,
    own: usize,
    theirs: usize,
    mask: usize,
}

impl Spans {
    pub(crate) fn new(own: &Heads, theirs: &Heads) -> Self {
        let choosing = |heads: &Heads| -> Vec<(HeadKind, usize, usize)> {
            let parts = heads.iter().filter(|part| part.head.kind.labels() > 0);
            parts.map(|part| (part.head.kind, part.logits, part.mask)).collect()
        };
        let pairs = choosing(own).into_iter().zip(choosing(theirs));
        let span = |((kind, own, mask), (_, theirs, _))| Span { kind, own, theirs, mask };
        Spans {
            heads: pairs.map(span).collect(),
            own: own.num_logits().max(1),
            theirs: theirs.num_logits().max(1),
            mask: own.mask_size(),
        }
    }

    /// Applies action masks `[n, mask_size]` to rows of logits of both policies.
    fn forbid(&self, x: &mut [f32], y: &mut [f32], mask: &[f32]) {
        let rows = x.chunks_exact_mut(self.own).zip(y.chunks_exact_mut(self.theirs));
        for ((x, y), mask) in rows.zip(mask.chunks_exact(self.mask.max(1))) {
            for Span { kind, own, theirs, mask: first } in &self.heads {
                let mask = &mask[*first..first + kind.mask_size()];
                forbid(&mut x[*own..own + kind.mask_size()], mask);
                forbid(&mut y[*theirs..theirs + kind.mask_size()], mask);
            }
        }
    }
}

fn fits(teacher: &Policy, spec: &Spec, options: &TrainOptions) -> Result<()> {
    let (its, own) = (teacher.spec(), spec);
    own.embedding.game().expect("game of the teacher", its.embedding.game())?;
    same_actions(&own.heads, &its.heads)?;
    if options.carries() {
        its.check_carried()?;
    }
    let Some(delay) = teacher.noted("frame_delay") else { return Ok(()) };
    let longest = teacher.noted("frame_delay_max").unwrap_or(delay);
    let wanted = (
        options.data.frame_delay,
        options.data.frame_delay_max.unwrap_or(options.data.frame_delay),
    );
    let range = |(low, high): (usize, usize)| format!("{low}..={high}");
    let got = (delay, longest);
    same(wanted == got, "frame delay of the teacher", range(wanted), range(got))
}

fn same_actions(own: &Heads, its: &Heads) -> Result<()> {
    let (wanted, got) = (action_space(own), action_space(its));
    same(wanted == got, "action space of the teacher", wanted, got)
}

fn same(same: bool, what: &str, expected: String, got: String) -> Result<()> {
    match same {
        true => Ok(()),
        false => Err(Error::mismatch(what, expected, got)),
    }
}

/// Names and kinds of the heads that have labels. The text is the same for autoregressive heads.
fn action_space(heads: &Heads) -> String {
    let part = |head: &Head| format!("{} {:?}", head.name, head.kind);
    heads.choosing().map(part).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use sconce_data::Batch;
    use sconce_nn::spec::{self, Embedding, HeadsKind};
    use sconce_tensor::rng::Rng;

    use super::*;
    use crate::options::DataOptions;

    fn teacher(direction: Direction) -> Teacher {
        let part = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 4 };
        let parts = vec![
            part("go", HeadKind::Bernoulli(2)),
            part("to", HeadKind::Categorical(3)),
            part("at", HeadKind::Categorical(2)),
        ];
        let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 4, prior: false };
        let backbone = spec::Backbone::Mlp(spec::MlpConfig {
            hidden_sizes: vec![4],
            layer_norm: false,
            residual: false,
            activation: Default::default(),
            dropout: 0.0,
            input_dropout: 0.0,
        });
        let spec = Spec { embedding: Embedding::vector(2), backbone, heads, critic: None };
        let policy = Policy::init(&spec, 1).unwrap();
        let companion = Companion::new(policy, NAME, String::new());
        let spans = Spans::new(&spec.heads, &spec.heads);
        Teacher { companion, spans, direction, weight: Factor::new(0.5) }
    }

    /// Log-probabilities of all actions: two bits, a head of three classes and a head of two.
    fn joint(x: &[f64]) -> Vec<f64> {
        let bit = |x: f64, on: bool| -(if on { -x } else { x }).exp().ln_1p();
        let class = |x: &[f64], i: usize| x[i] - x.iter().map(|v| v.exp()).sum::<f64>().ln();
        let mut all = vec![];
        for a in [false, true] {
            for b in [false, true] {
                for c in 0..3 {
                    for d in 0..2 {
                        let bits = bit(x[0], a) + bit(x[1], b);
                        all.push(bits + class(&x[2..5], c) + class(&x[5..7], d));
                    }
                }
            }
        }
        all
    }

    fn kl(direction: Direction, x: &[f64], y: &[f64]) -> f64 {
        let (p, q) = match direction {
            Direction::Forward => (joint(x), joint(y)),
            Direction::Reverse => (joint(y), joint(x)),
        };
        p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
    }

    #[test]
    fn the_divergence_and_its_gradient_are_those_of_the_joint_distributions() {
        const ROWS: usize = 6;
        let rng = Rng::new(3, "logits", 0);
        let x: Vec<f32> = (0..7 * ROWS as u64).map(|i| 3.0 * rng.normal(i)).collect();
        let y: Vec<f32> = (0..7 * ROWS as u64).map(|i| 3.0 * rng.normal(i + 1000)).collect();
        let weights = [1.0, 0.0, 2.0, 0.5, 1.0, 3.0];
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut grad = vec![10.0; x.len()];
            let sum = teacher(direction).pull().add(&x, &y, &weights, 0.25, &mut grad);
            let mut wanted = 0.0;
            for (row, &weight) in weights.iter().enumerate() {
                let row_of = |v: &[f32]| -> Vec<f64> {
                    v[7 * row..7 * row + 7].iter().map(|&v| v.into()).collect()
                };
                let (x, y) = (row_of(&x), row_of(&y));
                wanted += f64::from(weight) * kl(direction, &x, &y);
                for i in 0..7 {
                    let at = |h: f64| {
                        let mut x = x.clone();
                        x[i] += h;
                        kl(direction, &x, &y)
                    };
                    let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                    let want = 10.0 + 0.5 * 0.25 * f64::from(weight) * slope;
                    let got = f64::from(grad[7 * row + i]);
                    assert!((got - want).abs() < 2e-6, "{direction:?} {row} {i}: {got} {want}");
                }
            }
            assert!((sum - wanted).abs() < 1e-5 * wanted, "{direction:?}: {sum} is not {wanted}");
        }
    }

    /// Divergence of the distributions over the allowed bits and classes.
    fn masked_kl(direction: Direction, x: &[f64], y: &[f64], mask: &[f32]) -> f64 {
        let (x, y) = match direction {
            Direction::Forward => (x, y),
            Direction::Reverse => (y, x),
        };
        let bit = |i: usize| {
            let log = |x: f64, on: f64| -(-on * x).exp().ln_1p();
            let of = |on: f64| log(x[i], on).exp() * (log(x[i], on) - log(y[i], on));
            if mask[i] == 0.0 { 0.0 } else { of(1.0) + of(-1.0) }
        };
        let head = |span: std::ops::Range<usize>| {
            let allowed: Vec<usize> = span.filter(|i| mask[*i] != 0.0).collect();
            let sum = |x: &[f64]| allowed.iter().map(|i| x[*i].exp()).sum::<f64>().ln();
            let (log_x, log_y) = (sum(x), sum(y));
            let of = |i: &usize| {
                let (p, q) = (x[*i] - log_x, y[*i] - log_y);
                p.exp() * (p - q)
            };
            allowed.iter().map(of).sum::<f64>()
        };
        bit(0) + bit(1) + head(2..5) + head(5..7)
    }

    #[test]
    fn with_masks_the_divergence_is_that_among_the_allowed_actions() {
        const ROWS: usize = 4;
        let rng = Rng::new(3, "logits", 0);
        let x: Vec<f32> = (0..7 * ROWS as u64).map(|i| 2.0 * rng.normal(i)).collect();
        let y: Vec<f32> = (0..7 * ROWS as u64).map(|i| 2.0 * rng.normal(i + 1000)).collect();
        let one = [1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
        let mask = [one, [1.0; 7], [0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0], one].concat();
        let batch = Batch {
            weights: vec![1.0, 2.0, 1.0, 0.0],
            beside: vec![(Extra::Played(Played::Mask), mask.clone())],
            ..Batch::default()
        };
        for direction in [Direction::Forward, Direction::Reverse] {
            let teacher = teacher(direction);
            let whole = teacher.denominators(&batch, None).unwrap();
            // The first row is not among these.
            let rows = Rows { logits: &x[7..], companion: &y[7..], batch: &batch, range: 1..ROWS };
            let mut gradient = vec![9.0; 21];
            let sums = teacher.rows(&rows, &whole, Some(&mut gradient)).unwrap();
            let wide = |v: &[f32]| v.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
            let mut wanted = 0.0;
            for row in 1..ROWS {
                let span = 7 * row..7 * row + 7;
                let (x, y, mask) = (wide(&x[span.clone()]), wide(&y[span.clone()]), &mask[span]);
                let weight = f64::from(batch.weights[row]);
                wanted += weight * masked_kl(direction, &x, &y, mask);
                for i in 0..7 {
                    let at = |h: f64| {
                        let mut x = x.clone();
                        x[i] += h;
                        masked_kl(direction, &x, &y, mask)
                    };
                    let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                    let want = 0.5 * whole.mean() * weight * slope;
                    let got = gradient[7 * (row - 1) + i];
                    assert!((f64::from(got) - want).abs() < 1e-6, "{direction:?}: {got} {want}");
                    assert!(mask[i] == 1.0 || got == 0.0, "{direction:?}: {got}");
                }
            }
            assert!((sums.0[0] - wanted).abs() < 1e-5 * wanted, "{} {wanted}", sums.0[0]);
        }
    }

    #[test]
    fn a_learner_equal_to_the_teacher_has_no_gradient_however_certain_both_are() {
        let x = [90.0, -90.0, 80.0, -80.0, 0.0, 0.25, -0.25];
        for direction in [Direction::Forward, Direction::Reverse] {
            let mut grad = [0.0; 7];
            assert_eq!(teacher(direction).pull().add(&x, &x, &[1.0], 1.0, &mut grad), 0.0);
            assert_eq!(grad, [0.0; 7]);
        }
    }

    #[test]
    fn a_teacher_of_another_game_action_space_or_delay_is_refused_with_both_named() {
        let teacher = teacher(Direction::Forward);
        let options = TrainOptions {
            data: DataOptions { frame_delay: 2, ..DataOptions::default() },
            ..TrainOptions::default()
        };
        let spec = teacher.companion.spec().clone();
        assert!(fits(teacher.companion.policy(), &spec, &options).is_ok());
        let other = Spec { embedding: Embedding::vector(3), ..spec.clone() };
        let error = fits(teacher.companion.policy(), &other, &options).unwrap_err().to_string();
        assert_eq!(error, "game of the teacher: expected vectors of 3, got vectors of 2");
        let mut other = spec.clone();
        other.heads.parts[1].kind = HeadKind::Categorical(4);
        let error = fits(teacher.companion.policy(), &other, &options).unwrap_err().to_string();
        assert!(error.starts_with("action space of the teacher: expected "), "{error}");

        let file = tempfile::tempdir().unwrap();
        let path = file.path().join("teacher.safetensors");
        teacher.companion.policy().save(&path, serde_json::json!({ "frame_delay": 1 })).unwrap();
        let error = fits(&Policy::load(&path).unwrap(), &spec, &options).unwrap_err().to_string();
        assert_eq!(error, "frame delay of the teacher: expected 2..=2, got 1..=1");
        let range = TrainOptions {
            data: DataOptions { frame_delay: 1, frame_delay_max: Some(3), ..options.data },
            ..options
        };
        assert!(fits(&Policy::load(&path).unwrap(), &spec, &range).is_err());
        let notes = serde_json::json!({ "frame_delay": 1, "frame_delay_max": 3 });
        teacher.companion.policy().save(&path, notes).unwrap();
        assert!(fits(&Policy::load(&path).unwrap(), &spec, &range).is_ok());
    }
}
