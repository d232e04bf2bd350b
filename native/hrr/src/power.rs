//! Powers of unitary vectors, sequences by them, and shifts: products of phases.

use sconce_tensor::trig::sin_cos_with;
use sconce_tensor::{Error, Result, dispatch, memory};

use crate::fourier::factors;
use crate::superposition::Sum;
use crate::vectors::{Domain, FEW, ROWS, Vectors, computed, inverse, rows};

/// The largest deviation of a squared modulus from 1 in a unitary vector.
const TOLERANCE: f32 = 1e-3;
/// The largest magnitude of an exponent. A phase is then exact to 1e-6 of a turn.
const MOST_EXPONENT: f64 = 1e9;

dispatch! {
    /// Writes a spectrum of moduli 1, of phases in turns that are multiplied by an exponent.
    fn turned(turns: &[f64], exponent: f64, out: &mut [f32]) {
        let half = out.len() / 2;
        let (real, other) = factors(out.len());
        let (re, im) = out.split_at_mut(half);
        for ((re, im), turns) in re.iter_mut().zip(im.iter_mut()).zip(turns) {
            let all = turns * exponent;
            let angle = ((all - all.round_ties_even()) * std::f64::consts::TAU) as f32;
            let (sin, cos) = sin_cos_with::<FMA>(angle);
            (*re, *im) = (other * cos, other * sin);
        }
        let end = |turns: f64| (turns * exponent * std::f64::consts::TAU).cos() as f32 * real;
        (re[0], im[0]) = (end(turns[0]), end(turns[half]));
    }
}

/// The phases of a unitary spectrum in turns, of the bins `0..=d/2`.
fn phases(spectrum: &[f32]) -> Result<Vec<f64>> {
    let half = spectrum.len() / 2;
    let (real, other) = factors(spectrum.len());
    let (re, im) = spectrum.split_at(half);
    let ends = [re[0] / real, im[0] / real];
    let bins = re.iter().zip(im).map(|(re, im)| (re / other, im / other));
    let bins = [(ends[0], 0.0)].into_iter().chain(bins.skip(1)).chain([(ends[1], 0.0)]);
    let mut turns = memory::with_capacity(half + 1);
    for (bin, (re, im)) in bins.enumerate() {
        let square = re * re + im * im;
        if square.is_nan() || (square - 1.0).abs() > TOLERANCE {
            let got = format!("a modulus of {} in bin {bin}", square.sqrt());
            return Err(Error::mismatch("position", "a unitary vector", got));
        }
        turns.push(f64::from(im).atan2(f64::from(re)) / std::f64::consts::TAU);
    }
    Ok(turns)
}

impl Vectors {
    /// Powers of one unitary vector, `[exponents, d]` in the spectrum: vector `i` is this one bound `exponents[i]`
    /// times. Negative exponents are inverses, and a fraction turns each phase by that part; where bin 0 or `d/2` is
    /// -1 a fraction takes the real part.
    ///
    /// # Errors
    /// `Mismatch` for several vectors, and for one that is not unitary; `NonFinite` and `OutOfRange` for exponents;
    /// `OutOfMemory`.
    pub fn power(&self, exponents: &[f64]) -> Result<Vectors> {
        if self.count() != 1 {
            return Err(Error::mismatch("count of the position", 1, self.count()));
        }
        for (at, exponent) in exponents.iter().enumerate() {
            let what = format!("exponent {at}");
            if !exponent.is_finite() {
                return Err(Error::NonFinite { what, value: *exponent });
            }
            if exponent.abs() > MOST_EXPONENT {
                return Err(Error::out_of_range(what, *exponent, -MOST_EXPONENT, MOST_EXPONENT));
            }
        }
        let d = self.dimension();
        let turns = self.with_domain(Domain::Spectrum, |own| phases(own.row(0)))?;
        let numbers = computed(
            exponents.len(),
            d,
            FEW,
            || (),
            |(), at, out| {
                turned(&turns, exponents[at], out);
            },
        )?;
        Ok(Vectors::of(d, Domain::Spectrum, numbers))
    }

