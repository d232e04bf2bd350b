//! Melee games: from replays to a policy that learns on the card, and that scores and plays games that it has not seen
//! there, frame by frame. All of it is compared with the CPU.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use sconce_data::{Corpus, ImportOptions, Reader, import};
use sconce_fixtures::Fixture;
use sconce_nn::policy::{Frames, part};
use sconce_nn::spec::{Backbone, Embedding, Heads, HeadsKind, Melee};
use sconce_nn::{Policy, Spec};
use sconce_tensor::{Error, Result, device};
use sconce_train::eval::evaluate;
use sconce_train::metrics::{Metrics, Report};
use sconce_train::objective::imitation::LossOptions;
use sconce_train::options::{
    DataOptions, EvaluateOptions, LrSchedule, MachineOptions, Mode, SavingOptions, ScheduleOptions,
    TrainOptions,
};
use sconce_train::report::Event;
use sconce_train::run::run;
use tempfile::TempDir;

use crate::{apart, folder, mamba, play, wrong};

/// Games to train on and games to validate on.
pub struct Games {
    folder: TempDir,
    pub train: Corpus,
    validation: Corpus,
    /// Whether the replays are of real games.
    real: bool,
}

impl Games {
    /// The games of the folders `train` and `validation` in `SCONCE_REPLAYS`, only the first of each if `few`. Without
    /// `SCONCE_REPLAYS` it makes random games.
    pub fn found(few: bool) -> Result<Self> {
        let folder = folder()?;
        let given = std::env::var_os("SCONCE_REPLAYS").filter(|path| !path.is_empty());
        let real = given.is_some();
        let replays = match given {
            Some(path) => PathBuf::from(path),
            None => made_up(&folder.path().join("replays"))?,
        };
        let corpus = |side: &str, first: usize| {
            let most = if few { first } else { usize::MAX };
            corpus(&replays.join(side), &folder.path().join(side), most)
        };
        let (train, validation) = (corpus("train", 4)?, corpus("validation", 1)?);
        Ok(Games { folder, train, validation, real })
    }

    /// A folder for corpora and runs.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A description of the games.
    pub fn told(&self) -> String {
        let count = |corpus: &Corpus| {
            let frames: usize = corpus.games().iter().map(|game| game.frames).sum();
            format!("{} ({frames} frames)", corpus.games().len())
        };
        let kind = if self.real { "real" } else { "made-up" };
        let (train, validation) = (count(&self.train), count(&self.validation));
        format!("{train} {kind} games, and {validation} to measure on")
    }
}

/// Replays with random inputs, from which little can be learned.
fn made_up(replays: &Path) -> Result<PathBuf> {
    for (side, games) in [("train", 0..6), ("validation", 6..8)] {
        let folder = replays.join(side);
        std::fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        for seed in games {
            let game = Fixture { frames: 3000, seed, ..Fixture::default() };
            let path = folder.join(format!("{seed}.slp"));
            std::fs::write(&path, game.bytes()?).map_err(Error::io(&path))?;
        }
    }
    Ok(replays.into())
}

fn corpus(replays: &Path, into: &Path, most: usize) -> Result<Corpus> {
    let files = std::fs::read_dir(replays).map_err(Error::io(replays))?;
    let mut files: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
    files.retain(|file| file.extension().is_some_and(|ext| ext == "slp"));
    files.sort();
    files.truncate(most);
    import(&files, into, &ImportOptions::default(), &|_| (), &AtomicBool::new(false))?;
    Corpus::open(into)
}

/// The Spec of presets for cards.
fn spec(hidden_size: usize) -> Spec {
    Spec {
        embedding: Embedding::melee(Melee::default()),
        backbone: Backbone::Mamba(mamba(hidden_size)),
        heads: Heads::controller(HeadsKind::Independent),
        critic: None,
    }
}

