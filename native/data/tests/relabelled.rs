//! Frames that were met in play, labelled by an expert: their views, and corpora that grow.
#![allow(clippy::disallowed_methods)]

mod support;

use std::path::Path;

use sconce_data::{
    Builder, Corpus, Filter, Mixture, Reader, Sampler, SamplerOptions, Sampling, Schema, View,
};
use sconce_data::{Share, verify};
use sconce_fixtures::Fixture;
use sconce_game::{Declaration, melee};
use sconce_nn::spec::{Embedding, Heads, Melee};
use sconce_tensor::{Kind, Result};
use serde_json::json;
use support::corpus;

/// The rows of a view, each with an answer and a weight.
fn rows(
    view: &View,
    answer: impl Fn(usize) -> Vec<f32>,
    weight: impl Fn(usize) -> f32,
) -> Vec<f32> {
    let row = |t: usize| {
        let mut raw = vec![0.0; view.raw_width()];
        view.raw(t, &mut raw).unwrap();
        [raw, answer(t), vec![weight(t)]].concat()
    };
    (0..view.len(0)).flat_map(row).collect()
}

fn built(dir: &Path, games: &[Vec<f32>]) -> Result<Corpus> {
    let mut builder = Builder::append(&Schema::relabelled(None), dir, None)?;
    games.iter().try_for_each(|rows| builder.add_rows(rows).map(drop))?;
    builder.finish()
}

/// The player's next input, as raw values.
fn next(view: &View, t: usize) -> Vec<f32> {
    view.input(t + 1).unwrap().unwrap()
}

fn labels(view: &View, t: usize, delay: usize, heads: &Heads) -> Vec<f32> {
    let mut out = vec![0.0; heads.num_labels()];
    view.labels(t, delay, false, heads, &mut out).unwrap();
    out
}

#[test]
fn an_expert_that_answers_as_the_player_did_gives_the_batches_of_the_replay() {
    let (dir, replays) = corpus(&[Fixture::default()]);
    let played = &replays.views(&[0]).unwrap()[0];
    let game = rows(played, |t| next(played, t), |_| 1.0);
    let relabelled = built(&dir.path().join("met"), &[game]).unwrap();
    let met = &relabelled.views(&[0]).unwrap()[0];
    assert_eq!(met.len(0), played.len(0));
    assert_eq!(relabelled.schema().game(), replays.schema().game());
    for embedding in [
        Embedding::melee(Melee::default()),
        Embedding::melee(Melee { queue_depth: 3, num_delays: 4, ..Melee::packed() }),
    ] {
        for delay in [0, 2] {
            let reader = Reader {
                queue_depth: 2,
                transition_weight: 3.0,
                ..Reader::new(embedding.clone(), replays.schema().heads(), delay)
            };
            // The states at the end of a game have their inputs, but with a delay no answer of the player.
            let n = played.len(delay);
            let (own, its) =
                (reader.sequence(met, 0..n).unwrap(), reader.sequence(played, 0..n).unwrap());
            assert_eq!(own.frames, its.frames);
            assert_eq!(own.queue, its.queue);
            if delay == 0 {
                assert_eq!((&own.labels, &own.weights), (&its.labels, &its.weights));
            }
            // The expert's answer belongs to its state, whatever the delay.
            let heads = &reader.heads;
            assert_eq!(labels(met, 7, delay, heads), labels(played, 7, 0, heads));
        }
    }
    assert!(verify(&dir.path().join("met"), &|_| (), &false.into()).unwrap().damaged.is_empty());
}

