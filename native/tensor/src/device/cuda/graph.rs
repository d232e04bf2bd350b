//! Work on a card that is recorded once and replayed.

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
use super::nodes::{HostCopy, host_copy};
use crate::error::panic_message;
use crate::trace::{self, Kind};
use crate::{Error, Result};

/// Stack size of the recording thread. Candle walks and drops its graphs recursively.
const STACK_BYTES: usize = 64 << 20;

/// Capacity of the channel for the recorded graph: one, so that the recording thread does not wait.
const RECORDED: usize = 1;

/// Recorded work that one call replays, regardless of its number of launches.
///
/// Candle owns the small constants that the work reads. Uploaded constants live as long as the thread that recorded
/// them, so that thread waits until the graph is dropped. Layouts of strided operands live as long as the process.
pub struct Graph {
    card: CudaDevice,
    graph: ManuallyDrop<CudaGraph>,
    keeper: ManuallyDrop<Keeper>,
}

struct Keeper {
    end: SyncSender<()>,
    thread: JoinHandle<()>,
}

// SAFETY: any one thread at a time may use a graph, and `Graph` is not `Sync`.
unsafe impl Send for Graph {}

/// A graph that the recording thread sends to the caller.
struct Recorded(Result<Option<CudaGraph>>);

// SAFETY: as for `Graph`.
unsafe impl Send for Recorded {}

impl Graph {
    /// Runs `work(false)`, which loads libraries and uploads constants, and then records the launches of `work(true)`.
    ///
    /// Recorded work accesses only memory that existed before, leaves no allocation behind, and copies nothing between
    /// the host and the card. Returns `None` if the recording was refused ([`refusals`]); the work of the first call is
    /// still done.
    pub fn record(
        card: &CudaDevice,
        work: impl FnMut(bool) -> Result<()> + Send,
    ) -> Result<Option<Self>> {
        let (told, recorded) = sync_channel(RECORDED);
        // No message is sent: dropping the sender is the signal.
        let (end, ended) = sync_channel::<()>(0);
        let own = card.clone();
        let card = card.clone();
        let keep = move || {
            attach(&Device::Cuda(card.clone()));
            let recorded = catch_unwind(AssertUnwindSafe(|| record(&card, work)));
            let recorded = recorded.unwrap_or_else(|payload| {
                Err(Error::Panic { message: panic_message(payload.as_ref()) })
            });
            // The caller waits for this message.
            let _ = told.send(Recorded(recorded));
            let _ = ended.recv();
        };
        let thread = Builder::new().name("sconce-graph".into()).stack_size(STACK_BYTES);
        // SAFETY: the closure has been dropped before the thread sends its result, and this function waits for that
        // result.
        let thread = unsafe { thread.spawn_unchecked(keep) };
        let unavailable = |reason: String| Error::Unavailable { what: "a thread".into(), reason };
        let thread = thread.map_err(|e| unavailable(e.to_string()))?;
        let Recorded(graph) = recorded.recv().map_err(|e| unavailable(e.to_string()))?;
        let keeper = Keeper { end, thread };
        match graph {
            Ok(Some(graph)) => {
                let graph = ManuallyDrop::new(graph);
                Ok(Some(Graph { card: own, graph, keeper: ManuallyDrop::new(keeper) }))
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

    /// Replays the work, after all work that is already queued on the stream.
    pub fn play(&self) -> Result<()> {
        let card = Device::Cuda(self.card.clone());
        let _span = trace::on_card(&card, Kind::Forward, "graph", 0);
        Ok(self.graph.launch().w()?)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: neither field is used after this, and each is dropped once. A replay in flight runs to its end.
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
        // The thread returns no value.
        let _ = self.thread.join();
    }
}

/// Reasons why work of this process was not recorded, without repeats.
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
            // Release the memory that the recording allocated.
            shrink(&device);
            Ok(None)
        }
    }
}

fn capture(card: &CudaDevice, work: impl FnOnce() -> Result<()>) -> Result<CudaGraph> {
    let stream = card.cuda_stream();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).w()?;
    let worked = catch_unwind(AssertUnwindSafe(work));
    // The capture has to end even if the work failed, and even if a free during the capture was refused.
    let _ = stream.context().check_err();
    let graph = stream.end_capture(CUgraphInstantiate_flags(0));
    let _ = stream.context().check_err();
    worked.unwrap_or_else(|payload| resume_unwind(payload))?;
    let nothing = || candle_core::Error::Msg("nothing was recorded".into());
    let graph = graph.w()?.ok_or_else(nothing)?;
    // SAFETY: no other thread has the graph.
    if let Some(copy) = unsafe { host_copy(graph.cu_graph()) }.w()? {
        return Err(candle_core::Error::Msg(reason(copy).into()).into());
    }
    // The upload also allocates the graph's memory.
    graph.upload().w()?;
    match within_budget(&Device::Cuda(card.clone())) {
        true => Ok(graph),
        false => Err(candle_core::Error::Msg("its memory exceeds the budget".into()).into()),
    }
}

/// Why a copy between the host and the card cannot be replayed.
fn reason(copy: HostCopy) -> &'static str {
    match copy {
        HostCopy::From => "it copies from memory of the host, which each replay would read again",
        HostCopy::To => "it copies to memory of the host, which each replay would write again",
    }
}
