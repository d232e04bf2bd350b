//! The imitation loss: how far the logits of a batch are from the recorded inputs.
//!
//! Binary and softmax cross-entropy with label smoothing (Szegedy et al. 2016, section 7), the
//! focal factor (Lin et al. 2017, equation 4), weights of rare bits, of sticks near their edge and
//! of frames, and an entropy bonus. One pass over a row gives its loss and its gradient.
//!
//! A batch is cut into shards of [`SHARD_ROWS`] rows whose [`Sums`] are added in order, so any
//! number of threads gives the same bits:
//!
//! 1. [`Objective::sums`] of every shard, only if [`Objective::normalises`];
//! 2. [`Objective::denominators`] of the whole batch;
//! 3. [`Objective::backward`] of every shard, its sums added in order;
//! 4. [`Objective::finish`].

use std::ops::Range;

use sconce_core::ops::simd::exp;
use sconce_core::spec::{HeadKind, Heads};
use sconce_core::{Error, Result};
use serde::{Deserialize, Serialize};

/// Rows of a shard. Part of the result's last bits, so it is not an option.
pub const SHARD_ROWS: usize = 256;

/// A head whose mean loss is below this is not scaled up any further by `head_normalize`.
const NORMALISER_FLOOR: f64 = 0.1;

/// Heads that `stick_edge_weight` is about.
const STICK_HEADS: [&str; 2] = ["main_x", "main_y"];

/// What the loss adds up, and how. `Default` is the full stack that an app trains with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossOptions {
    /// Multiplies each bernoulli head.
    pub button_weight: f32,
    /// Whether a bernoulli head is the mean over its bits or their sum.
    pub bernoulli_reduction: Reduction,
    /// Multiplies the loss of a pressed bit.
    pub pos_weight: PosWeight,
    /// Probability taken from the true class and shared by the others. Never of bits, where
    /// together with `pos_weight` it teaches a policy to press what nobody presses.
    pub label_smoothing: f32,
    /// Exponent of the focal factor `(1 - p)^gamma`.
    pub focal_gamma: Option<f32>,
    pub focal_heads: FocalHeads,
    /// Weight of a `main_x` or `main_y` label at the edge; the centre has 1, between them a line.
    pub stick_edge_weight: Option<f32>,
    /// Multiplies the entropy, in nats, that is subtracted from the loss.
    pub entropy_weight: f32,
    /// Divides each head by its mean loss over the batch (not below 0.1), taken as a constant.
    pub head_normalize: bool,
    /// Logits are cut to this on both sides; beyond it the gradient is 0.
    pub clamp: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    Mean,
    Sum,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PosWeight {
    None,
    /// From the press rates of the training data; see [`LossOptions::with_press_rates`].
    Auto,
    /// One weight per bit, bernoulli heads in order.
    Given(Vec<f32>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FocalHeads {
    All,
    /// For comparison with runs that had the factor on the bits alone.
    Bernoulli,
}

impl Default for LossOptions {
    fn default() -> Self {
        LossOptions {
            button_weight: 2.0,
            pos_weight: PosWeight::Auto,
            bernoulli_reduction: Reduction::Mean,
            label_smoothing: 0.1,
            focal_gamma: Some(3.0),
            stick_edge_weight: Some(2.0),
            entropy_weight: 0.01,
            ..LossOptions::plain()
        }
    }
}

impl LossOptions {
    /// The negative log-likelihood of the action in nats, and nothing else.
    pub fn plain() -> Self {
        LossOptions {
            button_weight: 1.0,
            bernoulli_reduction: Reduction::Sum,
            pos_weight: PosWeight::None,
            label_smoothing: 0.0,
            focal_gamma: None,
            focal_heads: FocalHeads::All,
            stick_edge_weight: None,
            entropy_weight: 0.0,
            head_normalize: false,
            clamp: 60.0,
        }
    }

    /// Puts numbers in the place of [`PosWeight::Auto`]; `rates` has one number per bit.
    pub fn with_press_rates(mut self, rates: &[f64]) -> Self {
        if self.pos_weight == PosWeight::Auto {
            self.pos_weight = PosWeight::Given(pos_weight_auto(rates));
        }
        self
    }
}

/// Weights of pressed bits: `sqrt((1 - r) / r)` within 1..30, where a rate r is at least 1e-4.
pub fn pos_weight_auto(rates: &[f64]) -> Vec<f32> {
    let weight = |r: &f64| ((1.0 - r.max(1e-4)) / r.max(1e-4)).sqrt().clamp(1.0, 30.0) as f32;
    rates.iter().map(weight).collect()
}

/// The loss of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    pub value: f64,
    /// Mean of each head over the rows: with its weights, without frame weights or normaliser.
    pub per_head: Vec<f64>,
    /// Mean entropy in nats, all heads added, a bernoulli head averaged over its bits.
    pub entropy_bonus: f64,
    /// All heads of each row added, before frame weights.
    pub per_sample: Vec<f32>,
}

/// Rows of a batch, or of one shard of it.
///
/// # Shapes
/// `logits [n, num_logits]`, `labels [n, num_labels]`, `weights [n]`. A row of weight 0 is not part
/// of the batch at all: burn-in and padding take no part in any mean, and their labels are not read.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    pub logits: &'a [f32],
    pub labels: &'a [u16],
    pub weights: Option<&'a [f32]>,
}

