//! A policy as one safetensors file, with its Spec and a manifest in the metadata.
//!
//! A file that training can resume from also holds the state of the optimiser, under names that begin with
//! `optimiser.`.
//!
//! A matrix with codes ([`Coded`]) is two tensors instead of one: `NAME.codes`, in bytes, and `NAME.scales`. The manifest
//! has its bits and groups. A matrix of which each four inputs have at most two weights that are not 0 ([`TwoFour`]) is
//! `NAME.values` and `NAME.places`, about half of the bytes, and the manifest has its inputs. A product ([`Factors`]) is
//! `NAME.left` and `NAME.right`, and the manifest has its rank.
//!
//! The metadata holds a SHA-256 over the metadata and all values, which detects any changed bit.
//!
//! A file may also hold packed weights, see [`packed`].

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::io::Write;
use std::iter;
use std::path::Path;
use std::sync::Arc;

use safetensors::tensor::{Dtype, Metadata, TensorInfo, View};
use sconce_ops::weights::{Coded, Factors, TwoFour};
use sconce_tensor::simd::non_finite;
use sconce_tensor::tensor::tensor;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::numbers::{CODES, LEFT, Numbers, PLACES, RIGHT, SCALES, VALUES, Values};
use crate::digest::sha256;
use crate::weights::{Weight, Weights};
use crate::{Error, Result, Spec, fs, header, memory};

mod numbers;
pub mod packed;

/// Version of the format. Readers reject files of a later version.
pub const VERSION: u32 = 4;
/// Version of a file without products and packed weights, which readers of version 3 accept.
const PRUNED: u32 = 3;
/// Version of a file without matrices in 2:4, which readers of version 2 accept.
const CODED: u32 = 2;
/// Version of a file without codes, which readers of version 1 accept.
const PLAIN: u32 = 1;
const KEY: &str = "sconce";

/// Metadata stored beside the weights.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format: 1, 2 for a file with codes, 3 for one with matrices in 2:4, or 4 for one with products or packed
    /// weights.
    pub version: u32,
    /// The Spec of the policy.
    pub spec: Spec,
    /// Notes of the writer: step, metrics, purpose of the training.
    #[serde(default)]
    pub notes: Value,
    /// State that a training run needs to resume. Null in a file that is only for play.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub run: Value,
    /// The form of the codes of matrices that have them, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub codes: BTreeMap<String, Form>,
    /// The columns of matrices in 2:4, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub two_four: BTreeMap<String, usize>,
    /// The ranks of matrices that are products, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub factors: BTreeMap<String, usize>,
    /// The packed weights, if the file has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packed: Option<packed::Layout>,
}

/// The form of a matrix as codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Form {
    /// Bits of a code.
    pub bits: u32,
    /// Columns of the matrix.
    pub inputs: usize,
    /// Columns that share a scale.
    pub group: usize,
}

impl Manifest {
    /// A manifest without the state of a run.
    pub fn new(spec: Spec, notes: Value) -> Self {
        let (run, codes, two_four, factors, packed) = Default::default();
        Manifest { version: PLAIN, spec, notes, run, codes, two_four, factors, packed }
    }
}

/// The manifest in its form on disk.
#[derive(Serialize)]
struct Signed<'a> {
    #[serde(flatten)]
    manifest: &'a Manifest,
    /// SHA-256 of the manifest's text with an empty digest, and of the names and values of the tensors.
    sha256: &'a str,
}

fn signed(manifest: &Manifest, sha256: &str) -> Result<String> {
    let signed = Signed { manifest, sha256 };
    serde_json::to_string(&signed).map_err(|e| Error::corrupt("manifest", e))
}

/// SHA-256 of the manifest, the sorted names of the tensors and their values. Shapes need no digest, because they must
/// fit the Spec and the number of values.
fn digest<'a>(
    unsigned: &'a str,
    names: impl Iterator<Item = &'a String>,
    numbers: impl Iterator<Item = Cow<'a, [u8]>>,
) -> String {
    let names = names.map(|name| name.as_bytes().into());
    sha256(iter::once(unsigned.as_bytes().into()).chain(names).chain(numbers))
}

/// Content of a checkpoint file.
#[derive(Debug)]
pub struct Checkpoint {
    /// Metadata.
    pub manifest: Manifest,
    /// Weights by name.
    pub weights: Weights,
    /// State of the optimiser.
    pub optimiser: Optimiser,
}

/// Values of the optimiser's state by name. Empty in a file that is only for play.
pub type Optimiser = BTreeMap<String, Vec<f32>>;

const OPTIMISER: &str = "optimiser.";

