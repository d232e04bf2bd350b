//! A run that learns from play: rollout, advantages, update, until its end.
//!
//! Every random number is a function of seed, step and row, so a run that resumes from `last.safetensors` gives the
//! bits of the uninterrupted run.

mod ahead;
mod anneal;
mod card;
mod first;
mod games;
mod measure;
mod progress;
mod record;
mod report;
mod save;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use sconce_env::{EnvOptions, Host};
use sconce_nn::{Policy, Spec};
use sconce_tensor::device::Caching;
use sconce_tensor::metrics::METRICS;
use sconce_tensor::trace::{self, Kind};
use sconce_tensor::{Error, Result, device, memory, pool};
use sconce_train::eval::pool_of;
use sconce_train::run::Folder;

pub(crate) use ahead::Played;
pub(crate) use measure::{Bytes, Times, Weighed};
pub use progress::{Point, Progress};
pub use record::Record;
pub use report::{Event, PlayReport, Stopped, read_report};

use first::{first_policy, first_statistics, rollout_bytes};
use games::live_spec;
use save::Restored;

use crate::league::League;
use crate::learner::{Learner, Taught, Updated};
use crate::live::{Episodes, Inbox, Listener, Live, retrace};
use crate::options::{OffPolicy, PpoOptions};
use crate::returns::Bars;
use crate::rollout::Player;
use crate::segment::Segment;
use crate::statistics::Statistics;

/// Points of a learning curve; a longer run has the means of several updates in a point.
const MOST_POINTS: u64 = 500;

/// The task of a run: the Spec of its policy, and the name of its environment.
#[derive(Debug, Clone, Copy)]
pub struct Task<'a> {
    /// The Spec of the policy.
    pub spec: &'a Spec,
    /// Name of the environment.
    pub env: &'a str,
    /// The processes of an environment whose rules are not native.
    pub host: Option<&'a Arc<Host>>,
    /// Where segments of live games come from, for a run without environments.
    pub inbox: Option<&'a Arc<Inbox>>,
    /// Whether the run goes on from its last state.
    pub resume: bool,
}

impl Task<'_> {
    /// Options of the environments.
    pub(crate) fn world(&self, options: &PpoOptions) -> EnvOptions {
        EnvOptions { host: self.host.cloned(), ..options.env(self.env) }
    }
}

/// Learns from play, with all files of the run in `out`.
///
/// # Errors
/// `Mismatch` for a run shorter than one update, and for a Spec that does not fit the environment; `Fixed` for options
/// that a resumed run cannot change; `Cancelled` if `cancel` is set before the first update.
pub fn run(
    task: Task<'_>,
    options: &PpoOptions,
    out: &Path,
    events: &dyn Fn(Event),
    cancel: &AtomicBool,
) -> Result<PlayReport> {
    options.validate()?;
    task.spec.validate()?;
    let folder = Folder::new(out);
    let _lock = folder.lock()?;
    let _threads = pool_of(options.machine.threads)?;
    let mut run = Run::prepare(task, options, Some(folder.clone()), events, cancel)?;
    Record::new(task, options).write(&folder)?;
    run.tell_start();
    let stopped = run.learn();
    match stopped {
        Ok(stopped) => run.finish(stopped),
        Err(error) => {
            // The environments have moved and some weights may have changed, so the last saved state stays as it is.
            run.note_failure(&error);
            Err(error)
        }
    }
}

/// A run in progress.
pub(crate) struct Run<'a> {
    env: &'a str,
    options: &'a PpoOptions,
    /// Folder of its files; `None` for a run that is measured and writes none.
    folder: Option<Folder>,
    events: &'a dyn Fn(Event),
    cancel: &'a AtomicBool,
    player: Player,
    live: Option<Live>,
    learner: Learner,
    progress: Progress,
    statistics: Statistics,
    league: Option<League>,
    /// The rollout of the next update, if it was played beside the last one.
    ahead: Option<Played>,
    /// Digests of the teachers' files.
    teacher: Option<String>,
    /// Updates of the whole run.
    updates: u64,
    best: Option<save::Best>,
    clock: Clock,
    /// Update of the last saved state.
    saved: Option<u64>,
    _caching: Caching,
}

/// The time of a run, with the time before this process.
#[derive(Debug, Clone, Copy)]
struct Clock {
    begun: Instant,
    before: f64,
}