/// What a shard contributes.
#[derive(Debug, Clone, PartialEq)]
pub struct Sums {
    heads: Vec<f64>,
    weighted: Vec<f64>,
    entropy: f64,
}

impl Sums {
    /// Of `totals [heads, 3]`, each head's loss, weighted loss and entropy.
    pub fn of_totals(totals: &[f64]) -> Self {
        let mut sums = Sums::zero(0);
        for [loss, weighted, entropy] in totals.as_chunks().0 {
            sums.heads.push(*loss);
            sums.weighted.push(*weighted);
            sums.entropy += entropy;
        }
        sums
    }

    fn zero(heads: usize) -> Self {
        Sums { heads: vec![0.0; heads], weighted: vec![0.0; heads], entropy: 0.0 }
    }

    /// Adds another shard. The order of additions is part of the result.
    pub fn add(&mut self, other: &Sums) {
        self.heads.iter_mut().zip(&other.heads).for_each(|(a, b)| *a += b);
        self.weighted.iter_mut().zip(&other.weighted).for_each(|(a, b)| *a += b);
        self.entropy += other.entropy;
    }
}

/// What a shard has to know of the whole batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Denominators {
    inverse_weight: f64,
    inverse_rows: f64,
    head_scales: Vec<f64>,
}

/// What `loss.cu` is told of the heads.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// `[heads, 4]`: whether it is categorical, its first logit, how many it has, its first label
    pub places: Vec<i32>,
    /// `[heads, 4]`: scale, smoothing, gamma, weight of an edge
    pub terms: Vec<f32>,
    /// `[num_logits]`
    pub pos_weights: Vec<f32>,
    pub num_labels: usize,
    pub entropy_weight: f32,
    pub clamp: f32,
}

/// The loss over `heads`, with its options checked.
#[derive(Debug, Clone)]
pub struct Objective {
    terms: Vec<Term>,
    num_logits: usize,
    num_labels: usize,
    head_normalize: bool,
    entropy_weight: f64,
    clamp: f32,
}

/// One head and the options that concern it.
#[derive(Debug, Clone)]
struct Term {
    name: String,
    kind: HeadKind,
    logits: Range<usize>,
    labels: Range<usize>,
    /// Of a bernoulli head: button weight and reduction.
    scale: f32,
    pos_weight: Vec<f32>,
    smoothing: f64,
    gamma: f64,
    edge: Option<f64>,
}

/// Loss and entropy of one head in one row, or the factors of their gradients.
#[derive(Debug, Clone, Copy)]
struct Pair {
    loss: f64,
    entropy: f64,
}

