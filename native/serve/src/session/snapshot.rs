//! A session as bytes. Everything is little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 4 | `SCNS` |
//! | 4 | version |
//! | 8 | digest of the Spec |
//! | 8, 8, 8 | resync interval (0 carry, 2^64 - 1 window), window size, frame delay |
//! | 8, 8 | seed, number of decisions since the start |
//! | 8, 8 | 1 if frames have game frame numbers, else 0; the last game frame number |
//! | 4, 2, 4 each | logits, labels and confidence of the last decision |
//! | 2 each | labels of the latest inputs, newest first, 2^16 - 1 where none is known |
//! | 8, 4 each | count and values of the state |
//! | 8, then per row | count of the kept frames, oldest first; continuous, ids, labels of each |
//! | 8 | digest of all bytes before |
//!
//! If a head chooses numbers, a label is a 4-byte float, infinite where none is known.
//!
//! A snapshot holds neither weights nor sampling options: the session that restores it uses its own.

use sconce_nn::embedding::IdSlot;
use sconce_nn::head::{NONE, of_word, to_word};
use sconce_nn::heads::Decision;
use sconce_tensor::{Error, Result};

use super::carried::Carried;
use super::moments::Moment;
use super::open::{Session, kept_frames};
use super::options::Mode;
use super::past::Past;
use super::query::Way;
use super::ring::Ring;
use crate::digest::digest;
use crate::frames::{EmbeddedFrame, check_labels};

const MAGIC: &[u8; 4] = b"SCNS";
/// Readers refuse snapshots of another version.
const VERSION: u32 = 3;
const WHAT: &str = "snapshot";

impl Session {
    /// Serialises the session's memory for [`Session::restore`].
    pub fn snapshot(&self) -> Result<Vec<u8>> {
        let now = self.moments.now();
        let mut out = Vec::with_capacity(128 + now.state.bytes() + self.ring.bytes());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        for number in self.identity().into_iter().chain([self.seed, now.frames]) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in [i64::from(now.game_frame.is_some()), now.game_frame.unwrap_or(0)] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let Decision { logits, choices, confidence } = &now.decision;
        out.extend(logits.iter().flat_map(|number| number.to_le_bytes()));
        write(choices, self.are_words(), &mut out);
        out.extend(confidence.iter().flat_map(|number| number.to_le_bytes()));
        write(now.past.labels(), self.are_words(), &mut out);
        let state = now.state.to_vec()?;
        out.extend_from_slice(&(state.len() as u64).to_le_bytes());
        out.extend(state.iter().flat_map(|number| number.to_le_bytes()));
        let kept = self.ring.len().min(self.seen());
        out.extend_from_slice(&(kept as u64).to_le_bytes());
        for row in self.ring.newest(kept) {
            out.extend(row.continuous.iter().flat_map(|number| number.to_le_bytes()));
            out.extend(row.ids.iter().flat_map(|id| id.to_le_bytes()));
            write(row.previous, self.are_words(), &mut out);
        }
        out.extend_from_slice(&digest(&out).to_le_bytes());
        Ok(out)
    }

