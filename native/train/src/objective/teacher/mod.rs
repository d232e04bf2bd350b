//! Frozen policies that a run learns from or stays close to, and the divergence of the learner's logits from theirs on
//! the batches of the run.
//!
//! The divergence is the Kullback-Leibler divergence of the joint distributions of a frame's action. Heads and bits are
//! independent of each other given the recorded action, so their divergences are added. Autoregressive heads, of a
//! teacher or of the learner, condition on the recorded action. Where an action mask is recorded, all distributions are
//! those over the allowed actions.
//!
//! With several teachers, the distribution of a class or a bit is the mean of theirs, as in
//! `Sconce.Compress.distillation_loss/3`. The mixture of Gaussians has no divergence in closed form, so that of bounded
//! numbers is the mean of the divergences from each teacher. In the direction KL(teacher || learner) it differs from that
//! of the mixture by a number without a gradient; in the other direction it bounds it from above, as KL is convex.
//!
//! With a temperature T, logits are divided by T, and the loss is the divergence times T^2 (Hinton et al. 2015, section
//! 2): the size of its gradient then hardly depends on T.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use sconce_data::{Extra, Played};
use sconce_nn::head::Direction;
use sconce_nn::sampling::{FORBIDDEN, forbid};
use sconce_nn::spec::{Head, HeadKind, Heads};
use sconce_nn::{Policy, Spec};
use sconce_tensor::digest::of_file;
use sconce_tensor::{Device, Error, Result};

use super::{Companion, Denominators, Figures, Objective, Rows, Setup, Sums};
use crate::options::TrainOptions;

/// Policies to learn from or to stay close to.
pub struct Teacher {
    companions: Vec<Companion>,
    spans: Spans,
    lesson: Lesson,
}

/// How a learner follows its teachers.
#[derive(Debug, Clone)]
pub struct Lesson {
    /// The distribution over which a divergence is averaged.
    pub direction: Direction,
    /// Logits of all policies are divided by this, and their divergence is multiplied by its square.
    pub temperature: f64,
    /// Factor on the divergence, which is added to the loss.
    pub weight: Factor,
}

/// The factor on a divergence, which its holder may change between two updates.
#[derive(Debug, Clone)]
pub struct Factor(Arc<Mutex<f64>>);

impl Factor {
    /// A factor that all copies of it share.
    pub fn new(factor: f64) -> Self {
        Factor(Arc::new(Mutex::new(factor)))
    }

    /// Sets the factor of later updates.
    pub fn set(&self, factor: f64) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = factor;
    }

    fn now(&self) -> f64 {
        *self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// The teachers of a run, if its options name some.
///
/// # Errors
/// `Mismatch` for a teacher of another game, action space or frame delay. A file without a delay is assumed to have the
/// delay of the run.
pub(crate) fn of(setup: &Setup<'_>) -> Result<Option<Box<dyn Objective>>> {
    let Setup { options, spec, device, .. } = *setup;
    let Some(teachers) = &options.objective.teacher else { return Ok(None) };
    let companion = |path: &PathBuf| {
        let (policy, name) = (Policy::load(path)?.on(device)?, named(path));
        fits(&policy, &name, spec, options)?;
        Ok(Companion::new(policy, name, of_file(path)?))
    };
    let companions = teachers.paths().iter().map(companion).collect::<Result<_>>()?;
    let lesson = Lesson {
        direction: options.objective.teacher_direction,
        temperature: options.objective.teacher_temperature,
        weight: Factor::new(options.objective.teacher_weight),
    };
    Ok(Some(Box::new(Teacher::new(companions, &spec.heads, lesson)?)))
}

/// The name of a teacher in errors.
pub fn named(path: &Path) -> String {
    format!("the teacher {}", path.display())
}

/// One text for the digests of teachers, by which a resumed run recognises them; `None` without teachers.
pub fn digests<'a>(all: impl Iterator<Item = &'a str>) -> Option<String> {
    let all: Vec<&str> = all.collect();
    (!all.is_empty()).then(|| all.join(","))
}

const NAME: &str = "teacher";

impl Objective for Teacher {
    fn name(&self) -> &'static str {
        NAME
    }

    fn copy_on(&self, device: &Device) -> Result<Box<dyn Objective>> {
        let companions = self.companions.iter().map(|own| own.copy_on(device));
        let companions = companions.collect::<Result<_>>()?;
        let (spans, lesson) = (self.spans.clone(), self.lesson.clone());
        Ok(Box::new(Teacher { companions, spans, lesson }))
    }

    fn companions(&self) -> &[Companion] {
        &self.companions
    }

    fn rows(
        &self,
        rows: &Rows<'_>,
        whole: &Denominators,
        gradient: Option<&mut [f32]>,
    ) -> Result<Sums> {
        Ok(Sums(vec![self.pull().rows(rows, &rows.companions, whole, gradient)]))
    }

    fn finish(&self, sums: &Sums, whole: &Denominators) -> Result<Figures> {
        let kl = whole.mean() * sums.0.first().copied().unwrap_or(0.0);
        let named = [("teacher_kl".to_string(), kl)].into_iter().collect();
        let total = self.lesson.weight.now() * self.pull().square() * kl;
        Ok(Figures { total, named, ..Figures::default() })
    }
}