/// Sizes of a check.
struct Amount {
    hidden: usize,
    batch: usize,
    window: usize,
    /// Steps that the CPU makes as well.
    both: usize,
    /// All steps.
    steps: usize,
    learning_rate: f64,
    /// Frames that are played of each game.
    played: usize,
}

const SMALL: Amount = Amount {
    hidden: 16,
    batch: 16,
    window: 20,
    both: 5,
    steps: 60,
    learning_rate: 1e-2,
    played: 60,
};
const WHOLE: Amount = Amount {
    hidden: 256,
    batch: 64,
    window: 60,
    both: 10,
    steps: 300,
    learning_rate: 1e-3,
    played: 600,
};

/// A run on a card gives the same as one on the CPU, and continues until it has learned. Its policy scores and plays
/// games that it has not seen as on the CPU.
pub fn learned(small: bool) -> Result<String> {
    let (games, amount) = (Games::found(small)?, if small { SMALL } else { WHOLE });
    let spec = spec(amount.hidden);
    let run = |device, steps| trained(&games, &spec, &amount, device, steps);
    let (here, there) = (run("cpu", amount.both)?, run("cuda:0", amount.both)?);
    let losses = near("losses of the first steps", &here.losses, &there.losses, 1e-3)?;
    near("validation after them", &[here.nll], &[there.nll], 1e-3)?;

    let (untrained, end) = (here.losses[0], run("cuda:0", amount.steps)?);
    // Random inputs keep their NLL, whatever is learned.
    let bound = untrained * if games.real { 0.15 } else { 0.95 };
    if end.nll >= bound {
        return Err(wrong(format!("less than {bound} of {untrained} nats"), end.nll));
    }
    let policy = Policy::load(&end.best)?;
    let scored = near("validation", &[score(&policy, &games)?], &[end.nll], 1e-4)?;
    let played = played(&policy, &games, amount.played)?;
    Ok(format!(
        "{}: {untrained:.3} nats, after {} steps {:.3}; from the CPU's, losses of {} steps {losses:.1e}, validation \
         {scored:.1e}, {played}",
        games.told(),
        amount.steps,
        end.nll,
        amount.both,
    ))
}

/// The largest relative difference of two lists of numbers, if it is within `bound`.
fn near(what: &str, here: &[f64], there: &[f64], bound: f64) -> Result<f64> {
    let apart = here.iter().zip(there).map(|(a, b)| (a - b).abs() / a.abs().max(b.abs()));
    let most = apart.fold(0.0, f64::max);
    match here.len() == there.len() && there.iter().all(|v| v.is_finite()) && most <= bound {
        true => Ok(most),
        false => Err(wrong(format!("{what} within {bound} of {here:?}"), format!("{there:?}"))),
    }
}

/// Result of a run.
struct Trained {
    /// Loss of each step.
    losses: Vec<f64>,
    /// NLL on the validation games at the end.
    nll: f64,
    best: PathBuf,
}

/// A run to step `steps`, which resumes the earlier run on this device.
fn trained(
    games: &Games,
    spec: &Spec,
    amount: &Amount,
    device: &str,
    steps: usize,
) -> Result<Trained> {
    let options = TrainOptions {
        data: DataOptions {
            batch_size: amount.batch,
            window_size: amount.window,
            stride: amount.window / 2,
            mirror: 0.5,
            validation: Some(games.validation.dir().into()),
            ..DataOptions::default()
        },
        schedule: ScheduleOptions {
            steps: Some(steps as u64),
            learning_rate: amount.learning_rate,
            lr_schedule: LrSchedule::Constant,
            warmup_steps: 10,
            ..ScheduleOptions::default()
        },
        saving: SavingOptions {
            validation_mode: Mode::Carry,
            validate_every: Some(steps as u64),
            evaluate: false,
            ..SavingOptions::default()
        },
        machine: MachineOptions {
            seed: 6,
            device: device.into(),
            resume: true,
            ..MachineOptions::default()
        },
        loss: LossOptions::plain(),
        ..TrainOptions::default()
    };
    let losses = RefCell::new(vec![]);
    let note = |event| {
        if let Event::Step { loss, .. } = event {
            losses.borrow_mut().push(loss);
        }
    };
    let out = games.path().join(format!("run-{device}"));
    let report = run(&games.train, spec, &options, &out, &note, &AtomicBool::new(false))?;
    let nll = report.history.last().and_then(|point| point.nll);
    let nll = nll.ok_or_else(|| wrong("a validation", "none"))?;
    Ok(Trained { losses: losses.into_inner(), nll, best: out.join("best.safetensors") })
}

