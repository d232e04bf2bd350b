//! Digests of a Spec and of snapshots.

use sconce_nn::Spec;
use sconce_tensor::{Error, Result};

/// FNV-1a, 64 bits: it detects accidental changes, not forged ones.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// Digest of the Spec as JSON, without statistics of a normalisation, which belong to the weights. The old name `decision_transformer` is kept so that old digests match.
pub(crate) fn spec_digest(spec: &Spec) -> Result<u64> {
    let spec = Spec { embedding: spec.embedding.plain(), ..spec.clone() };
    let text = serde_json::to_string(&spec).map_err(|e| Error::corrupt("Spec", e))?;
    let [now, first] =
        ["causal", "decision"].map(|of| format!(r#""backbone":{{"{of}_transformer":"#));
    Ok(digest(text.replacen(&now, &first, 1).as_bytes()))
}
