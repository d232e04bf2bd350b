//! The games of a run, for training and for validation, and the policy that the run starts with.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::AtomicBool;

use sconce_data::{Corpus, Filter, GameInfo, Holdout, LeftOut, Share, View};
use sconce_nn::{Policy, Spec};
use sconce_tensor::digest::hex;
use sconce_tensor::{Error, Result, tensor};
use sha2::{Digest, Sha256};

use crate::baselines::{Baseline, BaselineKind};
use crate::eval::{self, fits};
use crate::objective::check_columns;
use crate::options::TrainOptions;
use crate::report::Event;
use crate::source::{Mixed, sampling};

/// The games of a side of the split.
#[derive(Default)]
pub(crate) struct Games {
    /// Number of games that are used.
    pub count: usize,
    /// Their views.
    pub views: Vec<View>,
    /// Views that the filters left out.
    pub left_out: LeftOut,
}

/// Conditions of a run on games and views.
fn filter(options: &TrainOptions) -> Filter {
    let data = &options.data;
    Filter {
        stages: data.stages.clone(),
        characters: data.characters.clone(),
        players: data.players.clone(),
        min_frames: data.min_frames,
        max_frames: data.max_frames,
        min_damage_dealt: data.min_damage_dealt,
        min_damage_taken: data.min_damage_taken,
        humans: data.humans,
        unique: data.unique,
        min_quality: data.min_quality,
        dual_port: data.dual_port,
    }
}

/// Training and validation views, split by game.
pub(crate) fn sides(
    corpus: &Corpus,
    spec: &Spec,
    options: &TrainOptions,
) -> Result<(Games, Games)> {
    sampling(options).check_weights(corpus.games().len())?;
    check_columns(options, corpus.schema().beside())?;
    // Otherwise the policy would learn an embedding row for a name that no player has.
    if spec.embedding.named() > 0 {
        let expected = "0 in a training run, as no corpus has player numbers";
        return Err(Error::mismatch("num_player_names", expected, spec.embedding.named()));
    }
    let filter = filter(options);
    let some = |side: &str, corpus: &Corpus, games: &[usize]| -> Result<Games> {
        let chosen = filter.select(corpus.views(games)?);
        let (views, left_out) = chosen.map_err(|e| match e {
            Error::NotFound { what } => Error::not_found(format!("{what} among the {side} games")),
            e => e,
        })?;
        let count = views.iter().map(View::game).collect::<HashSet<_>>().len();
        Ok(Games { count, views, left_out })
    };
    let all = |side: &str, corpus: &Corpus| {
        some(side, corpus, &(0..corpus.games().len()).collect::<Vec<_>>())
    };
    if let Some(dir) = &options.data.validation {
        let validation = Corpus::open(dir)?;
        fits(validation.schema(), spec)?;
        let known = Known::new(corpus.games());
        if let Some(game) = validation.games().iter().find(|game| known.has(game)) {
            let expected = "games that are not trained on";
            return Err(Error::mismatch("validation corpus", expected, &game.source));
        }
        return Ok((all("training", corpus)?, all("validation", &validation)?));
    }
    if options.data.val_split == 0.0 {
        return Ok((all("training", corpus)?, Games::default()));
    }
    let (train, validation) =
        corpus.split(&Holdout::Fraction(options.data.val_split), options.machine.seed)?;
    Ok((some("training", corpus, &train)?, some("validation", corpus, &validation)?))
}

/// Games by their digests and by the digests of their values.
struct Known<'a>(HashSet<&'a str>);

impl<'a> Known<'a> {
    fn new(games: impl IntoIterator<Item = &'a GameInfo>) -> Self {
        let names = |game: &'a GameInfo| [game.digest.as_str(), game.contents.as_str()];
        Known(games.into_iter().flat_map(names).filter(|digest| !digest.is_empty()).collect())
    }

    /// Whether this game, or a game with the same values, is among them.
    fn has(&self, game: &GameInfo) -> bool {
        self.0.contains(game.digest.as_str()) || self.0.contains(game.contents.as_str())
    }
}

