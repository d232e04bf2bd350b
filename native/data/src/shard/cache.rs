//! The restored segments of a corpus, within a limit in bytes.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sconce_store::queue::{Id, Queue};

/// Bytes of the restored segments that a corpus keeps by default.
pub(crate) const CACHE_BYTES: u64 = 64 << 20;

/// A restored segment.
pub(super) type Segment = Arc<Vec<u8>>;

/// The restored segments of a corpus. Those that were read once leave first.
#[derive(Debug)]
pub(crate) struct Cache {
    kept: Mutex<Kept>,
    next: AtomicU32,
}

#[derive(Debug)]
struct Kept {
    queue: Queue,
    segments: HashMap<Id, Segment>,
}

impl Cache {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        let kept = Kept { queue: Queue::new(bytes), segments: HashMap::new() };
        Arc::new(Cache { kept: Mutex::new(kept), next: AtomicU32::new(0) })
    }

    /// Numbers for the segments of a game.
    pub(super) fn ids(&self, count: u32) -> Id {
        self.next.fetch_add(count, Ordering::Relaxed)
    }

    pub(super) fn get(&self, id: Id) -> Option<Segment> {
        let mut kept = self.kept();
        let segment = kept.segments.get(&id).cloned()?;
        kept.queue.touch(id);
        Some(segment)
    }

    pub(super) fn keep(&self, id: Id, segment: Segment) {
        let mut kept = self.kept();
        kept.queue.insert(id, segment.len() as u64);
        kept.segments.insert(id, segment);
        while let Some(out) = kept.queue.evict(0) {
            kept.segments.remove(&out);
        }
    }

    pub(super) fn forget(&self, ids: Range<Id>) {
        let mut kept = self.kept();
        for id in ids {
            kept.queue.remove(id);
            kept.segments.remove(&id);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the kept segments.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.kept().segments.values().map(|segment| segment.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_stays_within_its_limit_and_forgets_a_game() {
        let cache = Cache::new(1000);
        let first = cache.ids(20);
        assert_eq!((first, cache.ids(1)), (0, 20));
        for id in 0..20 {
            cache.keep(id, Arc::new(vec![id as u8; 100]));
            assert!(cache.bytes() <= 1000);
        }
        let kept: Vec<Id> = (0..20).filter(|id| cache.get(*id).is_some()).collect();
        assert!(!kept.is_empty() && kept.iter().all(|id| cache.get(*id).unwrap()[0] == *id as u8));
        cache.forget(0..20);
        assert_eq!((cache.bytes(), cache.get(kept[0])), (0, None));
        // A segment above the limit is read, but not kept.
        cache.keep(20, Arc::new(vec![0; 1001]));
        assert_eq!(cache.bytes(), 0);
    }
}
