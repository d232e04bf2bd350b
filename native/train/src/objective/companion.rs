//! A frozen policy that looks on while another learns.

use sconce_nn::backbone::{Context, State};
use sconce_nn::policy::Frames;
use sconce_nn::{Policy, Spec};
use sconce_tensor::simd::non_finite;
use sconce_tensor::{Device, Error, Precision, Result, tensor};

/// A frozen policy that looks on: its outputs on the batches of a run stand beside the learner's.
pub struct Companion {
    policy: Policy,
    /// What errors call it.
    name: &'static str,
    digest: String,
}

impl Companion {
    pub fn new(policy: Policy, name: &'static str, digest: String) -> Self {
        Companion { policy, name, digest }
    }

    /// The same on another device.
    pub(super) fn copy_on(&self, device: &Device) -> Result<Self> {
        let (policy, digest) = (self.policy.copy_on(device)?, self.digest.clone());
        Ok(Companion { policy, digest, ..*self })
    }

    #[cfg(test)]
    pub(super) fn policy(&self) -> &Policy {
        &self.policy
    }

    pub fn spec(&self) -> &Spec {
        self.policy.spec()
    }

    /// Of its file, by which a resumed run knows it again.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    pub fn zero_state(&self, batch: usize) -> Result<State> {
        self.policy.zero_state(batch)
    }

    /// Its logits `[b * t, num_logits]` of some frames, and the state after them, for those who go on.
    pub fn logits(
        &self,
        frames: &Frames,
        labels: &[f32],
        state: &State,
        goes_on: bool,
    ) -> Result<(Vec<f32>, State)> {
        // Whatever the precision that is learned in.
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
