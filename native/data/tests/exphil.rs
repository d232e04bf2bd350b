//! Corpora of ExPhil are read in place; inconsistent ones are refused.
#![allow(clippy::disallowed_methods)]

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use sconce_data::{Corpus, Holdout, Reader, Sampler, SamplerOptions, Schema};
use sconce_nn::spec::{Embedding, Heads, HeadsKind};

const WIDTH: usize = 3;
const FRAMES: usize = 60;

/// A corpus of ExPhil with fields that can be made inconsistent.
struct Fixture {
    magic: [&'static [u8; 4]; 2],
    version: u32,
    dtype: u32,
    frames: u64,
    width: u64,
    labels: u64,
    label_bytes: u32,
    manifest: String,
    /// Bytes missing at the end of each file; negative for extra bytes.
    missing: [i64; 2],
}

fn lines() -> String {
    // Ranges out of order, a blank line, an unknown key, and frames outside every range.
    "{\"path\":\"b.slp\",\"start\":20,\"frames\":25,\"port\":2,\"more\":1}\n\n\
     {\"path\":\"a.slp\",\"start\":0,\"frames\":20,\"port\":1}\n\
     {\"path\":\"b.slp\",\"start\":45,\"frames\":10,\"port\":3}\n"
        .into()
}

impl Default for Fixture {
    fn default() -> Self {
        Fixture {
            magic: [b"EMBD", b"LBLS"],
            version: 1,
            dtype: 1,
            frames: FRAMES as u64,
            width: WIDTH as u64,
            labels: FRAMES as u64,
            label_bytes: 6,
            manifest: lines(),
            missing: [0, 0],
        }
    }
}

/// A number that every dtype holds exactly.
fn number(i: usize) -> f32 {
    (i % 64) as f32 / 4.0 - 8.0
}

fn label(t: usize) -> [u8; 6] {
    [(t * 37) as u8, (t % 17) as u8, 16, 0, (t % 3) as u8, (t % 5) as u8]
}

impl Fixture {
    fn write(&self, dir: &Path) {
        let encode = |v: f32| match self.dtype {
            2 => half::f16::from_f32(v).to_le_bytes().to_vec(),
            3 => half::bf16::from_f32(v).to_le_bytes().to_vec(),
            _ => v.to_le_bytes().to_vec(),
        };
        let mut rows = [&self.magic[0][..], &self.version.to_le_bytes()].concat();
        rows.extend(self.frames.to_le_bytes());
        rows.extend(self.width.to_le_bytes());
        rows.extend(self.dtype.to_le_bytes());
        rows.extend([0; 4]);
        assert_eq!(rows.len(), 32);
        rows.extend((0..FRAMES * WIDTH).flat_map(|i| encode(number(i))));
        let mut labels = [&self.magic[1][..], &1u32.to_le_bytes()].concat();
        labels.extend(self.labels.to_le_bytes());
        labels.extend(self.label_bytes.to_le_bytes());
        labels.extend([0; 4]);
        assert_eq!(labels.len(), 24);
        labels.extend((0..FRAMES).flat_map(label));
        for (name, mut bytes, missing) in
            [("embeddings.bin", rows, self.missing[0]), ("labels.bin", labels, self.missing[1])]
        {
            bytes.resize((bytes.len() as i64 - missing) as usize, 0);
            fs::write(dir.join(name), bytes).unwrap();
        }
        fs::write(dir.join("manifest.jsonl"), &self.manifest).unwrap();
        fs::write(dir.join("meta.json"), "{}").unwrap();
    }
}

fn open(fixture: &Fixture) -> (tempfile::TempDir, sconce_tensor::Result<Corpus>) {
    let dir = tempfile::tempdir().unwrap();
    fixture.write(dir.path());
    let corpus = Corpus::open(dir.path());
    (dir, corpus)
}

#[test]
fn games_match_the_manifest_in_every_dtype() {
    for dtype in [1, 2, 3] {
        let (_dir, corpus) = open(&Fixture { dtype, ..Fixture::default() });
        let corpus = corpus.unwrap();
        let heads = Heads::controller(HeadsKind::Independent);
        assert_eq!(*corpus.schema(), Schema::vector(WIDTH, &heads));
        let sources: Vec<_> = corpus.games().iter().map(|g| (&g.source[..], g.frames)).collect();
        assert_eq!(sources, [("b.slp", 25), ("a.slp", 20), ("b.slp", 10)]);
        assert_eq!(corpus.games()[0].ports, [2]);
        assert_eq!((corpus.info().frames, corpus.info().views), (55, 3));

        let views = corpus.views(&[0, 1, 2]).unwrap();
        let reader = Reader::new(Embedding::vector(WIDTH), corpus.schema().heads(), 2);
        for (view, start) in views.iter().zip([20, 0, 45]) {
            let n = view.len(2);
            assert_eq!(n, view.frames() - 2);
            let batch = reader.sequence(view, 0..n).unwrap();
            let x: Vec<f32> = (start * WIDTH..(start + n) * WIDTH).map(number).collect();
            assert_eq!(batch.frames.continuous, x);
            for (t, labels) in batch.labels.chunks(13).enumerate() {
                let [mask, axes @ ..] = label(start + t + 2);
                let bits = (0..8).map(|i| f32::from(mask >> i & 1));
                let expected: Vec<f32> = bits.chain(axes.map(f32::from)).collect();
                assert_eq!(labels, expected);
            }
        }
    }
}

#[test]
fn windows_stay_inside_games_and_both_players_are_on_one_side_of_a_split() {
    let (dir, corpus) = open(&Fixture::default());
    let corpus = corpus.unwrap();
    let reader = Reader::new(Embedding::vector(WIDTH), corpus.schema().heads(), 0);
    let options = SamplerOptions { window: 10, stride: 5, ..SamplerOptions::default() };
    let sampler = Sampler::new(corpus.views(&[0, 1, 2]).unwrap(), reader, options).unwrap();
    assert_eq!(sampler.windows(), (16 / 5 + 11 / 5) as u64 + 1);
    assert_eq!(sampler.batch(0, 4).unwrap().frames.continuous.len(), 4 * 10 * WIDTH);
    for seed in 0..20 {
        let (train, held) = corpus.split(&Holdout::Fraction(0.4), seed).unwrap();
        assert!(train.contains(&0) == train.contains(&2), "{train:?} {held:?}");
        assert!(!train.is_empty() && !held.is_empty());
    }
    // A corpus of ExPhil is read-only: nothing is written into its folder.
    let refused = Corpus::build(corpus.schema(), &[], dir.path()).map(drop).unwrap_err();
    assert_eq!(refused.kind().name(), "mismatch");
    assert!(!dir.path().join("games").exists());
}

#[test]
fn players_of_one_replay_count_as_one_game_in_a_split() {
    let line = |path: &str, start: usize, port: u8| {
        format!("{{\"path\":\"{path}\",\"start\":{start},\"frames\":20,\"port\":{port}}}\n")
    };
    let alone = line("a.slp", 0, 1) + &line("a.slp", 20, 2);
    let corpus = open(&Fixture { manifest: alone.clone(), ..Fixture::default() }).1.unwrap();
    for (seed, fraction) in (0..20).flat_map(|seed| [0.001, 0.5, 0.999].map(|f| (seed, f))) {
        let (train, held) = corpus.split(&Holdout::Fraction(fraction), seed).unwrap();
        assert_eq!((train.len(), held.len()), (2, 0));
    }
    // Either of the two replays may come first in the draw.
    let both = Fixture { manifest: alone + &line("b.slp", 40, 1), ..Fixture::default() };
    let corpus = open(&both).1.unwrap();
    let mut sides = std::collections::BTreeSet::new();
    for (seed, fraction) in (0..20).flat_map(|seed| [0.001, 0.5, 0.999].map(|f| (seed, f))) {
        sides.insert(corpus.split(&Holdout::Fraction(fraction), seed).unwrap());
    }
    let expected = [(vec![0, 1], vec![2]), (vec![2], vec![0, 1])];
    assert_eq!(sides.into_iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_corpus_that_is_overwritten_between_two_reads_is_named() {
    let (dir, corpus) = open(&Fixture::default());
    let corpus = corpus.unwrap();
    let reader = Reader::new(Embedding::vector(WIDTH), corpus.schema().heads(), 0);
    let options = SamplerOptions { window: 10, stride: 5, ..SamplerOptions::default() };
    let sampler = Sampler::new(corpus.views(&[0, 1, 2]).unwrap(), reader, options).unwrap();
    assert!(sampler.batch(0, 4).is_ok());
    // Longer than the timestamp resolution of a file system.
    std::thread::sleep(std::time::Duration::from_millis(50));
    Fixture::default().write(dir.path());
    let error = sampler.batch(1, 4).unwrap_err();
    assert_eq!(error.kind().name(), "corrupt");
    assert!(error.to_string().contains("changed while it was read"), "{error}");
}

#[test]
fn inconsistent_files_are_named() {
    let d = Fixture::default;
    let manifest = |line: &str| Fixture { manifest: lines() + line, ..d() };
    let cases: [(Fixture, &str, &str); 15] = [
        (Fixture { magic: [b"EMBX", b"LBLS"], ..d() }, "corrupt", "embeddings.bin: does not begin"),
        (Fixture { magic: [b"EMBD", b"EMBD"], ..d() }, "corrupt", "labels.bin: does not begin"),
        (Fixture { version: 2, ..d() }, "mismatch", "expected version 1, got 2"),
        (Fixture { dtype: 4, ..d() }, "corrupt", "dtype 4"),
        (Fixture { frames: 61, ..d() }, "corrupt", "752 bytes for 61 frames of 12 bytes each"),
        (Fixture { frames: u64::MAX, ..d() }, "corrupt", "frames of 12 bytes each"),
        (Fixture { width: u64::MAX / 2, ..d() }, "corrupt", "more than any"),
        (Fixture { frames: 0, width: 0, labels: 0, ..d() }, "corrupt", "752 bytes for 0"),
        (Fixture { labels: 59, ..d() }, "corrupt", "59 frames beside 60"),
        (Fixture { label_bytes: 7, ..d() }, "corrupt", "7 bytes a frame, not 6"),
        (Fixture { missing: [1, 0], ..d() }, "corrupt", "751 bytes for 60"),
        (Fixture { missing: [0, -3], ..d() }, "corrupt", "387 bytes for 60 frames of 6"),
        (
            manifest("{\"path\":\"c\",\"start\":55,\"frames\":6}\n"),
            "corrupt",
            "line 5: 6 frames from 55",
        ),
        (
            manifest("{\"path\":\"c\",\"start\":44,\"frames\":2}\n"),
            "corrupt",
            "lines 1 and 5 share",
        ),
        (manifest("{\"path\":"), "corrupt", "line 5: "),
    ];
    for (fixture, kind, part) in cases {
        let error = open(&fixture).1.map(drop).unwrap_err();
        assert_eq!(error.kind().name(), kind, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    for (name, kept) in [("embeddings.bin", 20), ("labels.bin", 0)] {
        let dir = tempfile::tempdir().unwrap();
        Fixture::default().write(dir.path());
        let bytes = fs::read(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name), &bytes[..kept]).unwrap();
        let error = Corpus::open(dir.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("{name}: {kept} bytes, less than its header")), "{error}");
    }
    for name in ["labels.bin", "manifest.jsonl"] {
        let dir = tempfile::tempdir().unwrap();
        Fixture::default().write(dir.path());
        fs::remove_file(dir.path().join(name)).unwrap();
        let error = Corpus::open(dir.path()).map(drop).unwrap_err();
        assert_eq!(error.kind().name(), "not_found");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn an_invalid_class_and_a_cut_file_are_named() {
    let (dir, corpus) = open(&Fixture::default());
    let reader = Reader::new(Embedding::vector(WIDTH), corpus.unwrap().schema().heads(), 0);
    let labels = dir.path().join("labels.bin");
    let mut bytes = fs::read(&labels).unwrap();
    bytes[24 + 6 * 4 + 1] = 17;
    fs::write(&labels, &bytes).unwrap();
    let check = || sconce_data::verify(dir.path(), &|_| (), &AtomicBool::new(false)).unwrap();
    let found = check();
    assert_eq!((found.damaged.len(), found.unrecorded), (1, found.games - 1));
    assert!(found.damaged[0].reason.contains("label 17 of main_x"), "{:?}", found.damaged);
    let corpus = Corpus::open(dir.path()).unwrap();
    let view = &corpus.views(&[1]).unwrap()[0];
    let error = reader.sequence(view, 0..20).unwrap_err().to_string();
    assert!(error.contains("label 17 of main_x at frame 4"), "{error}");
    assert!(reader.sequence(view, 0..4).is_ok());
    for name in ["embeddings.bin", "labels.bin"] {
        Fixture::default().write(dir.path());
        let corpus = Corpus::open(dir.path()).unwrap();
        let view = &corpus.views(&[1]).unwrap()[0];
        fs::OpenOptions::new()
            .write(true)
            .open(dir.path().join(name))
            .unwrap()
            .set_len(40)
            .unwrap();
        let error = reader.sequence(view, 0..4).unwrap_err();
        assert_eq!(error.kind().name(), "corrupt");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn changed_contents_change_the_digest_of_contents_but_not_the_side_of_a_split() {
    let (dir, corpus) = open(&Fixture::default());
    let entries = |corpus: &Corpus| {
        let of = |game: &sconce_data::GameInfo| (game.digest.clone(), game.contents.clone());
        corpus.games().iter().map(of).collect::<Vec<_>>()
    };
    let before = entries(&corpus.unwrap());
    let labels = dir.path().join("labels.bin");
    let mut bytes = fs::read(&labels).unwrap();
    bytes[24] ^= 1;
    fs::write(&labels, &bytes).unwrap();
    let after = entries(&Corpus::open(dir.path()).unwrap());
    for (i, (before, after)) in before.iter().zip(&after).enumerate() {
        assert_eq!(before.0, after.0);
        assert_eq!(before.1 == after.1, i != 1, "game {i}");
    }
}