/// The views of corpora that are mixed in. A validation game among these views is refused.
pub(crate) fn mixed(spec: &Spec, options: &TrainOptions, validation: &[View]) -> Result<Mixed> {
    let measured = Known::new(validation.iter().map(|view| view.info()));
    let parts = options.data.mix.iter().map(|mix| {
        let corpus = Corpus::open(&mix.corpus)?;
        fits(corpus.schema(), spec)?;
        check_columns(options, corpus.schema().beside())?;
        if let Some(game) = corpus.games().iter().find(|game| measured.has(game)) {
            let (expected, dir) = ("games that are not measured on", mix.corpus.display());
            return Err(Error::mismatch(format!("mix of {dir}"), expected, &game.source));
        }
        let games: Vec<usize> = (0..corpus.games().len()).collect();
        let views = corpus.views(&games)?;
        let (views, _left_out) = filter(options).select(views)?;
        let to = mix.to.unwrap_or(mix.share);
        Ok((views, Share { from: mix.share, to, steps: options.mix_draws() }))
    });
    parts.collect()
}

/// Digest of the games of all sides, by which a resumed run recognises its data.
pub(crate) fn digest(train: &[View], mixed: &Mixed, validation: &[View]) -> String {
    let mut hash = Sha256::new();
    let mixed = mixed.iter().map(|(views, _)| views.as_slice());
    for views in [train, validation].into_iter().chain(mixed) {
        let of = |view: &View| (view.info().digest.clone(), view.info().contents.clone());
        let games: BTreeSet<_> = views.iter().map(of).collect();
        for (digest, contents) in &games {
            hash.update(digest.as_bytes());
            hash.update(contents.as_bytes());
        }
        hash.update(b"/");
    }
    hex(&hash.finalize())
}

/// The policy that a run starts with.
pub(crate) struct First {
    pub policy: Policy,
    /// The event that names the policy file of the weights, if they come from one.
    pub began: Option<Event>,
}

/// Makes the policy that a run starts with: new weights, replaced by those of a policy file if the options name one.
///
/// # Errors
/// `Mismatch` for a policy file whose embedding or backbone is not that of `spec`.
pub(crate) fn first_policy(
    spec: &Spec,
    options: &TrainOptions,
    train: &[View],
    cancel: &AtomicBool,
) -> Result<First> {
    let policy = fitted(spec, options, train, cancel)?;
    let Some(path) = &options.objective.policy else { return Ok(First { policy, began: None }) };
    let from = Policy::load(path)?;
    let what = |part: &str| format!("{part} of {}", path.display());
    if from.spec().embedding != spec.embedding {
        let expected = "that of the run, which a preset may have set";
        return Err(Error::mismatch(what("embedding"), expected, "another"));
    }
    let (own, other) = (spec.backbone.name(), from.spec().backbone.name());
    if own != other {
        let expected = format!("{own}, that of the run, which a preset may have set");
        return Err(Error::mismatch(what("backbone"), expected, other));
    }
    let (mut weights, mut new) = (policy.weights().clone(), vec![]);
    for (name, weight) in &mut weights {
        match from.weights().get(name) {
            Some(own) if own.dims() == weight.dims() => *weight = own.clone(),
            // Weights of heads may differ from those in the file.
            _ if name.starts_with("heads.") => new.push(name.clone()),
            own => {
                let got = own.map_or("none".into(), |own| format!("{:?}", own.dims()));
                let expected = format!("{:?}", weight.dims());
                return Err(Error::mismatch(what(&format!("weight {name}")), expected, got));
            }
        }
    }
    let taken = weights.len() - new.len();
    let began = Event::Began { policy: path.clone(), taken, new };
    Ok(First { policy: Policy::from_weights(spec, weights)?, began: Some(began) })
}