impl Teacher {
    /// Lets a learner with `heads` follow these policies.
    ///
    /// # Errors
    /// `Mismatch` for another action space, and for a temperature other than 1 beside bounded numbers, whose Gaussians
    /// have no softmax.
    pub fn new(companions: Vec<Companion>, heads: &Heads, lesson: Lesson) -> Result<Self> {
        for own in &companions {
            same_actions(heads, &own.spec().heads, own.name())?;
        }
        let bounded = heads.choosing().find(|head| head.kind.classes() == 0);
        if let Some(head) = bounded.filter(|_| lesson.temperature != 1.0) {
            let expected = format!("1 beside the bounded numbers of head {}", head.name);
            return Err(Error::mismatch("teacher_temperature", expected, lesson.temperature));
        }
        let theirs: Vec<&Heads> = companions.iter().map(|own| &own.spec().heads).collect();
        let spans = Spans::new(heads, &theirs);
        Ok(Teacher { companions, spans, lesson })
    }

    fn pull(&self) -> Pull<'_> {
        let Lesson { direction, temperature, ref weight } = self.lesson;
        Pull { spans: &self.spans, direction, temperature, weight: weight.now() }
    }
}

/// Pulls the learner's logits towards other logits.
pub(crate) struct Pull<'a> {
    pub spans: &'a Spans,
    pub direction: Direction,
    pub temperature: f64,
    /// Factor on the divergence, which is added to the loss.
    pub weight: f64,
}

impl Pull<'_> {
    /// Returns the weighted sum of these rows' divergences, at the temperature, from the logits `ys` of each other
    /// policy. Overwrites `gradient` with the gradient of this term of the batch's loss.
    pub(crate) fn rows(
        &self,
        rows: &Rows<'_>,
        ys: &[&[f32]],
        whole: &Denominators,
        gradient: Option<&mut [f32]>,
    ) -> f64 {
        let mut none = vec![];
        let gradient = match gradient {
            Some(gradient) => gradient,
            None => {
                none.resize(rows.logits.len(), 0.0);
                &mut none
            }
        };
        gradient.fill(0.0);
        let mask = rows.batch.column(|extra| extra == Extra::Played(Played::Mask));
        let (weights, scale) = (rows.weights(), whole.mean());
        let Some(mask) = mask else { return self.add(rows.logits, ys, weights, scale, gradient) };
        let mut x = rows.logits.to_vec();
        let mut ys: Vec<Vec<f32>> = ys.iter().map(|y| y.to_vec()).collect();
        self.spans.forbid(&mut x, &mut ys, rows.of(mask));
        let ys: Vec<&[f32]> = ys.iter().map(Vec::as_slice).collect();
        let sum = self.add(&x, &ys, weights, scale, gradient);
        let forbidden = gradient.iter_mut().zip(&x).filter(|(_, x)| **x <= FORBIDDEN);
        forbidden.for_each(|(gradient, _)| *gradient = 0.0);
        sum
    }

    /// Returns the sum over rows of divergence times weight, in nats. Adds the gradient of that sum, times `scale`, the
    /// factor of the pull and the square of the temperature, to `grad`.
    ///
    /// # Shapes
    /// `x` (the learner's logits), each of `ys` (the others') and `grad` `[n, num_logits]`, `weights [n]`
    fn add(&self, x: &[f32], ys: &[&[f32]], weights: &[f32], scale: f64, grad: &mut [f32]) -> f64 {
        let width = self.spans.own;
        let rows = x.chunks_exact(width).zip(weights).zip(grad.chunks_exact_mut(width)).enumerate();
        let counted = rows.filter(|(_, ((_, weight), _))| **weight != 0.0);
        let sums = counted.map(|(row, ((x, &weight), grad))| {
            let weight = f64::from(weight);
            let scale = self.weight * scale * weight;
            let of_head = |span: &Span| {
                let own = span.own..span.own + span.kind.logits();
                let ys = self.spans.of_row(span, ys, row);
                self.divergence(span.kind, &x[own.clone()], ys, scale, &mut grad[own])
            };
            weight * self.spans.heads.iter().map(of_head).sum::<f64>()
        });
        sums.sum()
    }

    /// The divergence of one head in one row. Adds the gradient of `scale` times the divergence times the square of the
    /// temperature.
    fn divergence<'y>(
        &self,
        kind: HeadKind,
        x: &[f32],
        mut ys: impl ExactSizeIterator<Item = &'y [f32]>,
        scale: f64,
        grad: &mut [f32],
    ) -> f64 {
        let (direction, temperature) = (self.direction, self.temperature);
        if (ys.len(), temperature) == (1, 1.0) {
            return ys.next().map_or(0.0, |y| kind.divergence(direction, x, y, scale, grad));
        }
        let soften = |logits: &[f32]| -> Vec<f32> {
            logits.iter().map(|logit| (f64::from(*logit) / temperature) as f32).collect()
        };
        let (x, ys) = (soften(x), ys.map(soften).collect::<Vec<_>>());
        let ys: Vec<&[f32]> = ys.iter().map(Vec::as_slice).collect();
        // A logit moves its softened one by 1 / T.
        let scale = scale * temperature;
        let mut mean = vec![0.0; x.len()];
        if kind.mixture(&ys, &mut mean) {
            return kind.divergence(direction, &x, &mean, scale, grad);
        }
        let count = ys.len() as f64;
        let each = ys.iter().map(|y| kind.divergence(direction, &x, y, scale / count, grad));
        each.sum::<f64>() / count
    }

    /// The square of the temperature.
    fn square(&self) -> f64 {
        self.temperature * self.temperature
    }
}

