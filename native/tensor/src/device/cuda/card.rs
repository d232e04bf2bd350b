//! A card that this process has opened. The file is long because its streams, its pool and its workspace are guarded by
//! the same locks.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use candle_core::cuda_backend::cudarc::cublas::sys::cublasSetWorkspace_v2;
use candle_core::cuda_backend::cudarc::driver::sys::{CUdeviceptr, CUstreamCaptureStatus};
use candle_core::cuda_backend::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr, result,
};
use candle_core::cuda_backend::{CudaDevice, CudaStorageSlice, WrapErr};
use candle_core::{Device, DeviceLocation, Storage, Tensor};

use super::pool::Pool;
use crate::device::leaving::Leaving;
use crate::device::ledger;
use crate::device::memory::{self, Memory};
use crate::{Error, Result};

/// Bytes that a card with something of ours on it keeps beside that, for what a decision takes and gives back.
const CACHE: u64 = 256 << 20;

/// What cuBLAS works in, at most: as much as it would take itself, and a thousandth of a card.
const WORKSPACE: usize = 32 << 20;

/// A card, its memory and all streams on it.
///
/// 1. Its context stays: who opens it again finds what libraries made there.
/// 2. All tensors are taken from its pool, whose size is the budget. Other libraries of this process that take memory
///    in the order of a stream, and name no pool of their own, get theirs from it too.
/// 3. Where nothing of ours is on the card the pool keeps nothing of what was freed; beside policies and sessions
///    [`CACHE`], and all of it while a run is under way ([`Caching`]), whose next step wants the same again.
pub(super) struct Card {
    ordinal: usize,
    context: Arc<CudaContext>,
    /// None of a card whose driver has no pools.
    pool: Mutex<Option<Pool>>,
    streams: Mutex<Vec<Owned>>,
    caching: AtomicUsize,
    /// Whoever records work has it alone. What would spoil that is done [apart](Card::apart): what waits for all of the
    /// card, as libraries do when they begin and end, and what takes or frees memory of a stream that others may record.
    /// Nobody who has another of these locks waits for it.
    recording: RwLock<()>,
}

thread_local! {
    /// The cards whose `recording` this thread has, a bit each.
    static HELD: Cell<u64> = const { Cell::new(0) };
}

/// A stream and what libraries have of it. Once nothing of its owner's is left, whoever opens the card next owns it:
/// libraries and kernels are there already.
struct Owned {
    device: CudaDevice,
    /// How many hold the stream where nothing was done on it.
    alone: usize,
    /// None of one that is kept only for what candle has on it.
    workspace: Option<Workspace>,
}

impl Owned {
    /// All work on it is in the order of one stream, which cannot be recorded by one who is gone.
    fn new(context: &Arc<CudaContext>) -> candle_core::Result<Self> {
        let device = CudaDevice::new_with_stream(context.ordinal())?;
        // SAFETY: as above.
        unsafe { device.disable_event_tracking() };
        let workspace = Some(Workspace::of(&device, context)?);
        let alone = Arc::strong_count(&device.cuda_stream()) - 1;
        Ok(Owned { device, alone, workspace })
    }

    /// Tensors have the device, and with it its libraries.
    fn is_free(&self) -> bool {
        Arc::strong_count(&self.device.cublas_handle()) - 1 == 1
    }

    /// Of what is recorded candle keeps for ever how strided operands lie, a few bytes of each stream: one that was ended
    /// would stay for them, and the next would have its own.
    fn has_constants(&self) -> bool {
        Arc::strong_count(&self.device.cuda_stream()) - 1 > self.alone
    }
}

/// Memory in which cuBLAS works. Without it it would take more for each graph that has products.
struct Workspace {
    first: CUdeviceptr,
    context: Arc<CudaContext>,
}

