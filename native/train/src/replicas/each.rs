//! Parallel work on replicas, each on its own thread.

use std::io;
use std::thread::{self, ScopedJoinHandle};

use sconce_tensor::pool::Class;
use sconce_tensor::{Error, Result, device};

use super::replica::Replica;

/// Stack of a thread: a graph is walked and dropped recursively.
const STACK_BYTES: usize = 64 << 20;

/// Runs `work` in parallel, on each replica and its value in `own`. Returns the results in the order of the replicas,
/// after all are done.
pub(super) fn each<T: Send, U: Send>(
    all: &mut [Replica],
    own: &mut [U],
    work: impl Fn(&mut Replica, &mut U) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let work = &|replica: &mut Replica, own: &mut U| {
        device::attach(replica.stepper.policy().device());
        work(replica, own)
    };
    thread::scope(|scope| {
        let mut pairs = all.iter_mut().zip(own);
        let first = pairs.next();
        let others: Vec<_> = pairs
            .map(|(replica, own)| {
                let thread = thread::Builder::new().stack_size(STACK_BYTES);
                thread.spawn_scoped(scope, Class::inherit(move || work(replica, own)))
            })
            .collect();
        let first = first.map(|(replica, own)| work(replica, own));
        first.into_iter().chain(others.into_iter().map(outcome)).collect()
    })
}

fn outcome<T>(thread: io::Result<ScopedJoinHandle<'_, Result<T>>>) -> Result<T> {
    let thread = thread
        .map_err(|e| Error::Unavailable { what: "a thread".into(), reason: e.to_string() })?;
    thread.join().unwrap_or_else(|payload| Err(Error::of_panic(payload)))
}
