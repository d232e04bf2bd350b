//! Tests of runs that need access to private parts, or a disk that fails.
#![allow(clippy::disallowed_methods)]

use std::cell::RefCell;
use std::io;
use std::ops::{Range, RangeBounds};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sconce_data::{Schema, VectorGame};
use sconce_nn::Policy;
use sconce_nn::checkpoint::{self, Manifest, Snapshot};
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, RecurrentConfig};
use sconce_ops::weights::Weights;
use sconce_tensor::device::{AllReduce, Devices};
use sconce_tensor::{Device, tensor};
use serde_json::json;

use super::folder::{Keep, Kind};
use super::room::Room;
use super::saver::{Disk, Draft, Finished, Save, Saver};
use super::train::MOST_WINDOWS;
use super::*;
use crate::eval;
use crate::objective::imitation::LossOptions;
use crate::options::{
    DataOptions, MachineOptions, Mode, OptimiserOptions, SavingOptions, ScheduleOptions,
};
use crate::replicas::Learn;
use crate::replicas::tests::InOrder;
use crate::report::{Pace, Stopped};
use crate::step::Task;
use crate::stop::NEVER;

fn spec() -> Spec {
    let config = RecurrentConfig {
        hidden_size: 4,
        num_layers: 1,
        layer_norm: false,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
        ..Default::default()
    };
    let to = Head { name: "to".into(), kind: HeadKind::Categorical(2), hidden_size: 4 };
    let kind = HeadsKind::Independent;
    let heads = Heads { kind, parts: vec![to], stream_size: 4, prior: false };
    Spec { embedding: Embedding::vector(1), backbone: Backbone::Gru(config), heads, critic: None }
}

fn corpus(dir: &Path) -> Corpus {
    let game = |i: u16| VectorGame {
        x: (0..30).map(|t| f32::from((t * (i + 3)) % 7)).collect(),
        labels: (0..30).map(|t| ((t * (i + 3)) % 7 / 4).into()).collect(),
    };
    let games: Vec<VectorGame> = (0..6).map(game).collect();
    let folder = dir.join("corpus");
    Corpus::build(&Schema::vector(1, &spec().heads), &games, &folder).unwrap()
}

fn options() -> TrainOptions {
    TrainOptions {
        data: DataOptions {
            batch_size: 4,
            window_size: 5,
            stride: 5,
            val_split: 0.34,
            ..DataOptions::default()
        },
        schedule: ScheduleOptions { steps: Some(12), ..ScheduleOptions::default() },
        saving: SavingOptions {
            validate_every: Some(3),
            validation_stride: 1,
            ..SavingOptions::default()
        },
        optimiser: OptimiserOptions { ema_decay: Some(0.9), ..OptimiserOptions::default() },
        loss: LossOptions::plain(),
        ..TrainOptions::default()
    }
}

/// A disk, and the devices that options ask for.
fn on(disk: Disk) -> Machine {
    Machine { disk, devices: TrainOptions::open_devices }
}

fn good_disk() -> Disk {
    Arc::new(|file: &mut File, bytes: &[u8]| file.write_all(bytes))
}

/// A disk that is full from write `from` to write `to`, counted from 0.
fn full_disk(from: u64, to: u64) -> Disk {
    let writes = AtomicU64::new(0);
    Arc::new(move |file: &mut File, bytes: &[u8]| {
        let write = writes.fetch_add(1, Ordering::Relaxed);
        if (from..to).contains(&write) {
            file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.write_all(bytes)
    })
}

fn prepare<'a>(
    corpus: &Corpus,
    options: &'a TrainOptions,
    out: &Path,
    cancel: &'a AtomicBool,
) -> Run<'a> {
    std::fs::create_dir_all(out).unwrap();
    let (machine, folder) = (on(good_disk()), Folder::new(out));
    Run::prepare(machine, corpus, &spec(), options, folder, Watch::of(&|_| ()), cancel).unwrap()
}

#[test]
fn a_state_with_a_flipped_bit_is_named_with_the_remaining_states() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let never = AtomicBool::new(false);
    let options = TrainOptions {
        saving: SavingOptions { keep_last: 1, ..options().saving },
        machine: MachineOptions { resume: true, ..options().machine },
        ..options()
    };
    let out = dir.path().join("run");
    let go = || super::run(&corpus, &spec(), &options, &out, &|_| (), &never);
    go().unwrap();
    let (last, numbered) = (out.join("last.safetensors"), out.join("last-00000012.safetensors"));
    let mut bytes = std::fs::read(&last).unwrap();
    let middle = bytes.len() - 5;
    bytes[middle] ^= 1;
    // Both names are links to one file.
    std::fs::remove_file(&last).unwrap();
    std::fs::write(&last, bytes).unwrap();
    let text = go().unwrap_err().to_string();
    let said = format!("{}: damaged: its bytes are not those that were written", last.display());
    assert_eq!(text, format!("{said}; copy {} over it", numbered.display()));
    std::fs::remove_file(&numbered).unwrap();
    let text = go().unwrap_err().to_string();
    assert!(text.contains("start again") && text.contains("best.safetensors"), "{text}");
}

