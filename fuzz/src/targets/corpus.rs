//! Opens, verifies, splits and samples a corpus.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use sconce_data::{
    Builder, Corpus, Holdout, ImportOptions, Reader, Sampler, SamplerOptions, Schema, Tracks,
    VectorGame, import, verify,
};
use sconce_nn::spec::HeadsKind;
use sconce_tensor::{Error, Result};

use super::specs;
use crate::bundle::Bundle;
use crate::json::{self, Node};
use crate::rng::Rng;
use crate::safetensors::{self, File};
use crate::{bytes, scratch};

const FRAMES: usize = 12;

/// Builds a corpus with two values per frame.
pub fn build(dir: &Path) -> Result<Corpus> {
    let game = |game: usize| VectorGame {
        x: (0..2 * FRAMES).map(|i| (i + game) as f32 / 8.0).collect(),
        labels: (0..FRAMES).flat_map(|t| [(t % 2) as f32, 1.0, (t % 3) as f32]).collect(),
    };
    let games: Vec<VectorGame> = (0..4).map(game).collect();
    Corpus::build(&Schema::vector(2, &specs::heads(HeadsKind::Independent)), &games, dir)
}

/// A corpus of vectors to train on, built once per process.
pub fn of_vectors() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch::folder("vectors");
        build(&dir).expect("a corpus");
        dir
    })
}

/// A compressed corpus of vectors, built once per process. A game has two segments.
fn packed() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch::folder("packed");
        let (size, frames) = (4096, 20);
        let game = VectorGame {
            x: (0..size * frames).map(|i| (i % 9) as f32).collect(),
            labels: (0..frames).flat_map(|t| [(t % 2) as f32, 1.0, (t % 3) as f32]).collect(),
        };
        let schema = Schema::vector(size, &specs::heads(HeadsKind::Independent));
        let never = AtomicBool::new(false);
        Corpus::build_cancellable(&schema, &[game], &dir, true, &never).expect("a corpus");
        dir
    })
}

/// A corpus of two Melee games, built once per process.
pub fn of_melee() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let (dir, replays) = (scratch::folder("melee"), scratch::folder("replays"));
        for (i, fixture) in super::replay::fixtures().iter().take(2).enumerate() {
            let bytes = fixture.bytes().expect("a replay");
            super::write(&replays, &format!("{i}.slp"), &bytes).expect("a file");
        }
        let options = ImportOptions { min_frames: 1, threads: 1, ..ImportOptions::default() };
        import(&[replays], &dir, &options, &|_| (), &AtomicBool::new(false)).expect("a corpus");
        dir
    })
}

/// A corpus of frames of Melee that were met in play, built once per process. One frame has no answer.
pub fn of_met_frames() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = scratch::folder("met");
        let replays = Corpus::open(of_melee()).expect("a corpus");
        let view = &replays.views(&[0]).expect("a game")[0];
        let row = |t: usize| {
            let mut raw = vec![0.0; view.raw_width()];
            view.raw(t, &mut raw).expect("a frame");
            let answer = view.input(t).expect("a frame").expect("an input");
            [raw, answer, vec![f32::from(t != 3)]].concat()
        };
        let rows: Vec<f32> = (0..FRAMES).flat_map(row).collect();
        let mut builder =
            Builder::append(&Schema::relabelled(None), &dir, Some(1)).expect("a builder");
        builder.add_rows(&rows).expect("rows");
        builder.finish().expect("a corpus");
        dir
    })
}

pub fn seeds() -> Vec<Vec<u8>> {
    let whole = |dir: &Path| Bundle::read(dir).expect("files");
    let mut small = whole(of_vectors());
    small.0.truncate(2);
    // The manifest of `small` comes last, so the truncation removed it.
    let two = whole(of_vectors());
    let met = whole(of_met_frames());
    let packed = whole(packed());
    vec![
        two.encode(),
        relisted(small).encode(),
        whole(of_melee()).encode(),
        met.encode(),
        packed.encode(),
    ]
}