impl Objective {
    pub fn new(heads: &Heads, options: &LossOptions) -> Result<Self> {
        check_heads(heads)?;
        check_options(options)?;
        let bits = heads.parts.iter().filter(|h| matches!(h.kind, HeadKind::Bernoulli(_)));
        let bits = bits.map(|h| h.kind.logits()).sum();
        let pos_weight = pos_weights(&options.pos_weight, bits)?;
        let mut rest = pos_weight.as_slice();
        let terms = heads.iter().map(|part| {
            let own = match part.head.kind {
                HeadKind::Bernoulli(n) => rest.split_off(..n).unwrap_or_default().to_vec(),
                HeadKind::Categorical(_) => Vec::new(),
            };
            Term::new(part, options, own)
        });
        Ok(Objective {
            terms: terms.collect(),
            num_logits: heads.num_logits(),
            num_labels: heads.num_labels(),
            head_normalize: options.head_normalize,
            entropy_weight: f64::from(options.entropy_weight),
            clamp: options.clamp,
        })
    }

    /// The heads, for kernels.
    pub fn table(&self) -> Table {
        let mut table = Table {
            places: vec![],
            terms: vec![],
            pos_weights: vec![1.0; self.num_logits],
            num_labels: self.num_labels,
            entropy_weight: self.entropy_weight as f32,
            clamp: self.clamp,
        };
        for term in &self.terms {
            let kind = i32::from(matches!(term.kind, HeadKind::Categorical(_)));
            let places = [term.logits.start, term.logits.len(), term.labels.start];
            table.places.push(kind);
            table.places.extend(places.map(|place| place as i32));
            let terms = [term.smoothing, term.gamma, term.edge.unwrap_or(1.0)];
            table.terms.push(term.scale);
            table.terms.extend(terms.map(|number| number as f32));
            let weights = table.pos_weights[term.logits.clone()].iter_mut();
            weights.zip(&term.pos_weight).for_each(|(to, weight)| *to = *weight);
        }
        table
    }

    /// That labels of rows that count are classes of their heads, as a pass over the rows would say.
    pub fn check_labels(&self, labels: &[u16], weights: &[f32]) -> Result<()> {
        let rows = labels.chunks_exact(self.num_labels.max(1)).zip(weights);
        for (labels, _) in rows.filter(|(_, weight)| **weight != 0.0) {
            for term in &self.terms {
                let max = term.kind.classes() - 1;
                let mut own = labels[term.labels.clone()].iter();
                if let Some(&label) = own.find(|label| usize::from(**label) > max) {
                    return Err(outside(&term.name, label, max));
                }
            }
        }
        Ok(())
    }

    /// Whether [`denominators`](Self::denominators) needs the sums of a first pass.
    pub fn normalises(&self) -> bool {
        self.head_normalize
    }

    /// Sums of one shard, without a gradient.
    pub fn sums(&self, rows: Rows) -> Result<Sums> {
        self.pass(rows, &Denominators::unit(self.terms.len()), None, None)
    }

    /// Weights over the whole batch, and with `head_normalize` the means of the first pass.
    pub fn denominators(
        &self,
        rows: usize,
        weights: Option<&[f32]>,
        first: Option<&Sums>,
    ) -> Result<Denominators> {
        let (count, total) = match weights {
            None => (rows, rows as f64),
            Some(w) if w.len() == rows => weigh(w)?,
            Some(w) => return Err(Error::mismatch("frame weights", rows, w.len())),
        };
        if count == 0 {
            return Err(Error::out_of_range("rows that count", 0.0, 1.0, f64::INFINITY));
        }
        let mut denominators = Denominators::unit(self.terms.len());
        denominators.inverse_weight = 1.0 / total;
        denominators.inverse_rows = 1.0 / count as f64;
        if self.head_normalize {
            let first = first.ok_or_else(|| {
                Error::mismatch("head_normalize", "the sums of a first pass", "none")
            })?;
            for (scale, sum) in denominators.head_scales.iter_mut().zip(&first.heads) {
                *scale = 1.0 / (sum / count as f64).max(NORMALISER_FLOOR);
            }
        }
        Ok(denominators)
    }

