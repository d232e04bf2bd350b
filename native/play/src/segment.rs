//! Columns of steps that some rows played, from which a policy learns.

mod card;
mod saved;

pub use card::CardSegment;
pub(crate) use saved::numbered;
use sconce_data::{Batch, Extra, Played};
use sconce_nn::backbone::State;
use sconce_nn::heads::NONE;
use sconce_nn::policy::Frames;
use sconce_nn::spec::Spec;
use sconce_tensor::{Error, Result};

use crate::returns::{Discounts, Returns, Steps, advantages};

/// Steps of some rows that play side by side. Columns are `[time, rows, ..]`.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Number of rows.
    pub rows: usize,
    /// Number of steps.
    pub steps: usize,
    /// Embedded frames: continuous features.
    pub continuous: Vec<f32>,
    /// Embedded frames: ids.
    pub ids: Vec<u32>,
    /// Previous actions.
    pub previous: Vec<f32>,
    /// Actions.
    pub labels: Vec<f32>,
    /// Action masks, `[time, rows, mask_size]`; empty where all actions were allowed.
    pub mask: Vec<u8>,
    /// Log-likelihoods of the actions, in nats.
    pub log_likelihoods: Vec<f32>,
    /// Values before each step.
    pub values: Vec<f32>,
    /// Values after each step: of the frame that followed, also where a limit cut the episode.
    pub next_values: Vec<f32>,
    /// Rewards.
    pub rewards: Vec<f32>,
    /// Whether the rules of the world ended the episode at a step.
    pub terminated: Vec<u8>,
    /// Whether a limit cut the episode at a step.
    pub truncated: Vec<u8>,
    /// The memories before every `stride`-th step, `[rows, ..]`.
    pub states: Vec<State>,
    /// Steps between two of [`states`](Self::states).
    pub stride: usize,
    /// For each teacher, the columns that are its own.
    pub heard: Vec<Heard>,
    /// Advantages and targets; empty before [`estimate`](Self::estimate).
    pub returns: Returns,
}

/// The columns of a segment that belong to a teacher.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// Frames embedded for the teacher: continuous features; empty if it reads the learner's frames.
    pub seen: Vec<f32>,
    /// The teacher's memories, as [`Segment::states`].
    pub states: Vec<State>,
}

/// Widths of the columns of one frame.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Widths {
    continuous: usize,
    ids: usize,
    labels: usize,
    mask: usize,
}

impl Widths {
    fn of(spec: &Spec) -> Self {
        Widths {
            continuous: spec.embedding.continuous_width(),
            ids: spec.embedding.num_ids(),
            labels: spec.heads.num_labels(),
            mask: spec.heads.mask_size(),
        }
    }
}

impl Segment {
    /// A segment of zeros.
    pub fn new(spec: &Spec, rows: usize, steps: usize, stride: usize) -> Self {
        let (n, widths) = (rows * steps, Widths::of(spec));
        Segment {
            rows,
            steps,
            continuous: vec![0.0; n * widths.continuous],
            ids: vec![0; n * widths.ids],
            previous: vec![NONE; n * widths.labels],
            labels: vec![0.0; n * widths.labels],
            mask: vec![],
            log_likelihoods: vec![0.0; n],
            values: vec![0.0; n],
            next_values: vec![0.0; n],
            rewards: vec![0.0; n],
            terminated: vec![0; n],
            truncated: vec![0; n],
            states: vec![],
            stride,
            heard: vec![],
            returns: Returns::default(),
        }
    }

    /// Computes advantages and targets.
    ///
    /// # Errors
    /// `NonFinite` for a reward or a value that is not finite.
    pub fn estimate(&mut self, discounts: Discounts) -> Result<()> {
        self.check_finite()?;
        self.returns = advantages(self.outcomes(), discounts)?;
        Ok(())
    }

    /// Refuses rewards and values that are not finite.
    pub(crate) fn check_finite(&self) -> Result<()> {
        for (what, column) in [("reward", &self.rewards), ("value", &self.next_values)] {
            if let Some(value) = sconce_tensor::simd::non_finite(column) {
                return Err(Error::NonFinite { what: what.into(), value: value.into() });
            }
        }
        Ok(())
    }

