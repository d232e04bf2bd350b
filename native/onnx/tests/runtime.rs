//! Exported models in ONNX Runtime beside the policies. Runs if python3 has the packages onnxruntime and numpy.
#![allow(clippy::disallowed_methods)]

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use sconce_nn::Policy;
use sconce_nn::backbone::{Context, State};
use sconce_nn::policy::Frames;
use sconce_onnx::{Form, Format, Model};
use sconce_ops::weights::{Coded, Weight};
use sconce_tensor::tensor::{tensor as matrix, to_vec};
use support::{Case, cases, frames, reader};

/// Largest difference to a policy, relative to the largest value of the output.
const TOLERANCE: f32 = 1e-5;

const FORMS: [(&str, Form); 3] = [
    ("step", Form::Step),
    ("window", Form::Window { state: false }),
    ("window_with_state", Form::Window { state: true }),
];

/// Numbers of games and of frames.
const STEPS: [[usize; 2]; 3] = [[1, 1], [3, 1], [8, 1]];
const WINDOWS: [[usize; 2]; 5] = [[1, 1], [1, 30], [5, 7], [2, 61], [2, 512]];

/// Outputs of a policy by name, in a folder with the inputs.
struct Run {
    about: String,
    folder: PathBuf,
    outputs: BTreeMap<String, Vec<f32>>,
}

fn has_runtime() -> bool {
    let check = Command::new("python3").args(["-c", "import numpy, onnxruntime"]).output();
    check.is_ok_and(|done| done.status.success())
}

/// The state of games that have seen different numbers of frames, up to twice as many as a small window has.
fn state(policy: &Policy, batch: usize) -> State {
    let of_game = |game: usize| {
        let state = policy.zero_state(1).unwrap();
        let seen = [0, 3, 17, 130][game % 4];
        if seen == 0 {
            return state;
        }
        let (frames, labels) = frames(policy.spec(), 1, seen, 70 + game as u64);
        policy.forward(&frames, Some(&labels), &state, &Context::default()).unwrap().1
    };
    State::joined(&(0..batch).map(of_game).collect::<Vec<_>>()).unwrap()
}

fn write(folder: &Path, name: &str, bytes: impl IntoIterator<Item = u8>) {
    std::fs::write(folder.join(name), bytes.into_iter().collect::<Vec<_>>()).unwrap();
}

fn prepare(case: &Case, model: &Model, form: Form, folder: PathBuf, sizes: [usize; 2]) -> Run {
    let (policy, [batch, time]) = (&case.policy, sizes);
    let spec = policy.spec();
    let (given, labels) = frames(spec, batch, time, 9);
    let folder = folder.join(format!("{batch}x{time}"));
    std::fs::create_dir_all(&folder).unwrap();
    let stateful = form != Form::Window { state: false };
    let before = if stateful { state(policy, batch) } else { policy.zero_state(batch).unwrap() };
    let f32s = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>();
    let mut parts = before.0.iter();
    for input in &model.inputs {
        let bytes = match input.name.as_str() {
            "continuous" => f32s(&given.continuous),
            "ids" => given.ids.iter().flat_map(|id| i64::from(*id).to_le_bytes()).collect(),
            "labels" => f32s(&labels),
            "previous" => f32s(&given.previous),
            _state => f32s(&to_vec(parts.next().unwrap()).unwrap()),
        };
        write(&folder, &format!("{}.bin", input.name), bytes);
    }
    assert_eq!(parts.next().is_none(), stateful || before.0.is_empty());
    let mut normalised = given.continuous;
    spec.embedding.normalise(&mut normalised);
    let given = Frames { continuous: normalised, ..given };
    let (logits, after) =
        policy.forward(&given, Some(&labels), &before, &Context::default()).unwrap();
    let values = std::iter::once(&logits).chain(&after.0).map(|of| to_vec(of).unwrap());
    let outputs = model.outputs.iter().map(|output| output.name.clone()).zip(values).collect();
    Run { about: format!("{} {form:?} {batch}x{time}", case.name), folder, outputs }
}

