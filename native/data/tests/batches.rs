//! Batches: windows, their order, their weights, and independence of the number of threads.

mod support;

use std::collections::HashSet;

use sconce_data::{Batch, Corpus, Reader, Sampler, SamplerOptions, Schema, VectorGame, View};
use sconce_fixtures::Fixture;
use sconce_nn::heads::NONE;
use sconce_nn::spec::{Embedding, HeadKind, Heads, HeadsKind, Melee};
use sconce_tensor::pool;
use support::corpus;

fn melee() -> (tempfile::TempDir, Vec<View>) {
    let made = |seed| Fixture { seed, frames: 700 + 10 * seed as usize, ..Fixture::default() };
    let (dir, corpus) = corpus(&[made(1), made(2)]);
    let views = corpus.views(&[0, 1]).unwrap();
    (dir, views)
}

fn reader(delay: usize) -> Reader {
    let heads = Heads::controller(HeadsKind::Independent);
    Reader::new(Embedding::melee(Melee::default()), heads, delay)
}

fn options(window: usize, stride: usize) -> SamplerOptions {
    SamplerOptions { window, stride, seed: 3, ..SamplerOptions::default() }
}

/// Games with one number per frame: 1000 times the game, plus the frame.
fn counted(lengths: &[usize]) -> (tempfile::TempDir, Vec<View>, Reader) {
    let dir = tempfile::tempdir().unwrap();
    let heads = vec![("move".to_owned(), HeadKind::Categorical(5))];
    let games: Vec<_> = lengths
        .iter()
        .enumerate()
        .map(|(g, &n)| VectorGame {
            x: (0..n).map(|t| (1000 * g + t) as f32).collect(),
            labels: (0..n).map(|t| (t % 5) as f32).collect(),
        })
        .collect();
    let schema = Schema::vectors(1, heads);
    let corpus = Corpus::build(&schema, &games, dir.path()).unwrap();
    let all: Vec<_> = (0..games.len()).collect();
    let reader = Reader::new(Embedding::vector(1), corpus.schema().heads(), 0);
    (dir, corpus.views(&all).unwrap(), reader)
}

#[test]
fn an_epoch_shows_each_window_once_and_windows_stay_inside_their_games() {
    let (_dir, views, reader) = counted(&[100, 57, 9, 10, 233]);
    let sampler = Sampler::new(views, reader, options(10, 10)).unwrap();
    assert_eq!((sampler.short_views(), sampler.windows()), (1, 9 + 4 + 1 + 22));
    assert_eq!(sampler.steps_per_epoch(4), 9);
    for epoch in 0..3 {
        let mut seen = HashSet::new();
        for step in 0..9 {
            let batch = sampler.batch(9 * epoch + step, 4).unwrap();
            for (x, labels) in batch.frames.continuous.chunks(10).zip(batch.labels.chunks(10)) {
                assert!(x.windows(2).all(|w| w[1] == w[0] + 1.0), "{x:?}");
                assert!(x[0] as u32 / 1000 == x[9] as u32 / 1000);
                assert!(x.iter().zip(labels).all(|(x, &l)| (*x as u32 % 1000) % 5 == l as u32));
                assert!(x.iter().all(|x| seen.insert(*x as u32)), "a frame is shown twice");
            }
        }
        assert_eq!(seen.len(), 360);
    }
    assert_ne!(sampler.batch(0, 4).unwrap(), sampler.batch(9, 4).unwrap());
}

#[test]
fn a_batch_depends_on_seed_and_step_and_not_on_threads() {
    let (_dir, views) = melee();
    let options = SamplerOptions { mirror: 0.5, ..options(30, 7) };
    let sampler = Sampler::new(views.clone(), reader(1), options.clone()).unwrap();
    let all = |sampler: &Sampler| -> Vec<Batch> {
        [0, 1, 50].map(|step| sampler.batch(step, 16).unwrap()).into()
    };
    let many = all(&sampler);
    pool::set_threads(1).unwrap();
    assert_eq!(all(&sampler), many);
    pool::set_threads(pool::available()).unwrap();
    let other = SamplerOptions { seed: 4, ..options };
    assert_ne!(all(&Sampler::new(views, reader(1), other).unwrap()), many);
}

