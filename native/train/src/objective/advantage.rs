//! Advantage-weighted imitation (Peng et al. 2019, equation 10 and section 4): inputs whose return exceeds the
//! policy's estimate count for more.
//!
//! The loss is the imitation loss with each frame weighted by `min(exp(A / temperature), max_weight)`, plus the value
//! loss `(v - R)^2 / 2` times `value_weight`. R is the discounted return of the input that answers a frame, and `A = R
//! - v`. The weights are constants for the gradient, and nothing is divided by their sum.

use sconce_data::{Batch, Extra};
use sconce_nn::spec::{HeadKind, Heads};
use sconce_tensor::{Device, Error, Result};

use super::imitation::{Imitation, LabelledLogits, LossOptions};
use super::{Denominators, Figures, Objective, Rows, Setup, Sums};
use crate::options::TrainOptions;

/// Advantage-weighted imitation.
pub struct Advantage {
    imitation: Imitation,
    /// Index of the value among the logits of a row.
    value: usize,
    num_logits: usize,
    options: AdvantageOptions,
}

/// Weights of frames and of the value loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdvantageOptions {
    /// Divisor of an advantage in the exponent of a weight.
    pub temperature: f64,
    /// Largest weight.
    pub max_weight: f64,
    /// Factor on the value loss.
    pub value_weight: f64,
}

/// Number of sums beside those of the imitation loss: the squared error of the value, and the weights of frames.
const SUMS: usize = 2;

/// The objective of a run, if its options ask for it.
///
/// # Errors
/// `Mismatch` for heads without a value.
pub(super) fn of(setup: &Setup<'_>) -> Result<Option<Box<dyn Objective>>> {
    let options = &setup.options.objective;
    let Some(temperature) = options.advantage_temperature else { return Ok(None) };
    let loss = setup.options.loss.clone().with_press_rates(setup.press_rates);
    let (max_weight, value_weight) = (options.advantage_max_weight, options.value_weight);
    let options = AdvantageOptions { temperature, max_weight, value_weight };
    Ok(Some(Box::new(Advantage::new(&setup.spec.heads, &loss, options)?)))
}

/// Columns that the objective reads beside the labels.
pub(super) fn columns(options: &TrainOptions) -> Vec<Extra> {
    let discount = options.objective.discount as f32;
    let wanted = options.objective.advantage_temperature.map(|_| Extra::Return { discount });
    wanted.into_iter().collect()
}

impl Advantage {
    /// Imitation over `heads`, weighted by advantages.
    ///
    /// # Errors
    /// `Mismatch` for heads without a value.
    pub fn new(heads: &Heads, loss: &LossOptions, options: AdvantageOptions) -> Result<Self> {
        let value = heads.iter().find(|part| matches!(part.head.kind, HeadKind::Value(_)));
        let without = || Error::mismatch("heads", "a value (value_head: true)", "none");
        Ok(Advantage {
            imitation: Imitation::new(heads, loss)?,
            value: value.ok_or_else(without)?.logits,
            num_logits: heads.num_logits(),
            options,
        })
    }

    fn returns<'a>(&self, rows: &Rows<'a>) -> Result<&'a [f32]> {
        let column = rows.batch.column(|extra| matches!(extra, Extra::Return { .. }));
        let returns = rows.of(column.ok_or_else(|| Error::not_found("returns of a batch"))?);
        match returns.iter().find(|number| !number.is_finite()) {
            Some(&value) => Err(Error::NonFinite { what: "return".into(), value: value.into() }),
            None => Ok(returns),
        }
    }

    /// Returns `v - R` of each row (the estimate less the return), and the weight of its frame.
    fn errors<'a>(
        &self,
        rows: &Rows<'a>,
        returns: &'a [f32],
    ) -> impl Iterator<Item = (f64, f64)> + use<'a> {
        let (value, width) = (self.value, self.num_logits);
        let values = rows.logits.chunks_exact(width).map(move |row| f64::from(row[value]));
        let errors = values.zip(returns).map(|(value, expected)| value - f64::from(*expected));
        errors.zip(rows.weights().iter().map(|weight| f64::from(*weight)))
    }
}

impl Objective for Advantage {
    fn name(&self) -> &'static str {
        "advantage"
    }

    fn copy_on(&self, _device: &Device) -> Result<Box<dyn Objective>> {
        Ok(Box::new(Advantage { imitation: self.imitation.again(), ..*self }))
    }

    fn check(&self, batch: &Batch) -> Result<()> {
        self.imitation.check(batch)
    }

    fn two_passes(&self) -> bool {
        self.imitation.two_passes()
    }

    fn denominators(&self, batch: &Batch, first: Option<&Sums>) -> Result<Denominators> {
        self.imitation.denominators(batch, first)
    }

    fn rows(
        &self,
        rows: &Rows<'_>,
        whole: &Denominators,
        mut gradient: Option<&mut [f32]>,
    ) -> Result<Sums> {
        let returns = self.returns(rows)?;
        let weigh = |(error, weight): (f64, f64)| {
            let AdvantageOptions { temperature, max_weight, .. } = self.options;
            let weighed = weight * (-error / temperature).exp().min(max_weight);
            // The lower bound keeps a frame of nonzero weight in the batch: rows of weight 0 are skipped.
            if weight > 0.0 { (weighed as f32).max(f32::MIN_POSITIVE) } else { 0.0 }
        };
        let weights: Vec<f32> = self.errors(rows, returns).map(weigh).collect();
        let labelled =
            LabelledLogits { logits: rows.logits, labels: rows.labels(), weights: Some(&weights) };
        let mut sums = self.imitation.pass(labelled, whole, gradient.as_deref_mut(), None)?;
        let squares: f64 =
            self.errors(rows, returns).map(|(error, weight)| weight * error * error).sum();
        sums.0.extend([squares, weights.iter().copied().map(f64::from).sum()]);
        if let Some(gradient) = gradient {
            let scale = self.options.value_weight * whole.mean();
            let rows = self.errors(rows, returns).zip(gradient.chunks_exact_mut(self.num_logits));
            rows.for_each(|((error, weight), row)| {
                row[self.value] = (scale * weight * error) as f32
            });
        }
        Ok(sums)
    }

    fn finish(&self, sums: &Sums, whole: &Denominators) -> Result<Figures> {
        let (imitation, own) = sums.0.split_at(sums.0.len().saturating_sub(SUMS));
        let [squares, weights] = [0, 1].map(|i| own.get(i).copied().unwrap_or(0.0) * whole.mean());
        let mut figures = self.imitation.finish(&Sums(imitation.to_vec()), whole)?;
        let value_loss = 0.5 * squares;
        figures.total += self.options.value_weight * value_loss;
        if !figures.total.is_finite() {
            let what = "loss of the value".into();
            return Err(Error::NonFinite { what, value: figures.total });
        }
        figures.named.insert("value_loss".into(), value_loss);
        figures.named.insert("advantage_weight".into(), weights);
        Ok(figures)
    }
}
