//! Outputs of environments, and observations as the frames of a policy.

use sconce_nn::Policy;
use sconce_nn::policy::Frames;
use sconce_tensor::Result;

/// Outputs of a step of the environments.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) ended: Vec<u32>,
    pub(crate) final_observations: Vec<f32>,
}

/// Observations as a batch of windows of one frame.
pub(crate) fn embedded(policy: &Policy, observations: &[f32], previous: &[f32]) -> Result<Frames> {
    let embedding = &policy.spec().embedding;
    let raw = embedding.raw_width().max(1);
    let (width, ids, n) =
        (embedding.continuous_width(), embedding.num_ids(), observations.len() / raw);
    let mut frames = Frames {
        batch: n,
        time: 1,
        continuous: vec![0.0; n * width],
        ids: vec![0; n * ids],
        previous: previous.to_vec(),
    };
    for (i, observation) in observations.chunks_exact(raw).enumerate() {
        let continuous = &mut frames.continuous[i * width..(i + 1) * width];
        embedding.embed(observation, true, continuous, &mut frames.ids[i * ids..(i + 1) * ids])?;
    }
    Ok(frames)
}