impl Clock {
    fn seconds(self) -> f64 {
        self.before + self.begun.elapsed().as_secs_f64()
    }
}

impl<'a> Run<'a> {
    /// The run from its start, or from the last state in its folder.
    pub(crate) fn prepare(
        task: Task<'a>,
        options: &'a PpoOptions,
        folder: Option<Folder>,
        events: &'a dyn Fn(Event),
        cancel: &'a AtomicBool,
    ) -> Result<Self> {
        let teacher = Taught::of(options)?;
        let digest = teacher.as_ref().and_then(Taught::digest);
        let earlier = match &folder {
            Some(folder) => save::resumable(folder, task, options, digest.as_deref())?,
            None => None,
        };
        let policy = match &earlier {
            Some(earlier) => earlier.policy(task.spec)?,
            None => first_policy(task.spec, options)?,
        };
        games::check(options, task.inbox.is_some())?;
        let device = device::named(&options.machine.device)?;
        if device.is_cuda() {
            card::check(task, options, &policy)?;
        }
        let policy = policy.on(&device)?;
        let path = folder.as_ref().map(Folder::path);
        let league = league_of(task, options, path, earlier.as_ref())?;
        let world = task.world(options);
        if let Some(host) = task.host {
            host.divide(options.world.environments);
        }
        let mut player = match (task.inbox, &league) {
            (Some(inbox), _) => {
                Player::idle(live_spec(task, inbox, options)?, options.world.environments)
            }
            (None, None) if device.is_cuda() => {
                Player::on_card(&world, &policy, options.rollout.rollout_steps)?
            }
            (None, None) => Player::new(&world, &policy)?,
            (None, Some(_)) => Player::against(&world, &policy, options.league.self_play_share)?,
        };
        options.check_length(player.rows())?;
        if player.spec().seats > 1 && options.schedule.target_return.is_some() {
            let got = match league {
                None => "the returns of two seats, which add up to 0",
                Some(_) => "opponents that change",
            };
            return Err(Error::mismatch("target_return", "one seat that learns", got));
        }
        if !player.is_on_card() {
            memory::room("a rollout", rollout_bytes(&policy, options, player.rows())?)?;
        }
        let mut listeners = vec![];
        for tutor in teacher.iter().flat_map(Taught::tutors) {
            match task.inbox {
                None => player.teach(tutor)?,
                Some(_) => listeners.push(Listener::new(tutor, task.spec)?),
            }
        }
        let mut learner = Learner::new(&policy, options, teacher)?;
        options.check_batches(player.rows(), learner.remembers())?;
        let (mut progress, mut episodes) = (Progress::default(), Episodes::default());
        let width = player.spec().observation_size;
        let mut statistics = Statistics::new(options, player.rows(), width)?;
        let mut ahead = None;
        match earlier {
            Some(earlier) => {
                let restored = earlier.restore(&mut learner, &mut player, league.as_ref())?;
                Restored { progress, statistics, episodes, ahead } = restored;
                events(Event::Resumed { step: progress.steps });
            }
            None => first_statistics(&mut statistics, task, options, &policy)?,
        }
        if statistics.observes() {
            player.observe();
        }
        let updates = options.schedule.steps / options.update_steps(player.rows());
        let clock = Clock { begun: Instant::now(), before: progress.seconds };
        let so_far = [progress.steps, progress.updates];
        let live = task.inbox.map(|inbox| Live::new(inbox, options, listeners, so_far, episodes));
        Ok(Run {
            env: task.env,
            options,
            folder,
            events,
            cancel,
            player,
            live: live.transpose()?,
            learner,
            progress,
            statistics,
            league,
            ahead,
            teacher: digest,
            updates,
            best: None,
            clock,
            saved: None,
            _caching: Caching::on(&device),
        })
    }

    fn tell_start(&self) {
        (self.events)(Event::Start {
            env: self.env.into(),
            rows: self.player.rows(),
            updates: self.updates,
            steps: self.updates * self.options.update_steps(self.player.rows()),
            weights: self.learner.stepper().policy().num_weights(),
            threads: pool::threads(),
        });
    }