#[test]
fn the_answer_is_the_label_and_the_played_inputs_are_the_past() {
    let (dir, replays) = corpus(&[Fixture::default()]);
    let played = &replays.views(&[0]).unwrap()[0];
    let mut rest = vec![0.0; melee::CONTROLLER_WIDTH];
    rest[0] = 1.0;
    let game = rows(played, |_| rest.clone(), |t| if t % 3 == 0 { 0.0 } else { 0.5 });
    let mut unknown = game.clone();
    let width = melee::RAW_WIDTH + melee::CONTROLLER_WIDTH + 1;
    unknown[melee::PREVIOUS..=melee::PREVIOUS + melee::CONTROLLER_WIDTH].fill(0.0);
    let met = built(&dir.path().join("met"), &[game, unknown]).unwrap();
    let views = met.views(&[0, 1]).unwrap();
    let heads = met.schema().heads();
    let mut known = 0;
    for view in &views {
        let n = view.len(1);
        assert!((0..n).all(|t| labels(view, t, 1, &heads) == labels(view, 0, 1, &heads)));
        assert!(labels(view, 0, 0, &heads)[0] == 1.0);
        assert_eq!(view.answered(0).first(), Some(&1));
        assert!(view.answered(0).iter().all(|t| t % 3 != 0));
        let (mut before, mut its) = (vec![0.0; heads.num_labels()], vec![0.0; heads.num_labels()]);
        known += usize::from(view.previous(0, false, &heads, &mut before).unwrap());
        assert!(view.previous(5, false, &heads, &mut before).unwrap());
        assert!(played.previous(5, false, &heads, &mut its).unwrap());
        assert_eq!(before, its);
        // Mirrored labels are those of the mirrored input.
        view.labels(2, 0, true, &heads, &mut before).unwrap();
        assert_eq!(before[8], 16.0);
        let reader = Reader::new(met.schema().embedding(), heads.clone(), 0);
        let batch = reader.sequence(view, 0..6).unwrap();
        assert_eq!(batch.weights, [0.0, 0.5, 0.5, 0.0, 0.5, 0.5]);
    }
    assert_eq!(known, 1, "one of the games does not know its first input");
    // A mixture draws from both corpora with one reader.
    let reader = Reader::new(Embedding::melee(Melee::packed()), heads, 1);
    let options = SamplerOptions { window: 8, mirror: 0.5, ..SamplerOptions::default() };
    let first = Sampler::new(replays.views(&[0]).unwrap(), reader, options).unwrap();
    let share = Share { from: 0.5, to: 0.5, steps: 0 };
    let mixture = Mixture::new(first, vec![(views, share)]).unwrap();
    let weights = mixture.batch(0, 64).unwrap().weights;
    let halves = weights.iter().filter(|weight| **weight == 0.5).count();
    assert!((100..=300).contains(&halves), "{halves} of {}", weights.len());
    // Their stage and characters are known.
    let stage = met.games()[0].stage;
    let of = |stage| Filter { stages: vec![stage], ..Filter::default() };
    assert_eq!(of(stage).select(met.views(&[0, 1]).unwrap()).unwrap().0.len(), 2);
    assert!(of(stage + 1).select(met.views(&[0, 1]).unwrap()).is_err());
    let quality = Filter { min_quality: 1.0, ..Filter::default() };
    let refused = quality.select(met.views(&[0]).unwrap()).unwrap_err();
    assert_eq!(refused.kind(), Kind::Mismatch);
    // Flags have one byte and ids two.
    assert!(met.info().bytes < met.info().frames * width as u64 * 4);
}

#[test]
fn a_corpus_grows_and_loses_no_game() {
    let (dir, replays) = corpus(&[Fixture::default()]);
    let played = &replays.views(&[0]).unwrap()[0];
    let game = |weight: f32| rows(played, |t| next(played, t), move |_| weight);
    let into = dir.path().join("met");
    let sources = |corpus: &Corpus| {
        let mut all: Vec<String> = corpus.games().iter().map(|g| g.source.clone()).collect();
        all.sort();
        all
    };
    built(&into, &[game(1.0)]).unwrap();
    // The same game again is known, also within one call.
    let second = built(&into, &[game(1.0), game(2.0), game(2.0)]).unwrap();
    assert_eq!(sources(&second), ["game 0", "game 1"]);
    // An error adds nothing, also not the games before it.
    let mut bad = game(4.0);
    bad[4] = 9999.0;
    let refused = built(&into, &[game(3.0), bad]).unwrap_err();
    assert!(refused.to_string().contains("game 3, frame 0, own.action"), "{refused}");
    let files = || std::fs::read_dir(into.join("games")).unwrap().count();
    assert_eq!((files(), Corpus::open(&into).unwrap().games().len()), (2, 2));
    // A killed call leaves a game without an entry in the manifest, which the next call takes over.
    let manifest = std::fs::read(into.join("manifest.json")).unwrap();
    built(&into, &[game(3.0)]).unwrap();
    std::fs::write(into.join("manifest.json"), manifest).unwrap();
    assert_eq!(Corpus::open(&into).unwrap().games().len(), 2);
    assert_eq!(built(&into, &[game(5.0)]).unwrap().games().len(), 4);
    // Another schema is refused.
    let other = Builder::append(&Schema::melee(), &into, None);
    assert_eq!(other.err().map(|e| e.kind()), Some(Kind::Mismatch));
    // A missing game is named, and the manifest keeps it.
    let lost = into.join(&Corpus::open(&into).unwrap().games()[0].file);
    std::fs::rename(&lost, dir.path().join("away")).unwrap();
    assert_eq!(built(&into, &[game(6.0)]).unwrap_err().kind(), Kind::NotFound);
    std::fs::write(
        &lost,
        vec![7; std::fs::metadata(dir.path().join("away")).unwrap().len() as usize],
    )
    .unwrap();
    let damaged = built(&into, &[game(6.0)]).unwrap_err();
    assert_eq!(damaged.kind(), Kind::Corrupt);
    std::fs::rename(dir.path().join("away"), &lost).unwrap();
    assert_eq!(Corpus::open(&into).unwrap().games().len(), 4);
}

