//! Matrices as integer codes: `weight = scale code`.

use crate::fake_quantise::finest_steps;
use crate::simd::non_finite;
use crate::{Codes, Error, Groups, Result, memory};

/// The offset that makes packed codes of 4 bits unsigned.
const ZERO: i8 = 8;

/// A matrix `[outputs, inputs]` as integer codes. The weights of a group share a scale: consecutive inputs of one output.
#[derive(Debug, Clone, PartialEq)]
pub struct Coded {
    bits: u32,
    inputs: usize,
    group: usize,
    codes: Vec<i8>,
    scales: Vec<f32>,
}

/// The largest code of a number of bits; the smallest is its negative.
///
/// # Errors
/// `OutOfRange` unless there are 4 or 8 bits.
fn largest(bits: u32) -> Result<i8> {
    match bits {
        4 => Ok(7),
        8 => Ok(127),
        _ => Err(Error::out_of_range("bits", f64::from(bits), 4.0, 8.0)),
    }
}

impl Coded {
    /// A matrix of these codes, row by row, and scales `[outputs, groups]`. The last group of a row may be shorter. Codes of
    /// 4 bits may be -8, and their scales below 0.
    ///
    /// # Errors
    /// `OutOfRange` for other bits than 4 and 8, groups of 0 inputs, codes out of range and scales of the wrong sign or 0,
    /// `NonFinite` for scales that are not finite, `Mismatch` for other counts.
    pub fn new(
        bits: u32,
        inputs: usize,
        group: usize,
        codes: Vec<i8>,
        scales: Vec<f32>,
    ) -> Result<Self> {
        let most = largest(bits)?;
        if group == 0 {
            return Err(Error::out_of_range("group", 0.0, 1.0, inputs as f64));
        }
        if inputs == 0 || codes.is_empty() || !codes.len().is_multiple_of(inputs) {
            return Err(Error::mismatch("codes", format!("rows of {inputs}"), codes.len()));
        }
        let expected = codes.len() / inputs * inputs.div_ceil(group);
        if scales.len() != expected {
            return Err(Error::mismatch("scales", expected, scales.len()));
        }
        let least = if bits == 4 { -ZERO } else { -most };
        if let Some(code) = codes.iter().find(|code| !(least..=most).contains(*code)) {
            let [code, least, most] = [*code, least, most].map(f64::from);
            return Err(Error::out_of_range("code", code, least, most));
        }
        if let Some(value) = non_finite(&scales) {
            return Err(Error::NonFinite { what: "scale".into(), value: f64::from(value) });
        }
        let largest =
            f32::from(codes.iter().fold(most, |most, code| most.max(code.saturating_neg())));
        if let Some(scale) = scales.iter().find(|scale| !(**scale * largest).is_finite()) {
            let most = f64::from(f32::MAX) / f64::from(largest);
            return Err(Error::out_of_range("scale", f64::from(*scale), 0.0, most));
        }
        let wrong = |scale: &&f32| **scale == 0.0 || (**scale < 0.0 && bits != 4);
        if let Some(scale) = scales.iter().find(wrong) {
            let (least, most) = (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
            return Err(Error::out_of_range("scale", f64::from(*scale), least, most));
        }
        Ok(Coded { bits, inputs, group, codes, scales })
    }

    /// Rounds each weight to the nearest code, half to even, with the scales of [`finest_steps`].
    ///
    /// # Errors
    /// `OutOfRange` for other bits than 4 and 8 and groups of 0 inputs, `Mismatch` for rows that are not whole, `NonFinite`
    /// for infinite weights.
    pub fn nearest(bits: u32, weight: &[f32], inputs: usize, group: usize) -> Result<Self> {
        let most = f32::from(largest(bits)?);
        let groups = Groups::new(weight.len() / inputs.max(1), inputs, group)?;
        let mut scales = finest_steps(weight, Codes::symmetric(bits)?, groups);
        let mut codes = memory::with_capacity(weight.len());
        for (group, scale) in groups.of(weight).zip(&mut scales) {
            // A quotient that was rounded up may reach beyond the largest number.
            if scale.is_finite() && !(*scale * most).is_finite() {
                *scale = scale.next_down();
            }
            // NaN becomes 0.
            let nearest = |w: &f32| (w / *scale).round_ties_even().clamp(-most, most) as i8;
            codes.extend(group.iter().map(nearest));
        }
        Coded::new(bits, inputs, group, codes, scales)
    }

    /// The codes of the numbers nearest to the values on the grid of these scales, `[outputs, groups]`. Values beyond
    /// the grid get its last codes.
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn on(
        bits: u32,
        weight: &[f32],
        inputs: usize,
        group: usize,
        scales: Vec<f32>,
    ) -> Result<Self> {
        let most = Codes::symmetric(bits)?.hi as f32;
        let groups = Groups::new(weight.len() / inputs.max(1), inputs, group)?;
        if scales.len() != groups.count() {
            return Err(Error::mismatch("scales", groups.count(), scales.len()));
        }
        let mut codes = memory::with_capacity(weight.len());
        for (group, scale) in groups.of(weight).zip(&scales) {
            let nearest = |w: &f32| (w / scale).clamp(-most, most).round_ties_even() as i8;
            codes.extend(group.iter().map(nearest));
        }
        Coded::new(bits, inputs, group, codes, scales)
    }

    /// Matrices with the same inputs as one with concatenated outputs; `None` if their grids are not of one form.
    pub fn together(parts: &[&Coded]) -> Option<Self> {
        let form = |of: &Coded| (of.bits, of.inputs, of.group);
        let first = parts.first()?;
        parts.iter().all(|part| form(part) == form(first)).then(|| Coded {
            codes: parts.iter().flat_map(|part| part.codes.iter().copied()).collect(),
            scales: parts.iter().flat_map(|part| part.scales.iter().copied()).collect(),
            ..**first
        })
    }

    /// Bits of a code: 4 or 8.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.codes.len() / self.inputs
    }