    /// Sums of one shard, and the gradient of the whole batch's loss with respect to its logits.
    pub fn backward(
        &self,
        rows: Rows,
        denominators: &Denominators,
        grad: &mut [f32],
        per_sample: Option<&mut [f32]>,
    ) -> Result<Sums> {
        self.pass(rows, denominators, Some(grad), per_sample)
    }

    /// The loss from the sums of all shards. A loss that is not finite is an error that names the head.
    pub fn finish(&self, sums: &Sums, denominators: &Denominators) -> Result<Loss> {
        let heads = sums.weighted.iter().zip(&denominators.head_scales);
        let total = heads.map(|(sum, scale)| sum * scale).sum::<f64>();
        let entropy_bonus = sums.entropy * denominators.inverse_rows;
        let value = total * denominators.inverse_weight - self.entropy_weight * entropy_bonus;
        if !value.is_finite() {
            let mut heads = self.terms.iter().zip(&sums.weighted);
            let head = heads.find(|(_, sum)| !sum.is_finite());
            let what = head.map_or("loss".into(), |(term, _)| format!("loss of {}", term.name));
            return Err(Error::NonFinite { what, value });
        }
        let per_head = sums.heads.iter().map(|s| s * denominators.inverse_rows).collect();
        Ok(Loss { value, per_head, entropy_bonus, per_sample: Vec::new() })
    }

    fn pass(
        &self,
        rows: Rows,
        denominators: &Denominators,
        mut grad: Option<&mut [f32]>,
        mut per_sample: Option<&mut [f32]>,
    ) -> Result<Sums> {
        let n = self.check(&rows, grad.as_deref(), per_sample.as_deref())?;
        // Without a gradient to fill, a row's exponentials still need a place.
        let mut scratch = vec![0.0; if grad.is_none() { self.num_logits } else { 0 }];
        let mut sums = Sums::zero(self.terms.len());
        for i in 0..n {
            let grad = match &mut grad {
                Some(g) => &mut g[i * self.num_logits..][..self.num_logits],
                None => scratch.as_mut_slice(),
            };
            let weight = rows.weights.map_or(1.0, |w| f64::from(w[i]));
            let mut sample = 0.0;
            if weight == 0.0 {
                grad.fill(0.0);
            } else {
                let x = &rows.logits[i * self.num_logits..][..self.num_logits];
                let labels = &rows.labels[i * self.num_labels..][..self.num_labels];
                sample = self.row(x, labels, weight, denominators, grad, &mut sums)?;
            }
            if let Some(out) = &mut per_sample {
                out[i] = sample as f32;
            }
        }
        Ok(sums)
    }

    /// One row: fills its gradient, adds to the sums, and gives its loss before frame weights.
    fn row(
        &self,
        x: &[f32],
        labels: &[u16],
        weight: f64,
        denominators: &Denominators,
        grad: &mut [f32],
        sums: &mut Sums,
    ) -> Result<f64> {
        // Of clamped logits neither an exponential nor a sum of them overflows.
        for (e, &v) in grad.iter_mut().zip(x) {
            *e = exp(clip(v, self.clamp));
        }
        let mut sample = 0.0;
        for (h, term) in self.terms.iter().enumerate() {
            let (x, grad) = (&x[term.logits.clone()], &mut grad[term.logits.clone()]);
            let labels = &labels[term.labels.clone()];
            let scale = denominators.head_scales[h];
            let pull = Pair {
                loss: weight * scale * denominators.inverse_weight,
                entropy: self.entropy_weight * denominators.inverse_rows,
            };
            let value = match term.kind {
                HeadKind::Bernoulli(_) => term.bernoulli(x, labels, self.clamp, pull, grad)?,
                HeadKind::Categorical(_) => term.categorical(x, labels, self.clamp, pull, grad)?,
            };
            sums.heads[h] += value.loss;
            sums.weighted[h] += weight * value.loss;
            sums.entropy += value.entropy;
            sample += scale * value.loss;
        }
        Ok(sample)
    }