/// NLL of the policy on the validation games, in nats a frame.
fn score(policy: &Policy, games: &Games) -> Result<f64> {
    let options = EvaluateOptions { mode: Some(Mode::Carry), ..EvaluateOptions::default() };
    let never = AtomicBool::new(false);
    Ok(evaluate(policy, &games.validation, None, &options, &|_| (), &never)?.policy.nll)
}

/// Steps the validation games together frame by frame, from both players' views: the card gives the same logits as the
/// CPU, and the same share of the players' own choices.
fn played(policy: &Policy, games: &Games, frames: usize) -> Result<String> {
    let on_card = policy.copy_on(&device::open(0)?)?;
    let seen = Seen::of(policy.spec(), games, frames)?;
    let (here, there) = (play(policy, &seen.frames)?, play(&on_card, &seen.frames)?);
    let apart = apart(&here, &there);
    if apart > 1e-4 {
        return Err(wrong("logits of the CPU within 0.0001", apart));
    }
    let reports = (seen.report(policy.spec(), &here)?, seen.report(policy.spec(), &there)?);
    let shares = |report: &Report| report.heads.iter().map(|h| h.accuracy).collect::<Vec<_>>();
    near("shares of right choices", &shares(&reports.0), &shares(&reports.1), 1e-3)?;
    let right = shares(&reports.1);
    Ok(format!(
        "logits of {} games of {} frames {apart:.1e}; {:.1} % of choices are the player's",
        seen.frames.batch,
        seen.frames.time,
        100.0 * right.iter().sum::<f64>() / right.len() as f64
    ))
}

/// The first frames of some games, and their players' actions.
struct Seen {
    frames: Frames,
    /// `[t, b, num_labels]`
    labels: Vec<f32>,
    previous: Vec<f32>,
}

impl Seen {
    fn of(spec: &Spec, games: &Games, most: usize) -> Result<Self> {
        let corpus = &games.validation;
        let views = corpus.views(&(0..corpus.games().len()).collect::<Vec<_>>())?;
        let reader = Reader::new(spec.embedding.clone(), spec.heads.clone(), 0);
        let time = views.iter().map(|view| view.len(0)).fold(most, usize::min);
        let mut frames =
            Frames { batch: views.len(), time, continuous: vec![], ids: vec![], previous: vec![] };
        let mut labels = vec![];
        for view in &views {
            let game = reader.sequence(view, 0..time)?;
            frames.continuous.extend(game.frames.continuous);
            frames.ids.extend(game.frames.ids);
            frames.previous.extend(game.frames.previous);
            labels.extend(game.labels);
        }
        // In the order of play, frame after frame.
        let (shape, rows) = ([frames.batch, time], 0..frames.batch);
        let by_time =
            |data: &[f32]| (0..time).flat_map(|t| part(data, shape, &rows, &(t..t + 1))).collect();
        let (labels, previous) = (by_time(&labels), by_time(&frames.previous));
        Ok(Seen { frames, labels, previous })
    }

    fn report(&self, spec: &Spec, logits: &[f32]) -> Result<Report> {
        let mut metrics = Metrics::new(&spec.heads, None)?;
        metrics.add(logits, &self.labels, &self.previous)?;
        metrics.report()
    }
}
