//! The loss over the heads of a policy, shard by shard.

use sconce_nn::spec::{HeadKind, Heads};
use sconce_tensor::simd::exp;
use sconce_tensor::{Error, Result};

use super::options::{LossOptions, check_options, pos_weights};
use super::sums::{Denominators, LabelledLogits, Loss, Sums, weigh};
use super::term::{Pair, Term, clip, outside};

/// A head whose mean loss is below this is not scaled up any further by `head_normalize`.
const NORMALISER_FLOOR: f64 = 0.1;

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
    pub(super) terms: Vec<Term>,
    pub(super) num_logits: usize,
    pub(super) num_labels: usize,
    head_normalize: bool,
    entropy_weight: f64,
    clamp: f32,
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
    pub fn sums(&self, rows: LabelledLogits) -> Result<Sums> {
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
        rows: LabelledLogits,
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

    pub(super) fn pass(
        &self,
        rows: LabelledLogits,
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