#[test]
fn a_record_and_a_report_that_are_damaged_are_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let out = dir.path().join("run");
    super::run(&corpus, &spec(), &options(), &out, &|_| (), &AtomicBool::new(false)).unwrap();
    for name in ["run.json", "report.json"] {
        let text = std::fs::read(out.join(name)).unwrap();
        std::fs::write(out.join(name), &text[..text.len() / 2]).unwrap();
    }
    let report = read_report(&out).unwrap_err().to_string();
    assert!(
        report.contains("report.json: cut short") && report.contains("resume: true"),
        "{report}"
    );
    let record = Record::read(&out).unwrap_err().to_string();
    assert!(record.contains("run.json: cut short") && record.contains("corpus: DIR"), "{record}");
    std::fs::remove_file(out.join("run.json")).unwrap();
    assert_eq!(Record::read(&out).unwrap().options, options());
    std::fs::write(out.join("run.json"), b"{").unwrap();
    std::fs::remove_file(out.join("last.safetensors")).unwrap();
    let record = Record::read(&out).unwrap_err().to_string();
    assert!(record.contains("start again"), "{record}");
}

#[test]
fn a_run_whose_rate_would_be_0_before_its_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let options = TrainOptions {
        schedule: ScheduleOptions { warmup_steps: 2, decay_steps: Some(4), ..options().schedule },
        ..options()
    };
    let out = dir.path().join("run");
    let never = AtomicBool::new(false);
    let error = super::run(&corpus, &spec(), &options, &out, &|_| (), &never).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("decay_steps: expected at least 10"), "{text}");
    assert!(text.ends_with("got 4, so that the learning rate is 0 from step 6 on"), "{text}");
}

/// All values of a checkpoint as bits, without its notes, which contain times.
fn numbers(path: &Path) -> Vec<(String, Vec<u32>)> {
    let file = checkpoint::load(path).unwrap();
    let bits = |v: Vec<f32>| v.iter().map(|v| v.to_bits()).collect();
    let weights = file.weights.iter();
    let mut all: Vec<_> =
        weights.map(|(name, t)| (name.clone(), bits(tensor::to_vec(t).unwrap()))).collect();
    all.extend(file.optimiser.into_iter().map(|(name, v)| (name, bits(v))));
    all
}

fn names(out: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(out).unwrap();
    let mut names: Vec<_> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_run_continues_on_a_full_disk_and_reports_the_names_of_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let never = AtomicBool::new(false);
    let go_on = |name: &str, disk: Disk| {
        let told: RefCell<Vec<(PathBuf, u64)>> = RefCell::default();
        let listen = |event| {
            if let Event::SaveFailed { path, step, reason } = event {
                assert!(!reason.is_empty());
                told.borrow_mut().push((path, step));
            }
        };
        let out = dir.path().join(name);
        let ended =
            run_on(on(disk), &corpus, &spec(), &options(), &out, Watch::of(&listen), &never);
        (ended, out, told.into_inner())
    };
    let go = |name: &str, disk: Disk| {
        let (ended, out, told) = go_on(name, disk);
        (ended.unwrap(), out, told)
    };
    let (whole, straight, told) = go("whole", good_disk());
    assert!(told.is_empty());
    assert_eq!((whole.saves.written, whole.saves.step), (4, Some(12)));

    // The disk is always full: no state is written, which is an error with the report and the score of the best policy.
    let (ended, out, told) = go_on("full", full_disk(0, u64::MAX));
    let best = out.join("best.safetensors");
    let error = ended.unwrap_err();
    assert_eq!((error.kind(), &error.details()["path"]), (sconce_tensor::Kind::Io, &json!(best)));
    assert_eq!(error.details()["reason"], "no storage space");
    let report: RunReport = serde_json::from_value(error.details()["report"].clone()).unwrap();
    assert_eq!((report.stopped, report.steps), (Stopped::Finished, 12));
    assert_eq!((report.saves.written, report.saves.step), (0, None));
    assert_eq!(report.policy, whole.policy);
    assert_eq!(told, [3, 6, 9, 12].map(|step| (best.clone(), step)));
    let failed = &report.saves.failed;
    assert_eq!((failed.len(), &failed[0].path, failed[0].times), (1, &best, 4));
    assert_eq!(names(&out), ["lock", "report.json", "run.json"]);

    // The disk is full for a while: earlier files stay, and later files are the same as without a failure. Whichever
    // file fails, a best policy is written before the state that refers to it.
    for from in 0..4 {
        let (report, out, told) = go(&format!("for a while {from}"), full_disk(from, from + 2));
        assert_eq!(told.len(), 2, "{from}");
        assert_eq!(report.saves.step, Some(12), "{from}");
        assert_eq!(report.policy, whole.policy, "{from}");
        for name in ["best.safetensors", "last.safetensors"] {
            assert!(numbers(&out.join(name)) == numbers(&straight.join(name)), "{name} {from}");
        }
    }
}

