use sconce_ops::weights::Weights;
use sconce_ops::weights::two_four::fits;
use sconce_tensor::rng::Rng;
use sconce_tensor::simd::{LANES, level};

use super::super::written::Written;
use super::super::{Input, Matrix, VECTORS};
use super::*;
use crate::arena::Packer;
use crate::format::{Encoding, Format};

/// Random values, some of which are 0.
fn vector(rng: &Rng, first: u64, count: usize) -> Vec<f32> {
    let number = |i| if rng.u32(i + 9000).is_multiple_of(5) { 0.0 } else { rng.normal(i) };
    (first..first + count as u64).map(number).collect()
}

/// A random matrix in the pattern. Some groups have fewer than two weights.
fn pruned(rng: &Rng, inputs: usize, outputs: usize) -> Vec<f32> {
    let mut weight = vector(rng, 0, inputs * outputs);
    for (at, group) in weight.chunks_mut(inputs).flat_map(|row| row.chunks_mut(FOUR)).enumerate() {
        let first = rng.u32(at as u64) as usize;
        let dropped = if at.is_multiple_of(7) { 3 } else { 2 };
        (first..first + dropped).for_each(|place| {
            group.get_mut(place % FOUR).into_iter().for_each(|w| *w = 0.0);
        });
    }
    weight
}

fn packed(encoding: Encoding, weight: &[f32], inputs: usize, bias: &[f32]) -> (Matrix, Vec<f32>) {
    let weights = Weights::new();
    let mut packer = Packer::new(&weights, Format::F32);
    let written = Written::new(encoding, weight, inputs).unwrap();
    let matrix = Matrix::lay(&mut packer, &["w"], &written, 0.0, bias);
    (matrix, packer.finish().unwrap().0.read(<[f32]>::to_vec).unwrap())
}

#[test]
fn products_have_the_bits_of_f32() {
    for outputs in [1, 16, 33, 64, 100, 128, 130, 300] {
        for inputs in [1, 2, 3, 4, 7, 31, 32, 33, 64, 99, 260] {
            let rng = Rng::new(5, "two_four", (outputs * 1000 + inputs) as u64);
            let weight = pruned(&rng, inputs, outputs);
            let bias = vector(&rng, 1 << 20, outputs);
            let rows = 1 + (outputs + inputs) % 7;
            let mut x = vector(&rng, 1 << 21, rows * inputs);
            // The second block and the third group are 0 in all vectors.
            x.iter_mut().enumerate().for_each(|(at, x)| {
                if (32..64).contains(&(at % inputs)) || (8..12).contains(&(at % inputs)) {
                    *x = 0.0;
                }
            });
            let mut input = Input::new(inputs, rows);
            let mut products = |encoding: Encoding, x: &[f32]| {
                let (matrix, arena) = packed(encoding, &weight, inputs, &bias);
                input.read(x.chunks_exact(inputs));
                let mut y = vec![7.0; outputs * x.len() / inputs];
                matrix.apply(&arena, &mut input, &mut y);
                y
            };
            let about = format!("{rows} times {outputs} of {inputs}");
            let all = products(Encoding::TwoFour, &x);
            assert_eq!(all, products(Encoding::F32, &x), "{about}");
            for (x, y) in x.chunks_exact(inputs).zip(all.chunks_exact(outputs)) {
                assert_eq!(products(Encoding::TwoFour, x), y, "{about}, alone");
            }
        }
    }
}

#[test]
fn the_kernels_have_the_same_bits() {
    let rng = Rng::new(6, "two_four", 0);
    for inputs in [4, 30, 100] {
        for vectors in 1..=VECTORS {
            let outputs = vectors * LANES - 1;
            let weight = pruned(&rng, inputs, outputs);
            let weight = |output: usize| weight.chunks_exact(inputs).nth(output).unwrap_or(&[]);
            let places = (0..rows(inputs))
                .flat_map(|row| (0..vectors * LANES).map(move |output| (row, output)));
            let words: Vec<f32> = places.map(|(row, output)| word(weight(output), row)).collect();
            let weights = words.as_chunks::<LANES>().0;
            let bias = vector(&rng, 1 << 20, outputs);
            for count in 1..=6 {
                let mut x = Groups::new(inputs, count);
                x.read(&vector(&rng, 1 << 21, inputs * count), inputs);
                let made = |level| {
                    let mut sums = vec![[[0.5; LANES]; VECTORS]; count];
                    Panel { weights, vectors, inputs, level }.sum(&mut sums, &x, &bias);
                    let own = sums.iter().flat_map(|sums| &sums.as_flattened()[..outputs]);
                    own.map(|sum| sum.to_bits()).collect::<Vec<_>>()
                };
                let portable = made(Level::Portable);
                for level in [Level::Avx2.min(level()), level()] {
                    assert_eq!(portable, made(level), "{level:?}, {inputs}, {vectors}, {count}");
                }
            }
        }
    }
}

#[test]
fn words_have_the_places_and_values_of_all_groups() {
    let weights = [0.0, 1.0, 0.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 5.0, 0.0, 6.0];
    assert!(fits(&weights, 14) && fits(&[0.0; 6], 3));
    assert!(!fits(&[1.0, 1.0, 1.0, 0.0], 4) && !fits(&[0.0, 1.0, 1.0, 1.0], 4));
    // The groups are those of an output: rows of 3 have one group each.
    assert!(fits(&[0.0, 1.0, 1.0, 1.0, 0.0, 1.0], 3) && !fits(&[0.0, 1.0, 1.0, 1.0, 0.0, 1.0], 6));
    assert_eq!(rows(14), 9);
    assert_eq!((rows(32), rows(33), rows(1)), (17, 20, 3));
    let values: Vec<f32> = (1..9).map(|row| word(&weights, row)).collect();
    assert_eq!(values, [1.0, 2.0, 3.0, 0.0, 4.0, 5.0, 6.0, 0.0]);
    let places = word(&weights, 0).to_bits();
    let places: Vec<u32> = (0..8).map(|at| places >> (BITS * at) & 3).collect();
    assert_eq!(places, [1, 3, 0, 3, 2, 3, 1, 3]);
}

