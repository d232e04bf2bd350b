//! Scores of a policy, and of baselines that know only the previous action, on the same recorded frames.

use std::sync::atomic::AtomicBool;

use sconce_data::{Corpus, Reader, Schema, View};
use sconce_game::{InputKind, InputPart};
use sconce_nn::Policy;
use sconce_nn::backbone::{Context, State};
use sconce_nn::heads::NONE;
use sconce_nn::spec::{Heads, Spec};
use sconce_tensor::{Error, Kind, Precision, Result, device, pool, tensor};

use crate::baselines::{Baseline, BaselineKind, Counts};
use crate::likeliest::Likeliest;
use crate::metrics::{Metrics, Report};
use crate::options::{EvalOptions, EvaluateOptions, MAX_FRAMES, Mode, TrainOptions};
use crate::report::{BaselineReport, Evaluation, Event, Side};
use crate::stop::go_on;

/// Number of windows in one forward pass.
pub(crate) const WINDOWS: usize = 128;
/// Number of frames in one forward pass when the state is carried.
pub(crate) const CHUNK: usize = 256;

/// Scores `policy` on these views, with products in this precision. Calls `progress(done, total)` with numbers of
/// frames.
pub fn score(
    policy: &Policy,
    views: &[View],
    options: &EvalOptions,
    precision: Precision,
    progress: &dyn Fn(usize, usize),
    cancel: &AtomicBool,
) -> Result<Report> {
    let (report, _) = compare(policy, None, views, options, precision, progress, cancel)?;
    Ok(report)
}

/// [`score`], and the share of frames whose likeliest action differs from that of `reference`.
fn compare(
    policy: &Policy,
    reference: Option<&Policy>,
    views: &[View],
    options: &EvalOptions,
    precision: Precision,
    progress: &dyn Fn(usize, usize),
    cancel: &AtomicBool,
) -> Result<(Report, Option<f64>)> {
    let mut metrics = metrics(policy.spec())?;
    let heads = &policy.spec().heads;
    let (reader, mut differing) = (reader(policy, options), 0);
    let others = reference.map(|reference| (reference, self::reader(reference, options)));
    let total: usize = views.iter().map(|v| v.answered(options.frame_delay).len()).sum();
    let context = Context::default().in_precision(precision);
    let mut done = 0;
    let mut at_once = match options.mode {
        Mode::Window => WINDOWS.min(MAX_FRAMES / options.window_size.max(1)).max(1),
        Mode::Carry => CHUNK,
    };
    progress(done, total);
    for view in views {
        go_on(cancel)?;
        let likeliest = others.as_ref().map(|(reference, reader)| {
            let mut likeliest = Likeliest::new(&reference.spec().heads);
            let scorer = Scorer { policy: reference, view, options, reader, context: &context };
            scorer.run(&mut at_once, &mut |scored| {
                likeliest.add(scored.logits);
                go_on(cancel)
            })?;
            Ok::<_, Error>(likeliest)
        });
        let (likeliest, mut first) = (likeliest.transpose()?, 0);
        let scorer = Scorer { policy, view, options, reader: &reader, context: &context };
        scorer.run(&mut at_once, &mut |scored| {
            metrics.add(scored.logits, scored.labels, scored.before)?;
            if let Some(likeliest) = &likeliest {
                differing += likeliest.differing(first, heads, scored.logits);
            }
            first += scored.frames;
            done += scored.frames * scored.stride;
            progress(done.min(total), total);
            go_on(cancel)
        })?;
    }
    let report = metrics.report()?;
    let differs = reference.map(|_| differing as f64 / report.frames.max(1) as f64);
    Ok((report, differs))
}

fn reader(policy: &Policy, options: &EvalOptions) -> Reader {
    let Spec { embedding, heads, .. } = policy.spec();
    Reader::new(embedding.clone(), heads.clone(), options.frame_delay)
}

