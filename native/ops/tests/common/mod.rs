//! Golden files and the comparison with them; noise, and gradients by finite differences.
#![allow(clippy::disallowed_methods)]
#![allow(dead_code)]

pub mod composed;

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor, Var};
use safetensors::tensor::{Dtype, SafeTensors};
use sconce_ops::Activation;
use sconce_ops::weights::{Builder, Source, Weight, Weights};
use sconce_tensor::rng::Rng;
use sconce_tensor::tape::{self, Gradients};

/// All activations.
pub const ACTIVATIONS: [Activation; 9] = [
    Activation::None,
    Activation::Relu,
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::Silu,
    Activation::Gelu,
    Activation::Softplus,
    Activation::SquaredRelu,
    Activation::GeluErf,
];

/// The card on which tests run too if `SCONCE_TEST_CARD` is set; a missing card is an error.
pub fn card() -> Option<Device> {
    std::env::var_os("SCONCE_TEST_CARD").map(|_| sconce_tensor::device::open(0).unwrap())
}

/// Tolerance of results that a card computes in f32.
const ON_A_CARD: f64 = 1e-4;

pub struct Golden {
    name: String,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
    tolerance: serde_json::Value,
    /// The device of all its tensors.
    device: Device,
}

impl Golden {
    /// Opens a golden file on the CPU.
    pub fn open(name: &str) -> Self {
        Self::on(&Device::Cpu, name)
    }

    /// Opens a golden file on the CPU, and on the card if tests run on one.
    pub fn everywhere(name: &str) -> impl Iterator<Item = Self> {
        [Some(Device::Cpu), card()].into_iter().flatten().map(|device| Self::on(&device, name))
    }

    fn on(device: &Device, name: &str) -> Self {
        // The path is relative to the folder of the package, in which its tests run.
        let path = format!("../../test/golden/{name}.safetensors");
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("a header");
        let tolerance = &header.metadata().as_ref().expect("metadata")["tolerance"];
        let file = SafeTensors::deserialize(&bytes).expect("tensors");
        let tensors = file
            .tensors()
            .into_iter()
            .map(|(key, view)| {
                let numbers = match view.dtype() {
                    Dtype::F32 => view
                        .data()
                        .chunks_exact(4)
                        .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
                        .collect(),
                    Dtype::I64 => view
                        .data()
                        .chunks_exact(8)
                        .map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64)
                        .collect(),
                    Dtype::U8 => view.data().iter().map(|&b| f64::from(b)).collect(),
                    other => panic!("{key}: {other:?}"),
                };
                (key, (view.shape().to_vec(), numbers))
            })
            .collect();
        record();
        Golden {
            name: name.into(),
            tensors,
            tolerance: serde_json::from_str(tolerance).expect("JSON"),
            device: device.clone(),
        }
    }

    pub fn has(&self, key: &str) -> bool {
        self.tensors.contains_key(key)
    }

    pub fn numbers(&self, key: &str) -> &[f64] {
        &self.tensors.get(key).unwrap_or_else(|| panic!("{}: no {key}", self.name)).1
    }

    pub fn shape(&self, key: &str) -> &[usize] {
        self.numbers(key);
        &self.tensors[key].0
    }

    pub fn tensor(&self, key: &str) -> Tensor {
        let data: Vec<f32> = self.numbers(key).iter().map(|&v| v as f32).collect();
        Tensor::from_vec(data, self.shape(key), &self.device).expect("a tensor")
    }

    /// An input as a variable, which has a gradient.
    pub fn variable(&self, key: &str) -> Tensor {
        Var::from_tensor(&self.tensor(key)).expect("a variable").into_inner()
    }

    /// All parameters as variables, under their names in a layer.
    pub fn builder(&self) -> Builder {
        let stored: Weights = self
            .tensors
            .keys()
            .filter_map(|key| key.strip_prefix("param."))
            .map(|name| (name.to_string(), self.tensor(&format!("param.{name}")).into()))
            .collect();
        Builder::new(Source::Stored(stored), true)
    }

    /// Checks the rule "scaled": `|got - want| <= tol * max|want| + floor`.
    pub fn check(&self, key: &str, got: &Tensor) {
        assert_eq!(self.tolerance["rule"], "scaled", "{}", self.name);
        let kind = if key.starts_with("grad.") { "grad" } else { "output" };
        let tolerance = self.tolerance[kind].as_f64().expect("a tolerance");
        // A card adds f32 in another order, so its tolerance is larger.
        let tolerance = if self.device.is_cpu() { tolerance } else { tolerance.max(ON_A_CARD) };
        let floor = self.tolerance["floor"].as_f64().expect("a floor");
        assert_eq!(got.dims(), self.shape(key), "{} {key}", self.name);
        let got = got.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let want = self.numbers(key);
        let scale = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        let worst = got.iter().zip(want).fold(0.0f64, |m, (g, w)| m.max((f64::from(*g) - w).abs()));
        assert!(
            worst <= tolerance * scale + floor,
            "{} {key} on {:?}: off by {worst:.2e} at a scale of {scale:.2e}",
            self.name,
            self.device.location()
        );
    }

    /// `sum of sum(output * cotangent)` over the outputs that have a cotangent.
    pub fn loss(&self, outputs: &[(&str, &Tensor)]) -> Tensor {
        let parts = outputs.iter().map(|(name, y)| {
            (*y * self.tensor(&format!("input.cotangent.{name}"))).unwrap().sum_all().unwrap()
        });
        parts.reduce(|a, b| (a + b).unwrap()).expect("an output")
    }

    /// Compares the gradients of all parameters and of the named inputs.
    pub fn check_gradients(&self, loss: &Tensor, weights: &Weights, inputs: &[(&str, &Tensor)]) {
        let gradients = backward(loss);
        for (name, weight) in weights {
            self.check(&format!("grad.param.{name}"), &gradient(name, weight, &gradients));
        }
        for (name, tensor) in inputs {
            let key = format!("grad.input.{name}");
            let gradient = gradients.get(tensor);
            self.check(
                &key,
                gradient.unwrap_or_else(|| panic!("{}: no gradient for {key}", self.name)),
            );
        }
    }
}