#[test]
fn a_declared_game_is_relabelled_too() {
    let declaration: Declaration = serde_json::from_value(json!({
        "name": "walk", "version": 1,
        "fields": [{"name": "x", "kind": "number"}, {"name": "at", "kind": {"vector": 2}}],
        "input": [{"name": "go", "kind": {"flags": ["left", "right"]}},
                  {"name": "power", "kind": {"axis": {"min": 1.0, "max": 2.0, "classes": 3}}}],
    }))
    .unwrap();
    let schema = Schema::relabelled(Some(declaration));
    let text = serde_json::to_string(&schema).unwrap();
    assert_eq!(serde_json::from_str::<Schema>(&text).unwrap(), schema);
    let dir = tempfile::tempdir().unwrap();
    let mut builder = Builder::append(&schema, &dir.path().join("met"), None).unwrap();
    let first = [0.5, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 2.0, 1.0];
    let second = [0.25, 3.0, 4.0, 1.0, 0.0, 1.0, 1.5, 0.0, 1.0, 1.0, 0.0];
    builder.add_rows(&[first, second].concat()).unwrap();
    let corpus = builder.finish().unwrap();
    let (view, heads) = (&corpus.views(&[0]).unwrap()[0], schema.heads());
    let mut raw = [0.0; 7];
    view.raw(1, &mut raw).unwrap();
    assert_eq!(raw, second[..7]);
    view.raw(0, &mut raw).unwrap();
    assert_eq!(raw, first[..7]);
    assert_eq!(labels(view, 0, 0, &heads), [1.0, 0.0, 2.0]);
    assert_eq!(labels(view, 1, 0, &heads), [0.0, 1.0, 0.0]);
    assert_eq!((view.len(0), view.len(1), view.answered(0)), (2, 1, vec![0]));
    // The newest input before the answer to state 0 with a delay of one frame led to state 1.
    let mut before = [0.0; 3];
    assert!(view.labels_before(0, 1, false, &heads, &mut before).unwrap());
    assert_eq!(before, [0.0, 1.0, 1.0]);
    assert!(!view.labels_before(0, 0, false, &heads, &mut before).unwrap());
}

#[test]
fn a_game_is_read_with_the_delay_of_its_play() {
    let (dir, replays) = corpus(&[Fixture::default()]);
    let played = &replays.views(&[0]).unwrap()[0];
    let game = rows(played, |t| next(played, t), |_| 1.0);
    let met = dir.path().join("met");
    let mut builder = Builder::append(&Schema::relabelled(None), &met, Some(3)).unwrap();
    builder.add_rows(&game).unwrap();
    let corpus = builder.finish().unwrap();
    let known = &corpus.views(&[0]).unwrap()[0];
    let unknown = &built(&dir.path().join("unknown"), &[game]).unwrap().views(&[0]).unwrap()[0];
    let melee = Melee { queue_depth: 3, num_delays: 9, ..Melee::packed() };
    let heads = corpus.schema().heads();
    let read = |view: &View, delay| {
        let reader = Reader {
            queue_depth: 2,
            ..Reader::new(Embedding::melee(melee.clone()), heads.clone(), delay)
        };
        reader.sequence(view, 0..20).unwrap()
    };
    let (own, same, other) = (read(known, 0), read(unknown, 3), read(unknown, 0));
    assert_eq!((&own.frames, &own.queue, &own.labels), (&same.frames, &same.queue, &same.labels));
    assert_ne!(own.frames, other.frames);
    assert_eq!((known.len(0), known.len(7)), (unknown.len(3), unknown.len(3)));
    assert_eq!(serde_json::to_value(known.info()).unwrap()["frame_delay"], 3);
    assert!(serde_json::to_value(unknown.info()).unwrap().get("frame_delay").is_none());
}

