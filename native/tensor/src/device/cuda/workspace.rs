//! Memory for recorded work, allocated before the recording. Otherwise the graph would have two more nodes for each
//! tensor: one to allocate it and one to free it.

use std::cell::RefCell;

use candle_core::{DType, Shape, Tensor};

thread_local! {
    static SOURCE: RefCell<Source> = const { RefCell::new(Source::Card) };
}

/// The source of tensors with undefined contents.
enum Source {
    /// The allocator of the card.
    Card,
    /// The allocator of the card; allocated tensors are kept in this workspace.
    CardToKeep(Vec<Tensor>),
    /// Kept tensors, in the order of their allocation.
    Kept(std::vec::IntoIter<Tensor>),
}

/// The tensors that some work allocates.
#[derive(Default)]
pub struct Workspace(Vec<Tensor>);

impl Workspace {
    /// Runs `work` and keeps the tensors that it allocates. Do not read these tensors after the work:
    /// [`Workspace::reuse`] overwrites them.
    pub fn keep<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let back = Back(SOURCE.replace(Source::CardToKeep(vec![])));
        let done = work();
        if let Source::CardToKeep(kept) = SOURCE.replace(Source::Card) {
            self.0 = kept;
        }
        drop(back);
        done
    }

    /// Runs the same work again in the kept tensors.
    pub fn reuse<R>(&self, work: impl FnOnce() -> R) -> R {
        let _back = Back(SOURCE.replace(Source::Kept(self.0.clone().into_iter())));
        work()
    }

    /// The tensors that were kept.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.0.iter()
    }
}

struct Back(Source);

impl Drop for Back {
    fn drop(&mut self) {
        SOURCE.set(std::mem::replace(&mut self.0, Source::Card));
    }
}

/// The next kept tensor, if it has this shape and dtype.
pub(super) fn kept(shape: &Shape, dtype: DType) -> Option<Tensor> {
    SOURCE.with_borrow_mut(|source| match source {
        Source::Kept(kept) => kept.next().filter(|t| (t.shape(), t.dtype()) == (shape, dtype)),
        _ => None,
    })
}

/// Keeps a tensor, if the current source keeps tensors.
pub(super) fn taken(tensor: &Tensor) {
    SOURCE.with_borrow_mut(|source| {
        if let Source::CardToKeep(kept) = source {
            kept.push(tensor.clone());
        }
    });
}
