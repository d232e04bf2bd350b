//! What a run on a card does not do.

use sconce_nn::Policy;
use sconce_nn::spec::Embedding;
use sconce_tensor::{Error, Result};

use super::Task;
use crate::options::PpoOptions;

/// Refuses a run on a card with something that only a CPU does.
///
/// # Errors
/// `Unavailable` with its name.
pub(super) fn check(task: Task<'_>, options: &PpoOptions, policy: &Policy) -> Result<()> {
    let (rollout, embedding) = (&options.rollout, &policy.spec().embedding);
    let only_on_a_cpu = [
        ("live games", task.inbox.is_some()),
        ("an environment of a module", task.host.is_some()),
        ("opponents and past_selves", options.has_league()),
        ("teacher", options.weights.teacher.is_some()),
        ("normalise_observations", rollout.normalise_observations),
        ("normalise_rewards", rollout.normalise_rewards),
        ("a policy with memory", !policy.zero_state(1)?.0.is_empty()),
        ("an embedding", *embedding != Embedding::vector(embedding.raw_width())),
    ];
    match only_on_a_cpu.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((name, _)) => Err(Error::Unavailable {
            what: format!("{name} with device {}", options.machine.device),
            reason: "learning from play does this on a CPU only (to mend it: device: :cpu)".into(),
        }),
    }
}