    fn learn(&mut self) -> Result<Stopped> {
        loop {
            self.anneal()?;
            if self.cancel.load(Ordering::Relaxed) {
                return Ok(Stopped::Stopped);
            }
            if self.progress.updates >= self.updates {
                return Ok(Stopped::Finished);
            }
            if self.target_is_reached() {
                return Ok(Stopped::Target);
            }
            if self.clock.seconds() >= self.budget() {
                return Ok(Stopped::Budget);
            }
            match self.update() {
                // The run ended while it waited for live games, for one of the reasons above.
                Err(Error::Cancelled) => continue,
                other => other?,
            }
            if self.progress.updates.is_multiple_of(self.options.saving.save_every) {
                self.save()?;
            }
        }
    }

    /// Seconds that the run may take.
    fn budget(&self) -> f64 {
        self.options.schedule.max_minutes.map_or(f64::INFINITY, |minutes| 60.0 * minutes)
    }

    /// Learns from a rollout, which is played now unless it was played beside the last update.
    pub(crate) fn update(&mut self) -> Result<()> {
        let begun = Instant::now();
        let _span = trace::span(Kind::Step, "update");
        self.look()?;
        if self.player.is_on_card() {
            return self.update_on_card(begun);
        }
        let mut played = match self.ahead.take() {
            Some(ahead) => ahead,
            None => self.play()?,
        };
        self.value(&mut played)?;
        let mut playing = begun.elapsed().as_secs_f64();
        let done = self.done();
        let updated = match self.options.rollout.overlap {
            true => self.learn_ahead(&played.segments, &mut playing)?,
            false => self.learn_from(&played.segments)?,
        };
        self.count(updated, &played, [playing, begun.elapsed().as_secs_f64()], done);
        // Its mean return has the episodes that this policy has just played.
        self.keep_best(&played.policy, played.update)
    }

    /// Plays a rollout with the present policy.
    pub(crate) fn play(&mut self) -> Result<Played> {
        let (policy, update) = (self.policy()?, self.progress.updates);
        self.meet(&policy, update)?;
        let rollout = self.rollout();
        let segments = match self.live {
            None => self.player.play(&policy, rollout)?,
            Some(_) => self.play_live(&policy)?,
        };
        let mut played = Played::of(&mut self.player, segments, policy, update)?;
        if let Some(live) = &mut self.live {
            (played.steps, played.episodes) = (live.steps(), live.take_episodes());
        }
        Ok(played)
    }

    /// Adds a rollout to the statistics, and computes its advantages.
    pub(crate) fn value(&mut self, played: &mut Played) -> Result<()> {
        let _span = trace::span(Kind::Step, "advantages");
        if let Some(observed) = &played.observed {
            self.statistics.observe(observed)?;
        }
        // Live segments are scaled as they arrive.
        if self.live.is_none() {
            self.statistics.scale(&mut played.segments)?;
        }
        self.estimate(&played.policy, &mut played.segments)
    }

    /// Learns from a rollout.
    pub(crate) fn learn_from(&mut self, segments: &[Segment]) -> Result<Updated> {
        let done = self.done();
        self.learner.learn(segments, self.progress.updates, done)
    }

    /// Share of the run that has passed.
    fn done(&self) -> f64 {
        self.progress.updates as f64 / self.updates.max(1) as f64
    }

    /// Computes the advantages of segments.
    fn estimate(&self, policy: &Policy, segments: &mut [Segment]) -> Result<()> {
        let discounts = self.options.discounts();
        match self.options.rollout.off_policy {
            OffPolicy::VTrace if self.live.is_some() => {
                let bars = Bars { rho: self.options.rollout.rho as f32, c: 1.0 };
                retrace(policy, segments, discounts, bars)
            }
            _ => segments.iter_mut().try_for_each(|segment| segment.estimate(discounts)),
        }
    }

    /// The present policy, which normalises its observations by the present statistics.
    pub(crate) fn policy(&self) -> Result<Policy> {
        let policy = self.learner.stepper().policy();
        let spec = self.statistics.spec(policy.spec());
        Policy::from_weights(&spec, self.learner.stepper().shown()?)
    }

