//! Packed policies in files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::Plan;
use crate::checkpoint::packed::{self, Layout};
use crate::checkpoint::{self, Optimiser};
use crate::{Error, Policy, Result, memory};

impl Plan {
    /// Writes a checkpoint file of the policy that was packed, with the packed weights. They stand `alone` or beside the
    /// weights of the policy.
    pub fn save(&self, policy: &Policy, path: &Path, notes: Value, alone: bool) -> Result<()> {
        let layout = Layout::here(self.format(), policy.bits(), self.matrices(), alone);
        policy.snapshot(notes, Optimiser::new())?.with_packed(self.arena(), layout)?.save(path)
    }
}

/// The policy of a file with packed weights, which are mapped.
pub struct PackedPolicy {
    path: PathBuf,
    layout: Layout,
    outline: Arc<Policy>,
    plan: Arc<Plan>,
}

impl PackedPolicy {
    /// Maps the packed weights of a file, as [`packed::open`].
    ///
    /// # Errors
    /// Those of [`packed::open`], and those of [`Plan::of_arena`].
    pub fn open(path: &Path) -> Result<Option<Self>> {
        let Some((manifest, layout, arena)) = packed::open(path)? else { return Ok(None) };
        let outline = Policy::outline(&manifest.spec, manifest.notes)?;
        // Some layers derive packed weights from others, in memory of the size of the others.
        memory::room("packed weights", (size_of::<f32>() * outline.num_weights()) as u64)?;
        let plan = Plan::of_arena(&outline, layout.format, layout.matrices.clone(), arena)?;
        let (outline, plan) = (Arc::new(outline), Arc::new(plan));
        Ok(Some(PackedPolicy { path: path.to_path_buf(), layout, outline, plan }))
    }

    /// The description of the packed weights.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The policy without values of weights.
    pub fn outline(&self) -> &Arc<Policy> {
        &self.outline
    }

