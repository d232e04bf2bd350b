//! Training of networks: losses and weights of PyTorch, threads, cancellation, and data that does not fit.

mod support;

use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_net::training::{Mode, Training};
use sconce_net::{Net, NetSpec, Program, Storage};
use sconce_tensor::error::Kind;
use sconce_tensor::fs::read;
use sconce_tensor::tensor::{tensor, to_vec};
use sconce_tensor::{Error, pool};
use sconce_train::nets::{Event, Examples, FitOptions, Fitted, Loss, Stopped, evaluate, fit};
use serde_json::{Value, json};
use support::Golden;

static GO_ON: AtomicBool = AtomicBool::new(false);

fn options(own: Value) -> FitOptions {
    let mut all = json!({
        "loss": "cross_entropy", "batch_size": 12, "epochs": 1, "steps": null, "optimizer": "adamw",
        "weight_decay": null, "beta1": null, "beta2": null, "eps": null, "momentum": null,
        "max_grad_norm": null, "learning_rate": 1e-3, "lr_schedule": "constant", "warmup_steps": 0,
        "val_split": 0.0, "patience": null, "shuffle": false, "drop_last": false, "seed": 0,
    });
    all.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}

/// A golden run: the network, its inputs, its targets and its options.
struct Golds(Golden, Net, Vec<u8>, Vec<u8>, FitOptions);

fn golds(name: &str) -> Golds {
    let golden = Golden::open(name);
    let config = golden.config.clone();
    let spec: NetSpec = serde_json::from_value(config["spec"].clone()).unwrap();
    let form = Net::init(&spec, 0).unwrap();
    let weights = form.weights().iter();
    let weights = weights.map(|weight| {
        let values = golden.f32(&format!("param.{}", weight.name));
        (weight.name.clone(), values, weight.shape.clone())
    });
    let net = Net::from_weights(&spec, weights).unwrap();
    let own = json!({
        "loss": config["loss"], "optimizer": config["optimizer"], "steps": config["steps"],
        "learning_rate": config["lr"], "weight_decay": config["weight_decay"],
        "batch_size": config["batch"],
    });
    let options = options(own);
    let targets = match options.loss {
        Loss::CrossEntropy => {
            let classes = golden.indices("input.target");
            classes.iter().flat_map(|class| (*class as u32).to_le_bytes()).collect()
        }
        _ => bytes(&golden.f32("input.target")),
    };
    let inputs = bytes(&golden.f32("input.x"));
    Golds(golden, net, inputs, targets, options)
}

impl Golds {
    fn examples(&self) -> Examples<'_> {
        let Golds(_, net, inputs, targets, options) = self;
        Examples::new(net, options.loss, &[inputs], targets).unwrap()
    }

    fn fit(&self, options: &FitOptions) -> Fitted {
        fit(&self.1, &self.examples(), options, &|_| (), &GO_ON).unwrap()
    }
}

const NAMES: [&str; 3] = ["net_fit_classes", "net_fit_coder", "net_fit_flags"];