/// The content of a checkpoint file, copied to memory of its own. Later changes of the weights do not affect the copy.
#[derive(Debug, Clone)]
pub struct Snapshot {
    manifest: Manifest,
    tensors: Vec<(String, Numbers)>,
    /// The words of packed weights.
    arena: Arc<[f32]>,
}

impl Snapshot {
    /// Copies the weights to the snapshot's own memory.
    pub fn new(manifest: Manifest, weights: &Weights, optimiser: Optimiser) -> Result<Self> {
        let weight =
            |(name, weight): (&String, &Weight)| Ok((name.clone(), Numbers::of(name, weight)?));
        let mut tensors =
            memory::caught(|| weights.iter().map(weight).collect::<Result<Vec<_>>>())?;
        tensors.extend(optimiser.into_iter().map(|(name, values)| {
            let (dims, values) = (vec![values.len()], Values::F32(values));
            (format!("{OPTIMISER}{name}"), Numbers { dims, values })
        }));
        let mut snapshot = Snapshot { manifest, tensors, arena: Arc::default() };
        snapshot.list_forms();
        Ok(snapshot)
    }

    /// Lists the codes, the matrices in 2:4 and the products in the manifest.
    fn list_forms(&mut self) {
        let Manifest { codes, two_four, factors, version, .. } = &mut self.manifest;
        codes.clear();
        two_four.clear();
        factors.clear();
        for (name, numbers) in &self.tensors {
            match &numbers.values {
                Values::Codes(own) => {
                    let (bits, inputs, group) = (own.bits(), own.inputs(), own.group());
                    codes.insert(name.clone(), Form { bits, inputs, group });
                }
                Values::TwoFour(own) => drop(two_four.insert(name.clone(), own.inputs())),
                Values::Factors(own) => drop(factors.insert(name.clone(), own.rank())),
                Values::F32(_) => {}
            }
        }
        *version = match (codes.is_empty(), two_four.is_empty(), factors.is_empty()) {
            (true, true, true) => PLAIN,
            (false, true, true) => CODED,
            (_, false, true) => PRUNED,
            (_, _, false) => VERSION,
        };
    }

    /// Adds the state that a training run needs to resume.
    pub fn of_run(mut self, run: Value) -> Self {
        self.manifest.run = run;
        self
    }

    /// The bytes of the file. A non-finite number is an error, because [`load`] would reject the file.
    pub fn encode(&self) -> Result<Vec<u8>> {
        for (name, numbers) in &self.tensors {
            if let Some(value) = numbers.f32s().and_then(non_finite) {
                return Err(Error::NonFinite { what: name.clone(), value: value.into() });
            }
        }
        let bytes: usize = self.tensors.iter().map(|(_, numbers)| numbers.bytes()).sum();
        let bytes = bytes + size_of_val(&*self.arena);
        memory::room("the bytes of a checkpoint", bytes as u64)?;
        memory::caught(|| self.encoded())
    }

    fn encoded(&self) -> Result<Vec<u8>> {
        let mut tensors: Vec<_> =
            self.tensors.iter().flat_map(|(name, numbers)| numbers.stored(name)).collect();
        tensors.extend(self.packed());
        let unsigned = signed(&self.manifest, "")?;
        tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
        let names: Vec<String> = tensors.iter().map(|(name, _)| name.clone()).collect();
        // The order in a file: numbers of the wider type come first, and those of one type in the order of their names.
        tensors.sort_by_key(|(_, own)| std::cmp::Reverse(own.dtype));
        let numbers = tensors.iter().map(|(_, own)| own.bytes());
        let sha256 = digest(&unsigned, names.iter(), numbers);
        let text = signed(&self.manifest, &sha256)?;
        let metadata = Some(HashMap::from([(KEY.to_string(), text)]));
        memory::granted(tensors.iter().map(|(_, own)| own.data_len()).sum());
        let tensors = tensors.iter().map(|(name, own)| (name, own));
        let mut bytes = safetensors::serialize(tensors, metadata)
            .map_err(|e| Error::corrupt("checkpoint", e))?;
        if self.manifest.packed.is_some() {
            packed::align(&mut bytes);
        }
        // A file that readers would reject must not replace a readable one.
        header::of_bytes(&bytes).map_err(|e| Error::corrupt("checkpoint", e))?;
        Ok(bytes)
    }

    /// Writes a temporary file beside `path`, syncs it and renames it to `path`. Removes partial files of an
    /// interrupted save.
    pub fn save(&self, path: &Path) -> Result<()> {
        let bytes = self.encode()?;
        fs::clear_partials_of(path);
        fs::write_atomic(path, |file| file.write_all(&bytes))
    }

