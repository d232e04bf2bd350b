//! A policy as one safetensors file, with its Spec and a manifest in the metadata.
//!
//! A file to go on training from holds the optimiser's state beside the weights, under names that
//! begin with `optimiser.`.
//!
//! The metadata has a SHA-256 of itself and of all numbers: a bit that changed since is found.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::io::Write;
use std::iter;
use std::path::Path;

use safetensors::tensor::{Dtype, Metadata, TensorInfo, View};
use sconce_tensor::simd::non_finite;
use sconce_tensor::tensor::{tensor, to_vec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::sha256;
use crate::weights::{Weight, Weights};
use crate::{Error, Result, Spec, fs, header, memory};

/// Readers refuse files of a later version.
pub const VERSION: u32 = 1;
const KEY: &str = "sconce";

/// What stands in the metadata beside the weights.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manifest {
    pub version: u32,
    pub spec: Spec,
    /// What the writer wants to tell: step, metrics, what the policy was trained for.
    #[serde(default)]
    pub notes: Value,
    /// All that a run needs to go on, and nobody else.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub run: Value,
}

impl Manifest {
    pub fn new(spec: Spec, notes: Value) -> Self {
        Manifest { version: VERSION, spec, notes, run: Value::Null }
    }
}

/// The manifest as it is written.
#[derive(Serialize)]
struct Signed<'a> {
    #[serde(flatten)]
    manifest: &'a Manifest,
    /// Of this text with none in its place, and of the numbers behind it.
    sha256: &'a str,
}

fn signed(manifest: &Manifest, sha256: &str) -> Result<String> {
    let signed = Signed { manifest, sha256 };
    serde_json::to_string(&signed).map_err(|e| Error::corrupt("manifest", e))
}

/// Of the manifest, the tensors' names in their order, and their numbers. Shapes have to fit these anyhow.
fn digest<'a>(
    unsigned: &'a str,
    names: impl Iterator<Item = &'a String>,
    numbers: impl Iterator<Item = Cow<'a, [u8]>>,
) -> String {
    let names = names.map(|name| name.as_bytes().into());
    sha256(iter::once(unsigned.as_bytes().into()).chain(names).chain(numbers))
}

/// What a file holds.
#[derive(Debug)]
pub struct Checkpoint {
    pub manifest: Manifest,
    pub weights: Weights,
    pub optimiser: Optimiser,
}

/// The optimiser's numbers by name; empty in a file that is only to be played.
pub type Optimiser = BTreeMap<String, Vec<f32>>;

const OPTIMISER: &str = "optimiser.";

/// All of a file in memory of its own: who goes on changing the weights does not change it.
#[derive(Debug, Clone)]
pub struct Snapshot {
    manifest: Manifest,
    tensors: Vec<(String, Numbers)>,
}

#[derive(Debug, Clone)]
struct Numbers {
    dims: Vec<usize>,
    values: Vec<f32>,
}

impl Snapshot {
    pub fn new(manifest: Manifest, weights: &Weights, optimiser: Optimiser) -> Result<Self> {
        let weight = |(name, t): (&String, &Weight)| {
            Ok((name.clone(), Numbers { dims: t.dims().to_vec(), values: to_vec(t)? }))
        };
        let mut tensors =
            memory::caught(|| weights.iter().map(weight).collect::<Result<Vec<_>>>())?;
        tensors.extend(optimiser.into_iter().map(|(name, values)| {
            (format!("{OPTIMISER}{name}"), Numbers { dims: vec![values.len()], values })
        }));
        Ok(Snapshot { manifest, tensors })
    }

    /// The same with what a run needs to go on.
    pub fn of_run(mut self, run: Value) -> Self {
        self.manifest.run = run;
        self
    }

    /// The bytes of the file. A number that is not finite is an error: [`load`] would refuse the file.
    pub fn encode(&self) -> Result<Vec<u8>> {
        for (name, numbers) in &self.tensors {
            if let Some(value) = non_finite(&numbers.values) {
                return Err(Error::NonFinite { what: name.clone(), value: value.into() });
            }
        }
        let mut tensors: Vec<_> = self.tensors.iter().map(|(name, t)| (name, t)).collect();
        // Tensors of one type stand in the file in the order of their names.
        tensors.sort_by_key(|(name, _)| *name);
        let bytes: usize = self.tensors.iter().map(|(_, t)| size_of_val(t.values.as_slice())).sum();
        memory::room("the bytes of a checkpoint", bytes as u64)?;
        memory::caught(|| self.encoded(&tensors))
    }