impl Workspace {
    fn of(device: &CudaDevice, context: &Arc<CudaContext>) -> candle_core::Result<Self> {
        let bytes = (context.total_mem().w()? / 1024).min(WORKSPACE);
        context.bind_to_thread().w()?;
        // SAFETY: nobody reads it before it is written.
        let first = unsafe { result::malloc_sync(bytes) }.w()?;
        let workspace = Workspace { first, context: context.clone() };
        let handle = *device.cublas_handle().handle();
        // SAFETY: the handle ends before it, and is used in the order of its stream.
        unsafe { cublasSetWorkspace_v2(handle, first as *mut _, bytes) }.result().w()?;
        Ok(workspace)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: nobody works in it any more.
        let _ = unsafe { result::free_sync(self.first) };
    }
}

static CARDS: Mutex<Vec<Arc<Card>>> = Mutex::new(Vec::new());

/// Nothing that is behind these locks is left half-changed. An error becomes ours, which asks for the memory, after they
/// are open again.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn opened(known: impl Fn(&Card) -> bool) -> Option<Arc<Card>> {
    lock(&CARDS).iter().find(|card| known(card)).cloned()
}

fn of_device(device: &Device) -> Option<Arc<Card>> {
    let DeviceLocation::Cuda { gpu_id } = device.location() else { return None };
    opened(|card| card.ordinal == gpu_id)
}

impl Card {
    pub(super) fn of(ordinal: usize) -> Result<Arc<Card>> {
        Ok(Card::open(ordinal)?)
    }

    fn open(ordinal: usize) -> candle_core::Result<Arc<Card>> {
        let mut cards = lock(&CARDS);
        if let Some(card) = cards.iter().find(|card| card.ordinal == ordinal) {
            return Ok(card.clone());
        }
        let card = Arc::new(Card {
            ordinal,
            context: CudaContext::new(ordinal).w()?,
            pool: Mutex::default(),
            streams: Mutex::default(),
            caching: AtomicUsize::new(0),
            recording: RwLock::default(),
        });
        cards.push(card.clone());
        Ok(card)
    }

    /// A stream on it, on which all work of whoever owns it is done in order.
    pub(super) fn device(&self) -> Result<Device> {
        self.context.bind_to_thread().w()?;
        self.limit()?;
        let device = match self.free()? {
            Some(device) => device,
            None => self.another()?,
        };
        self.keep();
        Ok(Device::Cuda(device))
    }

    /// One that nobody owns any more.
    fn free(&self) -> candle_core::Result<Option<CudaDevice>> {
        let taken = {
            let mut streams = lock(&self.streams);
            let free = |(_, one): &(usize, &Owned)| one.is_free();
            let free = streams.iter().enumerate().filter(free);
            // One that is ready, if there is one.
            let at = free.max_by_key(|(_, one)| one.workspace.is_some()).map(|(at, _)| at);
            at.map(|at| streams.swap_remove(at))
        };
        let Some(mut one) = taken else { return Ok(None) };
        let device = one.device.clone();
        // What went wrong in the end is not its next owner's.
        let _ = device.cuda_stream().context().check_err();
        let given = match one.workspace {
            Some(_) => Ok(()),
            None => self
                .apart(|| Workspace::of(&device, &self.context))
                .map(|own| one.workspace = Some(own)),
        };
        lock(&self.streams).push(one);
        given.map(|()| Some(device))
    }

    fn another(&self) -> candle_core::Result<CudaDevice> {
        let another = self.apart(|| Owned::new(&self.context))?;
        let device = another.device.clone();
        lock(&self.streams).push(another);
        Ok(device)
    }

    /// Does work while nobody records.
    fn apart<R>(&self, work: impl FnOnce() -> R) -> R {
        self.holding(|| self.recording.read().unwrap_or_else(PoisonError::into_inner), work)
    }

    /// Records work, while nobody does theirs [apart](Card::apart).
    fn alone<R>(&self, work: impl FnOnce() -> R) -> R {
        self.holding(|| self.recording.write().unwrap_or_else(PoisonError::into_inner), work)
    }