    /// Restores a snapshot of a session with the same Spec, mode, window size and frame delay. On failure the session
    /// is unchanged.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<()> {
        let (seed, now, ring) = self.parse(bytes)?;
        (self.seed, self.ring) = (seed, ring);
        self.moments.begin(now);
        self.asked.way = Way::Made(0);
        self.forget_recorded();
        Ok(())
    }

    /// Whether all labels are bits and classes, stored in 16 bits each.
    fn are_words(&self) -> bool {
        self.policy().spec().heads.are_words()
    }

    /// Number of frames that a decision sees besides its own.
    fn seen(&self) -> usize {
        kept_frames(&self.model, &self.options).saturating_sub(self.options.rollback)
    }

    /// Values that must be equal in a snapshot and in the session that restores it.
    fn identity(&self) -> [u64; 4] {
        let interval = match self.options.mode {
            Mode::Carry => 0,
            Mode::Resync(every) => every,
            Mode::Window => u64::MAX,
        };
        let (window, delay) = (self.options.window_size as u64, self.delay as u64);
        [self.model.spec_digest(), interval, window, delay]
    }

    fn parse(&self, bytes: &[u8]) -> Result<(u64, Moment, Ring)> {
        let mut read = Reader(open(bytes)?);
        let parts = ["Spec", "mode", "window size", "frame delay"];
        for (what, own) in parts.into_iter().zip(self.identity()) {
            let found = read.u64()?;
            if found != own {
                let what = format!("{what} of the snapshot");
                return Err(Error::mismatch(what, "the session's", "another"));
            }
        }
        let (seed, frames) = (read.u64()?, read.u64()?);
        let game_frame = match (read.u64()?, read.u64()? as i64) {
            (0, 0) => None,
            (1, frame) if frames > 0 => Some(frame),
            _ => return Err(corrupt("a game frame number without a frame")),
        };
        let decision = self.read_decision(&mut read)?;
        let past = self.read_past_of(&mut read, frames)?;
        let state = self.model.zero_state().with_values(&read.state()?)?;
        let state = Carried::new(state, self.model.plan())?;
        let ring = self.ring(&mut read, frames)?;
        let now = Moment { frames, game_frame, state, past, decision, run: None };
        if read.0.is_empty() { Ok((seed, now, ring)) } else { Err(corrupt("bytes after its end")) }
    }

    fn read_decision(&self, read: &mut Reader<'_>) -> Result<Decision> {
        let Decision { logits, choices, confidence } = self.model.blank();
        let decision = Decision {
            logits: read.finite(logits.len())?,
            choices: read.labels(choices.len(), self.are_words())?,
            confidence: read.finite(confidence.len())?,
        };
        check_labels(&self.policy().spec().heads, &decision.choices).map_err(corrupt)?;
        Ok(decision)
    }

    fn read_past_of(&self, read: &mut Reader<'_>, frames: u64) -> Result<Past> {
        let mut past = self.moments.now().past.clone();
        let labels = read.labels(past.labels().len(), self.are_words())?;
        past.load(&labels, &self.policy().spec().heads).map_err(corrupt)?;
        if past.get(0).is_some() != (frames > 0) {
            return Err(corrupt("an action before the first frame, or none after it"));
        }
        Ok(past)
    }

    fn ring(&self, read: &mut Reader<'_>, frames: u64) -> Result<Ring> {
        let spec = self.policy().spec();
        let mut row = EmbeddedFrame::blank(spec);
        let mut ring = Ring::new(kept_frames(&self.model, &self.options), &row)?;
        let rows = read.u64()?;
        if rows != frames.min(self.seen() as u64) {
            return Err(corrupt("the number of kept frames does not fit its mode"));
        }
        let slots = spec.embedding.id_slots();
        for _ in 0..rows {
            row.continuous = read.finite(row.continuous.len())?;
            row.ids = read.ids(slots)?;
            row.previous = read.labels(row.previous.len(), self.are_words())?;
            if row.previous.first() != Some(&NONE) {
                check_labels(&spec.heads, &row.previous).map_err(corrupt)?;
            }
            ring.push(row.frame());
        }
        Ok(ring)
    }
}

/// Checks magic, version and digest, and returns the bytes between them.
fn open(bytes: &[u8]) -> Result<&[u8]> {
    let mut read = Reader(bytes);
    if read.take(MAGIC.len())? != MAGIC {
        return Err(corrupt("not a snapshot of a session"));
    }
    let version = read.array().map(u32::from_le_bytes)?;
    if version != VERSION {
        return Err(Error::mismatch("version of the snapshot", VERSION, version));
    }
    let split = bytes.len().saturating_sub(size_of::<u64>());
    let (before, end) = bytes.split_at_checked(split).unwrap_or((bytes, &[]));
    if end != digest(before).to_le_bytes() {
        return Err(corrupt("truncated or changed: its digest does not match"));
    }
    before.get(MAGIC.len() + size_of::<u32>()..).ok_or_else(|| corrupt("too short"))
}

fn write(labels: &[f32], words: bool, out: &mut Vec<u8>) {
    match words {
        true => out.extend(labels.iter().flat_map(|label| to_word(*label).to_le_bytes())),
        false => out.extend(labels.iter().flat_map(|label| label.to_le_bytes())),
    }
}

fn corrupt(reason: impl ToString) -> Error {
    Error::corrupt(WHAT, reason)
}