/// Scores the three baselines on these views.
pub fn score_baselines(
    counts: &Counts,
    spec: &Spec,
    views: &[View],
    options: &EvalOptions,
    cancel: &AtomicBool,
) -> Result<Vec<BaselineReport>> {
    let score = |kind: BaselineKind| {
        let baseline = Baseline::fit(kind, counts);
        let mut metrics = metrics(spec)?;
        for view in views {
            go_on(cancel)?;
            let ts = scored(view, options);
            let (labels, before) = answers(view, &ts, options.frame_delay, &spec.heads)?;
            metrics.add(&baseline.logits(&before)?, &labels, &before)?;
        }
        Ok(BaselineReport { name: kind.name().into(), report: metrics.report()? })
    };
    BaselineKind::ALL.into_iter().map(score).collect()
}

/// Counts the actions of all frames of these views, each paired with the action one frame before. Baselines are fitted
/// on these counts: with a frame delay, baselines know an action that no policy sees.
pub fn count(views: &[View], heads: &Heads, delay: usize, cancel: &AtomicBool) -> Result<Counts> {
    let mut counts = Counts::new(heads)?;
    for view in views {
        go_on(cancel)?;
        let ts = view.answered(delay);
        let (labels, before) = answers(view, &ts, delay, heads)?;
        counts.add(&before, &labels)?;
    }
    Ok(counts)
}

/// Scores `policy` on every game of `corpus`, and baselines that are fitted on the games of `train`.
pub fn evaluate(
    policy: &Policy,
    corpus: &Corpus,
    train: Option<&Corpus>,
    options: &EvaluateOptions,
    events: &dyn Fn(Event),
    cancel: &AtomicBool,
) -> Result<Evaluation> {
    evaluate_beside(policy, None, corpus, train, options, events, cancel)
}

/// [`evaluate`], with the likeliest actions compared with those of another policy on the same frames. Autoregressive heads
/// of both condition on the recorded actions.
pub fn evaluate_beside(
    policy: &Policy,
    reference: Option<&Policy>,
    corpus: &Corpus,
    train: Option<&Corpus>,
    options: &EvaluateOptions,
    events: &dyn Fn(Event),
    cancel: &AtomicBool,
) -> Result<Evaluation> {
    options.validate()?;
    let _threads = pool_of(options.threads)?;
    let (trained, precision) = (|key: &str| policy.noted(key), options.precision);
    let defaults = TrainOptions::default();
    let options = EvalOptions {
        mode: options.mode.unwrap_or(Mode::Window),
        window_size: options
            .window_size
            .or(trained("window_size"))
            .unwrap_or(defaults.data.window_size),
        stride: options.stride.unwrap_or(1),
        frame_delay: options.frame_delay.or(trained("frame_delay")).unwrap_or(0),
    };
    options.validate()?;
    let spec = policy.spec();
    for policy in [Some(policy), reference].into_iter().flatten() {
        if options.mode == Mode::Carry {
            policy.spec().check_carried()?;
        }
        fits(corpus.schema(), policy.spec())?;
    }
    let all = |corpus: &Corpus| -> Result<Vec<View>> {
        fits(corpus.schema(), spec)?;
        corpus.views(&(0..corpus.games().len()).collect::<Vec<_>>())
    };
    let views = all(corpus)?;
    let progress = |done, total| events(Event::Evaluating { done, total });
    let (report, differs) =
        compare(policy, reference, &views, &options, precision, &progress, cancel)?;
    let baselines = match train {
        Some(train) => {
            let counts = count(&all(train)?, &spec.heads, options.frame_delay, cancel)?;
            score_baselines(&counts, spec, &views, &options, cancel)?
        }
        None => vec![],
    };
    let validation = Side::new(corpus.games().len(), &views, options.frame_delay);
    Ok(Evaluation {
        options,
        precision,
        weights: policy.num_weights(),
        spec: spec.clone(),
        policy: report,
        differs,
        baselines,
        validation,
    })
}

/// Refuses a corpus whose game or actions differ from those of the spec.
pub fn fits(schema: &Schema, spec: &Spec) -> Result<()> {
    if !schema.is_embedded_by(&spec.embedding) {
        spec.embedding.game().expect("game of the corpus for this spec", schema.game())?;
    }
    if schema.chosen_by(&spec.heads) {
        return Ok(());
    }
    let heads = |h: &Heads| {
        let part = |p: &sconce_nn::spec::Head| format!("{} {:?}", p.name, p.kind);
        h.parts.iter().map(part).collect::<Vec<_>>().join(", ")
    };
    let (expected, got) = (heads(&spec.heads), heads(&schema.heads()));
    Err(Error::mismatch("heads of the corpus for this spec", expected, got))
}