#[test]
fn a_run_stopped_within_a_step_resumes_from_the_step_before_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let never = AtomicBool::new(false);
    for unroll in [Mode::Window, Mode::Carry] {
        let options = TrainOptions {
            data: DataOptions { unroll, ..options().data },
            optimiser: OptimiserOptions { accumulation_steps: 4, ..options().optimiser },
            machine: MachineOptions { resume: true, ..options().machine },
            ..options()
        };
        let folder = |name: &str| dir.path().join(format!("{name} {unroll:?}"));
        let (whole, cut) = (folder("whole"), folder("cut"));
        super::run(&corpus, &spec(), &options, &whole, &|_| (), &never).unwrap();

        // The failure is in the first step, or in the sixth.
        for (batches, steps) in [(2, 0), (22, 5)] {
            let cancel = Arc::new(AtomicBool::new(false));
            let mut run = prepare(&corpus, &options, &cut, &cancel);
            let first = run.progress.step * 4;
            let (made, stop) = (AtomicU64::new(first), cancel.clone());
            let learn: Learn = Box::new(move |stepper, task| {
                if made.fetch_add(1, Ordering::Relaxed) + 1 == batches {
                    stop.store(true, Ordering::Relaxed);
                    let learned = stepper.learn(task);
                    assert!(matches!(learned, Err(Error::Cancelled)));
                    return learned;
                }
                stepper.learn(task)
            });
            run.replicas = run.replicas.learning(learn);
            let stopped = run.train().unwrap();
            assert_eq!((stopped, run.replicas.learned()), (Stopped::Stopped, 0.0));
            let report = run.finish(stopped).unwrap();
            assert_eq!((report.steps, report.saves.step), (steps, Some(steps)));
        }
        let report = super::run(&corpus, &spec(), &options, &cut, &|_| (), &never).unwrap();
        assert_eq!(report.steps, 12);
        for name in ["best.safetensors", "last.safetensors"] {
            assert!(numbers(&cut.join(name)) == numbers(&whole.join(name)), "{name} {unroll:?}");
        }
    }
}

#[test]
fn cancelled_measurements_end_before_their_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let (corpus, stopped) = (corpus(dir.path()), AtomicBool::new(true));
    let (spec, options) = (spec(), options());
    let planned = crate::plan::plan(&spec, &options, None, &stopped);
    assert!(matches!(planned, Err(Error::Cancelled)));
    let tuning = crate::tune::TuneOptions::default();
    let tuned = crate::tune::tune(&spec, &options, &tuning, &stopped);
    assert!(matches!(tuned, Err(Error::Cancelled)));
    let range = crate::range_test::RangeOptions::default();
    let tested = crate::range_test::range_test(&spec, None, &corpus, &options, &range, &stopped);
    assert!(matches!(tested, Err(Error::Cancelled)));
    let policy = Policy::init(&spec, 1).unwrap();
    let scoring = Default::default();
    let scored = eval::evaluate(&policy, &corpus, None, &scoring, &|_| (), &stopped);
    assert!(matches!(scored, Err(Error::Cancelled)));
}

#[test]
fn an_error_lists_no_more_windows_than_a_message_holds() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let (options, cancel) = (options(), AtomicBool::new(false));
    let run = prepare(&corpus, &options, &dir.path().join("run"), &cancel);
    let error = Error::NonFinite { what: "gradient".into(), value: f64::NAN };
    match run.diverged(error, 1, 0, u64::MAX) {
        Error::Diverged { windows, .. } => assert_eq!(windows.len(), MOST_WINDOWS),
        other => panic!("{other}"),
    }
}

#[test]
fn the_run_continues_while_the_disk_is_slow() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let steps = Arc::new(AtomicU64::new(0));
    let (seen, met) = (steps.clone(), Arc::new(AtomicBool::new(false)));
    let reached = met.clone();
    // The first write is so slow that it ends when the run has completed its eighth step.
    let slow = move |file: &mut File, bytes: &[u8]| {
        let asked = Instant::now();
        while seen.load(Ordering::Relaxed) < 8 && asked.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        reached.fetch_or(seen.load(Ordering::Relaxed) >= 8, Ordering::Relaxed);
        file.write_all(bytes)
    };
    let saved = RefCell::new(vec![]);
    let listen = |event| match event {
        Event::Step { step, .. } => steps.store(step, Ordering::Relaxed),
        Event::Checkpoint { step, .. } => saved.borrow_mut().push(step),
        _ => {}
    };
    let options = TrainOptions {
        saving: SavingOptions { save_every: Some(1), validate_every: Some(12), ..options().saving },
        ..options()
    };
    let out = dir.path().join("run");
    let cancel = AtomicBool::new(false);
    let disk = Arc::new(slow);
    let report =
        run_on(on(disk), &corpus, &spec(), &options, &out, Watch::of(&listen), &cancel).unwrap();
    assert!(met.load(Ordering::Relaxed), "the run waited for the disk");
    let saved = saved.into_inner();
    // No save began while the first was in flight, and every file is complete.
    assert_eq!((saved[0], saved.last()), (1, Some(&12)));
    assert!(saved[1] >= 8, "{saved:?}");
    assert_eq!(report.saves.written, saved.len() as u64);
}

