use sconce_tensor::rng::Rng;
use sconce_tensor::simd::{LANES, level};

use super::super::written::has_vnni;
use super::super::{PANEL, VECTORS};
use super::*;

/// The sums of these vectors by a kernel.
fn sums(panel: &Panel, x: &Blocks, rows: usize, bias: &[f32]) -> Vec<u32> {
    let mut sums = vec![[[0.5; LANES]; VECTORS]; rows];
    panel.sum(&mut sums, x, bias);
    let own = sums.iter().flat_map(|sums| &sums.as_flattened()[..bias.len()]);
    own.map(|sum| sum.to_bits()).collect()
}

#[test]
fn kernels_have_the_same_bits() {
    let rng = Rng::new(7, "gemv", 0);
    let normal = |first: u64, count: usize| -> Vec<f32> {
        (0..count as u64).map(|i| rng.normal(first + i)).collect()
    };
    let bias = normal(0, PANEL);
    let chunks = |words: Vec<f32>| words.as_chunks::<LANES>().0.to_vec();
    for (inputs, group) in [(32, 32), (65, 32), (300, 128), (50, 64), (300, 320)] {
        for vectors in 1..=VECTORS {
            let outputs = vectors * LANES - 1;
            let weight = normal(500, outputs * inputs);
            let codes = Coded::nearest(4, &weight, inputs, group).unwrap();
            let places = (0..rows(inputs, group))
                .flat_map(|row| (0..vectors * LANES).map(move |o| (row, o)));
            let words =
                chunks(places.map(|(row, output)| word(&codes, group, output, row)).collect());
            let mut x = Blocks::new(inputs, 5);
            for rows in 1..=5 {
                let mut numbers = normal(70, inputs * rows);
                // The second block of all vectors is 0, and the first of one.
                for (at, x) in numbers.iter_mut().enumerate() {
                    let own = at % inputs;
                    if (32..64).contains(&own) || (at < inputs && own < 32) {
                        *x = 0.0;
                    }
                }
                x.read(&numbers, inputs);
                let made = |level, has_vnni| {
                    let panel = Panel { weights: &words, vectors, group, level, has_vnni };
                    sums(&panel, &x, rows, &bias[..outputs])
                };
                let portable = made(Level::Portable, false);
                assert_eq!(
                    portable,
                    made(level(), has_vnni()),
                    "{inputs}, {group}, {vectors}, {rows}"
                );
                assert_eq!(portable, made(level(), false), "{inputs}, {group}, {vectors}, {rows}");
            }
        }
    }
}

#[test]
fn blocks_of_zeros_are_skipped_and_products_reach_the_ends_of_their_range() {
    // The largest products: all codes are -7 or 7, or -8 with a scale of either sign, and all values are the largest.
    let (inputs, group) = (64, 64);
    let nearest = |w: f32| Coded::nearest(4, &vec![w; LANES * inputs], inputs, group).unwrap();
    let least = |scale: f32| {
        Coded::new(4, inputs, group, vec![-8; LANES * inputs], vec![scale; LANES]).unwrap()
    };
    for (codes, sign) in
        [(nearest(-1.0), -1.0), (nearest(1.0), 1.0), (least(0.125), -1.0), (least(-0.125), 1.0)]
    {
        let places = (0..rows(inputs, group)).flat_map(|row| (0..LANES).map(move |o| (row, o)));
        let words: Vec<f32> = places.map(|(row, o)| word(&codes, group, o, row)).collect();
        for (value, live) in
            [(3.0, [true, true]), (-3.0, [true, true]), (0.0, [false; 2]), (1e-40, [false; 2])]
        {
            let mut x = Blocks::new(inputs, 1);
            x.read(&vec![value; inputs], inputs);
            assert_eq!(x.live, live);
            for (level, has_vnni) in
                [(Level::Portable, false), (level(), false), (level(), has_vnni())]
            {
                let weights = words.as_chunks::<LANES>().0;
                let panel = Panel { weights, vectors: 1, group, level, has_vnni };
                for sum in sums(&panel, &x, 1, &[1.0; LANES]) {
                    let expected = if live[0] { 1.0 + 64.0 * value * sign } else { 1.0 };
                    assert!((f32::from_bits(sum) - expected).abs() < 1e-4);
                }
            }
        }
    }
}
