use sconce_ops::weights::Weights;
use sconce_tensor::rng::Rng;

use sconce_tensor::simd::{Level, level};

use super::panel::Panel;
use super::written::{LEAST_INPUTS, has_vnni, pair};
use super::*;
use crate::format::Format;

const ENCODINGS: [Encoding; 5] =
    [Encoding::F32, Encoding::Bf16, Encoding::Int8, Encoding::Int4(32), Encoding::Int4(128)];

/// The input as a product reads it: rounded for int8, and block by block for int4.
fn seen(encoding: Encoding, x: &[f32]) -> Vec<f32> {
    let (most, block) = match encoding {
        Encoding::Int8 => (32512.0, x.len()),
        Encoding::Int4(_) => (127.0, 32),
        _ => return x.to_vec(),
    };
    let rounded = |block: &[f32]| -> Vec<f32> {
        let scale = block.iter().fold(0.0f32, |most, x| most.max(x.abs())) / most;
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        block.iter().map(|x| (x * inverse).round_ties_even() * scale).collect()
    };
    x.chunks(block).flat_map(rounded).collect()
}

/// Random values, a third of which are 0.
fn vector(rng: &Rng, count: usize) -> Vec<f32> {
    let number = |i| if rng.u32(i + 9000).is_multiple_of(3) { 0.0 } else { rng.normal(i) };
    (0..count as u64).map(number).collect()
}

fn assert_close(got: &[f32], want: &[f64], about: &str) {
    assert_eq!(got.len(), want.len(), "{about}");
    for (g, w) in got.iter().zip(want) {
        assert!((f64::from(*g) - w).abs() < 1e-5 * w.abs().max(1.0), "{about}: {g} is not {w}");
    }
}

/// Computes the product in double precision, `[rows, outputs]`.
fn product(w: &[f32], x: &[f32], b: &[f32], inputs: usize) -> Vec<f64> {
    let sum = |x: &[f32], i: usize| {
        let terms = w[i * inputs..][..inputs].iter().zip(x);
        f64::from(b[i]) + terms.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>()
    };
    let rows = (0..x.len() / inputs.max(1)).map(|row| &x[row * inputs..][..inputs]);
    rows.flat_map(|x| (0..b.len()).map(move |i| sum(x, i))).collect()
}

#[test]
fn every_shape_agrees_with_double_precision_and_a_single_row_has_the_same_bits() {
    let shapes = [1, 5, 16, 17, 33, 48, 64, 65, 81, 130, 300]
        .into_iter()
        .flat_map(|outputs| [1, 2, 7, 64, 99].map(|inputs| (outputs, inputs)));
    for (outputs, inputs) in shapes {
        for encoding in ENCODINGS {
            let rng = Rng::new(1, "gemv", (outputs * 1000 + inputs) as u64);
            let w: Vec<f32> = (0..(outputs * inputs) as u64).map(|i| rng.normal(i)).collect();
            let rows = 1 + (outputs + inputs) % 14;
            let (mut x, b) = (vector(&rng, inputs * rows), vector(&rng, outputs));
            // In some cases every fourth input is 0 in all vectors.
            if outputs % 2 == 1 {
                let places = x.iter_mut().enumerate();
                places.filter(|(i, _)| i % inputs % 4 == 3).for_each(|(_, x)| *x = 0.0);
            }
            let weights = Weights::new();
            let mut packer = Packer::new(&weights, Format::F32);
            let written = Written::new(encoding, &w, inputs).unwrap();
            let matrix = Matrix::lay(&mut packer, &["w"], &written, 0.0, &b);
            let mut input = Input::new(packer.widest(), rows);
            let arena = packer.finish().unwrap().0.read(<[f32]>::to_vec).unwrap();
            input.read(x.chunks_exact(inputs));
            let about = format!("{encoding:?}, {rows}, {outputs} of {inputs}");
            let read: Vec<f32> = x.chunks_exact(inputs).flat_map(|x| seen(encoding, x)).collect();
            let want = product(&written.numbers(), &read, &b, inputs);
            let mut y = vec![7.0; outputs * rows];
            matrix.apply(&arena, &mut input, &mut y);
            assert_close(&y, &want, &about);
            let mut alone = vec![7.0; outputs];
            for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact(outputs)) {
                input.read([x]);
                matrix.apply(&arena, &mut input, &mut alone);
                assert_eq!(alone, y, "{about}");
            }
            input.read(x.chunks_exact(inputs));
            matrix.relu(&arena, &mut input, &mut y);
            let want: Vec<f64> = want.iter().map(|v| v.max(0.0)).collect();
            assert_close(&y, &want, &format!("{about}, relu"));
        }
    }
}

#[test]
fn the_kernels_agree() {
    let rng = Rng::new(2, "gemv", 0);
    let numbers: Vec<f32> = (0..50 * 2 * 3 * LANES as u64).map(|i| rng.normal(i)).collect();
    let numbers = Written::new(Encoding::Bf16, &numbers, 1).unwrap().numbers().into_owned();
    // Words that are valid as two bf16 and as one f32.
    let weights: Vec<f32> = numbers.chunks_exact(2).map(|of| pair(of[0], of[1])).collect();
    let mut input = Input::new(50, ROWS);
    for rows in 1..=ROWS {
        let x = vector(&rng, 50 * rows);
        input.read(x.chunks_exact(50));
        for encoding in [Encoding::F32, Encoding::Bf16] {
            input.vectors.prepare(encoding);
            let made = |level| {
                let mut sums = [[[0.5; LANES]; VECTORS]; ROWS];
                let panel =
                    Panel { encoding, level, has_vnni: false, vectors: 3, weights: &weights };
                panel.add(&mut sums[..rows], &input.vectors);
                sums
            };
            let portable = made(Level::Portable);
            let want: Vec<f64> =
                portable.as_flattened().as_flattened().iter().map(|v| f64::from(*v)).collect();
            assert_close(made(level()).as_flattened().as_flattened(), &want, "kernels");
        }
    }
}