#[test]
fn a_matrix_without_the_pattern_has_no_2_4_and_stays_f32() {
    let rng = Rng::new(8, "two_four", 0);
    let (inputs, outputs) = (64, 64);
    let mut weight = pruned(&rng, inputs, outputs);
    let (written, error) = Written::chosen(Format::Stored, &weight, inputs);
    let expected =
        if ratios(inputs, outputs).is_some() { Encoding::TwoFour } else { Encoding::F32 };
    assert_eq!((written.encoding(), error), (expected, 0.0));
    assert_eq!(written.numbers(), &weight[..]);
    // The answer about a shape stays.
    assert_eq!(Written::chosen(Format::Stored, &weight, inputs).0.encoding(), expected);
    assert_eq!(Written::chosen(Format::F32, &weight, inputs).0.encoding(), Encoding::F32);
    assert!(ratios(0, 64).is_none() && ratios(64, 0).is_none());
    let narrow = pruned(&rng, 16, 64);
    assert_eq!(Written::chosen(Format::Stored, &narrow, 16).0.encoding(), Encoding::F32);
    // Nothing is gained by reading zeros in another form.
    let (zeros, _) = Written::chosen(Format::Stored, &vec![0.0; inputs * outputs], inputs);
    assert_eq!(zeros.encoding(), Encoding::F32);
    weight[..4].fill(1.0);
    assert!(Written::new(Encoding::TwoFour, &weight, inputs).is_none());
    assert_eq!(Written::chosen(Format::Stored, &weight, inputs).0.encoding(), Encoding::F32);
}

#[test]
fn values_that_are_not_finite_make_all_sums_nan() {
    // The weight of the NaN is 0.
    let weight = [1.0, 0.0, 0.0, 2.0];
    let (matrix, arena) = packed(Encoding::TwoFour, &weight, 4, &[1.0]);
    let mut input = Input::new(4, 2);
    input.read([&[1.0, f32::NAN, 0.0, 1.0][..], &[1.0; 4]]);
    let mut y = [0.0; 2];
    matrix.apply(&arena, &mut input, &mut y);
    assert!(y[0].is_nan() && y[1] == 4.0, "{y:?}");
    input.read([&[0.0, 0.0, f32::INFINITY, 0.0][..]]);
    matrix.apply(&arena, &mut input, &mut y[..1]);
    assert!(y[0].is_nan());
}

#[test]
fn a_product_of_few_inputs_reads_f32_and_has_the_same_bits() {
    let ratios = Ratios::new(0.5, 0.75);
    let mut x = Groups::new(70, 2);
    let mut few = |at: &[usize], rows: usize| {
        let mut numbers = vec![0.0; 70 * rows];
        at.iter().for_each(|at| numbers[*at] = 1.0);
        x.read(&numbers, 70);
        x.are_few(rows, ratios)
    };
    // One of four inputs, two of four, and two of eight in two vectors.
    assert!(few(&[5], 1) && !few(&[0, 3, 68, 69], 1) && few(&[0, 4, 5, 8], 1));
    assert!(few(&[5, 70 + 6], 2) && !few(&[4, 5, 70 + 6], 2) && !few(&[], 2));

    let rng = Rng::new(9, "two_four", 0);
    let (inputs, outputs) = (70, 150);
    let weight = pruned(&rng, inputs, outputs);
    let bias = vector(&rng, 1 << 20, outputs);
    let weights = Weights::new();
    let mut packer = Packer::new(&weights, Format::F32);
    let written = Written::new(Encoding::TwoFour, &weight, inputs).unwrap().timed(ratios);
    let matrix = Matrix::lay(&mut packer, &["w"], &written, 0.0, &bias);
    let arena = packer.finish().unwrap().0.read(<[f32]>::to_vec).unwrap();
    let (f32s, f32_arena) = packed(Encoding::F32, &weight, inputs, &bias);
    let mut input = Input::new(inputs, 3);
    for rows in 1..=3 {
        for every in [1, 3, 20] {
            let mut x = vector(&rng, 1 << 21, inputs * rows);
            let at = |at: usize| (at % inputs).is_multiple_of(every);
            x.iter_mut().enumerate().filter(|x| !at(x.0)).for_each(|x| *x.1 = 0.0);
            let mut both = [vec![0.0; outputs * rows], vec![0.0; outputs * rows]];
            let [own, other] = &mut both;
            for (matrix, arena, y) in [(&matrix, &arena, own), (&f32s, &f32_arena, other)] {
                input.read(x.chunks_exact(inputs));
                matrix.apply(arena, &mut input, y);
            }
            assert_eq!(both[0], both[1], "{rows}, every {every}");
            input.read(x.chunks_exact(inputs));
            let super::super::Form::Whole(whole) = &matrix.form else { panic!("a product") };
            let (form, _) = whole.form(&mut input.vectors);
            let expected = if every == 1 { Encoding::TwoFour } else { Encoding::F32 };
            assert_eq!(form, expected, "{rows}, every {every}");
        }
    }
}
