//! Loads archives, strategies and networks of evolution, and lets them work.

use std::path::Path;

use sconce_evolve::{
    Activation, Archive, ArchiveOptions, Batch, Compatibility, Method, Neat, NeatOptions, Rule,
    SpaceOptions, Strategy, StrategyOptions,
};
use sconce_tensor::digest::sha256;
use sconce_tensor::{Result, fs};

use crate::json::{self, Node};
use crate::rng::Rng;
use crate::safetensors::{self, File};
use crate::{bytes, scratch};

/// Key of the manifest in the header's metadata.
const KEY: &str = "sconce.evolve";
/// Most numbers of the candidates of a generation, so that a run ends soon.
const MOST: usize = 1 << 14;

pub fn seeds() -> Vec<Vec<u8>> {
    let dir = scratch::folder("evolve");
    let path = dir.join("seed");
    let read = || fs::read(&path, u64::MAX).expect("a file");
    let ranges = vec![(-1.0, 1.0), (0.0, 2.0)];
    let grid = SpaceOptions::Grid { dimensions: vec![4, 3], ranges };
    let centroids = SpaceOptions::Centroids(vec![vec![0.0, 0.5], vec![1.0, 1.0], vec![-1.0, 0.0]]);
    let balls = SpaceOptions::Unstructured { measures: 2, distance: 0.3, cells: 6 };
    let mut seeds = vec![];
    let spaces = [(grid.clone(), 1.0), (centroids, 1.0), (grid, 0.1), (balls, 0.1)];
    for (space, learning_rate) in spaces {
        let threshold_min = (learning_rate < 1.0).then_some(-10.0);
        let offset = -5.0;
        let options =
            ArchiveOptions { space, solution_size: 3, learning_rate, threshold_min, offset };
        let mut archive = Archive::new(&options).expect("an archive");
        archive.save(&path).expect("a file");
        seeds.push(read());
        let solutions: Vec<f32> = (0..24).map(|n| n as f32).collect();
        let objectives: Vec<f64> = (0..8).map(|n| f64::from(n % 5)).collect();
        let measures: Vec<f64> = (0..16).map(|n| f64::from(n) / 8.0 - 1.0).collect();
        let batch = Batch { solutions: &solutions, objectives: &objectives, measures: &measures };
        archive.add(batch).expect("a batch");
        archive.save(&path).expect("a file");
        seeds.push(read());
    }
    for method in [Method::OpenAiEs, Method::Snes, Method::SepCmaEs, Method::CmaEs] {
        let options = StrategyOptions {
            method,
            population: Some(6),
            sigma: 0.5,
            learning_rate: 0.1,
            seed: 3,
        };
        let mut strategy = Strategy::new(&[1.0, -2.0, 0.5, 0.0], &options).expect("a strategy");
        let fitness: Vec<f64> = (0..strategy.population()).map(|n| (n * n) as f64).collect();
        strategy.tell(&fitness).expect("a generation");
        strategy.save(&path).expect("a file");
        seeds.push(read());
    }
    let mut neat = Neat::new(&networks()).expect("a population");
    for generation in 0..4 {
        neat.save(&path).expect("a file");
        seeds.push(read());
        let fitness: Vec<f64> = (0..8).map(|n| f64::from((n + generation) % 5)).collect();
        neat.tell(&fitness).expect("a generation");
    }
    scratch::remove(&dir);
    seeds
}

fn networks() -> NeatOptions {
    NeatOptions {
        inputs: 2,
        outputs: 2,
        population: 8,
        seed: 4,
        hidden_activation: Activation::Tanh,
        output_activation: Activation::Identity,
        compatibility: Compatibility {
            rule: Rule::Paper,
            excess: 1.0,
            disjoint: 1.0,
            weights: 0.4,
            small_genome: 0,
        },
        threshold: 0.5,
        threshold_step: 0.1,
        target_species: 3,
        stagnation: 5,
        protected_species: 1,
        elitism: 1,
        survival: 0.5,
        crossover: 0.5,
        interspecies: 0.1,
        weight_range: 1.0,
        weight_limit: 5.0,
        weight_rate: 0.8,
        weight_power: 0.5,
        weight_replace: 0.1,
        add_node: 0.5,
        add_connection: 0.5,
        toggle: 0.2,
    }
}

/// Changes the manifest, the tensors or their numbers, and keeps the digest right.
pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>) {
    let Some(mut file) = File::parse(input) else { return bytes::mutate(rng, input) };
    let Some(mut manifest) = manifest(&file) else { return safetensors::mutate(rng, input) };
    for _ in 0..1 + rng.up_to(2) {
        match rng.below(6) {
            0..3 => json::mutate(rng, &mut manifest),
            3 => json::mutate(rng, &mut file.header),
            _ => numbers(rng, &mut file.data),
        }
    }
    sign(&mut file, manifest.write());
    *input = file.encode();
}

