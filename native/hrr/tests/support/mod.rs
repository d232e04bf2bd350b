//! Golden files, and comparisons.
#![allow(clippy::disallowed_methods)]
#![allow(dead_code)] // each test binary uses a part

use std::path::Path;

use safetensors::SafeTensors;
use sconce_hrr::{Kind, Vectors};
use serde_json::Value;

pub(crate) struct Golden {
    bytes: Vec<u8>,
    tolerance: f64,
    floor: f64,
}

impl Golden {
    pub(crate) fn open(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/golden");
        let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).expect(name);
        let (_, header) = SafeTensors::read_metadata(&bytes).expect(name);
        let metadata = header.metadata().clone().expect("metadata");
        let tolerance: Value = serde_json::from_str(&metadata["tolerance"]).expect("tolerance");
        assert_eq!(tolerance["rule"], "scaled");
        let number = |key: &str| tolerance[key].as_f64().expect(key);
        Golden { tolerance: number("output"), floor: number("floor"), bytes }
    }

    pub(crate) fn f32(&self, name: &str) -> Vec<f32> {
        let tensors = SafeTensors::deserialize(&self.bytes).expect("tensors");
        let words = tensors.tensor(name).expect(name).data().as_chunks().0.to_vec();
        words.into_iter().map(f32::from_le_bytes).collect()
    }

    /// The file's rule `scaled`: the largest error is at most the tolerance times the largest magnitude, plus the floor.
    pub(crate) fn check(&self, name: &str, got: &[f32]) {
        let want = self.f32(&format!("output.{name}"));
        assert_eq!(got.len(), want.len(), "{name}");
        let largest = want.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        let limit = self.tolerance * f64::from(largest) + self.floor;
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            assert!(f64::from((got - want).abs()) <= limit, "{name}[{i}]: {got} is not {want}");
        }
    }
}

pub(crate) fn unitary(count: usize, dimension: usize, seed: u64) -> Vectors {
    Vectors::atoms(count, dimension, seed, Kind::Unitary).unwrap()
}

pub(crate) fn gaussian(count: usize, dimension: usize, seed: u64) -> Vectors {
    Vectors::atoms(count, dimension, seed, Kind::Gaussian).unwrap()
}

pub(crate) fn largest_difference(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).fold(0.0, |most, (a, b)| most.max((a - b).abs()))
}