#[test]
fn a_known_game_with_another_frame_delay_is_refused() {
    let (dir, replays) = corpus(&[Fixture::default()]);
    let played = &replays.views(&[0]).unwrap()[0];
    let game = rows(played, |t| next(played, t), |_| 1.0);
    for (at, first, second, said) in [
        ("without", None, Some(3), "expected none, got 3"),
        ("with", Some(3), None, "expected 3, got none"),
    ] {
        let met = dir.path().join(at);
        let append = |delay| {
            let mut builder = Builder::append(&Schema::relabelled(None), &met, delay)?;
            let added = builder.add_rows(&game)?;
            builder.finish().map(|corpus| (added, corpus.games().len()))
        };
        assert_eq!(append(first).unwrap(), (true, 1));
        assert_eq!(append(first).unwrap(), (false, 1));
        let refused = append(second).unwrap_err();
        let message = refused.to_string();
        assert_eq!(refused.kind(), Kind::Mismatch);
        assert!(message.contains("game 1, frame_delay of a known game"), "{message}");
        assert!(message.contains(said), "{message}");
        assert_eq!(append(first).unwrap(), (false, 1));
    }
}

fn walk() -> Schema {
    let declaration: Declaration = serde_json::from_value(json!({
        "name": "walk", "version": 1, "fields": [{"name": "x", "kind": "number"}],
        "input": [{"name": "go", "kind": {"flags": ["left"]}}],
    }))
    .unwrap();
    Schema::relabelled(Some(declaration))
}

/// A game of 60 frames of [`walk`]: the played button, and the answered button with its weight, in each frame.
fn walked(dir: &Path, played: fn(usize) -> f32, answer: fn(usize) -> (f32, f32)) -> Corpus {
    let row = |t: usize| {
        let (answer, weight) = answer(t);
        [t as f32 + 0.5, 1.0, played(t), answer, weight]
    };
    let mut builder = Builder::append(&walk(), dir, Some(1)).unwrap();
    builder.add_rows(&(0..60).flat_map(row).collect::<Vec<_>>()).unwrap();
    builder.finish().unwrap()
}

#[test]
fn frames_without_an_answer_are_not_drawn_more_often() {
    let dir = tempfile::tempdir().unwrap();
    let drawn = |corpus: &Corpus, sampling| {
        let reader = Reader::new(walk().embedding(), walk().heads(), 0);
        let options = SamplerOptions {
            window: 4,
            sampling,
            action_oversample: 50.0,
            ..SamplerOptions::default()
        };
        let sampler = Sampler::new(corpus.views(&[0]).unwrap(), reader, options).unwrap();
        sampler.batch(0, 64).unwrap()
    };
    // The placeholder of a frame without an answer is a pressed button.
    let skipping = walked(
        &dir.path().join("skipping"),
        |_| 0.0,
        |t| match t % 5 {
            2 => (1.0, 0.0),
            _ => (0.0, 1.0),
        },
    );
    for sampling in [Sampling::Buttons, Sampling::Transitions] {
        assert_eq!(drawn(&skipping, sampling), drawn(&skipping, Sampling::Shuffled));
    }
    // An answer that differs from the played input is a change, also if all answers are the same.
    let differing = walked(&dir.path().join("differing"), |t| (t == 30).into(), |_| (0.0, 1.0));
    let batch = drawn(&differing, Sampling::Transitions);
    assert_ne!(batch, drawn(&differing, Sampling::Shuffled));
    let around = batch.frames.continuous.chunks_exact(batch.frames.continuous.len() / 64);
    let near = around.filter(|window| window.contains(&29.5)).count();
    assert!(near > 24, "{near} of 64 windows have the answer after the changed input");
}

#[test]
fn the_last_states_of_a_game_without_a_digest_are_verified() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = walked(dir.path(), |_| 0.0, |_| (0.0, 1.0));
    let shard = dir.path().join(&corpus.games()[0].file);
    assert_eq!((corpus.views(&[0]).unwrap()[0].len(0), corpus.games()[0].frames), (59, 60));
    let manifest = dir.path().join("manifest.json");
    let mut listed: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    listed["games"][0]["contents"] = "".into();
    std::fs::write(&manifest, listed.to_string()).unwrap();
    let mut bytes = std::fs::read(&shard).unwrap();
    let contents = format!("\\\"contents\\\":\\\"{}\\\"", corpus.games()[0].contents);
    let none = format!("{:width$}", "\\\"contents\\\":\\\"\\\"", width = contents.len());
    let mut replace = |from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|own| own == from).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
        std::fs::write(&shard, &bytes).unwrap();
        verify(dir.path(), &|_| (), &false.into()).unwrap()
    };
    let whole = replace(contents.as_bytes(), none.as_bytes());
    assert_eq!((whole.unrecorded, whole.damaged), (1, vec![]));
    let found = replace(&59.5f32.to_le_bytes(), &f32::NAN.to_le_bytes());
    assert!(found.damaged[0].reason.contains("frame 59, number 0"), "{:?}", found.damaged);
}
