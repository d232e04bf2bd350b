//! Environments: `Sconce.Env` and `Sconce.Env.CartPole`.

mod buffers;
mod handle;
mod host;

use rustler::{Atom, Binary, Encoder, Env, Reference, ResourceArc, Term};
use sconce_env::{CartPole, Demonstrations, EnvOptions, Game, Play};
use sconce_nn::spec::{HeadKind, Heads, HeadsKind};
use sconce_play::evaluate::{evaluate, trace};
use sconce_tensor::{Error, Result, pool as threads};
use serde::{Deserialize, Serialize};

use crate::border::{
    Answer, Bytes, Data, Given, Handle, Task, call, decode, error, guard, inline, labels_to,
    perform, pool, to_binary,
};
use crate::policy::PolicyHandle;
use buffers::EnvBuffers;
use handle::{EnvHandle, Taken};
pub(crate) use host::HostHandle;

mod atoms {
    rustler::atoms! { queued }
}

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
        let policy = policy.get()?;
        Task::start(env, "play", reference, move |_reply, cancelled| {
            let policy = policy.policy()?;
            options.run(&policy, &mut CartPole::new(velocities), cancelled).map(Data)
        })
    })
}

/// The description of an environment.
#[derive(Serialize)]
struct Described {
    name: String,
    observation_size: usize,
    observation_shape: Vec<usize>,
    /// Numbers of an input.
    num_labels: usize,
    /// Names and kinds of the heads that choose an input.
    heads: Vec<(String, HeadKind)>,
    seats: usize,
    time_limit: u32,
    reward_terms: Vec<String>,
    players: Vec<String>,
    solved: Option<f32>,
    /// Entries in the action mask of a row; 0 without masks.
    mask_size: usize,
}

/// The names of all environments.
#[rustler::nif]
fn env_names(env: Env<'_>) -> Term<'_> {
    call(env, "env", || Ok(Data(sconce_env::names())))
}

/// The processes of a module, if the world's rules are one.
pub(crate) type Hosting = Option<ResourceArc<HostHandle>>;

/// The options with the processes of a module.
pub(crate) fn hosted(options: EnvOptions, host: Hosting) -> EnvOptions {
    EnvOptions { host: host.map(|host| host.host()), ..options }
}

/// The description of the environment with these options.
#[rustler::nif]
fn env_spec<'a>(env: Env<'a>, options: Term<'a>, host: Hosting) -> Term<'a> {
    call(env, "env", || {
        let options = hosted(decode(options)?, host);
        let spec = sconce_env::spec(&options)?;
        let heads = Heads::of_parts(&spec.inputs, HeadsKind::Independent);
        let heads = heads.parts.into_iter().map(|head| (head.name, head.kind)).collect();
        Ok(Data(Described {
            num_labels: spec.labels(),
            name: spec.name.into(),
            observation_size: spec.observation_size,
            observation_shape: spec.observation_shape,
            heads,
            seats: spec.seats,
            time_limit: spec.time_limit,
            reward_terms: spec.reward_terms.into_iter().map(Into::into).collect(),
            players: spec.players.into_iter().map(Into::into).collect(),
            solved: spec.solved,
            mask_size: spec.mask_size,
        }))
    })
}

/// Creates environments on a native thread. Sends `{:ok, {handle, step_us, inline}}` by message.
#[rustler::nif]
fn env_new<'a>(env: Env<'a>, reference: Reference<'a>, options: Term<'a>) -> Term<'a> {
    perform(env, "env", || {
        let options: EnvOptions = decode(options)?;
        pool::submit(env, "env", reference, move || {
            let buffers = EnvBuffers::new(&options)?;
            let step_us = buffers::step_us(&options)?;
            let handle = EnvHandle::new(buffers, step_us);
            let inline = handle.is_inline();
            Ok((handle, step_us, inline))
        })
    })
}

/// Runs `work` on the environments and a binary: on the caller's scheduler, or on a native thread if their steps take
/// long. In the second case the result is `:queued`, and the answer comes by message.
fn run<'a, T: Answer>(
    env: Env<'a>,
    op: &'static str,
    handle: Handle<EnvHandle>,
    reference: Reference<'a>,
    given: Option<Binary<'a>>,
    work: impl FnOnce(&mut EnvBuffers, &[u8]) -> Result<T> + Send + 'static,
) -> Term<'a> {
    let mut taken = match guard(|| Taken::new(handle.get()?)) {
        Ok(taken) => taken,
        Err(failure) => return error(env, op, &failure),
    };
    if taken.is_inline() {
        let bytes = given.as_ref().map_or(&[][..], |given| given.as_slice());
        // Without other threads the scheduler never waits.
        return inline(env, op, move || threads::serial(|| work(taken.buffers()?, bytes)));
    }
    let given = given.map(|given| Given::new(env, given.to_term(env)));
    // The environments are put back before the answer is sent: the caller may then call again.
    let queued = pool::submit(env, op, reference, move || match given {
        Some(given) => given.bytes(|bytes| work(taken.buffers()?, bytes)),
        None => work(taken.buffers()?, &[]),
    });
    match queued {
        Ok(()) => atoms::queued().encode(env),
        Err(failure) => error(env, op, &failure),
    }
}