    /// Sequences of `length` vectors each, `[count / length, d]`: the sums of vector `i` of a sequence bound to the
    /// power `i` of a position, divided by their lengths.
    ///
    /// # Errors
    /// `OutOfRange` and `Mismatch` for a length that does not divide the count, and the errors of
    /// [`power`](Self::power) for the position.
    pub fn sequence(&self, position: &Vectors, length: Option<usize>) -> Result<Vectors> {
        let length = length.unwrap_or(self.count());
        if !(1..=self.count()).contains(&length) {
            return Err(Error::out_of_range("length", length as f64, 1.0, self.count() as f64));
        }
        if !self.count().is_multiple_of(length) {
            let expected = format!("a multiple of the length of {length}");
            return Err(Error::mismatch("count", expected, self.count()));
        }
        self.check_width(position.dimension(), "position")?;
        let each: Vec<f64> = (0..length).map(|at| at as f64).collect();
        let mut places = position.power(&each)?;
        if length < self.count() {
            let repeated: Vec<usize> = (0..self.count()).map(|at| at % length).collect();
            places = places.take(&repeated)?;
        }
        let sum = Sum { group: Some(length), weights: None, normalise: true };
        self.bind(&places)?.superpose(&sum)
    }

    /// The vectors at `places` of one sequence, or at `places[i]` of sequence `i`, each with the noise of all others.
    ///
    /// # Errors
    /// As of [`power`](Self::power) for the position and the places; `Mismatch` for other widths or counts.
    pub fn at_places(&self, position: &Vectors, places: &[f64]) -> Result<Vectors> {
        self.check_width(position.dimension(), "position")?;
        let back: Vec<f64> = places.iter().map(|place| -place).collect();
        self.bind(&position.power(&back)?)
    }

    /// Each vector shifted cyclically: number `i` moves to `i + shift`. The domain stays.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn permute(&self, shift: i64) -> Result<Vectors> {
        let d = self.dimension();
        let shift = shift.rem_euclid(d as i64) as usize;
        if self.domain() == Domain::Time {
            let numbers = computed(
                self.count(),
                d,
                ROWS,
                || (),
                |(), at, out| {
                    let (head, tail) = self.row(at).split_at(d - shift);
                    let (to_tail, to_head) = out.split_at_mut(shift);
                    to_tail.copy_from_slice(tail);
                    to_head.copy_from_slice(head);
                },
            )?;
            return Ok(Vectors::of(d, Domain::Time, numbers));
        }
        let turns: Vec<f64> = (0..=d / 2).map(|k| -((k * shift % d) as f64) / d as f64).collect();
        let mut one = rows(1, d)?;
        turned(&turns, 1.0, &mut one);
        self.bind(&Vectors::of(d, Domain::Spectrum, one))
    }

    /// The vectors with all moduli of the spectrum set to 1. A bin without a phase becomes 1.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub fn unitary(&self) -> Result<Vectors> {
        let d = self.dimension();
        let (real, other) = factors(d);
        self.with_domain(Domain::Spectrum, |own| {
            let numbers = computed(
                own.count(),
                d,
                FEW,
                || (),
                |(), at, out| {
                    let (re, im) = own.row(at).split_at(d / 2);
                    let (out_re, out_im) = out.split_at_mut(d / 2);
                    for ((out_re, out_im), (re, im)) in
                        out_re.iter_mut().zip(out_im.iter_mut()).zip(re.iter().zip(im))
                    {
                        let by = inverse(re.hypot(*im));
                        (*out_re, *out_im) = match by > 0.0 && by.is_finite() {
                            true => (other * by * re, other * by * im),
                            false => (other, 0.0),
                        };
                    }
                    (out_re[0], out_im[0]) = (sign(re[0]) * real, sign(im[0]) * real);
                },
            )?;
            Ok(Vectors::of(d, Domain::Spectrum, numbers))
        })
    }
}

fn sign(value: f32) -> f32 {
    if value < 0.0 { -1.0 } else { 1.0 }
}