/// New weights, with a prior fitted on the training games.
fn fitted(
    spec: &Spec,
    options: &TrainOptions,
    train: &[View],
    cancel: &AtomicBool,
) -> Result<Policy> {
    let policy = Policy::init(spec, options.machine.seed)?;
    if !(spec.heads.prior && options.objective.fit_prior) {
        return Ok(policy);
    }
    let mut weights = policy.weights().clone();
    for table in pairs(spec, options, train, cancel)?.tables() {
        let name = format!("heads.prior.{}", table.head);
        let fitted = tensor::tensor(table.values.clone(), (table.rows, table.columns))?;
        if weights.insert(name.clone(), fitted.into()).is_none() {
            return Err(Error::not_found(format!("weight {name}")));
        }
    }
    Policy::from_weights(spec, weights)
}

/// Fits P(a_t given a_{t-1}), where a_{t-1} is the newest input that a prior takes: with a queue the input before the
/// label, otherwise the input that the state shows.
fn pairs(
    spec: &Spec,
    options: &TrainOptions,
    train: &[View],
    cancel: &AtomicBool,
) -> Result<Baseline> {
    let count = if spec.embedding.queue_depth() > 1 { eval::count } else { eval::count_answers };
    let counts = count(train, &spec.heads, options.data.frame_delay, cancel)?;
    Ok(Baseline::fit(BaselineKind::Pairs, &counts))
}

/// Fits P(a_t given a_{t-1}) for a run with a `prior_weight`.
pub(crate) fn prior(
    spec: &Spec,
    options: &TrainOptions,
    train: &[View],
    cancel: &AtomicBool,
) -> Result<Option<Baseline>> {
    let weighs = options.objective.prior_weight > 0.0;
    weighs.then(|| pairs(spec, options, train, cancel)).transpose()
}

#[cfg(test)]
mod tests {
    use sconce_data::{Corpus, ImportOptions, import};
    use sconce_fixtures::Fixture;
    use sconce_nn::spec::{self, Embedding, Heads, HeadsKind, Melee};

    use super::*;
    use crate::options::DataOptions;

    #[test]
    fn the_prior_is_fitted_on_the_input_that_it_reads() {
        let dir = tempfile::tempdir().unwrap();
        let replay = dir.path().join("game.slp");
        std::fs::write(&replay, Fixture::default().bytes().unwrap()).unwrap();
        let (into, never) = (dir.path().join("corpus"), AtomicBool::new(false));
        import(&[replay], &into, &ImportOptions::default(), &|_| (), &never).unwrap();
        let views = Corpus::open(&into).unwrap().views(&[0]).unwrap();
        let options = TrainOptions {
            data: DataOptions { frame_delay: 3, ..DataOptions::default() },
            ..TrainOptions::default()
        };
        let config = spec::MlpConfig {
            hidden_sizes: vec![4],
            layer_norm: false,
            residual: false,
            activation: Default::default(),
            dropout: 0.0,
            input_dropout: 0.0,
        };
        let heads = Heads { prior: true, ..Heads::controller(HeadsKind::Independent) };
        let fitted = |queue_depth| {
            let embedding = Embedding::melee(Melee { queue_depth, ..Melee::packed() });
            let (heads, backbone) = (heads.clone(), spec::Backbone::Mlp(config.clone()));
            let policy = first_policy(
                &Spec { embedding, backbone, heads, critic: None },
                &options,
                &views,
                &never,
            );
            tensor::to_vec(&policy.unwrap().policy.weights()["heads.prior.main_x"]).unwrap()
        };
        let table = |counts: Result<crate::baselines::Counts>| {
            let pairs = Baseline::fit(BaselineKind::Pairs, &counts.unwrap());
            let mut tables = pairs.tables();
            tables.find(|table| table.head == "main_x").unwrap().values.clone()
        };
        // With a queue, the newest input is the one right before the label; otherwise, the one that the state shows.
        let (newest, shown) = (
            table(eval::count(&views, &heads, 3, &never)),
            table(eval::count_answers(&views, &heads, 3, &never)),
        );
        assert_ne!(newest, shown);
        assert_eq!((fitted(4), fitted(1)), (newest, shown));
    }
}
