//! Environments: `Sconce.Env.CartPole`.

use rustler::{Encoder, Env, Reference, Term};
use sconce_env::{CartPole, Demonstrations, EnvOptions, Game, Play};
use sconce_nn::spec::{HeadKind, Heads, HeadsKind};
use serde::Serialize;

use crate::border::{Data, Handle, Task, call, decode, labels_to, to_binary};
use crate::policy::PolicyHandle;

struct Games(Vec<Game>);

impl Encoder for Games {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let game = |game: &Game| (to_binary(env, &game.x), labels_to(env, &game.labels, true));
        self.0.iter().map(game).collect::<Vec<_>>().encode(env)
    }
}

/// Plays demonstrations. Sends `{:ok, [{x, labels}]}` by message.
///
/// # Shapes
/// `x [steps, observation_size]` f32, `labels [steps]` u16.
#[rustler::nif]
fn cartpole_demonstrations<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    options: Term<'a>,
) -> Term<'a> {
    call(env, "demonstrations", || {
        let options: Demonstrations = decode(options)?;
        Task::start(env, "demonstrations", reference, move |_reply, _cancelled| {
            options.play().map(Games)
        })
    })
}

/// Plays a policy. Sends `{:ok, %{returns, mean, decisions, median_us, p99_us}}` by message. With `velocities` the
/// policy sees the full state.
#[rustler::nif]
fn cartpole_play<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    policy: Handle<PolicyHandle>,
    velocities: bool,
    options: Term<'a>,
) -> Term<'a> {
    call(env, "play", || {
        let options: Play = decode(options)?;
        let policy = policy.get()?.policy().clone();
        Task::start(env, "play", reference, move |_reply, cancelled| {
            options.run(&policy, &mut CartPole::new(velocities), cancelled).map(Data)
        })
    })
}

/// What an environment is.
#[derive(Serialize)]
struct Described {
    name: &'static str,
    observation_size: usize,
    /// Names and kinds of the heads that choose an input.
    heads: Vec<(String, HeadKind)>,
    seats: usize,
    time_limit: u32,
    reward_terms: Vec<&'static str>,
    players: Vec<&'static str>,
    solved: Option<f32>,
}

/// The names of all environments.
#[rustler::nif]
fn env_names(env: Env<'_>) -> Term<'_> {
    call(env, "env", || Ok(Data(sconce_env::names())))
}

/// What the environment with these options is.
#[rustler::nif]
fn env_spec<'a>(env: Env<'a>, options: Term<'a>) -> Term<'a> {
    call(env, "env", || {
        let options: EnvOptions = decode(options)?;
        let spec = sconce_env::spec(&options)?;
        let heads = Heads::of_parts(&spec.inputs, HeadsKind::Independent);
        let heads = heads.parts.into_iter().map(|head| (head.name, head.kind)).collect();
        Ok(Data(Described {
            name: spec.name,
            observation_size: spec.observation_size,
            heads,
            seats: spec.seats,
            time_limit: spec.time_limit,
            reward_terms: spec.reward_terms,
            players: spec.players,
            solved: spec.solved,
        }))
    })
}
