//! A frozen policy whose outputs an objective reads beside the learner's.

use sconce_nn::backbone::{Context, State};
use sconce_nn::policy::Frames;
use sconce_nn::{Policy, Spec};
use sconce_tensor::simd::non_finite;
use sconce_tensor::{Device, Error, Precision, Result, tensor};

/// A frozen policy that reads the batches of a run, such as a teacher.
pub struct Companion {
    policy: Policy,
    /// Name of the companion in errors.
    name: String,
    digest: String,
}

impl Companion {
    /// Makes a companion from a policy, its name in errors and the digest of its file.
    pub fn new(policy: Policy, name: String, digest: String) -> Self {
        Companion { policy, name, digest }
    }

    /// A copy on another device.
    pub(super) fn copy_on(&self, device: &Device) -> Result<Self> {
        let (name, digest) = (self.name.clone(), self.digest.clone());
        Ok(Companion { policy: self.policy.copy_on(device)?, name, digest })
    }

    /// The policy.
    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The Spec of the policy.
    pub fn spec(&self) -> &Spec {
        self.policy.spec()
    }

    /// Name of the policy in errors.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Digest of the policy's file, by which a resumed run recognises the policy.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The state before the first frame of `batch` games.
    pub fn zero_state(&self, batch: usize) -> Result<State> {
        self.policy.zero_state(batch)
    }

    /// Logits of some frames, `[b * t, num_logits]`, and the state after these frames. The state is valid only if
    /// `goes_on`.
    pub fn logits(
        &self,
        frames: &Frames,
        labels: &[f32],
        state: &State,
        goes_on: bool,
    ) -> Result<(Vec<f32>, State)> {
        // A companion computes in f32, whatever the precision of the learner.
        let context = Context::default().in_precision(Precision::F32);
        let context = if goes_on { context } else { context.forgetting() };
        let (logits, after) = self.policy.forward(frames, Some(labels), state, &context)?;
        let logits = tensor::to_vec(&logits)?;
        match non_finite(&logits) {
            Some(value) => {
                let what = format!("logit of the {}", self.name);
                Err(Error::NonFinite { what, value: value.into() })
            }
            None if goes_on => Ok((logits, after.hand_on()?)),
            None => Ok((logits, after)),
        }
    }
}
