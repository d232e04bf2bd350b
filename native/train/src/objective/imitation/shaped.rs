//! The imitation loss as an objective: over the heads of a policy, shard by shard.

use std::sync::{Mutex, OnceLock, PoisonError};

use sconce_data::Batch;
use sconce_nn::head::Pair;
use sconce_nn::spec::Heads;
use sconce_ops::form::is_for_kernels;
use sconce_tensor::{Device, Error, Result, Tensor, pool};

use super::card;
use super::options::{LossOptions, pos_weights};
use super::sums::{LabelledLogits, Loss};
use super::table::Table;
use super::term::{Term, check};
use crate::objective::{Denominators, Figures, Objective, OnCard, Rows, Setup, Sums};

/// Lower bound of the mean loss of a head by which `head_normalize` divides.
const NORMALISER_FLOOR: f64 = 0.1;

/// Rows whose labels one thread checks.
const CHECKED: usize = 1024;

/// Number of sums of a head: loss, loss times the weight of its row, and entropy.
const SUMS: usize = 3;

/// The imitation loss over the heads of a policy. Its [`Sums`] are `[heads, 3]`: loss, weighted loss and entropy. Its
/// own [`Denominators`] are the scales of the heads.
#[derive(Debug)]
pub struct Imitation {
    pub(super) terms: Vec<Term>,
    pub(super) num_logits: usize,
    pub(super) num_labels: usize,
    head_normalize: bool,
    entropy_weight: f64,
    clamp: f32,
    on_card: OnceLock<card::Loss>,
}

/// The imitation loss of a run, unless its frames are weighted by advantages.
///
/// # Errors
/// `Mismatch` for a head that would never learn.
pub(crate) fn of(setup: &Setup<'_>) -> Result<Option<Box<dyn Objective>>> {
    if setup.options.objective.advantage_temperature.is_some() {
        return Ok(None);
    }
    if let Some(head) = setup.spec.heads.parts.iter().find(|head| head.kind.labels() == 0) {
        let (what, expected) = (format!("heads.{}", head.name), "an advantage_temperature with it");
        return Err(Error::mismatch(what, expected, "imitation alone, which never trains it"));
    }
    let options = setup.options.loss.clone().with_press_rates(setup.press_rates);
    Ok(Some(Box::new(Imitation::new(&setup.spec.heads, &options)?)))
}

impl Imitation {
    /// Makes the loss over `heads`, and checks the options.
    pub fn new(heads: &Heads, options: &LossOptions) -> Result<Self> {
        check_heads(heads)?;
        options.check()?;
        let bits = heads.parts.iter().map(|head| head.kind.bits()).sum();
        let pos_weight = pos_weights(&options.pos_weight, bits)?;
        let mut rest = pos_weight.as_slice();
        let terms = heads.iter().map(|part| {
            let own = rest.split_off(..part.head.kind.bits()).unwrap_or_default();
            Term::new(part, options, own.to_vec())
        });
        Ok(Imitation {
            terms: terms.collect(),
            num_logits: heads.num_logits(),
            num_labels: heads.num_labels(),
            head_normalize: options.head_normalize,
            entropy_weight: f64::from(options.entropy_weight),
            clamp: options.clamp,
            on_card: OnceLock::new(),
        })
    }

