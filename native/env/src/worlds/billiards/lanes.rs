//! One number of each of `L` tables, with the operations of a number.

use std::ops::{Add, BitAnd, Div, Mul, Neg, Sub};

/// A floating-point type. The kernels run on f32, their reference in tests on f64.
pub(super) trait Real:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + 'static
{
    fn of(value: f64) -> Self;
    fn root(self) -> Self;
    fn size(self) -> Self;
}

impl Real for f32 {
    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }

    #[inline(always)]
    fn root(self) -> Self {
        self.sqrt()
    }

    #[inline(always)]
    fn size(self) -> Self {
        self.abs()
    }
}

#[cfg(test)]
impl Real for f64 {
    fn of(value: f64) -> Self {
        value
    }

    fn root(self) -> Self {
        self.sqrt()
    }

    fn size(self) -> Self {
        self.abs()
    }
}

/// One number of each table.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct V<F, const L: usize>(pub(super) [F; L]);

/// One truth value of each table: no bits or all bits, as wide as an f32, so that comparisons and choices stay in vectors.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Mask<const L: usize>([u32; L]);

/// `lanes!(out, i, expression)` is the value `out` whose lane `i` is the expression. A loop rather than
/// `std::array::from_fn`, which is not inlined into large functions.
macro_rules! lanes {
    ($start:expr, $i:ident, $value:expr) => {{
        let mut out = $start;
        for $i in 0..L {
            out[$i] = $value;
        }
        out
    }};
}

impl<F: Real, const L: usize> V<F, L> {
    /// The same number for all tables.
    #[inline(always)]
    pub(super) fn all(value: f64) -> Self {
        V([F::of(value); L])
    }

    #[inline(always)]
    pub(super) fn root(self) -> Self {
        V(lanes!(self.0, i, self.0[i].root()))
    }

    #[inline(always)]
    pub(super) fn size(self) -> Self {
        V(lanes!(self.0, i, self.0[i].size()))
    }

    #[inline(always)]
    pub(super) fn min(self, other: Self) -> Self {
        V(lanes!(self.0, i, if self.0[i] < other.0[i] { self.0[i] } else { other.0[i] }))
    }

    #[inline(always)]
    pub(super) fn max(self, other: Self) -> Self {
        V(lanes!(self.0, i, if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] }))
    }

    /// 1 or -1.
    #[inline(always)]
    pub(super) fn sign(self) -> Self {
        let (zero, one) = (F::of(0.0), F::of(1.0));
        V(lanes!(self.0, i, if self.0[i] < zero { -one } else { one }))
    }

    #[inline(always)]
    pub(super) fn less(self, other: Self) -> Mask<L> {
        Mask(lanes!([0; L], i, if self.0[i] < other.0[i] { u32::MAX } else { 0 }))
    }
}

impl<const L: usize> Mask<L> {
    /// The same truth value for all tables.
    #[cfg(test)]
    pub(super) fn all(value: bool) -> Self {
        Mask([if value { u32::MAX } else { 0 }; L])
    }

    /// Whether it is true of a table; false beyond the last one.
    #[inline(always)]
    pub(super) fn at(self, table: usize) -> bool {
        self.0.get(table).is_some_and(|bits| *bits != 0)
    }

    #[inline(always)]
    pub(super) fn pick<F: Real>(self, yes: V<F, L>, no: V<F, L>) -> V<F, L> {
        V(lanes!(no.0, i, if self.0[i] != 0 { yes.0[i] } else { no.0[i] }))
    }

    /// Whether it is true of any table.
    #[inline(always)]
    pub(super) fn any(self) -> bool {
        let mut bits = 0;
        for i in 0..L {
            bits |= self.0[i];
        }
        bits != 0
    }
}

impl<const L: usize> BitAnd for Mask<L> {
    type Output = Self;

    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Mask(lanes!(self.0, i, self.0[i] & other.0[i]))
    }
}

macro_rules! operator {
    ($name:ident, $of:ident, $sign:tt) => {
        impl<F: Real, const L: usize> $name for V<F, L> {
            type Output = Self;

            #[inline(always)]
            fn $of(self, other: Self) -> Self {
                V(lanes!(self.0, i, self.0[i] $sign other.0[i]))
            }
        }
    };
}

operator!(Add, add, +);
operator!(Sub, sub, -);
operator!(Mul, mul, *);
operator!(Div, div, /);

impl<F: Real, const L: usize> Neg for V<F, L> {
    type Output = Self;

    #[inline(always)]
    fn neg(self) -> Self {
        V(lanes!(self.0, i, -self.0[i]))
    }
}
