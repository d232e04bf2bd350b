//! A network as one safetensors file, with its declaration in the metadata.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype, View};
use sconce_tensor::digest::sha256;
use sconce_tensor::{fs, header};
use serde::{Deserialize, Serialize};

use crate::bounds::MAX_PARAMETERS;
use crate::net::{Net, Weight};
use crate::spec::NetSpec;
use crate::{Error, Result};

/// Version of the format. Readers reject files of a later version.
const VERSION: u32 = 1;
const KEY: &str = "sconce.net";

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: u32,
    /// SHA-256 of the declaration's text and of all values in the order of the file.
    sha256: String,
    spec: NetSpec,
}

impl View for &Weight {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into()
    }

    fn data_len(&self) -> usize {
        size_of_val(&*self.values)
    }
}

impl Net {
    /// Writes a temporary file beside `path`, syncs it and renames it to `path`.
    ///
    /// # Errors
    /// `Io` if the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let corrupt = |e: &dyn Display| Error::corrupt("the file of a network", e);
        let mut sorted: Vec<&Weight> = self.weights().iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        let digest = digest(self.spec(), sorted.iter().map(|weight| weight.data()))?;
        let manifest = Manifest { version: VERSION, sha256: digest, spec: self.spec().clone() };
        let text = serde_json::to_string(&manifest).map_err(|e| corrupt(&e))?;
        let metadata = Some(HashMap::from([(KEY.to_owned(), text)]));
        let tensors = sorted.into_iter().map(|weight| (weight.name.as_str(), weight));
        let bytes = safetensors::serialize(tensors, metadata).map_err(|e| corrupt(&e))?;
        // A file that readers would reject must not replace a readable one.
        header::of_bytes(&bytes).map_err(|e| corrupt(&e))?;
        fs::clear_partials_of(path);
        fs::write_atomic(path, |file| file.write_all(&bytes))
    }

    /// Reads a network that [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// `NotFound` for a missing file; `Corrupt` for one that is cut, damaged or of another format; `Mismatch` for one of
    /// a later version.
    pub fn load(path: &Path) -> Result<Net> {
        let what = path.display().to_string();
        let limit = (MAX_PARAMETERS * size_of::<f32>() + header::MAX_BYTES) as u64;
        let bytes = fs::read(path, limit)?;
        decode(&what, &bytes).map_err(|error| match error {
            Error::Corrupt { .. } => error,
            Error::Mismatch { ref what, .. } if what.starts_with("version of ") => error,
            other => Error::corrupt(what.clone(), other),
        })
    }
}

fn decode(what: &str, bytes: &[u8]) -> Result<Net> {
    let damaged =
        |e: &dyn Display| Error::corrupt(what, format!("cut short, damaged, or no network ({e})"));
    let (length, header) = header::of_bytes(bytes).map_err(|e| damaged(&e))?;
    let text = header.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
    let text = text.ok_or_else(|| Error::corrupt(what, "a safetensors file without a network"))?;
    check_version(what, text)?;
    let manifest: Manifest = serde_json::from_str(text).map_err(|e| damaged(&e))?;
    let body = bytes.get(header::PREFIX + length..).unwrap_or_default();
    if digest(&manifest.spec, [body.into()])? != manifest.sha256 {
        return Err(Error::corrupt(what, "damaged: its bytes are not those that were written"));
    }
    let mut weights = Vec::new();
    for (name, info) in header.tensors() {
        if info.dtype != Dtype::F32 {
            return Err(damaged(&format!("{name} is {:?}, not F32", info.dtype)));
        }
        let own = body.get(info.data_offsets.0..info.data_offsets.1);
        let own = own.ok_or_else(|| damaged(&format!("{name} ends outside the file")))?;
        let values = own.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        weights.push((name, values, info.shape.clone()));
    }
    Net::from_weights(&manifest.spec, weights)
}

/// The version is checked first, because a later one may have a declaration that cannot be read here.
fn check_version(what: &str, text: &str) -> Result<()> {
    let raw: serde_json::Value = serde_json::from_str(text).map_err(|e| Error::corrupt(what, e))?;
    let version = raw.get("version").and_then(serde_json::Value::as_u64).unwrap_or(0);
    match version == u64::from(VERSION) {
        true => Ok(()),
        false => Err(Error::mismatch(format!("version of {what}"), VERSION, version)),
    }
}

fn digest<'a>(spec: &NetSpec, values: impl IntoIterator<Item = Cow<'a, [u8]>>) -> Result<String> {
    let text = serde_json::to_string(spec).map_err(|e| Error::corrupt("the declaration", e))?;
    Ok(sha256([Cow::from(text.into_bytes())].into_iter().chain(values)))
}
