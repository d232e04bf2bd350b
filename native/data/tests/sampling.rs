//! Sampling and augmentation of windows.

mod support;

use std::collections::BTreeMap;

use sconce_data::{
    Batch, Corpus, Filter, LossOn, Mixture, Reader, Sampler, SamplerOptions, Sampling, Schema,
    Tracks, VectorGame, View,
};
use sconce_fixtures::Fixture;
use sconce_nn::heads::NONE;
use sconce_nn::spec::{Embedding, HeadKind, Heads, HeadsKind, Melee};
use sconce_tensor::pool;
use support::corpus;

/// Games with one number per frame, 1000 times the game plus the frame. The label is `of(frame)`.
fn counted(lengths: &[usize], of: fn(usize) -> f32) -> (tempfile::TempDir, Corpus, Reader) {
    let dir = tempfile::tempdir().unwrap();
    let heads = vec![("move".to_owned(), HeadKind::Categorical(60))];
    let game = |(g, &n): (usize, &usize)| VectorGame {
        x: (0..n).map(|t| (1000 * g + t) as f32).collect(),
        labels: (0..n).map(of).collect(),
    };
    let games: Vec<_> = lengths.iter().enumerate().map(game).collect();
    let corpus = Corpus::build(&Schema::vectors(1, heads), &games, dir.path()).unwrap();
    let reader = Reader::new(Embedding::vector(1), corpus.schema().heads(), 0);
    (dir, corpus, reader)
}

fn views(corpus: &Corpus) -> Vec<View> {
    corpus.views(&(0..corpus.games().len()).collect::<Vec<_>>()).unwrap()
}

fn options(sampling: Sampling) -> SamplerOptions {
    SamplerOptions { window: 10, stride: 10, sampling, seed: 3, ..SamplerOptions::default() }
}

fn batches(sampler: &Sampler, steps: u64) -> Vec<Batch> {
    (0..steps).map(|step| sampler.batch(step, 32).unwrap()).collect()
}

/// Counts the windows of each game, by the thousands of their first number.
fn by_game(batches: &[Batch]) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for x in batches.iter().flat_map(|b| b.frames.continuous.chunks(10)) {
        assert!(x.windows(2).all(|w| w[1] == w[0] + 1.0), "{x:?}");
        *counts.entry(x[0] as u32 / 1000).or_default() += 1;
    }
    counts
}

#[test]
fn weighted_games_are_drawn_by_their_weights() {
    let (_dir, corpus, reader) = counted(&[100, 300, 200], |_| 0.0);
    // A corpus sorts its games by digest.
    let weight = |source: &str| match source {
        "game 0" => 0.0,
        "game 1" => 1.0,
        _ => 4.5,
    };
    let weights: Vec<f64> = corpus.games().iter().map(|g| weight(&g.source)).collect();
    let weighted = SamplerOptions { weights: weights.clone(), ..options(Sampling::Weighted) };
    let sampler = Sampler::new(views(&corpus), reader.clone(), weighted).unwrap();
    let counts = by_game(&batches(&sampler, 100));
    // 30 windows of weight 1 and 20 of weight 4.5: one in four has weight 1.
    assert_eq!(counts.get(&0), None);
    let share = counts[&1] as f64 / 3200.0;
    assert!((share - 0.25).abs() < 0.03, "{counts:?}");
    let refused = |weights| {
        let options = SamplerOptions { weights, ..options(Sampling::Weighted) };
        Sampler::new(views(&corpus), reader.clone(), options).unwrap_err().to_string()
    };
    assert!(refused(vec![1.0]).contains("expected one for each game, got 1"));
    for (games, fits) in [(2, false), (3, true), (4, false)] {
        assert_eq!(sampler.options().check_weights(games).is_ok(), fits);
    }
    assert!(refused(vec![0.0; 3]).starts_with("sum of weights: 0"));
    assert!(refused(vec![1.0, -1.0, 1.0]).starts_with("weights[1]: -1"));
    assert!(refused(vec![1.0, f64::NAN, 1.0]).starts_with("weights[1]: NaN"));
}