/// A draft of a file with this many values.
fn draft(path: PathBuf, numbers: usize) -> Draft {
    let manifest = Manifest::new(spec(), json!({}));
    let optimiser = [("m".to_string(), vec![0.5; numbers])].into();
    let snapshot = Snapshot::new(manifest, &Weights::new(), optimiser).unwrap();
    Draft { snapshot, path, numbered: None }
}

#[test]
fn one_save_is_in_flight_at_a_time_and_the_next_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let told = Arc::new(Mutex::new(vec![]));
    let note = |what: &str| told.lock().unwrap().push(what.to_string());
    let notes = told.clone();
    let disk: Disk = Arc::new(move |file: &mut File, bytes: &[u8]| {
        notes.lock().unwrap().push("begun".into());
        file.write_all(bytes)?;
        notes.lock().unwrap().push("written".into());
        Ok(())
    });
    let listen = |event| match event {
        Event::Checkpoint { step, .. } => note(&format!("told of {step}")),
        other => panic!("{other:?}"),
    };
    let path = |step: u64| dir.path().join(format!("{step}.safetensors"));
    let save =
        |step| Save { step, policy: None, state: draft(path(step), 9), keep: Keep::default() };
    let mut saver = Saver::start(Folder::new(dir.path()), disk.clone()).unwrap();
    (1..=3).for_each(|step| saver.save(save(step), &listen));
    let finished = saver.finish(&listen);
    assert_eq!((finished.saves.written, finished.saves.step), (3, Some(3)));
    let of = |step: u64| ["begun".into(), "written".into(), format!("told of {step}")];
    assert_eq!(*told.lock().unwrap(), [of(1), of(2), of(3)].concat());
    // A run that ends during a save still leaves a complete file.
    let mut saver = Saver::start(Folder::new(dir.path()), disk).unwrap();
    saver.save(save(4), &listen);
    drop(saver);
    checkpoint::load(&path(4)).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_save_without_memory_is_reported_and_the_next_one_writes_its_policy_too() {
    const CHILD: &str = "SCONCE_TEST_CHILD";
    // The limit applies to the whole process, so the test runs in its own.
    if std::env::var_os(CHILD).is_none() {
        let test = "a_save_without_memory_is_reported_and_the_next_one_writes_its_policy_too";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &format!("run::tests::{test}"), "--nocapture"]).env(CHILD, "1");
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let folder = Folder::new(dir.path());
    let (best, last) = (folder.file(Kind::Best), folder.file(Kind::Last));
    let told = RefCell::new(vec![]);
    let listen = |event| match event {
        Event::Checkpoint { step, .. } => told.borrow_mut().push((step, None)),
        Event::SaveFailed { path, step, reason } => {
            told.borrow_mut().push((step, Some((path, reason))));
        }
        other => panic!("{other:?}"),
    };
    let save = |step, policy| {
        let keep = Keep::default();
        Save { step, policy, state: draft(last.clone(), 9), keep }
    };
    let mut saver = Saver::start(folder, good_disk()).unwrap();
    let policy = draft(best.clone(), 20 << 20);
    limit_address_space(Some(32 << 20));
    saver.save(save(1, Some(policy)), &listen);
    saver.wait(&listen);
    limit_address_space(None);
    assert!(!best.exists() && !last.exists());
    saver.save(save(2, None), &listen);
    let finished = saver.finish(&listen);
    assert_eq!((finished.saves.written, finished.saves.failed.len()), (1, 1));
    assert!(finished.unwritten.is_none() && finished.lost.is_none());
    let told = told.into_inner();
    let [(1, Some((path, reason))), (2, None)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(*path, best);
    assert!(reason.contains("the bytes of a checkpoint"), "{reason}");
    assert_eq!(checkpoint::load(&best).unwrap().optimiser["m"].len(), 20 << 20);
    assert_eq!(checkpoint::load(&last).unwrap().optimiser["m"].len(), 9);
}

/// Limits the address space of the process to this much beyond what it uses, or lifts the limit.
#[cfg(target_os = "linux")]
fn limit_address_space(beyond: Option<u64>) {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a local value of the right type.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) }, 0);
    limit.rlim_cur = beyond.map_or(limit.rlim_max, |bytes| pages * 4096 + bytes);
    // SAFETY: the pointer is to a local value of the right type.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}