    /// Inputs that share a scale.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Groups of an output.
    pub fn groups(&self) -> usize {
        self.inputs.div_ceil(self.group)
    }

    /// The codes, row by row.
    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// The codes of an output; none beyond the last output.
    pub fn row(&self, output: usize) -> &[i8] {
        self.codes.get(output * self.inputs..(output + 1) * self.inputs).unwrap_or(&[])
    }

    /// The scales `[outputs, groups]`.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The weights that the codes stand for, row by row.
    pub fn weights(&self) -> Vec<f32> {
        let mut weights = memory::with_capacity(self.codes.len());
        let groups = self.codes.chunks(self.inputs).flat_map(|row| row.chunks(self.group));
        for (codes, scale) in groups.zip(&self.scales) {
            weights.extend(codes.iter().map(|code| scale * f32::from(*code)));
        }
        weights
    }

    /// The codes as bytes, row by row. A byte holds one code of 8 bits, or two of 4 bits: `code + 8`, the first in the
    /// lower half.
    pub fn bytes(&self) -> Vec<u8> {
        if self.bits == 8 {
            return self.codes.iter().map(|code| code.cast_unsigned()).collect();
        }
        let unsigned = |code: &i8| (code + ZERO).cast_unsigned();
        let rows = self.codes.chunks(self.inputs).flat_map(|row| row.chunks(2));
        rows.map(|pair| match pair {
            [low, high] => unsigned(low) | unsigned(high) << 4,
            rest => rest.iter().map(unsigned).sum(),
        })
        .collect()
    }

    /// Bytes of codes and scales.
    pub fn size(&self) -> usize {
        let row = if self.bits == 8 { self.inputs } else { self.inputs.div_ceil(2) };
        self.outputs() * row + size_of_val(self.scales.as_slice())
    }

