//! Live frames, embedded for a policy.

use sconce_nn::heads::NONE;
use sconce_nn::packed::Frame;
use sconce_nn::policy::Frames;
use sconce_nn::spec::{Heads, MAX_DELAY};
use sconce_nn::{Policy, Spec};
use sconce_tensor::{Error, Result};

/// One embedded frame.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddedFrame {
    /// Continuous values, `[continuous_width]`.
    pub continuous: Vec<f32>,
    /// Row indices into the id tables, `[num_ids]`.
    pub ids: Vec<u32>,
    /// Labels of the previous action, `[num_labels]`; [`NONE`] where there is none.
    pub previous: Vec<f32>,
}

impl EmbeddedFrame {
    /// A frame of zeros without a previous action.
    pub fn blank(spec: &Spec) -> Self {
        EmbeddedFrame {
            continuous: vec![0.0; spec.embedding.continuous_width()],
            ids: vec![0; spec.embedding.num_ids()],
            previous: vec![NONE; spec.heads.num_labels()],
        }
    }

    /// Embeds a raw row. A value outside its field's range is an error that names the field.
    pub fn embed(spec: &Spec, raw: &[f32]) -> Result<Self> {
        let mut row = EmbeddedFrame::blank(spec);
        row.read(spec, raw)?;
        Ok(row)
    }

    /// Embeds a raw row in place, with the checks of [`embed`](Self::embed).
    pub fn read(&mut self, spec: &Spec, raw: &[f32]) -> Result<()> {
        let reads_inputs = spec.embedding.reads_inputs(&spec.heads);
        self.read_of(spec, raw, reads_inputs)
    }

    /// [`read`](Self::read) for a caller that knows whether the heads choose the game's inputs.
    pub(crate) fn read_of(&mut self, spec: &Spec, raw: &[f32], reads_inputs: bool) -> Result<()> {
        spec.embedding.embed(raw, true, &mut self.continuous, &mut self.ids)?;
        self.previous.fill(NONE);
        if reads_inputs {
            spec.embedding.previous_labels(raw, &spec.heads, &mut self.previous)?;
        }
        Ok(())
    }

    /// Replaces the row's inputs with the latest inputs of the player, `[k, num_labels]`, newest first.
    pub fn write_queue(&mut self, spec: &Spec, queue: &[f32]) -> Result<()> {
        let newest = self.previous.len();
        match queue.get(..newest) {
            Some(newest) => self.previous.copy_from_slice(newest),
            None => self.previous.fill(NONE),
        }
        spec.embedding.write_queue(queue, &spec.heads, &mut self.continuous)
    }

    /// Borrows the frame in the form that a plan takes.
    pub fn frame(&self) -> Frame<'_> {
        Frame { continuous: &self.continuous, ids: &self.ids, previous: &self.previous }
    }
}

/// Joins rows, oldest first, to one window.
pub fn window<'a>(rows: impl Iterator<Item = Frame<'a>>) -> Frames {
    let mut frames = Frames { batch: 1, ..Frames::default() };
    for row in rows {
        frames.time += 1;
        frames.continuous.extend_from_slice(row.continuous);
        frames.ids.extend_from_slice(row.ids);
        frames.previous.extend_from_slice(row.previous);
    }
    frames
}

/// Inputs of the policy that raw rows do not contain.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beyond<'a> {
    /// The latest inputs of the player before each frame, `[batch, time, queue_depth, num_labels]`, newest first,
    /// [`NONE`] where there is none. The default is the previous actions of the rows; with a frame delay these are
    /// older than the latest inputs.
    pub queue: Option<&'a [f32]>,
    /// Frame delay at which the policy plays, in frames beyond the next.
    pub delay: usize,
}

/// The frame delay at which a policy plays: the given one, or that of its training.
///
/// # Errors
/// `Mismatch` if no delay is given to a policy that takes it as an input and was trained with several delays.
pub fn delay_of(policy: &Policy, given: Option<usize>) -> Result<usize> {
    let learned = policy.noted("frame_delay").unwrap_or(0);
    let longest = policy.noted("frame_delay_max").unwrap_or(learned);
    if given.is_none() && longest > learned && policy.spec().embedding.num_delays() > 0 {
        let expected = format!("one of {learned}..={longest}, because the policy reads its delay");
        return Err(Error::mismatch("frame_delay", expected, "none"));
    }
    let delay = given.unwrap_or(learned);
    match delay > MAX_DELAY {
        true => Err(Error::out_of_range("frame_delay", delay as f64, 0.0, MAX_DELAY as f64)),
        false => Ok(delay),
    }
}