#[test]
fn the_kernels_for_8_bits_have_the_same_bits() {
    let rng = Rng::new(3, "gemv", 0);
    let (scales, bias) = (vector(&rng, PANEL), vector(&rng, PANEL));
    for vectors in 1..=VECTORS {
        let words = 0..(13 * vectors * LANES) as u64;
        let weights: Vec<f32> = words.map(|i| f32::from_bits(rng.u32(i))).collect();
        let mut input = Input::new(50, ROWS);
        for rows in 1..=ROWS_OF_INT8 {
            let x = vector(&rng, 50 * rows);
            input.read(x.chunks_exact(50));
            input.vectors.prepare(Encoding::Int8);
            let made = |has_vnni| {
                let mut sums = [[[0.5; LANES]; VECTORS]; ROWS];
                let (encoding, level, weights) = (Encoding::Int8, level(), &weights[..]);
                let panel = Panel { encoding, level, has_vnni, vectors, weights };
                // One output less than fills the SIMD vectors.
                let outputs = vectors * LANES - 1;
                let (scales, bias) = (&scales[..outputs], &bias[..outputs]);
                panel.sum_codes(&mut sums[..rows], input.vectors.codes(), (scales, bias));
                sums.iter_mut().for_each(|sums| sums.as_flattened_mut()[outputs..].fill(0.0));
                sums.map(|sums| sums.map(|sum| sum.map(f32::to_bits)))
            };
            assert_eq!(made(false), made(has_vnni()), "{rows} with {vectors}");
        }
    }
}

#[test]
fn groups_of_zeros_are_skipped_and_a_vector_of_zeros_returns_the_bias() {
    let weights = Weights::new();
    let mut packer = Packer::new(&weights, Format::F32);
    let written = Written::new(Encoding::Int8, &[1.0; 3 * 10], 10).unwrap();
    let matrix = Matrix::lay(&mut packer, &["w"], &written, 0.0, &[1.0, 2.0, 3.0]);
    let mut input = Input::new(packer.widest(), 1);
    let arena = packer.finish().unwrap().0.read(<[f32]>::to_vec).unwrap();
    for (at, value, count) in [(9, 1.0, 1), (0, 1e-30, 1), (5, 1e-40, 0), (5, 0.0, 0)] {
        let mut x = [0.0; 10];
        x[at] = value;
        input.read([&x[..]]);
        let mut y = [0.0; 3];
        matrix.apply(&arena, &mut input, &mut y);
        assert_eq!(y, [1.0, 2.0, 3.0].map(|bias| bias + value));
        assert_eq!(input.vectors.codes().groups().len(), count + AHEAD);
    }
}

#[test]
fn int8_is_chosen_for_wide_matrices_within_the_bound() {
    let rng = Rng::new(4, "gemv", 0);
    let numbers: Vec<f32> = (0..64 * 64).map(|i| rng.normal(i)).collect();
    let packed = |bound: f64, inputs: usize| {
        let weights = Weights::new();
        let mut packer = Packer::new(&weights, Format::Int8(bound));
        let outputs = numbers.len() / inputs;
        Matrix::pack(&mut packer, "w", &numbers, &vec![0.0; outputs]).unwrap();
        let (_, matrices) = packer.finish().unwrap();
        (matrices[0].encoding, matrices[0].error)
    };
    let wide = if has_vnni() { Encoding::Int8 } else { Encoding::Bf16 };
    let (encoding, error) = packed(0.02, 64);
    assert_eq!(encoding, wide);
    // An int8 step is 1/127 of the row's largest magnitude, which is about 2.4 times the row's RMS. The error is
    // uniform over a step. A bf16 step is 1/128 of the power of two below the value.
    let expected = if has_vnni() { 0.003..0.01 } else { 0.0009..0.003 };
    assert!(expected.contains(&error), "{error}");
    assert_eq!(packed(1e-3, 64).0, Encoding::Bf16);
    assert_eq!(packed(1.0, LEAST_INPUTS / 2).0, Encoding::Bf16);
}

#[test]
fn nan_and_infinity_reach_the_output() {
    for encoding in ENCODINGS {
        let weights = Weights::new();
        let mut packer = Packer::new(&weights, Format::F32);
        let written = Written::new(encoding, &[1.0, 0.0, 2.0, 3.0], 2).unwrap();
        let matrix = Matrix::lay(&mut packer, &["w"], &written, 0.0, &[0.0; 2]);
        let arena = packer.finish().unwrap().0.read(<[f32]>::to_vec).unwrap();
        let mut input = Input::new(2, 2);
        for rows in 1..=2 {
            input.read([[0.0, f32::NAN]; 2][..rows].iter().map(|x| &x[..]));
            let mut y = [0.0; 4];
            matrix.relu(&arena, &mut input, &mut y);
            assert!(y[..2 * rows].iter().all(|y| y.is_nan()), "{encoding:?}");
            input.read([[1.0, f32::NEG_INFINITY]; 2][..rows].iter().map(|x| &x[..]));
            matrix.apply(&arena, &mut input, &mut y);
            assert!(y[..2 * rows].iter().all(|y| !y.is_finite()), "{encoding:?}");
        }
    }
}