    /// A matrix of the bytes of [`bytes`](Self::bytes).
    ///
    /// # Errors
    /// Those of [`new`](Self::new).
    pub fn of_bytes(
        bits: u32,
        inputs: usize,
        group: usize,
        bytes: &[u8],
        scales: Vec<f32>,
    ) -> Result<Self> {
        let codes = match bits {
            4 => {
                // With an odd number of inputs, the last half of a row is empty.
                let signed = |half: u8| half.cast_signed() - ZERO;
                let rows = bytes.chunks(inputs.div_ceil(2).max(1));
                let codes = |row: &[u8]| -> Vec<i8> {
                    let pairs = row.iter().flat_map(|pair| [signed(pair & 15), signed(pair >> 4)]);
                    pairs.take(inputs).collect()
                };
                rows.flat_map(codes).collect()
            }
            _ => bytes.iter().map(|code| code.cast_signed()).collect(),
        };
        Coded::new(bits, inputs, group, codes, scales)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_hold_the_codes_and_a_grid_is_found_again(
            bits in prop::sample::select(vec![4u32, 8]), outputs in 1usize..4, inputs in 1usize..40, group in 1usize..50,
            seed in prop::collection::vec(-1e3f32..1e3, 160)
        ) {
            let weight = &seed[..outputs * inputs];
            let coded = Coded::nearest(bits, weight, inputs, group).unwrap();
            prop_assert_eq!(coded.outputs(), outputs);
            let bytes = coded.bytes();
            prop_assert_eq!(bytes.len(), outputs * if bits == 8 { inputs } else { inputs.div_ceil(2) });
            let again = Coded::of_bytes(bits, inputs, group, &bytes, coded.scales().to_vec());
            prop_assert_eq!(again.unwrap(), coded.clone());
            let groups = weight.chunks(inputs).flat_map(|row| row.chunks(group));
            let scales = groups.zip(coded.scales()).flat_map(|(own, scale)| own.iter().map(move |_| *scale));
            let shown = coded.weights();
            for ((w, v), scale) in weight.iter().zip(&shown).zip(scales) {
                prop_assert!((w - v).abs() <= 0.5001 * scale, "{w} is {v}");
            }
            let found = Coded::nearest(bits, &shown, inputs, group).unwrap();
            prop_assert_eq!(found.codes(), coded.codes());
        }
    }

    #[test]
    fn zeros_have_codes_of_0_and_bad_parts_are_named() {
        let zeros = Coded::nearest(4, &[0.0; 6], 3, 2).unwrap();
        assert_eq!((zeros.codes(), zeros.scales()), (&[0; 6][..], &[1.0; 4][..]));
        assert!(zeros.weights().iter().all(|w| *w == 0.0));
        let bad = |bits, group, code: i8, scales: &[f32]| {
            Coded::new(bits, 3, group, vec![code; 6], scales.to_vec()).unwrap_err().to_string()
        };
        let large = Coded::nearest(8, &[f32::MAX, -1.0], 2, 2).unwrap();
        assert!(large.weights().iter().all(|w| w.is_finite()), "{large:?}");
        for (said, error) in [
            ("scale", bad(8, 3, 1, &[1.0, 3e38])),
            ("bits", bad(3, 3, 1, &[1.0; 2])),
            ("group", bad(4, 0, 1, &[1.0; 2])),
            ("code", bad(4, 3, 8, &[1.0; 2])),
            ("code", bad(8, 3, -128, &[1.0; 2])),
            ("scales", bad(4, 2, 1, &[1.0; 2])),
            ("scale", bad(4, 3, 1, &[1.0, f32::NAN])),
            ("scale", bad(4, 3, 1, &[1.0, 0.0])),
        ] {
            assert!(error.contains(said), "{said}: {error}");
        }
        assert!(Coded::new(8, 4, 4, vec![0; 6], vec![1.0]).is_err());
        let other = Coded::nearest(8, &[1.0; 6], 3, 3).unwrap();
        assert_eq!(Coded::together(&[&zeros, &other]), None);
        let both = Coded::together(&[&other, &other]).unwrap();
        assert_eq!((both.outputs(), both.scales().len()), (4, 4));
    }
}