#[test]
fn mirroring_swaps_half_of_the_windows_whole() {
    let (_dir, views) = melee();
    let mirrored = SamplerOptions { mirror: 0.5, ..options(20, 5) };
    let plain = Sampler::new(views.clone(), reader(0), options(20, 5)).unwrap();
    let mirrored = Sampler::new(views, reader(0), mirrored).unwrap();
    let (a, b) = (plain.batch(2, 64).unwrap(), mirrored.batch(2, 64).unwrap());
    assert_eq!(a.frames.ids, b.frames.ids);
    let mut swapped = 0;
    for (a, b) in a.labels.chunks(20 * 13).zip(b.labels.chunks(20 * 13)) {
        let flip = a.chunks(13).zip(b.chunks(13)).all(|(a, b)| a[8] == 16.0 - b[8]);
        assert!(flip || a == b);
        swapped += usize::from(flip);
    }
    assert!((16..48).contains(&swapped), "{swapped}");
    let previous = b.frames.previous.chunks(13).skip(1).zip(b.labels.chunks(13));
    let follows = previous.enumerate().filter(|(i, _)| i % 20 != 19);
    assert!(follows.into_iter().all(|(_, (previous, label))| previous == label));
}

/// Features expected for a controller's labels: bits, axes from -1 to 1, the shoulder from 0 to 1.
fn features(labels: &[f32]) -> Vec<f32> {
    let (bits, rest) = labels.split_at(8);
    let (axes, shoulder) = rest.split_at(4);
    let axis = |l: &f32| (l / 16.0 - 0.5) * 2.0;
    bits.iter().copied().chain(axes.iter().map(axis)).chain([shoulder[0] / 4.0]).collect()
}

fn queued(delay: usize) -> Reader {
    let melee = Melee { queue_depth: 4, num_delays: 9, ..Melee::default() };
    let heads = Heads::controller(HeadsKind::Independent);
    Reader::new(Embedding::melee(melee), heads, delay)
}

/// Offsets of the inputs and of the delay id in the features of [`queued`].
fn places(reader: &Reader) -> (usize, usize) {
    let at = |name| reader.embedding.schema().iter().find(|f| f.name == name).unwrap().offset;
    (at("prev_buttons.a"), at("delay_id"))
}

#[test]
fn a_queue_holds_the_labels_of_the_inputs_before_the_answer_at_any_delay() {
    let (_dir, views) = melee();
    let (reader, delay) = (queued(3), 3);
    let (queue, delay_id) = places(&reader);
    let width = reader.embedding.continuous_width();
    let whole = reader.sequence(&views[0], 0..60).unwrap();
    // The input of the frame before answer `i`. Before the first state's input there is none.
    let mut first = vec![0.0; 13];
    assert!(views[0].previous(0, false, &reader.heads, &mut first).unwrap());
    let input = |i: isize| match i {
        -1 => features(&first),
        i if i < -1 => vec![0.0; 13],
        i => {
            let mut labels = vec![0.0; 13];
            views[0].labels(i as usize, 0, false, &reader.heads, &mut labels).unwrap();
            features(&labels)
        }
    };
    for (t, row) in whole.frames.continuous.chunks(width).enumerate() {
        for k in 0..4 {
            let got = &row[queue + 13 * k..][..13];
            assert_eq!(got, input((t + delay) as isize - 1 - k as isize), "{t} {k}");
        }
        let one_hot: Vec<f32> = (0..9).map(|i| f32::from(u8::from(i == delay))).collect();
        assert_eq!(row[delay_id..delay_id + 9], one_hot[..]);
        let newest = &whole.frames.previous[13 * t..][..13];
        assert_eq!(features(newest), row[queue..queue + 13]);
    }
    // With a queue depth of 1, the previous action is still the input that led to the frame.
    let one = Melee { num_delays: 9, ..Melee::default() };
    let one = Reader { embedding: Embedding::melee(one), ..reader.clone() };
    let shown = one.sequence(&views[0], 0..60).unwrap();
    let plain = Reader::new(Embedding::melee(Melee::default()), reader.heads, 3);
    assert_eq!(shown.frames.previous, plain.sequence(&views[0], 0..60).unwrap().frames.previous);
}

#[test]
fn a_queue_is_mirrored_forgotten_and_delayed_with_its_window_on_any_number_of_threads() {
    let (_dir, views) = melee();
    let reader = queued(2);
    let (queue, delay_id) = places(&reader);
    let width = reader.embedding.continuous_width();
    let options = SamplerOptions {
        mirror: 0.5,
        previous_dropout: 0.2,
        frame_delay_max: Some(18),
        ..options(20, 5)
    };
    let sampler = Sampler::new(views, reader, options).unwrap();
    let batch = sampler.batch(1, 64).unwrap();
    let (mut forgotten, mut delays) = (0, HashSet::new());
    for b in 0..64 {
        let rows = &batch.frames.continuous[b * 20 * width..][..20 * width];
        let row = |t: usize| &rows[t * width..][..width];
        let class = |t: usize| row(t)[delay_id..delay_id + 9].iter().position(|&v| v == 1.0);
        delays.insert(class(0).unwrap());
        for t in 4..20 {
            assert_eq!(class(t), class(0));
            let at = 13 * (20 * b + t);
            let known = batch.frames.previous[at] != NONE;
            forgotten += usize::from(!known);
            for k in 0..4 {
                // The label of the frame before is the newest input, mirrored with its window.
                let label = &batch.labels[at - 13 * (k + 1)..][..13];
                let want = if known { features(label) } else { vec![0.0; 13] };
                assert_eq!(row(t)[queue + 13 * k..][..13], want[..]);
            }
        }
    }
    assert!((100..310).contains(&forgotten), "{forgotten}");
    assert_eq!(delays, (2..=8).collect());
    pool::set_threads(1).unwrap();
    assert_eq!(sampler.batch(1, 64).unwrap(), batch);
    pool::set_threads(pool::available()).unwrap();
}