    /// With what `take` gives, unless this thread has it already.
    fn holding<G, R>(&self, take: impl FnOnce() -> G, work: impl FnOnce() -> R) -> R {
        struct Back(u64);
        impl Drop for Back {
            fn drop(&mut self) {
                HELD.set(self.0);
            }
        }
        let (held, own) = (HELD.get(), 1 << (self.ordinal % 64));
        if held & own != 0 {
            return work();
        }
        let _taken = take();
        let _back = Back(held);
        HELD.set(held | own);
        work()
    }

    /// Ends streams that nobody owns, but for one, of which it waits for what its owner left, and for those that would
    /// not end.
    fn retire(&self) {
        let mut free: Vec<Owned> =
            lock(&self.streams).extract_if(.., |one| one.is_free()).collect();
        free.sort_by_key(|one| one.workspace.is_some());
        let Some(one) = free.pop() else { return };
        let _ = one.device.cuda_stream().synchronize();
        if !free.is_empty() {
            let _ = self.context.bind_to_thread();
            self.apart(|| {
                free.retain(Owned::has_constants);
                free.iter_mut().for_each(|one| one.workspace = None);
            });
        }
        lock(&self.streams).extend(free.into_iter().chain([one]));
    }

    /// Makes its pool, or another one of a budget that has changed, where nothing of ours is in the one before.
    fn limit(&self) -> Result<()> {
        let total = self.context.total_mem().w()?;
        let budget = memory::budget().of(total as u64);
        if !self.context.has_async_alloc() {
            return match budget {
                None => Ok(()),
                Some(_) => Err(Error::Unavailable {
                    what: format!("a limit for cuda:{}", self.ordinal),
                    reason: "its driver has no pools of memory".into(),
                }),
            };
        }
        Ok(self.make_pool(budget)?)
    }

    fn make_pool(&self, budget: Option<u64>) -> candle_core::Result<()> {
        match &*lock(&self.pool) {
            Some(pool) if pool.budget() == budget => return Ok(()),
            _ => (),
        }
        self.wait();
        let owned = !self.is_empty();
        let mut pool = lock(&self.pool);
        if let Some(pool) = &*pool
            && owned
            && pool.used().w()? > 0
        {
            return Ok(());
        }
        *pool = Some(Pool::new(self.context.cu_device(), budget).w()?);
        Ok(())
    }

    fn memory(&self) -> candle_core::Result<Memory> {
        let (free, total) = self.context.mem_get_info().w()?;
        let kept = ledger::kept(self.ordinal);
        let (budget, bytes) = match &*lock(&self.pool) {
            Some(pool) => (pool.budget(), [pool.used().w()?, pool.reserved().w()?]),
            None => (None, [kept.total(); 2]),
        };
        let memory = Memory::of_pool((total as u64, Some(free as u64)), budget, kept, bytes);
        Ok(Memory { runs: self.caching.load(Ordering::Acquire) > 0, ..memory })
    }

    /// Waits for all work of ours. A stream whose work is kept as a graph has none.
    fn wait(&self) {
        let streams: Vec<_> =
            lock(&self.streams).iter().map(|one| one.device.cuda_stream()).collect();
        let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let wait = |stream: &CudaStream| {
            if stream.capture_status().is_ok_and(|status| status == none) {
                // What fails there fails for its owner too.
                let _ = stream.synchronize();
            }
        };
        self.apart(|| streams.iter().for_each(|stream| wait(stream)));
    }

    /// Bytes that the pool does not give back when somebody waits for the card.
    fn kept(&self) -> u64 {
        if self.caching.load(Ordering::Acquire) > 0 {
            return u64::MAX;
        }
        if self.is_empty() { 0 } else { ledger::kept(self.ordinal).total() + CACHE }
    }

    /// Whether nothing of ours is on the card.
    fn is_empty(&self) -> bool {
        lock(&self.streams).iter().all(Owned::is_free)
    }