/// Heads with labels.
#[derive(Debug, Clone)]
pub(crate) struct Spans {
    heads: Vec<Span>,
    /// Number of logits in a row of the learner.
    own: usize,
    /// Number of logits in a row of each other policy.
    theirs: Vec<usize>,
    /// Entries in an action mask.
    mask: usize,
}

/// A head, with the offsets of its logits in a row of each policy and of its entries in an action mask.
#[derive(Debug, Clone)]
struct Span {
    kind: HeadKind,
    own: usize,
    theirs: Vec<usize>,
    mask: usize,
}

impl Spans {
    /// The heads with labels of `own`, which each of `theirs` has too.
    pub(crate) fn new(own: &Heads, theirs: &[&Heads]) -> Self {
        let choosing = |heads: &Heads| -> Vec<(HeadKind, usize, usize)> {
            let parts = heads.iter().filter(|part| part.head.kind.labels() > 0);
            parts.map(|part| (part.head.kind, part.logits, part.mask)).collect()
        };
        let offsets: Vec<_> = theirs.iter().map(|heads| choosing(heads)).collect();
        let span = |(i, (kind, own, mask))| Span {
            kind,
            own,
            theirs: offsets.iter().filter_map(|all| all.get(i)).map(|(_, at, _)| *at).collect(),
            mask,
        };
        Spans {
            heads: choosing(own).into_iter().enumerate().map(span).collect(),
            own: own.num_logits().max(1),
            theirs: theirs.iter().map(|heads| heads.num_logits().max(1)).collect(),
            mask: own.mask_size(),
        }
    }

    /// The logits of a head in one row of each other policy.
    fn of_row<'a>(
        &'a self,
        span: &'a Span,
        ys: &'a [&'a [f32]],
        row: usize,
    ) -> impl ExactSizeIterator<Item = &'a [f32]> {
        let all = ys.iter().zip(&self.theirs).zip(&span.theirs);
        all.map(move |((y, width), at)| &y[row * width + at..][..span.kind.logits()])
    }

    /// Applies action masks `[n, mask_size]` to rows of logits of all policies.
    fn forbid(&self, x: &mut [f32], ys: &mut [Vec<f32>], mask: &[f32]) {
        for span in &self.heads {
            self.forbid_head(span, x, [self.own, span.own], mask);
            for ((y, width), at) in ys.iter_mut().zip(&self.theirs).zip(&span.theirs) {
                self.forbid_head(span, y, [*width, *at], mask);
            }
        }
    }

    /// Applies action masks to a head, whose logits begin at `at` in rows of `width` logits.
    fn forbid_head(&self, span: &Span, logits: &mut [f32], [width, at]: [usize; 2], mask: &[f32]) {
        let size = span.kind.mask_size();
        let rows = logits.chunks_exact_mut(width).zip(mask.chunks_exact(self.mask.max(1)));
        rows.for_each(|(row, mask)| forbid(&mut row[at..at + size], &mask[span.mask..][..size]));
    }
}

fn fits(teacher: &Policy, name: &str, spec: &Spec, options: &TrainOptions) -> Result<()> {
    let (its, own) = (teacher.spec(), spec);
    own.embedding.game().expect(&format!("game of {name}"), its.embedding.game())?;
    same_actions(&own.heads, &its.heads, name)?;
    if options.carries() {
        its.check_carried()?;
    }
    let Some(delay) = teacher.noted("frame_delay") else { return Ok(()) };
    let longest = teacher.noted("frame_delay_max").unwrap_or(delay);
    let wanted = (
        options.data.frame_delay,
        options.data.frame_delay_max.unwrap_or(options.data.frame_delay),
    );
    let range = |(low, high): (usize, usize)| format!("{low}..={high}");
    let got = (delay, longest);
    same(wanted == got, &format!("frame delay of {name}"), range(wanted), range(got))
}

fn same_actions(own: &Heads, its: &Heads, name: &str) -> Result<()> {
    let (wanted, got) = (action_space(own), action_space(its));
    same(wanted == got, &format!("action space of {name}"), wanted, got)
}

fn same(same: bool, what: &str, expected: String, got: String) -> Result<()> {
    match same {
        true => Ok(()),
        false => Err(Error::mismatch(what, expected, got)),
    }
}

/// Names and kinds of the heads that have labels. The text is the same for autoregressive heads.
fn action_space(heads: &Heads) -> String {
    let part = |head: &Head| format!("{} {:?}", head.name, head.kind);
    heads.choosing().map(part).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