    fn count(&mut self, mut updated: Updated, rollout: &Played, times: [f64; 2], done: f64) {
        let [played, seconds] = times;
        if let Some(live) = &mut self.live {
            let figures = live.take_figures().map(|(name, figure)| (name.to_string(), figure));
            updated.figures.named.extend(figures);
        }
        let update_steps = self.options.update_steps(self.player.rows());
        let returns = self.has_returns();
        if let Some(league) = &mut self.league {
            league.count(&rollout.matches);
            let mut playing = self.player.members();
            // These matches are not counted yet.
            let ahead = self.ahead.iter().flat_map(|ahead| &ahead.matches);
            playing.extend(ahead.map(|played| played.member));
            league.forget(&playing);
        }
        let rewards = self.rewards(&rollout.terms);
        let progress = &mut self.progress;
        METRICS.env_steps.add(rollout.steps.saturating_sub(progress.steps));
        progress.updates += 1;
        progress.steps = rollout.steps;
        progress.seconds = self.clock.seconds();
        progress.renew(rollout.update);
        progress.count(&rollout.episodes, rollout.others);
        let point = Point {
            updates: progress.updates,
            steps: progress.steps,
            seconds: progress.seconds,
            episodes: progress.episodes,
            mean_return: if returns { progress.mean_return() } else { None },
            mean_length: progress.mean_length(),
            steps_per_second: update_steps as f64 / seconds,
            rollout_share: played / seconds,
            learning_rate: self.options.learning_rate(done),
            grad_norm: updated.grad_norm,
            loss: updated.figures.total,
            figures: updated.figures.named,
            explained_variance: updated.explained_variance,
            stopped_early: f64::from(u8::from(updated.stopped)),
            rewards,
            elo: self.league.as_ref().map(|league| league.state().elo),
            opponents: self.league.as_ref().map_or(vec![], League::faced),
        };
        (self.events)(Event::Update { updates_in_all: self.updates, point: point.clone() });
        progress.add(point, self.updates.div_ceil(MOST_POINTS));
    }

    /// Means of the reward terms of the first seat per step of an environment. In a league there are none: the first
    /// seat of half the environments is the opponent's.
    fn rewards(&self, terms: &[f64]) -> BTreeMap<String, f64> {
        if self.league.is_some() {
            return BTreeMap::new();
        }
        let steps = self.options.update_steps(self.options.world.environments) as f64;
        let means = match &self.live {
            Some(live) => live.terms().to_vec(),
            None => terms.iter().map(|sum| sum / steps).collect(),
        };
        let names = self.player.spec().reward_terms.iter();
        names.zip(means).map(|(name, mean)| (name.to_string(), mean)).collect()
    }

    /// Lets the policy become a past self if it is time, and chooses the opponents of a rollout with this number.
    fn meet(&mut self, policy: &Policy, rollout: u64) -> Result<()> {
        let (update, notes) = (self.progress.updates, self.notes(self.progress.updates));
        let Some(league) = &mut self.league else { return Ok(()) };
        if league.is_due(update) {
            league.keep(policy, update, notes)?;
        }
        self.player.meet(league.draw(rollout, self.player.shards()).into_iter())
    }

    /// Whether the mean return says how good the policy is: against itself it loses as often as it wins.
    fn has_returns(&self) -> bool {
        self.player.spec().seats == 1 || self.league.is_some()
    }

    fn finish(mut self, stopped: Stopped) -> Result<PlayReport> {
        if self.progress.updates == 0 {
            return Err(Error::Cancelled);
        }
        if self.saved != Some(self.progress.updates) {
            self.save()?;
        }
        self.write_best()?;
        if let Some(live) = &self.live {
            // The games go on with the last weights.
            live.publish(&self.policy()?, self.progress.updates)?;
        }
        let report = self.report(stopped);
        if let Some(folder) = &self.folder {
            sconce_train::run::write_json(&folder.report(), &report)?;
        }
        Ok(report)
    }

    fn note_failure(&self, error: &Error) {
        (self.events)(Event::Failed {
            update: self.progress.updates + 1,
            reason: error.to_string(),
        });
    }
}

/// The opponents of a run, if it has any.
fn league_of(
    task: Task<'_>,
    options: &PpoOptions,
    folder: Option<&Path>,
    earlier: Option<&save::Earlier>,
) -> Result<Option<League>> {
    if !options.has_league() {
        return Ok(None);
    }
    let (env, saved) = (sconce_env::spec(&task.world(options))?, earlier.and_then(|e| e.league()));
    League::new(&options.league, &env, folder, options.machine.seed, saved).map(Some)
}

#[cfg(test)]
mod tests;