    fn encoded(&self, tensors: &[(&String, &Numbers)]) -> Result<Vec<u8>> {
        let unsigned = signed(&self.manifest, "")?;
        let names = tensors.iter().map(|(name, _)| *name);
        let sha256 = digest(&unsigned, names, tensors.iter().map(|(_, numbers)| numbers.data()));
        let text = signed(&self.manifest, &sha256)?;
        let metadata = Some(HashMap::from([(KEY.to_string(), text)]));
        let numbers = tensors.iter().map(|(_, numbers)| numbers.data_len()).sum();
        memory::granted(numbers);
        let bytes = safetensors::serialize(tensors.iter().copied(), metadata)
            .map_err(|e| Error::corrupt("checkpoint", e))?;
        // What a reader would refuse does not replace a file that can be read.
        header::of_bytes(&bytes).map_err(|e| Error::corrupt("checkpoint", e))?;
        Ok(bytes)
    }

    /// Writes beside `path`, syncs and renames. What a killed save left there is removed.
    pub fn save(&self, path: &Path) -> Result<()> {
        let bytes = self.encode()?;
        fs::clear_partials_of(path);
        fs::write_atomic(path, |file| file.write_all(&bytes))
    }

    /// The policy's part.
    pub fn into_weights(self) -> Result<(Manifest, Weights)> {
        let own = self.tensors.into_iter().filter(|(name, _)| !name.starts_with(OPTIMISER));
        let weights = own
            .map(|(name, Numbers { dims, values })| Ok((name, tensor(values, dims)?.into())))
            .collect::<Result<_>>()?;
        Ok((self.manifest, weights))
    }
}

impl View for &Numbers {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.dims
    }

    fn data(&self) -> Cow<'_, [u8]> {
        bytes(&self.values).into()
    }

    fn data_len(&self) -> usize {
        size_of_val(self.values.as_slice())
    }
}

/// Reads a checkpoint: the header first, and the numbers only if the header accounts for every byte of the
/// file. All numbers must be finite and those that were written, which of files without a digest is not
/// known.
pub fn load(path: &Path) -> Result<Checkpoint> {
    decode(&path.display().to_string(), &whole(path)?)
}

/// Reads the policy of a checkpoint: the optimiser's numbers are left where they are.
pub fn load_policy(path: &Path) -> Result<(Manifest, Weights)> {
    let (what, bytes) = (path.display().to_string(), whole(path)?);
    let (manifest, weights, _) = decode_if(&what, &bytes, |name| !name.starts_with(OPTIMISER))?;
    Ok((manifest, weights))
}

/// The manifest, without reading the numbers.
pub fn manifest(path: &Path) -> Result<Manifest> {
    let what = path.display().to_string();
    let (_, header, _) = opened(path)?;
    let (_, raw) = metadata(&what, &header)?;
    parse(&what, raw)
}

/// The bytes of a file whose header accounts for all of them.
fn whole(path: &Path) -> Result<Vec<u8>> {
    let (mut file, header, mut bytes) = opened(path)?;
    // A file of another format, or of a later version, is refused before its numbers are read.
    let what = path.display().to_string();
    metadata(&what, &header)?;
    // The bytes, and the numbers that are made of them.
    memory::room(&what, file.length().saturating_mul(2))?;
    file.read(file.length() - bytes.len() as u64, &mut bytes)?;
    Ok(bytes)
}

/// A file after its header, what the header says, and the bytes read so far.
fn opened(path: &Path) -> Result<(fs::Regular, Metadata, Vec<u8>)> {
    let what = path.display().to_string();
    let mut file = fs::open(path)?;
    let mut bytes = Vec::new();
    file.read(file.length().min(header::PREFIX as u64), &mut bytes)?;
    let length = header::length(&bytes, file.length()).map_err(|e| damaged(&what, e))?;
    file.read(length as u64, &mut bytes)?;
    let json = bytes.get(header::PREFIX..).unwrap_or_default();
    let header = header::parse(json, file.length()).map_err(|e| damaged(&what, e))?;
    Ok((file, header, bytes))
}