    /// The columns that advantages are made of.
    pub(crate) fn outcomes(&self) -> Steps<'_> {
        Steps {
            rows: self.rows,
            rewards: &self.rewards,
            values: &self.values,
            next_values: &self.next_values,
            terminated: &self.terminated,
            truncated: &self.truncated,
        }
    }

    /// Number of frames.
    pub fn frames(&self) -> usize {
        self.rows * self.steps
    }

    fn ends(&self, t: usize, row: usize) -> bool {
        self.ends_at(t * self.rows + row)
    }

    /// Whether an episode ends at an index of the columns.
    pub(crate) fn ends_at(&self, at: usize) -> bool {
        self.terminated[at] != 0 || self.truncated[at] != 0
    }
}

/// Consecutive steps of a row within one episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    /// Index of the segment.
    pub segment: usize,
    /// Row of the segment.
    pub row: usize,
    /// First step.
    pub start: usize,
    /// Number of steps.
    pub len: usize,
}

/// All frames of these segments, each a sequence of its own, for a policy without memory.
pub fn frames(segments: &[Segment]) -> Vec<Sequence> {
    let mut all = vec![];
    for (segment, own) in segments.iter().enumerate() {
        let step = |start| (0..own.rows).map(move |row| Sequence { segment, row, start, len: 1 });
        all.extend((0..own.steps).flat_map(step));
    }
    all
}

/// The sequences of these segments: cut at the ends of episodes, and where a memory is stored.
pub fn sequences(segments: &[Segment]) -> Vec<Sequence> {
    let mut all = vec![];
    for (segment, own) in segments.iter().enumerate() {
        for row in 0..own.rows {
            let mut start = 0;
            for t in 0..own.steps {
                let next = t + 1;
                if own.ends(t, row) || next.is_multiple_of(own.stride) || next == own.steps {
                    all.push(Sequence { segment, row, start, len: next - start });
                    start = next;
                }
            }
        }
    }
    all
}

/// A column of a segment.
type Column = fn(&Segment) -> &[f32];

/// A batch of sequences, with the memories before them.
#[derive(Debug)]
pub struct Gathered {
    /// Frames, labels and columns.
    pub batch: Batch,
    /// Memories of the learner.
    pub state: State,
    /// Memories of each teacher.
    pub companions: Vec<State>,
}

/// Batches of sequences from segments.
pub struct Gather<'a> {
    segments: &'a [Segment],
    widths: Widths,
    /// The stored memories of all segments, one after the other, then one zero memory.
    memories: State,
    /// As `memories`, for each teacher.
    teacher_memories: Vec<State>,
    /// Index in [`memories`](Self::memories) of each segment's first memory.
    first: Vec<usize>,
    zero: usize,
}