#[test]
fn a_run_stopped_during_a_validation_resumes_with_that_validation() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let options =
        TrainOptions { machine: MachineOptions { resume: true, ..options().machine }, ..options() };
    let (whole, cut) = (dir.path().join("whole"), dir.path().join("cut"));
    let never = AtomicBool::new(false);
    super::run(&corpus, &spec(), &options, &whole, &|_| (), &never).unwrap();

    let cancel = AtomicBool::new(false);
    let mut run = prepare(&corpus, &options, &cut, &cancel);
    for _ in 0..3 {
        let rate = run.learning_rate();
        let (stepped, _) = run.step(rate).unwrap();
        run.count(stepped, rate, Pace::default());
    }
    assert!(run.validation_is_due());
    cancel.store(true, Ordering::Relaxed);
    run.validate().unwrap();
    assert_eq!((run.progress.validated, run.progress.best_step), (0, None));
    let stopped = run.train().unwrap();
    assert_eq!(stopped, Stopped::Stopped);
    let report = run.finish(stopped).unwrap();
    assert_eq!((report.steps, report.saves.step), (3, Some(3)));
    assert!(!cut.join("best.safetensors").exists());

    let report = super::run(&corpus, &spec(), &options, &cut, &|_| (), &never).unwrap();
    assert_eq!(report.steps, 12);
    for name in ["best.safetensors", "last.safetensors"] {
        assert!(numbers(&cut.join(name)) == numbers(&whole.join(name)), "{name}");
    }
}

#[test]
fn a_weight_that_is_not_finite_ends_the_run_with_step_and_windows_and_is_never_written() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let (options, out) = (options(), dir.path().join("run"));
    let cancel = AtomicBool::new(false);
    let mut run = prepare(&corpus, &options, &out, &cancel);
    run.step(1e-3).unwrap();
    run.progress.step = 1;
    run.save(None).unwrap();
    let (name, weight) = run.replicas.stepper().policy().weights().iter().next().unwrap();
    let name = name.clone();
    tensor::update(weight, |numbers| numbers[0] = f32::NAN).unwrap();

    let error = run.train().unwrap_err();
    let Error::Diverged { what, step: 2, batch: 1, windows, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(what, "logit of to");
    assert_eq!(windows.len(), 4);
    let view = |(game, frame): &(String, i32)| {
        corpus.games().iter().any(|info| info.source == *game) && (0..=25).contains(frame)
    };
    assert!(windows.iter().all(view), "{windows:?}");

    run.save(None).unwrap();
    let Finished { saves, .. } = run.saver.finish(&|_| ());
    assert_eq!((saves.written, saves.step), (1, Some(1)));
    assert_eq!(saves.failed.len(), 1);
    assert!(saves.failed[0].reason.starts_with(&name), "{:?}", saves.failed);
    assert!(numbers(&out.join("last.safetensors")).len() > 1);
}

#[test]
fn a_step_that_fails_at_its_end_leaves_the_carried_states_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let options = TrainOptions {
        data: DataOptions {
            unroll: Mode::Carry,
            batch_size: 2,
            window_size: 5,
            val_split: 0.0,
            ..DataOptions::default()
        },
        optimiser: OptimiserOptions { accumulation_steps: 2, ..OptimiserOptions::default() },
        ..TrainOptions::default()
    };
    let cancel = AtomicBool::new(false);
    let run = prepare(&corpus, &options, dir.path(), &cancel);
    // The gradients of the third batch overflow, and so does every sum with them.
    let batches = AtomicU64::new(0);
    let mut run = learning(
        run,
        Box::new(move |stepper, task| {
            let third = batches.fetch_add(1, Ordering::Relaxed) == 2;
            let share = if third { f64::MAX } else { task.share };
            stepper.learn(Task { share, ..task })
        }),
    );
    run.step(1e-3).unwrap();
    let numbers = |run: &Run| {
        let states: Vec<_> = run.replicas.carried().into_iter().flatten().collect();
        assert_eq!(states.len(), 1);
        states[0].learner.to_vec().unwrap()
    };
    let before = numbers(&run);
    match run.step(1e-3).unwrap_err() {
        // The error covers both batches of the step.
        Error::Diverged { what, batch: 0, windows, .. } => {
            assert!(what.starts_with("gradient of "), "{what}");
            assert_eq!(windows.len(), 4);
        }
        other => panic!("{other}"),
    }
    assert_eq!(numbers(&run), before);
    run.step(1e-3).unwrap();
    assert_ne!(numbers(&run), before);
}

/// Replaces the function by which the run learns from a batch.
fn learning(run: Run<'_>, learn: Learn) -> Run<'_> {
    Run { replicas: run.replicas.learning(learn), ..run }
}

/// Runs out of memory in these draws, if more than `windows` windows are computed together.
fn small_device(draws: impl RangeBounds<u64> + Send + Sync + 'static, windows: usize) -> Learn {
    Box::new(move |stepper, task| {
        if draws.contains(&task.draw) && stepper.micro_batch().is_none_or(|n| n > windows) {
            let text = "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")";
            return Err(sconce_tensor::candle::Error::Msg(text.into()).into());
        }
        stepper.learn(task)
    })
}