/// Counts the actions of all frames, each paired with the action that its state shows, which a policy can know. With a
/// frame delay the shown action is older than the action one frame before.
pub fn count_answers(
    views: &[View],
    heads: &Heads,
    delay: usize,
    cancel: &AtomicBool,
) -> Result<Counts> {
    let mut counts = Counts::new(heads)?;
    let width = heads.num_labels();
    for view in views {
        go_on(cancel)?;
        let (mut label, mut known) = (vec![0.0; width], vec![0.0; width]);
        for t in view.answered(delay) {
            view.labels(t, delay, false, heads, &mut label)?;
            if !view.previous(t, false, heads, &mut known)? {
                known.fill(NONE);
            }
            counts.add(&known, &label)?;
        }
        view.verify()?;
    }
    Ok(counts)
}

/// The pool's number of threads during a run; the number before returns on drop.
#[must_use]
pub struct Threads(Option<usize>);

/// Sets the pool's number of threads; `None` keeps it.
///
/// # Errors
/// Those of [`pool::set_threads`].
pub fn pool_of(threads: Option<usize>) -> Result<Threads> {
    let Some(threads) = threads else { return Ok(Threads(None)) };
    let before = pool::threads();
    pool::set_threads(threads)?;
    Ok(Threads(Some(before)))
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // This number of threads existed before, so failure is unlikely. On failure the current threads stay.
            let _ = pool::set_threads(before);
        }
    }
}

fn metrics(spec: &Spec) -> Result<Metrics> {
    let named =
        spec.embedding.parts(&spec.heads).map(button_names).filter(|names| !names.is_empty());
    Metrics::new(&spec.heads, named)
}

/// Names of buttons, one for each bit of an input.
fn button_names(parts: &[InputPart]) -> Vec<String> {
    let names = parts.iter().filter_map(|part| match &part.kind {
        InputKind::Flags(names) => Some(names.iter().map(ToString::to_string)),
        _ => None,
    });
    names.flatten().collect()
}

/// Indices of the scored states of a view.
fn scored(view: &View, options: &EvalOptions) -> Vec<usize> {
    let stride = match options.mode {
        Mode::Window => options.stride.max(1),
        Mode::Carry => 1,
    };
    let is_scored = |t: &usize| t.is_multiple_of(stride);
    view.answered(options.frame_delay).into_iter().filter(is_scored).collect()
}

/// Labels of some states, and the previous labels: both `[n, num_labels]`.
fn answers(view: &View, ts: &[usize], delay: usize, heads: &Heads) -> Result<(Vec<f32>, Vec<f32>)> {
    let width = heads.num_labels();
    let mut labels = vec![0.0; ts.len() * width];
    let mut before = vec![NONE; ts.len() * width];
    let rows = labels.chunks_exact_mut(width).zip(before.chunks_exact_mut(width));
    for ((label, before), &t) in rows.zip(ts) {
        view.labels(t, delay, false, heads, label)?;
        if !view.labels_before(t, delay, false, heads, before)? {
            before.fill(NONE);
        }
    }
    view.verify()?;
    Ok((labels, before))
}

/// The given rows of a matrix of `n` rows.
fn picked(matrix: Vec<f32>, rows: &[usize], n: usize) -> Vec<f32> {
    if rows.len() == n {
        return matrix;
    }
    let width = matrix.len() / n.max(1);
    rows.iter().flat_map(|row| &matrix[row * width..(row + 1) * width]).copied().collect()
}

/// Some scored states of a view.
struct Scored<'a> {
    /// Logits of the policy, `[n, num_logits]`.
    logits: &'a [f32],
    /// Labels, and the previous ones, `[n, num_labels]`.
    labels: &'a [f32],
    before: &'a [f32],
    /// Number of states.
    frames: usize,
    /// Frames from one state to the next.
    stride: usize,
}

