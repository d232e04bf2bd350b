//! The last embedded frames of a session, before normalisation.

use sconce_nn::packed::Frame;
use sconce_tensor::{Result, memory};

use crate::frames::EmbeddedFrame;

/// The last `capacity` rows, in storage that is allocated once.
#[derive(Debug)]
pub(super) struct Ring {
    capacity: usize,
    len: usize,
    /// Index of the next row to write; once the ring is full, that of the oldest row.
    next: usize,
    continuous: Storage<f32>,
    ids: Storage<u32>,
    previous: Storage<f32>,
}

/// Values of one kind in all rows, `[rows, width]`.
#[derive(Debug)]
struct Storage<T> {
    width: usize,
    numbers: Vec<T>,
}

impl<T: Copy + Default> Storage<T> {
    fn new(rows: usize, width: usize) -> Result<Self> {
        let count = rows.saturating_mul(width);
        let bytes = count.saturating_mul(size_of::<T>()) as u64;
        memory::room("frames of a session", bytes)?;
        let numbers = memory::caught(|| Ok(memory::repeated(T::default(), count)));
        let numbers = numbers.map_err(|error| error.asking("frames of a session", bytes))?;
        Ok(Storage { width, numbers })
    }

    fn row(&self, at: usize) -> &[T] {
        &self.numbers[at * self.width..][..self.width]
    }

    fn write(&mut self, at: usize, row: &[T]) {
        self.numbers[at * self.width..][..self.width].copy_from_slice(row);
    }

    fn bytes(&self) -> usize {
        size_of_val(self.numbers.as_slice())
    }
}

impl Ring {
    /// An empty ring of `capacity` rows, with the widths of `like`.
    pub(super) fn new(capacity: usize, like: &EmbeddedFrame) -> Result<Self> {
        Ok(Ring {
            capacity,
            len: 0,
            next: 0,
            continuous: Storage::new(capacity, like.continuous.len())?,
            ids: Storage::new(capacity, like.ids.len())?,
            previous: Storage::new(capacity, like.previous.len())?,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn clear(&mut self) {
        (self.len, self.next) = (0, 0);
    }

    /// Appends a row; a full ring overwrites its oldest.
    pub(super) fn push(&mut self, row: Frame<'_>) {
        if self.capacity == 0 {
            return;
        }
        self.continuous.write(self.next, row.continuous);
        self.ids.write(self.next, row.ids);
        self.previous.write(self.next, row.previous);
        self.next = (self.next + 1) % self.capacity;
        self.len = (self.len + 1).min(self.capacity);
    }

    /// Drops the newest `count` rows.
    pub(super) fn forget(&mut self, count: usize) {
        let count = count.min(self.len);
        self.next = (self.next + self.capacity - count) % self.capacity.max(1);
        self.len -= count;
    }

    /// The newest rows, at most `count`, oldest first.
    pub(super) fn newest(&self, count: usize) -> impl Iterator<Item = Frame<'_>> {
        let count = count.min(self.len);
        (0..count).map(move |i| {
            let at = (self.next + self.capacity - count + i) % self.capacity;
            Frame {
                continuous: self.continuous.row(at),
                ids: self.ids.row(at),
                previous: self.previous.row(at),
            }
        })
    }

    pub(super) fn bytes(&self) -> usize {
        self.continuous.bytes() + self.ids.bytes() + self.previous.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: u16) -> EmbeddedFrame {
        EmbeddedFrame {
            continuous: vec![n.into(), 0.5],
            ids: vec![n.into()],
            previous: vec![n.into()],
        }
    }

    fn kept(ring: &Ring) -> Vec<f32> {
        ring.newest(9).map(|row| row.previous[0]).collect()
    }

    #[test]
    fn rows_come_out_oldest_first_and_the_oldest_is_overwritten() {
        let mut ring = Ring::new(3, &row(0)).unwrap();
        assert!(kept(&ring).is_empty());
        (1..=2).for_each(|n| ring.push(row(n).frame()));
        assert_eq!(kept(&ring), [1.0, 2.0]);
        (3..=5).for_each(|n| ring.push(row(n).frame()));
        assert_eq!(kept(&ring), [3.0, 4.0, 5.0]);
        let last = ring.newest(1).last().unwrap();
        assert_eq!((last.continuous, last.ids), (&[5.0, 0.5][..], &[5][..]));
        ring.forget(2);
        assert_eq!(kept(&ring), [3.0]);
        (6..=7).for_each(|n| ring.push(row(n).frame()));
        assert_eq!(kept(&ring), [3.0, 6.0, 7.0]);
        assert_eq!(ring.newest(2).map(|row| row.previous[0]).collect::<Vec<_>>(), [6.0, 7.0]);
        ring.clear();
        ring.push(row(9).frame());
        assert_eq!(kept(&ring), [9.0]);
    }

    #[test]
    fn a_ring_without_room_keeps_nothing() {
        let mut ring = Ring::new(0, &row(0)).unwrap();
        ring.push(row(1).frame());
        assert_eq!((ring.len(), ring.newest(9).count(), ring.bytes()), (0, 0, 0));
    }
}