#[test]
fn windows_around_changes_are_drawn_more_often() {
    // The action changes every 50 frames.
    let (_dir, corpus, reader) = counted(&[1000, 500], |t| (t / 50) as f32);
    let new = |options| Sampler::new(views(&corpus), reader.clone(), options);
    let by =
        |action_oversample| SamplerOptions { action_oversample, ..options(Sampling::Transitions) };
    let share = |action_oversample| {
        let sampler = new(by(action_oversample)).unwrap();
        let all = batches(&sampler, 40);
        by_game(&all);
        let windows = all.iter().flat_map(|b| b.labels.chunks(10));
        windows.filter(|w| w[0] != w[9]).count() as f64 / 1280.0
    };
    let (plain, often) = (share(1.0), share(50.0));
    assert!((plain - 0.18).abs() < 0.05, "{plain}");
    // There are 28 changes in 1500 frames. A share of 49 * 28 / (1500 + 49 * 28) of the windows is drawn
    // around a change, and one in ten of these begins with it.
    assert!((often - (0.478 * 0.9 + 0.522 * 0.18)).abs() < 0.06, "{often}");
    // A factor of 1 equals shuffling.
    let (once, shuffled) = (new(by(1.0)).unwrap(), new(options(Sampling::Shuffled)).unwrap());
    assert_eq!(batches(&once, 5), batches(&shuffled, 5));
    let error = new(by(0.9)).unwrap_err().to_string();
    assert!(error.starts_with("action_oversample: 0.9 is outside 1.."), "{error}");
}

/// Games with one number per frame, of which each has a class and a bit. The bit is set in every `every`-th frame.
fn pressed(lengths: &[usize], every: usize) -> (tempfile::TempDir, Corpus, Reader) {
    let dir = tempfile::tempdir().unwrap();
    let heads = vec![
        ("way".to_owned(), HeadKind::Categorical(3)),
        ("go".to_owned(), HeadKind::Bernoulli(1)),
    ];
    let game = |&n: &usize| VectorGame {
        x: (0..n).map(|t| t as f32).collect(),
        labels: (0..n).flat_map(|t| [(t % 3) as f32, (t % every == 0).into()]).collect(),
    };
    let games: Vec<_> = lengths.iter().map(game).collect();
    let corpus = Corpus::build(&Schema::vectors(1, heads), &games, dir.path()).unwrap();
    let reader = Reader::new(Embedding::vector(1), corpus.schema().heads(), 0);
    (dir, corpus, reader)
}

#[test]
fn frames_with_a_button_are_drawn_more_often_and_to_the_frame_that_has_the_loss() {
    let (_dir, corpus, reader) = pressed(&[1000, 600], 40);
    let last = |sampling, action_oversample, loss_on| {
        let own = SamplerOptions { action_oversample, loss_on, ..options(sampling) };
        let sampler = Sampler::new(views(&corpus), reader.clone(), own).unwrap();
        let all = batches(&sampler, 40);
        let windows = all.iter().flat_map(|b| b.labels.chunks(20));
        windows.filter(|labels| labels[19] == 1.0).count() as f64 / 1280.0
    };
    // One frame of 40 has a button. With a factor of 9, 8 / 40 of what is drawn from all is drawn beside it.
    let plain = last(Sampling::Shuffled, 3.0, LossOn::Last);
    assert!((plain - 0.025).abs() < 0.015, "{plain}");
    let often = last(Sampling::Buttons, 9.0, LossOn::Last);
    let drawn = 0.2 / 1.2;
    assert!((often - (drawn + (1.0 - drawn) * 0.025)).abs() < 0.04, "{often}");
    // Where all frames have a loss, the button is anywhere in the window.
    let anywhere = last(Sampling::Buttons, 9.0, LossOn::All);
    assert!((anywhere - (drawn * 0.1 + (1.0 - drawn) * 0.025)).abs() < 0.03, "{anywhere}");
    assert_eq!(
        SamplerOptions { loss_on: LossOn::Last, ..options(Sampling::Shuffled) }.silent(3),
        9
    );
    assert_eq!(options(Sampling::Shuffled).silent(3), 3);

    let (_dir, corpus, reader) = counted(&[100], |_| 0.0);
    let error = Sampler::new(views(&corpus), reader, options(Sampling::Buttons)).unwrap_err();
    assert_eq!(error.to_string(), "sampling: buttons: expected a head of bits, got none");
}

