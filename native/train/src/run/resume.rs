//! Resuming a run: whether it may continue from an earlier state, with which options, and with which schedule.
//!
//! 1. An option that is not given keeps the value of the earlier run.
//! 2. Options on how a run is computed, watched and saved, and on when it ends, may change; options on what is computed
//!    may not. All forbidden differences are reported together.
//! 3. The schedule of the earlier run is kept. In a run that is lengthened, warm-up and decay keep their lengths,
//!    unless `decay_steps` is given again. In a run that is shortened, the warm-up keeps its length.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sconce_nn::checkpoint::{self, Checkpoint, Manifest, Optimiser};
use sconce_nn::{Policy, Spec};
use sconce_tensor::error::Difference;
use sconce_tensor::{Error, Precision, Result, fs};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::folder::{Folder, Kind, MAX_RECORD, write_json};
use super::progress::Progress;
use crate::options::{LrSchedule, NAMED, TrainOptions, nested, rows};
use crate::schedule::Schedule;

/// The record of a run in its folder, written at the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Folder of the run's games; `None` if the folder has only a checkpoint, which does not record it.
    pub corpus: Option<PathBuf>,
    /// Spec of the policy.
    pub spec: Spec,
    /// Options of the run, as the user gave them.
    pub options: TrainOptions,
    /// Precision of the run.
    #[serde(default)]
    pub precision: Precision,
}

impl Record {
    /// The record of a run on `corpus`.
    pub fn new(corpus: &Path, spec: &Spec, options: &TrainOptions) -> Self {
        let options = options.begun();
        let precision = options.precision_here();
        Record { corpus: Some(corpus.to_path_buf()), spec: spec.clone(), options, precision }
    }

    /// Writes the record into the folder of the run.
    pub fn write(&self, folder: &Folder) -> Result<()> {
        write_json(&folder.record(), self)
    }

    /// Reads the record of the run in a folder, which may have no saved state yet.
    pub fn read(out: &Path) -> Result<Self> {
        let folder = Folder::new(out);
        let (path, last) = (folder.record(), folder.file(Kind::Last));
        if path.exists() {
            let text = fs::read(&path, MAX_RECORD)?;
            let mend = match last.exists() {
                true => "remove it and give corpus: DIR, the last state has the rest",
                false => "start again in another folder",
            };
            let corrupt = |e| format!("cut short or damaged ({e}); {mend}");
            let record: Record = serde_json::from_slice(&text)
                .map_err(|e| Error::corrupt(path.display().to_string(), corrupt(e)))?;
            record.spec.validate()?;
            return Ok(record);
        }
        if !last.exists() {
            return Err(Error::not_found(format!("a run in {}", out.display())));
        }
        let manifest = checkpoint::manifest(&last)?;
        let progress = progress(&last, &manifest)?;
        let (options, precision) = (progress.said().clone(), progress.precision);
        Ok(Record { corpus: None, spec: manifest.spec, options, precision })
    }

    /// Returns the recorded options, with the options in `said` replaced.
    pub fn with(self, said: Value) -> Result<TrainOptions> {
        let wrong = |e: String| Error::mismatch("options", "those of a run", e);
        let Value::Object(said) = said else { return Err(wrong(said.to_string())) };
        let said = Value::Object(nested(said).map_err(wrong)?);
        let mut options = value(&self.options)?;
        // Steps override epochs, so recorded steps are dropped if only epochs are given.
        if said.pointer("/schedule/epochs").is_some() && said.pointer("/schedule/steps").is_none() {
            lay(&mut options, serde_json::json!({ "schedule": { "steps": null } }));
        }
        // The recorded `force` does not apply to a new precision, which is forced only if the new options say so.
        if said.pointer("/machine/precision").is_some() {
            lay(&mut options, serde_json::json!({ "machine": { "force_precision": false } }));
        }
        lay(&mut options, said);
        serde_json::from_value(options).map_err(|e| wrong(e.to_string()))
    }
}

