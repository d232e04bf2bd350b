//! The files of teachers.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::group::others;

/// Files of frozen policies that a run learns from: one path, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Given", into = "Given")]
pub struct Teachers(Vec<PathBuf>);

/// The option as it is given, and as a run records it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Given {
    One(PathBuf),
    Several(Vec<PathBuf>),
}

impl Teachers {
    /// The paths, at least one.
    pub fn paths(&self) -> &[PathBuf] {
        &self.0
    }
}

impl From<PathBuf> for Teachers {
    fn from(path: PathBuf) -> Self {
        Teachers(vec![path])
    }
}

impl From<&Path> for Teachers {
    fn from(path: &Path) -> Self {
        Teachers(vec![path.into()])
    }
}

impl TryFrom<Vec<PathBuf>> for Teachers {
    type Error = String;

    fn try_from(paths: Vec<PathBuf>) -> Result<Self, String> {
        match paths.is_empty() {
            true => Err("teacher: expected at least one path, got none".into()),
            false => Ok(Teachers(paths)),
        }
    }
}

impl TryFrom<Given> for Teachers {
    type Error = String;

    fn try_from(given: Given) -> Result<Self, String> {
        match given {
            Given::One(path) => Ok(path.into()),
            Given::Several(paths) => paths.try_into(),
        }
    }
}

impl From<Teachers> for Given {
    fn from(Teachers(mut paths): Teachers) -> Self {
        match paths.len() {
            1 => Given::One(paths.swap_remove(0)),
            _ => Given::Several(paths),
        }
    }
}

others!(Teachers);