    /// All lengths, so that the rows can be indexed; gives their number.
    fn check(&self, rows: &Rows, grad: Option<&[f32]>, sample: Option<&[f32]>) -> Result<usize> {
        let n = rows.labels.len() / self.num_labels.max(1);
        let length = |what: &str, expected: usize, got: usize| match expected == got {
            true => Ok(()),
            false => Err(Error::mismatch(what, expected, got)),
        };
        length("labels", n * self.num_labels, rows.labels.len())?;
        length("logits", n * self.num_logits, rows.logits.len())?;
        length("frame weights", n, rows.weights.map_or(n, <[f32]>::len))?;
        length("gradient", rows.logits.len(), grad.map_or(rows.logits.len(), <[f32]>::len))?;
        length("losses of rows", n, sample.map_or(n, <[f32]>::len))?;
        self.check_finite(rows.logits)?;
        Ok(n)
    }

    /// The clamp would hide an infinity.
    fn check_finite(&self, logits: &[f32]) -> Result<()> {
        const INFINITY: u32 = f32::INFINITY.to_bits();
        let largest = logits.iter().fold(0, |m: u32, v| m.max(v.to_bits() & 0x7FFF_FFFF));
        if largest < INFINITY {
            return Ok(());
        }
        let at = logits.iter().position(|v| !v.is_finite()).unwrap_or(0);
        let column = at % self.num_logits;
        let name = self.terms.iter().find(|t| t.logits.contains(&column));
        let name = name.map_or("?", |t| t.name.as_str());
        let value = logits.get(at).copied().unwrap_or(f32::NAN);
        Err(Error::NonFinite { what: format!("logit of {name}"), value: value.into() })
    }
}

impl Denominators {
    fn unit(heads: usize) -> Self {
        Denominators { inverse_weight: 1.0, inverse_rows: 1.0, head_scales: vec![1.0; heads] }
    }

    /// What a sum over weighted rows is multiplied by for their mean.
    pub(crate) fn mean(&self) -> f64 {
        self.inverse_weight
    }

    /// Those of a batch whose loss counts for `share`.
    pub fn times(&self, share: f64) -> Self {
        Denominators {
            inverse_weight: share * self.inverse_weight,
            inverse_rows: share * self.inverse_rows,
            head_scales: self.head_scales.clone(),
        }
    }

    /// As `loss.cu` has them.
    pub fn numbers(&self) -> Vec<f64> {
        let numbers = [self.inverse_weight, self.inverse_rows];
        numbers.into_iter().chain(self.head_scales.iter().copied()).collect()
    }
}

impl Term {
    fn new(part: sconce_core::spec::Part, options: &LossOptions, pos_weight: Vec<f32>) -> Self {
        let kind = part.head.kind;
        let bernoulli = matches!(kind, HeadKind::Bernoulli(_));
        let bits = match options.bernoulli_reduction {
            Reduction::Mean => kind.logits() as f32,
            Reduction::Sum => 1.0,
        };
        let focal = bernoulli || options.focal_heads == FocalHeads::All;
        let stick = STICK_HEADS.contains(&part.head.name.as_str());
        Term {
            name: part.head.name.clone(),
            kind,
            logits: part.logits..part.logits + kind.logits(),
            labels: part.labels..part.labels + kind.labels(),
            scale: options.button_weight / bits,
            pos_weight,
            smoothing: f64::from(options.label_smoothing),
            gamma: options.focal_gamma.filter(|_| focal).map_or(0.0, f64::from),
            edge: options.stick_edge_weight.filter(|_| stick).map(f64::from),
        }
    }