/// Replaces values of `under` by those of the same name in `over`. Lists and numbers are replaced as a whole.
fn lay(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (name, value) in over {
                lay(under.entry(name).or_insert(Value::Null), value);
            }
        }
        (under, over) => *under = over,
    }
}

/// The state that a run resumes from: the policy, the progress (with the options from now on) and the optimiser's saved
/// arrays.
pub(super) type Resumed = (Policy, Progress, Optimiser);

/// Reads the state of an earlier run in the folder, if that run may be resumed. Digests identify its games and teacher.
pub(super) fn resumable(
    folder: &Folder,
    spec: &Spec,
    options: &TrainOptions,
    (digest, teacher): (&str, Option<&str>),
    epoch_steps: u64,
) -> Result<Option<Resumed>> {
    let path = folder.file(Kind::Last);
    match (path.exists(), options.machine.resume) {
        (false, _) => return Ok(None),
        (true, false) => {
            let what = format!("folder {}", folder.path().display());
            return Err(Error::mismatch(what, "a folder without a run, or resume: true", "a run"));
        }
        (true, true) => {}
    }
    let Checkpoint { manifest, weights, optimiser } =
        checkpoint::load(&path).map_err(|e| folder.other_states(e))?;
    let mut progress = progress(&path, &manifest)?;
    let mut differences = differences((&manifest.spec, &progress), (spec, options, digest))?;
    if progress.teacher.as_deref() != teacher {
        let (recorded, given) = ("that of the run".into(), "another".into());
        differences.push(Difference { option: "teacher".into(), recorded, given });
    }
    if !differences.is_empty() {
        return Err(Error::Fixed { what: path.display().to_string(), differences });
    }
    go_on(&mut progress, options, epoch_steps)?;
    let policy = Policy::from_checkpoint(manifest, weights)?;
    Ok(Some((policy, progress, optimiser)))
}

/// Applies the new options, but keeps the earlier schedule.
fn go_on(progress: &mut Progress, now: &TrainOptions, epoch_steps: u64) -> Result<()> {
    let before = progress.schedule(progress.options.total_steps(epoch_steps));
    progress.options = lengthened(progress, now, epoch_steps)?;
    progress.warmup_steps = Some(before.warmup_steps);
    progress.said = Some(now.begun());
    Ok(())
}

pub(super) fn progress(path: &Path, manifest: &Manifest) -> Result<Progress> {
    let corrupt = |e| Error::corrupt(path.display().to_string(), format!("no state of a run: {e}"));
    // Older files have the progress among the notes.
    let value = if manifest.run.is_null() { &manifest.notes } else { &manifest.run };
    serde_json::from_value(value.clone()).map_err(corrupt)
}

/// Lists the forbidden differences between two runs: in Spec, options and games.
fn differences(
    (spec, progress): (&Spec, &Progress),
    (now_spec, now, digest): (&Spec, &TrainOptions, &str),
) -> Result<Vec<Difference>> {
    let mut found = vec![];
    compare(&value(spec)?, &value(now_spec)?, "", &mut found);
    // A corpus of vectors defines its own heads.
    if spec.embedding.game().parts().is_empty() && spec.heads.kind != now_spec.heads.kind {
        let kind = found.iter_mut().filter(|found| found.option == "heads");
        kind.for_each(|found| found.option = "heads_kind".into());
    }
    let same = progress.said().optimiser.optimizer == now.optimiser.optimizer;
    compare(&fixed(progress.said(), same)?, &fixed(now, same)?, "", &mut found);
    found.dedup();
    found.extend(rounded(progress.precision, now));
    if progress.digest != digest {
        let (recorded, given) = ("those of the run".into(), "others".into());
        found.push(Difference { option: "games".into(), recorded, given });
    }
    Ok(found)
}

/// Returns the difference in precision, if there is one. The requested precision may differ from the one in use, on
/// this machine or on the machine where the run began.
fn rounded(recorded: Precision, now: &TrainOptions) -> Option<Difference> {
    let given = now.precision_here();
    let why = match now.machine.precision {
        asked if asked == given => format!("resume with precision {recorded}"),
        asked if asked == recorded => {
            format!("{asked} gains nothing on this machine; resume with force_precision: true")
        }
        asked => format!("{asked} gains nothing on this machine"),
    };
    (given != recorded).then(|| Difference {
        option: "precision".into(),
        recorded: recorded.to_string(),
        given: format!("{given} ({why})"),
    })
}