    /// The packed policy.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Reads the weights beside the packed ones.
    ///
    /// # Errors
    /// `Unavailable` if the file has none, `Mismatch` if another file has taken its name, and those of
    /// [`Policy::load`].
    pub fn whole(&self) -> Result<Policy> {
        if self.layout.alone {
            return Err(packed::alone(&self.path.display().to_string()));
        }
        let (manifest, weights) = checkpoint::load_policy(&self.path)?;
        let found = manifest.packed.as_ref().map(|layout| &layout.sha256);
        match found == Some(&self.layout.sha256) {
            true => Policy::from_checkpoint(manifest, weights),
            false => {
                let what = format!("weights of {}", self.path.display());
                Err(Error::mismatch(what, "those of the loaded policy", "another policy"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sconce_realtime::{Factor, Format, Record};

    use serde_json::json;

    use super::*;
    use crate::Kind;
    use crate::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, MlpConfig, Spec};

    /// A file whose packed weights are described by `change` of their description, with valid digests.
    fn saved(path: &Path, alone: bool, change: impl FnOnce(&mut Layout)) -> Result<Policy> {
        let config = MlpConfig {
            hidden_sizes: vec![40, 36],
            layer_norm: false,
            residual: false,
            activation: Default::default(),
            dropout: 0.0,
            input_dropout: 0.0,
        };
        let go = Head { name: "go".into(), kind: HeadKind::Bernoulli(2), hidden_size: 0 };
        let (kind, parts) = (HeadsKind::Independent, vec![go]);
        let spec = Spec {
            embedding: Embedding::vector(33),
            backbone: Backbone::Mlp(config),
            heads: Heads { kind, parts, stream_size: 4, prior: false },
            critic: None,
        };
        let policy = Policy::init(&spec, 1)?;
        let plan = Plan::of(&policy, Format::F32)?.ok_or_else(|| Error::not_found("a plan"))?;
        let mut layout = Layout::here(plan.format(), 32, plan.matrices(), alone);
        change(&mut layout);
        let snapshot = policy.snapshot(Value::Null, Optimiser::new())?;
        snapshot.with_packed(plan.arena(), layout)?.save(path)?;
        Ok(policy)
    }

    #[test]
    fn words_of_another_cpu_or_version_are_not_mapped() -> Result<()> {
        let dir = tempfile::tempdir().map_err(Error::io(Path::new("tempdir")))?;
        let path = dir.path().join("policy.safetensors");
        let others: [fn(&mut Layout); 2] =
            [|of| of.cpu = "vax".into(), |of| of.source = "0123456789abcdef".into()];
        for (change, named) in others.into_iter().zip(["vax", "layout 0123456789abcdef"]) {
            let policy = saved(&path, false, change)?;
            assert!(PackedPolicy::open(&path)?.is_none());
            let loaded = Policy::load(&path)?;
            let weights =
                |policy: &Policy| policy.snapshot(Value::Null, Optimiser::new())?.encode();
            assert_eq!(weights(&loaded)?, weights(&policy)?);
            saved(&path, true, change)?;
            match PackedPolicy::open(&path) {
                Err(Error::Mismatch { what, expected, got }) => {
                    assert!(what.contains("policy.safetensors"), "{what}");
                    assert!(got.contains(named) && expected == packed::here(), "{got}");
                }
                other => panic!("{:?}", other.err()),
            }
        }
        Ok(())
    }

    #[test]
    fn a_description_that_does_not_fit_its_words_is_an_error() -> Result<()> {
        let dir = tempfile::tempdir().map_err(Error::io(Path::new("tempdir")))?;
        let path = dir.path().join("policy.safetensors");
        let first = |of: &mut Layout, weights: &str, group| {
            let record = &mut of.matrices[0];
            (record.weights, record.group) = (weights.into(), group);
        };
        let ratios = serde_json::from_value(json!({ "one": 0.5, "several": 0.5 })).expect("ratios");
        // The right matrix of the first rank, and left ones of the second ranks.
        let factors = |ranks: &[(usize, usize)]| -> Vec<Factor> {
            let factor = |rank: usize| json!({ "rank": rank, "weights": "f32" });
            let right = ranks.first().map_or(8, |(right, _)| *right);
            let lefts = ranks.iter().map(|(_, left)| factor(*left));
            let all: Vec<Value> = std::iter::once(factor(right)).chain(lefts).collect();
            serde_json::from_value(Value::Array(all)).expect("factors")
        };
        type Change = Box<dyn FnOnce(&mut Layout)>;
        let changes: Vec<Change> = vec![
            Box::new(|of| drop(of.matrices.pop())),
            Box::new(|of| of.matrices.clear()),
            Box::new(|of| of.matrices.push(of.matrices[0].clone())),
            Box::new(|of| of.matrices.swap(0, 1)),
            Box::new(|of| of.matrices[0] = Record { name: "w".into(), ..of.matrices[0].clone() }),
            Box::new(move |of| first(of, "int8", None)),
            Box::new(move |of| first(of, "bf16", None)),
            Box::new(move |of| first(of, "int2", None)),
            Box::new(move |of| first(of, "int4", None)),
            Box::new(move |of| first(of, "int4", Some(0))),
            Box::new(move |of| first(of, "int4", Some(33))),
            Box::new(move |of| first(of, "int4", Some(1 << 40))),
            Box::new(move |of| first(of, "int4", Some(32))),
            Box::new(move |of| first(of, "two_four", None)),
            Box::new(move |of| of.matrices[0].ratios = Some(ratios)),
            Box::new(move |of| of.matrices[0].factors = factors(&[(8, 8)])),
            Box::new(move |of| of.matrices[0].factors = factors(&[])),
            Box::new(move |of| of.matrices[0].factors = factors(&[(0, 0)])),
            Box::new(move |of| of.matrices[0].factors = factors(&[(1 << 40, 1 << 40)])),
            Box::new(move |of| of.matrices[0].factors = factors(&[(4, 8)])),
            Box::new(move |of| of.matrices[0].factors = factors(&[(33, 40)])),
            Box::new(move |of| of.matrices[0].factors = factors(&[(33, 1 << 60)])),
            Box::new(move |of| of.matrices[0].factors = factors(&[(8, 4), (8, 4)])),
        ];
        for (i, change) in changes.into_iter().enumerate() {
            saved(&path, true, change)?;
            let kind = PackedPolicy::open(&path).err().map(|error| error.kind());
            assert!(matches!(kind, Some(Kind::Mismatch | Kind::NotFound)), "{i}: {kind:?}");
        }
        saved(&path, true, |_| ())?;
        assert!(PackedPolicy::open(&path)?.is_some());
        Ok(())
    }
}
