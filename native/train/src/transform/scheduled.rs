//! Scheduled sampling (Bengio et al. 2015): in training, some previous inputs of a policy are replaced by its own
//! choices, since in play all of them are its own choices.
//!
//! The sampling is parallel (Mihaylova & Martins 2019; Duckworth et al. 2019): one pass without a gradient over the
//! recorded inputs draws a choice for each frame, and the choices of some frames then replace the recorded inputs. An
//! input is replaced for all frames that read it, so a queue stays consistent from frame to frame. Inputs from before a
//! window stay as recorded, and masked inputs stay masked.

use std::borrow::Cow;

use sconce_data::Batch;
use sconce_nn::backbone::{Context, State};
use sconce_nn::heads::NONE;
use sconce_nn::policy::Frames;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::spec::{Embedding, Heads};
use sconce_nn::{Policy, Spec};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Result};

use super::{BatchTransform, Moment, Setup};
use crate::source::others;
use crate::step::Stepper;
use crate::unroll::stretches;

/// Replaces inputs in the frames that read them.
#[derive(Debug, Clone)]
struct Scheduled {
    probability: f32,
    /// Number of updates until the probability reaches its full value.
    ramp: u64,
    /// Maximum number of the inputs of a frame that may be replaced, newest first.
    slots: usize,
    delay: usize,
    seed: u64,
    /// Embeddings of the companions that differ from the learner's, in the order of the batch.
    seen: Vec<Embedding>,
}

/// The transform of a run, if its options ask for it.
///
/// # Errors
/// `Mismatch` for a policy that does not take its own inputs, and for a queue depth of 1 with windows of different
/// delays: the age of a previous action is then unknown.
pub(super) fn of(setup: &Setup<'_>) -> Result<Option<Box<dyn BatchTransform>>> {
    Ok(Scheduled::of(setup)?.map(|scheduled| Box::new(scheduled) as _))
}

impl Scheduled {
    fn of(setup: &Setup<'_>) -> Result<Option<Self>> {
        let Setup { options, spec, companions } = *setup;
        if options.objective.scheduled_sampling == 0.0 {
            return Ok(None);
        }
        let refuse = |expected, got| Err(Error::mismatch("scheduled_sampling", expected, got));
        if !spec.embedding.reads_inputs(&spec.heads) {
            return refuse("a game whose inputs are declared, and their heads", "others");
        }
        if !spec.embedding.shows_previous() {
            return refuse("an embedding with the previous action", "one without it");
        }
        let shallow = |spec: &Spec| spec.embedding.queue_depth() == 1;
        let varies =
            options.data.frame_delay_max.is_some_and(|longest| longest > options.data.frame_delay);
        if varies && (shallow(spec) || companions.iter().any(|spec| shallow(spec))) {
            return refuse("a queue_depth above 1 beside frame_delay_max", "1");
        }
        let depth = spec.embedding.queue_depth();
        let slots = options.objective.scheduled_sampling_slots.unwrap_or(depth);
        if slots == 0 || slots > depth {
            let (field, most) = ("scheduled_sampling_slots", depth as f64);
            return Err(Error::out_of_range(field, slots as f64, 1.0, most));
        }
        let embeddings: Vec<_> = companions.iter().map(|spec| &spec.embedding).collect();
        let (others, _) = others(&spec.embedding, &embeddings);
        Ok(Some(Scheduled {
            probability: options.objective.scheduled_sampling,
            ramp: options.objective.scheduled_sampling_steps,
            slots,
            delay: options.data.frame_delay,
            seed: options.machine.seed,
            seen: others.into_iter().cloned().collect(),
        }))
    }

    /// Probability that an input is replaced, in the batches of this update.
    fn probability(&self, update: u64) -> f32 {
        match update < self.ramp {
            true => (f64::from(self.probability) * update as f64 / self.ramp as f64) as f32,
            false => self.probability,
        }
    }