#[test]
fn frames_that_a_column_marks_are_drawn_more_often() {
    let (_dir, corpus, reader) = melee(&[made(1), made(2)]);
    let by = |name: Option<&str>| SamplerOptions {
        oversample_column: name.map(str::to_owned),
        action_oversample: 1000.0,
        loss_on: LossOn::Last,
        ..options(Sampling::Column)
    };
    let sampler = Sampler::new(views(&corpus), reader.clone(), by(Some("own.hitstun_frames_left")));
    let mixture = Mixture::from(sampler.unwrap());
    let mut raw = vec![0.0; views(&corpus)[0].raw_width()];
    let at = reader.embedding.game().column("own.hitstun_frames_left").unwrap();
    let (mut marked, mut all) = (0, 0);
    for step in 0..20 {
        for (view, start) in mixture.places(step, 32) {
            view.raw(start + 9, &mut raw).unwrap();
            marked += u32::from(raw[at] != 0.0);
            all += 1;
        }
    }
    // One frame of five has hitstun, and almost every window is drawn to one.
    assert!(f64::from(marked) / f64::from(all) > 0.97, "{marked} of {all}");
    let refused = |name| {
        let error = Sampler::new(views(&corpus), reader.clone(), by(name)).unwrap_err();
        error.to_string()
    };
    assert!(refused(Some("own.luck")).starts_with("column own.luck of a frame of melee"));
    assert!(refused(None).contains("expected an oversample_column"));
}

fn melee(fixtures: &[Fixture]) -> (tempfile::TempDir, Corpus, Reader) {
    let (dir, corpus) = corpus(fixtures);
    let heads = Heads::controller(HeadsKind::Independent);
    (dir, corpus, Reader::new(Embedding::melee(Melee::default()), heads, 0))
}

fn made(seed: u32) -> Fixture {
    Fixture { seed, frames: 700, ..Fixture::default() }
}

#[test]
fn characters_are_balanced_and_views_can_be_selected() {
    let (_dir, corpus, reader) = melee(&[made(1), made(2), made(3)]);
    let all = views(&corpus);
    let of = |characters: &[u8], players: &[String]| {
        let (characters, players) = (characters.to_vec(), players.to_vec());
        let filter = Filter { characters, players, ..Filter::default() };
        filter.select(all.clone()).map(|(views, _)| views)
    };
    // Three views of one character, one of the other.
    let few: Vec<View> = of(&[1], &[])
        .unwrap()
        .into_iter()
        .chain(of(&[2], &[]).unwrap().into_iter().take(1))
        .collect();
    assert_eq!(few.len(), 4);
    let slot = reader.embedding.id_slots().iter().position(|s| s.name == "own.character").unwrap();
    let num_ids = reader.embedding.num_ids();
    let ones = |sampling| {
        let sampler = Sampler::new(few.clone(), reader.clone(), options(sampling)).unwrap();
        let batches = batches(&sampler, 30);
        let first = batches.iter().flat_map(|batch| batch.frames.ids.chunks(10 * num_ids));
        first.filter(|ids| ids[slot] == 1).count() as f64 / 960.0
    };
    let (shuffled, balanced) = (ones(Sampling::Shuffled), ones(Sampling::Balanced));
    assert!(
        (shuffled - 0.75).abs() < 0.05 && (balanced - 0.5).abs() < 0.05,
        "{shuffled} {balanced}"
    );

    let tag = all[1].tag().unwrap().to_owned();
    assert!(of(&[1], &[]).unwrap().iter().all(|v| v.character() == Some(1)));
    assert!(of(&[], std::slice::from_ref(&tag)).unwrap().iter().all(|v| v.tag() == Some(&tag)));
    assert_eq!(of(&[], &[]).unwrap().len(), 6);
    assert_eq!(of(&[77], &[]).map(drop).unwrap_err().kind().name(), "not_found");
    let (_dir, vectors, one) = counted(&[100], |_| 0.0);
    let error = Sampler::new(views(&vectors), one, options(Sampling::Balanced)).unwrap_err();
    assert_eq!(error.kind().name(), "mismatch");
}

