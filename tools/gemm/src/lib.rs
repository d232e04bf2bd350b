//! Takes the place of the crate `gemm` for this workspace. Products of 32-bit floats go to the kernels of `gemm-f32`, as there.
//! Only tests multiply numbers of other types, by plain loops: the kernels of all types would be most of the time of a first
//! build, and megabytes of the library.
#![allow(clippy::too_many_arguments)]

use std::any::TypeId;
use std::mem;
use std::ops::{Add, Mul};

pub use gemm_common::Parallelism;
use half::f16;

/// A matrix in memory: its first element, and the distances of neighbours in a row and in a column.
#[derive(Clone, Copy)]
struct Side<P> {
    first: P,
    column: isize,
    row: isize,
}

/// `dst = alpha dst + beta lhs rhs` of `lhs [m, k]` and `rhs [k, n]`, each with the strides of its columns and rows. Without
/// `read_dst`, `dst` is only written.
///
/// # Panics
/// For other types than f32, f64 and f16, for strides below 0, and for conjugates.
///
/// # Safety
/// All elements that the sizes and strides name are in memory of `T`, and `dst` overlaps neither input.
pub unsafe fn gemm<T: 'static>(
    m: usize,
    n: usize,
    k: usize,
    dst: *mut T,
    dst_cs: isize,
    dst_rs: isize,
    read_dst: bool,
    lhs: *const T,
    lhs_cs: isize,
    lhs_rs: isize,
    rhs: *const T,
    rhs_cs: isize,
    rhs_rs: isize,
    alpha: T,
    beta: T,
    conj_dst: bool,
    conj_lhs: bool,
    conj_rhs: bool,
    parallelism: Parallelism,
) {
    assert!(!(conj_dst || conj_lhs || conj_rhs), "only complex numbers have conjugates");
    let strides = [dst_cs, dst_rs, lhs_cs, lhs_rs, rhs_cs, rhs_rs];
    assert!(strides.iter().all(|stride| *stride >= 0), "a stride is negative");
    let dst = Side { first: dst, column: dst_cs, row: dst_rs };
    let lhs = Side { first: lhs, column: lhs_cs, row: lhs_rs };
    let rhs = Side { first: rhs, column: rhs_cs, row: rhs_rs };
    let kind = TypeId::of::<T>();
    // SAFETY: the casts change no type, and the caller vouches for the elements.
    unsafe {
        if kind == TypeId::of::<f32>() {
            let factors = [same::<T, f32>(&alpha), same::<T, f32>(&beta)];
            let inputs = [lhs.cast::<f32>(), rhs.cast::<f32>()];
            singles([m, n, k], dst.cast::<f32>(), read_dst, inputs, factors, parallelism);
        } else if kind == TypeId::of::<f64>() {
            let factors = [same::<T, f64>(&alpha), same::<T, f64>(&beta)];
            let inputs = [lhs.cast::<f64>(), rhs.cast::<f64>()];
            plain([m, n, k], dst.cast::<f64>(), read_dst, inputs, factors);
        } else if kind == TypeId::of::<f16>() {
            let factors = [same::<T, f16>(&alpha), same::<T, f16>(&beta)];
            let inputs = [lhs.cast::<f16>(), rhs.cast::<f16>()];
            plain([m, n, k], dst.cast::<f16>(), read_dst, inputs, factors);
        } else {
            panic!("a product of numbers that are neither f32 nor f64 nor f16");
        }
    }
}

impl<T> Side<*const T> {
    fn cast<U>(self) -> Side<*const U> {
        Side { first: self.first.cast(), column: self.column, row: self.row }
    }
}

impl<T> Side<*mut T> {
    fn cast<U>(self) -> Side<*mut U> {
        Side { first: self.first.cast(), column: self.column, row: self.row }
    }
}

/// The value as the type that it has.
///
/// # Safety
/// `T` is `U`.
unsafe fn same<T, U: Copy>(value: &T) -> U {
    // SAFETY: the caller says that the types are the same.
    unsafe { mem::transmute_copy(value) }
}

