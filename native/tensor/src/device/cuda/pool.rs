//! A pool of a card's memory, and what its graphs have. What candle makes there it takes from the pool that is the
//! card's current one; what it makes while work is recorded is the graph's, which the driver keeps apart.

use std::ffi::c_void;
use std::mem;

use candle_core::cuda_backend::cudarc::driver::result::{self, DriverError, mem_pool};
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdevice, CUgraphMem_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationType,
    CUmemLocation, CUmemLocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool,
    cuDeviceCanAccessPeer, cuDeviceGetGraphMemAttribute, cuDeviceGraphMemTrim, cuMemPoolSetAccess,
};

type Answered<T> = std::result::Result<T, DriverError>;

/// It takes no memory before somebody wants it.
pub(super) struct Pool {
    card: CUdevice,
    pool: CUmemoryPool,
    budget: Option<u64>,
}

// SAFETY: the driver's functions of a pool are for any thread.
unsafe impl Send for Pool {}

impl Pool {
    /// A pool of a card, of at most so many bytes, which is the card's current one from now on.
    pub(super) fn new(card: CUdevice, budget: Option<u64>) -> Answered<Self> {
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
            let pool = Pool { card, pool: mem_pool::create(&properties)?, budget };
            result::device::set_mem_pool(card, pool.pool)?;
            Ok(pool)
        }
    }

    pub(super) fn budget(&self) -> Option<u64> {
        self.budget
    }

    /// Bytes in use, and those of graphs.
    pub(super) fn used(&self) -> Answered<u64> {
        let of_graphs = self.of_graphs(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)?;
        Ok(self.ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)? + of_graphs)
    }

    /// Bytes that it and graphs have of the driver, in use or not.
    pub(super) fn reserved(&self) -> Answered<u64> {
        let reserved = CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
        let of_graphs = self.of_graphs(reserved)?;
        Ok(self.ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)? + of_graphs)
    }

    /// Has kernels of other cards reach what it has, where they can.
    pub(super) fn open_to(&self, others: &[CUdevice]) -> Answered<()> {
        for &other in others {
            let mut can = 0;
            // SAFETY: it writes one number to where it is told.
            unsafe { cuDeviceCanAccessPeer(&mut can, other, self.card) }.result()?;
            let type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            let access = CUmemAccessDesc {
                location: CUmemLocation { type_, id: other },
                flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            if can != 0 {
                // SAFETY: the pool is there while this is, and it reads one description.
                unsafe { cuMemPoolSetAccess(self.pool, &access, 1) }.result()?;
            }
        }
        Ok(())
    }

    /// Has it keep so many bytes when somebody waits for the card.
    pub(super) fn keep(&self, mut bytes: u64) -> Answered<()> {
        let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool is there while this is, and the attribute is of 64 bits.
        unsafe { mem_pool::set_attribute(self.pool, threshold, (&raw mut bytes).cast::<c_void>()) }
    }

    /// Gives what is not in use back to the driver, but for so many bytes in all; last what graphs have that are not
    /// played just now, which they have to be given again.
    pub(super) fn trim(&self, keep: u64) -> Answered<()> {
        self.trim_own(keep)?;
        if self.reserved()? > keep {
            // SAFETY: it takes nothing but the card's number.
            unsafe { cuDeviceGraphMemTrim(self.card) }.result()?;
        }
        Ok(())
    }

    /// The same without what graphs have.
    pub(super) fn trim_own(&self, keep: u64) -> Answered<()> {
        // SAFETY: the pool is there while this is.
        unsafe { mem_pool::trim_to(self.pool, usize::try_from(keep).unwrap_or(usize::MAX)) }
    }

    fn of_graphs(&self, attribute: CUgraphMem_attribute) -> Answered<u64> {
        let mut bytes: u64 = 0;
        let to = (&raw mut bytes).cast::<c_void>();
        // SAFETY: these attributes are of 64 bits.
        unsafe { cuDeviceGetGraphMemAttribute(self.card, attribute, to) }.result()?;
        Ok(bytes)
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