/// The options that may not change. With the same optimiser, its hyperparameters are filled in where they are not
/// given; those of another optimiser follow from its name.
fn fixed(options: &TrainOptions, same_optimiser: bool) -> Result<Value> {
    let mut options = options.clone();
    if same_optimiser && let Ok(config) = options.optimiser() {
        let own = &mut options.optimiser;
        own.weight_decay = Some(config.weight_decay);
        (own.beta1, own.beta2) = (config.beta1, config.beta2);
        (own.eps, own.momentum) = (config.eps, config.momentum);
    }
    let mut values = value(&options)?;
    // Options are listed by their names alone, as users give them.
    let mut all = Map::new();
    for row in rows()?.iter().filter(|row| !row.is_free()) {
        let group = values.get_mut(&row.group);
        match group.and_then(|group| group.get_mut(&row.name)) {
            Some(own) if row.is_flat() => {
                all.insert(row.name.clone(), own.take());
            }
            _ => (),
        }
    }
    all.extend(values.get_mut(NAMED).map(|group| (NAMED.to_string(), group.take())));
    Ok(Value::Object(all))
}

/// Converts data to JSON, with the digits of numbers as the user wrote them.
fn value(data: &impl Serialize) -> Result<Value> {
    let text = serde_json::to_string(data).map_err(|e| Error::corrupt("options", e))?;
    serde_json::from_str(&text).map_err(|e| Error::corrupt("options", e))
}

/// Adds the names of fields in which two values differ. For two different variants, only the variants are reported,
/// because their fields follow from them.
fn compare(before: &Value, now: &Value, name: &str, found: &mut Vec<Difference>) {
    let differ = |recorded: &Value, given: &Value| Difference {
        option: name.to_string(),
        recorded: shown(recorded),
        given: shown(given),
    };
    match (before, now) {
        (before, now) if before == now => {}
        (Value::Object(a), Value::Object(b)) => match (a.keys().next(), b.keys().next()) {
            (Some(x), Some(y)) if a.len() == 1 && b.len() == 1 && x != y => {
                found.push(differ(&x.as_str().into(), &y.as_str().into()));
            }
            _ => match KINDS.into_iter().find(|kind| a.get(*kind) != b.get(*kind)) {
                Some(kind) => found.push(differ(&part(a, kind), &part(b, kind))),
                None => {
                    let names: BTreeMap<_, _> = a.iter().chain(b).collect();
                    for key in names.into_keys() {
                        compare(&part(a, key), &part(b, key), below(name, key), found);
                    }
                }
            },
        },
        (Value::Array(a), Value::Array(b))
            if a.len() == b.len() && a.iter().chain(b).all(Value::is_object) =>
        {
            a.iter().zip(b).for_each(|(a, b)| compare(a, b, name, found));
        }
        (before, now) => found.push(differ(before, now)),
    }
}

/// Fields that determine the meaning of the other fields: of heads, and of an embedding.
const KINDS: [&str; 2] = ["kind", "layout"];

fn part(fields: &Map<String, Value>, key: &str) -> Value {
    fields.get(key).cloned().unwrap_or_default()
}

/// The option that sets a field.
fn below<'a>(name: &str, key: &'a str) -> &'a str {
    match (name, key) {
        (_, "parts") => "heads",
        (_, "vector" | "melee") => "embedding",
        ("heads", "hidden_size") => "head_hidden_size",
        _ => key,
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "none".into(),
        Value::Object(variant) if variant.len() == 1 => {
            variant.iter().map(|(name, value)| format!("{name} {}", shown(value))).collect()
        }
        other => other.to_string(),
    }
}

