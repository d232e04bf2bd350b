//! Files of archives and strategies: safetensors with a manifest and a digest over everything.
//!
//! The metadata has one entry, `sconce.evolve`: JSON of the manifest's text and the SHA-256 of that text, of the names of
//! the tensors in ascending order, and of their bytes.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensorError, SafeTensors};
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

/// Bytes of a file that are in memory at a time while it is written, a multiple of the bytes of a number.
const CHUNK: usize = 1 << 16;

/// A tensor of a file.
pub(crate) struct Numbers<'a> {
    shape: Vec<usize>,
    values: Values<'a>,
}

enum Values<'a> {
    F32(Cow<'a, [f32]>),
    F64(Cow<'a, [f64]>),
    U32(Cow<'a, [u32]>),
}

impl<'a> Numbers<'a> {
    pub(crate) fn f32(shape: &[usize], values: impl Into<Cow<'a, [f32]>>) -> Self {
        Numbers { shape: shape.to_vec(), values: Values::F32(values.into()) }
    }

    pub(crate) fn f64(shape: &[usize], values: impl Into<Cow<'a, [f64]>>) -> Self {
        Numbers { shape: shape.to_vec(), values: Values::F64(values.into()) }
    }

    pub(crate) fn u32(shape: &[usize], values: impl Into<Cow<'a, [u32]>>) -> Self {
        Numbers { shape: shape.to_vec(), values: Values::U32(values.into()) }
    }

    fn dtype(&self) -> Dtype {
        match &self.values {
            Values::F32(_) => Dtype::F32,
            Values::F64(_) => Dtype::F64,
            Values::U32(_) => Dtype::U32,
        }
    }

    fn bytes(&self) -> usize {
        match &self.values {
            Values::F32(values) => size_of_val(&**values),
            Values::F64(values) => size_of_val(&**values),
            Values::U32(values) => size_of_val(&**values),
        }
    }

    /// The bytes, little-endian, in parts of [`CHUNK`].
    fn chunks(&self) -> Box<dyn Iterator<Item = Vec<u8>> + '_> {
        match &self.values {
            Values::F32(values) => chunks(values, |v| v.to_le_bytes()),
            Values::F64(values) => chunks(values, |v| v.to_le_bytes()),
            Values::U32(values) => chunks(values, |v| v.to_le_bytes()),
        }
    }
}

fn chunks<T: Copy, const N: usize>(
    values: &[T],
    of: fn(T) -> [u8; N],
) -> Box<dyn Iterator<Item = Vec<u8>> + '_> {
    Box::new(values.chunks(CHUNK / N).map(move |values| {
        let mut bytes = vec![0; size_of_val(values)];
        let (places, _) = bytes.as_chunks_mut();
        places.iter_mut().zip(values).for_each(|(place, v)| *place = of(*v));
        bytes
    }))
}

/// The tensors of a file by name.
pub(crate) type Tensors<'a> = BTreeMap<&'static str, Numbers<'a>>;

/// Writes a file: the whole new one, or the old one stays. The tensors are read twice, for the digest and for the file,
/// and never copied as a whole.
pub(crate) fn save(path: &Path, manifest: &impl Serialize, tensors: &Tensors<'_>) -> Result<()> {
    let written = |e: &dyn std::fmt::Display| Error::corrupt(path.display().to_string(), e);
    let manifest = serde_json::to_string(manifest).map_err(|e| written(&e))?;
    let parts = tensors
        .iter()
        .flat_map(|(name, own)| std::iter::once(name.as_bytes().to_vec()).chain(own.chunks()));
    let sha256 = digest::sha256(std::iter::once(manifest.as_bytes().to_vec()).chain(parts));
    let text = serde_json::to_string(&Signed { manifest, sha256 }).map_err(|e| written(&e))?;
    let all = in_file_order(tensors);
    let header = header_of(&all, text).map_err(|e| written(&e))?;
    let length = (header::PREFIX
        + header.len()
        + all.iter().map(|(_, own)| own.bytes()).sum::<usize>()) as u64;
    // A file that readers would refuse must not replace a readable one.
    let prefix = (header.len() as u64).to_le_bytes();
    header::length(&prefix, length)
        .and_then(|_| header::parse(&header, length))
        .map_err(|e| written(&e))?;
    fs::clear_partials_of(path);
    fs::write_atomic(path, |file| {
        file.write_all(&prefix)?;
        file.write_all(&header)?;
        all.iter().flat_map(|(_, own)| own.chunks()).try_for_each(|bytes| file.write_all(&bytes))
    })
}

/// The tensors in the order of safetensors: by the alignment of their type, descending, then by name.
fn in_file_order<'a>(tensors: &'a Tensors<'a>) -> Vec<(&'static str, &'a Numbers<'a>)> {
    let mut all: Vec<_> = tensors.iter().map(|(name, own)| (*name, own)).collect();
    all.sort_by_key(|(_, of)| Reverse(of.dtype()));
    all
}

/// The JSON of a header, padded to a multiple of 8 bytes.
fn header_of(
    all: &[(&'static str, &Numbers<'_>)],
    text: String,
) -> std::result::Result<Vec<u8>, SafeTensorError> {
    let mut begin = 0;
    let infos = all.iter().map(|(name, own)| {
        let data_offsets = (begin, begin + own.bytes());
        begin = data_offsets.1;
        (
            name.to_string(),
            TensorInfo { dtype: own.dtype(), shape: own.shape.clone(), data_offsets },
        )
    });
    let metadata = Metadata::new(Some(HashMap::from([(KEY.to_string(), text)])), infos.collect())?;
    let mut json = serde_json::to_vec(&metadata)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    Ok(json)
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

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn a_file_written_in_parts_has_the_bytes_of_one_written_whole() {
        let count = CHUNK / 4 + 3;
        let narrow: Vec<f32> = (0..count).map(|at| at as f32 / 3.0).collect();
        let wide: Vec<f64> = (0..count).map(|at| at as f64 / 7.0).collect();
        let words: Vec<u32> = (0..count as u32).collect();
        let tensors = Tensors::from([
            ("b", Numbers::f32(&[count], &narrow)),
            ("c", Numbers::f64(&[count, 1], &wide)),
            ("a", Numbers::u32(&[1, count], &words)),
            ("d", Numbers::u32(&[0, 2], vec![])),
        ]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.safetensors");
        save(&path, &serde_json::json!({"kind": "test", "version": 3}), &tensors).unwrap();
        let got = fs::read(&path, 1 << 30).unwrap();
        let (manifest, opened): (Value, Opened) = load(&path, "test", 3).unwrap();
        assert_eq!(manifest["kind"], "test");
        assert_eq!(opened.f64("c", &[count, 1]).unwrap(), wide);
        assert_eq!(opened.f32("b", &[count]).unwrap(), narrow);
        assert_eq!(opened.u32("a", &[1, count]).unwrap(), words);

        let (_, header) = header::of_bytes(&got).unwrap();
        let bytes: HashMap<&str, Vec<u8>> =
            tensors.iter().map(|(name, own)| (*name, own.chunks().flatten().collect())).collect();
        let views = tensors.iter().map(|(name, own)| {
            (*name, TensorView::new(own.dtype(), own.shape.clone(), &bytes[name]).unwrap())
        });
        let want = safetensors::serialize(views, header.metadata().clone()).unwrap();
        assert!(got == want);
    }
}