/// The bundle with a manifest that matches its shards and their sizes.
fn relisted(mut bundle: Bundle) -> Bundle {
    let entry = |(name, content): &(String, Vec<u8>)| {
        let mut game = File::parse(content)?.text()?.get("game")?.clone();
        game.set("bytes", Node::Raw(content.len().to_string()));
        name.ends_with(".safetensors").then_some(game)
    };
    let games: Vec<Node> = bundle.0.iter().filter_map(entry).collect();
    let schema = bundle
        .0
        .iter()
        .find_map(|(_, content)| Some(File::parse(content)?.text()?.get("schema")?.clone()));
    let schema_of = |node: &Node| serde_json::from_str::<Schema>(&node.write()).ok();
    let columns = schema.as_ref().and_then(schema_of).and_then(columns);
    if bundle.get_mut(MANIFEST).is_none() {
        bundle.0.push((MANIFEST.into(), manifest().write().into_bytes()));
    }
    let Some(text) = bundle.get_mut(MANIFEST) else { return bundle };
    if let Some(mut manifest) = Node::parse(text) {
        manifest.set("games", Node::List(games));
        if let Some((schema, columns)) = schema.zip(columns) {
            manifest.set("schema", schema);
            manifest.set("columns", columns);
        }
        *text = manifest.write().into_bytes();
    }
    bundle
}

fn columns(schema: Schema) -> Option<Node> {
    schema.validate().ok()?;
    serde_json::to_value(schema.columns()).ok().map(Node::from)
}

const MANIFEST: &str = "manifest.json";

fn manifest() -> Node {
    let text = std::fs::read(of_vectors().join(MANIFEST)).unwrap_or_default();
    Node::parse(&text).unwrap_or(Node::Map(vec![]))
}

pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>) {
    let mut bundle = Bundle::parse(input);
    if bundle.0.is_empty() {
        return bytes::mutate(rng, input);
    }
    let at = rng.below(bundle.0.len());
    let of_manifest = bundle.0.iter().position(|(name, _)| name == MANIFEST);
    let at = of_manifest.filter(|_| rng.one_in(3)).unwrap_or(at);
    if let Some((name, content)) = bundle.0.get_mut(at) {
        match name.ends_with(".safetensors") {
            true => safetensors::mutate(rng, content),
            false => json::mutate_text(rng, content),
        }
    }
    match rng.below(8) {
        0 => drop(bundle.0.remove(at)),
        1..6 => bundle = relisted(bundle),
        _ => {}
    }
    *input = bundle.encode();
}

pub fn run(input: &[u8], dir: &Path) -> Result<()> {
    Bundle::parse(input).write(dir).map_err(Error::io(dir))?;
    let checked = checked(dir);
    // A damaged folder is extended or refused, too.
    extend(dir).and(checked)
}

/// A corpus in ExPhil's format cannot be extended.
pub fn run_exphil(input: &[u8], dir: &Path) -> Result<()> {
    Bundle::parse(input).write(dir).map_err(Error::io(dir))?;
    checked(dir)
}

fn checked(dir: &Path) -> Result<()> {
    let cancel = AtomicBool::new(false);
    let verified = verify(dir, &|_| (), &cancel)?;
    // `verify` has already reported any damage.
    let corpus = Corpus::open(dir)?;
    match verified.damaged.first() {
        Some(damage) => Err(Error::corrupt(&damage.file, &damage.reason)),
        None => read(&corpus),
    }
}

