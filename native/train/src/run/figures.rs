//! The figures of steps: events, sums and the learning curve.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sconce_tensor::Result;
use sconce_tensor::metrics::METRICS;

use super::state::{Run, Waiting};
use crate::gradients::{GradientReport, WeightGradient};
use crate::report::{Event, HeadLoss, HeadNll, Pace, Point};
use crate::step::StepMetrics;

impl Run<'_> {
    /// Counts a step, and reports it unless the step's figures wait on a card.
    pub(super) fn count(&mut self, stepped: Option<StepMetrics>, learning_rate: f64, pace: Pace) {
        self.progress.step += 1;
        let (step, seconds) = (self.progress.step, self.progress.seconds);
        let made = Waiting { step, learning_rate, pace, seconds };
        match stepped {
            Some(stepped) => self.account(stepped, made),
            // The step is in flight, so its figures are not known yet.
            None => self.waiting.push(made),
        }
    }

    /// Waits for the steps whose figures are on a card, and reports them. A step that failed changed nothing.
    pub(super) fn settle(&mut self) -> Result<()> {
        let (waiting, began) = (std::mem::take(&mut self.waiting), Instant::now());
        let results = self.replicas.results()?;
        // The time spent waiting for the card is divided equally between the steps.
        let waited = began.elapsed().as_secs_f64() / waiting.len().max(1) as f64;
        for (stepped, mut made) in results.into_iter().zip(waiting) {
            let first = made.step - 1;
            let stepped = stepped.map_err(|error| self.diverged(error, made.step, first, 1))?;
            made.pace.seconds += waited;
            self.account(stepped, made);
        }
        Ok(())
    }

    /// Reports a step, and adds it to the learning curve if a point is due.
    fn account(&mut self, stepped: StepMetrics, made: Waiting) {
        let Waiting { step, learning_rate, pace, seconds } = made;
        self.progress.pace.add(pace);
        METRICS.train_steps.add(1);
        METRICS.train_frames.add(pace.frames);
        METRICS.train_step_time.record(Duration::from_secs_f64(pace.seconds.max(0.0)));
        if stepped.learned {
            self.progress.recent_losses.add(&stepped.figures);
            self.progress.epoch_losses.add(&stepped.figures);
        }
        if self.notes_step(step) && !self.validation_is_due() {
            self.note(learning_rate, None, vec![]);
        }
        (self.events)(Event::Step {
            step,
            steps: self.schedule.total_steps,
            epoch: step / self.epoch_steps.max(1),
            loss: stepped.figures.total,
            learning_rate,
            grad_norm: Some(stepped.grad_norm).filter(|norm| norm.is_finite()),
            frames_per_second: pace.frames_per_second(),
            step_seconds: pace.seconds,
            data_wait: pace.data_wait,
            heads: self.by_head(stepped.figures.heads),
            figures: stepped.figures.named,
            seconds,
        });
        self.report_overflow(stepped.grad_norm);
        self.report_gradients(stepped.gradients);
    }

    /// Reports a step whose gradient overflowed.
    fn report_overflow(&self, grad_norm: f64) {
        if let (false, Some(scale)) = (grad_norm.is_finite(), self.replicas.stepper().loss_scale())
        {
            let (step, skipped_updates) = (self.progress.step, scale.skipped());
            (self.events)(Event::Overflow { step, loss_scale: scale.factor(), skipped_updates });
        }
    }

    /// Combines losses with the names of their heads.
    pub(super) fn by_head(&self, losses: Vec<f64>) -> Vec<HeadLoss> {
        let heads = self.replicas.stepper().policy().spec().heads.parts.iter().zip(losses);
        // A head without labels has no imitation loss.
        let choosing = heads.filter(|(head, _)| head.kind.labels() > 0);
        choosing.map(|(head, loss)| HeadLoss { name: head.name.clone(), loss }).collect()
    }

    /// Writes and reports the statistics of gradients, if there are any.
    fn report_gradients(&mut self, weights: Vec<WeightGradient>) {
        if weights.is_empty() {
            return;
        }
        let report = GradientReport { step: self.progress.step, weights };
        if let Err(error) = self.folder.add_gradients(&report) {
            self.saver.fail(report.step, self.folder.gradients(), &error, self.events);
        }
        (self.events)(Event::Gradients { step: report.step, weights: report.weights });
    }

    /// Reports an epoch that has ended.
    pub(super) fn end_epoch(&mut self) {
        let (step, epoch_steps) = (self.progress.step, self.epoch_steps.max(1));
        if !step.is_multiple_of(epoch_steps) {
            return;
        }
        let Some(losses) = self.progress.epoch_losses.take() else { return };
        (self.events)(Event::Epoch {
            step,
            epoch: step / epoch_steps,
            avg_loss: losses.total,
            val_loss: self.progress.history.iter().rev().find_map(|point| point.nll),
            heads: self.by_head(losses.heads),
            figures: losses.named,
            seconds: self.progress.seconds,
        });
    }

    /// Adds a point to the learning curve.
    pub(super) fn note(&mut self, learning_rate: f64, nll: Option<f64>, heads: Vec<HeadNll>) {
        let figures = self.progress.recent_losses.take();
        let pace = figures.is_some().then(|| std::mem::take(&mut self.progress.pace));
        self.progress.history.push(Point {
            step: self.progress.step,
            loss: figures.as_ref().map(|figures| figures.total),
            figures: figures.as_ref().map_or_else(BTreeMap::new, |figures| figures.named.clone()),
            losses: figures.map_or(vec![], |figures| self.by_head(figures.heads)),
            learning_rate,
            frames_per_second: pace.map(|pace| pace.frames_per_second()),
            data_wait: pace.map(|pace| pace.waiting()),
            nll,
            heads,
            seconds: self.progress.seconds,
        });
    }
}