    /// Row-major positions of the frames whose input is replaced, and the labels that replace these inputs.
    fn choices(
        &self,
        policy: &Policy,
        frames: &Frames,
        state: &State,
        at: Moment,
        learner: &Stepper,
    ) -> Result<Vec<(usize, Vec<f32>)>> {
        let coin = Rng::new(self.seed, "scheduled.coin", at.draw);
        let probability = self.probability(at.update);
        let all = (at.windows * frames.time) as u64;
        let mut chosen = vec![];
        for rows in stretches(frames.batch, learner.micro_batch()) {
            learner.go_on()?;
            let first = rows.start * frames.time;
            let in_batch = |place: &usize| (at.first * frames.time + first + place) as u64;
            let places: Vec<usize> = (0..rows.len() * frames.time)
                .filter(|place| coin.uniform(in_batch(place)) < probability)
                .collect();
            if places.is_empty() {
                continue;
            }
            // Each frame of each batch has its own generator.
            let number = |place: &usize| at.draw.wrapping_mul(all) + in_batch(place);
            let rngs: Vec<Rng> =
                places.iter().map(|p| Rng::new(self.seed, "scheduled", number(p))).collect();
            let draw =
                Draw { sampling: &Sampling::default(), rngs: &rngs, given: None, mask: None };
            let part = match rows.len() == frames.batch {
                true => Cow::Borrowed(frames),
                false => Cow::Owned(frames.part(&rows, &(0..frames.time))),
            };
            let state = state.rows(&rows)?;
            let labels = policy.choose(&part, &places, &state, draw, &Context::default())?;
            let width = policy.spec().heads.num_labels().max(1);
            let labels = labels.chunks_exact(width).map(<[f32]>::to_vec);
            chosen.extend(places.iter().map(|place| first + place).zip(labels));
        }
        Ok(chosen)
    }

    /// Writes the chosen inputs into frames of this embedding.
    fn write(
        &self,
        frames: &mut Frames,
        embedding: &Embedding,
        heads: &Heads,
        chosen: &[(usize, Vec<f32>)],
    ) -> Result<()> {
        let depth = embedding.queue_depth();
        // At depth 1, the controller of a frame is the input that led to this frame.
        let shown = if depth == 1 { self.delay } else { 0 };
        let (width, wide) = (heads.num_labels(), embedding.continuous_width());
        for (place, labels) in chosen {
            let end = (place / frames.time + 1) * frames.time;
            for slot in 0..self.slots.min(depth) {
                let reader = place + 1 + shown + slot;
                if reader >= end {
                    break;
                }
                let previous = &mut frames.previous[reader * width..][..width];
                if previous.first() == Some(&NONE) {
                    continue;
                }
                if slot == 0 {
                    previous.copy_from_slice(labels);
                }
                let row = &mut frames.continuous[reader * wide..][..wide];
                embedding.write_input(slot, labels, heads, row)?;
            }
        }
        Ok(())
    }
}

impl BatchTransform for Scheduled {
    /// Replaces recorded inputs by the learner's choices, both in its frames and in the frames of companions with other
    /// embeddings.
    fn apply(
        &self,
        batch: &mut Batch,
        learner: &Stepper<'_>,
        state: &State,
        at: Moment,
    ) -> Result<()> {
        if self.probability(at.update) == 0.0 {
            return Ok(());
        }
        let policy = learner.frozen()?;
        let (chosen, spec) =
            (self.choices(&policy, &batch.frames, state, at, learner)?, policy.spec());
        self.write(&mut batch.frames, &spec.embedding, &spec.heads, &chosen)?;
        let mut seen = batch.seen.frames.iter_mut().zip(&self.seen);
        seen.try_for_each(|(frames, own)| self.write(frames, own, &spec.heads, &chosen))
    }
}

#[cfg(test)]
mod tests {
    use sconce_data::Seen;
    use sconce_nn::spec::{Backbone, Heads, HeadsKind, Layout, Melee, RecurrentConfig};
    use sconce_tensor::pool;

    use super::*;
    use crate::bench::examples;
    use crate::objective::imitation::LossOptions;
    use crate::options::{DataOptions, MachineOptions, ObjectiveOptions, TrainOptions};

    const TIME: usize = 8;
    const WINDOWS: usize = 6;

    fn spec(queue_depth: usize, kind: HeadsKind) -> Spec {
        let config = RecurrentConfig {
            hidden_size: 8,
            num_layers: 1,
            layer_norm: false,
            input_norm: true,
            dropout: 0.3,
            input_dropout: 0.0,
            ..Default::default()
        };
        let melee = Melee { layout: Layout::Packed, queue_depth, ..Melee::default() };
        let heads = Heads { prior: true, ..Heads::controller(kind) };
        Spec {
            embedding: Embedding::melee(melee),
            backbone: Backbone::Gru(config),
            heads,
            critic: None,
        }
    }

    fn options(scheduled_sampling: f32) -> TrainOptions {
        TrainOptions {
            objective: ObjectiveOptions { scheduled_sampling, ..ObjectiveOptions::default() },
            machine: MachineOptions { seed: 4, ..MachineOptions::default() },
            ..TrainOptions::default()
        }
    }

