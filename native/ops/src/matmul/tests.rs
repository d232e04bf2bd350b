use proptest::prelude::*;

use super::*;
use crate::simd::{Level, level};

/// The layout of a matrix in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Rows,
    Strided,
    Transposed,
    TransposedStrided,
}

const FORMS: [Form; 4] = [Form::Rows, Form::Strided, Form::Transposed, Form::TransposedStrided];

/// Values of a matrix and its layout. Values outside the view are NaN.
struct Matrix {
    data: Vec<f32>,
    rows: usize,
    columns: usize,
    form: Form,
}

impl Matrix {
    fn new(rows: usize, columns: usize, form: Form, seed: f32) -> Self {
        let mut matrix = Matrix { data: vec![], rows, columns, form };
        let (lines, length, stride) = matrix.layout();
        matrix.data = vec![f32::NAN; lines.saturating_sub(1) * stride + length];
        for i in 0..lines {
            for j in 0..length {
                matrix.data[i * stride + j] = ((i * length + j) as f32 * seed + seed).sin();
            }
        }
        matrix
    }

    /// Lines in memory, their length, and their distance.
    fn layout(&self) -> (usize, usize, usize) {
        match self.form {
            Form::Rows => (self.rows, self.columns, self.columns),
            Form::Strided => (self.rows, self.columns, self.columns + 3),
            Form::Transposed => (self.columns, self.rows, self.rows),
            Form::TransposedStrided => (self.columns, self.rows, self.rows + 5),
        }
    }

    fn view(&self) -> View<'_> {
        let (lines, length, stride) = self.layout();
        let view = View::strided(&self.data, lines, length, stride);
        match self.form {
            Form::Rows | Form::Strided => view,
            Form::Transposed | Form::TransposedStrided => view.transposed(),
        }
    }

    /// The value at (i, j), as products see it.
    fn at(&self, i: usize, j: usize) -> f64 {
        let (view, mut rounded) = (self.view(), [0.0]);
        let at = i * view.row_stride + j * view.column_stride;
        Precision::current().round(&mut rounded, &view.data[at..at + 1]);
        f64::from(rounded[0])
    }
}

const GAP: f32 = 7.5;

/// A product whose rows are `n + gap` apart; `out` is filled before the product.
fn product(
    a: View<'_>,
    n: usize,
    gap: usize,
    before: f32,
    multiply: impl FnOnce(&mut [f32], usize),
) -> Vec<f32> {
    let mut out = vec![GAP; a.rows * (n + gap)];
    out.chunks_mut((n + gap).max(1)).for_each(|row| row[..n].fill(before));
    multiply(&mut out, n + gap);
    for row in out.chunks((n + gap).max(1)) {
        assert!(row[n..].iter().all(|x| *x == GAP), "wrote outside the result");
    }
    out.chunks((n + gap).max(1)).flat_map(|row| row[..n].to_vec()).collect()
}

/// Packed for a CPU without Sconce's kernels.
fn in_rows(b: View<'_>) -> Packed {
    Packed::arranged(Arranged::rows(b), b)
}

