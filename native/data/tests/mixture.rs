//! Mixtures: windows of several corpora in one batch.
#![allow(clippy::disallowed_methods)]

use sconce_data::{Corpus, Mixture, Reader, Sampler, SamplerOptions, Schema, Share, VectorGame};
use sconce_nn::spec::{Embedding, Head, HeadKind, Heads, HeadsKind};

fn heads() -> Heads {
    let head = Head { name: "go".into(), kind: HeadKind::Categorical(4), hidden_size: 4 };
    Heads { parts: vec![head], ..Heads::controller(HeadsKind::Independent) }
}

/// A corpus whose labels are all `number`.
fn corpus(dir: &std::path::Path, number: u16, games: usize) -> Corpus {
    let game = |i: usize| VectorGame { x: vec![i as f32; 50], labels: vec![number.into(); 50] };
    let games: Vec<_> = (0..games).map(game).collect();
    Corpus::build(&Schema::vector(1, &heads()), &games, &dir.join(number.to_string())).unwrap()
}

fn sampler(corpus: &Corpus) -> Sampler {
    let games: Vec<usize> = (0..corpus.games().len()).collect();
    let options = SamplerOptions { window: 5, stride: 5, seed: 3, ..SamplerOptions::default() };
    let reader = Reader::new(Embedding::vector(1), heads(), 0);
    Sampler::new(corpus.views(&games).unwrap(), reader, options).unwrap()
}

fn fixed(share: f64) -> Share {
    Share { from: share, to: share, steps: 1 }
}

/// Counts the windows of each corpus over some steps.
fn drawn(mixture: &Mixture, steps: std::ops::Range<u64>) -> [f64; 3] {
    let mut counts = [0.0; 3];
    for step in steps {
        let batch = mixture.batch(step, 32).unwrap();
        for window in batch.labels.chunks_exact(5) {
            assert!(window.iter().all(|label| *label == window[0]), "a window mixes two corpora");
            counts[window[0] as usize] += 1.0;
        }
    }
    counts
}

#[test]
fn windows_are_drawn_by_their_shares() {
    let dir = tempfile::tempdir().unwrap();
    let all = [0, 1, 2].map(|i| corpus(dir.path(), i, 3 + usize::from(i)));
    let views = |i: usize| all[i].views(&[0, 1, 2]).unwrap();
    let others = vec![(views(1), fixed(0.5)), (views(2), fixed(0.2))];
    let mixture = Mixture::new(sampler(&all[0]), others).unwrap();
    let counts = drawn(&mixture, 0..400);
    let total: f64 = counts.iter().sum();
    let squares = counts.iter().zip([0.3, 0.5, 0.2]).map(|(count, share)| {
        let expected = share * total;
        (count - expected).powi(2) / expected
    });
    // The 99.9 % quantile of the chi-square distribution with two degrees of freedom.
    let chi: f64 = squares.sum();
    assert!(chi < 13.82, "{counts:?} has a chi-square of {chi}");
    assert_eq!(mixture.batch(7, 32).unwrap(), mixture.batch(7, 32).unwrap());
    assert_ne!(mixture.batch(7, 32).unwrap(), mixture.batch(8, 32).unwrap());
    // Three corpora, three games each, nine windows per game.
    assert_eq!(mixture.steps_per_epoch(1), 3 * 3 * 9);
}

#[test]
fn a_share_changes_over_the_steps() {
    let dir = tempfile::tempdir().unwrap();
    let all = [0, 1].map(|i| corpus(dir.path(), i, 2));
    let share = Share { from: 1.0, to: 0.0, steps: 100 };
    let others = vec![(all[1].views(&[0, 1]).unwrap(), share)];
    let mixture = Mixture::new(sampler(&all[0]), others).unwrap();
    assert_eq!(drawn(&mixture, 0..1), [0.0, 32.0, 0.0]);
    assert_eq!(drawn(&mixture, 100..110), [320.0, 0.0, 0.0]);
    let [first, second, _] = drawn(&mixture, 45..55);
    assert!((first / second - 1.0).abs() < 0.35, "{first} and {second} half-way");
}

#[test]
fn a_mixture_of_one_corpus_equals_its_sampler() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = corpus(dir.path(), 0, 4);
    let (sampler, alone) = (sampler(&corpus), Mixture::from(sampler(&corpus)));
    for step in 0..5 {
        assert_eq!(alone.batch(step, 8).unwrap(), sampler.batch(step, 8).unwrap());
    }
}

#[test]
fn invalid_shares_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let all = [0, 1, 2].map(|i| corpus(dir.path(), i, 2));
    let refused = |shares: [Share; 2]| {
        let views = [1, 2].map(|i: usize| all[i].views(&[0, 1]).unwrap());
        let others = views.into_iter().zip(shares).collect();
        Mixture::new(sampler(&all[0]), others).map(drop).map_err(|e| e.to_string())
    };
    let to = |from, to| Share { from, to, steps: 10 };
    assert_eq!(refused([fixed(0.7), fixed(0.3)]), Ok(()));
    let said = "shares of mix together: 1.1 is outside 0..1";
    assert_eq!(refused([fixed(0.5), fixed(0.6)]), Err(said.into()));
    assert_eq!(refused([to(0.1, 0.5), to(0.1, 0.6)]), Err(said.into()));
    let said = "mix[1] (share): -0.1 is outside 0..1";
    assert_eq!(refused([fixed(0.5), fixed(-0.1)]), Err(said.into()));
    assert!(refused([fixed(f64::NAN), fixed(0.1)]).is_err());
}
