//! Memory of the batches of a run.

use sconce_data::{LoaderOptions, Reader};
use sconce_nn::Spec;
use sconce_nn::spec::Embedding;

use crate::options::TrainOptions;
use crate::source::others;

/// Bytes of the batches of a run: the batch of the step, and batches that are prepared ahead, in each embedding.
#[derive(Debug, Clone)]
pub(super) struct Batches {
    /// Bytes of one window in the learner's embedding, and in each other one of its companions.
    windows: Vec<u64>,
    loader: LoaderOptions,
}

impl Batches {
    pub(super) fn new(spec: &Spec, companions: &[&Embedding], options: &TrainOptions) -> Self {
        let bytes = |embedding: &Embedding| {
            let (embedding, heads) = (embedding.clone(), spec.heads.clone());
            let reader = Reader::new(embedding, heads, options.data.frame_delay);
            reader.bytes(1, options.data.window_size)
        };
        let (others, _) = others(&spec.embedding, companions);
        let windows = [&spec.embedding].into_iter().chain(others).map(bytes).collect();
        Batches { windows, loader: options.loader() }
    }

    pub(super) fn of(&self, batch_size: usize) -> u64 {
        let all = self.windows.iter().map(|window| {
            let bytes = window.saturating_mul(batch_size as u64);
            bytes.saturating_mul(1 + self.loader.depth(bytes) as u64)
        });
        all.fold(0, u64::saturating_add)
    }
}
