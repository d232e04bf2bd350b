//! Resumes a session from a snapshot.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use sconce_nn::Policy;
use sconce_serve::Session;
use sconce_serve::session::{Mode, Overrides};
use sconce_tensor::{Error, Result};

use super::checkpoint::{frame, options};
use super::specs;
use crate::bytes;
use crate::rng::Rng;

thread_local! {
    static SESSIONS: RefCell<Vec<(Session, Vec<f32>)>> = RefCell::new(sessions());
}

/// Sessions of a few models and modes, each with a frame.
fn sessions() -> Vec<(Session, Vec<f32>)> {
    let modes = [Mode::Carry, Mode::Window, Mode::Resync(3)];
    let specs = [
        specs::of_vectors("gru"),
        specs::of_vectors("sliding_window"),
        specs::of_vectors("mlp"),
        specs::of_melee("lstm"),
    ];
    let open = |(spec, mode)| {
        let policy = Arc::new(Policy::init(spec, 1).expect("a policy"));
        let raw = frame(&policy);
        (Session::open(policy, options(mode)).expect("a session"), raw)
    };
    specs.iter().flat_map(|spec| modes.map(|mode| (spec, mode))).map(open).collect()
}

/// Calls `work` with the session that the first byte selects, its frame, and the rest of the input.
pub fn with<T>(
    input: &[u8],
    work: impl FnOnce(&mut Session, &[f32], &[u8]) -> Result<T>,
) -> Result<T> {
    let (which, rest) = input.split_first().ok_or_else(|| Error::not_found("a byte"))?;
    SESSIONS.with_borrow_mut(|sessions| {
        let at = usize::from(*which) % sessions.len().max(1);
        let (session, raw) = sessions.get_mut(at).ok_or_else(|| Error::not_found("a session"))?;
        work(session, raw, rest)
    })
}

pub fn seeds() -> Vec<Vec<u8>> {
    let snapshots = |(i, (mut session, raw)): (usize, (Session, Vec<f32>))| {
        let mut snapshots = vec![];
        for frames in [0, 1, 7] {
            session.reset(Some(1)).expect("a session");
            (0..frames)
                .for_each(|_| drop(session.act(&raw, &Overrides::default()).expect("an act")));
            let bytes = session.snapshot().expect("a snapshot");
            snapshots.push([&[i as u8], bytes.as_slice()].concat());
        }
        snapshots
    };
    sessions().into_iter().enumerate().flat_map(snapshots).collect()
}

pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>) {
    match rng.one_in(3) {
        // Changes one of the eight-byte integers at the start.
        true if input.len() > 81 => {
            let at = 1 + 8 * rng.below(10);
            let odd = rng.pick(&bytes::ODD).to_le_bytes();
            input.iter_mut().skip(at).zip(odd).for_each(|(byte, new)| *byte = new);
        }
        true => bytes::mutate(rng, input),
        false => {
            let mut body = input.split_off(input.len().min(1));
            (0..1 + rng.up_to(3)).for_each(|_| bytes::mutate(rng, &mut body));
            input.extend(body);
        }
    }
    if !rng.one_in(6) {
        sign(input);
    }
}

/// Updates the digest at the end: FNV-1a of all bytes before it.
fn sign(input: &mut [u8]) {
    let split = input.len().saturating_sub(8);
    if split < 1 {
        return;
    }
    let (body, end) = input.split_at_mut(split);
    let digest = body.iter().skip(1).fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    });
    end.copy_from_slice(&digest.to_le_bytes());
}

pub fn run(input: &[u8], _dir: &Path) -> Result<()> {
    with(input, |session, raw, bytes| {
        session.reset(Some(1))?;
        let before = session.snapshot()?;
        if let Err(error) = session.restore(bytes) {
            assert!(session.snapshot()? == before, "a refused snapshot changed the session");
            return Err(error);
        }
        // `act` may return an error: a state of finite values may still lead to non-finite values.
        session.act(raw, &Overrides::default())?;
        session.act(raw, &Overrides::default())?;
        session.snapshot().map(drop)
    })
}
