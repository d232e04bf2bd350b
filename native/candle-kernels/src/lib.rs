//! Candle's CUDA kernels as PTX, in the place of the crate of that name.
//!
//! Sources are candle's own (`candle-kernels` 0.11.1), unchanged. Left out are the kernels of quantized models and
//! of mixtures of experts: two thirds of a library's size and nine of ten minutes of its build, for tensors that
//! Sconce does not have. Their names stay, so that candle links.

mod ptx {
    include!(concat!(env!("OUT_DIR"), "/ptx.rs"));
    /// Loads, and has no function in it.
    pub const QUANTIZED: &str = ".version 7.0\n.target sm_80\n.address_size 64\n";
}

pub mod ffi;

macro_rules! modules {
    ($($id:ident $name:ident),*) => {
        #[repr(u32)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Id {
            $($id),*
        }

        pub const ALL_IDS: [Id; 11] = [$(Id::$id),*];

        $(pub const $name: Module = Module { index: Id::$id as usize, ptx: ptx::$name };)*
    };
}

modules! {
    Affine AFFINE, Binary BINARY, Cast CAST, Conv CONV, Fill FILL, Indexing INDEXING,
    Quantized QUANTIZED, Reduce REDUCE, Sort SORT, Ternary TERNARY, Unary UNARY
}

pub struct Module {
    index: usize,
    ptx: &'static str,
}

impl Module {
    pub fn index(&self) -> usize {
        self.index
    }

    pub fn ptx(&self) -> &'static str {
        self.ptx
    }
}
