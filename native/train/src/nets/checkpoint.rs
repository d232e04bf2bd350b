//! The state of a run as one safetensors file.
//!
//! | tensor | content |
//! |---|---|
//! | `net.NAME` | the present weights |
//! | `kept.NAME` | the weights of the best validation, unless they are the present ones |
//! | `optimiser.NAME` | moments of the optimiser |
//! | `losses` | the loss of each step, f64 |
//! | `validation` | step, loss and accuracy (NaN for none) of each validation, f64 |
//! | `kept_loss` | the loss of the best validation, f64 |
//!
//! Orders of examples and the split are functions of the seed and the epoch, so the file has no state of a generator. The
//! metadata has a digest of the manifest's text, of the names and of all numbers.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype, View};
use sconce_net::{MAX_PARAMETERS, Net, NetSpec};
use sconce_tensor::digest::sha256;
use sconce_tensor::error::Difference;
use sconce_tensor::{Error, Result, fs, header, memory};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::examples::Examples;
use super::options::FitOptions;
use super::report::Validation;
use super::step::Moments;

/// Version of the format. Readers reject files of a later version.
const VERSION: u32 = 1;
const KEY: &str = "sconce.fit";
const DIGEST: &str = "sconce.fit.sha256";
/// Maximum bytes of a file: weights, best weights and two moments, and a thousand million losses.
const MAX_BYTES: u64 = 16 * MAX_PARAMETERS as u64 + (1 << 33);

/// Places in a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Place {
    /// Updates of the optimiser.
    pub(super) updates: u64,
    /// Whole epochs.
    pub(super) epochs: u64,
    /// Steps before the present epoch.
    pub(super) first: usize,
    /// Steps before the last validation.
    pub(super) validated: Option<u64>,
    /// The step of the kept weights.
    pub(super) kept: u64,
    /// Validations since then.
    pub(super) waited: u64,
    pub(super) seconds: f64,
}

/// The state of a run.
pub(super) struct State<'a> {
    pub(super) place: Place,
    pub(super) net: Cow<'a, Net>,
    /// The weights that are returned.
    pub(super) kept: Cow<'a, Net>,
    pub(super) kept_loss: f64,
    pub(super) moments: Moments<'a>,
    pub(super) losses: Cow<'a, [f64]>,
    pub(super) validation: Cow<'a, [Validation]>,
}

/// A run, which only its own state continues.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Identity {
    spec: NetSpec,
    options: Value,
    /// Digest of inputs and targets.
    examples: String,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: u32,
    identity: Identity,
    place: Place,
}

impl Identity {
    pub(super) fn new(net: &Net, options: &FitOptions, examples: &Examples<'_>) -> Result<Self> {
        let options = serde_json::to_string(options).and_then(|text| serde_json::from_str(&text));
        let options = options.map_err(|e| Error::corrupt("the options of a run", e))?;
        Ok(Identity { spec: net.spec().clone(), options, examples: examples.digest() })
    }

    /// Returns an error unless a saved state is one of this run. The end of a run may differ.
    fn check(&self, path: &Path, saved: &Identity) -> Result<()> {
        let what = |part: &str| format!("{part} of {}", path.display());
        if saved.spec != self.spec {
            return Err(Error::mismatch(what("declaration"), "that of the net", "another"));
        }
        let mut differences = vec![];
        let given = self.options.as_object().into_iter().flatten();
        for (option, given) in given.filter(|(name, _)| !FitOptions::MAY_DIFFER.contains(&&***name))
        {
            let recorded = &saved.options[option];
            if recorded != given {
                let (recorded, given) = (recorded.to_string(), given.to_string());
                differences.push(Difference { option: option.clone(), recorded, given });
            }
        }
        if !differences.is_empty() {
            return Err(Error::Fixed { what: path.display().to_string(), differences });
        }
        match saved.examples == self.examples {
            true => Ok(()),
            false => Err(Error::mismatch(what("examples"), "those of the call", "others")),
        }
    }
}

/// Numbers of a file.
struct Array<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

