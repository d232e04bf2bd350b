//! Files of archives and strategies: safetensors with a manifest and a digest over everything.
//!
//! The metadata has one entry, `sconce.evolve`: JSON of the manifest's text and the SHA-256 of that text, of the names of
//! the tensors in ascending order, and of their bytes.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;

use safetensors::{Dtype, SafeTensors, View};
use sconce_tensor::{Error, Result, digest, fs, header, memory};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The entry of the metadata.
const KEY: &str = "sconce.evolve";

/// A manifest in its form on disk.
#[derive(Serialize, Deserialize)]
struct Signed {
    manifest: String,
    sha256: String,
}

/// A tensor of a file.
#[derive(Clone)]
pub(crate) struct Numbers {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Numbers {
    pub(crate) fn f32(shape: &[usize], values: &[f32]) -> Self {
        Numbers::new(Dtype::F32, shape, values.iter().flat_map(|v| v.to_le_bytes()))
    }

    pub(crate) fn f64(shape: &[usize], values: &[f64]) -> Self {
        Numbers::new(Dtype::F64, shape, values.iter().flat_map(|v| v.to_le_bytes()))
    }

    pub(crate) fn u32(shape: &[usize], values: &[u32]) -> Self {
        Numbers::new(Dtype::U32, shape, values.iter().flat_map(|v| v.to_le_bytes()))
    }

    fn new(dtype: Dtype, shape: &[usize], bytes: impl Iterator<Item = u8>) -> Self {
        Numbers { dtype, shape: shape.to_vec(), bytes: bytes.collect() }
    }
}

impl View for &Numbers {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        self.bytes.as_slice().into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// The tensors of a file by name.
pub(crate) type Tensors = BTreeMap<&'static str, Numbers>;

/// Writes a file: the whole new one, or the old one stays.
pub(crate) fn save(path: &Path, manifest: &impl Serialize, tensors: &Tensors) -> Result<()> {
    let written = |e: &dyn std::fmt::Display| Error::corrupt(path.display().to_string(), e);
    let manifest = serde_json::to_string(manifest).map_err(|e| written(&e))?;
    let own = tensors.iter().map(|(name, own)| (*name, own.bytes.as_slice()));
    let sha256 = signature(&manifest, own);
    let text = serde_json::to_string(&Signed { manifest, sha256 }).map_err(|e| written(&e))?;
    memory::room("the bytes of a file", tensors.values().map(|own| own.bytes.len() as u64).sum())?;
    let metadata = Some(HashMap::from([(KEY.to_string(), text)]));
    let bytes = safetensors::serialize(tensors.iter().map(|(name, own)| (*name, own)), metadata)
        .map_err(|e| written(&e))?;
    // A file that readers would refuse must not replace a readable one.
    header::of_bytes(&bytes).map_err(|e| written(&e))?;
    fs::clear_partials_of(path);
    fs::write_atomic(path, |file| file.write_all(&bytes))
}

fn signature<'a>(manifest: &str, tensors: impl Iterator<Item = (&'a str, &'a [u8])>) -> String {
    let mut parts = vec![manifest.as_bytes()];
    for (name, bytes) in tensors {
        parts.extend([name.as_bytes(), bytes]);
    }
    digest::sha256(parts)
}

/// A file whose digest fits its content.
pub(crate) struct Opened {
    what: String,
    bytes: Vec<u8>,
}

/// Reads a file. `kind` and `version` must be those of its manifest.
pub(crate) fn load<T: DeserializeOwned>(
    path: &Path,
    kind: &str,
    version: u32,
) -> Result<(T, Opened)> {
    let what = path.display().to_string();
    let mut file = fs::open(path)?;
    memory::room(&what, 2 * file.length())?;
    let mut bytes = Vec::new();
    // The values are read only if the header accounts for every byte.
    file.read(file.length().min(header::PREFIX as u64), &mut bytes)?;
    let damaged = |e: String| Error::corrupt(what.clone(), e);
    let length = header::length(&bytes, file.length()).map_err(damaged)?;
    file.read(length as u64, &mut bytes)?;
    let json = bytes.get(header::PREFIX..).unwrap_or_default();
    let metadata = header::parse(json, file.length()).map_err(damaged)?;
    let text = metadata.metadata().as_ref().and_then(|all| all.get(KEY));
    let text = text.ok_or_else(|| damaged(format!("no {kind}: it has no manifest")))?;
    let Signed { manifest, sha256 } =
        serde_json::from_str(text).map_err(|e| damaged(e.to_string()))?;
    // Kind and version come first, because other files have manifests that cannot be parsed here.
    let raw: Value = serde_json::from_str(&manifest).map_err(|e| damaged(e.to_string()))?;
    if raw["kind"] != kind {
        return Err(Error::mismatch(what, format!("a file of kind {kind}"), &raw["kind"]));
    }
    if raw["version"] != version {
        return Err(Error::mismatch(format!("version of {what}"), version, &raw["version"]));
    }
    file.read(file.length() - bytes.len() as u64, &mut bytes)?;
    let opened = Opened { what: what.clone(), bytes };
    {
        let tensors = opened.tensors()?;
        let mut all: Vec<_> = tensors.iter().map(|(name, own)| (name, own.data())).collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        if signature(&manifest, all.into_iter()) != sha256 {
            return Err(damaged("damaged: its bytes are not those that were written".into()));
        }
    }
    let manifest = serde_json::from_value(raw).map_err(|e| damaged(e.to_string()))?;
    Ok((manifest, opened))
}

impl Opened {
    fn tensors(&self) -> Result<SafeTensors<'_>> {
        SafeTensors::deserialize(&self.bytes).map_err(|e| self.corrupt(e))
    }

    /// An error that names the file.
    pub(crate) fn corrupt(&self, reason: impl ToString) -> Error {
        Error::corrupt(self.what.clone(), reason)
    }

    /// The shape of a tensor.
    pub(crate) fn shape(&self, name: &str) -> Result<Vec<usize>> {
        let tensors = self.tensors()?;
        Ok(tensors.tensor(name).map_err(|e| self.corrupt(e))?.shape().to_vec())
    }

    pub(crate) fn f32(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.read(name, Dtype::F32, shape, f32::from_le_bytes)
    }

    pub(crate) fn f64(&self, name: &str, shape: &[usize]) -> Result<Vec<f64>> {
        self.read(name, Dtype::F64, shape, f64::from_le_bytes)
    }

    pub(crate) fn u32(&self, name: &str, shape: &[usize]) -> Result<Vec<u32>> {
        self.read(name, Dtype::U32, shape, u32::from_le_bytes)
    }

    fn read<T, const N: usize>(
        &self,
        name: &str,
        dtype: Dtype,
        shape: &[usize],
        of: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let tensors = self.tensors()?;
        let tensor = tensors.tensor(name).map_err(|e| self.corrupt(e))?;
        if tensor.dtype() != dtype || tensor.shape() != shape {
            let (kind, size) = (tensor.dtype(), tensor.shape());
            return Err(
                self.corrupt(format!("{name} is {kind:?} {size:?}, expected {dtype:?} {shape:?}"))
            );
        }
        let (numbers, _) = tensor.data().as_chunks();
        Ok(numbers.iter().map(|number| of(*number)).collect())
    }
}
