//! The record of a run in its folder: environment, Spec and options.

use std::path::Path;

use sconce_nn::Spec;
use sconce_tensor::{Error, Result, fs};
use sconce_train::run::{Folder, write_json};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Task;
use crate::options::PpoOptions;

/// Maximum size of `run.json` in bytes.
const MAX_RECORD: u64 = 1 << 20;

/// The record of a run, written at its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Name of the environment.
    pub env: String,
    /// The Spec of the policy.
    pub spec: Spec,
    /// The options.
    pub options: PpoOptions,
}

impl Record {
    pub(super) fn new(task: Task<'_>, options: &PpoOptions) -> Self {
        Record { env: task.env.into(), spec: task.spec.clone(), options: options.clone() }
    }

    pub(super) fn write(&self, folder: &Folder) -> Result<()> {
        write_json(&folder.record(), self)
    }

    /// Reads the record of the run in a folder.
    ///
    /// # Errors
    /// `NotFound` without a run, `Corrupt` for another file.
    pub fn read(out: &Path) -> Result<Self> {
        let path = Folder::new(out).record();
        if !path.exists() {
            return Err(Error::not_found(format!("a run in {}", out.display())));
        }
        let text = fs::read(&path, MAX_RECORD)?;
        let record: Record = serde_json::from_slice(&text)
            .map_err(|e| Error::corrupt(path.display().to_string(), e))?;
        record.spec.validate()?;
        Ok(record)
    }

    /// The recorded options, with the options in `said` replaced.
    ///
    /// # Errors
    /// `Mismatch` for an option that does not exist.
    pub fn with(&self, said: Value) -> Result<PpoOptions> {
        let wrong = |e: String| Error::mismatch("options", "those of a run", e);
        let Value::Object(said) = said else { return Err(wrong(said.to_string())) };
        let said = PpoOptions::nested(said).map_err(wrong)?;
        let mut all = serde_json::to_value(&self.options).map_err(|e| wrong(e.to_string()))?;
        for (group, own) in said {
            let (Some(Value::Object(all)), Value::Object(own)) = (all.get_mut(&group), own) else {
                continue;
            };
            all.extend(own);
        }
        serde_json::from_value(all).map_err(|e| wrong(e.to_string()))
    }
}