/// The options of a run from now on, with the lengths of the earlier schedule.
fn lengthened(progress: &Progress, now: &TrainOptions, epoch_steps: u64) -> Result<TrainOptions> {
    let before = &progress.options;
    let (steps, total) = (before.total_steps(epoch_steps), now.total_steps(epoch_steps));
    let mut options = now.begun();
    // The earlier run may have cut its given lengths to fit, so the given values are compared.
    let again = now.schedule.decay_steps == progress.said().schedule.decay_steps;
    let schedule = progress.schedule(steps);
    if !again {
        let warmup_steps = schedule.warmup_steps;
        Schedule { warmup_steps, ..now.schedule(total) }.check()?;
    }
    if total == steps {
        options.schedule.warmup_steps = before.schedule.warmup_steps;
        if again {
            options.schedule.decay_steps = before.schedule.decay_steps;
        }
        return Ok(options);
    }
    let said = if now.schedule.steps.is_some() { "steps" } else { "epochs" };
    if total < progress.step {
        let made = format!("at least the {} steps made so far", progress.step);
        return Err(Error::mismatch(said, made, format!("{total} steps")));
    }
    options.schedule.warmup_steps = schedule.warmup_steps;
    if again && now.schedule.lr_schedule.falls() {
        options.schedule.decay_steps = Some(schedule.decay_length());
    }
    let end = schedule.warmup_steps + schedule.decay_length();
    let dead = matches!(now.schedule.lr_schedule, LrSchedule::Linear | LrSchedule::Cosine);
    if again && dead && total > steps.max(end) {
        let whole = total - schedule.warmup_steps;
        let expected = format!(
            "at most {end} steps, after which the learning rate of this run is 0, or decay_steps \
             beside it (decay_steps {whole} reaches the new end)"
        );
        return Err(Error::mismatch(said, expected, format!("{total} steps")));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::optimiser::Kind as Optimizer;
    use crate::options::{DataOptions, MachineOptions, OptimiserOptions, ScheduleOptions};

    fn record(options: TrainOptions) -> Record {
        let text = json!({
            "embedding": {"vector": 2},
            "backbone": {"mlp": {"hidden_sizes": [8], "layer_norm": false, "residual": false,
                                 "dropout": 0.0, "input_dropout": 0.0}},
            "heads": {"kind": "independent", "parts": [], "stream_size": 64, "prior": false},
        });
        let spec = serde_json::from_value(text).unwrap();
        Record::new(Path::new("corpus"), &spec, &options)
    }

    #[test]
    fn options_not_given_are_recorded_ones_and_parts_of_a_loss_are_given_alone() {
        let options = TrainOptions {
            schedule: ScheduleOptions { steps: Some(5), ..ScheduleOptions::default() },
            data: DataOptions { mirror: 0.3, ..DataOptions::default() },
            ..TrainOptions::default()
        };
        let said = json!({"loss": {"clamp": 9.0}, "epochs": 3, "resume": true});
        let with = record(options.clone()).with(said).unwrap();
        assert_eq!(
            (with.data.mirror, with.schedule.steps, with.schedule.epochs, with.machine.resume),
            (0.3, None, 3, true)
        );
        assert_eq!(with.loss.clamp, 9.0);
        assert_eq!(with.loss.button_weight, options.loss.button_weight);
        assert!(record(options).with(json!({"stepps": 3})).is_err());
        let forced = TrainOptions {
            machine: MachineOptions {
                precision: Precision::Bf16,
                force_precision: true,
                ..MachineOptions::default()
            },
            ..TrainOptions::default()
        };
        let after = |said| record(forced.clone()).with(said).unwrap().machine.force_precision;
        assert!(after(json!({})) && !after(json!({"precision": "f32"})));
        assert!(after(json!({"precision": "f16", "force_precision": true})));
    }

    fn at(step: u64, options: TrainOptions) -> Progress {
        Progress { step, ..Progress::new(&options, "games".into(), None) }
    }

    fn cosine(steps: u64) -> TrainOptions {
        TrainOptions {
            schedule: ScheduleOptions {
                steps: Some(steps),
                warmup_steps: 100,
                ..ScheduleOptions::default()
            },
            ..TrainOptions::default()
        }
    }

    #[test]
    fn changes_that_are_not_allowed_are_reported_together_with_both_values() {
        let record = record(cosine(5));
        let progress = at(3, record.options.clone());
        let mut spec = record.spec.clone();
        if let sconce_nn::spec::Backbone::Mlp(config) = &mut spec.backbone {
            config.hidden_sizes = vec![16, 16];
        }
        let mut now = TrainOptions {
            machine: MachineOptions { seed: 3, ..cosine(500).machine },
            data: DataOptions { noise: 0.3, ..cosine(500).data },
            ..cosine(500)
        };
        now.loss.clamp = 9.0;
        now.machine.threads = Some(2);
        let found = differences((&record.spec, &progress), (&spec, &now, "other")).unwrap();
        let rows = |d: &Difference| [d.option.clone(), d.recorded.clone(), d.given.clone()];
        let want = [
            ["hidden_sizes", "[8]", "[16,16]"],
            ["clamp", "60.0", "9.0"],
            ["noise", "0.0", "0.3"],
            ["seed", "0", "3"],
            ["games", "those of the run", "others"],
        ];
        assert_eq!(found.iter().map(rows).collect::<Vec<_>>(), want.map(|r| r.map(String::from)));
    }

    #[test]
    fn differences_that_follow_from_an_option_are_reported_as_that_option() {
        let text = json!({
            "embedding": {"melee": {
                "layout": "learned", "action_embed_size": 64, "character_embed_size": 64,
                "stage_embed_size": 64, "num_player_names": 0, "num_projectiles": 5,
            }},
            "backbone": {"mlp": {"hidden_sizes": [8], "layer_norm": false, "residual": false,
                                 "dropout": 0.0, "input_dropout": 0.0}},
            "heads": {
                "kind": "independent", "stream_size": 64, "prior": false,
                "parts": [{"name": "x", "kind": {"categorical": 17}, "hidden_size": 8},
                          {"name": "y", "kind": {"categorical": 17}, "hidden_size": 8}],
            },
        });
        let told = |changed: &[(&str, Value)], now: TrainOptions| {
            let mut other = text.clone();
            for (place, value) in changed {
                *other.pointer_mut(place).unwrap() = value.clone();
            }
            let [spec, other] = [text.clone(), other].map(|s| serde_json::from_value(s).unwrap());
            let found = differences((&spec, &at(3, cosine(5))), (&other, &now, "games")).unwrap();
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        let autoregressive =
            [("/heads/kind", json!("autoregressive")), ("/heads/prior", json!(true))];
        assert_eq!(told(&autoregressive, cosine(5)), "heads is independent, not autoregressive");
        let wide = [0, 1].map(|part| (format!("/heads/parts/{part}/hidden_size"), json!(16)));
        let wide = wide.each_ref().map(|(place, size)| (place.as_str(), size.clone()));
        assert_eq!(told(&wide, cosine(5)), "head_hidden_size is 8, not 16");
        let fine = [("/heads/parts/1/kind", json!({"categorical": 9}))];
        assert_eq!(told(&fine, cosine(5)), "heads is categorical 17, not categorical 9");
        let packed = [
            ("/embedding/melee/layout", json!("packed")),
            ("/embedding/melee/action_embed_size", json!(0)),
        ];
        assert_eq!(told(&packed, cosine(5)), "embedding is learned, not packed");
        let sgd = TrainOptions {
            optimiser: OptimiserOptions {
                optimizer: Optimizer::Sgd,
                momentum: Some(0.5),
                ..cosine(5).optimiser
            },
            ..cosine(5)
        };
        assert_eq!(told(&[], sgd), "momentum is none, not 0.5; optimizer is adamw, not sgd");
    }

    #[test]
    fn the_default_number_of_an_optimiser_is_the_same_given_or_not() {
        let own = |beta1| TrainOptions {
            optimiser: OptimiserOptions { beta1, ..OptimiserOptions::default() },
            ..TrainOptions::default()
        };
        let fixed = |options: &TrainOptions| fixed(options, true).unwrap();
        assert_eq!(fixed(&own(None)), fixed(&own(Some(0.9))));
        assert_ne!(fixed(&own(None)), fixed(&own(Some(0.8))));
        let sgd = |nesterov, momentum| {
            let optimizer = Optimizer::Sgd;
            fixed(&TrainOptions {
                optimiser: OptimiserOptions {
                    optimizer,
                    nesterov,
                    momentum,
                    ..OptimiserOptions::default()
                },
                ..TrainOptions::default()
            })
        };
        assert_eq!(sgd(false, None), sgd(false, Some(0.9)));
        assert_ne!(sgd(true, None), sgd(false, Some(0.9)));
    }

    #[test]
    fn a_schedule_keeps_its_length_in_a_lengthened_run() {
        let linear = |steps| TrainOptions {
            schedule: ScheduleOptions {
                lr_schedule: LrSchedule::Exponential,
                ..cosine(steps).schedule
            },
            ..cosine(steps)
        };
        let before = linear(60);
        let now = lengthened(&at(40, before.clone()), &linear(600), 10).unwrap();
        // A warm-up takes at most half of the run, which had 60 steps when it began.
        assert_eq!((now.schedule.warmup_steps, now.schedule.decay_steps), (30, Some(30)));
        for step in 0..60 {
            assert_eq!(now.schedule(600).rate(step), before.schedule(60).rate(step), "{step}");
        }
        let same = lengthened(&at(40, before.clone()), &before, 10).unwrap();
        assert_eq!((same.schedule.warmup_steps, same.schedule.decay_steps), (100, None));
    }

    #[test]
    fn a_shortened_run_keeps_its_rates_during_the_warm_up_and_after_it() {
        let before = cosine(400);
        let rates = before.schedule(400);
        let mut progress = at(50, before);
        for steps in [120, 110] {
            go_on(&mut progress, &cosine(steps), 10).unwrap();
            let schedule = progress.schedule(steps);
            assert!((0..steps).all(|step| schedule.rate(step) == rates.rate(step)), "{steps}");
        }
    }

    #[test]
    fn a_new_decay_that_ends_before_the_run_is_refused_with_both_numbers() {
        let progress = at(300, cosine(1200));
        let said = |decay| TrainOptions {
            schedule: ScheduleOptions { decay_steps: Some(decay), ..cosine(1200).schedule },
            ..cosine(1200)
        };
        let text = lengthened(&progress, &said(500), 10).unwrap_err().to_string();
        assert_eq!(
            text,
            "decay_steps: expected at least 1100, to the end of the run after 1200 steps, \
             got 500, so that the learning rate is 0 from step 600 on"
        );
        assert!(lengthened(&progress, &said(1100), 10).is_ok());
        // A run keeps the decay steps that it began with.
        let own = at(300, said(500));
        assert!(lengthened(&own, &said(500), 10).is_ok());
    }

    #[test]
    fn a_run_is_not_lengthened_without_effect_or_shortened_below_its_steps() {
        let with = |now: TrainOptions| lengthened(&at(1200, cosine(1200)), &now, 10);
        let text = with(cosine(2000)).unwrap_err().to_string();
        assert!(text.contains("at most 1200 steps") && text.contains("decay_steps 1900"), "{text}");
        let stretched = TrainOptions {
            schedule: ScheduleOptions { decay_steps: Some(1900), ..cosine(2000).schedule },
            ..cosine(2000)
        };
        assert_eq!(with(stretched).unwrap().schedule.decay_steps, Some(1900));
        let epochs = TrainOptions {
            schedule: ScheduleOptions { steps: None, epochs: 100, ..cosine(1).schedule },
            ..cosine(1)
        };
        assert!(with(epochs).unwrap_err().to_string().starts_with("epochs: expected at least"));
        let long = TrainOptions {
            schedule: ScheduleOptions { decay_steps: Some(3000), ..cosine(1200).schedule },
            ..cosine(1200)
        };
        let now = TrainOptions {
            schedule: ScheduleOptions { steps: Some(2000), ..long.clone().schedule },
            ..long.clone()
        };
        assert_eq!(lengthened(&at(1200, long), &now, 10).unwrap().schedule.decay_steps, Some(3000));
    }
}