/// The unread bytes.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count).ok_or_else(|| corrupt("too short"))?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| corrupt("too short"))
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn numbers<T, const N: usize>(&mut self, count: usize, of: fn([u8; N]) -> T) -> Result<Vec<T>> {
        let bytes = count.checked_mul(N).ok_or_else(|| corrupt("too long"))?;
        let (numbers, _) = self.take(bytes)?.as_chunks();
        Ok(numbers.iter().map(|number| of(*number)).collect())
    }

    fn labels(&mut self, count: usize, words: bool) -> Result<Vec<f32>> {
        match words {
            true => self.numbers(count, |bytes| of_word(u16::from_le_bytes(bytes))),
            false => self.numbers(count, f32::from_le_bytes),
        }
    }

    fn finite(&mut self, count: usize) -> Result<Vec<f32>> {
        let numbers = self.numbers(count, f32::from_le_bytes)?;
        match numbers.iter().all(|number| number.is_finite()) {
            true => Ok(numbers),
            false => Err(corrupt("a number that is not finite")),
        }
    }

    fn state(&mut self) -> Result<Vec<f32>> {
        let count = self.u64()?;
        self.finite(usize::try_from(count).map_err(corrupt)?)
    }

    fn ids(&mut self, slots: &[IdSlot]) -> Result<Vec<u32>> {
        let ids = self.numbers(slots.len(), u32::from_le_bytes)?;
        match ids.iter().zip(slots).all(|(id, slot)| (*id as usize) < slot.rows) {
            true => Ok(ids),
            false => Err(corrupt("an id without a row")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sconce_nn::sampling::Sampling;
    use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, RecurrentConfig};
    use sconce_nn::{Policy, Spec};
    use sconce_realtime::Format;

    use super::super::{Options, Overrides};
    use super::*;
    use crate::digest::spec_digest;

    fn session() -> Session {
        let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 4 };
        let spec = Spec {
            embedding: Embedding::vector(2),
            backbone: Backbone::Gru(RecurrentConfig {
                hidden_size: 3,
                num_layers: 1,
                layer_norm: false,
                input_norm: false,
                dropout: 0.0,
                input_dropout: 0.0,
                ..Default::default()
            }),
            heads: Heads {
                kind: HeadsKind::Independent,
                parts: vec![head("a", HeadKind::Bernoulli(2)), head("b", HeadKind::Categorical(3))],
                stream_size: 4,
                prior: false,
            },
            critic: None,
        };
        let options = Options {
            mode: Mode::Window,
            window_size: 4,
            sampling: Sampling::default(),
            seed: 1,
            lane: None,
            frame_delay: None,
            project_out: None,
            weights: Format::F32,
            rollback: 2,
        };
        Session::open(Arc::new(Policy::init(&spec, 1).unwrap()), options).unwrap()
    }

    #[test]
    fn a_snapshot_knows_a_backbone_by_its_first_name() {
        let of = |name: &str| {
            format!(
                r#"{{"embedding":{{"vector":2}},"backbone":{{"{name}":{{"hidden_size":4,"num_layers":1,"num_heads":1,"head_dim":2,"window_size":3,"qk_layernorm":true,"input_norm":false,"dropout":0.5,"input_dropout":0.0}}}},"heads":{{"kind":"independent","parts":[{{"name":"causal_transformer","kind":{{"categorical":2}},"hidden_size":4}}],"stream_size":4,"prior":false}}}}"#
            )
        };
        let names = [
            ("decision_transformer", "decision_transformer"),
            ("causal_transformer", "decision_transformer"),
            ("sliding_window", "sliding_window"),
        ];
        for (name, first) in names {
            let spec: Spec = serde_json::from_str(&of(name)).unwrap();
            assert_eq!(spec_digest(&spec).unwrap(), digest(of(first).as_bytes()), "{name}");
        }
    }

    /// Tries every length and every flipped bit, without and with a recomputed digest.
    #[test]
    fn truncated_or_changed_bytes_are_refused_or_read_but_never_panic() {
        let mut session = session();
        for i in 0..6 {
            session.act(&[i as f32, 1.0], &Overrides::default()).unwrap();
        }
        let good = session.snapshot().unwrap();
        for length in 0..good.len() {
            assert!(session.restore(&good[..length]).is_err(), "{length}");
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(session.restore(&bad).is_err(), "{at} {bit}");
                let split = bad.len() - 8;
                let end = digest(&bad[..split]).to_le_bytes();
                bad[split..].copy_from_slice(&end);
                let _ = session.restore(&bad);
            }
        }
        for length in 8..good.len() - 8 {
            let mut bad = good[..length].to_vec();
            bad.extend(digest(&bad).to_le_bytes());
            assert!(session.restore(&bad).is_err(), "{length}");
        }
        session.restore(&good).unwrap();
        assert_eq!(session.snapshot().unwrap(), good);
    }

    #[test]
    fn an_error_names_the_wrong_part_and_leaves_the_session_unchanged() {
        let mut session = session();
        session.act(&[1.0, 2.0], &Overrides::default()).unwrap();
        let good = session.snapshot().unwrap();
        let change = |at: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            let split = bad.len() - 8;
            let end = digest(&bad[..split]).to_le_bytes();
            bad[split..].copy_from_slice(&end);
            bad
        };
        // Magic, version and eight numbers, then the decision, three labels and the count of the state.
        let choices = 4 + 4 + 8 * 8 + 5 * 4;
        let labels = choices + 3 * 2 + 2 * 4;
        let state = labels + 3 * 2;
        for (bad, sentence) in [
            (change(4, &4u32.to_le_bytes()), "version of the snapshot: expected 3, got 4"),
            (change(8, &[0; 8]), "Spec of the snapshot: expected the session's, got another"),
            (change(16, &[0; 8]), "mode of the snapshot: expected the session's, got another"),
            (change(56, &[1; 8]), "snapshot: a game frame number without a frame"),
            (change(72, &f32::NAN.to_le_bytes()), "snapshot: a number that is not finite"),
            (change(choices, &2u16.to_le_bytes()), "snapshot: a: 2 is outside 0..1"),
            (change(labels + 4, &3u16.to_le_bytes()), "snapshot: b: 3 is outside 0..2"),
            (change(state, &u64::MAX.to_le_bytes()), "snapshot: too long"),
            (change(state + 8, &f32::NAN.to_le_bytes()), "snapshot: a number that is not finite"),
        ] {
            assert_eq!(session.restore(&bad).unwrap_err().to_string(), sentence);
            assert_eq!(session.snapshot().unwrap(), good);
        }
    }
}