/// Embeds `batch x time` raw rows, with the checks of a session.
///
/// # Shapes
/// `raw [batch, time, raw_width]`.
pub fn embed(
    spec: &Spec,
    raw: &[f32],
    batch: usize,
    time: usize,
    beyond: Beyond<'_>,
) -> Result<Frames> {
    let width = spec.embedding.raw_width();
    let numbers = batch.checked_mul(time).and_then(|rows| rows.checked_mul(width));
    if batch == 0 || time == 0 || numbers != Some(raw.len()) {
        let expected = format!("[{batch}, {time}, {width}] numbers, at least one frame");
        return Err(Error::mismatch("frames", expected, raw.len()));
    }
    let mut rows = raw
        .chunks_exact(width)
        .map(|raw| EmbeddedFrame::embed(spec, raw))
        .collect::<Result<Vec<_>>>()?;
    let (depth, labels) = (spec.embedding.queue_depth(), spec.heads.num_labels());
    let own = match beyond.queue {
        Some(_) => None,
        None if depth > 1 => Some(queues(&rows, time, depth)),
        None => None,
    };
    if let Some(queue) = beyond.queue.or(own.as_deref()) {
        check_queue(spec, queue, rows.len())?;
        for (row, queue) in rows.iter_mut().zip(queue.chunks_exact((depth * labels).max(1))) {
            row.write_queue(spec, queue)?;
        }
    }
    for row in &mut rows {
        spec.embedding.write_delay(beyond.delay, &mut row.continuous)?;
    }
    Ok(Frames { batch, time, ..window(rows.iter().map(EmbeddedFrame::frame)) })
}

/// The previous actions of each row and of the rows before it in its window, `[rows, depth, num_labels]`.
fn queues(rows: &[EmbeddedFrame], time: usize, depth: usize) -> Vec<f32> {
    let windows = rows.chunks(time.max(1));
    let of_row = |window: &[EmbeddedFrame], t: usize| -> Vec<f32> {
        let none = vec![NONE; window[t].previous.len()];
        let input = |k: usize| t.checked_sub(k).map_or(&none, |before| &window[before].previous);
        (0..depth).flat_map(|k| input(k).clone()).collect()
    };
    windows.flat_map(|window| (0..window.len()).flat_map(move |t| of_row(window, t))).collect()
}

/// Checks the inputs before `frames` frames, `[frames, queue_depth, num_labels]`.
fn check_queue(spec: &Spec, queue: &[f32], frames: usize) -> Result<()> {
    let (depth, labels) = (spec.embedding.queue_depth(), spec.heads.num_labels());
    let expected = frames.saturating_mul(depth).saturating_mul(labels);
    if queue.len() != expected {
        let shape = format!("{expected} labels, [.., {depth}, {labels}]");
        return Err(Error::mismatch("queue", shape, queue.len()));
    }
    let mut known =
        queue.chunks_exact(labels.max(1)).filter(|input| input.iter().any(|&l| l != NONE));
    known.try_for_each(|input| check_labels(&spec.heads, input))
}

/// Checks the labels of one action: their count, and the range of each label's head.
pub fn check_labels(heads: &Heads, labels: &[f32]) -> Result<()> {
    match (labels.len(), heads.num_labels()) {
        (got, expected) if got == expected => heads.check_labels(labels, false),
        (got, expected) => Err(Error::mismatch("labels of an action", expected, got)),
    }
}

/// Checks the labels of `actions` actions, `[actions, num_labels]`.
pub fn check_actions(heads: &Heads, labels: &[f32], actions: usize) -> Result<()> {
    let expected = actions.saturating_mul(heads.num_labels());
    if labels.len() != expected {
        return Err(Error::mismatch("labels", expected, labels.len()));
    }
    labels.chunks_exact(heads.num_labels()).try_for_each(|action| check_labels(heads, action))
}

#[cfg(test)]
mod tests {
    use sconce_nn::spec::{Backbone, Embedding, HeadsKind, MlpConfig};
    use sconce_tensor::Kind;

    use super::*;

    fn spec() -> Spec {
        let config = MlpConfig {
            hidden_sizes: vec![4],
            layer_norm: false,
            residual: false,
            activation: Default::default(),
            dropout: 0.0,
            input_dropout: 0.0,
        };
        Spec {
            embedding: Embedding::vector(2),
            backbone: Backbone::Mlp(config),
            heads: Heads::controller(HeadsKind::Independent),
            critic: None,
        }
    }

    #[test]
    fn rows_must_fill_their_shape_and_be_finite() {
        let frames = embed(&spec(), &[1.0, 2.0, 3.0, 4.0], 2, 1, Beyond::default()).unwrap();
        assert_eq!((frames.batch, frames.time), (2, 1));
        assert_eq!(frames.previous, vec![NONE; 26]);
        for (batch, time) in [(1, 1), (0, 2), (usize::MAX, 4), (2, 2)] {
            let error =
                embed(&spec(), &[1.0, 2.0, 3.0, 4.0], batch, time, Beyond::default()).unwrap_err();
            assert_eq!(error.kind(), Kind::Mismatch);
        }
        let error = embed(&spec(), &[1.0, f32::NAN], 1, 1, Beyond::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::NonFinite);
    }

    #[test]
    fn a_label_outside_its_heads_range_is_named() {
        let heads = spec().heads;
        let neutral = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0, 8.0, 8.0, 8.0, 0.0];
        assert!(check_labels(&heads, &neutral).is_ok());
        let mut wrong = neutral;
        wrong[12] = 5.0;
        let error = check_labels(&heads, &wrong).unwrap_err();
        assert_eq!(error.to_string(), "shoulder: 5 is outside 0..4");
        assert_eq!(check_labels(&heads, &neutral[1..]).unwrap_err().kind(), Kind::Mismatch);
    }
}
