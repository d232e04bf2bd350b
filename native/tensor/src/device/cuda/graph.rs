//! Work on a card that is recorded once and played again.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::CudaGraph;
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUgraphInstantiate_flags, CUstreamCaptureMode,
};
use candle_core::{CudaDevice, Device};

use super::card::{alone, attach, shrink, within_budget};
use crate::error::panic_message;
use crate::{Error, Result};

/// Candle walks and drops its graphs recursively.
const STACK_BYTES: usize = 64 << 20;

/// Graphs on their way from the thread that recorded them: one, so that it does not wait.
const RECORDED: usize = 1;

/// Work that is played with one call, however many launches it has.
///
/// Small constants that it reads are candle's, which keeps what was uploaded for the thread that recorded it, which
/// therefore waits for the end of the graph, and how strided operands lie for as long as this process lives.
pub struct Graph {
    graph: ManuallyDrop<CudaGraph>,
    keeper: ManuallyDrop<Keeper>,
}

struct Keeper {
    end: SyncSender<()>,
    thread: JoinHandle<()>,
}

// SAFETY: the driver lets any thread use a graph, one at a time, and this cannot be shared.
unsafe impl Send for Graph {}

/// A graph on its way from the thread that recorded it.
struct Recorded(Result<Option<CudaGraph>>);

// SAFETY: as for `Graph`.
unsafe impl Send for Recorded {}

impl Graph {
    /// Does `work(false)`, so that what it needs of libraries and of small constants is there, and then records what
    /// `work(true)` does on the card.
    ///
    /// What is recorded reads and writes memory that was there before, and nothing else outlives it; it reads nothing
    /// back. None of work that was done, but that the card did not let be recorded ([`refusals`]).
    pub fn record(
        card: &CudaDevice,
        work: impl FnMut(bool) -> Result<()> + Send,
    ) -> Result<Option<Self>> {
        let (told, recorded) = sync_channel(RECORDED);
        // Nothing is ever sent: its end is the message.
        let (end, ended) = sync_channel::<()>(0);
        let card = card.clone();
        let keep = move || {
            attach(&Device::Cuda(card.clone()));
            let recorded = catch_unwind(AssertUnwindSafe(|| record(&card, work)));
            let recorded = recorded.unwrap_or_else(|payload| {
                Err(Error::Panic { message: panic_message(payload.as_ref()) })
            });
            // Whoever asked waits for it.
            let _ = told.send(Recorded(recorded));
            let _ = ended.recv();
        };
        let thread = Builder::new().name("sconce-graph".into()).stack_size(STACK_BYTES);
        // SAFETY: the work is gone before the thread tells what came of it, for which this waits.
        let thread = unsafe { thread.spawn_unchecked(keep) };
        let unavailable = |reason: String| Error::Unavailable { what: "a thread".into(), reason };
        let thread = thread.map_err(|e| unavailable(e.to_string()))?;
        let Recorded(graph) = recorded.recv().map_err(|e| unavailable(e.to_string()))?;
        let keeper = Keeper { end, thread };
        match graph {
            Ok(Some(graph)) => {
                let graph = ManuallyDrop::new(graph);
                Ok(Some(Graph { graph, keeper: ManuallyDrop::new(keeper) }))
            }
            Ok(None) => {
                keeper.end();
                Ok(None)
            }
            Err(error) => {
                keeper.end();
                Err(error)
            }
        }
    }

    /// Plays it, behind all that the card has to do.
    pub fn play(&self) -> Result<()> {
        Ok(self.graph.launch().w()?)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: nobody sees them after this, and each is dropped once. What is played of it just now is played to its
        // end.
        let keeper = unsafe {
            ManuallyDrop::drop(&mut self.graph);
            ManuallyDrop::take(&mut self.keeper)
        };
        keeper.end();
    }
}

impl Keeper {
    fn end(self) {
        drop(self.end);
        // It has nothing to say any more.
        let _ = self.thread.join();
    }
}

/// Why work of this process was not recorded, each reason once.
pub fn refusals() -> Vec<String> {
    REFUSALS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

static REFUSALS: Mutex<Vec<String>> = Mutex::new(vec![]);

fn record(
    card: &CudaDevice,
    mut work: impl FnMut(bool) -> Result<()>,
) -> Result<Option<CudaGraph>> {
    let _constants = card.enable_cuda_graph_htod_cache();
    work(false)?;
    card.cuda_stream().synchronize().w()?;
    let device = Device::Cuda(card.clone());
    match alone(&device, || capture(card, || work(true))) {
        Ok(graph) => Ok(Some(graph)),
        Err(error) => {
            let mut refusals = REFUSALS.lock().unwrap_or_else(PoisonError::into_inner);
            let refusal = error.to_string();
            if !refusals.contains(&refusal) {
                refusals.push(refusal);
            }
            drop(refusals);
            // What it was to have.
            shrink(&device);
            Ok(None)
        }
    }
}

fn capture(card: &CudaDevice, work: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
    let stream = card.cuda_stream();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).w()?;
    let worked = catch_unwind(AssertUnwindSafe(work));
    // Whatever came of the work, the capture has to end: also where what it freed then was refused.
    let _ = stream.context().check_err();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    let _ = stream.context().check_err();
    worked.unwrap_or_else(|payload| resume_unwind(payload))?;
    let nothing = || candle_core::Error::Msg("nothing was recorded".into());
    let graph = graph.w()?.ok_or_else(nothing)?;
    // Takes its memory too.
    graph.upload().w()?;
    match within_budget(&Device::Cuda(card.clone())) {
        true => Ok(graph),
        false => Err(candle_core::Error::Msg("its memory is beyond the budget".into()).into()),
    }
}
