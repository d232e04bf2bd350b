//! Options of a run from a file: the `run.json` of another run, or options alone.

use std::path::{Path, PathBuf};

use sconce_nn::Spec;
use sconce_tensor::{Error, Result, fs};
use serde::Serialize;
use serde_json::{Map, Value};

use super::folder::MAX_RECORD;
use crate::options::{NAMED, rows};

/// Names of options and their unchecked values.
pub type Pairs = Vec<(String, Value)>;

/// Contents of a file of options.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Said {
    /// Corpus, if the file is a `run.json`.
    pub corpus: Option<PathBuf>,
    /// Spec, if the file is a `run.json`.
    pub spec: Option<Spec>,
    /// Options by their names alone, without their groups.
    pub options: Pairs,
    /// Options of the loss.
    pub loss: Pairs,
}

/// Reads the file of options at `path`.
///
/// # Errors
/// `Corrupt` for a file that is not JSON of options.
pub fn read_said(path: &Path) -> Result<Said> {
    let corrupt = |reason: String| Error::corrupt(path.display().to_string(), reason);
    let text = fs::read(path, MAX_RECORD)?;
    let mut all: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|e| corrupt(format!("no options: {e}")))?;
    let mut said = Said { corpus: None, spec: None, options: vec![], loss: vec![] };
    if let Some(Value::Object(options)) = all.get_mut("options").map(Value::take) {
        let of_record = |value: Option<Value>| value.unwrap_or_default();
        said.corpus = serde_json::from_value(of_record(all.remove("corpus")))
            .map_err(|e| corrupt(format!("corpus: {e}")))?;
        said.spec = serde_json::from_value(of_record(all.remove("spec")))
            .map_err(|e| corrupt(format!("spec: {e}")))?;
        said.spec.as_ref().map_or(Ok(()), Spec::validate)?;
        all = options;
    }
    let groups = rows()?;
    for (name, value) in all {
        match value {
            Value::Object(own) if name == NAMED => said.loss.extend(own),
            Value::Object(own) if groups.iter().any(|row| row.group == name) => {
                said.options.extend(own);
            }
            value => said.options.push((name, value)),
        }
    }
    for (name, value) in said.options.iter_mut().chain(&mut said.loss) {
        if let Value::Object(fields) = value {
            // A list of numbers is stored as `{"given": [..]}`, because other variants of the option are names.
            *value =
                fields.remove("given").ok_or_else(|| corrupt(format!("{name} is an object")))?;
        }
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_is_a_record_or_options_with_or_without_groups_and_any_other_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        let read = |text: String| {
            std::fs::write(&path, text).unwrap();
            read_said(&path).map_err(|e| e.to_string())
        };
        let options = json!({
            "data": {"batch_size": 3}, "steps": 7, "what": null, "loss": {"pos_weight": {"given": [1.0]}},
        });
        let said = read(options.to_string()).unwrap();
        let want = [("batch_size", json!(3)), ("steps", json!(7)), ("what", Value::Null)];
        assert_eq!(said.options, want.map(|(name, value)| (name.to_string(), value)));
        assert_eq!(said.loss, [("pos_weight".to_string(), json!([1.0]))]);
        let record =
            json!({"corpus": "games", "spec": null, "options": options, "precision": "f32"});
        let whole = read(record.to_string()).unwrap();
        assert_eq!((whole.options, whole.corpus), (said.options, Some("games".into())));
        for wrong in
            ["", "3", "[1]", r#"{"data": {"steps": {"a": 1}}}"#, r#"{"options": {}, "spec": 3}"#]
        {
            assert!(read(wrong.into()).unwrap_err().contains("run.json"), "{wrong}");
        }
    }
}