#[test]
fn losses_and_weights_of_100_steps_are_those_of_pytorch() {
    for name in NAMES {
        let golds = golds(name);
        let Fitted { net, report } = golds.fit(&golds.4);
        assert_eq!((report.steps, report.stopped), (100, Stopped::Finished));
        golds.0.check("output.losses", report.losses);
        for weight in net.weights() {
            let values = weight.values.iter().map(|v| f64::from(*v));
            golds.0.check(&format!("output.{}", weight.name), values);
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let before = pool::threads();
    for name in NAMES {
        let golds = golds(name);
        let own = FitOptions { shuffle: true, val_split: 0.25, steps: Some(12), ..golds.4.clone() };
        let [one, three] = [1, 3].map(|threads| {
            pool::set_threads(threads).unwrap();
            let Fitted { net, report } = golds.fit(&own);
            let weights = net.weights().iter().flat_map(|weight| weight.values.clone());
            let bits: Vec<_> = weights.map(f32::to_bits).collect();
            (bits, report.losses, format!("{:?}", report.validation))
        });
        assert!(one == three, "{name}");
    }
    pool::set_threads(before).unwrap();
}

#[test]
fn an_epoch_sees_each_example_once_and_a_seed_decides_the_order() {
    let golds = golds(NAMES[0]);
    let shuffled =
        |seed| FitOptions { shuffle: true, seed, epochs: 2, steps: None, ..golds.4.clone() };
    let [a, b, c] = [shuffled(1), shuffled(1), shuffled(2)].map(|own| golds.fit(&own).report);
    assert_eq!((a.steps, a.epochs), (8, 2));
    assert_eq!(a.losses, b.losses);
    assert!(a.losses != c.losses);
    let own = FitOptions { drop_last: true, epochs: 2, steps: None, ..golds.4.clone() };
    assert_eq!(golds.fit(&own).report.steps, 6);
}

#[test]
fn the_weights_of_the_best_validation_are_returned_and_patience_ends_a_run() {
    let golds = golds(NAMES[0]);
    let own = json!({
        "learning_rate": 0.3, "val_split": 0.3, "epochs": 200, "patience": 3, "loss": "cross_entropy",
    });
    let Fitted { net, report } = golds.fit(&options(own));
    assert_eq!(report.stopped, Stopped::Early);
    let best = report.validation.iter().min_by(|a, b| a.loss.total_cmp(&b.loss)).unwrap();
    assert_eq!(best.step, report.step);
    let after = report.validation.iter().filter(|v| v.step > report.step).count();
    assert_eq!(after, 3);
    assert!(net.weights() != golds.1.weights());
}

#[test]
fn a_cancelled_run_returns_the_weights_so_far() {
    let (golds, cancelled) = (golds(NAMES[1]), AtomicBool::new(false));
    let seen = Cell::new(0);
    let tell = |event: Event| {
        if let Event::Step { step, .. } = event {
            seen.set(step);
            cancelled.store(step == 5, Ordering::Relaxed);
        }
    };
    let Fitted { net, report } =
        fit(&golds.1, &golds.examples(), &golds.4, &tell, &cancelled).unwrap();
    assert_eq!((report.stopped, report.steps, seen.get()), (Stopped::Stopped, 5, 5));
    let five = golds.fit(&FitOptions { steps: Some(5), ..golds.4.clone() });
    assert_eq!(net.weights(), five.net.weights());
}

#[test]
fn a_run_that_is_cancelled_before_its_first_validation_returns_the_last_weights() {
    let (golds, cancelled) = (golds(NAMES[1]), AtomicBool::new(false));
    let tell = |event: Event| {
        if let Event::Step { step, .. } = event {
            cancelled.store(step == 2, Ordering::Relaxed);
        }
    };
    let options = FitOptions { val_split: 0.25, batch_size: 4, ..golds.4.clone() };
    let Fitted { net, report } =
        fit(&golds.1, &golds.examples(), &options, &tell, &cancelled).unwrap();
    assert_eq!((report.stopped, report.steps, report.step), (Stopped::Stopped, 2, 2));
    assert_ne!(net.weights(), golds.1.weights());
}

#[test]
fn a_last_batch_that_a_batch_norm_of_vectors_cannot_normalise_is_refused_at_the_start() {
    let spec: NetSpec = serde_json::from_value(json!({
        "inputs": [{ "name": "x", "shape": [2] }],
        "layers": [{ "kind": "batch_norm", "epsilon": 1e-5, "momentum": 0.1, "activation": "none" }],
    }))
    .unwrap();
    let net = Net::init(&spec, 1).unwrap();
    let numbers = bytes(&[1.0; 10]);
    let examples = Examples::new(&net, Loss::Squared, &[&numbers], &numbers).unwrap();
    let fitted = |own: Value| {
        let options = options(own);
        fit(&net, &examples, &options, &|_event| {}, &GO_ON).map(|fitted| fitted.report.steps)
    };
    let said = fitted(json!({ "loss": "squared", "batch_size": 4 })).unwrap_err().to_string();
    let expected =
        "examples of the last batch: expected two or more for layers.0, or drop_last, got 1";
    assert_eq!(said, expected);
    let dropped = json!({ "loss": "squared", "batch_size": 4, "drop_last": true });
    assert_eq!(fitted(dropped).unwrap(), 1);
    assert_eq!(fitted(json!({ "loss": "squared", "batch_size": 5 })).unwrap(), 1);
}

#[test]
fn a_loss_that_is_not_finite_ends_the_run_with_the_weights_of_the_last_epoch() {
    let golds = golds(NAMES[1]);
    let own = json!({ "loss": "squared", "optimizer": "sgd", "learning_rate": 1e4, "epochs": 100 });
    let Fitted { net, report } = golds.fit(&options(own));
    let failure = report.failure.unwrap();
    assert_eq!((report.stopped, failure.step), (Stopped::Failed, report.steps + 1));
    assert!(!failure.what.is_empty() && !failure.value.parse::<f64>().unwrap().is_finite());
    assert!(report.step <= report.steps);
    assert!(net.weights().iter().all(|weight| weight.values.iter().all(|v| v.is_finite())));
}

#[test]
fn the_packed_form_has_the_loss_of_the_training_form_in_inference() {
    let golds = golds(NAMES[0]);
    let Fitted { net, report } = golds.fit(&golds.4);
    let program = Program::new(&net, Storage::F32).unwrap();
    let found = evaluate(&program, &golds.examples(), &GO_ON).unwrap();
    assert!(found.loss < report.losses[0], "{found:?}");
    let x = tensor(golds.0.f32("input.x"), (40, 1, 8, 8)).unwrap();
    let training = Training::new(&net).unwrap();
    let logits = training.forward(&[x], Mode::Inference).unwrap();
    let (mut loss, mut correct) = (0.0, 0.0);
    let classes = golds.0.indices("input.target");
    for (logits, class) in to_vec(&logits).unwrap().chunks(4).zip(classes) {
        let sum: f64 = logits.iter().map(|y| f64::from(*y).exp()).sum();
        loss += (sum.ln() - f64::from(logits[class])) / 40.0;
        correct += f64::from(logits.iter().all(|y| *y <= logits[class])) / 40.0;
    }
    assert!((found.loss - loss).abs() < 1e-5, "{found:?} {loss}");
    assert!((found.accuracy.unwrap() - correct).abs() < 1e-9, "{found:?} {correct}");
    let cancelled = evaluate(&program, &golds.examples(), &AtomicBool::new(true));
    assert!(matches!(cancelled, Err(Error::Cancelled)));
}

#[test]
fn examples_that_do_not_fit_are_named() {
    let golds = golds(NAMES[0]);
    let (x, targets, loss) = (&golds.2[..], &golds.3[..], golds.4.loss);
    let error = |x: &[u8], targets: &[u8]| {
        let examples = Examples::new(&golds.1, loss, &[x], targets);
        examples.map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(error(&x[..6], targets), "input input: expected numbers of 4 bytes, got 6 bytes");
    assert_eq!(error(&x[..4], targets), "input input: expected a multiple of 64 numbers, got 1");
    assert_eq!(error(&[], targets), "input input: expected an example or more, got none");
    assert_eq!(error(x, &targets[4..]), "targets: expected 40 for 40 examples, got 39");
    let mut wrong = targets.to_vec();
    wrong[12] = 4;
    assert_eq!(error(x, &wrong), "target of example 3: 4 is outside 0..3");
    let mut wrong = x.to_vec();
    wrong[256..260].copy_from_slice(&f32::NAN.to_le_bytes());
    assert_eq!(error(&wrong, targets), "input input of example 1 is not finite (NaN)");
}

#[test]
fn options_that_do_not_fit_are_named() {
    let golds = golds(NAMES[0]);
    let error = |own: Value| {
        let found = fit(&golds.1, &golds.examples(), &options(own), &|_| (), &GO_ON);
        found.map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        error(json!({ "momentum": 0.5 })),
        "momentum: expected an optimizer that has one, got adamw"
    );
    assert_eq!(
        error(json!({ "batch_size": 41, "drop_last": true })),
        "examples for training: expected 41 or more for a batch, got 40"
    );
}

/// The bits of a run's weights, its losses and its validations.
fn found(fitted: &Fitted) -> (Vec<u32>, Vec<f64>, String) {
    let Fitted { net, report } = fitted;
    let weights = net.weights().iter().flat_map(|weight| &weight.values);
    let about = format!("{:?} {} {}", report.validation, report.step, report.epochs);
    (weights.map(|v| v.to_bits()).collect(), report.losses.clone(), about)
}

/// A run that stops after each number of steps and is resumed.
fn interrupted(golds: &Golds, options: &FitOptions, path: &Path, stops: &[u64]) -> Fitted {
    let mut own = FitOptions { checkpoint: Some(path.into()), ..options.clone() };
    for stop in stops {
        let cancelled = AtomicBool::new(false);
        let tell = |event| {
            if let Event::Step { step, .. } = event
                && step == *stop
            {
                cancelled.store(true, Ordering::Relaxed);
            }
        };
        let Fitted { report, .. } =
            fit(&golds.1, &golds.examples(), &own, &tell, &cancelled).unwrap();
        assert_eq!((report.stopped, report.steps), (Stopped::Stopped, *stop));
        own.resume = true;
    }
    golds.fit(&own)
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    for (i, name) in NAMES.iter().enumerate() {
        let golds = golds(name);
        let options = FitOptions {
            shuffle: true,
            val_split: 0.2,
            steps: Some(31),
            lr_schedule: sconce_train::nets::Decay::Cosine,
            warmup_steps: 3,
            seed: 5,
            ..golds.4.clone()
        };
        let plain = FitOptions { val_split: 0.0, ..options.clone() };
        for (j, options) in [options, plain].iter().enumerate() {
            let whole = found(&golds.fit(options));
            let path = folder.path().join(format!("{i}-{j}.safetensors"));
            let fitted = interrupted(&golds, options, &path, &[1, 2, 9, 16, 30]);
            assert!(found(&fitted) == whole, "{name}");
            // A run that is over stays as it is.
            let over = FitOptions { checkpoint: Some(path), resume: true, ..options.clone() };
            assert!(found(&golds.fit(&over)) == whole, "{name}");
        }
    }
}

#[test]
fn a_run_that_is_over_can_be_lengthened_and_one_that_waits_ends_early_again() {
    let (golds, folder) = (golds(NAMES[0]), tempfile::tempdir().unwrap());
    let path = folder.path().join("run.safetensors");
    let own = FitOptions { shuffle: true, epochs: 5, steps: None, ..golds.4.clone() };
    let whole = found(&golds.fit(&own));
    let first = FitOptions { epochs: 2, checkpoint: Some(path.clone()), ..own.clone() };
    golds.fit(&first);
    let longer = FitOptions { resume: true, epochs: 5, ..first };
    assert!(found(&golds.fit(&longer)) == whole);
    let path = folder.path().join("waits.safetensors");
    let waits = FitOptions {
        patience: Some(2),
        val_split: 0.3,
        learning_rate: 10.0,
        epochs: 50,
        checkpoint: Some(path),
        ..own
    };
    let early = golds.fit(&waits);
    assert_eq!(early.report.stopped, Stopped::Early);
    let again = golds.fit(&FitOptions { resume: true, ..waits });
    assert_eq!((again.report.stopped, found(&again)), (Stopped::Early, found(&early)));
}

#[test]
fn a_state_that_cannot_be_resumed_is_named_and_stays() {
    let (golds, folder) = (golds(NAMES[0]), tempfile::tempdir().unwrap());
    let path = folder.path().join("run.safetensors");
    let own = FitOptions { steps: Some(6), checkpoint: Some(path.clone()), ..golds.4.clone() };
    let run = |golds: &Golds, options: &FitOptions| {
        fit(&golds.1, &golds.examples(), options, &|_| (), &GO_ON).map_err(|error| {
            assert!(error.to_string().contains("run.safetensors"), "{error}");
            error
        })
    };
    let resumed = FitOptions { resume: true, ..own.clone() };
    assert_eq!(run(&golds, &resumed).unwrap_err().kind(), Kind::NotFound);
    run(&golds, &own).unwrap();
    let bytes = read(&path, u64::MAX).unwrap();
    // A new run does not replace the state of another one.
    assert_eq!(run(&golds, &own).unwrap_err().kind(), Kind::Mismatch);
    let other = FitOptions { batch_size: 7, seed: 3, ..resumed.clone() };
    let error = run(&golds, &other).unwrap_err();
    assert_eq!(error.kind(), Kind::Mismatch);
    let said = error.to_string();
    assert!(
        said.contains("batch_size") && said.contains("seed") && !said.contains("steps"),
        "{said}"
    );
    let Golds(golden, net, inputs, targets, options) = golds;
    let mut changed = inputs.clone();
    changed[0] ^= 1;
    let others = Golds(golden, net, changed, targets, options);
    let said = run(&others, &resumed).unwrap_err().to_string();
    assert!(said.starts_with("examples of "), "{said}");
    let Golds(golden, net, _, targets, options) = others;
    let golds = Golds(golden, net, inputs, targets, options);
    assert_eq!(read(&path, u64::MAX).unwrap(), bytes);
    // Any changed, missing or added byte is found.
    for at in (0..bytes.len()).step_by(bytes.len() / 97) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        std::fs::write(&path, damaged).unwrap();
        assert!(matches!(run(&golds, &resumed).unwrap_err().kind(), Kind::Corrupt), "{at}");
        std::fs::write(&path, &bytes[..at]).unwrap();
        assert_eq!(run(&golds, &resumed).unwrap_err().kind(), Kind::Corrupt, "{at}");
    }
    golds.1.save(&path).unwrap();
    let said = run(&golds, &resumed).unwrap_err().to_string();
    assert!(said.contains("a safetensors file without a run"), "{said}");
    std::fs::write(&path, bytes).unwrap();
    run(&golds, &resumed).unwrap();
}

#[test]
fn a_state_that_cannot_be_written_is_an_error_before_the_first_step() {
    let (golds, folder) = (golds(NAMES[0]), tempfile::tempdir().unwrap());
    let path = folder.path().join("nowhere").join("run.safetensors");
    let own = FitOptions { checkpoint: Some(path), ..golds.4.clone() };
    let steps = Cell::new(0);
    let tell = |event| {
        if matches!(event, Event::Step { .. }) {
            steps.set(steps.get() + 1);
        }
    };
    let error = fit(&golds.1, &golds.examples(), &own, &tell, &GO_ON).unwrap_err();
    assert_eq!((error.kind(), steps.get()), (Kind::NotFound, 0));
}

/// A run that is killed leaves what the file holds at that moment.
#[test]
fn the_file_has_a_whole_state_at_every_moment() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("run.safetensors"), folder.path().join("copy"));
    let own = |golds: &Golds, path: &Path| FitOptions {
        epochs: 40,
        steps: None,
        val_split: 0.3,
        checkpoint: Some(path.into()),
        ..golds.4.clone()
    };
    let mut seen = 0;
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let golds = golds(NAMES[0]);
            golds.fit(&own(&golds, &path));
        });
        let golds = golds(NAMES[0]);
        while !run.is_finished() {
            let Ok(bytes) = read(&path, u64::MAX) else { continue };
            std::fs::write(&copy, bytes).unwrap();
            golds.fit(&FitOptions { resume: true, steps: Some(1), ..own(&golds, &copy) });
            seen += 1;
        }
    });
    assert!(seen > 0);
    let names = std::fs::read_dir(folder.path()).unwrap();
    assert_eq!(names.count(), 2, "a save left a file beside its own");
}
