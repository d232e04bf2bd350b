//! Decisions of a live game, recorded while it is played: a segment of an episode, for a learner.

use std::sync::Arc;

use sconce_nn::Spec;
use sconce_tensor::{Error, Result};

/// The first bytes of a segment.
const MAGIC: &[u8; 8] = b"SCSEGM02";
/// Most terms of a reward.
pub const MOST_TERMS: usize = 64;
/// Most numbers of a column, so that a damaged length cannot ask for much memory.
const MOST: u64 = 1 << 28;

/// Consecutive decisions of one episode. Columns are `[steps, ..]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recorded {
    /// Embedded frames: continuous features, before any normalisation.
    pub continuous: Vec<f32>,
    /// Embedded frames: ids.
    pub ids: Vec<u32>,
    /// Previous actions.
    pub previous: Vec<f32>,
    /// Actions.
    pub labels: Vec<f32>,
    /// Logits of all heads, the value among them.
    pub logits: Vec<f32>,
    /// Rewards after the actions, `[steps, terms]`, before any weight.
    pub rewards: Vec<f32>,
    /// Names of the terms of a reward.
    pub terms: Arc<[String]>,
    /// Version of the weights of each decision.
    pub versions: Vec<u64>,
    /// The memories before every `stride`-th decision, one after the other; empty for a policy without memory.
    pub states: Vec<f32>,
    /// Decisions between two memories.
    pub stride: usize,
    /// Whether the episode ends with the last decision.
    pub over: Over,
    /// Value after the last decision; 0 after an end by the rules.
    pub next_value: f32,
    /// Sum of each reward term over the whole episode, and its number of decisions, at its end.
    pub episode: (Vec<f32>, u32),
    /// Number of the episode, drawn by chance, so that no other episode of any node has it.
    pub number: u64,
    /// Decisions of the episode before this segment.
    pub before: u64,
}

/// The end of a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Over {
    /// The episode continues.
    #[default]
    No,
    /// The rules of the game ended it.
    Terminated,
    /// It was cut.
    Truncated,
}

/// A place for segments.
pub trait Sink: Send + Sync {
    /// Names of the terms of a reward.
    fn terms(&self) -> Arc<[String]>;

    /// Takes a segment.
    fn put(&self, segment: Recorded);
}

impl Recorded {
    /// Number of decisions.
    pub fn steps(&self) -> usize {
        self.versions.len()
    }

    /// Checks that a policy of `spec`, whose memory has `state` numbers, may have made these decisions, and that their
    /// rewards have these terms.
    ///
    /// # Errors
    /// `Mismatch` for a segment of another Spec or of other terms, `OutOfRange` for an action or an id that does not exist, `NonFinite` for
    /// other numbers that are not finite.
    pub fn check(&self, spec: &Spec, state: usize, terms: &[String]) -> Result<()> {
        if *self.terms != *terms {
            let (expected, got) = (terms.join(", "), self.terms.join(", "));
            return Err(Error::mismatch("reward terms of a segment", expected, got));
        }
        self.check_lengths(spec, state)?;
        let slots = spec.embedding.id_slots();
        for ids in self.ids.chunks_exact(slots.len().max(1)) {
            for (id, slot) in ids.iter().zip(slots) {
                if *id as usize >= slot.rows {
                    let (id, last) = (f64::from(*id), slot.rows as f64 - 1.0);
                    return Err(Error::out_of_range("id of a segment", id, 0.0, last));
                }
            }
        }
        spec.heads.check_labels(&self.labels, false)?;
        spec.heads.check_labels(&self.previous, true)?;
        for (what, column) in [
            ("feature of a segment", &self.continuous[..]),
            ("reward of a segment", &self.rewards),
            ("logit of a segment", &self.logits),
            ("memory of a segment", &self.states),
            ("value after a segment", &[self.next_value]),
            ("return of an episode", &self.episode.0),
        ] {
            if let Some(value) = sconce_tensor::simd::non_finite(column) {
                return Err(Error::NonFinite { what: what.into(), value: value.into() });
            }
        }
        Ok(())
    }

