//! The order in which the nodes of a network are computed.

/// The nodes that each genome has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

impl Ends {
    /// The inputs and the bias node, which no connection enters.
    pub(super) fn sources(self) -> usize {
        self.inputs + 1
    }

    /// All nodes that are not hidden. It is also the local index of the first hidden node.
    pub(super) fn fixed(self) -> usize {
        self.inputs + 1 + self.outputs
    }
}

/// Sorts the nodes of genomes.
#[derive(Debug, Clone, Default)]
pub(super) struct Sorter {
    /// Connections from nodes that are not sorted yet, for each node.
    waiting: Vec<u32>,
    /// First connection of each source in `targets`.
    starts: Vec<u32>,
    targets: Vec<u32>,
    order: Vec<u32>,
}

impl Sorter {
    /// Outputs and hidden nodes, each after the nodes that a connection leads from (Kahn 1962), or `None` if there is a
    /// cycle. The order depends on the order of the connections.
    pub(super) fn sort(
        &mut self,
        ends: Ends,
        hidden: usize,
        source: &[u32],
        target: &[u32],
    ) -> Option<&[u32]> {
        let (sources, nodes) = (ends.sources(), ends.fixed() + hidden);
        let Sorter { waiting, starts, targets, order } = self;
        waiting.clear();
        waiting.resize(nodes, 0);
        starts.clear();
        starts.resize(nodes + 2, 0);
        for (source, target) in source.iter().zip(target) {
            let inner = *source as usize >= sources;
            waiting[*target as usize] += u32::from(inner);
            starts[*source as usize + 2] += 1;
        }
        for at in 2..starts.len() {
            starts[at] += starts[at - 1];
        }
        targets.clear();
        targets.resize(source.len(), 0);
        for (source, target) in source.iter().zip(target) {
            let at = &mut starts[*source as usize + 1];
            targets[*at as usize] = *target;
            *at += 1;
        }
        order.clear();
        order.extend((sources..nodes).filter(|at| waiting[*at] == 0).map(|at| at as u32));
        let mut next = 0;
        while let Some(node) = order.get(next).copied() {
            next += 1;
            let own = starts[node as usize] as usize..starts[node as usize + 1] as usize;
            for target in &targets[own] {
                waiting[*target as usize] -= 1;
                if waiting[*target as usize] == 0 {
                    order.push(*target);
                }
            }
        }
        (order.len() == nodes - sources).then_some(order.as_slice())
    }

    /// A node on a cycle, by its local index, after [`Sorter::sort`] has found that there is one.
    pub(super) fn cyclic(&self, source: &[u32], target: &[u32]) -> Option<u32> {
        let stuck = |node: u32| self.waiting.get(node as usize).is_some_and(|count| *count > 0);
        // One source that waits of each node that waits. There is one, so that many steps back end on a cycle.
        let mut before = vec![None; self.waiting.len()];
        for (source, target) in source.iter().zip(target) {
            if stuck(*source) && stuck(*target) {
                before[*target as usize] = Some(*source);
            }
        }
        let mut node = target.iter().copied().find(|node| stuck(*node))?;
        for _ in 0..self.waiting.len() {
            node = before[node as usize]?;
        }
        Some(node)
    }
}
