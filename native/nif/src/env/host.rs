//! Worlds whose rules are processes of the VM: `Sconce.Env.Host`.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustler::thread::is_scheduler_thread;
use rustler::{
    Binary, Encoder, Env, LocalPid, Monitor, NewBinary, OwnedEnv, Resource, ResourceArc, Term,
};
use sconce_env::{Answered, Asked, Begin, Begun, Host, HostSpec, Worker};
use sconce_tensor::{Error, Result};

use crate::border::{Data, Handle, Handled, call, decode, from_binary, to_binary};

mod atoms {
    rustler::atoms! { sconce_host, open, reset, step, save, restore, close, ok }
}

/// A world and its processes, which answer requests.
///
/// 1. A request goes to a process as `{:sconce_host, number, request}`, from a native thread, which waits until the
///    process has answered by `host_answer`, has died, or the deadline has passed.
/// 2. The handle monitors the processes. Each process has the handle, and ends with its owner.
pub(crate) struct HostHandle {
    host: Arc<Host>,
    link: Arc<Link>,
}

#[rustler::resource_impl]
impl Resource for HostHandle {
    fn down<'a>(&'a self, _env: Env<'a>, pid: LocalPid, _monitor: Monitor) {
        self.link.bury(pid);
    }
}

impl Handled for HostHandle {
    const NOUN: &'static str = "environments of a module";
}

impl HostHandle {
    pub(crate) fn host(&self) -> Arc<Host> {
        self.host.clone()
    }
}

/// The processes of a host, and the requests that wait for their answers.
struct Link {
    name: String,
    workers: Vec<LocalPid>,
    deadline: Duration,
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of the last request.
    last: u64,
    /// Requests without an answer that was taken.
    waiting: HashMap<u64, Option<std::result::Result<Parts, String>>>,
    dead: Vec<bool>,
    /// Number of all environments, which are divided among the processes.
    count: u64,
    groups: HashMap<u64, Vec<Share>>,
}

/// The binaries of an answer.
type Parts = Vec<Vec<u8>>;

/// The environments of a group that one process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    worker: usize,
    /// Index of the first one in the group.
    from: usize,
    count: usize,
    /// Index of the first one among all environments.
    first: u64,
}

impl Share {
    /// Indices in the group.
    fn range(self) -> Range<usize> {
        self.from..self.from + self.count
    }
}

/// Divides environments `first..first + count` among processes that have equal parts of `all`.
fn shares(first: u64, count: usize, all: u64, workers: usize) -> Vec<Share> {
    let of = |worker: usize| worker as u64 * all / workers as u64;
    let end = first + count as u64;
    let share = |worker: usize| {
        // The last process has the environments beyond `all` too.
        let last = if worker + 1 == workers { u64::MAX } else { of(worker + 1) };
        let (from, to) = (of(worker).max(first), last.min(end));
        let at = from.saturating_sub(first) as usize;
        (from < to).then(|| Share { worker, from: at, count: (to - from) as usize, first: from })
    };
    (0..workers).filter_map(share).collect()
}

