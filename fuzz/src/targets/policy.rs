//! Imports policies of ExPhil and Axon, exports them and lets them decide.

use std::path::Path;

use sconce_compat::{Asked, Format, export, import};
use sconce_nn::backbone::Context;
use sconce_nn::policy::Frames;
use sconce_nn::spec::NONE;
use sconce_tensor::Result;
use serde_json::json;

use crate::bytes::{self, ODD};
use crate::rng::Rng;

const FILES: [&str; 12] = [
    "broken/good.bin",
    "broken/good.legacy.bin",
    "mlp_small.zlib.bin",
    "mlp_small_checkpoint.axon",
    "mlp_small_ema.bin",
    "gru_fused.bin",
    "min_gru_bf16.bin",
    "gru.weights.safetensors",
    "mamba_2.bin",
    "jamba.bin",
    "deep_res_lstm.bin",
    "lstm_hybrid.bin",
];

pub fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../test/golden/exphil");
    FILES.iter().map(|name| std::fs::read(folder.join(name)).expect("a golden file")).collect()
}

/// Bytes that begin a term.
const TAGS: [u8; 22] = [
    70, 77, 80, 88, 90, 97, 98, 100, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 115,
    116, 119,
];

/// Changes tags, lengths and small numbers of a term, and keeps the lengths in front of it right.
pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>) {
    // A flag, a length, the metadata, `Nx.serialize`.
    let length = input.get(1..5).map(|own| own.iter().fold(0, |all, b| all << 8 | usize::from(*b)));
    let body = 5 + length.unwrap_or(0);
    match input.first() {
        Some(0) if input.get(body..body + 2) == Some(b"nx") => {
            let mut metadata = input[5..body].to_vec();
            let mut rest = input[body..].to_vec();
            if rng.one_in(2) {
                mutate_term(rng, &mut metadata);
            } else {
                mutate_serialized(rng, &mut rest);
            }
            let length = (metadata.len() as u32).to_be_bytes();
            *input = [&[0][..], &length, &metadata, &rest].concat();
        }
        Some(131) => mutate_term(rng, input),
        _ => bytes::mutate(rng, input),
    }
}

fn mutate_serialized(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let length =
        bytes.get(4..12).map_or(0, |own| own.iter().fold(0, |all, b| all << 8 | usize::from(*b)));
    let end = 12usize.saturating_add(length);
    let Some(term) = bytes.get(12..end) else { return bytes::mutate(rng, bytes) };
    let mut term = term.to_vec();
    mutate_term(rng, &mut term);
    let length = (term.len() as u64).to_be_bytes();
    *bytes = [&bytes[..4], &length, &term, &bytes[end..]].concat();
}

fn mutate_term(rng: &mut Rng, term: &mut Vec<u8>) {
    // Terms of names and sizes are at the start; weights follow.
    let among = term.len().min(8192);
    let tags: Vec<usize> = (1..among).filter(|i| TAGS.contains(&term[*i])).collect();
    if tags.is_empty() {
        return bytes::mutate(rng, term);
    }
    for _ in 0..1 + rng.below(3) {
        let at = *rng.pick(&tags);
        match rng.below(5) {
            0 if at < term.len() => term[at] = *rng.pick(&TAGS),
            1 => {
                let number = rng.pick(&ODD).to_be_bytes();
                let size = *rng.pick(&[1, 2, 4]);
                for (byte, new) in term.iter_mut().skip(at + 1).zip(&number[8 - size..]) {
                    *byte = *new;
                }
            }
            2 => term
                .splice(
                    at.min(term.len())..at.min(term.len()),
                    [*rng.pick(&TAGS), rng.next() as u8],
                )
                .for_each(drop),
            3 if at + 1 < term.len() => {
                term[at + 1] = term[at + 1].wrapping_add(*rng.pick(&[1, 2, 255]))
            }
            _ => bytes::mutate(rng, term),
        }
    }
}

pub fn run(bytes: &[u8], dir: &Path) -> Result<()> {
    let path = super::write(dir, "policy.bin", bytes)?;
    let trust = bytes.len() % 2 == 1;
    let mut asked = Asked { trust, ..Asked::default() };
    // Files of parameters alone need a config.
    let mlp = json!({ "temporal": false, "hidden_sizes": [8] });
    let gru = json!({ "backbone": "gru", "hidden_size": 24, "num_layers": 2 });
    let mut imported = import(&path, &asked);
    for config in [mlp, gru] {
        asked.config = serde_json::from_value(config).expect("a config");
        imported = imported.or_else(|_| import(&path, &asked));
    }
    let imported = imported?;
    let policy = imported.policy;
    for (name, weight) in policy.weights() {
        let numbers = sconce_tensor::tensor::to_vec(weight)?;
        assert!(numbers.iter().all(|number| number.is_finite()), "{name} is not finite");
    }
    let spec = policy.spec();
    let previous = vec![NONE; spec.heads.num_labels()];
    let continuous = vec![0.1; spec.embedding.continuous_width()];
    let frames = Frames { batch: 1, time: 1, continuous, ids: vec![], previous };
    policy.forward_last(&frames, None, &policy.zero_state(1)?, &Context::default())?;
    let (written, _) = export(&policy, Format::Axon)?;
    let again = super::write(dir, "again.bin", &written)?;
    let read = import(&again, &Asked::default())?.policy;
    for (name, weight) in policy.weights() {
        let (own, other) = (sconce_tensor::tensor::to_vec(weight)?, read.weights().get(name));
        let other = other.map(|other| sconce_tensor::tensor::to_vec(other)).transpose()?;
        let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * a.abs().max(1.0);
        let is_same = other.is_some_and(|other| own.iter().zip(&other).all(is_close));
        assert!(is_same || name.contains("initial_state"), "{name} differs after an export");
    }
    Ok(())
}