    fn keep(&self) {
        if let Some(pool) = &*lock(&self.pool) {
            // A driver that refuses gives back when it likes.
            let _ = pool.keep(self.kept());
        }
    }

    /// Gives back what nobody will want again, once something has left the card.
    fn settle(&self) {
        self.retire();
        self.keep();
        let keep = self.kept();
        let reserved = lock(&self.pool).as_ref().and_then(|pool| pool.reserved().ok());
        if reserved.is_some_and(|bytes| bytes > keep) {
            self.wait();
            if let Some(pool) = &*lock(&self.pool) {
                let _ = pool.trim(keep);
            }
        }
    }

    /// Gives back what was freed and a graph is not made of, if that is much.
    fn make_room(&self) {
        if let Some(pool) = &*lock(&self.pool) {
            let _ = pool.trim_own(ledger::kept(self.ordinal).total() + CACHE);
        }
    }

    fn within_budget(&self) -> bool {
        let pool = lock(&self.pool);
        let Some((pool, budget)) = pool.as_ref().and_then(|pool| Some((pool, pool.budget()?)))
        else {
            return true;
        };
        let within = || pool.reserved().is_ok_and(|bytes| bytes <= budget);
        within() || (pool.trim_own(0).is_ok() && within())
    }

    fn release(&self) -> candle_core::Result<u64> {
        self.wait();
        let pool = lock(&self.pool);
        let Some(pool) = &*pool else { return Ok(0) };
        let before = pool.reserved().w()?;
        pool.trim(0).w()?;
        Ok(before.saturating_sub(pool.reserved().w()?))
    }
}

/// The memory of a card. Makes no context there.
///
/// # Errors
/// `NoDevice` for one on which policies do not run.
pub fn memory(ordinal: usize) -> Result<Memory> {
    super::super::check(&[ordinal])?;
    match opened(|card| card.ordinal == ordinal) {
        Some(card) => Ok(card.memory()?),
        None => {
            let card = result::device::get(ordinal as i32).w()?;
            // SAFETY: the card is one that the driver has just given.
            let total = unsafe { result::device::total_mem(card) }.w()? as u64;
            let budget = memory::budget().of(total);
            Ok(Memory::of_pool((total, None), budget, ledger::kept(ordinal), [0, 0]))
        }
    }
}

/// Waits for all work of ours on a card and gives what is not in use there back to its driver: how many bytes.
///
/// # Errors
/// `NoDevice` for one on which policies do not run.
pub fn release(ordinal: usize) -> Result<u64> {
    super::super::check(&[ordinal])?;
    wait_for_leaving();
    match opened(|card| card.ordinal == ordinal) {
        Some(card) => Ok(card.release()?),
        None => Ok(0),
    }
}

/// Gives back what nobody will want again, once something may have left a card.
pub fn settle() {
    let cards = lock(&CARDS).clone();
    cards.iter().for_each(|card| card.settle());
}

/// [`release`], of the card of a device, if it is one.
pub fn shrink(device: &Device) -> u64 {
    let Some(card) = of_device(device) else { return 0 };
    wait_for_leaving();
    card.release().unwrap_or(0)
}

/// Has what this thread asks of the driver from now on be of the card of a device: much of it is told in no other way,
/// and candle says so only where it takes memory, launches or copies.
pub fn attach(device: &Device) {
    if let Some(card) = of_device(device) {
        // What fails here fails for what follows.
        let _ = card.context.bind_to_thread();
    }
}

/// Records work on a device, whose memory is given back before, while nobody spoils it.
pub(super) fn alone<R>(device: &Device, work: impl FnOnce() -> R) -> R {
    let Some(card) = of_device(device) else { return work() };
    card.make_room();
    card.alone(work)
}