    /// A copy for another device: its tensors are placed on the device of its first use.
    pub(in crate::objective) fn again(&self) -> Self {
        let Imitation { num_logits, num_labels, head_normalize, entropy_weight, clamp, .. } = *self;
        let (terms, on_card) = (self.terms.clone(), OnceLock::new());
        Imitation { terms, num_logits, num_labels, head_normalize, entropy_weight, clamp, on_card }
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
            // A head without a kernel gets -1, which is never launched, see `on_card`.
            let kind = term.kind.on_card().unwrap_or(-1);
            let places = [term.logits.start, term.logits.len(), term.labels.start];
            table.places.push(kind);
            table.places.extend(places.map(|place| place as i32));
            let terms = [term.smoothing, term.gamma, term.edge.unwrap_or(1.0)];
            let bounds = [term.kind.least(), term.kind.largest()];
            table.terms.push(term.scale);
            table.terms.extend(terms.map(|number| number as f32));
            table.terms.extend(bounds);
            let weights = table.pos_weights[term.logits.clone()].iter_mut();
            weights.zip(&term.pos_weight).for_each(|(to, weight)| *to = *weight);
        }
        table
    }

    /// Refuses labels that are invalid for their head, in rows of nonzero weight. A pass over the rows makes the same
    /// check.
    pub fn check_labels(&self, labels: &[f32], weights: &[f32]) -> Result<()> {
        let width = self.num_labels.max(1);
        let shards: Vec<_> = labels.chunks(CHECKED * width).zip(weights.chunks(CHECKED)).collect();
        let wrong = Mutex::new(None);
        pool::hand_out(shards, |shard, (labels, weights)| {
            if let Err(error) = self.check_rows(labels, weights) {
                let mut wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner);
                // The error of the first row, however the shards are scheduled.
                if wrong.as_ref().is_none_or(|(first, _)| shard < *first) {
                    *wrong = Some((shard, error));
                }
            }
        });
        let wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
        wrong.map_or(Ok(()), |(_, error)| Err(error))
    }

    fn check_rows(&self, labels: &[f32], weights: &[f32]) -> Result<()> {
        let rows = labels.chunks_exact(self.num_labels.max(1)).zip(weights);
        for (labels, _) in rows.filter(|(_, weight)| **weight != 0.0) {
            for term in &self.terms {
                check(&term.name, term.kind, &labels[term.labels.clone()])?;
            }
        }
        Ok(())
    }

    /// Computes the loss from the sums of all shards. A loss that is not finite is an error that names the head.
    pub fn loss(&self, sums: &Sums, whole: &Denominators) -> Result<Loss> {
        let heads = || sums.0.as_chunks::<SUMS>().0.iter();
        let scaled = heads().zip(&whole.own).map(|([_, weighted, _], scale)| weighted * scale);
        let total = scaled.sum::<f64>();
        let entropy_bonus =
            heads().map(|[_, _, entropy]| entropy).sum::<f64>() * whole.inverse_rows;
        let value = total * whole.inverse_weight - self.entropy_weight * entropy_bonus;
        if !value.is_finite() {
            let mut named = self.terms.iter().zip(heads());
            let head = named.find(|(_, [_, weighted, _])| !weighted.is_finite());
            let what = head.map_or("loss".into(), |(term, _)| format!("loss of {}", term.name));
            return Err(Error::NonFinite { what, value });
        }
        let per_head = heads().map(|[loss, ..]| loss * whole.inverse_rows).collect();
        Ok(Loss { value, per_head, entropy_bonus, per_sample: Vec::new() })
    }

    /// Denominators of rows with these weights. With `head_normalize` the scales come from the means of the first
    /// pass.
    pub fn divisors(&self, weights: &[f32], first: Option<&Sums>) -> Result<Denominators> {
        let whole = Denominators::of(weights)?;
        let mut scales = vec![1.0; self.terms.len()];
        if self.head_normalize {
            let first = first.ok_or_else(|| {
                Error::mismatch("head_normalize", "the sums of a first pass", "none")
            })?;
            let count = weights.iter().filter(|weight| **weight != 0.0).count() as f64;
            let means = first.0.as_chunks::<SUMS>().0.iter().map(|[loss, ..]| loss / count);
            // The NLL of a density has no lower bound, so a head is not scaled by its mean.
            let heads = scales.iter_mut().zip(&self.terms).zip(means);
            for ((scale, _), mean) in heads.filter(|((_, term), _)| term.kind.classes() > 0) {
                *scale = 1.0 / mean.max(NORMALISER_FLOOR);
            }
        }
        Ok(whole.with(scales))
    }

    pub(in crate::objective) fn pass(
        &self,
        rows: LabelledLogits,
        whole: &Denominators,
        mut grad: Option<&mut [f32]>,
        mut per_sample: Option<&mut [f32]>,
    ) -> Result<Sums> {
        let n = self.check(&rows, grad.as_deref(), per_sample.as_deref())?;
        // If no gradient is requested, each row writes its gradient to scratch memory.
        let mut scratch = vec![0.0; if grad.is_none() { self.num_logits } else { 0 }];
        let mut sums = Sums(vec![0.0; SUMS * self.terms.len()]);
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
                sample = self.row(x, labels, weight, whole, grad, &mut sums)?;
            }
            if let Some(out) = &mut per_sample {
                out[i] = sample as f32;
            }
        }
        Ok(sums)
    }

    /// Writes the gradient of one row and adds the row to the sums. Returns its loss before frame weights.
    fn row(
        &self,
        x: &[f32],
        labels: &[f32],
        weight: f64,
        whole: &Denominators,
        grad: &mut [f32],
        sums: &mut Sums,
    ) -> Result<f64> {
        let mut sample = 0.0;
        for (h, term) in self.terms.iter().enumerate() {
            let (x, grad) = (&x[term.logits.clone()], &mut grad[term.logits.clone()]);
            let labels = &labels[term.labels.clone()];
            // In a first pass there are no scales yet.
            let scale = whole.own.get(h).copied().unwrap_or(1.0);
            let pull = Pair {
                loss: weight * scale * whole.inverse_weight,
                entropy: self.entropy_weight * whole.inverse_rows,
            };
            // The logits are clamped, so neither an exponential nor a sum of them overflows.
            let value = term.learn(x, labels, self.clamp, pull, grad)?;
            let [loss, weighted, entropy] = &mut sums.0.as_chunks_mut::<SUMS>().0[h];
            *loss += value.loss;
            *weighted += weight * value.loss;
            *entropy += value.entropy;
            sample += scale * value.loss;
        }
        Ok(sample)
    }

    /// Checks all lengths, which makes it safe to index rows, and returns the number of rows.
    pub(super) fn check(
        &self,
        rows: &LabelledLogits,
        grad: Option<&[f32]>,
        sample: Option<&[f32]>,
    ) -> Result<usize> {
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

    /// Refuses logits that are not finite: the clamp would hide an infinity.
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

impl Objective for Imitation {
    fn name(&self) -> &'static str {
        "imitation"
    }

    fn copy_on(&self, _device: &Device) -> Result<Box<dyn Objective>> {
        Ok(Box::new(self.again()))
    }

    fn check(&self, batch: &Batch) -> Result<()> {
        self.check_labels(&batch.labels, &batch.weights)
    }

    fn two_passes(&self) -> bool {
        self.head_normalize
    }

    fn denominators(&self, batch: &Batch, first: Option<&Sums>) -> Result<Denominators> {
        self.divisors(&batch.weights, first)
    }

    fn rows(
        &self,
        rows: &Rows<'_>,
        whole: &Denominators,
        gradient: Option<&mut [f32]>,
    ) -> Result<Sums> {
        let (logits, labels) = (rows.logits, rows.labels());
        let rows = LabelledLogits { logits, labels, weights: Some(rows.weights()) };
        self.pass(rows, whole, gradient, None)
    }

    fn finish(&self, sums: &Sums, whole: &Denominators) -> Result<Figures> {
        let Loss { value, per_head, .. } = self.loss(sums, whole)?;
        Ok(Figures { total: value, heads: per_head, ..Figures::default() })
    }

    fn on_card(&self, outputs: &Tensor) -> Result<Option<&dyn OnCard>> {
        let known = self.terms.iter().all(|term| term.kind.on_card().is_some());
        if !known || !is_for_kernels(outputs) {
            return Ok(None);
        }
        if let Some(loss) = self.on_card.get() {
            return Ok(Some(loss));
        }
        let loss = card::Loss::new(&self.table(), outputs)?;
        Ok(Some(self.on_card.get_or_init(|| loss)))
    }
}

/// Refuses empty heads. Heads of a Spec are already validated; heads from another source may be empty.
pub(crate) fn check_heads(heads: &Heads) -> Result<()> {
    match heads.parts.iter().find(|h| h.kind.logits() == 0) {
        Some(empty) => {
            Err(Error::out_of_range(format!("size of {}", empty.name), 0.0, 1.0, 65536.0))
        }
        None if heads.parts.is_empty() => Err(Error::not_found("a head")),
        None => Ok(()),
    }
}
