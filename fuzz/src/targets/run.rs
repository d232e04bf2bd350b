//! Reads the files of a run, resumes the run, and stops it before its first step.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_data::Corpus;
use sconce_tensor::{Error, Result};
use sconce_train::objective::imitation::LossOptions;
use sconce_train::options::{
    DataOptions, MachineOptions, OptimiserOptions, SavingOptions, ScheduleOptions, TrainOptions,
};
use sconce_train::report::Event;
use sconce_train::run::{Record, read_gradients, read_report, run as train};
use serde_json::json;

use super::{corpus, specs};
use crate::bundle::Bundle;
use crate::json::{self, Node};
use crate::rng::Rng;
use crate::safetensors::File;
use crate::{bytes, scratch};

const RECORD: &str = "run.json";
const STATE: &str = "last.safetensors";
const REPORT: &str = "report.json";
const GRADIENTS: &str = "gradients.jsonl";

/// Options of a very short run.
pub fn small() -> TrainOptions {
    TrainOptions {
        data: DataOptions {
            batch_size: 2,
            window_size: 4,
            stride: 2,
            val_split: 0.5,
            ..DataOptions::default()
        },
        schedule: ScheduleOptions { steps: Some(2), warmup_steps: 1, ..ScheduleOptions::default() },
        saving: SavingOptions { gradient_report: Some(1), ..SavingOptions::default() },
        machine: MachineOptions { threads: Some(1), ..MachineOptions::default() },
        loss: LossOptions::plain(),
        ..TrainOptions::default()
    }
}

/// The files of a finished run.
fn finished(options: &TrainOptions) -> Bundle {
    let out = scratch::folder("finished");
    let corpus = Corpus::open(corpus::of_vectors()).expect("a corpus");
    let spec = specs::of_vectors("gru");
    train(&corpus, &spec, options, &out, &|_: Event| (), &AtomicBool::new(false)).expect("a run");
    Bundle::read(&out).expect("files")
}

fn file(bundle: &Bundle, name: &str) -> Vec<u8> {
    bundle.clone().get_mut(name).map(std::mem::take).unwrap_or_default()
}

pub fn seeds() -> Vec<Vec<u8>> {
    let carried = TrainOptions {
        data: DataOptions { unroll: sconce_train::options::Mode::Carry, ..small().data },
        optimiser: OptimiserOptions {
            accumulation_steps: 2,
            ema_decay: Some(0.9),
            ..small().optimiser
        },
        saving: SavingOptions { keep_best: 1, ..small().saving },
        ..small()
    };
    let of = |options: &TrainOptions| {
        let mut bundle = finished(options);
        bundle.0.retain(|(name, _)| [RECORD, STATE].contains(&name.as_str()));
        bundle.encode()
    };
    let (whole, carried) = (of(&small()), of(&carried));
    // A checkpoint without its record, and a run without a checkpoint.
    let alone = |name: &str| {
        let mut bundle = Bundle::parse(&whole);
        bundle.0.retain(|(other, _)| other == name);
        bundle.encode()
    };
    vec![alone(STATE), alone(RECORD), whole, carried]
}

pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>) {
    let mut bundle = Bundle::parse(input);
    match rng.below(4) {
        0 if bundle.get_mut(RECORD).is_some() => {
            bundle.get_mut(RECORD).into_iter().for_each(|text| json::mutate_text(rng, text));
        }
        1 => {
            bundle.get_mut(STATE).into_iter().for_each(|file| super::checkpoint::mutate(rng, file))
        }
        2 => of_state(&mut bundle, |text| {
            text.get_mut("run").into_iter().for_each(|run| json::mutate(rng, run));
        }),
        _ => options(rng, &mut bundle),
    }
    *input = bundle.encode();
}

/// Changes the text of the last checkpoint, and updates the checkpoint's digest.
fn of_state(bundle: &mut Bundle, change: impl FnOnce(&mut Node)) {
    let Some(content) = bundle.get_mut(STATE) else { return };
    let Some(mut file) = File::parse(content) else { return };
    let Some(mut text) = file.text() else { return };
    change(&mut text);
    file.set_text(text.write());
    file.sign();
    *content = file.encode();
}

/// Changes the Spec or the options consistently in all files, so that the run may resume.
fn options(rng: &mut Rng, bundle: &mut Bundle) {
    let Some(text) = bundle.get_mut(RECORD) else {
        return of_state(bundle, |text| json::mutate(rng, text));
    };
    let Some(mut record) = Node::parse(text) else { return bytes::mutate(rng, text) };
    let part = if rng.one_in(3) { "spec" } else { "options" };
    if let Some(node) = record.get_mut(part) {
        json::mutate(rng, node);
    }
    *text = record.write().into_bytes();
    let Some(node) = record.get(part).cloned() else { return };
    of_state(bundle, |text| match (part, text.get_mut("run")) {
        ("options", Some(run)) => {
            run.set("options", node.clone());
            run.set("said", node);
        }
        _ => text.set("spec", node),
    });
}

pub fn run(input: &[u8], dir: &Path) -> Result<()> {
    Bundle::parse(input).write(dir).map_err(Error::io(dir))?;
    let record = Record::read(dir)?;
    let spec = record.spec.clone();
    let options = record.with(json!({ "resume": true }))?;
    go(&spec, &options, dir)
}

/// Prepares a run, and stops it before its first step.
pub fn go(spec: &sconce_nn::Spec, options: &TrainOptions, out: &Path) -> Result<()> {
    let corpus = Corpus::open(corpus::of_vectors())?;
    let stop = AtomicBool::new(false);
    let stop_at_start = |event: Event| {
        if matches!(event, Event::Start { .. }) {
            stop.store(true, Ordering::Relaxed);
        }
    };
    train(&corpus, spec, options, out, &stop_at_start, &stop).map(drop)
}

pub fn report_seeds() -> Vec<Vec<u8>> {
    vec![file(&finished(&small()), REPORT)]
}

pub fn report(input: &[u8], dir: &Path) -> Result<()> {
    super::write(dir, REPORT, input)?;
    let report = read_report(dir)?;
    // Encodes the report as the NIF does for its caller.
    serde_json::to_vec(&report).map(drop).map_err(|e| Error::corrupt(REPORT, e))
}

pub fn gradients_seeds() -> Vec<Vec<u8>> {
    vec![file(&finished(&small()), GRADIENTS)]
}

pub fn gradients(input: &[u8], dir: &Path) -> Result<()> {
    super::write(dir, GRADIENTS, input)?;
    let reports = read_gradients(dir)?;
    serde_json::to_vec(&reports).map(drop).map_err(|e| Error::corrupt(GRADIENTS, e))
}

/// Mutates JSON lines.
pub fn mutate_lines(rng: &mut Rng, text: &mut Vec<u8>) {
    let mut lines: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let at = rng.below(lines.len());
    match rng.below(6) {
        0 => drop(lines.remove(at)),
        1 => {
            let copies = vec![lines[at].clone(); 1 + rng.up_to(64)];
            lines.splice(at..at, copies);
        }
        _ => json::mutate_text(rng, &mut lines[at]),
    }
    *text = lines.join(&b'\n');
}