    /// The manifest and the weights, without the optimiser.
    pub fn into_weights(self) -> Result<(Manifest, Weights)> {
        let own = self.tensors.into_iter().filter(|(name, _)| !name.starts_with(OPTIMISER));
        let weight = |(name, Numbers { dims, values })| {
            let weight = match values {
                Values::F32(values) => tensor(values, dims)?.into(),
                Values::TwoFour(own) => tensor(own.weights(), dims)?.into(),
                Values::Codes(codes) => Weight::coded(codes)?,
                Values::Factors(factors) => Weight::factored(factors)?,
            };
            Ok((name, weight))
        };
        Ok((self.manifest, own.map(weight).collect::<Result<_>>()?))
    }
}

/// Reads a checkpoint. The values are read only if the header accounts for every byte of the file. All values must be
/// finite and match the digest. A file without a digest is accepted.
pub fn load(path: &Path) -> Result<Checkpoint> {
    decode(&path.display().to_string(), &whole(path)?)
}

/// Reads the policy of a checkpoint and skips the state of the optimiser.
pub fn load_policy(path: &Path) -> Result<(Manifest, Weights)> {
    let (what, bytes) = (path.display().to_string(), whole(path)?);
    let (manifest, weights, _) = decode_if(&what, &bytes, |name| !name.starts_with(OPTIMISER))?;
    Ok((manifest, weights))
}

/// Reads the policy of a checkpoint's bytes.
pub fn policy_of(bytes: &[u8]) -> Result<(Manifest, Weights)> {
    let (manifest, weights, _) = decode_if("a policy", bytes, |name| !name.starts_with(OPTIMISER))?;
    Ok((manifest, weights))
}

/// Reads only the manifest, not the values.
pub fn manifest(path: &Path) -> Result<Manifest> {
    let what = path.display().to_string();
    let (_, header, _) = opened(path)?;
    let (_, raw) = metadata(&what, &header)?;
    parse(&what, raw)
}

/// Reads a file and checks that the header accounts for all its bytes.
fn whole(path: &Path) -> Result<Vec<u8>> {
    let (mut file, header, mut bytes) = opened(path)?;
    // A file of another format or of a later version is rejected before its values are read.
    let what = path.display().to_string();
    metadata(&what, &header)?;
    // Requires free memory for the bytes and for the values decoded from them.
    memory::room(&what, header.tensors().iter().map(|(name, info)| decoded(name, info)).sum())?;
    file.read(file.length() - bytes.len() as u64, &mut bytes)?;
    Ok(bytes)
}

/// Bytes of a tensor in a file, and of its values in memory: one or two codes of a byte are also f32, and so are the eight
/// weights that two groups of a byte stand for.
fn decoded(name: &str, info: &TensorInfo) -> u64 {
    let bytes = (info.data_offsets.1 - info.data_offsets.0) as u64;
    let times = match info.dtype {
        Dtype::U8 if name.ends_with(PLACES) => 34,
        Dtype::I8 => 6,
        Dtype::U8 => 11,
        _ => 2,
    };
    bytes.saturating_mul(times)
}

/// Opens a file and reads its header. Returns the file, the header, and the bytes read so far.
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

/// Decodes a checkpoint from the bytes of a file. Errors call the file `what`.
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
    let mut tensors: BTreeMap<String, &TensorInfo> = header.tensors().into_iter().collect();
    if let Some(layout) = &manifest.packed {
        layout.leave_out(what, &mut tensors)?;
    }
    let mut both = |name: &str, suffixes: [&str; 2]| {
        let [one, other] = suffixes.map(|suffix| {
            let missing = || Error::not_found(format!("{name}{suffix} in {what}"));
            tensors.remove(&format!("{name}{suffix}")).ok_or_else(missing)
        });
        Ok::<_, Error>((one?, other?))
    };
    for (name, form) in &manifest.codes {
        let weight = coded(what, name, *form, both(name, [CODES, SCALES])?, body)?;
        weights.insert(name.clone(), weight);
    }
    for (name, inputs) in &manifest.two_four {
        let weight = two_four(what, name, *inputs, both(name, [VALUES, PLACES])?, body)?;
        if weights.insert(name.clone(), weight).is_some() {
            return Err(Error::corrupt(what, format!("{name} has codes beside its values")));
        }
    }
    for (name, rank) in &manifest.factors {
        let weight = factored(what, name, *rank, both(name, [LEFT, RIGHT])?, body)?;
        if weights.insert(name.clone(), weight).is_some() {
            return Err(Error::corrupt(what, format!("{name} has codes beside its factors")));
        }
    }
    for (name, info) in tensors.into_iter().filter(|(name, _)| wanted(name)) {
        let numbers = read(what, &name, info, body)?;
        match name.strip_prefix(OPTIMISER) {
            Some(name) => drop(optimiser.insert(name.to_string(), numbers)),
            None => {
                let weight = tensor(numbers, &*info.shape)?.into();
                if weights.insert(name.clone(), weight).is_some() {
                    return Err(Error::corrupt(
                        what,
                        format!("{name} has numbers beside its codes, values or factors"),
                    ));
                }
            }
        }
    }
    Ok((manifest, weights, optimiser))
}

