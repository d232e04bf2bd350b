//! Batches of a run: independent windows, or tracks that walk through games, prepared ahead by a loader.

use std::sync::atomic::AtomicBool;

use sconce_data::{
    Batch, Drawn, Draws, Flow, Loader, LoaderOptions, Mixture, Reader, Sampler, SamplerOptions,
    Seen, Share, Tracks, View,
};
use sconce_nn::Spec;
use sconce_nn::spec::{Embedding, Heads};
use sconce_tensor::Result;

use crate::objective;
use crate::options::{Mode, TrainOptions};
use crate::stop::go_on;

/// Batches of a run.
pub(crate) struct Source {
    own: Feed,
    /// The same frames in each other embedding of the companions.
    seen: Vec<Feed>,
    /// For each companion, the index of its feed in `seen`; `None` if it reads the learner's frames.
    by: Vec<Option<usize>>,
}

/// Views of other corpora, and each corpus's share of the windows.
pub(crate) type Mixed = Vec<(Vec<View>, Share)>;

/// Batches for one embedding, prepared ahead.
struct Feed {
    /// Name of the feed in errors.
    name: String,
    draws: Draws,
    options: LoaderOptions,
    /// The loader, which starts at the first requested step.
    loader: Option<Loader<Draws>>,
}

/// The batch of a step.
pub(crate) struct Loaded {
    pub batch: Batch,
    /// For tracks: whether each begins a new game. Empty for independent windows, which all begin with a zero state.
    pub fresh: Vec<bool>,
    /// Number of frames without padding, which fills up windows at the end of games.
    pub frames: usize,
}

impl Feed {
    fn new(
        name: &str,
        (views, mixed): (Vec<View>, Mixed),
        embedding: &Embedding,
        heads: &Heads,
        options: &TrainOptions,
    ) -> Result<Self> {
        let batch_size = options.data.batch_size;
        let sampling = sampling(options);
        let burn_in = sampling.silent(options.data.burn_in);
        let reader = Reader {
            neutral_weight: options.data.neutral_weight,
            transition_weight: options.data.transition_weight,
            beside: objective::columns(options),
            ..Reader::new(embedding.clone(), heads.clone(), options.data.frame_delay)
        };
        let draws = match options.data.unroll {
            Mode::Window => {
                let sampler = Mixture::new(Sampler::new(views, reader, sampling)?, mixed)?;
                Draws::Windows { sampler, batch_size, burn_in }
            }
            Mode::Carry => {
                let tracks = Tracks::new(views, reader, sampling, batch_size, burn_in)?;
                Draws::Tracks { tracks: Box::new(tracks), burn_in }
            }
        };
        Ok(Feed { name: name.into(), draws, options: options.loader(), loader: None })
    }

    fn next(&mut self, step: u64, cancel: &AtomicBool) -> Result<Drawn> {
        let loader = match self.loader.take().filter(|loader| loader.step() == step) {
            Some(loader) => loader,
            None => Loader::start(self.name.as_str(), self.draws.clone(), &self.options, step)?,
        };
        self.loader.insert(loader).next(cancel)
    }

    fn flow(&self) -> Flow {
        self.loader.as_ref().map(Loader::flow).unwrap_or_default()
    }
}

impl Source {
    /// Makes batches of these views. `companions` are the embeddings of the companions.
    ///
    /// # Errors
    /// Those of the views and options.
    pub(crate) fn new(
        name: &str,
        views: Vec<View>,
        mixed: Mixed,
        spec: &Spec,
        companions: &[&Embedding],
        options: &TrainOptions,
    ) -> Result<Self> {
        let feed = |views, embedding| Feed::new(name, views, embedding, &spec.heads, options);
        let (others, by) = others(&spec.embedding, companions);
        let sides = (views, mixed);
        let seen = others.iter().map(|embedding| feed(sides.clone(), embedding));
        Ok(Source { seen: seen.collect::<Result<_>>()?, by, own: feed(sides, &spec.embedding)? })
    }

    pub(crate) fn steps_per_epoch(&self) -> u64 {
        match &self.own.draws {
            Draws::Windows { sampler, batch_size, .. } => sampler.steps_per_epoch(*batch_size),
            Draws::Tracks { tracks, .. } => tracks.steps_per_epoch(),
        }
    }

    /// Number of views that are too short to learn from.
    pub(crate) fn short_views(&self) -> usize {
        match &self.own.draws {
            Draws::Windows { sampler, .. } => sampler.short_views(),
            Draws::Tracks { tracks, .. } => tracks.short_views(),
        }
    }

    /// The examples of step `step`.
    pub(crate) fn draw(&mut self, step: u64, cancel: &AtomicBool) -> Result<Loaded> {
        // The loader checks for cancellation only while it waits.
        go_on(cancel)?;
        let Drawn { mut batch, tracks } = self.own.next(step, cancel)?;
        let seen = self.seen.iter_mut().map(|feed| Ok(feed.next(step, cancel)?.batch.frames));
        batch.seen = Seen { frames: seen.collect::<Result<_>>()?, by: self.by.clone() };
        let frames = match tracks.is_empty() {
            true => batch.weights.len(),
            false => tracks.iter().map(|track| track.frames).sum(),
        };
        let fresh = tracks.iter().map(|track| track.fresh).collect();
        Ok(Loaded { batch, fresh, frames })
    }