/// The policy whose matrices have the values that a model of codes has for them. Codes of such values are the same codes.
fn of_codes(case: &Case) -> Case {
    let model = Model::new(&case.policy, Form::Step, Format::Int8).unwrap();
    let tensors = reader::model(model.bytes()).graph.tensors;
    let tensor = |name: &str| tensors.iter().find(|tensor| tensor.name == name).unwrap();
    let mut count = 0;
    let weight = |(name, weight): (&String, &Weight)| {
        let codes = tensor(name);
        if codes.kind != 3 {
            return (name.clone(), weight.clone());
        }
        count += 1;
        let scales = tensor(&format!("{name}.scale")).elements.as_chunks::<4>().0;
        let rows = codes.elements.chunks(codes.elements.len() / scales.len());
        let numbers = scales.iter().zip(rows).flat_map(|(scale, codes)| {
            let scale = f32::from_le_bytes(*scale);
            codes.iter().map(move |code| scale * f32::from(*code as i8))
        });
        (name.clone(), Weight::from(matrix(numbers.collect(), weight.dims()).unwrap()))
    };
    let weights = case.policy.weights().iter().map(weight).collect();
    assert!(count > 2, "{} has {count} matrices of codes", case.name);
    let policy = Policy::from_weights(case.policy.spec(), weights).unwrap();
    Case { name: format!("{}_int8", case.name), policy }
}

/// The policy with codes of 4 bits in groups of 32 inputs.
fn stored(case: &Case) -> Case {
    let weight = |(name, weight): (&String, &Weight)| {
        let own = match weight.dims() {
            [_, inputs] if inputs.is_multiple_of(32) && !name.contains("embedding") => {
                let numbers = to_vec(weight).unwrap();
                Weight::coded(Coded::nearest(4, &numbers, *inputs, 32).unwrap()).unwrap()
            }
            _ => weight.clone(),
        };
        (name.clone(), own)
    };
    let weights = case.policy.weights().iter().map(weight).collect();
    let policy = Policy::from_weights(case.policy.spec(), weights).unwrap();
    assert_eq!(policy.bits(), 4);
    let model = Model::new(&policy, Form::Step, Format::Stored).unwrap();
    let tensors = reader::model(model.bytes()).graph.tensors;
    assert!(tensors.iter().filter(|tensor| tensor.kind == 3).count() > 2, "{}", case.name);
    Case { name: format!("{}_int4", case.name), policy }
}

fn compare(run: &Run) -> f32 {
    let of = |(name, want): (&String, &Vec<f32>)| {
        let bytes = std::fs::read(run.folder.join(format!("{name}.out"))).unwrap();
        let got = bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four));
        assert_eq!(got.len(), want.len(), "{} {name}", run.about);
        let largest = want.iter().fold(f32::MIN_POSITIVE, |most, v| most.max(v.abs()));
        let apart = |(got, want): (f32, &f32)| match got.is_finite() {
            true => (got - want).abs(),
            false => f32::INFINITY,
        };
        let apart = got.zip(want).map(apart).fold(0.0f32, f32::max);
        assert!(apart <= TOLERANCE * largest, "{} {name}: {}", run.about, apart / largest);
        apart / largest
    };
    run.outputs.iter().map(of).fold(0.0, f32::max)
}

#[test]
fn models_have_the_logits_and_states_of_the_policies() {
    if !has_runtime() {
        eprintln!("skipped: python3 has no onnxruntime");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut runs = vec![];
    let all = cases().into_iter().flat_map(|case| match case.name.starts_with("wide") {
        true => vec![
            (of_codes(&case), Format::Int8),
            (stored(&case), Format::Stored),
            (case, Format::F32),
        ],
        false => vec![(case, Format::F32)],
    });
    for (case, format) in all {
        for (name, form) in FORMS {
            let model = Model::new(&case.policy, form, format).unwrap();
            let folder = folder.path().join(format!("{}_{name}", case.name));
            std::fs::create_dir_all(&folder).unwrap();
            model.write(&folder.join("model.onnx")).unwrap();
            let sizes = if form == Form::Step { &STEPS[..] } else { &WINDOWS[..] };
            for sizes in sizes {
                runs.push((
                    case.name.clone(),
                    prepare(&case, &model, form, folder.clone(), *sizes),
                ));
            }
        }
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/support/onnx.py");
    let done = Command::new("python3").arg(script).arg(folder.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let mut largest: BTreeMap<String, f32> = BTreeMap::new();
    for (name, run) in &runs {
        let apart = compare(run);
        let most = largest.entry(name.clone()).or_default();
        *most = most.max(apart);
    }
    eprintln!("{largest:#?}");
}