    fn check_lengths(&self, spec: &Spec, state: usize) -> Result<()> {
        let (steps, labels) = (self.steps(), spec.heads.num_labels());
        if steps == 0 || self.stride == 0 {
            return Err(Error::mismatch("decisions and stride of a segment", "at least one", 0));
        }
        let memories = if state == 0 { 0 } else { steps.div_ceil(self.stride) };
        let terms = self.terms.len();
        let returns = if self.over == Over::No { 0 } else { terms };
        for (what, expected, got) in [
            ("features", steps * spec.embedding.continuous_width(), self.continuous.len()),
            ("ids", steps * spec.embedding.num_ids(), self.ids.len()),
            ("previous actions", steps * labels, self.previous.len()),
            ("actions", steps * labels, self.labels.len()),
            ("logits", steps * spec.heads.num_logits(), self.logits.len()),
            ("rewards", steps * terms, self.rewards.len()),
            ("returns", returns, self.episode.0.len()),
            ("memories", memories * state, self.states.len()),
        ] {
            if expected != got {
                return Err(Error::mismatch(format!("{what} of a segment"), expected, got));
            }
        }
        Ok(())
    }

    /// The segment as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let over = match self.over {
            Over::No => 0,
            Over::Terminated => 1,
            Over::Truncated => 2,
        };
        let mut bytes = MAGIC.to_vec();
        let head = [self.stride as u64, over, self.episode.1.into(), self.number, self.before];
        head.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(self.next_value.to_le_bytes());
        for column in self.floats() {
            bytes.extend((column.len() as u64).to_le_bytes());
            column.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        }
        bytes.extend((self.ids.len() as u64).to_le_bytes());
        self.ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        bytes.extend((self.versions.len() as u64).to_le_bytes());
        self.versions.iter().for_each(|version| bytes.extend(version.to_le_bytes()));
        bytes.extend((self.terms.len() as u64).to_le_bytes());
        for name in &*self.terms {
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend(name.as_bytes());
        }
        bytes
    }

    /// Reads the bytes of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// `Corrupt` for other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut rest = Bytes(bytes);
        if rest.array::<8>()? != *MAGIC {
            return Err(corrupt("no segment of this version"));
        }
        let (stride, over, length) = (rest.word()?, rest.word()?, rest.word()?);
        let over = match over {
            0 => Over::No,
            1 => Over::Terminated,
            2 => Over::Truncated,
            _ => return Err(corrupt("an unknown end")),
        };
        let (number, before) = (rest.word()?, rest.word()?);
        let mut segment = Recorded {
            stride: stride.min(MOST) as usize,
            over,
            next_value: rest.float()?,
            episode: (vec![], length.min(u32::MAX.into()) as u32),
            number,
            before,
            ..Recorded::default()
        };
        for column in segment.floats_mut() {
            *column = rest.column(f32::from_le_bytes)?;
        }
        segment.ids = rest.column(u32::from_le_bytes)?;
        segment.versions = rest.column(u64::from_le_bytes)?;
        segment.terms = rest.names()?.into();
        match rest.0 {
            [] => Ok(segment),
            _ => Err(corrupt("bytes after its end")),
        }
    }

    fn floats(&self) -> [&Vec<f32>; 7] {
        let Recorded { continuous, previous, labels, logits, rewards, states, .. } = self;
        [continuous, previous, labels, logits, rewards, states, &self.episode.0]
    }

    fn floats_mut(&mut self) -> [&mut Vec<f32>; 7] {
        let Recorded { continuous, previous, labels, logits, rewards, states, .. } = self;
        [continuous, previous, labels, logits, rewards, states, &mut self.episode.0]
    }
}

/// The bytes that are not read yet.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk().ok_or_else(|| corrupt("cut short"))?;
        self.0 = tail;
        Ok(*head)
    }

    fn word(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn float(&mut self) -> Result<f32> {
        self.array().map(f32::from_le_bytes)
    }

    fn names(&mut self) -> Result<Vec<String>> {
        let count = self.word()?;
        if count > MOST_TERMS as u64 {
            return Err(corrupt("too many reward terms"));
        }
        let name = |_| {
            let bytes = self.column(|[byte]: [u8; 1]| byte)?;
            String::from_utf8(bytes).map_err(|_| corrupt("a reward term that is no text"))
        };
        (0..count).map(name).collect()
    }

    fn column<T, const N: usize>(&mut self, of: fn([u8; N]) -> T) -> Result<Vec<T>> {
        let length = self.word()?;
        let bytes = usize::try_from(length).ok().filter(|_| length <= MOST);
        let bytes = bytes.and_then(|length| length.checked_mul(N));
        let split = bytes.and_then(|bytes| self.0.split_at_checked(bytes));
        let (head, tail) = split.ok_or_else(|| corrupt("cut short"))?;
        self.0 = tail;
        Ok(head.as_chunks().0.iter().map(|bytes| of(*bytes)).collect())
    }
}