/// A request to a process.
enum Request<'a> {
    Open(u64, Share),
    /// Index in the share, environment, episode and seed of each episode that begins.
    Reset(u64, Vec<(usize, u64, u32, u64)>),
    Step(u64, Asked<'a>),
    Save(u64),
    Restore(u64, &'a [Vec<u8>]),
    Close(u64),
}

impl Encoder for Request<'_> {
    fn encode<'e>(&self, env: Env<'e>) -> Term<'e> {
        let binary = |bytes: &[u8]| Term::from(NewBinary::from_slice(env, bytes));
        match self {
            Request::Open(group, share) => {
                (atoms::open(), group, share.first, share.count).encode(env)
            }
            Request::Reset(group, begins) => (atoms::reset(), group, begins).encode(env),
            Request::Step(group, Asked { inputs, active }) => {
                (atoms::step(), group, to_binary(env, inputs), binary(active)).encode(env)
            }
            Request::Save(group) => (atoms::save(), group).encode(env),
            Request::Restore(group, states) => {
                let states: Vec<Term<'_>> = states.iter().map(|state| binary(state)).collect();
                (atoms::restore(), group, states).encode(env)
            }
            Request::Close(group) => (atoms::close(), group).encode(env),
        }
    }
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a process has ended.
    fn bury(&self, pid: LocalPid) {
        let mut state = self.state();
        for (worker, dead) in self.workers.iter().zip(&mut state.dead) {
            *dead |= *worker == pid;
        }
        self.told.notify_all();
    }

    /// Sends a request to the process of each share and waits for all answers.
    fn ask(&self, requests: Vec<(Share, Request<'_>)>) -> Result<Vec<Parts>> {
        let begun = Instant::now();
        let number = |(share, request)| (self.send(share, &request), share);
        let numbered: Vec<(u64, Share)> = requests.into_iter().map(number).collect();
        let answers = self.answers(&numbered, begun);
        let mut state = self.state();
        numbered.iter().for_each(|(number, _)| drop(state.waiting.remove(number)));
        answers
    }

    /// Asks the process of each share of a group.
    fn ask_all<'a>(
        &self,
        group: u64,
        request: impl Fn(Share) -> Option<Request<'a>>,
    ) -> Result<Vec<Parts>> {
        let shares = self.state().groups.get(&group).cloned().unwrap_or_default().into_iter();
        self.ask(shares.filter_map(|share| Some((share, request(share)?))).collect())
    }

    /// Sends a request and returns its number.
    fn send(&self, share: Share, request: &Request<'_>) -> u64 {
        let mut state = self.state();
        state.last += 1;
        let number = state.last;
        state.waiting.insert(number, None);
        drop(state);
        self.tell(share, number, request);
        number
    }

    fn tell(&self, share: Share, number: u64, request: &Request<'_>) {
        let message = |env| (atoms::sconce_host(), number, request).encode(env);
        // Sending fails only if the receiver is dead, which the monitor tells.
        let _ = OwnedEnv::new().send_and_clear(&self.workers[share.worker], message);
    }

    fn answers(&self, numbered: &[(u64, Share)], begun: Instant) -> Result<Vec<Parts>> {
        let mut state = self.state();
        let mut all = vec![];
        for (number, share) in numbered {
            loop {
                if let Some(answer) = state.waiting.get_mut(number).and_then(Option::take) {
                    all.push(answer.map_err(|message| Error::Panic {
                        message: format!("{}: {message}", self.named(*share)),
                    })?);
                    break;
                }
                if state.dead[share.worker] {
                    let what = format!("the process of {}", self.named(*share));
                    return Err(Error::Unavailable { what, reason: "it has ended".into() });
                }
                let left = self.deadline.saturating_sub(begun.elapsed());
                if left.is_zero() {
                    return Err(self.late(*share, begun));
                }
                let waited = self.told.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        Ok(all)
    }

    fn named(&self, share: Share) -> String {
        let last = share.first + share.count as u64 - 1;
        match share.count {
            1 => format!("environment {last} of {}", self.name),
            _ => format!("environments {} to {last} of {}", share.first, self.name),
        }
    }

    fn late(&self, share: Share, begun: Instant) -> Error {
        Error::Deadline {
            what: format!("the answer of {}", self.named(share)),
            deadline_ms: self.deadline.as_millis() as u64,
            waited_ms: begun.elapsed().as_secs_f64() * 1e3,
        }
    }

    /// Stores an answer; one to a request that nothing waits for is dropped.
    fn answer(&self, number: u64, answer: std::result::Result<Parts, String>) {
        if let Some(slot) = self.state().waiting.get_mut(&number) {
            *slot = Some(answer);
            self.told.notify_all();
        }
    }
}

/// The `at`-th binaries of all answers as f32, one after the other.
fn floats(answers: &[Parts], at: usize, what: &str) -> Result<Vec<f32>> {
    let mut all = vec![];
    for parts in answers {
        let bytes = parts.get(at).map_or(&[][..], Vec::as_slice);
        all.extend(from_binary(what, bytes, f32::from_le_bytes)?);
    }
    Ok(all)
}

/// The processes, as a host asks them.
struct Asker(Arc<Link>);

/// The `at`-th binaries of all answers, one after the other.
fn bytes(answers: &[Parts], at: usize) -> Vec<u8> {
    answers.iter().filter_map(|parts| parts.get(at)).flatten().copied().collect()
}

impl Worker for Asker {
    fn divide(&self, count: usize) {
        self.0.state().count = count as u64;
    }

    fn open(&self, group: u64, first: u64, count: usize) -> Result<()> {
        let mut state = self.0.state();
        let shares = shares(first, count, state.count, self.0.workers.len());
        state.groups.insert(group, shares);
        drop(state);
        self.0.ask_all(group, |share| Some(Request::Open(group, share))).map(drop)
    }

    fn reset(&self, group: u64, begins: &[Begin]) -> Result<Begun> {
        let answers = self.0.ask_all(group, |share| {
            let own = begins.iter().filter(|begin| share.range().contains(&begin.at));
            let own = own.map(|b| (b.at - share.from, b.env, b.episode, b.seed));
            let own: Vec<_> = own.collect();
            (!own.is_empty()).then_some(Request::Reset(group, own))
        })?;
        Ok(Begun {
            observations: floats(&answers, 0, "observations of a reset")?,
            masks: bytes(&answers, 1),
        })
    }

    fn step(&self, group: u64, asked: Asked<'_>) -> Result<Answered> {
        let numbers = asked.inputs.len() / asked.active.len().max(1);
        let answers = self.0.ask_all(group, |share| {
            let inputs = &asked.inputs[share.from * numbers..][..share.count * numbers];
            let active = &asked.active[share.range()];
            Some(Request::Step(group, Asked { inputs, active }))
        })?;
        Ok(Answered {
            observations: floats(&answers, 0, "observations of a step")?,
            rewards: floats(&answers, 1, "rewards of a step")?,
            flags: bytes(&answers, 2),
            masks: bytes(&answers, 3),
        })
    }

    fn save(&self, group: u64) -> Result<Vec<Vec<u8>>> {
        let answers = self.0.ask_all(group, |_| Some(Request::Save(group)))?;
        Ok(answers.into_iter().flatten().collect())
    }

    fn restore(&self, group: u64, states: Vec<Vec<u8>>) -> Result<Vec<bool>> {
        let of = |share: Share| Some(Request::Restore(group, &states[share.range()]));
        let answers = self.0.ask_all(group, of)?.into_iter().flatten().flatten();
        Ok(answers.map(|byte| byte == 1).collect())
    }

    fn close(&self, group: u64) {
        let shares = self.0.state().groups.remove(&group).unwrap_or_default();
        // On a scheduler thread nothing can be sent; the processes then forget the group when they end.
        if !is_scheduler_thread() {
            shares.into_iter().for_each(|share| self.0.tell(share, 0, &Request::Close(group)));
        }
    }
}

/// Opens a world that these processes step, `count` environments together. They then get the handle.
#[rustler::nif]
fn host_new<'a>(
    env: Env<'a>,
    workers: Vec<LocalPid>,
    spec: Term<'a>,
    count: u64,
    deadline_ms: u64,
) -> Term<'a> {
    call(env, "env", || {
        let spec: HostSpec = decode(spec)?;
        let link = Arc::new(Link {
            name: spec.name.clone(),
            deadline: Duration::from_millis(deadline_ms),
            state: Mutex::new(State {
                dead: vec![false; workers.len()],
                count,
                ..State::default()
            }),
            told: Condvar::new(),
            workers,
        });
        let host = Host::new(spec, Box::new(Asker(link.clone())))?;
        let handle = ResourceArc::new(HostHandle { host, link });
        for worker in &handle.link.workers {
            // A process that is gone is dead.
            if env.monitor(&handle, worker).is_none() {
                handle.link.bury(*worker);
            }
        }
        Ok(handle)
    })
}

