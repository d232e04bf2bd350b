//! Reads the inputs of a decision: the frame, the inputs before it, and the sampling.

use sconce_game::fits;
use sconce_nn::heads::NONE;
use sconce_tensor::Result;
use sconce_tensor::rng::Rng;

use super::open::{Session, projection};
use super::options::Overrides;
use super::query::{Query, Way};
use crate::frames::check_labels;

impl Session {
    /// Reads the inputs of a decision and chooses how to make the decision. A caller of `ask` then decides by
    /// [`decide_many`] with [`Call::asked`] set.
    pub fn ask(&mut self, raw: &[f32], overrides: &Overrides) -> Result<()> {
        self.asked.way = Way::Made(0);
        if let Some(behind) = self.made(overrides.game_frame)? {
            self.asked.way = Way::Made(behind);
            return Ok(());
        }
        self.asked.sampling = overrides.apply(&self.options.sampling)?;
        if let Some(labels) = overrides.choices.as_deref() {
            check_labels(&self.policy().spec().heads, labels)?;
        }
        self.asked.projection = match &overrides.project_out {
            Some(vectors) => projection(self.policy(), Some(vectors))?,
            None => self.projection.clone(),
        };
        self.check_recorded(overrides)?;
        fits("frame", self.policy().spec().embedding.raw_width(), raw.len())?;
        self.read_past(raw, overrides)?;
        self.read(raw, overrides)?;
        // The number of the decision selects the random stream, so a seed given with every call still draws different
        // random numbers at each frame.
        let seed = overrides.seed.unwrap_or(self.seed);
        self.asked.rng = Rng::new(seed, "act", self.moments.now().frames);
        self.asked.way = match self.looks_back() {
            false if self.model.plan().is_some() => Way::Plan,
            false if self.asked.projection.is_none() && self.policy().steps_games() => Way::Games,
            _ => Way::Ops,
        };
        Ok(())
    }

    /// Writes the inputs before a raw row to the next moment. The input that led to the row comes from the call, else
    /// from the row; the other inputs come from the call, else from the session's decisions.
    fn read_past(&mut self, raw: &[f32], overrides: &Overrides) -> Result<()> {
        let has_own = self.has_own(raw);
        let Session { model, moments, delay, .. } = self;
        let (spec, delay) = (model.policy().spec(), *delay);
        let (now, next) = moments.next();
        let past = &mut next.past;
        past.copy(&now.past);
        next.game_frame = overrides.game_frame.or(now.game_frame);
        if has_own {
            past.set_from(delay, |labels| {
                spec.embedding.previous_labels(raw, &spec.heads, labels).map(drop)
            })?;
        }
        if let Some(queue) = &overrides.queue {
            past.give(queue, &spec.heads)?;
        }
        if let Some(labels) = &overrides.previous {
            check_labels(&spec.heads, labels)?;
            past.set(delay, labels);
        }
        Ok(())
    }

    /// Embeds a raw row together with the inputs stored in the next moment.
    fn read(&mut self, given_raw: &[f32], overrides: &Overrides) -> Result<()> {
        let has_own = self.has_own(given_raw);
        let Session { model, moments, delay, asked, .. } = self;
        let Query { row, raw, reads_inputs, .. } = asked;
        let reads_inputs = *reads_inputs;
        let (spec, delay) = (model.policy().spec(), *delay);
        let past = &moments.next().1.past;
        let depth = spec.embedding.queue_depth();
        let says = |queue: &Vec<f32>| {
            let mut inputs = queue.chunks(spec.heads.num_labels().max(1));
            inputs.nth(delay).is_some_and(|input| input.iter().any(|label| *label != NONE))
        };
        let given = overrides.previous.is_some() || overrides.queue.as_ref().is_some_and(says);
        match past.get(delay) {
            // Uses the row's own values, because a recorded stick position need not be the centre of its bucket.
            Some(_) if has_own && !given => row.read_of(spec, given_raw, reads_inputs)?,
            Some(labels) if reads_inputs => {
                raw.clear();
                raw.extend_from_slice(given_raw);
                spec.embedding.set_previous(labels, &spec.heads, raw)?;
                row.read_of(spec, raw, reads_inputs)?;
            }
            Some(labels) => {
                row.read_of(spec, given_raw, reads_inputs)?;
                row.previous.copy_from_slice(labels);
            }
            None => row.read_of(spec, given_raw, reads_inputs)?,
        }
        if spec.embedding.normalises() {
            raw.clear();
            raw.extend_from_slice(given_raw);
        }
        if depth > 1 {
            row.write_queue(spec, past.newest(depth))?;
        }
        spec.embedding.write_delay(delay, &mut row.continuous)
    }

    /// Whether a raw row contains its previous action and the heads can read it.
    fn has_own(&self, raw: &[f32]) -> bool {
        let embedding = &self.policy().spec().embedding;
        self.asked.reads_inputs && embedding.game().previous(raw).is_some()
    }
}