#[test]
fn weights_follow_neutral_frames_and_changes() {
    let dir = tempfile::tempdir().unwrap();
    let heads = Heads::controller(HeadsKind::Independent);
    let rest = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8.0, 8.0, 3.0, 8.0, 0.0];
    let (mut press, mut lean) = (rest, rest);
    (press[1], lean[9]) = (1.0, 9.0);
    let actions = [rest, rest, press, press, lean, rest];
    let game = VectorGame { x: vec![0.0; 6], labels: actions.concat() };
    let corpus = Corpus::build(&Schema::vector(1, &heads), &[game], dir.path()).unwrap();
    let view = &corpus.views(&[0]).unwrap()[0];
    let plain = Reader::new(Embedding::vector(1), heads, 0);
    let weighed = Reader { neutral_weight: 0.25, transition_weight: 3.0, ..plain.clone() };
    assert_eq!(plain.sequence(view, 0..6).unwrap().weights, [1.0; 6]);
    let weights = weighed.sequence(view, 0..6).unwrap().weights;
    assert_eq!(weights, [0.25, 0.25, 3.0, 1.0, 3.0, 0.75]);
    let later = Reader { delay: 2, ..weighed };
    assert_eq!(later.sequence(view, 0..4).unwrap().weights, [3.0, 1.0, 3.0, 0.75]);
}

#[test]
fn windows_ending_at_a_frame_are_the_past_and_padding() {
    let (_dir, views, reader) = counted(&[30]);
    let batch = reader.windows_ending_at(&views[0], &[2, 0, 29], 5).unwrap();
    assert_eq!((batch.frames.batch, batch.frames.time), (3, 5));
    assert_eq!(batch.frames.continuous[..5], [0.0, 0.0, 0.0, 1.0, 2.0]);
    assert_eq!(batch.weights[..5], [0.0, 0.0, 1.0, 1.0, 1.0]);
    assert_eq!(batch.frames.continuous[5..10], [0.0; 5]);
    assert_eq!(batch.frames.continuous[10..], [25.0, 26.0, 27.0, 28.0, 29.0]);
    assert_eq!(batch.labels[..5], [0.0, 0.0, 0.0, 1.0, 2.0]);
    assert_eq!(batch.frames.previous[..5], [NONE, NONE, NONE, 0.0, 1.0]);
    let beyond = reader.windows_ending_at(&views[0], &[30], 5);
    assert_eq!(beyond.map_err(|e| e.kind().name()), Err("out_of_range"));
    assert_eq!(reader.windows_ending_at(&views[0], &[], 5).unwrap().frames.batch, 0);
}

#[test]
fn a_sequence_is_the_game_and_windows_are_cut_from_it() {
    let (_dir, views) = melee();
    let reader = reader(2);
    let n = views[1].len(2);
    let whole = reader.sequence(&views[1], 0..n).unwrap();
    assert_eq!((whole.frames.batch, whole.frames.time, whole.weights.len()), (1, n, n));
    let ends = reader.windows_ending_at(&views[1], &[200, 201], 60).unwrap();
    let width = reader.embedding.continuous_width();
    assert_eq!(
        ends.frames.continuous[..60 * width],
        whole.frames.continuous[141 * width..201 * width]
    );
    assert_eq!(ends.labels[60 * 13..], whole.labels[142 * 13..202 * 13]);
    assert!(whole.frames.continuous.iter().all(|v| v.is_finite()));
}

#[test]
fn a_sampler_refuses_invalid_options_and_views() {
    let (_dir, views, reader) = counted(&[30]);
    let kind = |views: &[View], options| {
        Sampler::new(views.to_vec(), reader.clone(), options).map_err(|e| e.kind().name()).err()
    };
    assert_eq!(kind(&views, options(0, 1)), Some("out_of_range"));
    assert_eq!(kind(&views, options(5, 0)), Some("out_of_range"));
    assert_eq!(kind(&views, options(31, 1)), Some("not_found"));
    let mirror = SamplerOptions { mirror: 0.5, ..options(5, 5) };
    assert_eq!(kind(&views, mirror), Some("mismatch"));
    let (_dir, replays) = melee();
    assert_eq!(kind(&replays, options(5, 5)), Some("mismatch"));
}