    /// Bits; `grad` comes in as `e^x`. With `z = x` for a released and `-x` for a pressed one, the
    /// loss is `softplus(z)` and `1 - p = sigmoid(z)`, neither of which cancels.
    fn bernoulli(
        &self,
        x: &[f32],
        bits: &[u16],
        clamp: f32,
        pull: Pair,
        grad: &mut [f32],
    ) -> Result<Pair> {
        let (mut loss, mut entropy) = (0.0, 0.0);
        let share = 1.0 / x.len() as f64;
        let (pull_loss, pull_entropy) = (pull.loss as f32, (pull.entropy * share) as f32);
        let gamma = self.gamma as f32;
        for (((&x, &bit), &weight), grad) in x.iter().zip(bits).zip(&self.pos_weight).zip(grad) {
            let (z, e, weight) = match bit {
                0 => (clip(x, clamp), *grad, self.scale),
                1 => (-clip(x, clamp), 1.0 / *grad, self.scale * weight),
                _ => return Err(outside(&self.name, bit, 1)),
            };
            let (miss, hit) = (e / (1.0 + e), 1.0 / (1.0 + e));
            let nll = e.ln_1p();
            let factor = weight * power(miss.into(), self.gamma) as f32;
            loss += f64::from(factor * nll);
            entropy += f64::from(nll - z * miss);
            let slope = pull_loss * factor * (miss + gamma * nll * hit);
            let slope = slope + pull_entropy * z * miss * hit;
            *grad = if x.abs() <= clamp { slope * if bit == 0 { 1.0 } else { -1.0 } } else { 0.0 };
        }
        Ok(Pair { loss, entropy: entropy * share })
    }

    /// One class; `grad` comes in as `e^x`. The loss is `S (1 - p)^gamma`, S the smoothed
    /// cross-entropy; with q = e / (sum of the others) for other classes and 0 for the true one,
    /// its gradient is `(1 - p)^gamma (p_j - target_j + gamma S (q_j - p_j))`.
    fn categorical(
        &self,
        x: &[f32],
        class: &[u16],
        clamp: f32,
        pull: Pair,
        grad: &mut [f32],
    ) -> Result<Pair> {
        let class = class.first().copied().unwrap_or(u16::MAX);
        let target = usize::from(class);
        if target >= x.len() {
            return Err(outside(&self.name, class, x.len() - 1));
        }
        // Summed without the true class, because 1 - p must not cancel.
        let own = f64::from(std::mem::replace(&mut grad[target], 0.0));
        let own_x = f64::from(clip(x[target], clamp));
        let (mut others, mut mean, mut all) = (0.0, 0.0, 0.0);
        for (e, &v) in grad.iter().zip(x) {
            let v = clip(v, clamp);
            others += e;
            mean += e * v;
            all += v;
        }
        let others = f64::from(others);
        let sum = own + others;
        let log_sum = sum.ln();
        let entropy = log_sum - (own * own_x + f64::from(mean)) / sum;

        let share = self.smoothing / (x.len() - 1).max(1) as f64;
        let extra = 1.0 - self.smoothing - share;
        let nll = log_sum - extra * own_x - share * f64::from(all);
        let factor = self.edge(target, x.len()) * power(others / sum, self.gamma);

        let focus = self.gamma * nll;
        let pull_loss = pull.loss * factor;
        let kept = pull_loss * (1.0 - focus) / sum;
        let moved = pull_loss * focus / others;
        let bonus = pull.entropy / sum;
        let offset = entropy - log_sum;
        let own_grad = own * (kept + bonus * (own_x + offset)) - pull_loss * (extra + share);
        let (rest, bonus, offset) = ((kept + moved) as f32, bonus as f32, offset as f32);
        let share = (pull_loss * share) as f32;
        for (e, &v) in grad.iter_mut().zip(x) {
            let slope = *e * (rest + bonus * (clip(v, clamp) + offset)) - share;
            *e = if v.abs() <= clamp { slope } else { 0.0 };
        }
        grad[target] = if x[target].abs() <= clamp { own_grad as f32 } else { 0.0 };
        Ok(Pair { loss: factor * nll, entropy })
    }