/// Compares the product of every function, plain and accumulated, with the definition in f64.
fn check(m: usize, n: usize, k: usize, forms: (Form, Form), gap: usize) {
    let a = Matrix::new(m, k, forms.0, 0.37);
    let b = Matrix::new(k, n, forms.1, 0.71);
    let packed = [Packed::for_few_rows(b.view()), in_rows(b.view()), Packed::new(b.view())];
    for (before, accumulate) in [(f32::NAN, false), (1.25, true)] {
        let product = |multiply: &dyn Fn(&mut [f32], usize)| {
            product(a.view(), n, gap, before, |out, stride| multiply(out, stride))
        };
        let products = [
            product(&|out, stride| matmul(out, stride, a.view(), b.view(), accumulate)),
            product(&|out, stride| packed[0].matmul(out, stride, a.view(), accumulate)),
            product(&|out, stride| packed[1].matmul(out, stride, a.view(), accumulate)),
            product(&|out, stride| packed[2].matmul(out, stride, a.view(), accumulate)),
            product(&|out, stride| {
                let (out, start) = (writable(out), Start::new(accumulate));
                if prepare(out, stride, a.view(), k, n, start) {
                    let (precision, mut left, mut right) = (Precision::current(), vec![], vec![]);
                    let a = rounded(a.view(), precision, &mut left);
                    portable(out, stride, a, rounded(b.view(), precision, &mut right), start);
                }
            }),
        ];
        let start = if accumulate { f64::from(before) } else { 0.0 };
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let want: f64 = (0..k).map(|l| a.at(i, l) * b.at(l, j)).sum::<f64>() + start;
            let got = products.each_ref().map(|out| f64::from(out[i * n + j]));
            let bound = 1e-6 * (2.0 + k as f64);
            let near = got.iter().all(|got| (got - want).abs() < bound);
            assert!(near, "{m}x{n}x{k} {forms:?} ({i}, {j}): {got:?}, not {want}");
        }
        if level() == Level::Avx512 {
            let [plain, packed, rows, ..] = &products;
            assert!(same_bits(plain, packed) && same_bits(plain, rows), "{m}x{n}x{k} {forms:?}");
        }
    }
}

