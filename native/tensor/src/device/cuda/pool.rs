//! A pool of a card's memory, and the memory of its graphs. Candle allocates from the card's current pool. Memory
//! allocated while work is recorded belongs to the graph; the driver manages it separately from the pool.

use std::ffi::c_void;
use std::mem;

use candle_core::cuda_backend::cudarc::driver::result::{self, DriverError, mem_pool};
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUdevice, CUgraphMem_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationType,
    CUmemLocation, CUmemLocationType, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool,
    cuDeviceCanAccessPeer, cuDeviceGetGraphMemAttribute, cuDeviceGraphMemTrim, cuMemPoolSetAccess,
};

type Answered<T> = std::result::Result<T, DriverError>;

/// A memory pool of the driver. A new pool holds no memory before its first allocation.
pub(super) struct Pool {
    card: CUdevice,
    pool: CUmemoryPool,
    budget: Option<u64>,
}

// SAFETY: any thread may call the driver's functions on a pool.
unsafe impl Send for Pool {}

impl Pool {
    /// Creates a pool of at most `budget` bytes and makes it the card's current one.
    pub(super) fn new(card: CUdevice, budget: Option<u64>) -> Answered<Self> {
        // SAFETY: the struct consists of numbers and one pointer that is not read here; all of them may be 0.
        let mut properties: CUmemPoolProps = unsafe { mem::zeroed() };
        properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        properties.location.id = card;
        // 0 means no limit.
        properties.maxSize =
            budget.map_or(0, |bytes| usize::try_from(bytes.max(1)).unwrap_or(usize::MAX));
        // SAFETY: the properties are initialised, and the pool exists when it is made current.
        unsafe {
            let pool = Pool { card, pool: mem_pool::create(&properties)?, budget };
            result::device::set_mem_pool(card, pool.pool)?;
            Ok(pool)
        }
    }

    pub(super) fn budget(&self) -> Option<u64> {
        self.budget
    }

    /// Bytes in use, including bytes of graphs.
    pub(super) fn used(&self) -> Answered<u64> {
        let of_graphs = self.of_graphs(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)?;
        Ok(self.ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)? + of_graphs)
    }

    /// Bytes taken from the driver, in use or not, including bytes of graphs.
    pub(super) fn reserved(&self) -> Answered<u64> {
        let reserved = CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
        let of_graphs = self.of_graphs(reserved)?;
        Ok(self.ask(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)? + of_graphs)
    }

    /// Gives other cards access to the pool, if the hardware supports that.
    pub(super) fn open_to(&self, others: &[CUdevice]) -> Answered<()> {
        for &other in others {
            let mut can = 0;
            // SAFETY: the driver writes one number to the given address.
            unsafe { cuDeviceCanAccessPeer(&mut can, other, self.card) }.result()?;
            let type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
            let access = CUmemAccessDesc {
                location: CUmemLocation { type_, id: other },
                flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            if can != 0 {
                // SAFETY: the pool lives as long as `self`, and the driver reads one description.
                unsafe { cuMemPoolSetAccess(self.pool, &access, 1) }.result()?;
            }
        }
        Ok(())
    }

    /// Sets how many bytes the pool keeps when the card is synchronised.
    pub(super) fn keep(&self, mut bytes: u64) -> Answered<()> {
        let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the pool lives as long as `self`, and the attribute has 64 bits.
        unsafe { mem_pool::set_attribute(self.pool, threshold, (&raw mut bytes).cast::<c_void>()) }
    }

    /// Returns unused memory to the driver until at most `keep` bytes are reserved. Memory of graphs that are not being
    /// replayed is returned last, because the next replay has to allocate it again.
    pub(super) fn trim(&self, keep: u64) -> Answered<()> {
        self.trim_own(keep)?;
        if self.reserved()? > keep {
            // SAFETY: the only argument is the card's ordinal.
            unsafe { cuDeviceGraphMemTrim(self.card) }.result()?;
        }
        Ok(())
    }

    /// Returns unused memory of the pool, but not of graphs, to the driver.
    pub(super) fn trim_own(&self, keep: u64) -> Answered<()> {
        // SAFETY: the pool lives as long as `self`.
        unsafe { mem_pool::trim_to(self.pool, usize::try_from(keep).unwrap_or(usize::MAX)) }
    }

    fn of_graphs(&self, attribute: CUgraphMem_attribute) -> Answered<u64> {
        let mut bytes: u64 = 0;
        let to = (&raw mut bytes).cast::<c_void>();
        // SAFETY: these attributes have 64 bits.
        unsafe { cuDeviceGetGraphMemAttribute(self.card, attribute, to) }.result()?;
        Ok(bytes)
    }

    fn ask(&self, attribute: CUmemPool_attribute) -> Answered<u64> {
        let mut bytes: u64 = 0;
        // SAFETY: the pool lives as long as `self`, and these attributes have 64 bits.
        unsafe {
            mem_pool::get_attribute(self.pool, attribute, (&raw mut bytes).cast::<c_void>())
        }?;
        Ok(bytes)
    }
}

impl Drop for Pool {
    /// Destroys the pool. The driver keeps memory in use until it is freed.
    fn drop(&mut self) {
        // SAFETY: the pool has no other owner. If the driver refuses, the pool stays allocated.
        let _ = unsafe { mem_pool::destroy(self.pool) };
    }
}