    fn edge(&self, target: usize, classes: usize) -> f64 {
        let centre = (classes - 1) as f64 / 2.0;
        match self.edge {
            Some(edge) => 1.0 + (edge - 1.0) * (target as f64 - centre).abs() / centre,
            None => 1.0,
        }
    }
}

fn clip(x: f32, clamp: f32) -> f32 {
    x.max(-clamp).min(clamp)
}

/// `base^gamma`; whole exponents, the usual ones, are a few multiplications.
fn power(base: f64, gamma: f64) -> f64 {
    match gamma {
        0.0 => 1.0,
        whole if whole.fract() == 0.0 => base.powi(whole as i32),
        other => base.powf(other),
    }
}

fn outside(head: &str, value: u16, max: usize) -> Error {
    Error::out_of_range(format!("label of {head}"), value.into(), 0.0, max as f64)
}

/// A Spec has been validated; heads that come without one may still be empty.
pub(crate) fn check_heads(heads: &Heads) -> Result<()> {
    match heads.parts.iter().find(|h| h.kind.logits() == 0) {
        Some(empty) => {
            Err(Error::out_of_range(format!("size of {}", empty.name), 0.0, 1.0, 65536.0))
        }
        None if heads.parts.is_empty() => Err(Error::not_found("a head")),
        None => Ok(()),
    }
}

fn check_options(options: &LossOptions) -> Result<()> {
    let within = |field: &str, value: f32, min: f32, max: f32| match value {
        v if v >= min && v <= max => Ok(()),
        _ => Err(Error::out_of_range(field, value.into(), min.into(), max.into())),
    };
    within("button_weight", options.button_weight, 0.0, f32::MAX)?;
    within("label_smoothing", options.label_smoothing, 0.0, 1.0)?;
    within("focal_gamma", options.focal_gamma.unwrap_or(0.0), 0.0, 100.0)?;
    within("stick_edge_weight", options.stick_edge_weight.unwrap_or(1.0), 0.0, f32::MAX)?;
    within("entropy_weight", options.entropy_weight, 0.0, f32::MAX)?;
    // The largest logit whose exponential is far from overflowing.
    within("clamp", options.clamp, 1e-3, 70.0)
}

fn pos_weights(option: &PosWeight, bits: usize) -> Result<Vec<f32>> {
    match option {
        PosWeight::None => Ok(vec![1.0; bits]),
        PosWeight::Auto => {
            Err(Error::mismatch("pos_weight", "numbers from the press rates", "auto"))
        }
        PosWeight::Given(w) if w.len() != bits => {
            Err(Error::mismatch("pos_weight", format!("{bits} numbers"), w.len()))
        }
        PosWeight::Given(w) => match w.iter().find(|v| !(v.is_finite() && **v >= 0.0)) {
            Some(&v) => Err(Error::out_of_range("pos_weight", v.into(), 0.0, f32::MAX.into())),
            None => Ok(w.clone()),
        },
    }
}

/// How many rows count, and their weight.
fn weigh(weights: &[f32]) -> Result<(usize, f64)> {
    match weights.iter().find(|w| !(w.is_finite() && **w >= 0.0)) {
        Some(&w) => Err(Error::out_of_range("frame weight", w.into(), 0.0, f32::MAX.into())),
        None => {
            let count = weights.iter().filter(|w| **w != 0.0).count();
            Ok((count, weights.iter().map(|&w| f64::from(w)).sum()))
        }
    }
}