impl Array<'_> {
    fn singles(shape: &[usize], values: &[f32]) -> Self {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Array { dtype: Dtype::F32, shape: shape.to_vec(), bytes: bytes.into() }
    }

    fn doubles(shape: Vec<usize>, values: impl Iterator<Item = f64>) -> Self {
        let bytes: Vec<u8> = values.flat_map(f64::to_le_bytes).collect();
        Array { dtype: Dtype::F64, shape, bytes: bytes.into() }
    }
}

impl View for &Array<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        (&*self.bytes).into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// SHA-256 of the manifest's text, the sorted names of the tensors, and the numbers.
fn digest(text: &str, mut names: Vec<&str>, numbers: Vec<&[u8]>) -> String {
    names.sort_unstable();
    let names = names.join("\0");
    sha256([text.as_bytes(), names.as_bytes()].into_iter().chain(numbers))
}

impl State<'_> {
    /// Writes a temporary file beside `path`, syncs it and renames it to `path`.
    ///
    /// # Errors
    /// `Io` if the file cannot be written, `OutOfMemory`.
    pub(super) fn save(&self, identity: &Identity, path: &Path) -> Result<()> {
        let bytes = memory::caught(|| self.encode(identity))?;
        fs::clear_partials_of(path);
        fs::write_atomic(path, |file| file.write_all(&bytes))
    }

    fn encode(&self, identity: &Identity) -> Result<Vec<u8>> {
        let wrong = |e: &dyn Display| Error::corrupt("the state of a run", e);
        let manifest = Manifest { version: VERSION, identity: identity.clone(), place: self.place };
        let text = serde_json::to_string(&manifest).map_err(|e| wrong(&e))?;
        let mut arrays = self.arrays();
        // The order in a file: numbers of the wider type come first, and those of one type in the order of their names.
        arrays.sort_by(|(a, x), (b, y)| y.dtype.cmp(&x.dtype).then(a.cmp(b)));
        let names = arrays.iter().map(|(name, _)| &**name).collect();
        let digest = digest(&text, names, arrays.iter().map(|(_, array)| &*array.bytes).collect());
        let metadata = HashMap::from([(KEY.to_owned(), text), (DIGEST.to_owned(), digest)]);
        let tensors = arrays.iter().map(|(name, array)| (name.as_str(), array));
        let bytes = safetensors::serialize(tensors, Some(metadata)).map_err(|e| wrong(&e))?;
        // A file that readers would reject must not replace a readable one.
        header::of_bytes(&bytes).map_err(|e| wrong(&e))?;
        Ok(bytes)
    }

    fn arrays(&self) -> Vec<(String, Array<'_>)> {
        let mut arrays = vec![];
        let mut weights = |prefix: &str, net: &Net| {
            for weight in net.weights() {
                let array = Array::singles(&weight.shape, &weight.values);
                arrays.push((format!("{prefix}.{}", weight.name), array));
            }
        };
        weights("net", &self.net);
        if self.place.kept != self.losses.len() as u64 {
            weights("kept", &self.kept);
        }
        for (name, values) in &self.moments {
            arrays.push((format!("optimiser.{name}"), Array::singles(&[values.len()], values)));
        }
        let losses = Array::doubles(vec![self.losses.len()], self.losses.iter().copied());
        let rows = self.validation.iter().flat_map(|Validation { step, loss, accuracy }| {
            [*step as f64, *loss, accuracy.unwrap_or(f64::NAN)]
        });
        let validation = Array::doubles(vec![self.validation.len(), 3], rows);
        let kept_loss = Array::doubles(vec![1], [self.kept_loss].into_iter());
        let named = [("losses", losses), ("validation", validation), ("kept_loss", kept_loss)];
        arrays.extend(named.map(|(name, array)| (name.to_owned(), array)));
        arrays
    }
}

/// Reads the state of a run that [`State::save`] wrote.
///
/// # Errors
/// `NotFound` for a missing file; `Corrupt` for one that is cut, damaged or of another format; `Mismatch` for one of a later
/// version, of another net or of other examples; `Fixed` for one of a run with other options.
pub(super) fn load(path: &Path, identity: &Identity) -> Result<State<'static>> {
    let what = path.display().to_string();
    let bytes = fs::read(path, MAX_BYTES)?;
    memory::caught(|| decode(&what, &bytes, |saved| identity.check(path, saved)))
}

