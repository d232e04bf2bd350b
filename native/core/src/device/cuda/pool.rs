//! A pool of a card's memory. What candle makes there it takes from the pool that is the card's current one.

use std::ffi::c_void;
use std::mem;

use candle_core::cuda_backend::cudarc::driver::result::{self, DriverError, mem_pool};
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdevice, CUmemAllocationType, CUmemLocationType, CUmemPool_attribute, CUmemPoolProps,
    CUmemoryPool,
};

type Answered<T> = std::result::Result<T, DriverError>;

/// It takes no memory before somebody wants it.
pub struct Pool {
    pool: CUmemoryPool,
    budget: Option<u64>,
}

// SAFETY: the driver's functions of a pool are for any thread.
unsafe impl Send for Pool {}

impl Pool {
    /// A pool of a card, of at most so many bytes, which is the card's current one from now on.
    pub fn new(card: CUdevice, budget: Option<u64>) -> Answered<Self> {
        // SAFETY: it is made of numbers and of a pointer that is not read here, all of which may be 0.
        let mut properties: CUmemPoolProps = unsafe { mem::zeroed() };
        properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = card;
        // 0 is no limit.
        properties.maxSize =
            budget.map_or(0, |bytes| usize::try_from(bytes.max(1)).unwrap_or(usize::MAX));
        // SAFETY: the properties are whole, and the pool is made current while it is there.
        unsafe {
            let pool = Pool { pool: mem_pool::create(&properties)?, budget };
            result::device::set_mem_pool(card, pool.pool)?;
            Ok(pool)
        }
    }

    pub fn budget(&self) -> Option<u64> {
        self.budget
    }

    /// Bytes in use.
    pub fn used(&self) -> Answered<u64> {
        self.ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    /// Bytes that it has of the driver, in use or not.
    pub fn reserved(&self) -> Answered<u64> {
        self.ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    /// Has it keep so many bytes when somebody waits for the card.
    pub fn keep(&self, mut bytes: u64) -> Answered<()> {
        let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool is there while this is, and the attribute is of 64 bits.
        unsafe { mem_pool::set_attribute(self.pool, threshold, (&raw mut bytes).cast::<c_void>()) }
    }

    /// Gives what is not in use back to the driver, but for so many bytes in all.
    pub fn trim(&self, keep: u64) -> Answered<()> {
        // SAFETY: the pool is there while this is.
        unsafe { mem_pool::trim_to(self.pool, usize::try_from(keep).unwrap_or(usize::MAX)) }
    }

    fn ask(&self, attribute: CUmemPool_attribute) -> Answered<u64> {
        let mut bytes: u64 = 0;
        // SAFETY: the pool is there while this is, and these attributes are of 64 bits.
        unsafe {
            mem_pool::get_attribute(self.pool, attribute, (&raw mut bytes).cast::<c_void>())
        }?;
        Ok(bytes)
    }
}

impl Drop for Pool {
    /// The driver keeps what is in use until it is freed.
    fn drop(&mut self) {
        // SAFETY: nobody has it any more. A driver that refuses keeps it.
        let _ = unsafe { mem_pool::destroy(self.pool) };
    }
}