/// A matrix of a file's codes and scales.
fn coded(
    what: &str,
    name: &str,
    form: Form,
    (codes, scales): (&TensorInfo, &TensorInfo),
    body: &[u8],
) -> Result<Weight> {
    let dtype = if form.bits == 8 { Dtype::I8 } else { Dtype::U8 };
    let about = |suffix: &str| format!("{name}{suffix} in {what}");
    if codes.dtype != dtype {
        let (expected, got) = (format!("{dtype:?}"), format!("{:?}", codes.dtype));
        return Err(Error::mismatch(about(CODES), expected, got));
    }
    let scales = read(what, &format!("{name}{SCALES}"), scales, body)?;
    let bytes = body.get(codes.data_offsets.0..codes.data_offsets.1);
    let bytes = bytes.ok_or_else(|| damaged(what, format!("{name} ends outside the file")))?;
    let coded = Coded::of_bytes(form.bits, form.inputs, form.group, bytes, scales);
    Weight::coded(coded.map_err(|error| Error::corrupt(about(CODES), error))?)
}

/// A matrix of a file's values and places.
fn two_four(
    what: &str,
    name: &str,
    inputs: usize,
    (values, places): (&TensorInfo, &TensorInfo),
    body: &[u8],
) -> Result<Weight> {
    let about = format!("{name}{PLACES} in {what}");
    if places.dtype != Dtype::U8 {
        return Err(Error::mismatch(about, "U8", format!("{:?}", places.dtype)));
    }
    let values = read(what, &format!("{name}{VALUES}"), values, body)?;
    let bytes = body.get(places.data_offsets.0..places.data_offsets.1);
    let bytes = bytes.ok_or_else(|| damaged(what, format!("{name} ends outside the file")))?;
    let own = TwoFour::new(inputs, values, bytes.to_vec());
    let own = own.map_err(|error| Error::corrupt(about, error))?;
    Ok(tensor(own.weights(), (own.outputs(), inputs))?.into())
}

/// A matrix of a file's factors.
fn factored(
    what: &str,
    name: &str,
    rank: usize,
    (left, right): (&TensorInfo, &TensorInfo),
    body: &[u8],
) -> Result<Weight> {
    let left = read(what, &format!("{name}{LEFT}"), left, body)?;
    let right = read(what, &format!("{name}{RIGHT}"), right, body)?;
    let about = |error| match error {
        // The product may be far larger than its factors.
        Error::OutOfMemory { .. } => error,
        _ => Error::corrupt(format!("{name}{LEFT} in {what}"), error),
    };
    Weight::factored(Factors::new(rank, left, right).map_err(about)?)
}

/// The text of the manifest and its parsed JSON.
fn metadata<'a>(what: &str, header: &'a Metadata) -> Result<(&'a str, Value)> {
    let text = header.metadata().as_ref().and_then(|m| m.get(KEY));
    let none = "a safetensors file, but not a Sconce checkpoint: it has no manifest";
    let text = text.ok_or_else(|| Error::corrupt(what, none))?;
    let raw: Value = serde_json::from_str(text).map_err(|e| damaged(what, e))?;
    // The version is checked first, because a later version may have a manifest that cannot be parsed here.
    let version = raw.get("version").and_then(Value::as_u64).unwrap_or(0);
    if !(u64::from(PLAIN)..=u64::from(VERSION)).contains(&version) {
        return Err(Error::mismatch(format!("version of {what}"), VERSION, version));
    }
    Ok((text, raw))
}

/// Checks manifest, names and values against the digest.
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

/// An error with a readable reason, followed by the message of the parser.
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

/// Encodes the numbers as little-endian f32.
pub fn bytes(numbers: &[f32]) -> Vec<u8> {
    let mut bytes = memory::with_capacity(size_of_val(numbers));
    bytes.extend(numbers.iter().flat_map(|v| v.to_le_bytes()));
    bytes
}