fn corrupt(reason: &str) -> Error {
    Error::corrupt("a segment", reason)
}

#[cfg(test)]
mod tests {
    use sconce_nn::heads::NONE;
    use serde_json::json;

    use super::*;

    fn spec(numbers: usize, classes: usize) -> Spec {
        serde_json::from_value(json!({
            "embedding": {"vector": numbers},
            "backbone": {"gru": {"hidden_size": 1, "num_layers": 1, "layer_norm": false,
                "input_norm": false, "dropout": 0.0, "input_dropout": 0.0}},
            "heads": {
                "kind": "independent", "stream_size": 8, "prior": false,
                "parts": [
                    {"name": "go", "kind": {"categorical": classes}, "hidden_size": 0},
                    {"name": "value", "kind": {"value": 1}, "hidden_size": 0},
                ],
            },
        }))
        .unwrap()
    }

    fn segment() -> Recorded {
        Recorded {
            continuous: vec![0.5, -1.0, 2.0, 3.0],
            ids: vec![],
            previous: vec![NONE, 1.0],
            labels: vec![1.0, 0.0],
            logits: vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
            rewards: vec![1.0, -1.0, 0.5, 0.0],
            terms: terms(),
            versions: vec![3, u64::MAX],
            states: vec![9.0],
            stride: 2,
            over: Over::Truncated,
            next_value: 0.25,
            episode: (vec![12.5, -3.0], 40),
            number: u64::MAX,
            before: 38,
        }
    }

    fn terms() -> Arc<[String]> {
        ["hit".to_string(), "touché".to_string()].into()
    }

    #[test]
    fn bytes_come_back_and_damage_is_an_error() {
        let segment = Recorded { ids: vec![7, u32::MAX], ..segment() };
        let bytes = segment.to_bytes();
        assert_eq!(Recorded::from_bytes(&bytes).unwrap(), segment);
        for cut in 0..bytes.len() {
            assert_eq!(Recorded::from_bytes(&bytes[..cut]).unwrap_err().kind().name(), "corrupt");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Recorded::from_bytes(&longer).is_err());
        // A huge length asks for no memory.
        let mut huge = bytes.clone();
        huge[52..60].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(Recorded::from_bytes(&huge).is_err());
    }

    #[test]
    fn what_no_policy_of_the_spec_can_have_decided_is_an_error() {
        let own = spec(2, 2);
        segment().check(&own, 1, &terms()).unwrap();
        let refused = |spec: &Spec, state: usize, terms: &[String]| {
            segment().check(spec, state, terms).unwrap_err()
        };
        for error in [
            refused(&spec(3, 2), 1, &terms()),
            refused(&spec(2, 3), 1, &terms()),
            refused(&own, 2, &terms()),
        ] {
            assert_eq!(error.kind().name(), "mismatch");
        }
        let said = refused(&own, 1, &terms()[..1]).to_string();
        assert!(said.contains("expected hit, got hit, touché"), "{said}");
        let changed = |change: fn(&mut Recorded)| {
            let mut bad = segment();
            change(&mut bad);
            bad.check(&own, 1, &terms()).unwrap_err().kind().name()
        };
        assert_eq!(changed(|bad| bad.stride = 0), "mismatch");
        assert_eq!(changed(|bad| bad.ids.push(0)), "mismatch");
        assert_eq!(changed(|bad| bad.rewards.truncate(2)), "mismatch");
        assert_eq!(changed(|bad| bad.episode.0.truncate(1)), "mismatch");
        assert_eq!(changed(|bad| bad.over = Over::No), "mismatch");
        assert_eq!(changed(|bad| bad.labels[0] = 2.0), "out_of_range");
        assert_eq!(changed(|bad| bad.labels[0] = f32::NAN), "out_of_range");
        assert_eq!(changed(|bad| bad.previous[1] = 0.5), "out_of_range");
        for change in [
            (|bad| bad.continuous[3] = f32::NAN) as fn(&mut Recorded),
            |bad| bad.rewards[1] = f32::INFINITY,
            |bad| bad.logits[0] = f32::NAN,
            |bad| bad.states[0] = f32::NAN,
            |bad| bad.next_value = f32::NAN,
            |bad| bad.episode.0[1] = f32::NAN,
        ] {
            assert_eq!(changed(change), "non_finite");
        }
        assert!(Recorded::default().check(&own, 1, &[]).is_err());
    }
}
