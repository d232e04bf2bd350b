//! A card that this process has opened. The file is long because its streams, its pool and its workspace share locks.

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

/// Freed bytes that a card in use caches in addition to its long-lived tensors, for the next decision's allocations.
const CACHE: u64 = 256 << 20;

/// Upper bound of cuBLAS's workspace, in bytes: cuBLAS's default size. The workspace is also at most 1/1024 of the
/// card's memory.
const WORKSPACE: usize = 32 << 20;

/// A card, its memory and all streams on it.
///
/// 1. The context lives as long as the process: reopening the card finds the libraries' state in the context.
/// 2. All tensors are allocated from the card's pool, whose maximum size is the budget. Other libraries of this process
///    that allocate in stream order, and name no pool of their own, also use it.
/// 3. Freed memory that the pool caches: none while the process has no tensors on the card, [`CACHE`] bytes while
///    policies or sessions are there, everything during a run ([`Caching`]), whose next step allocates the same sizes
///    again.
pub(super) struct Card {
    ordinal: usize,
    context: Arc<CudaContext>,
    /// `None` if the driver has no memory pools.
    pool: Mutex<Option<Pool>>,
    streams: Mutex<Vec<Owned>>,
    caching: AtomicUsize,
    /// Held exclusively while work is recorded, and shared by operations that would invalidate the recording
    /// ([`Card::apart`]): those that synchronise the whole card, as libraries do when they are created and destroyed,
    /// and those that allocate or free memory of a stream that another thread may record. No thread waits for this lock
    /// while it holds one of the other locks.
    recording: RwLock<()>,
}

thread_local! {
    /// The cards whose `recording` lock this thread holds, one bit each.
    static HELD: Cell<u64> = const { Cell::new(0) };
}

/// A stream and the library state that belongs to it. Once its owner has no tensors left, the stream is reused for the
/// next opening of the card, because its libraries and kernels are already loaded.
struct Owned {
    device: CudaDevice,
    /// The number of references to a new stream, before any work.
    alone: usize,
    /// `None` for a stream that is kept only for candle's constants.
    workspace: Option<Workspace>,
}

impl Owned {
    /// Creates a stream. The owner submits all work in stream order; streams without an owner are not recorded.
    fn new(context: &Arc<CudaContext>) -> candle_core::Result<Self> {
        let device = CudaDevice::new_with_stream(context.ordinal())?;
        // SAFETY: all work is in the order of this one stream, so that no event has to order it.
        unsafe { device.disable_event_tracking() };
        let workspace = Some(Workspace::of(&device, context)?);
        let alone = Arc::strong_count(&device.cuda_stream()) - 1;
        Ok(Owned { device, alone, workspace })
    }

    /// Whether nothing but this entry refers to the stream's libraries. Each tensor holds the device and with it the
    /// libraries.
    fn is_free(&self) -> bool {
        Arc::strong_count(&self.device.cublas_handle()) - 1 == 1
    }

    /// Whether candle keeps constants of the stream. Candle never frees the layouts of strided operands in recorded
    /// work, a few bytes per stream. So a dropped stream would stay allocated, and its successor would add more.
    fn has_constants(&self) -> bool {
        Arc::strong_count(&self.device.cuda_stream()) - 1 > self.alone
    }
}

/// cuBLAS's workspace. Otherwise cuBLAS would allocate one for each graph that contains products.
struct Workspace {
    first: CUdeviceptr,
    context: Arc<CudaContext>,
}

impl Workspace {
    fn of(device: &CudaDevice, context: &Arc<CudaContext>) -> candle_core::Result<Self> {
        let bytes = (context.total_mem().w()? / 1024).min(WORKSPACE);
        context.bind_to_thread().w()?;
        // SAFETY: the memory is written before it is read.
        let first = unsafe { result::malloc_sync(bytes) }.w()?;
        let workspace = Workspace { first, context: context.clone() };
        let handle = *device.cublas_handle().handle();
        // SAFETY: the handle is destroyed before the workspace, and is used in the order of its stream.
        unsafe { cublasSetWorkspace_v2(handle, first as *mut _, bytes) }.result().w()?;
        Ok(workspace)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: no work uses the workspace any more.
        let _ = unsafe { result::free_sync(self.first) };
    }
}

