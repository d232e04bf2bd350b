//! Policies and checkpoint files.

use std::path::Path;

use serde_json::Value;

use super::{Learns, Policy};
use crate::checkpoint::{self, Manifest, Optimiser, Snapshot};
use crate::weights::{Source, Weights};
use crate::{Error, Result, Spec};

impl Policy {
    /// Reads the policy of a checkpoint file.
    pub fn load(path: &Path) -> Result<Self> {
        let (manifest, weights) = checkpoint::load_policy(path)?;
        Self::from_checkpoint(manifest, weights)
    }

    /// A policy from the parts of a checkpoint.
    pub fn from_checkpoint(manifest: Manifest, weights: Weights) -> Result<Self> {
        Self::build(&manifest.spec, Source::Stored(weights), Learns::Nothing, manifest.notes)
    }

    /// The shapes of a policy whose weights are elsewhere. Only a plan of the same Spec can decide for it.
    pub fn outline(spec: &Spec, notes: Value) -> Result<Self> {
        Self::build(spec, Source::Sizes, Learns::Nothing, notes)
    }

    /// Whether this is an [`outline`](Self::outline).
    pub fn is_outline(&self) -> bool {
        self.is_outline
    }

    /// # Errors
    /// `Unavailable` for an outline.
    pub(crate) fn check_weights(&self) -> Result<()> {
        if !self.is_outline {
            return Ok(());
        }
        let reason = "only packed weights are loaded, which decide one frame at a time".into();
        Err(Error::Unavailable { what: "weights of the policy".into(), reason })
    }

    /// Writes a checkpoint file with `notes` in its manifest.
    pub fn save(&self, path: &Path, notes: Value) -> Result<()> {
        self.snapshot(notes, Optimiser::new())?.save(path)
    }

    /// A copy of the policy for a file, with the state of an optimiser.
    pub fn snapshot(&self, notes: Value, optimiser: Optimiser) -> Result<Snapshot> {
        self.check_weights()?;
        let _turn = self.turn();
        Snapshot::new(Manifest::new(self.spec.clone(), notes), &self.weights, optimiser)
    }
}
