//! The mean of policies of one Spec.

use std::sync::Arc;

use sconce_nn::Policy;
use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::{Error, Result, tensor};

use crate::matrix::finite;

/// The weighted mean of the weights of policies of one Spec (Izmailov et al. 2018), in f64, on the CPU. The notes are
/// those of the first policy. Codes are read as numbers.
///
/// # Errors
/// `NotFound` without policies; `Mismatch` for another number of shares than policies, and for policies of other Specs
/// or with another frame delay; `OutOfRange` for shares below 0 and for a sum of 0; `NonFinite` for a weight.
pub fn averaged(policies: &[Arc<Policy>], shares: &[f64]) -> Result<Policy> {
    let first = policies.first().ok_or_else(|| Error::not_found("a policy"))?;
    if shares.len() != policies.len() {
        return Err(Error::mismatch(
            "weights",
            format!("{} numbers", policies.len()),
            shares.len(),
        ));
    }
    if let Some(share) = shares.iter().find(|share| !(share.is_finite() && **share >= 0.0)) {
        return Err(Error::out_of_range("weights", *share, 0.0, f64::MAX));
    }
    let total: f64 = shares.iter().sum();
    if !(total > 0.0 && total.is_finite()) {
        return Err(Error::out_of_range("sum of weights", total, f64::MIN_POSITIVE, f64::MAX));
    }
    for (i, policy) in policies.iter().enumerate() {
        alike(first, policy, i)?;
    }
    delays(policies)?;
    let mut weights = Weights::new();
    for (name, weight) in first.weights() {
        let mut sums = vec![0.0f64; weight.elem_count()];
        for (policy, share) in policies.iter().zip(shares) {
            let own = policy.weights().get(name);
            let own = own.ok_or_else(|| Error::not_found(format!("weight {name}")))?;
            let values = tensor::to_vec(own)?;
            finite(name, &values)?;
            let share = share / total;
            sums.iter_mut().zip(&values).for_each(|(sum, v)| *sum += share * f64::from(*v));
        }
        let mean = sums.into_iter().map(|sum| sum as f32).collect();
        weights.insert(name.clone(), Weight::from(tensor::tensor(mean, weight.dims())?));
    }
    Ok(Policy::from_weights(first.spec(), weights)?.noting(first.notes().clone()))
}

/// Normalisers are part of the Spec: weights that were trained on numbers of another scale have no meaning together.
fn alike(first: &Policy, policy: &Policy, at: usize) -> Result<()> {
    let what = |of: &str| format!("{of} of policy {}", at + 1);
    if policy.spec() != first.spec() {
        let is_alike = policy.spec().is_alike(first.spec());
        let got = if is_alike { "other statistics of a normaliser" } else { "another Spec" };
        return Err(Error::mismatch(what("Spec"), "that of the first policy", got));
    }
    Ok(())
}

/// Policies whose notes have a frame delay have the same one.
fn delays(policies: &[Arc<Policy>]) -> Result<()> {
    let all = policies.iter().enumerate();
    let mut all = all.filter_map(|(i, policy)| Some((i, policy.noted("frame_delay")?)));
    let Some((_, wanted)) = all.next() else { return Ok(()) };
    match all.find(|(_, got)| *got != wanted) {
        None => Ok(()),
        Some((i, got)) => {
            Err(Error::mismatch(format!("frame_delay of policy {}", i + 1), wanted, got))
        }
    }
}