#[test]
fn every_window_has_its_own_delay() {
    let (_dir, corpus, reader) = counted(&[300], |t| (t % 60) as f32);
    let delayed = SamplerOptions { frame_delay_max: Some(18), ..options(Sampling::Shuffled) };
    let reader = Reader { delay: 2, queue_depth: 4, ..reader };
    let sampler = Sampler::new(views(&corpus), reader.clone(), delayed.clone()).unwrap();
    assert_eq!(sampler.windows(), (300 - 18 - 10 + 1) / 10);
    let mut delays = BTreeMap::<usize, usize>::new();
    for batch in batches(&sampler, 30) {
        for (w, x) in batch.frames.continuous.chunks(10).enumerate() {
            let labels = &batch.labels[10 * w..10 * w + 10];
            let delay = |k: usize| (labels[k] as usize + 60 - x[k] as usize % 60) % 60;
            assert!((0..10).all(|k| delay(k) == delay(0)), "{labels:?}");
            *delays.entry(delay(0)).or_default() += 1;
            // The queue holds the labels before, newest first.
            let queue = &batch.queue[40 * w..40 * w + 4];
            let before = |k: usize| match (x[0] as usize + delay(0)).checked_sub(k + 1) {
                Some(t) => (t % 60) as f32,
                None => NONE,
            };
            assert_eq!(queue, [before(0), before(1), before(2), before(3)]);
        }
    }
    assert_eq!(delays.keys().copied().collect::<Vec<_>>(), (2..=18).collect::<Vec<_>>());
    let tracks = Tracks::new(views(&corpus), reader.clone(), delayed, 4, 0).unwrap();
    let shown: Vec<_> = (0..40).flat_map(|step| tracks.clone().at(step)).collect();
    assert!(shown.iter().all(|track| (2..=18).contains(&track.delay)));
    assert!(shown.windows(2).any(|w| w[0].delay != w[1].delay));
    let wrong = SamplerOptions { frame_delay_max: Some(1), ..options(Sampling::Shuffled) };
    let refused = Sampler::new(views(&corpus), reader, wrong).unwrap_err().to_string();
    assert!(refused.starts_with("frame_delay_max: 1 is outside 2"), "{refused}");
}

#[test]
fn noise_and_dropout_change_their_share_of_a_batch_and_nothing_else() {
    let (_dir, corpus, reader) = melee(&[made(1), made(2)]);
    let changed = |change: fn(&mut SamplerOptions)| {
        let mut options = options(Sampling::Shuffled);
        change(&mut options);
        Sampler::new(views(&corpus), reader.clone(), options).unwrap().batch(3, 64).unwrap()
    };
    let plain = changed(|_| ());
    let noisy = changed(|o| (o.noise, o.noise_scale) = (0.3, 0.5));
    let width = reader.embedding.continuous_width();
    let pairs =
        plain.frames.continuous.chunks(10 * width).zip(noisy.frames.continuous.chunks(10 * width));
    let touched = pairs.filter(|(a, b)| a != b).count();
    assert!((10..30).contains(&touched), "{touched}");
    let rest = |b: &Batch| (b.frames.ids.clone(), b.frames.previous.clone(), b.labels.clone());
    assert_eq!(rest(&plain), rest(&noisy));

    let forgetful = changed(|o| o.previous_dropout = 0.25);
    let forgotten: Vec<bool> = forgetful
        .frames
        .previous
        .chunks(13)
        .map(|p| p.iter().all(|&label| label == NONE))
        .collect();
    let share = forgotten.iter().filter(|f| **f).count() as f64 / 640.0;
    assert!((share - 0.25).abs() < 0.06, "{share}");
    // A dropped action is also missing from the features.
    let features =
        plain.frames.continuous.chunks(width).zip(forgetful.frames.continuous.chunks(width));
    for ((a, b), forgotten) in features.zip(&forgotten) {
        assert_eq!(a != b, *forgotten);
    }
    assert_eq!(plain.labels, forgetful.labels);
}

#[test]
fn every_sampling_depends_only_on_seed_and_step() {
    let (_dir, corpus, reader) = melee(&[made(1), made(2)]);
    for sampling in
        [Sampling::Shuffled, Sampling::Weighted, Sampling::Balanced, Sampling::Transitions]
    {
        let options = SamplerOptions {
            weights: vec![1.0, 2.0],
            mirror: 0.5,
            noise: 0.5,
            previous_dropout: 0.1,
            frame_delay_max: Some(18),
            ..options(sampling)
        };
        let new = |options| Sampler::new(views(&corpus), reader.clone(), options).unwrap();
        let (a, b) = (new(options.clone()), new(options.clone()));
        let (one, other) = (a.batch(7, 16).unwrap(), pool::serial(|| b.batch(7, 16).unwrap()));
        assert!(one == other, "{sampling:?}");
        assert!(one != a.batch(8, 16).unwrap());
        assert!(one != new(SamplerOptions { seed: 9, ..options }).batch(7, 16).unwrap());
    }
    let shares = [("mirror", 1.5), ("noise", -0.1), ("previous_dropout", f32::NAN)];
    for (field, share) in shares {
        let mut wrong = options(Sampling::Shuffled);
        match field {
            "mirror" => wrong.mirror = share,
            "noise" => wrong.noise = share,
            _ => wrong.previous_dropout = share,
        }
        let error = Sampler::new(views(&corpus), reader.clone(), wrong).unwrap_err().to_string();
        assert!(error.starts_with(field), "{error}");
    }
}