    /// Game and first frame of each window of batch `draw`.
    pub(crate) fn windows(&self, draw: u64) -> Vec<(String, i32)> {
        let place =
            |(view, start): (&View, usize)| (view.info().source.clone(), view.frame_number(start));
        match &self.own.draws {
            Draws::Windows { sampler, batch_size, .. } => {
                sampler.places(draw, *batch_size).into_iter().map(place).collect()
            }
            Draws::Tracks { tracks, .. } => {
                let at = tracks.clone().at(draw);
                let at = at.iter().filter_map(|at| Some((tracks.views().get(at.view)?, at.start)));
                at.map(place).collect()
            }
        }
    }

    /// Figures of the loader since this process started the run, including waits for the companions' frames.
    pub(crate) fn flow(&self) -> Flow {
        let mut flow = self.own.flow();
        let waits = self.seen.iter().map(|feed| feed.flow().data_wait_seconds);
        flow.data_wait_seconds += waits.sum::<f64>();
        flow
    }
}

/// The embeddings of companions that differ from the learner's, each once, and for each companion the index of its own.
pub(crate) fn others<'a>(
    own: &Embedding,
    companions: &[&'a Embedding],
) -> (Vec<&'a Embedding>, Vec<Option<usize>>) {
    let mut all: Vec<&Embedding> = vec![];
    let by = companions.iter().map(|other| {
        if *other == own {
            return None;
        }
        let known = all.iter().position(|known| known == other);
        known.or_else(|| {
            all.push(other);
            Some(all.len() - 1)
        })
    });
    let by = by.collect();
    (all, by)
}

/// Options of the sampler that draws the windows of a run.
pub(crate) fn sampling(options: &TrainOptions) -> SamplerOptions {
    SamplerOptions {
        window: options.data.window_size,
        stride: options.data.stride,
        sampling: options.data.sampling,
        weights: options.data.weights.clone(),
        balance: options.data.balance.clone(),
        action_oversample: options.data.action_oversample,
        oversample_column: options.data.oversample_column.clone(),
        loss_on: options.data.loss_on,
        mirror: options.data.mirror,
        noise: options.data.noise,
        noise_scale: options.data.noise_scale,
        previous_dropout: options.data.previous_dropout,
        frame_delay_max: options.data.frame_delay_max,
        seed: options.machine.seed,
    }
}

#[cfg(test)]
mod tests {
    use sconce_data::{Corpus, ImportOptions, import};
    use sconce_fixtures::Fixture;
    use sconce_nn::spec;
    use sconce_nn::spec::{HeadsKind, Melee};

    use super::*;
    use crate::options::DataOptions;

    fn corpus(dir: &std::path::Path) -> Corpus {
        let replay = dir.join("game.slp");
        std::fs::write(&replay, Fixture::default().bytes().unwrap()).unwrap();
        let (into, never) = (dir.join("corpus"), AtomicBool::new(false));
        import(&[replay], &into, &ImportOptions::default(), &|_| (), &never).unwrap();
        Corpus::open(&into).unwrap()
    }

    fn spec(melee: Melee) -> Spec {
        let config = spec::MlpConfig {
            hidden_sizes: vec![4],
            layer_norm: false,
            residual: false,
            activation: Default::default(),
            dropout: 0.0,
            input_dropout: 0.0,
        };
        let heads = Heads::controller(HeadsKind::Independent);
        Spec {
            embedding: Embedding::melee(melee),
            backbone: spec::Backbone::Mlp(config),
            heads,
            critic: None,
        }
    }

    #[test]
    fn a_teacher_that_reads_frames_in_another_way_sees_the_same_ones() {
        let dir = tempfile::tempdir().unwrap();
        let corpus = corpus(dir.path());
        let (own, teacher) = (spec(Melee::packed()), spec(Melee::default()));
        assert_ne!(own.embedding, teacher.embedding);
        let cancel = AtomicBool::new(false);
        for unroll in [Mode::Window, Mode::Carry] {
            let options = TrainOptions {
                data: DataOptions {
                    unroll,
                    batch_size: 3,
                    window_size: 8,
                    mirror: 0.5,
                    previous_dropout: 0.4,
                    frame_delay_max: Some(3),
                    burn_in: 2,
                    ..DataOptions::default()
                },
                ..TrainOptions::default()
            };
            let views = corpus.views(&[0]).unwrap();
            let mut source =
                Source::new("test", views, vec![], &own, &[&teacher.embedding], &options).unwrap();
            for step in 0..5 {
                let Loaded { batch, .. } = source.draw(step, &cancel).unwrap();
                let seen = batch.seen.of(0).unwrap();
                assert_ne!(batch.frames.continuous.len(), seen.continuous.len());
                assert_eq!(batch.frames.previous, seen.previous);
            }
            let views = corpus.views(&[0]).unwrap();
            let mut same =
                Source::new("test", views, vec![], &own, &[&own.embedding], &options).unwrap();
            let seen = same.draw(0, &cancel).unwrap().batch.seen;
            assert!(seen.frames.is_empty() && seen.of(0).is_none());
        }
    }
}
