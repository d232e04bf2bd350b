//! Choices from logits, which stay on the card.

use candle_core::{DType, Tensor};
use sconce_cuda::kernels::SAMPLING;

use super::launch::{Launch, suffix, unwritten};
use crate::Result;
use crate::rng::Rng;
use crate::sampling::Sampling;
use crate::spec::{HeadKind, Part};

/// Threads of a block.
const THREADS: usize = 64;

/// Choices of rows, head after head.
pub struct Choices<'a> {
    sampling: &'a Sampling,
    /// u32 `[n, num_labels]`, if there are any.
    previous: Option<Tensor>,
    /// Four words of each row's generator.
    generators: Tensor,
    /// u32 `[n, num_labels]`
    labels: Tensor,
}

impl<'a> Choices<'a> {
    /// Beside `x`, for rows with a generator each; `previous [n, num_labels]` or nothing.
    pub fn new(
        sampling: &'a Sampling,
        rngs: &[Rng],
        previous: &[u16],
        num_labels: usize,
        x: &Tensor,
    ) -> Result<Self> {
        let (rows, device) = (rngs.len(), x.device());
        let words: Vec<u32> = rngs.iter().flat_map(Rng::words).collect();
        let previous: Vec<u32> = previous.iter().map(|label| u32::from(*label)).collect();
        let before = || Tensor::from_slice(&previous, (rows, num_labels), device);
        Ok(Choices {
            sampling,
            previous: (previous.len() == rows * num_labels).then(before).transpose()?,
            generators: Tensor::from_slice(&words, (rows, 4), device)?,
            labels: Tensor::zeros((rows, num_labels), DType::U32, device)?,
        })
    }

    /// Chooses by the logits `[n, logits]` of a head. What the next head reads is of their shape: bits as numbers,
    /// a class one-hot.
    pub fn choose(&self, part: &Part<'_>, logits: &Tensor) -> Result<Tensor> {
        let (logits, sampling) = (logits.contiguous()?, self.sampling);
        let (rows, width) = logits.dims2()?;
        let flat = unwritten((rows, width), logits.dtype(), &logits)?;
        let classes = matches!(part.head.kind, HeadKind::Categorical(_));
        let launch = Launch::of(SAMPLING, &format!("sample_{}", suffix(&logits)), &logits)?;
        let launch = launch.tensor(&logits)?.option(self.previous.as_ref())?;
        let launch = launch.tensor(&self.generators)?.tensor(&self.labels)?.tensor(&flat)?;
        let launch = launch.int(rows).int(width).int(self.labels.dim(1)?).int(part.labels);
        let launch = launch.int(usize::from(classes)).float(sampling.temperature);
        let launch = launch.float(sampling.press_threshold).float(sampling.release_threshold);
        let flag = |launch: Launch, flag| launch.int(usize::from(flag));
        let launch = flag(flag(launch, sampling.deterministic), sampling.deterministic_buttons);
        // SAFETY: as sampling.cu says: a thread for each row.
        unsafe { launch.run([rows.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }?;
        Ok(flat)
    }

    /// All of them, `[n, num_labels]`: waits for the card.
    pub fn read(&self) -> Result<Vec<u16>> {
        let labels = self.labels.flatten_all()?.to_vec1::<u32>()?;
        Ok(labels.into_iter().map(|label| label as u16).collect())
    }
}
