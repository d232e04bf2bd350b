//! Training of networks: losses and weights of PyTorch, threads, cancellation, and data that does not fit.

mod support;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_net::training::{Mode, Training};
use sconce_net::{Net, NetSpec, Program, Storage};
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
