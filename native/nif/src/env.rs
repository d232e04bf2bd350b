//! Environments: `Sconce.Env.CartPole`.

use rustler::{Encoder, Env, Reference, Term};
use sconce_env::{CartPole, Demonstrations, Game, Play};

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