static CARDS: Mutex<Vec<Arc<Card>>> = Mutex::new(Vec::new());

/// Locks a mutex, poisoned or not: no panic leaves the locked data half-changed. Candle's errors are converted to
/// [`Error`] only after the locks are released, because the conversion asks for the card's memory.
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

    /// A device with a stream of its own. All work of its owner runs in the order of that stream.
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

    /// A stream without an owner, if there is one.
    fn free(&self) -> candle_core::Result<Option<CudaDevice>> {
        let taken = {
            let mut streams = lock(&self.streams);
            let free = |(_, one): &(usize, &Owned)| one.is_free();
            let free = streams.iter().enumerate().filter(free);
            // Prefer a stream that still has its workspace.
            let at = free.max_by_key(|(_, one)| one.workspace.is_some()).map(|(at, _)| at);
            at.map(|at| streams.swap_remove(at))
        };
        let Some(mut one) = taken else { return Ok(None) };
        let device = one.device.clone();
        // Clear errors of the previous owner.
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

    /// Runs work while no thread records.
    fn apart<R>(&self, work: impl FnOnce() -> R) -> R {
        self.holding(|| self.recording.read().unwrap_or_else(PoisonError::into_inner), work)
    }

    /// Records work while no thread runs work in [`Card::apart`].
    fn alone<R>(&self, work: impl FnOnce() -> R) -> R {
        self.holding(|| self.recording.write().unwrap_or_else(PoisonError::into_inner), work)
    }

    /// Runs work with the lock that `take` returns, unless this thread already holds it.
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

    /// Ends streams without an owner. Keeps one, and all streams with constants, which would not be freed. The kept
    /// stream is synchronised, so that the work of its previous owner is done.
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

    /// Creates the pool, or replaces it after a change of the budget if no tensor is in the old pool.
    fn limit(&self) -> Result<()> {
        let total = self.context.total_mem().w()?;
        let budget = memory::budget().of(total as u64);
        if !self.context.has_async_alloc() {
            return match budget {
                None => Ok(()),
                Some(_) => Err(Error::Unavailable {
                    what: format!("a memory budget for cuda:{}", self.ordinal),
                    reason: "its driver has no memory pools".into(),
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

    /// Waits for the work on all streams. Skips streams that are being recorded: their work is not running.
    fn wait(&self) {
        let streams: Vec<_> =
            lock(&self.streams).iter().map(|one| one.device.cuda_stream()).collect();
        let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let wait = |stream: &CudaStream| {
            if stream.capture_status().is_ok_and(|status| status == none) {
                // The owner of the stream gets the same error.
                let _ = stream.synchronize();
            }
        };
        self.apart(|| streams.iter().for_each(|stream| wait(stream)));
    }

    /// Bytes that the pool keeps when the card is synchronised.
    fn kept(&self) -> u64 {
        if self.caching.load(Ordering::Acquire) > 0 {
            return u64::MAX;
        }
        if self.is_empty() { 0 } else { ledger::kept(self.ordinal).total() + CACHE }
    }

    /// Whether no stream of this process has an owner.
    fn is_empty(&self) -> bool {
        lock(&self.streams).iter().all(Owned::is_free)
    }

    fn keep(&self) {
        if let Some(pool) = &*lock(&self.pool) {
            // On failure the driver keeps its own threshold.
            let _ = pool.keep(self.kept());
        }
    }

    /// Returns memory to the driver that is unlikely to be reused. Called after tensors were freed on the card.
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

    /// Returns freed memory beyond [`CACHE`] to the driver, except for memory of graphs.
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

/// The memory of a card. Creates no context.
///
/// # Errors
/// `NoDevice` if policies cannot run on the card.
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

/// Waits for all work of this process on a card, then gives unused memory back to the driver. Returns the number of
/// bytes.
///
/// # Errors
/// `NoDevice` if policies cannot run on the card.
pub fn release(ordinal: usize) -> Result<u64> {
    super::super::check(&[ordinal])?;
    wait_for_leaving();
    match opened(|card| card.ordinal == ordinal) {
        Some(card) => Ok(card.release()?),
        None => Ok(0),
    }
}

/// Returns memory of all open cards to the driver that is unlikely to be reused. Called after tensors may have been
/// freed on a card.
pub fn settle() {
    let cards = lock(&CARDS).clone();
    cards.iter().for_each(|card| card.settle());
}

/// [`release`] for the card of `device`. Returns 0 for a CPU and on failure.
pub fn shrink(device: &Device) -> u64 {
    let Some(card) = of_device(device) else { return 0 };
    wait_for_leaving();
    card.release().unwrap_or(0)
}

/// Makes the card of `device` the current one of this thread. Many driver functions use the thread's current card,
/// which candle sets only when it allocates, launches or copies.
pub fn attach(device: &Device) {
    if let Some(card) = of_device(device) {
        // The next call on this card reports the same error.
        let _ = card.context.bind_to_thread();
    }
}

/// Records work on a device after releasing freed memory there. No other thread runs work in [`apart`] meanwhile.
pub(super) fn alone<R>(device: &Device, work: impl FnOnce() -> R) -> R {
    let Some(card) = of_device(device) else { return work() };
    card.make_room();
    card.alone(work)
}

/// Runs work that allocates, frees, reads or writes memory of a device while no thread records there. Any thread may
/// call this function, also for a stream that other threads use.
pub fn apart<R>(device: &Device, work: impl FnOnce() -> R) -> R {
    let Some(card) = of_device(device) else { return work() };
    let _ = card.context.bind_to_thread();
    card.apart(work)
}

/// Whether the card of a device is within its budget.
pub(super) fn within_budget(device: &Device) -> bool {
    of_device(device).is_none_or(|card| card.within_budget())
}

/// Gives cards access to each other's memory, which NCCL uses when one process owns all cards.
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

/// Raises the bytes that the card caches to match its ledger.
pub(in crate::device) fn grown(ordinal: usize) {
    if let Some(card) = opened(|card| card.ordinal == ordinal) {
        card.keep();
    }
}

/// The current card of this thread and its memory, for the error after a failed allocation.
pub(super) fn full() -> Option<(usize, Memory)> {
    let context = result::ctx::get_current().ok()??;
    let card = opened(|card| card.context.cu_ctx() == context)?;
    Some((card.ordinal, card.memory().ok()?))
}

/// A guard during which its card keeps all freed memory for the next allocation.
pub struct Caching(Option<Arc<Card>>);

impl Caching {
    /// Returns the guard for the card of a device; no effect for a CPU.
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

/// The thread that drops values on cards.
static THREAD: OnceLock<Leaving> = OnceLock::new();

/// Waits for the queued drops, unless this thread holds a lock that they may wait for.
fn wait_for_leaving() {
    if HELD.get() != 0 {
        return;
    }
    if let Some(thread) = THREAD.get() {
        thread.wait();
    }
}

/// Drops a value whose memory is on a device. If the device is a card, another thread drops the value, because freeing
/// waits for the driver, and ending a stream and its libraries waits for the card. The freed memory returns to the
/// driver.
pub fn leave<T: Send + 'static>(device: Device, gone: T) {
    let Some(card) = of_device(&device) else { return drop(gone) };
    THREAD.get_or_init(|| Leaving::start("sconce-card")).leave(move || {
        // The driver uses the thread's current card.
        let _ = card.context.bind_to_thread();
        card.apart(|| drop((gone, device)));
        card.settle();
    });
}

/// The location of a tensor's storage on a card, and the size of the whole storage in bytes.
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
