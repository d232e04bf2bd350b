//! Running statistics of observations and rewards.
#![allow(clippy::disallowed_methods)]

use std::path::Path;

use safetensors::SafeTensors;
use sconce_env::{Normaliser, RewardScale};
use sconce_tensor::Kind;

fn close(got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() <= tolerance * want.abs().max(1.0), "{got} {want}");
}

fn reproduces(file: &str, mut normaliser: Normaliser) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test/golden");
    let bytes = std::fs::read(folder.join(format!("{file}.safetensors"))).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<[u8; 8]> {
        let data = tensors.tensor(name).unwrap().data();
        data.chunks(8).map(|b| b.try_into().unwrap()).collect()
    };
    let f64s =
        |name: &str| -> Vec<f64> { words(name).into_iter().map(f64::from_le_bytes).collect() };
    let x = tensors.tensor("input.x").unwrap();
    let x: Vec<f32> =
        x.data().chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let (mean, variance) = (f64s("output.mean"), f64s("output.variance"));
    let (count, normalised) = (f64s("output.count"), f64s("output.normalised"));
    let mut at = 0;
    for (b, size) in words("input.size").into_iter().map(i64::from_le_bytes).enumerate() {
        let mut rows = x[at * 5..][..size as usize * 5].to_vec();
        normaliser.update(&rows).unwrap();
        close(normaliser.count(), count[b], 1e-9);
        for k in 0..5 {
            close(normaliser.mean()[k], mean[b * 5 + k], 1e-9);
            close(normaliser.variance()[k], variance[b * 5 + k], 1e-9);
        }
        normaliser.apply(&mut rows).unwrap();
        for (got, want) in rows.iter().zip(&normalised[at * 5..]) {
            close(f64::from(*got), *want, 1e-6);
        }
        at += size as usize;
    }
    assert_eq!(at * 5, x.len());
    let mut all = x.clone();
    normaliser.apply(&mut all).unwrap();
    for (got, want) in all.iter().zip(f64s("output.normalised_final")) {
        close(f64::from(*got), want, 1e-6);
    }
}

#[test]
fn a_normaliser_reproduces_the_reference_from_nothing_and_from_a_prior() {
    reproduces("play_normaliser", Normaliser::new(5));
    reproduces("play_normaliser_prior", Normaliser::with_prior(5));
}

#[test]
fn statistics_of_two_halves_add_up_to_those_of_the_whole() {
    let rows: Vec<f32> = (0..60).map(|i| (i * i % 17) as f32 + 100.0).collect();
    let (mut whole, mut first, mut second) =
        (Normaliser::new(3), Normaliser::new(3), Normaliser::new(3));
    whole.update(&rows).unwrap();
    first.update(&rows[..21]).unwrap();
    second.update(&rows[21..]).unwrap();
    first.add(&second).unwrap();
    first.add(&Normaliser::new(3)).unwrap();
    for k in 0..3 {
        close(first.mean()[k], whole.mean()[k], 1e-12);
        close(first.variance()[k], whole.variance()[k], 1e-12);
    }
    assert_eq!(first.add(&Normaliser::new(2)).unwrap_err().kind(), Kind::Mismatch);
}

#[test]
fn a_normaliser_without_vectors_only_clips() {
    let mut rows = [3.0, -40.0];
    Normaliser::new(2).apply(&mut rows).unwrap();
    assert!((rows[0] - 3.0).abs() < 1e-6 && rows[1] == -10.0);
}

#[test]
fn a_normaliser_refuses_bad_rows_and_bad_files() {
    let mut normaliser = Normaliser::new(2);
    normaliser.update(&[1.0, 2.0, 3.0, 5.0]).unwrap();
    let good = normaliser.clone();
    assert_eq!(normaliser.update(&[1.0; 3]).unwrap_err().kind(), Kind::Mismatch);
    assert_eq!(normaliser.update(&[1.0, f32::NAN]).unwrap_err().kind(), Kind::NonFinite);
    assert_eq!(normaliser.apply(&mut [1.0]).unwrap_err().kind(), Kind::Mismatch);
    assert_eq!(normaliser, good);
    let json = serde_json::to_string(&good).unwrap();
    let read: Normaliser = serde_json::from_str(&json).unwrap();
    assert_eq!(read, good);
    read.check(2).unwrap();
    assert_eq!(read.check(3).unwrap_err().kind(), Kind::Mismatch);
    let bad: Normaliser = serde_json::from_str(r#"{"mean":[0],"m2":[-1],"count":1}"#).unwrap();
    assert_eq!(bad.check(1).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn rewards_are_divided_by_the_deviation_of_discounted_returns() {
    let mut scale = RewardScale::new(2, 0.5).unwrap();
    let mut statistics = Normaliser::with_prior(1);
    let steps: [([f32; 2], [f32; 2], &[u32]); 3] = [
        ([1.0, 2.0], [1.0, 2.0], &[]),
        ([1.0, 0.0], [1.5, 1.0], &[1]),
        // The return of row 1 began again.
        ([4.0, 3.0], [4.75, 3.0], &[0, 1]),
    ];
    for (mut rewards, returns, ended) in steps {
        let given = rewards;
        scale.step(&mut rewards, ended).unwrap();
        statistics.update(&returns).unwrap();
        assert_eq!(scale.statistics(), &statistics);
        let deviation = (statistics.variance()[0] + 1e-8).sqrt();
        for (got, given) in rewards.iter().zip(given) {
            close(f64::from(*got), f64::from(given) / deviation, 1e-6);
        }
    }
    let before = scale.clone();
    assert_eq!(scale.step(&mut [1.0], &[]).unwrap_err().kind(), Kind::Mismatch);
    assert_eq!(scale.step(&mut [1.0, 1.0], &[2]).unwrap_err().kind(), Kind::OutOfRange);
    assert_eq!(scale.step(&mut [1.0, f32::NAN], &[]).unwrap_err().kind(), Kind::NonFinite);
    assert_eq!(RewardScale::new(1, 1.5).unwrap_err().kind(), Kind::OutOfRange);
    assert_eq!(scale, before);
}
