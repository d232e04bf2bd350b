//! Counting of votes: `Sconce.Votes`.

use rustler::{Binary, Encoder, Env, Reference, Term};
use sconce_serve::votes::{Tally, tally};
use sconce_tensor::Result;
use sconce_tensor::pool::Class;

use crate::border::{Given, Task, call, error, from_binary, inline, pool};
use crate::evolve::Column;

mod atoms {
    rustler::atoms! { queued }
}

/// Bytes of votes that are counted on the caller's scheduler, in some ten microseconds.
const MOST_INLINE: usize = 32 << 10;
/// Bytes of votes that the threads of sessions count, in less than a millisecond.
const MOST_POOLED: usize = 1 << 20;

fn counted(votes: &[u8], voters: &[u8], choices: usize, share: f64) -> Result<(Column, Column)> {
    let votes = from_binary("votes", votes, u32::from_le_bytes)?;
    let voters = from_binary("voters", voters, u32::from_le_bytes)?;
    let Tally { counts, winners } = tally(&votes, &voters, choices, share)?;
    Ok((Column::U32(counts), Column::U32(winners)))
}

/// Counts and winners, as `{:ok, {counts, winners}}`: at once for few votes, otherwise by message.
#[rustler::nif]
fn votes_tally<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    votes: Binary<'a>,
    voters: Binary<'a>,
    choices: usize,
    share: f64,
) -> Term<'a> {
    let bytes = votes.len().saturating_add(voters.len().saturating_mul(choices));
    if bytes <= MOST_INLINE {
        return inline(env, "tally", || counted(&votes, &voters, choices, share));
    }
    let (votes, voters) = (Given::new(env, votes), Given::new(env, voters));
    let work =
        move || votes.bytes(|votes| voters.bytes(|voters| counted(votes, voters, choices, share)));
    if bytes > MOST_POOLED {
        return call(env, "tally", || {
            Task::start(env, "tally", reference, move |_events, _cancelled| {
                Class::Background.enter();
                work()
            })
        });
    }
    match pool::submit(env, "tally", reference, work) {
        Ok(()) => atoms::queued().encode(env),
        Err(failure) => error(env, "tally", &failure),
    }
}
