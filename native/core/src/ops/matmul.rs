//! The one door to `gemm`: single-threaded products of row-major matrices with strides.
//!
//! Candle's own matmul is not called anywhere (clippy refuses it): it re-reads /proc/cpuinfo at
//! every call where `RAYON_NUM_THREADS` is unset, and decides on threads by itself.

/// A matrix seen through a slice: element (i, j) is `data[i * row_stride + j * column_stride]`.
#[derive(Clone, Copy)]
pub struct View<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> View<'a> {
    /// Rows lie one after the other.
    pub fn rows(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// Rows begin `row_stride` apart.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(columns <= row_stride || rows <= 1, "rows overlap");
        assert!(rows == 0 || columns == 0 || (rows - 1) * row_stride + columns <= data.len());
        View { data, rows, columns, row_stride, column_stride: 1 }
    }

    pub fn transposed(self) -> Self {
        View {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// `out = a b`, or `out += a b` if `accumulate`; rows of `out` begin `out_stride` apart.
pub fn matmul(out: &mut [f32], out_stride: usize, a: View<'_>, b: View<'_>, accumulate: bool) {
    let (m, n, k) = (a.rows, b.columns, a.columns);
    assert_eq!(k, b.rows, "inner dimensions");
    if m == 0 || n == 0 {
        return;
    }
    assert!(n <= out_stride || m == 1, "rows of the result overlap");
    assert!((m - 1) * out_stride + n <= out.len(), "the result is too small");
    // SAFETY: the checks above and in `View` keep every element that gemm touches inside its
    // slice, `out` is borrowed mutably and so apart from `a` and `b`, and all strides are positive.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            out_stride as isize,
            accumulate,
            a.data.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(
        a: impl Fn(usize, usize) -> f32,
        b: impl Fn(usize, usize) -> f32,
        k: usize,
    ) -> impl Fn(usize, usize) -> f32 {
        move |i, j| (0..k).map(|l| f64::from(a(i, l)) * f64::from(b(l, j))).sum::<f64>() as f32
    }

    #[test]
    fn products_of_every_form_agree_with_the_definition() {
        for (m, n, k) in [(1, 1, 1), (1, 81, 40), (1, 19, 7), (3, 5, 7), (33, 17, 64), (64, 48, 1)]
        {
            let a: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.37).sin()).collect();
            let b: Vec<f32> = (0..n * k).map(|i| (i as f32 * 0.71).cos()).collect();
            let want = slow(|i, l| a[i * k + l], |l, j| b[j * k + l], k);
            let mut out = vec![1.0; m * n];
            matmul(&mut out, n, View::rows(&a, m, k), View::rows(&b, n, k).transposed(), true);
            for i in 0..m {
                for j in 0..n {
                    assert!((out[i * n + j] - 1.0 - want(i, j)).abs() < 1e-4);
                }
            }
        }
    }
}