pub fn decode(what: &str, bytes: &[u8]) -> Result<Checkpoint> {
    let (manifest, weights, optimiser) = decode_if(what, bytes, |_| true)?;
    Ok(Checkpoint { manifest, weights, optimiser })
}

type Parts = (Manifest, Weights, Optimiser);

fn decode_if(what: &str, bytes: &[u8], wanted: impl Fn(&str) -> bool) -> Result<Parts> {
    let (length, header) = header::of_bytes(bytes).map_err(|e| damaged(what, e))?;
    let (text, raw) = metadata(what, &header)?;
    let body = bytes.get(header::PREFIX + length..).unwrap_or_default();
    let mut names = header.offset_keys();
    names.sort();
    check(what, (text, &raw), &names, body)?;
    let manifest = parse(what, raw)?;
    let (mut weights, mut optimiser) = (Weights::new(), Optimiser::new());
    for (name, info) in header.tensors().into_iter().filter(|(name, _)| wanted(name)) {
        let numbers = read(what, &name, info, body)?;
        match name.strip_prefix(OPTIMISER) {
            Some(name) => drop(optimiser.insert(name.to_string(), numbers)),
            None => drop(weights.insert(name, tensor(numbers, &*info.shape)?.into())),
        }
    }
    Ok((manifest, weights, optimiser))
}

/// Its text, and what that says.
fn metadata<'a>(what: &str, header: &'a Metadata) -> Result<(&'a str, Value)> {
    let text = header.metadata().as_ref().and_then(|m| m.get(KEY));
    let none = "a safetensors file, but no checkpoint of Sconce: it has no manifest";
    let text = text.ok_or_else(|| Error::corrupt(what, none))?;
    let raw: Value = serde_json::from_str(text).map_err(|e| damaged(what, e))?;
    // The version first: a later one may have a manifest that this reader cannot parse.
    let version = raw.get("version").and_then(Value::as_u64).unwrap_or(0);
    if version != u64::from(VERSION) {
        return Err(Error::mismatch(format!("version of {what}"), VERSION, version));
    }
    Ok((text, raw))
}

/// Whether manifest, names and numbers are those that were written.
fn check(what: &str, (text, raw): (&str, &Value), names: &[String], numbers: &[u8]) -> Result<()> {
    let Some(sha256) = raw.get("sha256").and_then(Value::as_str) else { return Ok(()) };
    let unsigned = text.replacen(sha256, "", 1);
    match digest(&unsigned, names.iter(), iter::once(numbers.into())) == sha256 {
        true => Ok(()),
        false => Err(Error::corrupt(what, "damaged: its bytes are not those that were written")),
    }
}

fn parse(what: &str, raw: Value) -> Result<Manifest> {
    let manifest: Manifest = serde_json::from_value(raw).map_err(|e| damaged(what, e))?;
    manifest.spec.validate()?;
    Ok(manifest)
}

/// The reason in plain words, with the parser's own behind them.
fn damaged(what: &str, parser: impl Display) -> Error {
    Error::corrupt(what, format!("cut short, damaged, or no checkpoint ({parser})"))
}

fn read(what: &str, name: &str, info: &TensorInfo, body: &[u8]) -> Result<Vec<f32>> {
    if info.dtype != Dtype::F32 {
        let got = format!("{:?}", info.dtype);
        return Err(Error::mismatch(format!("{name} in {what}"), "F32", got));
    }
    let bytes = body.get(info.data_offsets.0..info.data_offsets.1);
    let bytes = bytes.ok_or_else(|| damaged(what, format!("{name} ends outside the file")))?;
    let numbers = bytes.as_chunks().0;
    let mut data: Vec<f32> = memory::with_capacity(numbers.len());
    data.extend(numbers.iter().map(|b| f32::from_le_bytes(*b)));
    if let Some(value) = data.iter().find(|v| !v.is_finite()) {
        return Err(Error::NonFinite {
            what: format!("{name} in {what}"),
            value: f64::from(*value),
        });
    }
    Ok(data)
}

/// f32, little-endian.
pub fn bytes(numbers: &[f32]) -> Vec<u8> {
    let mut bytes = memory::with_capacity(size_of_val(numbers));
    bytes.extend(numbers.iter().flat_map(|v| v.to_le_bytes()));
    bytes
}
