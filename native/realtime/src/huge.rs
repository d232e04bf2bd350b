//! Weights in huge pages.
//!
//! A step reads all weights once. Between two frames of a game other programs take the caches, and the table of pages is
//! then as cold as the weights: with pages of 4 KB the walks through the table take a third of the time of such a step. So
//! the kernel is asked for pages of 2 MB. A kernel without them, or with them turned off, takes small ones.

use std::mem::MaybeUninit;
use std::slice;

use sconce_tensor::memory;

const BYTES: usize = 2 << 20;
const NUMBERS: usize = BYTES / size_of::<f32>();

/// A huge page on x86-64, and on ARM with small pages of 4 KB.
#[repr(align(0x20_0000))]
struct Page {
    _numbers: [MaybeUninit<f32>; NUMBERS],
}

/// Numbers that begin at a huge page.
pub(crate) struct Huge {
    /// The pages are the capacity. A last page that is mostly empty is not huge, so that at most 1 MiB is
    /// wasted.
    pages: Vec<Page>,
    len: usize,
}

impl Huge {
    /// Copies numbers; `None` for those that do not fill half a page, and on systems other than Linux.
    pub(crate) fn copy(numbers: &[f32]) -> Option<Self> {
        // The last page is huge if at least half of it is used.
        let huge = (numbers.len() + NUMBERS / 2) / NUMBERS;
        if huge == 0 || !cfg!(target_os = "linux") {
            return None;
        }
        let mut pages: Vec<Page> = memory::with_capacity(numbers.len().div_ceil(NUMBERS));
        advise(&mut pages.spare_capacity_mut()[..huge]);
        // SAFETY: the capacity has room for the numbers, which do not overlap with it.
        unsafe {
            pages
                .as_mut_ptr()
                .cast::<f32>()
                .copy_from_nonoverlapping(numbers.as_ptr(), numbers.len());
        }
        Some(Huge { pages, len: numbers.len() })
    }

    pub(crate) fn numbers(&self) -> &[f32] {
        // SAFETY: `copy` wrote these numbers, and the vector never moves.
        unsafe { slice::from_raw_parts(self.pages.as_ptr().cast(), self.len) }
    }
}

fn advise(pages: &mut [MaybeUninit<Page>]) {
    // SAFETY: the range is that of the pages, and advice does not change contents.
    #[cfg(target_os = "linux")]
    unsafe {
        libc::madvise(pages.as_mut_ptr().cast(), size_of_val(pages), libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = pages;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_from_half_a_page_on_begin_at_a_huge_page() {
        assert!(Huge::copy(&[1.0; NUMBERS / 2 - 1]).is_none());
        for len in [NUMBERS / 2, NUMBERS + 1, 2 * NUMBERS, 5 * NUMBERS / 2] {
            let numbers: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let huge = Huge::copy(&numbers).unwrap();
            assert_eq!(huge.numbers(), numbers);
            assert!(huge.numbers().as_ptr().addr().is_multiple_of(BYTES));
        }
    }
}
