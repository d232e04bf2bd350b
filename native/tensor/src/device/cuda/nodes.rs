//! Nodes of a captured graph.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr::{self, addr_of};

use candle_core::cuda_backend::cudarc::driver::DriverError;
use candle_core::cuda_backend::cudarc::driver::sys::{
    CUDA_MEMCPY3D, CUdeviceptr, CUgraph, CUgraphNode, CUgraphNodeType, CUmemorytype,
    CUpointer_attribute, cuGraphGetNodes, cuGraphMemcpyNodeGetParams, cuGraphNodeGetType,
    cuPointerGetAttribute,
};

/// A copy between the card and the host, in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostCopy {
    From,
    To,
}

/// The first copy of a graph that reads or writes memory of the host. A driver records such copies like other work, and
/// each replay repeats them at the same address.
///
/// # Safety
/// The graph exists, and no other thread uses it.
pub(super) unsafe fn host_copy(graph: CUgraph) -> Result<Option<HostCopy>, DriverError> {
    // SAFETY: the caller guarantees it.
    for node in unsafe { nodes(graph) }? {
        // SAFETY: the graph exists, and the node is one of its nodes.
        let found = unsafe { host_copy_of(node) }?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// # Safety
/// As for [`host_copy`].
unsafe fn nodes(graph: CUgraph) -> Result<Vec<CUgraphNode>, DriverError> {
    let mut count = 0;
    // SAFETY: the graph exists; without an array the driver writes the number of nodes.
    unsafe { cuGraphGetNodes(graph, ptr::null_mut(), &mut count) }.result()?;
    let mut nodes = vec![ptr::null_mut(); count];
    // SAFETY: the array has `count` elements.
    unsafe { cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) }.result()?;
    nodes.truncate(count);
    Ok(nodes)
}

/// # Safety
/// The node belongs to a graph that exists.
unsafe fn host_copy_of(node: CUgraphNode) -> Result<Option<HostCopy>, DriverError> {
    // A newer driver may write a number that the enum lacks.
    let mut kind = 0u32;
    // SAFETY: the node exists, and the enum has the size of the number.
    unsafe { cuGraphNodeGetType(node, ptr::from_mut(&mut kind).cast()) }.result()?;
    if kind != CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEMCPY as u32 {
        return Ok(None);
    }
    let mut copy = MaybeUninit::<CUDA_MEMCPY3D>::zeroed();
    // SAFETY: the node is a copy.
    unsafe { cuGraphMemcpyNodeGetParams(node, copy.as_mut_ptr()) }.result()?;
    let copy = copy.as_ptr();
    // SAFETY: all bytes are initialised. The types are read as numbers, because 0 is none of them.
    let (from, to) = unsafe {
        let from = addr_of!((*copy).srcMemoryType).cast::<u32>().read();
        let to = addr_of!((*copy).dstMemoryType).cast::<u32>().read();
        ((from, addr_of!((*copy).srcDevice).read()), (to, addr_of!((*copy).dstDevice).read()))
    };
    Ok(match (on_card(from), on_card(to)) {
        (true, true) => None,
        (false, _) => Some(HostCopy::From),
        (true, false) => Some(HostCopy::To),
    })
}

/// Whether an end of a copy lies on a card: the type of its memory, and its address in the common address space.
fn on_card((of, address): (u32, CUdeviceptr)) -> bool {
    const HOST: u32 = CUmemorytype::CU_MEMORYTYPE_HOST as u32;
    const CARD: u32 = CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
    const EITHER: u32 = CUmemorytype::CU_MEMORYTYPE_UNIFIED as u32;
    let of = match of {
        EITHER => memory_type(address).unwrap_or(HOST),
        of => of,
    };
    of == CARD
}

/// The type of the memory at an address, which is an error for memory that the driver does not know.
fn memory_type(address: CUdeviceptr) -> Result<u32, DriverError> {
    let mut of = 0u32;
    let place = ptr::from_mut(&mut of).cast::<c_void>();
    let which = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    // SAFETY: the driver writes one number, and does not access the memory at the address.
    unsafe { cuPointerGetAttribute(place, which, address) }.result()?;
    Ok(of)
}

const _: () = assert!(size_of::<CUgraphNodeType>() == 4 && size_of::<CUmemorytype>() == 4);
