//! Work on a card that is recorded once and played again.

use candle_core::CudaDevice;
use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::CudaGraph;
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUstreamCaptureMode,
};

use crate::Result;

/// Work that is played with one call, however many launches it has.
pub struct Graph(CudaGraph);

// SAFETY: the driver lets any thread use a graph, one at a time, and this cannot be shared.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `work` does on the card, after it was done once: what that needs of libraries and of small
    /// constants is there then. These are the thread's: a graph is not played after the end of the thread that
    /// recorded it.
    ///
    /// Work reads and writes memory that was there before, and nothing else outlives it; it reads nothing back.
    pub fn record(card: &CudaDevice, mut work: impl FnMut() -> Result<()>) -> Result<Self> {
        let _constants = card.enable_cuda_graph_htod_cache();
        work()?;
        let stream = card.cuda_stream();
        stream.synchronize().w()?;
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).w()?;
        let worked = work();
        // Whatever came of the work, the capture has to end.
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        worked?;
        let nothing = || candle_core::Error::Msg("nothing was recorded".into());
        let graph = graph.w()?.ok_or_else(nothing)?;
        graph.upload().w()?;
        Ok(Graph(graph))
    }

    /// Plays it, behind all that the card has to do.
    pub fn play(&self) -> Result<()> {
        Ok(self.0.launch().w()?)
    }
}