/// Does on a device what takes, frees, reads or writes memory there, while nobody records the work of its stream: for
/// those who are not the only ones that use it, from any thread.
pub fn apart<R>(device: &Device, work: impl FnOnce() -> R) -> R {
    let Some(card) = of_device(device) else { return work() };
    let _ = card.context.bind_to_thread();
    card.apart(work)
}

/// Whether the card of a device has no more than it may.
pub(super) fn within_budget(device: &Device) -> bool {
    of_device(device).is_none_or(|card| card.within_budget())
}

/// Has cards reach each other's memory, as NCCL does where cards are one process's.
pub(super) fn share(devices: &[Device]) -> candle_core::Result<()> {
    let cards: Vec<_> = devices.iter().filter_map(of_device).collect();
    for card in &cards {
        let others = cards.iter().filter(|other| other.ordinal != card.ordinal);
        let others: Vec<_> = others.map(|other| other.context.cu_device()).collect();
        if let Some(pool) = &*lock(&card.pool) {
            pool.open_to(&others).w()?;
        }
    }
    Ok(())
}

/// Has the card of a device keep more beside what was entered in its ledger.
pub(in crate::device) fn grown(ordinal: usize) {
    if let Some(card) = opened(|card| card.ordinal == ordinal) {
        card.keep();
    }
}

/// The card of the present thread, by its memory, which was too little a moment ago.
pub(super) fn full() -> Option<(usize, Memory)> {
    let context = result::ctx::get_current().ok()??;
    let card = opened(|card| card.context.cu_ctx() == context)?;
    Some((card.ordinal, card.memory().ok()?))
}

/// While it lives, its card keeps what is freed there for what is taken next.
pub struct Caching(Option<Arc<Card>>);

impl Caching {
    pub fn on(device: &Device) -> Self {
        let card = of_device(device);
        if let Some(card) = &card {
            card.caching.fetch_add(1, Ordering::AcqRel);
            card.keep();
        }
        Caching(card)
    }
}

impl Drop for Caching {
    fn drop(&mut self) {
        if let Some(card) = &self.0 {
            card.caching.fetch_sub(1, Ordering::AcqRel);
            card.settle();
        }
    }
}

/// Drops what leaves the cards.
static THREAD: OnceLock<Leaving> = OnceLock::new();

/// Waits for all that is leaving, unless this thread has what that may wait for.
fn wait_for_leaving() {
    if HELD.get() != 0 {
        return;
    }
    if let Some(thread) = THREAD.get() {
        thread.wait();
    }
}

/// Drops what is on a device where that may take its time: on a card freeing waits for the driver, and the end of a
/// stream and of its libraries for the card. What that leaves free goes back to the driver.
pub fn leave<T: Send + 'static>(device: Device, gone: T) {
    let Some(card) = of_device(&device) else { return drop(gone) };
    THREAD.get_or_init(|| Leaving::start("sconce-card")).leave(move || {
        // Without it the driver would not know which card is meant.
        let _ = card.context.bind_to_thread();
        card.apart(|| drop((gone, device)));
        card.settle();
    });
}

/// Where the numbers of a tensor on a card lie, and how many bytes those are that lie there together.
pub(crate) fn place(tensor: &Tensor) -> Option<((usize, u64), u64)> {
    let DeviceLocation::Cuda { gpu_id } = tensor.device().location() else { return None };
    let (storage, _) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else { return None };
    let stream = storage.device.cuda_stream();
    fn of<T>(slice: &CudaSlice<T>, stream: &CudaStream) -> (u64, u64) {
        (slice.device_ptr(stream).0, slice.num_bytes() as u64)
    }
    macro_rules! of {
        ($($slice:ident)*) => {
            match &storage.slice {
                $(CudaStorageSlice::$slice(slice) => of(slice, &stream),)*
                _ => return None,
            }
        };
    }
    let (address, bytes) = of!(F32 F64 BF16 F16 I32 U32 I64 U8);
    Some(((gpu_id, address), bytes))
}