    fn learner(spec: &Spec) -> Stepper<'static> {
        let policy = Policy::init(spec, 2).unwrap();
        let config = TrainOptions::default().optimiser().unwrap();
        Stepper::imitating(&policy, &LossOptions::plain(), config, 1.0, 4).unwrap()
    }

    fn scheduled(options: &TrainOptions, spec: &Spec, companions: &[&Spec]) -> Scheduled {
        Scheduled::of(&Setup { options, spec, companions }).unwrap().unwrap()
    }

    fn replaced(options: &TrainOptions, learner: &Stepper, update: u64) -> (Frames, Frames) {
        let spec = learner.policy().spec();
        let scheduled = scheduled(options, spec, &[]);
        let mut before = examples(spec, WINDOWS, TIME, 3).frames;
        // One frame has no previous action.
        let width = spec.heads.num_labels();
        before.previous[5 * width..6 * width].fill(NONE);
        let mut after = Batch { frames: before.clone(), ..Batch::default() };
        let zero = learner.policy().zero_state(WINDOWS).unwrap();
        let at = Moment { update, draw: 7, first: 0, windows: WINDOWS };
        scheduled.apply(&mut after, learner, &zero, at).unwrap();
        (before, after.frames)
    }

    /// Returns the frames in which each input of the window is `input(place)`, in every frame that reads it.
    fn expected(
        before: &Frames,
        spec: &Spec,
        shown: usize,
        slots: usize,
        input: impl Fn(usize) -> Vec<f32>,
    ) -> Frames {
        let mut frames = before.clone();
        let (width, wide) = (spec.heads.num_labels(), spec.embedding.continuous_width());
        for reader in (0..WINDOWS * TIME).filter(|&reader| reader != 5) {
            for slot in 0..slots {
                let back = 1 + shown + slot;
                if reader % TIME < back {
                    continue;
                }
                let labels = input(reader - back);
                if slot == 0 {
                    frames.previous[reader * width..][..width].copy_from_slice(&labels);
                }
                let row = &mut frames.continuous[reader * wide..][..wide];
                spec.embedding.write_input(slot, &labels, &spec.heads, row).unwrap();
            }
        }
        frames
    }

    fn same(a: &Frames, b: &Frames) -> bool {
        (&a.continuous, &a.ids, &a.previous) == (&b.continuous, &b.ids, &b.previous)
    }

    #[test]
    fn every_frame_that_reads_an_input_reads_the_choice_for_the_frame_that_it_answers() {
        for kind in [HeadsKind::Independent, HeadsKind::Autoregressive] {
            for (depth, delay, slots) in [(3, 0, None), (3, 2, Some(2)), (1, 0, None), (1, 2, None)]
            {
                let spec = spec(depth, kind);
                let learner = learner(&spec);
                let options = TrainOptions {
                    data: DataOptions { frame_delay: delay, ..options(1.0).data },
                    objective: ObjectiveOptions {
                        scheduled_sampling_slots: slots,
                        ..options(1.0).objective
                    },
                    ..options(1.0)
                };
                let (before, after) = replaced(&options, &learner, 0);
                let all = WINDOWS * TIME;
                let places: Vec<usize> = (0..all).collect();
                let rngs: Vec<Rng> =
                    (0..all).map(|i| Rng::new(4, "scheduled", (7 * all + i) as u64)).collect();
                let draw =
                    Draw { sampling: &Sampling::default(), rngs: &rngs, given: None, mask: None };
                let policy = learner.frozen().unwrap();
                let zero = policy.zero_state(WINDOWS).unwrap();
                let context = Context::default();
                let drawn = policy.choose(&before, &places, &zero, draw, &context).unwrap();
                assert!(drawn.chunks(13).any(|labels| labels != &drawn[..13]));
                let shown = if depth == 1 { delay } else { 0 };
                let slots = slots.unwrap_or(depth);
                let input = |place: usize| drawn[place * 13..][..13].to_vec();
                let want = expected(&before, &spec, shown, slots, input);
                assert!(same(&after, &want), "{kind:?} {depth} {delay}");
                assert!(!same(&after, &before));
            }
        }
    }

    #[test]
    fn the_share_of_replaced_inputs_rises_and_does_not_depend_on_threads() {
        let learner = learner(&spec(2, HeadsKind::Autoregressive));
        let options = TrainOptions {
            objective: ObjectiveOptions { scheduled_sampling_steps: 10, ..options(0.5).objective },
            ..options(0.5)
        };
        let share = |update| {
            let (before, after) = replaced(&options, &learner, update);
            let rows = before.previous.chunks(13).zip(after.previous.chunks(13));
            (rows.filter(|(a, b)| a != b).count() as f64 / (WINDOWS * (TIME - 1)) as f64, after)
        };
        assert_eq!(share(0).0, 0.0);
        let (few, many) = (share(2).0, share(10).0);
        assert!(few > 0.0 && few < 0.3 && (0.3..0.7).contains(&many), "{few} {many}");
        let after = share(1000).1;
        assert!(same(&after, &share(10).1));
        pool::set_threads(1).unwrap();
        assert!(same(&after, &share(1000).1));
        pool::set_threads(pool::available()).unwrap();
        let scheduled = scheduled(&options, learner.policy().spec(), &[]);
        assert_eq!(
            [0, 1, 5, 10, 11].map(|t| scheduled.probability(t)),
            [0.0, 0.05, 0.25, 0.5, 0.5]
        );
    }

    #[test]
    fn some_windows_of_a_batch_read_the_same_inputs_as_in_the_whole_batch() {
        let spec = spec(2, HeadsKind::Autoregressive);
        let (learner, options) = (learner(&spec), options(0.5));
        let (before, after) = replaced(&options, &learner, 0);
        let scheduled = scheduled(&options, &spec, &[]);
        for rows in [0..2, 2..WINDOWS] {
            let frames = before.part(&rows, &(0..TIME));
            let mut part = Batch { frames, ..Batch::default() };
            let state = learner.policy().zero_state(rows.len()).unwrap();
            let at = Moment { update: 0, draw: 7, first: rows.start, windows: WINDOWS };
            scheduled.apply(&mut part, &learner, &state, at).unwrap();
            assert!(same(&part.frames, &after.part(&rows, &(0..TIME))), "{rows:?}");
        }
    }

    #[test]
    fn inputs_that_cannot_be_replaced_are_refused_with_the_reason() {
        let deep = spec(3, HeadsKind::Independent);
        let of = |options: &TrainOptions, spec: &Spec, teacher: Option<&Spec>| {
            let companions: Vec<&Spec> = teacher.into_iter().collect();
            let setup = Setup { options, spec, companions: &companions };
            Scheduled::of(&setup).map(|s| s.is_some()).map_err(|e| e.to_string())
        };
        assert_eq!(of(&options(0.0), &deep, None), Ok(false));
        assert_eq!(of(&options(0.1), &deep, None), Ok(true));
        let vectors = Spec { embedding: Embedding::vector(3), ..deep.clone() };
        let said = "scheduled_sampling: expected a game whose inputs are declared, and their heads, \
                    got others";
        assert_eq!(of(&options(0.1), &vectors, None), Err(said.into()));
        let varies = TrainOptions {
            data: DataOptions { frame_delay_max: Some(3), ..options(0.1).data },
            ..options(0.1)
        };
        let flat = spec(1, HeadsKind::Independent);
        let said =
            "scheduled_sampling: expected a queue_depth above 1 beside frame_delay_max, got 1";
        assert_eq!(of(&varies, &flat, None), Err(said.into()));
        assert_eq!(of(&varies, &deep, Some(&flat)), Err(said.into()));
        assert_eq!(of(&varies, &deep, None), Ok(true));
        let slots = TrainOptions {
            objective: ObjectiveOptions {
                scheduled_sampling_slots: Some(4),
                ..options(0.1).objective
            },
            ..options(0.1)
        };
        let said = "scheduled_sampling_slots: 4 is outside 1..3";
        assert_eq!(of(&slots, &deep, None), Err(said.into()));
        let alone = TrainOptions {
            objective: ObjectiveOptions {
                scheduled_sampling_steps: 4,
                ..ObjectiveOptions::default()
            },
            ..TrainOptions::default()
        };
        let said = "scheduled_sampling_steps: expected scheduled_sampling above 0, got none";
        assert_eq!(alone.validate().unwrap_err().to_string(), said);
    }

    #[test]
    fn a_teacher_with_another_embedding_reads_the_same_inputs() {
        let (own, other) = (spec(2, HeadsKind::Independent), spec(1, HeadsKind::Independent));
        let learner = learner(&own);
        let (before, after) = replaced(&options(0.5), &learner, 0);
        let scheduled = scheduled(&options(0.5), &own, &[&other]);
        let mut seen = examples(&other, WINDOWS, TIME, 3).frames;
        seen.previous.clone_from(&before.previous);
        let seen = Seen { frames: vec![seen], by: vec![Some(0)] };
        let mut batch = Batch { frames: before.clone(), seen, ..Batch::default() };
        let zero = learner.policy().zero_state(WINDOWS).unwrap();
        let at = Moment { update: 0, draw: 7, first: 0, windows: WINDOWS };
        scheduled.apply(&mut batch, &learner, &zero, at).unwrap();
        let (frames, seen) = (batch.frames, batch.seen.of(0).unwrap().clone());
        assert!(same(&frames, &after));
        assert_eq!(seen.previous, after.previous);
        assert_ne!(seen.previous, before.previous);
    }
}
