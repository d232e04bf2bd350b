//! Preparation of a run: its data, its policy and the state that it resumes from.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use sconce_data::Corpus;
use sconce_nn::Spec;
use sconce_tensor::device::{Caching, Devices};
use sconce_tensor::{Device, Error, Result, pool};

use super::folder::{Folder, Kind};
use super::machine::Machine;
use super::progress::Progress;
use super::resume::{Record, resumable};
use super::room::Room;
use super::saver::Saver;
use super::state::Run;
use super::watch::Watch;
use crate::eval;
use crate::games::{First, Games, digest, first_policy, mixed, prior, sides};
use crate::objective::teacher::digests;
use crate::objective::{self, Companion, Objectives};
use crate::options::{Mode, TrainOptions};
use crate::plan::check_room;
use crate::replicas::{Replica, Replicas};
use crate::report::{Event, Side};
use crate::source::Source;
use crate::step::Stepper;
use crate::transform::{self, Transforms};
use crate::weights::{self, WeightTransforms};

impl<'a> Run<'a> {
    pub(super) fn prepare(
        machine: Machine,
        corpus: &Corpus,
        spec: &Spec,
        options: &TrainOptions,
        folder: Folder,
        Watch { events, ask }: Watch<'a>,
        cancel: &'a AtomicBool,
    ) -> Result<Self> {
        let mut saver = Saver::start(folder.clone(), machine.disk)?;
        let (train, validation) = sides(corpus, spec, options)?;
        let Games { count, views: train_views, left_out } = train;
        let Devices { all: devices, sum } = (machine.devices)(options)?;
        let counts = eval::count(&train_views, &spec.heads, options.data.frame_delay, cancel)?;
        let train = Side::new(count, &train_views, options.data.frame_delay);
        let Games { count, views, .. } = validation;
        let validation = (Side::new(count, &views, options.data.frame_delay), views);
        let mixed = mixed(spec, options, &validation.1)?;
        let digest = digest(&train_views, &mixed, &validation.1);
        // A resumed run already has its weights, so it takes none from a policy file.
        let goes_on = options.machine.resume && folder.file(Kind::Last).exists();
        let first = || first_policy(spec, options, &train_views, cancel);
        let first = (!goes_on).then(first).transpose()?;
        let press_rates = counts.press_rates();
        let device = &devices[0];
        let prior = prior(spec, options, &train_views, cancel)?;
        let (press_rates, prior) = (press_rates.as_slice(), prior.as_ref());
        let objectives = objective::Setup { options, spec, press_rates, device, prior };
        let objectives = Objectives::of(&objectives)?;
        let companions: Vec<&Companion> = objectives.companions().collect();
        let embeddings: Vec<_> = companions.iter().map(|c| &c.spec().embedding).collect();
        let name = corpus.dir().display().to_string();
        let source = Source::new(&name, train_views, mixed, spec, &embeddings, options)?;
        let epoch_steps = (source.steps_per_epoch() / options.optimiser.accumulation_steps).max(1);
        let known = digests(companions.iter().map(|companion| companion.digest()));
        let found = resumable(&folder, spec, options, (&digest, known.as_deref()), epoch_steps)?;
        let (policy, mut progress, moments) = match found {
            Some((policy, progress, moments)) => (policy, progress, Some(moments)),
            None => {
                options.schedule(options.total_steps(epoch_steps)).check()?;
                let First { policy, began } =
                    first.ok_or_else(|| Error::not_found("the last state of the run"))?;
                began.map(events);
                (policy, Progress::new(options, digest, known), None)
            }
        };
        let options = progress.options.clone();
        let specs: Vec<&Spec> = companions.iter().map(|companion| companion.spec()).collect();
        let transforms = transform::Setup { options: &options, spec, companions: &specs };
        let transforms = Transforms::of(&transforms)?;
        options.check_steps(epoch_steps)?;
        let steps = options.total_steps(epoch_steps);
        let schedule = progress.schedule(steps);
        progress.warmup_steps = Some(schedule.warmup_steps);
        if let Err(error) = Record::new(corpus.dir(), spec, progress.said()).write(&folder) {
            saver.fail(progress.step, folder.record(), &error, events);
        }
        let validates = !validation.1.is_empty();
        let share = options.data.batch_size / devices.len();
        let before = (progress.micro_batch, progress.growth.clone());
        let room = Room::plan(spec, &options, share, validates, before, cancel)?;
        if room.is_unlimited() && devices.iter().all(Device::is_cpu) {
            check_room(&policy, &companions, &options, room.windows(), validates, cancel)?;
        }
        let config = options.optimiser()?;
        let replica = |device| {
            let (policy, objectives) = (policy.copy_on(device)?, objectives.copy_on(device)?);
            let weights = weights::Setup { options: &options, weights: policy.weights() };
            let mut stepper = Stepper::new(
                &policy,
                objectives,
                WeightTransforms::of(&weights)?,
                config,
                options.optimiser.max_grad_norm,
                options.machine.seed,
            )?
            .unrolling(options.unroll())
            .averaging(options.optimiser.ema_decay)
            .in_precision(progress.precision)
            .stopped_by(cancel);
            if let Some(moments) = &moments {
                stepper.load_moments(progress.updates, moments)?;
                stepper.load_loss_scale(progress.loss_scale);
            }
            Ok(Replica::new(stepper))
        };
        let replicas = devices.iter().map(replica).collect::<Result<_>>()?;
        let mut replicas = Replicas::new(replicas, sum, transforms);
        if let Some(moments) = moments {
            if options.data.unroll == Mode::Carry && progress.step > 0 {
                replicas.load(&moments, options.data.batch_size)?;
            }
            events(Event::Resumed { step: progress.step });
        }
        folder.cut_gradients(progress.step)?;
        replicas.set_micro_batch(room.windows());
        events(Event::Start {
            steps,
            epoch_steps,
            weights: replicas.stepper().policy().num_weights(),
            train_games: train.games,
            train_frames: train.frames,
            validation_games: validation.0.games,
            validation_frames: validation.0.frames,
            threads: pool::threads(),
            skipped_views: source.short_views(),
            left_out,
            precision: progress.precision,
        });
        let (asked, used) = (options.machine.precision, progress.precision);
        if asked != used {
            events(Event::Precision { asked, used });
        }
        room.told(progress.step).map(events);
        Ok(Run {
            replicas,
            room,
            schedule,
            options,
            folder,
            saver,
            saved: (progress.step, Instant::now()),
            events,
            ask,
            cancel,
            source,
            counts,
            train,
            validation,
            epoch_steps,
            progress,
            waiting: vec![],
            _caching: devices.iter().map(Caching::on).collect(),
        })
    }
}