/// An operand packed for many rows is as exact, for values of all sizes, as one that is not split.
#[test]
fn numbers_of_all_sizes_have_the_error_of_f32_sums_at_most() {
    let (m, n, k) = (40, 70, 600);
    let (mut a, mut b) =
        (Matrix::new(m, k, Form::Rows, 0.37), Matrix::new(k, n, Form::Transposed, 0.71));
    let sizes = |data: &mut [f32]| {
        data.iter_mut().enumerate().for_each(|(i, x)| *x *= 10f32.powi((i * 7 % 25) as i32 - 12));
    };
    sizes(&mut a.data);
    sizes(&mut b.data);
    let packed = Packed::new(b.view());
    let out = product(a.view(), n, 0, 0.0, |out, n| packed.matmul(out, n, a.view(), false));
    for (at, got) in out.into_iter().enumerate() {
        let terms = || (0..k).map(|l| a.at(at / n, l) * b.at(l, at % n));
        let (want, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
        let error = (f64::from(got) - want).abs();
        assert!(error <= 2.0 * f64::from(f32::EPSILON) * size, "{got}, not {want}");
    }
}

/// A product filled into memory starts with the bias, and is bit-identical to one that is added to the bias.
#[test]
fn a_filled_product_starts_with_the_bias() {
    for (m, n, k) in [(1, 5, 0), (1, 100, 64), (3, 48, 8), (7, 17, 5), (70, 100, 600)] {
        for (a_form, b_form) in forms() {
            let (a, b) = (Matrix::new(m, k, a_form, 0.37), Matrix::new(k, n, b_form, 0.71));
            let bias: Vec<f32> = (0..n).map(|j| (j as f32).sin()).collect();
            let packed = Operand::Packed(Arc::new(Packed::new(b.view())));
            let rows = Operand::Packed(Arc::new(in_rows(b.view())));
            for operand in [Operand::View(b.view()), packed, rows] {
                for bias in [None, Some(&bias[..])] {
                    let mut want = bias.unwrap_or(&vec![0.0; n]).repeat(m);
                    operand.matmul(&mut want, n, a.view(), true);
                    let mut out = vec![MaybeUninit::new(f32::NAN); m * n];
                    let got = operand.fill(&mut out, a.view(), bias);
                    assert!(same_bits(got, &want), "{m}x{n}x{k}");
                }
            }
        }
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

fn forms() -> impl Iterator<Item = (Form, Form)> {
    FORMS.into_iter().flat_map(|a| FORMS.map(|b| (a, b)))
}

#[test]
fn products_of_every_layout_agree_with_the_definition() {
    let sizes = [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 47, 48, 49, 65];
    for forms in forms() {
        for (i, m) in sizes.into_iter().enumerate() {
            for (j, n) in sizes.into_iter().enumerate() {
                check(m, n, sizes[(i + 3 * j) % sizes.len()], forms, (i + j) % 3);
            }
        }
    }
}

#[test]
fn products_deeper_or_taller_than_a_packed_block_agree_with_the_definition() {
    for forms in forms() {
        let slim = [(3, 50, 1100), (9, 33, 513), (260, 17, 30), (270, 49, 515)];
        // Wide and deep enough for a matrix unit.
        let wide = [(3, 97, 1100), (260, 70, 130), (270, 97, 515), (128, 64, 512)];
        for (m, n, k) in slim.into_iter().chain(wide) {
            check(m, n, k, forms, 1);
        }
    }
}

#[test]
fn products_of_rounded_operands_agree_with_the_definition() {
    for precision in [Precision::Tf32, Precision::Bf16, Precision::F16] {
        precision.during(|| {
            for forms in forms() {
                let slim = [(1, 1, 1), (3, 50, 40), (17, 16, 33), (9, 33, 513)];
                let wide = [(3, 97, 1100), (16, 64, 32), (17, 65, 33), (150, 97, 515)];
                for (m, n, k) in slim.into_iter().chain(wide) {
                    check(m, n, k, forms, 1);
                }
            }
        });
    }
}

#[test]
fn a_packed_operand_keeps_its_precision() {
    let (m, n, k) = (40, 70, 90);
    let (a, b) = (Matrix::new(m, k, Form::Rows, 0.37), Matrix::new(k, n, Form::Rows, 0.71));
    let by = |packed: &Packed| {
        product(a.view(), n, 0, 0.0, |out, n| packed.matmul(out, n, a.view(), false))
    };
    for pack in [Packed::new, Packed::for_few_rows, in_rows] {
        let exact = by(&pack(b.view()));
        for precision in [Precision::Tf32, Precision::Bf16, Precision::F16] {
            let inside = precision.during(|| by(&pack(b.view())));
            let mut packed = precision.during(|| pack(b.view()));
            assert!(same_bits(&by(&packed), &inside) && !same_bits(&inside, &exact));
            packed.pack(b.view());
            assert!(same_bits(&by(&packed), &exact));
        }
    }
}

#[test]
fn a_product_of_depth_0_is_zero_or_keeps_the_output() {
    for forms in forms() {
        check(3, 5, 0, forms, 2);
        check(0, 5, 3, forms, 0);
        check(3, 0, 4, forms, 1);
    }
}

#[test]
fn a_non_finite_number_reaches_only_its_row_and_column() {
    let (m, n, k) = (37, 70, 40);
    let mut a = Matrix::new(m, k, Form::Rows, 0.3);
    let mut b = Matrix::new(k, n, Form::Transposed, 0.4);
    a.data[2 * k + 5] = f32::NAN;
    b.data[49 * k + 7] = f32::INFINITY;
    let plain = product(a.view(), n, 0, 0.0, |out, n| matmul(out, n, a.view(), b.view(), false));
    let packed = Packed::new(b.view());
    let packed = product(a.view(), n, 0, 0.0, |out, n| packed.matmul(out, n, a.view(), false));
    for at in 0..m * n {
        let (i, j) = (at / n, at % n);
        assert_eq!(plain[at].is_nan(), i == 2, "({i}, {j})");
        assert_eq!(plain[at].is_infinite(), i != 2 && j == 49, "({i}, {j})");
        // A matrix unit turns an infinite value into NaN.
        assert_eq!(packed[at].is_finite(), i != 2 && j != 49, "({i}, {j})");
    }
}

#[test]
fn another_operand_is_packed_in_place() {
    let (m, k) = (20, 40);
    let a = Matrix::new(m, k, Form::Rows, 0.2);
    let first = Matrix::new(k, 70, Form::Rows, 0.9);
    for mut packed in [Packed::new(first.view()), Packed::for_few_rows(first.view())] {
        for (n, form) in [(70, Form::Transposed), (20, Form::Strided), (0, Form::Rows)] {
            let b = Matrix::new(k, n, form, 0.5);
            packed.pack(b.view());
            let got = product(a.view(), n, 0, 0.0, |out, s| packed.matmul(out, s, a.view(), false));
            let want =
                product(a.view(), n, 0, 0.0, |out, s| matmul(out, s, a.view(), b.view(), false));
            assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-5));
        }
    }
}

#[test]
#[should_panic(expected = "inner dimensions")]
fn shapes_that_do_not_fit_are_refused() {
    let (a, b) = (Matrix::new(2, 3, Form::Rows, 0.1), Matrix::new(4, 5, Form::Rows, 0.1));
    Packed::new(b.view()).matmul(&mut [0.0; 10], 5, a.view(), false);
}

#[test]
#[should_panic(expected = "too small")]
fn a_result_that_does_not_fit_is_refused() {
    let (a, b) = (Matrix::new(2, 3, Form::Rows, 0.1), Matrix::new(3, 5, Form::Rows, 0.1));
    matmul(&mut [0.0; 9], 5, a.view(), b.view(), false);
}

/// Blocks and panels are packed by the first tiles that read them, also where the last rows and columns are ragged.
#[test]
fn products_of_operands_packed_in_passing_agree_with_the_definition() {
    for forms in forms() {
        for (m, n, k) in
            [(24, 208, 40), (70, 256, 40), (131, 253, 40), (150, 40, 600), (133, 272, 1030)]
        {
            check(m, n, k, forms, 1);
        }
    }
}

/// Columns of this `a` lie too far apart to be read in place for every panel, also where few rows are multiplied.
#[test]
fn few_rows_of_a_wide_transposed_operand_have_the_bits_of_all_rows() {
    if level() != Level::Avx512 {
        return;
    }
    let (m, n, k) = (2 * 129, 100, 56);
    let a = Matrix::new(m, k, Form::Transposed, 0.37);
    for form in FORMS {
        let b = Matrix::new(k, n, form, 0.71);
        let multiply = |a: View<'_>| {
            product(a, n, 0, 0.5, |out, stride| matmul(out, stride, a, b.view(), true))
        };
        let whole = multiply(a.view());
        for count in 1..=9 {
            let part = a.view().transposed().columns(97..97 + count).transposed();
            assert!(
                same_bits(&multiply(part), &whole[97 * n..(97 + count) * n]),
                "{form:?} {count}"
            );
        }
    }
}

