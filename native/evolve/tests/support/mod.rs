//! Golden files in float64, and objectives.
#![allow(clippy::disallowed_methods)]
#![allow(dead_code)] // each test binary uses a part

use std::path::Path;

use safetensors::SafeTensors;
use sconce_evolve::{ArchiveOptions, SpaceOptions};
use serde_json::Value;

pub(crate) struct Golden {
    bytes: Vec<u8>,
    pub(crate) config: Value,
    tolerance: f64,
}

impl Golden {
    pub(crate) fn open(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/golden");
        let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).expect(name);
        let (_, header) = SafeTensors::read_metadata(&bytes).expect(name);
        let metadata = header.metadata().clone().expect("metadata");
        let json = |key: &str| serde_json::from_str::<Value>(&metadata[key]).expect(key);
        let tolerance = json("tolerance");
        assert_eq!(tolerance["rule"], "elementwise");
        Golden {
            config: json("config"),
            tolerance: tolerance["output"].as_f64().expect("output"),
            bytes,
        }
    }

    pub(crate) fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().expect(key) as usize
    }

    fn words(&self, name: &str) -> Vec<[u8; 8]> {
        let tensors = SafeTensors::deserialize(&self.bytes).expect("tensors");
        tensors.tensor(name).expect(name).data().as_chunks().0.to_vec()
    }

    pub(crate) fn f64(&self, name: &str) -> Vec<f64> {
        self.words(name).into_iter().map(f64::from_le_bytes).collect()
    }

    pub(crate) fn i64(&self, name: &str) -> Vec<i64> {
        self.words(name).into_iter().map(i64::from_le_bytes).collect()
    }

    /// The file's rule `elementwise`: `|got - want| <= tolerance * max(1, |want|)`.
    pub(crate) fn check(&self, name: &str, got: &[f64], want: &[f64]) {
        assert_eq!(got.len(), want.len(), "{name}");
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let limit = self.tolerance * want.abs().max(1.0);
            assert!((got - want).abs() <= limit, "{name}[{i}]: {got} is not {want}");
        }
    }
}

pub(crate) fn sphere(x: &[f64]) -> f64 {
    x.iter().map(|v| v * v).sum()
}

pub(crate) fn rosenbrock(x: &[f64]) -> f64 {
    let term = |pair: &[f64]| 100.0 * (pair[1] - pair[0].powi(2)).powi(2) + (1.0 - pair[0]).powi(2);
    x.windows(2).map(term).sum()
}

pub(crate) fn grid(dimensions: &[usize], ranges: &[(f64, f64)], size: usize) -> ArchiveOptions {
    ArchiveOptions {
        space: SpaceOptions::Grid { dimensions: dimensions.into(), ranges: ranges.into() },
        solution_size: size,
        learning_rate: 1.0,
        threshold_min: None,
        offset: 0.0,
    }
}