/// Records all passes of this thread for the rest of the test.
pub fn record() {
    Box::leak(Box::new(tape::record()));
}

/// The gradients of a loss.
pub fn backward(loss: &Tensor) -> Gradients {
    tape::backward(loss, loss.ones_like().unwrap()).expect("a backward pass")
}

/// The gradient of a weight after a backward pass.
pub fn gradient(name: &str, weight: &Weight, store: &Gradients) -> Tensor {
    assert!(weight.gather(store).expect("gradients"), "{name}: no gradient");
    let values = weight.read_gradient(|g| g.to_vec()).expect("numbers");
    weight.forget();
    Tensor::from_vec(values, weight.shape(), &Device::Cpu).expect("a tensor")
}

/// Normal numbers.
pub fn noise(shape: &[usize], seed: u64) -> Tensor {
    let rng = Rng::new(seed, "noise", 0);
    let data: Vec<f32> =
        (0..shape.iter().product::<usize>() as u64).map(|i| rng.normal(i)).collect();
    Tensor::from_vec(data, shape, &Device::Cpu).unwrap()
}

pub fn values(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_dtype(DType::F32).unwrap().to_vec1().unwrap()
}

/// The same numbers in f64, which select the composed form.
pub fn wide(t: &Tensor) -> Tensor {
    t.to_dtype(DType::F64).unwrap()
}

/// The largest difference.
pub fn apart(a: &Tensor, b: &Tensor) -> f32 {
    assert_eq!(a.dims(), b.dims());
    values(a).iter().zip(values(b)).fold(0.0, |m, (a, b)| m.max((a - b).abs()))
}

/// Compares the gradients of `sum(f(x) * c)` with central differences.
pub fn differences(inputs: Vec<Tensor>, f: impl Fn(&[Weight]) -> Tensor) {
    let variables: Vec<Weight> =
        inputs.iter().map(|t| Var::from_tensor(t).unwrap().into_inner().into()).collect();
    record();
    let y = f(&variables);
    let c = noise(y.dims(), 77);
    let gradients = backward(&(&y * &c).unwrap().sum_all().unwrap());
    let c = values(&c);
    let at = |inputs: &[Tensor]| {
        let inputs: Vec<Weight> = inputs.iter().cloned().map(Weight::from).collect();
        values(&f(&inputs)).iter().zip(&c).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>()
    };
    for (k, input) in inputs.iter().enumerate() {
        let gradient = values(&gradient(&k.to_string(), &variables[k], &gradients));
        let scale = gradient.iter().fold(0.1f32, |m, v| m.max(v.abs()));
        for i in (0..input.elem_count()).step_by(1 + input.elem_count() / 25) {
            let moved = |by: f32| {
                let mut data = values(input);
                data[i] += by;
                let mut moved = inputs.clone();
                moved[k] = Tensor::from_vec(data, input.shape(), &Device::Cpu).unwrap();
                at(&moved)
            };
            let slope = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            let off = (slope - f64::from(gradient[i])).abs();
            assert!(
                off < 2e-2 * f64::from(scale),
                "input {k}, number {i}: {slope} by differences, the op gives {}",
                gradient[i]
            );
        }
    }
}
