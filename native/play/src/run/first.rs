//! The first policy of a run, its statistics, and the size of a rollout.

use std::path::Path;

use sconce_env::EnvOptions;
use sconce_nn::{Policy, Spec};
use sconce_tensor::{Error, Result};

use super::Task;
use crate::options::{Initialisation, PpoOptions};
use crate::rollout::{Player, Rollout};
use crate::statistics::Statistics;

/// The policy that a new run begins with.
pub(super) fn first_policy(spec: &Spec, options: &PpoOptions) -> Result<Policy> {
    if options.rollout.normalise_observations && spec.embedding.net().is_some() {
        let expected = "observations that no network reads";
        let got = "embedding: {:net, spec}";
        return Err(Error::mismatch("normalise_observations", expected, got));
    }
    let new = match options.weights.initialisation {
        Initialisation::Orthogonal => Policy::init_orthogonal(spec, options.machine.seed),
        Initialisation::Default => Policy::init(spec, options.machine.seed),
    }?;
    let Some(path) = &options.weights.policy else { return Ok(new) };
    if options.rollout.normalise_observations {
        let got = "a policy, whose weights have learned from other numbers";
        return Err(Error::mismatch("normalise_observations", "a run with new weights", got));
    }
    begun(&new, path)
}

/// The policy whose weights are those of a file where names and shapes agree, and otherwise new: a policy that was
/// learned from examples has no value.
///
/// # Errors
/// `Mismatch` for a file with another backbone or other heads.
fn begun(new: &Policy, path: &Path) -> Result<Policy> {
    let old = Policy::load(path)?;
    let (own, its) = (new.spec(), old.spec());
    let choosing = |spec: &Spec| spec.heads.choosing().cloned().collect::<Vec<_>>();
    let same = own.backbone == its.backbone
        && choosing(own) == choosing(its)
        && own.heads.kind == its.heads.kind;
    if !same {
        let what = format!("backbone and heads of {}", path.display());
        return Err(Error::mismatch(what, "those of the run", "others"));
    }
    // Weights that have learned from normalised frames have no meaning on others.
    if own.embedding != its.embedding {
        let what = format!("embedding of {}", path.display());
        let (expected, got) = (format!("{:?}", own.embedding), format!("{:?}", its.embedding));
        return Err(Error::mismatch(what, expected, got));
    }
    let mut weights = new.weights().clone();
    for (name, weight) in old.weights() {
        if weights.get(name).is_some_and(|own| own.dims() == weight.dims()) {
            weights.insert(name.clone(), weight.clone());
        }
    }
    // Linear heads are one matrix, whose last row is the value. One of both policies may have no such row.
    for name in ["heads.logits.weight", "heads.logits.bias"] {
        if let (Some(own), Some(its)) = (new.weights().get(name), old.weights().get(name))
            && own.dims() != its.dims()
        {
            let rows = its.dim(0)?.min(own.dim(0)?);
            let rest = own.detach().narrow(0, rows, own.dim(0)? - rows)?;
            let its = its.detach().narrow(0, 0, rows)?;
            let all = sconce_tensor::Tensor::cat(&[&its, &rest], 0)?;
            weights.insert(name.into(), all.into());
        }
    }
    Policy::from_weights(own, weights)
}

/// Observes a rollout of the first policy in environments of another seed: otherwise the first update would see
/// observations on another scale than all later ones.
pub(super) fn first_statistics(
    statistics: &mut Statistics,
    task: Task<'_>,
    options: &PpoOptions,
    policy: &Policy,
) -> Result<()> {
    if !statistics.observes() || task.inbox.is_some() {
        return Ok(());
    }
    let env = task.world(options);
    let mut player = Player::new(&EnvOptions { seed: env.seed.wrapping_add(1), ..env }, policy)?;
    player.observe();
    let steps = options.rollout.rollout_steps;
    player.play(policy, Rollout { steps, stride: steps })?;
    statistics.observe(&player.take_observed()?)
}

/// Bytes of the segments of a rollout.
pub(super) fn rollout_bytes(policy: &Policy, options: &PpoOptions, rows: usize) -> Result<u64> {
    let (spec, rollout) = (policy.spec(), &options.rollout);
    let frame = spec.embedding.continuous_width()
        + spec.embedding.num_ids()
        + 2 * spec.heads.num_labels()
        + spec.heads.mask_size().div_ceil(size_of::<f32>())
        // Values, rewards, likelihoods, flags, advantages and targets.
        + 8;
    let memories = rollout.rollout_steps.div_ceil(rollout.sequence_length);
    let row = rollout
        .rollout_steps
        .saturating_mul(frame)
        .saturating_add(memories.saturating_mul(policy.state_size()?));
    // The next one is played while the policy learns from this one.
    let rollouts = 1 + u64::from(rollout.overlap);
    let numbers = rollouts.saturating_mul(rows as u64).saturating_mul(row as u64);
    Ok(numbers.saturating_mul(size_of::<f32>() as u64))
}