/// The kernels write columns, so a product that is stored by row is computed as its transpose.
///
/// # Safety
/// That of [`gemm`].
unsafe fn singles(
    [m, n, k]: [usize; 3],
    dst: Side<*mut f32>,
    read_dst: bool,
    [lhs, rhs]: [Side<*const f32>; 2],
    [alpha, beta]: [f32; 2],
    parallelism: Parallelism,
) {
    let turned = |side: Side<*const f32>| Side { column: side.row, row: side.column, ..side };
    let ([m, n], dst, lhs, rhs) = match dst.column < dst.row {
        true => {
            let dst = Side { column: dst.row, row: dst.column, ..dst };
            ([n, m], dst, turned(rhs), turned(lhs))
        }
        false => ([m, n], dst, lhs, rhs),
    };
    // SAFETY: as the caller says; transposes have the same elements.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            m,
            n,
            k,
            dst.first,
            dst.column,
            dst.row,
            read_dst,
            lhs.first,
            lhs.column,
            lhs.row,
            rhs.first,
            rhs.column,
            rhs.row,
            alpha,
            beta,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// A number, and the wider one that sums it.
trait Number: Copy {
    type Wide: Copy + Default + Add<Output = Self::Wide> + Mul<Output = Self::Wide>;
    fn wide(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

impl Number for f64 {
    type Wide = f64;

    fn wide(self) -> f64 {
        self
    }

    fn narrow(wide: f64) -> f64 {
        wide
    }
}

impl Number for f16 {
    type Wide = f32;

    fn wide(self) -> f32 {
        self.to_f32()
    }

    fn narrow(wide: f32) -> f16 {
        f16::from_f32(wide)
    }
}

/// # Safety
/// That of [`gemm`].
unsafe fn plain<T: Number>(
    [m, n, k]: [usize; 3],
    dst: Side<*mut T>,
    read_dst: bool,
    [lhs, rhs]: [Side<*const T>; 2],
    [alpha, beta]: [T; 2],
) {
    let at = |i: usize, j: usize, column: isize, row: isize| i as isize * row + j as isize * column;
    for i in 0..m {
        for j in 0..n {
            let mut sum = T::Wide::default();
            for l in 0..k {
                // SAFETY: both elements are in the matrices.
                let (x, y) = unsafe {
                    let x = *lhs.first.offset(at(i, l, lhs.column, lhs.row));
                    (x, *rhs.first.offset(at(l, j, rhs.column, rhs.row)))
                };
                sum = sum + x.wide() * y.wide();
            }
            // SAFETY: the element is in the matrix, and its value is read only if there is one.
            unsafe {
                let place = dst.first.offset(at(i, j, dst.column, dst.row));
                let mut all = beta.wide() * sum;
                if read_dst {
                    all = alpha.wide() * (*place).wide() + all;
                }
                *place = T::narrow(all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `2 c + 3 a b` of `a [2, 3]` and `b [3, 2]` by rows, with `c` stored by row or by column.
    fn product<T: Copy + 'static>(of: fn(f32) -> T, by_column: bool) -> Vec<T> {
        let matrix = |first: u8, n: u8| (first..first + n).map(|v| of(f32::from(v))).collect();
        let (a, b): (Vec<T>, Vec<T>) = (matrix(1, 6), matrix(7, 6));
        let mut c: Vec<T> = matrix(0, 4);
        let [column, row] = if by_column { [2, 1] } else { [1, 2] };
        let (alpha, beta) = (of(2.0), of(3.0));
        // SAFETY: the strides fit the vectors.
        unsafe {
            let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
            let none = Parallelism::None;
            gemm(
                2, 2, 3, c, column, row, true, a, 1, 3, b, 1, 2, alpha, beta, false, false, false,
                none,
            );
        }
        c
    }

    #[test]
    fn products_of_all_types_add_to_both_orders_of_a_matrix() {
        let by_row = [174.0f32, 194.0, 421.0, 468.0];
        let by_column = [174.0f32, 421.0 - 2.0, 194.0 + 2.0, 468.0];
        for (turned, want) in [(false, by_row), (true, by_column)] {
            assert_eq!(product(|v| v, turned), want);
            assert_eq!(product(f64::from, turned), want.map(f64::from));
            assert_eq!(product(f16::from_f32, turned), want.map(f16::from_f32));
        }
    }

    #[test]
    #[should_panic(expected = "neither f32 nor f64 nor f16")]
    fn other_types_are_refused() {
        product(|v| v as i32, false);
    }
}