/// Whether weights are equal up to rounding from the order of sums.
fn alike(a: &Path, b: &Path) -> bool {
    let (a, b) = (numbers(a), numbers(b));
    let float = |bits: &u32| f32::from_bits(*bits);
    a.iter().zip(&b).all(|((name, a), (other, b))| {
        let close = |(a, b): (f32, f32)| (a - b).abs() <= 1e-4 * a.abs().max(1e-2);
        name == other && a.iter().map(float).zip(b.iter().map(float)).all(close)
    })
}

#[test]
fn a_step_without_memory_is_repeated_in_halves_and_the_run_reaches_the_same_weights() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let never = AtomicBool::new(false);
    for (i, unroll) in [Mode::Window, Mode::Carry].into_iter().enumerate() {
        let options = TrainOptions {
            data: DataOptions { unroll, ..options().data },
            optimiser: OptimiserOptions { accumulation_steps: 2, ..options().optimiser },
            machine: MachineOptions { resume: true, ..options().machine },
            ..options()
        };
        let out = |name: &str| dir.path().join(format!("{name}{i}"));
        super::run(&corpus, &spec(), &options, &out("whole"), &|_| (), &never).unwrap();

        // Memory runs out in the middle of step 3, with batches of 4: halves are still too large.
        let halved = |name: &str, until: u64| {
            let (told, cancel) = (RefCell::<Vec<_>>::default(), AtomicBool::new(false));
            let listen = |event| match event {
                Event::OutOfMemory { step, micro_batch, .. } => {
                    told.borrow_mut().push((step, micro_batch));
                }
                Event::Step { step, .. } => cancel.store(step >= until, Ordering::Relaxed),
                _ => (),
            };
            let folder = Folder::new(&out(name));
            std::fs::create_dir_all(out(name)).unwrap();
            let machine = on(good_disk());
            let run = Run::prepare(
                machine,
                &corpus,
                &spec(),
                &options,
                folder,
                Watch::of(&listen),
                &cancel,
            );
            let mut run = learning(run.unwrap(), small_device(5.., 1));
            let stopped = run.train().unwrap();
            let report = run.finish(stopped).unwrap();
            (report, told.into_inner())
        };
        let (report, told) = halved("halved", u64::MAX);
        assert_eq!((report.steps, report.micro_batch, told), (12, Some(1), vec![(2, 2), (2, 1)]));
        let last = |name: &str| out(name).join("last.safetensors");
        assert!(alike(&last("halved"), &last("whole")));
        assert!(numbers(&last("halved")) != numbers(&last("whole")));

        // The run is stopped after it halved, and resumed on a device that has enough memory.
        assert_eq!(halved("resumed", 7).0.steps, 7);
        let report = super::run(&corpus, &spec(), &options, &out("resumed"), &|_| (), &never);
        assert_eq!(report.unwrap().micro_batch, Some(1));
        assert!(numbers(&last("resumed")) == numbers(&last("halved")));
    }
}

#[test]
fn a_micro_batch_grows_again_and_a_resumed_run_has_the_bits_of_an_uninterrupted_one() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let growing = |grow_micro_batch| TrainOptions {
        schedule: ScheduleOptions { steps: Some(28), ..options().schedule },
        machine: MachineOptions { resume: true, grow_micro_batch, ..options().machine },
        ..options()
    };
    // Memory is short for a while, from step 3 on. `until` is the step after which a part of the run ends.
    let go = |name: &str, options: &TrainOptions, draws: Range<u64>, until: u64| {
        let (told, cancel) = (RefCell::<Vec<_>>::default(), AtomicBool::new(false));
        let listen = |event| match event {
            Event::OutOfMemory { step, micro_batch, .. } | Event::Grown { step, micro_batch } => {
                told.borrow_mut().push((step, micro_batch));
            }
            Event::Step { step, .. } => cancel.store(step >= until, Ordering::Relaxed),
            _ => (),
        };
        let out = dir.path().join(name);
        std::fs::create_dir_all(&out).unwrap();
        let (machine, folder) = (on(good_disk()), Folder::new(&out));
        let watch = Watch::of(&listen);
        let run = Run::prepare(machine, &corpus, &spec(), options, folder, watch, &cancel);
        let mut run = learning(run.unwrap(), small_device(draws, 2));
        let stopped = run.train().unwrap();
        let report = run.finish(stopped).unwrap();
        (report.micro_batch, told.into_inner(), out.join("last.safetensors"))
    };
    let (windows, told, straight) = go("straight", &growing(true), 2..8, u64::MAX);
    // Half the way to the size that failed, after 16 good steps.
    assert_eq!((windows, told), (Some(3), vec![(2, 2), (18, 3)]));
    for until in [10, 18, 25] {
        let name = format!("until {until}");
        go(&name, &growing(true), 2..8, until);
        let (windows, _, resumed) = go(&name, &growing(true), 0..0, u64::MAX);
        assert_eq!(windows, Some(3), "{name}");
        assert!(numbers(&resumed) == numbers(&straight), "{name}");
    }
    // Without the option it stays halved, and the bits are others.
    let (windows, told, halved) = go("halved", &growing(false), 2..8, u64::MAX);
    assert_eq!((windows, told), (Some(2), vec![(2, 2)]));
    assert!(alike(&halved, &straight) && numbers(&halved) != numbers(&straight));
}