impl<'a> Gather<'a> {
    /// Prepares batches for a policy of this Spec; `zero` is the memory of one row at the start of an episode, and
    /// `teachers` those of teachers.
    pub fn new(
        spec: &Spec,
        segments: &'a [Segment],
        zero: &State,
        teachers: &[State],
    ) -> Result<Self> {
        let (mut first, mut count) = (vec![], 0);
        for segment in segments {
            first.push(count);
            count += segment.steps.div_ceil(segment.stride) * segment.rows;
        }
        let all = |zero: &State, of: &dyn Fn(&'a Segment) -> &'a [State]| {
            let stored = segments.iter().flat_map(|segment| of(segment).iter().cloned());
            match zero.0.is_empty() {
                true => Ok(zero.clone()),
                false => State::joined(&stored.chain([zero.clone()]).collect::<Vec<_>>()),
            }
        };
        let of_teacher = |(i, zero): (usize, &State)| {
            all(zero, &|segment| segment.heard.get(i).map_or(&[], |heard| &heard.states))
        };
        Ok(Gather {
            segments,
            widths: Widths::of(spec),
            memories: all(zero, &|segment| &segment.states)?,
            teacher_memories: teachers.iter().enumerate().map(of_teacher).collect::<Result<_>>()?,
            first,
            zero: count,
        })
    }

    /// The advantages of these sequences, as a batch without frames.
    pub(crate) fn advantages(&self, sequences: &[Sequence]) -> Batch {
        let mut all = vec![];
        for &Sequence { segment, row, start, len } in sequences {
            let own = &self.segments[segment];
            let step = |t: usize| own.returns.advantages[t * own.rows + row];
            all.extend((start..start + len).map(step));
        }
        let weights = vec![1.0; all.len()];
        let beside = vec![(Extra::Played(Played::Advantage), all)];
        Batch { weights, beside, ..Batch::default() }
    }

    /// A batch of these sequences. Shorter sequences are padded at the end with frames of weight 0.
    pub fn batch(&self, sequences: &[Sequence]) -> Result<Gathered> {
        let time = sequences.iter().map(|sequence| sequence.len).max().unwrap_or(0);
        let n = sequences.len() * time;
        let mut batch = Batch {
            frames: Frames {
                batch: sequences.len(),
                time,
                continuous: self.column(sequences, time, self.widths.continuous, |s| &s.continuous),
                ids: self.column(sequences, time, self.widths.ids, |s| &s.ids),
                previous: self.column(sequences, time, self.widths.labels, |s| &s.previous),
            },
            labels: self.column(sequences, time, self.widths.labels, |s| &s.labels),
            weights: vec![1.0; n],
            ..Batch::default()
        };
        for (sequence, weights) in sequences.iter().zip(batch.weights.chunks_mut(time.max(1))) {
            weights[sequence.len..].fill(0.0);
        }
        let columns: [(Played, Column); 4] = [
            (Played::Advantage, |s| &s.returns.advantages),
            (Played::Target, |s| &s.returns.targets),
            (Played::LogLikelihood, |s| &s.log_likelihoods),
            (Played::Value, |s| &s.values),
        ];
        for (played, of) in columns {
            batch.beside.push((Extra::Played(played), self.column(sequences, time, 1, of)));
        }
        if self.segments.iter().any(|own| !own.mask.is_empty()) {
            batch.beside.push((Extra::Played(Played::Mask), self.mask(sequences, time)));
        }
        for i in 0..self.teacher_memories.len() {
            let own = self.seen(sequences, time, i, &batch.frames.previous);
            batch.seen.by.push(own.is_some().then_some(batch.seen.frames.len()));
            batch.seen.frames.extend(own);
        }
        let companions = self.teacher_memories.iter();
        Ok(Gathered {
            batch,
            state: self.memories(sequences, &self.memories)?,
            companions: companions
                .map(|all| self.memories(sequences, all))
                .collect::<Result<_>>()?,
        })
    }

    /// The frames of the sequences as teacher `i` reads them, if they are not those of the learner.
    fn seen(
        &self,
        sequences: &[Sequence],
        time: usize,
        i: usize,
        previous: &[f32],
    ) -> Option<Frames> {
        let first = self.segments.first()?;
        let width = first.heard.get(i)?.seen.len() / first.frames().max(1);
        (width > 0).then(|| Frames {
            batch: sequences.len(),
            time,
            continuous: self.column(sequences, time, width, |s| &s.heard[i].seen),
            ids: vec![],
            previous: previous.to_vec(),
        })
    }

    /// Action masks of the sequences, `[sequences, time, mask_size]`, as [`column`](Self::column). Live games may mask
    /// some segments and not others.
    fn mask(&self, sequences: &[Sequence], time: usize) -> Vec<f32> {
        let width = self.widths.mask;
        let mut all = Vec::with_capacity(sequences.len() * time * width);
        for &Sequence { segment, row, start, len } in sequences {
            let own = &self.segments[segment];
            for t in 0..time {
                let at = ((start + t.min(len - 1)) * own.rows + row) * width;
                match own.mask.get(at..at + width) {
                    Some(mask) => all.extend(mask.iter().map(|allowed| f32::from(*allowed))),
                    None => all.extend(std::iter::repeat_n(1.0, width)),
                }
            }
        }
        all
    }

    fn memories(&self, sequences: &[Sequence], all: &State) -> Result<State> {
        if all.0.is_empty() {
            return Ok(all.clone());
        }
        let memory = |sequence: &Sequence| {
            let Sequence { segment, row, start, .. } = *sequence;
            let own = &self.segments[segment];
            // A sequence that begins between two stored memories begins with an episode.
            let place = match start.is_multiple_of(own.stride) {
                true => self.first[segment] + start / own.stride * own.rows + row,
                false => self.zero,
            };
            place as u32
        };
        all.picked(&sequences.iter().map(memory).collect::<Vec<_>>())
    }

    /// A column of the sequences, row-major `[sequences, time, width]`. Padding repeats the last frame, so that it is
    /// valid.
    fn column<T: Copy + 'a>(
        &self,
        sequences: &[Sequence],
        time: usize,
        width: usize,
        of: impl Fn(&'a Segment) -> &'a [T],
    ) -> Vec<T> {
        let mut all = Vec::with_capacity(sequences.len() * time * width);
        for &Sequence { segment, row, start, len } in sequences {
            let own = &self.segments[segment];
            let column = of(own);
            for t in 0..time {
                let at = ((start + t.min(len - 1)) * own.rows + row) * width;
                all.extend_from_slice(&column[at..at + width]);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, RecurrentConfig};
    use sconce_tensor::tensor::to_vec;

    use super::*;

    fn spec() -> Spec {
        let parts =
            vec![Head { name: "go".into(), kind: HeadKind::Categorical(2), hidden_size: 0 }];
        let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 1, prior: false };
        let backbone = Backbone::Gru(RecurrentConfig {
            hidden_size: 1,
            num_layers: 1,
            layer_norm: false,
            input_norm: false,
            dropout: 0.0,
            input_dropout: 0.0,
            ..Default::default()
        });
        Spec { embedding: Embedding::vector(1), backbone, heads, critic: None }
    }

    /// Two rows of five steps; row 1 ends after step 2. The feature of a frame is `10 t + row`, its memory the
    /// negative of that.
    fn segment() -> Segment {
        let mut segment = Segment::new(&spec(), 2, 5, 2);
        segment.continuous =
            (0..5).flat_map(|t| [10.0 * t as f32, 10.0 * t as f32 + 1.0]).collect();
        segment.truncated[5] = 1;
        let state = |t: usize| {
            let numbers = vec![-10.0 * t as f32, -10.0 * t as f32 - 1.0];
            State(vec![sconce_tensor::tensor::tensor(numbers, (2, 1)).unwrap()])
        };
        segment.states = vec![state(0), state(2), state(4)];
        segment.estimate(Discounts { gamma: 0.9, lambda: 0.9 }).unwrap();
        segment
    }

    fn cut(segment: usize, row: usize, start: usize, len: usize) -> Sequence {
        Sequence { segment, row, start, len }
    }

    #[test]
    fn sequences_end_where_an_episode_ends_and_where_a_memory_is_stored() {
        let expected = [
            cut(0, 0, 0, 2),
            cut(0, 0, 2, 2),
            cut(0, 0, 4, 1),
            cut(0, 1, 0, 2),
            cut(0, 1, 2, 1),
            cut(0, 1, 3, 1),
            cut(0, 1, 4, 1),
        ];
        assert_eq!(sequences(&[segment()]), expected);
        let frames = frames(&[segment(), segment()]);
        assert_eq!((frames.len(), frames[11]), (20, cut(1, 1, 0, 1)));
    }

    #[test]
    fn a_batch_has_the_frames_and_the_memory_of_each_sequence() {
        let segments = [segment(), segment()];
        let zero = State::zeros(1, &[1]).unwrap();
        let gather = Gather::new(&spec(), &segments, &zero, &[]).unwrap();
        let wanted = [cut(0, 0, 2, 2), cut(0, 1, 3, 1), cut(1, 1, 4, 1)];
        let Gathered { batch, state, companions } = gather.batch(&wanted).unwrap();
        assert!(companions.is_empty() && batch.seen.frames.is_empty());
        assert_eq!((batch.frames.batch, batch.frames.time), (3, 2));
        assert_eq!(batch.frames.continuous, [20.0, 30.0, 31.0, 31.0, 41.0, 41.0]);
        assert_eq!(batch.weights, [1.0, 1.0, 1.0, 0.0, 1.0, 0.0]);
        // Step 3 of row 1 begins an episode, so its memory is zero.
        assert_eq!(to_vec(&state.0[0]).unwrap(), [-20.0, 0.0, -41.0]);
    }

    #[test]
    fn a_reward_that_is_not_finite_is_an_error() {
        let mut segment = segment();
        segment.rewards[3] = f32::NAN;
        let error = segment.estimate(Discounts { gamma: 0.9, lambda: 0.9 }).unwrap_err();
        assert!(matches!(error, Error::NonFinite { .. }), "{error}");
    }
}
