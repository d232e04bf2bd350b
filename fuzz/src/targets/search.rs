//! Resumes a search from its index, beside whole files of both slots, and lets it go on.

use std::path::Path;
use std::sync::OnceLock;

use sconce_env::EnvOptions;
use sconce_evolve::{Archive, ArchiveOptions, Episodes, Measure, Network, Search, SpaceOptions};
use sconce_nn::Spec;
use sconce_tensor::{Error, Result, fs};
use serde_json::{Value, json};

use crate::json::{self, Node};
use crate::rng::Rng;
use crate::{bytes, scratch};

const INDEX: &str = "search.json";
/// Saved states of a seed.
const STATES: u64 = 4;

/// The indices of some saved states, and the other files of the last two of them.
struct Saved {
    indices: Vec<Vec<u8>>,
    files: Vec<(String, Vec<u8>)>,
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("options")
}

fn made() -> (Search, Archive) {
    let env = EnvOptions { env: "cart_pole".into(), ..EnvOptions::default() };
    let heads = sconce_env::spec(&env).expect("an environment").inputs;
    let mut heads =
        sconce_nn::spec::Heads::of_parts(&heads, sconce_nn::spec::HeadsKind::Independent);
    heads.parts.iter_mut().for_each(|part| part.hidden_size = 0);
    let backbone = from(json!({"mlp": {
        "hidden_sizes": [2], "layer_norm": false, "residual": false, "dropout": 0.0,
        "input_dropout": 0.0, "activation": "tanh",
    }}));
    let embedding = sconce_nn::spec::Embedding::vector(4);
    let spec = Spec { embedding, backbone, heads, critic: None };
    let options = from(json!({
        "source": {"emitters": {"count": 2, "method": "snes", "sigma": 0.5, "ranking": "two_stage"}},
        "batch": 8, "storage": "f32", "sigma": 1.0, "seed": 1, "new_starts": false,
    }));
    let measures = vec![Measure::Final(0)];
    let episodes = Episodes { env, episodes: 1, same_starts: true, measures };
    let archive = Archive::new(&ArchiveOptions {
        space: SpaceOptions::Grid { dimensions: vec![5], ranges: vec![(-2.4, 2.4)] },
        solution_size: Network::of(&spec).expect("a network").size(),
        learning_rate: 1.0,
        threshold_min: None,
        offset: 0.0,
    });
    let archive = archive.expect("an archive");
    let search = Search::new(&spec, &options, &episodes, Some(&archive)).expect("a search");
    (search, archive)
}

fn saved() -> &'static Saved {
    static SAVED: OnceLock<Saved> = OnceLock::new();
    SAVED.get_or_init(|| {
        let dir = scratch::folder("search");
        let read = |name: &str| fs::read(&dir.join(name), u64::MAX).expect("a file");
        let (mut search, mut archive) = made();
        let indices = (0..STATES).map(|_| {
            search.save(&dir, Some(&archive)).expect("a state");
            search.run(Some(&mut archive), 1, &|| false).expect("a generation");
            read(INDEX)
        });
        let indices = indices.collect();
        let slots = ["a", "b"].into_iter().flat_map(|slot| {
            ["archive", "strategy-0", "strategy-1"].map(|of| format!("{of}-{slot}.safetensors"))
        });
        let files = slots.map(|name| (name.clone(), read(&name))).collect();
        scratch::remove(&dir);
        Saved { indices, files }
    })
}

pub fn seeds() -> Vec<Vec<u8>> {
    saved().indices.clone()
}

pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>) {
    match Node::parse(input) {
        Some(mut index) if !rng.one_in(4) => {
            json::mutate(rng, &mut index);
            *input = index.write().into_bytes();
        }
        _ => bytes::mutate(rng, input),
    }
}

pub fn run(bytes: &[u8], dir: &Path) -> Result<()> {
    for (name, bytes) in &saved().files {
        super::write(dir, name, bytes)?;
    }
    super::write(dir, INDEX, bytes)?;
    let (mut search, _) = made();
    search.resume(dir)?;
    let mut archive = Search::archive(dir)?.ok_or_else(|| Error::not_found("an archive"))?;
    let before = search.run(Some(&mut archive), 0, &|| false)?;
    let after = search.run(Some(&mut archive), 1, &|| false)?;
    let gained = [after.generation - before.generation, after.evaluations - before.evaluations];
    assert!(gained == [1, 8], "a generation that counts as {gained:?}");
    search.save(dir, Some(&archive))?;
    let (mut again, _) = made();
    again.resume(dir)?;
    assert!(again.run(None, 0, &|| false).is_err(), "a search without its archive");
    let same = again.run(Some(&mut archive), 0, &|| false)?;
    assert!((same.generation, same.best) == (after.generation, after.best), "another state");
    Ok(())
}