fn decode(
    what: &str,
    bytes: &[u8],
    check: impl FnOnce(&Identity) -> Result<()>,
) -> Result<State<'static>> {
    let damaged = |e: &dyn Display| {
        Error::corrupt(what, format!("cut short, damaged, or no state of a run ({e})"))
    };
    let (length, header) = header::of_bytes(bytes).map_err(|e| damaged(&e))?;
    let metadata = header.metadata().as_ref();
    let text = metadata.and_then(|metadata| metadata.get(KEY));
    let text = text.ok_or_else(|| Error::corrupt(what, "a safetensors file without a run"))?;
    let raw: Value = serde_json::from_str(text).map_err(|e| damaged(&e))?;
    let version = raw.get("version").and_then(Value::as_u64).unwrap_or(0);
    if version != u64::from(VERSION) {
        return Err(Error::mismatch(format!("version of {what}"), VERSION, version));
    }
    let body = bytes.get(header::PREFIX + length..).unwrap_or_default();
    let tensors = header.tensors();
    let digest = digest(text, tensors.keys().map(|name| &**name).collect(), vec![body]);
    if metadata.and_then(|metadata| metadata.get(DIGEST)) != Some(&digest) {
        return Err(Error::corrupt(what, "damaged: its bytes are not those that were written"));
    }
    let Manifest { identity, place, .. } = serde_json::from_str(text).map_err(|e| damaged(&e))?;
    check(&identity)?;
    let (mut singles, mut doubles) = (BTreeMap::new(), BTreeMap::new());
    for (name, info) in tensors {
        let own = body.get(info.data_offsets.0..info.data_offsets.1).unwrap_or_default();
        match info.dtype {
            Dtype::F32 => {
                let values: Vec<f32> =
                    own.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                singles.insert(name, (values, info.shape.clone()));
            }
            Dtype::F64 => {
                let values: Vec<f64> =
                    own.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect();
                doubles.insert(name, values);
            }
            other => return Err(damaged(&format!("{name} is {other:?}"))),
        }
    }
    let state = whole(&identity.spec, place, singles, doubles);
    state.map_err(|error| Error::corrupt(what, error))
}

type Singles = BTreeMap<String, (Vec<f32>, Vec<usize>)>;

fn whole(
    spec: &NetSpec,
    place: Place,
    mut singles: Singles,
    mut doubles: BTreeMap<String, Vec<f64>>,
) -> Result<State<'static>> {
    let mut part = |prefix: &str| {
        let own = singles.extract_if(.., |name, _| name.starts_with(prefix));
        let own = own.map(|(name, own)| (name[prefix.len()..].to_owned(), own));
        own.collect::<BTreeMap<_, _>>()
    };
    let net = |own: Singles| {
        Net::from_weights(
            spec,
            own.into_iter().map(|(name, (values, shape))| (name, values, shape)),
        )
    };
    let (present, kept) = (net(part("net."))?, part("kept."));
    let moments = part("optimiser.").into_iter();
    let moments = moments.map(|(name, (values, _))| (name, Cow::Owned(values))).collect();
    let mut list = |name: &str| doubles.remove(name).ok_or_else(|| Error::not_found(name));
    let (losses, validation, kept_loss) =
        (list("losses")?, list("validation")?, list("kept_loss")?);
    let steps = losses.len() as u64;
    if place.first > losses.len() || place.validated > Some(steps) || place.kept > steps {
        return Err(Error::mismatch("places of the run", format!("at most {steps}"), "later ones"));
    }
    let kept = if place.kept == steps { present.clone() } else { net(kept)? };
    let validation = validation.as_chunks::<3>().0.iter().map(|[step, loss, accuracy]| {
        let accuracy = (!accuracy.is_nan()).then_some(*accuracy);
        Validation { step: *step as u64, loss: *loss, accuracy }
    });
    Ok(State {
        place,
        net: Cow::Owned(present),
        kept: Cow::Owned(kept),
        kept_loss: kept_loss.first().copied().unwrap_or(f64::INFINITY),
        moments,
        losses: losses.into(),
        validation: validation.collect(),
    })
}