/// Opens the folder to add games to it, once with a game that is dropped and once with none. No game may be lost.
fn extend(dir: &Path) -> Result<()> {
    let before = Corpus::open(dir);
    let games = before.as_ref().map_or(0, |corpus| corpus.games().len());
    let schema = before.map_or(Schema::relabelled(None), |corpus| corpus.schema().clone());
    let mut dropped = Builder::append(&schema, dir, Some(1))?;
    // Few schemas take a row of zeros.
    let width: usize = schema.columns().iter().map(|column| column.width.max(1)).sum();
    let _ = dropped.add_rows(&vec![0.0; width.min(1 << 16)]);
    drop(dropped);
    let corpus = Builder::append(&schema, dir, None)?.finish()?;
    assert!(corpus.games().len() >= games, "{} of {games} games", corpus.games().len());
    Ok(())
}

/// Lists the answered frames, and draws a batch of windows and a batch of tracks.
pub fn read(corpus: &Corpus) -> Result<()> {
    let _ = corpus.info();
    let (train, validation) = corpus.split(&Holdout::Fraction(0.5), 1)?;
    let games = [train, validation].concat();
    let views = corpus.views(&games)?;
    for view in &views {
        let answered = view.answered(1);
        assert!(answered.iter().all(|t| *t < view.len(1)), "{answered:?} of {}", view.len(1));
        view.verify()?;
    }
    let schema = corpus.schema();
    let reader = Reader::new(schema.embedding(), schema.heads(), 1);
    let options = SamplerOptions { window: 4, stride: 2, ..SamplerOptions::default() };
    let bytes = reader.bytes(2, 4);
    if bytes > 1 << 24 {
        return Err(Error::out_of_memory("a batch of the fuzzer", bytes));
    }
    let tracks = Tracks::new(views.clone(), reader.clone(), options.clone(), 2, 0);
    let sampler = Sampler::new(views, reader, options)?;
    sampler.batch(0, 2)?;
    tracks?.batch(0, 0)?;
    Ok(())
}

const WIDTH: usize = 3;

/// Corpora in ExPhil's format: rows of all games, the labels of the rows, and one line per game.
pub fn exphil_seeds() -> Vec<Vec<u8>> {
    [(1u32, 4), (2, 2), (3, 2)].map(|(dtype, size)| exphil(dtype, size).encode()).into()
}

fn exphil(dtype: u32, size: usize) -> Bundle {
    let header = |magic: &[u8; 4]| {
        [&magic[..], &1u32.to_le_bytes(), &(FRAMES as u64).to_le_bytes()].concat()
    };
    let mut embeddings = header(b"EMBD");
    embeddings.extend((WIDTH as u64).to_le_bytes());
    embeddings.extend(dtype.to_le_bytes());
    embeddings.extend([0; 4]);
    embeddings.extend(vec![0; FRAMES * WIDTH * size]);
    let mut labels = header(b"LBLS");
    labels.extend(6u32.to_le_bytes());
    labels.extend([0; 4]);
    labels.extend((0..FRAMES).flat_map(|t| [t as u8, 16, 0, 8, 8, (t % 5) as u8]));
    let lines = "{\"path\":\"a.slp\",\"start\":0,\"frames\":6,\"port\":1}\n\
                 {\"path\":\"b.slp\",\"start\":6,\"frames\":6,\"port\":2}\n";
    let file = |name: &str, content| (name.to_string(), content);
    Bundle(vec![
        file("embeddings.bin", embeddings),
        file("labels.bin", labels),
        file("manifest.jsonl", lines.into()),
    ])
}

pub fn mutate_exphil(rng: &mut Rng, input: &mut Vec<u8>) {
    let mut bundle = Bundle::parse(input);
    let at = rng.below(bundle.0.len());
    match bundle.0.get_mut(at) {
        Some((name, content)) if name.ends_with(".jsonl") => super::run::mutate_lines(rng, content),
        // Headers are a hundredth of the bytes, but most parsed values, so half of the mutations go there.
        Some((_, content)) if rng.one_in(2) => {
            let mut header = content.drain(..content.len().min(32)).collect();
            bytes::mutate(rng, &mut header);
            content.splice(0..0, header);
        }
        Some((_, content)) => bytes::mutate(rng, content),
        None => return bytes::mutate(rng, input),
    }
    *input = bundle.encode();
}