/// Begins episodes: of all environments, or of those of `mask`, one byte each. Returns `{:ok, observations}`.
#[rustler::nif]
fn env_reset<'a>(
    env: Env<'a>,
    handle: Handle<EnvHandle>,
    reference: Reference<'a>,
    seed: Option<u64>,
    mask: Option<Binary<'a>>,
) -> Term<'a> {
    let masked = mask.is_some();
    run(env, "reset", handle, reference, mask, move |buffers, mask| {
        match masked {
            true => buffers.reset_where(mask)?,
            false => buffers.reset(seed)?,
        }
        Ok(buffers.share().column(buffers::column("observation")?))
    })
}

/// Copies inputs `[rows, labels]` into the buffer of the next `env_advance`.
#[rustler::nif]
fn env_put<'a>(
    env: Env<'a>,
    handle: Handle<EnvHandle>,
    reference: Reference<'a>,
    inputs: Binary<'a>,
) -> Term<'a> {
    run(env, "put", handle, reference, Some(inputs), |buffers, inputs| {
        buffers.put(inputs)?;
        Ok(true)
    })
}

/// Steps with these inputs. Returns `{:ok, {observation, reward, terminated, truncated, final_observation, ended}}`.
#[rustler::nif]
fn env_step<'a>(
    env: Env<'a>,
    handle: Handle<EnvHandle>,
    reference: Reference<'a>,
    inputs: Binary<'a>,
) -> Term<'a> {
    run(env, "step", handle, reference, Some(inputs), |buffers, inputs| {
        buffers.step_with(inputs)?;
        Ok(buffers.share())
    })
}

/// Steps with the inputs of the buffer. Returns `{:ok, number_of_ended_rows}`.
#[rustler::nif]
fn env_advance<'a>(env: Env<'a>, handle: Handle<EnvHandle>, reference: Reference<'a>) -> Term<'a> {
    run(env, "step", handle, reference, None, |buffers, _| buffers.step())
}

/// A binary of the last step, without a copy.
#[rustler::nif]
fn env_read<'a>(env: Env<'a>, handle: Handle<EnvHandle>, name: Atom) -> Term<'a> {
    inline(env, "read", || {
        let name = name.to_term(env).atom_to_string().unwrap_or_default();
        let column = buffers::column(&name)?;
        Ok(Taken::new(handle.get()?)?.buffers()?.share().column(column))
    })
}

/// The rows whose episode ended in the last step.
#[rustler::nif]
fn env_ended<'a>(env: Env<'a>, handle: Handle<EnvHandle>, reference: Reference<'a>) -> Term<'a> {
    run(env, "read", handle, reference, None, |buffers, _| Ok(buffers.share().ended()))
}

/// Finished episodes since the last call, as in [`EnvBuffers::episodes`].
#[rustler::nif]
fn env_episodes<'a>(env: Env<'a>, handle: Handle<EnvHandle>, reference: Reference<'a>) -> Term<'a> {
    run(env, "episodes", handle, reference, None, |buffers, _| Ok(Bytes(buffers.episodes())))
}

/// The full state of an environment as f32.
#[rustler::nif]
fn env_state<'a>(env: Env<'a>, handle: Handle<EnvHandle>, at: usize) -> Term<'a> {
    inline(env, "state", || {
        let state = Taken::new(handle.get()?)?.buffers()?.state(at)?;
        Ok(to_binary(env, &state))
    })
}

/// Steps of all environments so far.
#[rustler::nif]
fn env_steps<'a>(env: Env<'a>, handle: Handle<EnvHandle>) -> Term<'a> {
    call(env, "env", || Ok(handle.get()?.steps()))
}

/// A shot of billiards.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shot {
    /// The numbers of the table's state.
    state: Vec<f32>,
    /// Angle, power, top spin and side spin.
    input: Vec<f32>,
    /// Seconds between two frames.
    interval_s: f32,
}

/// Traces a shot of billiards. Sends `{:ok, %{frames, events, state, terms}}` by message.
#[rustler::nif]
fn env_shot<'a>(env: Env<'a>, reference: Reference<'a>, shot: Term<'a>) -> Term<'a> {
    perform(env, "shot", || {
        let Shot { state, input, interval_s } = decode(shot)?;
        pool::submit(env, "shot", reference, move || {
            sconce_env::shot(&state, &input, interval_s).and_then(data)
        })
    })
}

fn data(of: impl Serialize) -> Result<Data<serde_json::Value>> {
    serde_json::to_value(of).map(Data).map_err(|e| Error::corrupt("answer", e))
}

/// Plays episodes with a policy, or records one of them. Sends the figures or the trace by message.
#[rustler::nif]
fn env_play<'a>(
    env: Env<'a>,
    reference: Reference<'a>,
    policy: Handle<PolicyHandle>,
    options: Term<'a>,
    host: Hosting,
    play: Term<'a>,
    traced: bool,
) -> Term<'a> {
    call(env, "play", || {
        let (options, play) = (hosted(decode(options)?, host), decode(play)?);
        let policy = policy.get()?;
        Task::start(env, "play", reference, move |_events, cancelled| {
            let policy = policy.policy()?;
            match traced {
                true => trace(&policy, &options, play, cancelled).and_then(data),
                false => evaluate(&policy, &options, play, cancelled).and_then(data),
            }
        })
    })
}
