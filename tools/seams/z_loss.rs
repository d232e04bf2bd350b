//! The z-loss, which keeps logits small: `z_loss` times the mean of `log(sum e^x)^2` over the categorical heads
//! (Chowdhery et al. 2022, section 5).

use sconce_nn::spec::{HeadKind, Heads};
use sconce_tensor::{Device, Result};

use super::{Denominators, Figures, Objective, Rows, Setup, Sums};

struct ZLoss {
    heads: Heads,
    factor: f64,
}

/// The objective that the options of a run request, if any.
pub(crate) fn of(setup: &Setup<'_>) -> Result<Option<Box<dyn Objective>>> {
    let (heads, factor) = (setup.spec.heads.clone(), setup.options.objective.z_loss);
    Ok((factor > 0.0).then(|| Box::new(ZLoss { heads, factor }) as _))
}

impl Objective for ZLoss {
    fn name(&self) -> &'static str {
        "z_loss"
    }

    fn copy_on(&self, _device: &Device) -> Result<Box<dyn Objective>> {
        Ok(Box::new(ZLoss { heads: self.heads.clone(), factor: self.factor }))
    }

    fn rows(&self, rows: &Rows<'_>, whole: &Denominators, gradient: Option<&mut [f32]>) -> Result<Sums> {
        let width = self.heads.num_logits();
        let mut scratch = vec![0.0; if gradient.is_some() { 0 } else { rows.logits.len() }];
        let gradient = gradient.unwrap_or(&mut scratch);
        gradient.fill(0.0);
        let mut sum = 0.0;
        let all = rows.logits.chunks_exact(width).zip(gradient.chunks_exact_mut(width));
        for ((logits, gradient), weight) in all.zip(rows.weights()) {
            for part in self.heads.iter() {
                let HeadKind::Categorical(classes) = part.head.kind else { continue };
                let own = part.logits..part.logits + classes;
                let exponentials = || logits[own.clone()].iter().map(|&x| f64::from(x).exp());
                let total: f64 = exponentials().sum();
                let log = total.ln();
                let weight = f64::from(*weight);
                sum += weight * log * log;
                let pull = 2.0 * self.factor * weight * whole.mean() * log / total;
                for (gradient, e) in gradient[own.clone()].iter_mut().zip(exponentials()) {
                    *gradient = (pull * e) as f32;
                }
            }
        }
        Ok(Sums(vec![sum]))
    }

    fn finish(&self, sums: &Sums, whole: &Denominators) -> Result<Figures> {
        let mean = whole.mean() * sums.0.iter().sum::<f64>();
        let named = [("z_loss".to_string(), mean)].into_iter().collect();
        Ok(Figures { total: self.factor * mean, named, ..Figures::default() })
    }
}

#[cfg(test)]
mod tests {
    use sconce_data::Batch;
    use sconce_nn::spec::HeadsKind;

    use super::*;

    #[test]
    fn the_gradient_agrees_with_finite_differences() {
        let heads = Heads::controller(HeadsKind::Independent);
        let logits: Vec<f32> = (0..heads.num_logits()).map(|i| (i as f32 * 0.7).sin()).collect();
        let loss = ZLoss { heads, factor: 0.3 };
        let batch = Batch { weights: vec![1.0], ..Batch::default() };
        let whole = Denominators::of(&batch.weights).unwrap();
        let of = |logits: &[f32], gradient: Option<&mut [f32]>| {
            let rows = Rows { logits, companions: vec![], batch: &batch, range: 0..1 };
            loss.finish(&loss.rows(&rows, &whole, gradient).unwrap(), &whole).unwrap().total
        };
        let mut gradient = vec![9.0; logits.len()];
        of(&logits, Some(&mut gradient));
        for i in 0..logits.len() {
            let at = |h: f32| {
                let mut moved = logits.clone();
                moved[i] += h;
                of(&moved, None)
            };
            let slope = (at(1e-2) - at(-1e-2)) / 2e-2;
            assert!((slope - f64::from(gradient[i])).abs() < 1e-4, "{i}: {} {slope}", gradient[i]);
        }
    }
}