struct Scorer<'a> {
    policy: &'a Policy,
    view: &'a View,
    options: &'a EvalOptions,
    reader: &'a Reader,
    context: &'a Context,
}

impl Scorer<'_> {
    /// Gives the logits of all scored states to `each`, some states at a time.
    fn run(
        &self,
        at_once: &mut usize,
        each: &mut dyn FnMut(Scored<'_>) -> Result<()>,
    ) -> Result<()> {
        match self.options.mode {
            Mode::Window => self.windows(at_once, each),
            Mode::Carry => self.carried(at_once, each),
        }
    }

    /// Scores these states in order, `at_once` of them together; halves `at_once` if a card runs out of memory.
    fn parts(
        &self,
        ts: &[usize],
        at_once: &mut usize,
        mut score: impl FnMut(&[usize]) -> Result<()>,
    ) -> Result<()> {
        let mut rest = ts;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(*at_once));
            match score(part) {
                // On a CPU, the number scored together never depends on free memory.
                Err(error)
                    if error.kind() == Kind::OutOfMemory
                        && part.len() > 1
                        && !self.policy.device().is_cpu() =>
                {
                    *at_once = part.len().div_ceil(2);
                    device::shrink(self.policy.device());
                }
                done => {
                    done?;
                    rest = after;
                }
            }
        }
        Ok(())
    }

    fn windows(
        &self,
        at_once: &mut usize,
        each: &mut dyn FnMut(Scored<'_>) -> Result<()>,
    ) -> Result<()> {
        let heads = &self.policy.spec().heads;
        self.parts(&scored(self.view, self.options), at_once, |ts| {
            let batch = self.reader.windows_ending_at(self.view, ts, self.options.window_size)?;
            let frames = batch.frames;
            let state = self.policy.zero_state(frames.batch)?;
            let (labels, before) = answers(self.view, ts, self.options.frame_delay, heads)?;
            let (logits, _) =
                self.policy.forward_last(&frames, Some(&labels), &state, self.context)?;
            let (logits, stride) = (tensor::to_vec(&logits)?, self.options.stride.max(1));
            let (labels, before, frames) = (&labels, &before, ts.len());
            each(Scored { logits: &logits, labels, before, frames, stride })
        })
    }

    fn carried(
        &self,
        at_once: &mut usize,
        each: &mut dyn FnMut(Scored<'_>) -> Result<()>,
    ) -> Result<()> {
        let heads = &self.policy.spec().heads;
        let mut state = self.first_state()?;
        let answered = scored(self.view, self.options);
        // The memory reads all states, also those without an answer.
        let all: Vec<usize> = (0..self.view.len(self.options.frame_delay)).collect();
        self.parts(&all, at_once, |ts| {
            let (begin, end) = (ts[0], ts[0] + ts.len());
            let batch = self.reader.sequence(self.view, begin..end)?;
            let frames = batch.frames;
            let (labels, before) = answers(self.view, ts, self.options.frame_delay, heads)?;
            let (logits, next) =
                self.policy.forward(&frames, Some(&labels), &state, self.context)?;
            state = next.detach();
            let rows: Vec<usize> =
                (0..ts.len()).filter(|row| answered.binary_search(&ts[*row]).is_ok()).collect();
            let logits = picked(tensor::to_vec(&logits)?, &rows, ts.len());
            let labels = picked(labels, &rows, ts.len());
            let before = picked(before, &rows, ts.len());
            let frames = rows.len();
            each(Scored { logits: &logits, labels: &labels, before: &before, frames, stride: 1 })
        })
    }

    /// The state after `window_size - 1` copies of the first frame.
    fn first_state(&self) -> Result<State> {
        let zero = self.policy.zero_state(1)?;
        let copies = self.options.window_size.saturating_sub(1);
        if copies == 0 || self.view.is_empty() {
            return Ok(zero);
        }
        let batch = self.reader.windows_ending_at(self.view, &[0], copies)?;
        let (_, state) = self.policy.trunk(&batch.frames, &zero, self.context)?;
        Ok(state)
    }
}