#[test]
fn one_window_that_does_not_fit_ends_the_run_with_the_last_good_state() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let (options, cancel) = (options(), AtomicBool::new(false));
    let run = prepare(&corpus, &options, dir.path(), &cancel);
    let mut run = learning(run, small_device(2.., 0));
    assert_eq!(run.train().unwrap_err().kind(), sconce_tensor::Kind::OutOfMemory);
    assert_eq!(run.progress.step, 2);
}

#[test]
fn a_limit_below_the_plan_holds_from_the_first_step_on_and_after_a_resume() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let spec = spec();
    // A validation would take more memory than these steps.
    let options =
        TrainOptions { data: DataOptions { val_split: 0.0, ..options().data }, ..options() };
    let whole = crate::plan::plan(&spec, &options, Some(&corpus), &NEVER).unwrap();
    assert_eq!(whole.mapped, Some(corpus.games().iter().map(|game| game.bytes).sum()));
    let limit = whole.bytes - 1;
    let limited = TrainOptions {
        machine: MachineOptions { memory_limit: Some(limit), resume: true, ..options.machine },
        ..options
    };
    // Runs to the end if `whole`, otherwise to the first step.
    let go = |name: &str, options: &TrainOptions, whole: bool| {
        let (told, stop) = (RefCell::new(vec![]), AtomicBool::new(false));
        let listen = |event| match event {
            Event::OutOfMemory { step, micro_batch, bytes, memory_limit } => {
                assert_eq!(bytes.is_some(), memory_limit.is_some());
                told.borrow_mut().push((step, micro_batch));
            }
            Event::Step { .. } => stop.store(!whole, Ordering::Relaxed),
            _ => {}
        };
        let out = dir.path().join(name);
        let report = super::run(&corpus, &spec, options, &out, &listen, &stop).unwrap();
        (report.micro_batch, told.into_inner(), out.join("last.safetensors"))
    };
    let (windows, told, straight) = go("straight", &limited, true);
    assert_eq!((windows, told), (Some(2), vec![(0, 2)]));
    // The second part of the run has no limit, and keeps the halved micro-batch.
    go("parts", &limited, false);
    let (windows, _, parts) = go(
        "parts",
        &TrainOptions {
            machine: MachineOptions { memory_limit: None, ..limited.machine },
            ..limited
        },
        true,
    );
    assert_eq!(windows, Some(2));
    assert!(numbers(&parts) == numbers(&straight));
}

#[test]
fn a_halved_run_keeps_its_parts_whatever_is_measured_when_it_resumes() {
    let mut memory = crate::plan::Memory::measure(&spec(), &options(), &NEVER).unwrap();
    memory.validates(false);
    let limit = memory.owners(2).total() - 1;
    let limited = TrainOptions {
        machine: MachineOptions { memory_limit: Some(limit), ..options().machine },
        ..options()
    };
    let windows =
        |before| Room::plan(&spec(), &limited, 4, false, (before, None), &NEVER).unwrap().windows();
    assert_eq!([None, Some(4), Some(2)].map(windows), [1, 1, 2]);
}

#[test]
fn a_step_that_exceeds_the_limit_is_refused_with_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let bytes = crate::plan::plan(&spec(), &options(), Some(&corpus), &NEVER).unwrap().bytes;
    let options = TrainOptions {
        machine: MachineOptions { memory_limit: Some(bytes), ..options().machine },
        ..options()
    };
    let cancel = AtomicBool::new(false);
    let run = prepare(&corpus, &options, dir.path(), &cancel);
    assert_eq!(run.room.windows(), 4);
    // Allocates memory that the plan does not include.
    let waste: Learn = Box::new(move |stepper, task| {
        let wide = stepper.micro_batch().is_none_or(|n| n > 2);
        let more: Vec<u8> = vec![1; if wide { bytes as usize } else { 0 }];
        let learned = stepper.learn(task);
        drop(more);
        learned
    });
    let mut run = learning(run, waste);
    run.step(1e-3).unwrap();
    assert_eq!(run.room.windows(), 2);
}

