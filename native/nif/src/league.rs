//! Matches between players: `Sconce.League`.

use rustler::{Env, Reference, Term};
use sconce_env::EnvOptions;
use sconce_play::league::matches::{Tournament, play, rate};
use sconce_play::rollout::Frozen;
use sconce_tensor::Result;

use crate::border::{Data, Handle, Task, call, decode};
use crate::env::{Hosting, hosted};
use crate::policy::PolicyHandle;

/// Lets all pairs of players play, each a policy or the name of a scripted player. Sends `{:ok, payoff}` by message.
// Dirty: the weights of a packed policy are read from its file.
#[rustler::nif(schedule = "DirtyIo")]
fn league_play<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    players: Vec<Term<'a>>,
    (options, host): (Term<'a>, Hosting),
    tournament: Term<'a>,
) -> Term<'a> {
    call(env, "league", || {
        let (options, tournament): (EnvOptions, Tournament) =
            (hosted(decode(options)?, host), decode(tournament)?);
        let players = players.into_iter().map(|player| frozen(player, &options.env));
        let players = players.collect::<Result<Vec<Frozen>>>()?;
        Task::start(env, "league", reference, move |_events, cancelled| {
            play(&players, &options, tournament, cancelled).map(Data)
        })
    })
}

/// Rates players by their wins and draws against each other. Sends `{:ok, payoff}` by message.
#[rustler::nif]
fn league_rate<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    wins: Vec<Vec<u32>>,
    draws: Vec<Vec<u32>>,
) -> Term<'a> {
    call(env, "rate", || {
        Task::start(env, "rate", reference, move |_events, _cancelled| rate(wins, draws).map(Data))
    })
}

fn frozen(player: Term<'_>, env: &str) -> Result<Frozen> {
    match player.decode::<String>() {
        Ok(name) => sconce_env::player(env, &name).map(Frozen::Scripted),
        Err(_) => Ok(Frozen::Learned(Handle::<PolicyHandle>::of(player).get()?.policy()?)),
    }
}
