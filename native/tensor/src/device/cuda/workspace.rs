//! Memory of work that is recorded, taken before: as work that allocates it would have a step for each piece, to take
//! it and to give it back, besides its own.

use std::cell::RefCell;

use candle_core::{DType, Shape, Tensor};

thread_local! {
    static SOURCE: RefCell<Source> = const { RefCell::new(Source::Card) };
}

/// Where what nobody has written yet comes from.
enum Source {
    Card,
    /// From the card, and it is kept here.
    CardToKeep(Vec<Tensor>),
    /// What was kept, in its order.
    Kept(std::vec::IntoIter<Tensor>),
}

/// What some work takes.
#[derive(Default)]
pub struct Workspace(Vec<Tensor>);

impl Workspace {
    /// Does work, and keeps what it takes. Nothing of that may be read after the work: the next one writes over it.
    pub fn keep<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let back = Back(SOURCE.replace(Source::CardToKeep(vec![])));
        let done = work();
        if let Source::CardToKeep(kept) = SOURCE.replace(Source::Card) {
            self.0 = kept;
        }
        drop(back);
        done
    }

    /// Does the same work again, in the memory that it took.
    pub fn reuse<R>(&self, work: impl FnOnce() -> R) -> R {
        let _back = Back(SOURCE.replace(Source::Kept(self.0.clone().into_iter())));
        work()
    }

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

/// The next of what was kept, if it is of that shape and type.
pub(super) fn kept(shape: &Shape, dtype: DType) -> Option<Tensor> {
    SOURCE.with_borrow_mut(|source| match source {
        Source::Kept(kept) => kept.next().filter(|t| (t.shape(), t.dtype()) == (shape, dtype)),
        _ => None,
    })
}

/// Keeps what was taken, if that is wanted.
pub(super) fn taken(tensor: &Tensor) {
    SOURCE.with_borrow_mut(|source| {
        if let Source::CardToKeep(kept) = source {
            kept.push(tensor.clone());
        }
    });
}