/// Several CPUs in place of the devices.
fn cpus<const N: usize>(_: &TrainOptions) -> Result<Devices> {
    let sum: Option<Box<dyn AllReduce>> = if N > 1 { Some(Box::new(InOrder)) } else { None };
    Ok(Devices { all: vec![Device::Cpu; N], sum })
}

const CPUS: [fn(&TrainOptions) -> Result<Devices>; 3] = [cpus::<1>, cpus::<2>, cpus::<4>];

#[test]
fn a_run_on_several_devices_equals_that_on_one_and_resumes_on_another_number_of_devices() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    for (i, unroll) in [Mode::Window, Mode::Carry].into_iter().enumerate() {
        let options = TrainOptions {
            data: DataOptions { unroll, ..options().data },
            optimiser: OptimiserOptions { accumulation_steps: 2, ..options().optimiser },
            machine: MachineOptions { resume: true, ..options().machine },
            ..options()
        };
        let go = |name: &str, devices, until: u64| {
            let (losses, cancel) = (RefCell::<Vec<_>>::default(), AtomicBool::new(false));
            let listen = |event| {
                if let Event::Step { step, loss, .. } = event {
                    losses.borrow_mut().push(loss);
                    cancel.store(step >= until, Ordering::Relaxed);
                }
            };
            let out = dir.path().join(format!("{name}{i}"));
            let machine = Machine { disk: good_disk(), devices };
            let report =
                run_on(machine, &corpus, &spec(), &options, &out, Watch::of(&listen), &cancel);
            (report.unwrap(), losses.into_inner(), out.join("last.safetensors"))
        };
        let (one, losses, last) = go("one", CPUS[0], u64::MAX);
        for (name, devices) in [("two", CPUS[1]), ("four", CPUS[2])] {
            let (several, others, others_last) = go(name, devices, u64::MAX);
            assert!(alike(&others_last, &last), "{name}");
            assert!(numbers(&others_last) != numbers(&last));
            assert!(losses.iter().zip(&others).all(|(a, b)| (a - b).abs() < 1e-5), "{others:?}");
            let score = |report: &RunReport| report.policy.as_ref().unwrap().nll;
            assert!((score(&one) - score(&several)).abs() < 1e-5);
            assert_eq!(one.best_step, several.best_step);

            // A run that is stopped and resumed is bit-identical on the same number of devices, and equal up to the
            // order of sums on another number.
            let cut = format!("{name} cut");
            assert_eq!(go(&cut, devices, 5).0.stopped, Stopped::Stopped);
            let (report, _, cut_last) = go(&cut, devices, u64::MAX);
            assert_eq!(report.stopped, Stopped::Finished);
            assert!(numbers(&cut_last) == numbers(&others_last), "{name}");
            let fewer = format!("{name} fewer");
            go(&fewer, devices, 5);
            assert!(alike(&go(&fewer, CPUS[0], u64::MAX).2, &last), "{name}");
        }
    }
}

#[test]
fn a_device_that_fails_ends_the_run_with_its_error_and_the_last_whole_step_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let (options, cancel) = (options(), AtomicBool::new(false));
    type Failure = fn() -> Result<crate::step::Learned>;
    let failures: [(&str, Failure); 2] = [
        ("memory", || Err(Error::not_found("a number"))),
        ("panic", || panic!("a number was not found")),
    ];
    for (name, fail) in failures {
        let (out, machine) =
            (dir.path().join(name), Machine { disk: good_disk(), devices: CPUS[2] });
        std::fs::create_dir_all(&out).unwrap();
        let folder = Folder::new(&out);
        let run =
            Run::prepare(machine, &corpus, &spec(), &options, folder, Watch::of(&|_| ()), &cancel);
        let learn: Learn = Box::new(move |stepper, task| match task.draw == 4 && task.first == 3 {
            true => fail(),
            false => stepper.learn(task),
        });
        let mut run = learning(run.unwrap(), learn);
        let began = Instant::now();
        let error = run.train().unwrap_err().to_string();
        assert!(error.ends_with("not found") && began.elapsed() < Duration::from_secs(20));
        assert_eq!((run.progress.step, run.replicas.torn()), (4, false));
        run.save(None).unwrap();
        assert_eq!(run.saver.finish(&|_| ()).saves.step, Some(4));
    }
}

#[test]
fn a_device_without_memory_halves_the_windows_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path());
    let (options, cancel) = (options(), AtomicBool::new(false));
    let machine = Machine { disk: good_disk(), devices: CPUS[1] };
    let folder = Folder::new(dir.path());
    let run =
        Run::prepare(machine, &corpus, &spec(), &options, folder, Watch::of(&|_| ()), &cancel)
            .unwrap();
    assert_eq!(run.room.windows(), 2);
    let mut run = learning(run, small_device(3.., 1));
    let stopped = run.train().unwrap();
    run.replicas.check().unwrap();
    assert_eq!((run.progress.step, run.room.windows(), stopped), (12, 1, Stopped::Finished));
}
