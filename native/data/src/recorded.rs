//! Decisions of a live game, recorded while it is played: a segment of an episode, for a learner.

use sconce_tensor::{Error, Result};

/// The first bytes of a segment.
const MAGIC: &[u8; 8] = b"SCSEGM01";
/// Most numbers of a column, so that a damaged length cannot ask for much memory.
const MOST: u64 = 1 << 28;

/// Consecutive decisions of one episode. Columns are `[steps, ..]`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Recorded {
    /// Embedded frames: continuous features.
    pub continuous: Vec<f32>,
    /// Embedded frames: ids.
    pub ids: Vec<u32>,
    /// Previous actions.
    pub previous: Vec<f32>,
    /// Actions.
    pub labels: Vec<f32>,
    /// Logits of all heads, the value among them.
    pub logits: Vec<f32>,
    /// Rewards after the actions.
    pub rewards: Vec<f32>,
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
    /// Sum of the rewards of the whole episode, and its number of decisions, at its end.
    pub episode: (f32, u32),
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

/// Sizes of one decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Continuous features.
    pub continuous: usize,
    /// Ids.
    pub ids: usize,
    /// Labels of an action.
    pub labels: usize,
    /// Logits, the value among them.
    pub logits: usize,
    /// Numbers of a memory.
    pub state: usize,
}

/// A place for segments.
pub trait Sink: Send + Sync {
    /// Takes a segment.
    fn put(&self, segment: Recorded);
}

impl Recorded {
    /// Number of decisions.
    pub fn steps(&self) -> usize {
        self.rewards.len()
    }

    /// Checks the lengths of all columns, and that numbers are finite.
    ///
    /// # Errors
    /// `Mismatch` for a segment of another Spec, `NonFinite` for a reward or a value that is not finite.
    pub fn check(&self, sizes: Sizes) -> Result<()> {
        let steps = self.steps();
        let memories = if sizes.state == 0 { 0 } else { steps.div_ceil(self.stride.max(1)) };
        for (what, expected, got) in [
            ("features of a segment", steps * sizes.continuous, self.continuous.len()),
            ("ids of a segment", steps * sizes.ids, self.ids.len()),
            ("previous actions of a segment", steps * sizes.labels, self.previous.len()),
            ("actions of a segment", steps * sizes.labels, self.labels.len()),
            ("logits of a segment", steps * sizes.logits, self.logits.len()),
            ("versions of a segment", steps, self.versions.len()),
            ("memories of a segment", memories * sizes.state, self.states.len()),
        ] {
            if expected != got {
                return Err(Error::mismatch(what, expected, got));
            }
        }
        if steps == 0 {
            return Err(Error::mismatch("decisions of a segment", "at least one", 0));
        }
        for (what, column) in [
            ("reward of a segment", &self.rewards[..]),
            ("logit of a segment", &self.logits[..]),
            ("value after a segment", &[self.next_value]),
            ("return of an episode", &[self.episode.0]),
        ] {
            if let Some(value) = sconce_tensor::simd::non_finite(column) {
                return Err(Error::NonFinite { what: what.into(), value: value.into() });
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
        let head = [self.stride as u64, over, self.episode.1.into()];
        head.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(self.next_value.to_le_bytes());
        bytes.extend(self.episode.0.to_le_bytes());
        for column in self.floats() {
            bytes.extend((column.len() as u64).to_le_bytes());
            column.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        }
        bytes.extend((self.ids.len() as u64).to_le_bytes());
        self.ids.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
        bytes.extend((self.versions.len() as u64).to_le_bytes());
        self.versions.iter().for_each(|version| bytes.extend(version.to_le_bytes()));
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
        let (next_value, sum) = (rest.float()?, rest.float()?);
        let mut segment = Recorded {
            stride: stride.min(MOST) as usize,
            over,
            next_value,
            episode: (sum, length.min(u32::MAX.into()) as u32),
            ..Recorded::default()
        };
        for column in segment.floats_mut() {
            *column = rest.column(f32::from_le_bytes)?;
        }
        segment.ids = rest.column(u32::from_le_bytes)?;
        segment.versions = rest.column(u64::from_le_bytes)?;
        match rest.0 {
            [] => Ok(segment),
            _ => Err(corrupt("bytes after its end")),
        }
    }

    fn floats(&self) -> [&Vec<f32>; 6] {
        let Recorded { continuous, previous, labels, logits, rewards, states, .. } = self;
        [continuous, previous, labels, logits, rewards, states]
    }

    fn floats_mut(&mut self) -> [&mut Vec<f32>; 6] {
        let Recorded { continuous, previous, labels, logits, rewards, states, .. } = self;
        [continuous, previous, labels, logits, rewards, states]
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
    use super::*;

    fn segment() -> Recorded {
        Recorded {
            continuous: vec![0.5, -1.0, 2.0, 3.0],
            ids: vec![7, 8],
            previous: vec![f32::NEG_INFINITY, 1.0],
            labels: vec![1.0, 0.0],
            logits: vec![0.1, 0.2, 0.3, 0.4],
            rewards: vec![1.0, -1.0],
            versions: vec![3, u64::MAX],
            states: vec![9.0],
            stride: 2,
            over: Over::Truncated,
            next_value: 0.25,
            episode: (12.5, 40),
        }
    }

    const SIZES: Sizes = Sizes { continuous: 2, ids: 1, labels: 1, logits: 2, state: 1 };

    #[test]
    fn bytes_come_back_and_damage_is_an_error() {
        let segment = segment();
        segment.check(SIZES).unwrap();
        let bytes = segment.to_bytes();
        assert_eq!(Recorded::from_bytes(&bytes).unwrap(), segment);
        for cut in 0..bytes.len() {
            assert_eq!(Recorded::from_bytes(&bytes[..cut]).unwrap_err().kind().name(), "corrupt");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Recorded::from_bytes(&longer).is_err());
        // A huge length asks for no memory.
        let mut huge = bytes.clone();
        huge[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(Recorded::from_bytes(&huge).is_err());
    }

    #[test]
    fn a_segment_of_another_spec_and_a_number_that_is_not_finite_are_errors() {
        for sizes in [
            Sizes { continuous: 3, ..SIZES },
            Sizes { ids: 0, ..SIZES },
            Sizes { labels: 2, ..SIZES },
            Sizes { logits: 1, ..SIZES },
            Sizes { state: 0, ..SIZES },
        ] {
            assert_eq!(segment().check(sizes).unwrap_err().kind().name(), "mismatch");
        }
        let mut bad = segment();
        bad.rewards[1] = f32::NAN;
        assert!(bad.check(SIZES).unwrap_err().to_string().contains("reward"));
        assert!(Recorded::default().check(SIZES).is_err());
    }
}
