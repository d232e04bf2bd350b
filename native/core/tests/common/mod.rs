//! Reads golden files: tensors, tolerances, and the comparison they ask for.
#![allow(dead_code)]

use std::collections::BTreeMap;

use candle_core::{Device, Tensor, Var};
use safetensors::tensor::{Dtype, SafeTensors};
use sconce_core::weights::{Builder, Source, Weights};

pub struct Golden {
    name: String,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f64>)>,
    tolerance: serde_json::Value,
}

impl Golden {
    pub fn open(name: &str) -> Self {
        let path = format!("{}/../../test/golden/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
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
        Golden {
            name: name.into(),
            tensors,
            tolerance: serde_json::from_str(tolerance).expect("JSON"),
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
        Tensor::from_vec(data, self.shape(key), &Device::Cpu).expect("a tensor")
    }

    /// An input as a variable, so that its gradient can be asked for.
    pub fn variable(&self, key: &str) -> Tensor {
        Var::from_tensor(&self.tensor(key)).expect("a variable").into_inner()
    }

    /// All parameters, as variables, under the names that a layer asks for.
    pub fn builder(&self) -> Builder {
        let stored: Weights = self
            .tensors
            .keys()
            .filter_map(|key| key.strip_prefix("param."))
            .map(|name| (name.to_string(), self.tensor(&format!("param.{name}"))))
            .collect();
        Builder::new(Source::Stored(stored), true)
    }

    /// `|got - want| <= tol * max|want| + floor`, the rule "scaled".
    pub fn check(&self, key: &str, got: &Tensor) {
        assert_eq!(self.tolerance["rule"], "scaled", "{}", self.name);
        let kind = if key.starts_with("grad.") { "grad" } else { "output" };
        let tolerance = self.tolerance[kind].as_f64().expect("a tolerance");
        let floor = self.tolerance["floor"].as_f64().expect("a floor");
        assert_eq!(got.dims(), self.shape(key), "{} {key}", self.name);
        let got = got.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let want = self.numbers(key);
        let scale = want.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        let worst = got.iter().zip(want).fold(0.0f64, |m, (g, w)| m.max((f64::from(*g) - w).abs()));
        assert!(
            worst <= tolerance * scale + floor,
            "{} {key}: off by {worst:.2e} at a scale of {scale:.2e}",
            self.name
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
        let gradients = loss.backward().expect("a backward pass");
        let named = weights.iter().map(|(n, t)| (format!("grad.param.{n}"), t));
        let inputs = inputs.iter().map(|(n, t)| (format!("grad.input.{n}"), *t));
        for (key, tensor) in named.chain(inputs) {
            let gradient =
                gradients.get(tensor).unwrap_or_else(|| panic!("{}: none for {key}", self.name));
            self.check(&key, gradient);
        }
    }
}