proptest! {
    /// This holds for Sconce's kernels only.
    #[test]
    fn a_row_does_not_depend_on_the_other_rows(
        (m, n, k) in (1usize..300, 1usize..110, 0usize..700),
        (a, b) in (0usize..4, 0usize..4),
        (from, count) in (0usize..300, 1usize..20),
        accumulate: bool,
    ) {
        if level() != Level::Avx512 {
            return Ok(());
        }
        let b = Matrix::new(k, n, FORMS[b], 0.71);
        let a = Matrix::new(m, k, FORMS[a], 0.37);
        let rows = from % m..(from % m + count).min(m);
        let whole = product(a.view(), n, 0, 0.5, |out, n| {
            matmul(out, n, a.view(), b.view(), accumulate);
        });
        let view = a.view();
        let part = View {
            data: view.data.get(rows.start * view.row_stride..).unwrap_or(&[]),
            rows: rows.len(),
            ..view
        };
        let got = product(part, n, 0, 0.5, |out, n| matmul(out, n, part, b.view(), accumulate));
        prop_assert!(same_bits(&got, &whole[rows.start * n..rows.end * n]));
        let pack = || Packed::new(b.view());
        for packed in [pack(), Precision::Bf16.during(pack)] {
            let product = |a: View<'_>| {
                product(a, n, 0, 0.5, |out, n| packed.matmul(out, n, a, accumulate))
            };
            let whole = product(a.view());
            prop_assert!(same_bits(&product(part), &whole[rows.start * n..rows.end * n]));
        }
    }
}
