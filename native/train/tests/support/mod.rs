//! Reads the golden files, and compares within the tolerance that each of them has.
#![allow(clippy::disallowed_methods)]
#![allow(dead_code)] // each test binary uses a part

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value;

pub(crate) struct Golden {
    bytes: Vec<u8>,
    pub config: Value,
    tolerance: Value,
}

impl Golden {
    pub(crate) fn open(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/golden");
        let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).expect(name);
        let (_, header) = SafeTensors::read_metadata(&bytes).expect(name);
        let metadata = header.metadata().clone().expect("metadata");
        let json = |key: &str| serde_json::from_str(&metadata[key]).expect(key);
        Golden { config: json("config"), tolerance: json("tolerance"), bytes }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).expect("tensors")
    }

    pub(crate) fn f32(&self, name: &str) -> Vec<f32> {
        let tensors = self.tensors();
        let data = tensors.tensor(name).expect(name).data();
        data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("f32"))).collect()
    }

    pub(crate) fn optional(&self, name: &str) -> Option<Vec<f32>> {
        self.tensors().tensor(name).is_ok().then(|| self.f32(name))
    }

    /// Integers of one or eight bytes as labels.
    pub(crate) fn labels(&self, name: &str) -> Vec<f32> {
        let tensors = self.tensors();
        let view = tensors.tensor(name).expect(name);
        let width = view.data().len() / view.shape().iter().product::<usize>();
        view.data().chunks(width).map(|b| f32::from(b[0])).collect()
    }

    /// Integers of eight bytes as indices.
    pub(crate) fn indices(&self, name: &str) -> Vec<usize> {
        let tensors = self.tensors();
        let data = tensors.tensor(name).expect(name).data();
        data.chunks(8).map(|b| u64::from_le_bytes(b.try_into().expect("i64")) as usize).collect()
    }

    /// The file's rule `scaled`: `max |got - want| <= tolerance * max |want| + floor`.
    pub(crate) fn check(&self, name: &str, got: impl IntoIterator<Item = f64>) {
        assert_eq!(self.tolerance["rule"], "scaled");
        let number = |key: &str| self.tolerance[key].as_f64().expect(key);
        let relative = number(if name.starts_with("grad.") { "grad" } else { "output" });
        let (want, got) = (self.f32(name), got.into_iter().collect::<Vec<_>>());
        assert_eq!(got.len(), want.len(), "{name}");
        let scale = want.iter().fold(0.0, |m: f64, w| m.max(f64::from(w.abs())));
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            let error = (g - f64::from(*w)).abs();
            let limit = relative * scale + number("floor");
            assert!(error <= limit, "{name}[{i}]: {g} is not {w} ({error:e} > {limit:e})");
        }
    }
}