/// Replaces one number of 64 bits with one that often breaks readers.
fn numbers(rng: &mut Rng, data: &mut [u8]) {
    const ODD: [f64; 8] = [f64::NAN, f64::INFINITY, 1e150, -1e150, 1e300, 5e-324, -0.0, -1.0];
    if rng.one_in(3) {
        return safetensors::numbers(rng, data);
    }
    let (chunks, _) = data.as_chunks_mut();
    let at = rng.below(chunks.len().max(1));
    if let Some(chunk) = chunks.get_mut(at) {
        *chunk = rng.pick(&ODD).to_le_bytes();
    }
}

fn manifest(file: &File) -> Option<Node> {
    let text = |node: &Node| match node {
        Node::Text(text) => Node::parse(text.as_bytes()),
        _ => None,
    };
    let signed = text(file.header.get("__metadata__")?.get(KEY)?)?;
    text(signed.get("manifest")?)
}

fn sign(file: &mut File, manifest: String) {
    let mut names: Vec<&str> = match &file.header {
        Node::Map(entries) => entries.iter().map(|(name, _)| name.as_str()).collect(),
        _ => vec![],
    };
    names.retain(|name| *name != "__metadata__");
    names.sort_unstable();
    let parts = names.iter().flat_map(|name| [name.as_bytes(), file.tensor(name)]);
    let digest = sha256([manifest.as_bytes()].into_iter().chain(parts));
    let signed = Node::Map(vec![
        ("manifest".into(), Node::Text(manifest)),
        ("sha256".into(), Node::Text(digest)),
    ]);
    if let Some(metadata) = file.header.get_mut("__metadata__") {
        metadata.set(KEY, Node::Text(signed.write()));
    }
}

pub fn run(bytes: &[u8], dir: &Path) -> Result<()> {
    let path = super::write(dir, "evolve.safetensors", bytes)?;
    if let Ok(archive) = Archive::load(&path) {
        return use_archive(archive, dir);
    }
    match Strategy::load(&path) {
        Ok(strategy) => use_strategy(strategy, dir),
        Err(_) => use_networks(Neat::load(&path)?, dir),
    }
}

fn use_archive(mut archive: Archive, dir: &Path) -> Result<()> {
    let again = dir.join("again.safetensors");
    archive.save(&again)?;
    assert!(Archive::load(&again)? == archive, "another archive after a save");
    let (size, width) = (archive.solution_size(), archive.space().measures());
    let stats = archive.stats();
    assert!(stats.elites <= stats.cells && stats.qd_score.is_finite(), "{stats:?}");
    if size <= MOST {
        let (solutions, measures) = (vec![0.25; size], vec![0.1; width]);
        let batch = Batch { solutions: &solutions, objectives: &[1e9], measures: &measures };
        archive.add(batch)?;
        archive.sample(3, 1)?;
        archive.retrieve(&measures)?;
        archive.novelty(&measures, 2)?;
    }
    Ok(())
}

fn use_strategy(mut strategy: Strategy, dir: &Path) -> Result<()> {
    let again = dir.join("again.safetensors");
    strategy.save(&again)?;
    assert!(Strategy::load(&again)?.generation() == strategy.generation(), "another strategy");
    if strategy.population().saturating_mul(strategy.size()) <= MOST {
        let asked = strategy.ask()?;
        assert!(asked.iter().all(|number| number.is_finite()), "a candidate that is not finite");
        let fitness: Vec<f64> = (0..strategy.population()).map(|n| n as f64).collect();
        strategy.tell(&fitness)?;
        strategy.ask()?;
    }
    Ok(())
}

fn use_networks(mut neat: Neat, dir: &Path) -> Result<()> {
    let again = dir.join("again.safetensors");
    neat.save(&again)?;
    assert!(Neat::load(&again)? == neat, "another population after a save");
    let &NeatOptions { inputs, outputs, population, .. } = neat.options();
    if population.saturating_mul(inputs.max(outputs)) <= MOST {
        let values = neat.forward(&vec![0.5; 3 * inputs], 3)?;
        assert!(values.iter().all(|number| number.is_finite()), "an output that is not finite");
        for _ in 0..2 {
            let fitness: Vec<f64> = (0..population).map(|n| (n % 7) as f64).collect();
            neat.tell(&fitness)?;
        }
        let sizes: usize = neat.stats().species.iter().map(|own| own.size).sum();
        assert!(sizes == population, "a genome without a species");
        neat.genome(0)?.layers()?;
    }
    Ok(())
}
