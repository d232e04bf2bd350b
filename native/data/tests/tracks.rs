//! Tracks: whole games, in order, with each frame once.

mod support;

use sconce_data::{Batch, Corpus, Reader, SamplerOptions, Schema, Track, Tracks, VectorGame, View};
use sconce_fixtures::Fixture;
use sconce_nn::spec::{Embedding, HeadKind, Heads, HeadsKind, Melee};
use sconce_tensor::pool;
use support::corpus;

const LENGTHS: [usize; 6] = [25, 7, 40, 10, 31, 1];
const WINDOW: usize = 10;

/// Games with one number per frame: 1000 times the game, plus the frame, plus a half.
fn counted() -> (tempfile::TempDir, Vec<View>, Reader) {
    let dir = tempfile::tempdir().unwrap();
    let heads = vec![("move".to_owned(), HeadKind::Categorical(5))];
    let game = |(g, &n): (usize, &usize)| VectorGame {
        x: (0..n).map(|t| (1000 * g + t) as f32 + 0.5).collect(),
        labels: (0..n).map(|t| (t % 5) as f32).collect(),
    };
    let games: Vec<_> = LENGTHS.iter().enumerate().map(game).collect();
    let corpus = Corpus::build(&Schema::vectors(1, heads), &games, dir.path()).unwrap();
    let all: Vec<_> = (0..games.len()).collect();
    let reader = Reader::new(Embedding::vector(1), corpus.schema().heads(), 0);
    (dir, corpus.views(&all).unwrap(), reader)
}

fn tracks(count: usize, skip: usize) -> (tempfile::TempDir, Tracks) {
    let (dir, views, reader) = counted();
    let options = SamplerOptions { window: WINDOW, seed: 3, ..SamplerOptions::default() };
    (dir, Tracks::new(views, reader, options, count, skip).unwrap())
}

fn row(batch: &Batch, track: usize) -> &[f32] {
    &batch.frames.continuous[track * WINDOW..(track + 1) * WINDOW]
}

#[test]
fn a_walk_to_a_far_step_visits_only_steps_at_which_a_track_takes_a_game() {
    let (_dir, mut slow) = tracks(3, 0);
    let (_other, mut fast) = tracks(3, 0);
    let last = (0..2000).map(|step| slow.at(step)).last().unwrap();
    assert_eq!(fast.at(1999), last);
    // One call moves a bounded part of the way, and the next call resumes there.
    let far = 1 << 40;
    assert!((0..100).all(|_| !fast.approach(far)));
    assert_eq!(fast.at(1999), last);
}

#[test]
fn a_track_walks_games_to_their_ends_and_shows_no_frame_twice() {
    let (_dir, mut tracks) = tracks(2, 0);
    // A corpus sorts its games by digest.
    let lengths: Vec<usize> = tracks.views().iter().map(|view| view.len(0)).collect();
    let game = |view: usize| LENGTHS.iter().position(|n| *n == lengths[view]).unwrap();
    let mut before: Vec<Option<Track>> = vec![None; 2];
    let mut shown = vec![];
    for step in 0..120 {
        let (batch, now) = tracks.batch(step, 0).unwrap();
        for (i, track) in now.iter().enumerate() {
            let length = lengths[track.view];
            assert_eq!(track.frames, WINDOW.min(length - track.start));
            match before[i] {
                Some(b) if b.start + b.frames < lengths[b.view] => {
                    assert_eq!((track.view, track.start), (b.view, b.start + WINDOW));
                    assert!(!track.fresh);
                }
                Some(_) => assert!(track.fresh && track.start == 0, "{track:?}"),
                None => assert!(track.fresh),
            }
            for (k, x) in row(&batch, i).iter().enumerate() {
                let (want, weight) = match k < track.frames {
                    true => ((1000 * game(track.view) + track.start + k) as f32 + 0.5, 1.0),
                    false => (0.0, 0.0),
                };
                assert_eq!((*x, batch.weights[i * WINDOW + k]), (want, weight));
            }
            if track.fresh {
                shown.push(track.view);
            }
            before[i] = Some(*track);
        }
    }
    // Each epoch shows each game once, in its own order.
    let epochs: Vec<&[usize]> = shown.chunks_exact(LENGTHS.len()).collect();
    assert!(epochs.len() > 5);
    for epoch in &epochs {
        let mut games = epoch.to_vec();
        games.sort_unstable();
        assert_eq!(games, [0, 1, 2, 3, 4, 5]);
    }
    assert!(epochs.iter().any(|epoch| epoch != &epochs[0]));
    // 3 + 1 + 4 + 1 + 4 + 1 windows.
    assert_eq!(tracks.steps_per_epoch(), 7);
}

#[test]
fn a_step_is_the_same_after_any_other_step() {
    let (_dir, mut first) = tracks(3, 0);
    let in_order: Vec<_> = (0..50).map(|step| first.at(step)).collect();
    for step in [49, 20, 21, 0, 33, 33] {
        assert_eq!(first.at(step), in_order[step as usize]);
        assert_eq!(tracks(3, 0).1.at(step), in_order[step as usize]);
    }
}

#[test]
fn burn_in_covers_the_starts_of_games_and_shorter_games_are_skipped() {
    let (_dir, mut tracks) = tracks(2, 7);
    assert_eq!((tracks.short_views(), tracks.views().len()), (2, 4));
    for step in 0..60 {
        let (batch, now) = tracks.batch(step, 7).unwrap();
        for (i, track) in now.iter().enumerate() {
            let counting = batch.weights[i * WINDOW..][..WINDOW].iter().filter(|w| **w > 0.0);
            let burned = if track.fresh { 7 } else { 0 };
            assert_eq!(counting.count(), track.frames - burned);
        }
    }
}

#[test]
fn a_game_is_mirrored_as_a_whole_on_any_number_of_threads() {
    let made = |seed| Fixture { seed, frames: 700 + 60 * seed as usize, ..Fixture::default() };
    let (_dir, corpus) = corpus(&[made(1), made(2)]);
    let views = corpus.views(&[0, 1]).unwrap();
    let heads = Heads::controller(HeadsKind::Independent);
    let reader = Reader::new(Embedding::melee(Melee::default()), heads, 2);
    let options = SamplerOptions { window: 50, mirror: 0.5, seed: 1, ..SamplerOptions::default() };
    let build = || Tracks::new(views.clone(), reader.clone(), options.clone(), 3, 0).unwrap();
    let (mut tracks, mut mirrored) = (build(), [0, 0]);
    let mut before = tracks.at(0);
    for step in 0..60 {
        let now = tracks.at(step);
        for (now, before) in now.iter().zip(&before) {
            assert!(now.fresh || now.mirror == before.mirror);
            mirrored[usize::from(now.mirror)] += usize::from(now.fresh);
        }
        before = now;
    }
    assert!(mirrored[0] > 3 && mirrored[1] > 3, "{mirrored:?}");

    let all = |threads| {
        pool::set_threads(threads).unwrap();
        let mut tracks = build();
        (0..10).map(|step| tracks.batch(step, 0).unwrap().0).collect::<Vec<_>>()
    };
    assert!(all(1) == all(3));
}