/// Answers a request: with binaries, or with the message of an error.
#[rustler::nif]
fn host_answer<'a>(
    env: Env<'a>,
    handle: Handle<HostHandle>,
    number: u64,
    answer: Term<'a>,
) -> Term<'a> {
    call(env, "env", || {
        let handle = handle.get()?;
        let answer = match answer.decode::<Vec<Binary<'a>>>() {
            Ok(parts) => Ok(parts.iter().map(|part| part.as_slice().to_vec()).collect()),
            Err(_) => Err(answer.decode().unwrap_or_else(|_| "no message".to_string())),
        };
        handle.link.answer(number, answer);
        Ok(Data(true))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_are_divided_evenly_whatever_the_groups_are() {
        let of = |first, count| {
            let all = shares(first, count, 10, 3);
            assert_eq!(all.iter().map(|share| share.count).sum::<usize>(), count);
            all.iter().map(|share| (share.worker, share.from, share.count)).collect::<Vec<_>>()
        };
        assert_eq!(of(0, 10), [(0, 0, 3), (1, 3, 3), (2, 6, 4)]);
        assert_eq!(of(2, 3), [(0, 0, 1), (1, 1, 2)]);
        assert_eq!(of(9, 4), [(2, 0, 4)]);
        assert_eq!(shares(0, 2, 2, 8).len(), 2);
    }
}
