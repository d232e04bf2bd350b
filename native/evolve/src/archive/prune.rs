//! The removal of the worst elites.

use sconce_tensor::{Error, Result};

use super::{Archive, EMPTY, Space, Sum};

impl Archive {
    /// Removes the elites with the lowest objectives: this share of them, rounded down. Of equal ones the last in the order
    /// of cells' first elites go first. Their cells are as if they had never been filled. Returns how many were removed.
    ///
    /// # Errors
    /// `OutOfRange` for a share outside 0..=1.
    pub fn prune(&mut self, share: f64) -> Result<usize> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::out_of_range("share", share, 0.0, 1.0));
        }
        let old = std::mem::take(&mut self.elites);
        let count = old.cells.len();
        let removed = (share * count as f64).floor() as usize;
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by(|a, b| old.objectives[*b].total_cmp(&old.objectives[*a]).then(a.cmp(b)));
        let mut stays = order[..count - removed].to_vec();
        stays.sort_unstable();
        for cell in order[count - removed..].iter().map(|at| old.cells[*at] as usize) {
            self.slots[cell] = EMPTY;
            self.bars[cell] = self.open_bar();
        }
        let (size, width) = (self.solution_size, self.space.measures());
        self.sum = Sum::default();
        for (slot, at) in stays.into_iter().enumerate() {
            let elites = &mut self.elites;
            elites.solutions.extend_from_slice(&old.solutions[at * size..][..size]);
            elites.measures.extend_from_slice(&old.measures[at * width..][..width]);
            elites.objectives.push(old.objectives[at]);
            elites.cells.push(old.cells[at]);
            self.slots[old.cells[at] as usize] = slot as u32;
            self.sum.add(old.objectives[at]);
        }
        self.close_up();
        if removed == count {
            self.best = None;
        }
        Ok(removed)
    }

    /// Removes the balls without an elite. The balls that stay are numbered anew in their order, which is that of elites.
    fn close_up(&mut self) {
        let Space::Unstructured(own) = &mut self.space else { return };
        let stays = &mut self.elites.cells;
        own.keep(stays);
        for (ball, old) in stays.iter_mut().enumerate() {
            self.bars.swap(ball, *old as usize);
            self.slots.swap(ball, *old as usize);
            *old = ball as u32;
        }
    }
}