/// Loss of a whole batch on one thread, with its gradient if `grad` is given.
///
/// # Shapes
/// `logits` and `grad` `[n, num_logits]`, `labels [n, num_labels]`, `frame_weights [n]`.
///
/// # Errors
/// `Mismatch` for lengths, `OutOfRange` for a label, a frame weight or an option, `NonFinite`.
pub fn imitation(
    heads: &Heads,
    logits: &[f32],
    labels: &[u16],
    frame_weights: Option<&[f32]>,
    options: &LossOptions,
    mut grad: Option<&mut [f32]>,
) -> Result<Loss> {
    let objective = Objective::new(heads, options)?;
    let batch = Rows { logits, labels, weights: frame_weights };
    let n = objective.check(&batch, grad.as_deref(), None)?;
    let first = if objective.normalises() { Some(sum_shards(&objective, batch)?) } else { None };
    let denominators = objective.denominators(n, frame_weights, first.as_ref())?;
    let mut per_sample = vec![0.0; n];
    let mut sums = Sums::zero(objective.terms.len());
    for (i, rows) in shards(&objective, batch).enumerate() {
        let width = objective.num_logits;
        let (from, count) = (i * SHARD_ROWS, rows.logits.len() / width);
        let grad = grad.as_deref_mut().map(|g| &mut g[from * width..][..count * width]);
        let per_sample = Some(&mut per_sample[from..][..count]);
        sums.add(&objective.pass(rows, &denominators, grad, per_sample)?);
    }
    Ok(Loss { per_sample, ..objective.finish(&sums, &denominators)? })
}

fn sum_shards(objective: &Objective, batch: Rows) -> Result<Sums> {
    let mut sums = Sums::zero(objective.terms.len());
    for rows in shards(objective, batch) {
        sums.add(&objective.sums(rows)?);
    }
    Ok(sums)
}

/// The batch in shards of [`SHARD_ROWS`] rows; lengths have been checked.
fn shards<'a>(objective: &Objective, batch: Rows<'a>) -> impl Iterator<Item = Rows<'a>> + use<'a> {
    let logits = batch.logits.chunks(SHARD_ROWS * objective.num_logits);
    let labels = batch.labels.chunks(SHARD_ROWS * objective.num_labels);
    logits.zip(labels).enumerate().map(move |(i, (logits, labels))| {
        let weights = batch.weights.map(|w| w.chunks(SHARD_ROWS).nth(i).unwrap_or_default());
        Rows { logits, labels, weights }
    })
}

/// Plain negative log-likelihood in nats of each head, bits summed, logits as they are.
///
/// # Shapes
/// `logits [n, num_logits]`, `labels [n, num_labels]` -> `out [n, heads]`
pub fn nll_rows(heads: &Heads, logits: &[f32], labels: &[u16], out: &mut [f32]) -> Result<()> {
    let objective = Objective::new(heads, &LossOptions::plain())?;
    let n = objective.check(&Rows { logits, labels, weights: None }, None, None)?;
    if out.len() != n * objective.terms.len() {
        return Err(Error::mismatch("NLL", n * objective.terms.len(), out.len()));
    }
    let rows = logits.chunks(objective.num_logits).zip(labels.chunks(objective.num_labels));
    for ((x, labels), out) in rows.zip(out.chunks_mut(objective.terms.len())) {
        for (term, out) in objective.terms.iter().zip(out) {
            let (x, labels) = (&x[term.logits.clone()], &labels[term.labels.clone()]);
            *out = nll(&term.name, term.kind, x, labels)? as f32;
        }
    }
    Ok(())
}

/// Nats of one head in one row; the slices have the head's lengths.
pub(crate) fn nll(name: &str, kind: HeadKind, x: &[f32], labels: &[u16]) -> Result<f64> {
    let max = kind.classes() - 1;
    if let Some(&label) = labels.iter().find(|l| usize::from(**l) > max) {
        return Err(outside(name, label, max));
    }
    Ok(match kind {
        HeadKind::Bernoulli(_) => x.iter().zip(labels).map(|(x, bit)| bit_nll(*x, *bit)).sum(),
        HeadKind::Categorical(_) => {
            let largest = x.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
            let sum: f64 = x.iter().map(|&v| f64::from(exp(v - largest))).sum();
            let own = labels.first().and_then(|l| x.get(usize::from(*l)));
            sum.ln() + f64::from(largest) - f64::from(own.copied().unwrap_or(f32::NAN))
        }
    })
}

fn bit_nll(x: f32, bit: u16) -> f64 {
    let z = if bit == 0 { x } else { -x };
    f64::from(z.max(0.0)) + f64::from(exp(-z.abs()).ln_1p())
}
