//! Matrices in 2:4: of each four inputs of an output at most two weights are not 0 (Mishra et al. 2021).

use crate::simd::non_finite;
use crate::{Error, Result, memory};

/// Inputs of a group. The last group of a row may be shorter.
pub const FOUR: usize = 4;
/// Weights of a group that may differ from 0.
pub const TWO: usize = 2;
/// Bits of a place.
const BITS: usize = 2;

/// Whether each group of each row of this many inputs has at most two weights that are not 0.
pub fn fits(weight: &[f32], inputs: usize) -> bool {
    let is_kept = |w: &&f32| w.to_bits() != 0;
    let fits = |row: &[f32]| row.chunks(FOUR).all(|own| own.iter().filter(is_kept).count() <= TWO);
    inputs > 0 && weight.chunks(inputs).all(fits)
}

/// Places of the weights of a group that go so that it [fits]: all but the two largest magnitudes, the smallest first. Of
/// equal ones the last go.
pub fn going(group: &[f32]) -> impl Iterator<Item = usize> + use<> {
    let count = group.len().min(FOUR);
    let mut order: [usize; FOUR] = std::array::from_fn(|at| at);
    let size = |at: &usize| group[*at].abs();
    order[..count].sort_by(|a, b| size(a).total_cmp(&size(b)).then(b.cmp(a)));
    order.into_iter().take(count.saturating_sub(TWO))
}

/// Places, ascending, and weights of a group of a row that [fits]. A group with fewer weights that are not 0 has other
/// places with weights of 0. A weight beyond the end of the row is 0.
pub fn kept(row: &[f32], group: usize) -> [(u8, f32); TWO] {
    let weight = |at: usize| row.get(group * FOUR + at).copied().unwrap_or(0.0);
    let mut kept = [(0, 0.0); TWO];
    let mut count = 0;
    for at in 0..FOUR {
        // The last places are taken if too few weights before them are not 0.
        if count < TWO && (weight(at).to_bits() != 0 || FOUR - at == TWO - count) {
            kept[count] = (at as u8, weight(at));
            count += 1;
        }
    }
    kept
}

/// A matrix `[outputs, inputs]` as the weights that may differ from 0, and their places.
#[derive(Debug, Clone, PartialEq)]
pub struct TwoFour {
    inputs: usize,
    /// `[outputs, 2 groups]`
    values: Vec<f32>,
    /// `[outputs, (groups + 1) / 2]`: a byte has the two places of a group in its lower half, and those of the next group
    /// in its upper half.
    places: Vec<u8>,
}

impl TwoFour {
    /// The matrix with these weights, row by row; `None` if they do not [fit](fits).
    pub fn of(weight: &[f32], inputs: usize) -> Option<Self> {
        if !fits(weight, inputs) {
            return None;
        }
        let groups = inputs.div_ceil(FOUR);
        let outputs = weight.len() / inputs;
        let mut values = memory::with_capacity(outputs * groups * TWO);
        let mut places = memory::with_capacity(outputs * groups.div_ceil(2));
        for row in weight.chunks_exact(inputs) {
            let mut own = vec![0u8; groups.div_ceil(2)];
            for group in 0..groups {
                let [first, second] = kept(row, group);
                values.extend([first.1, second.1]);
                own[group / 2] |= (first.0 | second.0 << BITS) << (2 * BITS * (group % 2));
            }
            places.extend(own);
        }
        Some(TwoFour { inputs, values, places })
    }

    /// The matrix with these values and places.
    ///
    /// # Errors
    /// `Mismatch` for counts that are not of whole rows, and for places that are not in ascending order or beyond the end
    /// of a row with a value that is not 0; `NonFinite` for values that are not finite.
    pub fn new(inputs: usize, values: Vec<f32>, places: Vec<u8>) -> Result<Self> {
        let groups = inputs.div_ceil(FOUR);
        let row = groups * TWO;
        if row == 0 || values.is_empty() || !values.len().is_multiple_of(row) {
            return Err(Error::mismatch("values", format!("rows of {row}"), values.len()));
        }
        let expected = values.len() / row * groups.div_ceil(2);
        if places.len() != expected {
            return Err(Error::mismatch("places", expected, places.len()));
        }
        if let Some(value) = non_finite(&values) {
            return Err(Error::NonFinite { what: "value".into(), value: f64::from(value) });
        }
        let own = TwoFour { inputs, values, places };
        for (output, group, places, values) in own.groups() {
            let [first, second] = places.map(|place| group * FOUR + place);
            let beyond = |at: usize, value: f32| at >= inputs && value.to_bits() != 0;
            if first >= second || beyond(first, values[0]) || beyond(second, values[1]) {
                let got =
                    format!("{} and {} of group {group} of row {output}", places[0], places[1]);
                return Err(Error::mismatch("places", "two of four inputs, ascending", got));
            }
        }
        Ok(own)
    }

    /// Output, group, places and values of each group.
    fn groups(&self) -> impl Iterator<Item = (usize, usize, [usize; TWO], [f32; TWO])> {
        let groups = self.inputs.div_ceil(FOUR);
        self.values.as_chunks::<TWO>().0.iter().enumerate().map(move |(at, values)| {
            let (output, group) = (at / groups, at % groups);
            let byte = self.places[output * groups.div_ceil(2) + group / 2];
            let place = |j: usize| usize::from(byte >> (BITS * (2 * (group % 2) + j)) & 3);
            (output, group, [place(0), place(1)], *values)
        })
    }

    /// Number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of outputs.
    pub fn outputs(&self) -> usize {
        self.values.len() / (self.inputs.div_ceil(FOUR) * TWO)
    }

    /// The values `[outputs, 2 groups]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The places `[outputs, (groups + 1) / 2]`, two bits each.
    pub fn places(&self) -> &[u8] {
        &self.places
    }

    /// Bytes of values and places.
    pub fn size(&self) -> usize {
        size_of_val(self.values.as_slice()) + self.places.len()
    }

    /// All weights, row by row.
    pub fn weights(&self) -> Vec<f32> {
        let mut weights = memory::zeros(self.outputs() * self.inputs);
        for (output, group, places, values) in self.groups() {
            let row = &mut weights[output * self.inputs..][..self.inputs];
            for (place, value) in places.into_iter().zip(values) {
                row.get_mut(group * FOUR + place).into_iter().for_each(|w| *w = value);
            }
        }
        weights
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_matrix_is_found_again(
            inputs in 1usize..40, outputs in 1usize..4, picks in prop::collection::vec(0u8..8, 160),
            numbers in prop::collection::vec(-9f32..9.0, 160)
        ) {
            let mut weight = numbers[..inputs * outputs].to_vec();
            let groups = weight.chunks_mut(inputs).flat_map(|row| row.chunks_mut(FOUR));
            for (group, pick) in groups.zip(&picks) {
                for (at, w) in group.iter_mut().enumerate() {
                    if at != usize::from(pick % 4) && (at != usize::from(pick / 2) || *pick == 7) {
                        *w = 0.0;
                    }
                }
            }
            let own = TwoFour::of(&weight, inputs).unwrap();
            prop_assert_eq!((own.inputs(), own.outputs()), (inputs, outputs));
            let shown = own.weights();
            prop_assert_eq!(&shown, &weight);
            let groups = outputs * inputs.div_ceil(4);
            prop_assert_eq!(own.size(), 8 * groups + outputs * inputs.div_ceil(4).div_ceil(2));
            let again = TwoFour::new(inputs, own.values().to_vec(), own.places().to_vec()).unwrap();
            prop_assert_eq!(again, own);
        }
    }

    #[test]
    fn the_two_largest_magnitudes_of_a_group_stay_and_of_equal_ones_the_first() {
        let all = |group: &[f32]| going(group).collect::<Vec<_>>();
        assert_eq!(all(&[1.0, -3.0, 2.0, 0.5]), [3, 0]);
        assert_eq!(all(&[1.0, 1.0, -1.0, 1.0]), [3, 2]);
        assert_eq!((all(&[0.0, 2.0, 1.0]), all(&[1.0, 2.0]), all(&[])), (vec![0], vec![], vec![]));
    }

    #[test]
    fn bad_parts_are_named_and_a_zero_keeps_its_sign() {
        assert!(
            TwoFour::of(&[1.0, 1.0, 1.0, 0.0], 4).is_none() && TwoFour::of(&[1.0], 0).is_none()
        );
        let signed = TwoFour::of(&[0.0, -0.0, 0.0, 1.0], 4).unwrap();
        assert!(signed.weights()[1].is_sign_negative() && signed.weights()[0].is_sign_positive());
        let bad = |inputs, values: &[f32], places: &[u8]| {
            TwoFour::new(inputs, values.to_vec(), places.to_vec()).unwrap_err().to_string()
        };
        for (said, error) in [
            ("values", bad(8, &[1.0; 3], &[0b0100])),
            ("values", bad(4, &[], &[])),
            ("values", bad(0, &[1.0], &[])),
            ("places", bad(4, &[1.0; 2], &[4, 4])),
            ("value", bad(4, &[1.0, f32::NAN], &[0b0100])),
            ("1 and 1 of group 0 of row 0", bad(4, &[1.0; 2], &[0b0101])),
            ("2 and 1 of group 1 of row 0", bad(8, &[1.0; 4], &[0b0110_0100])),
            // The fourth input of a row of three.
            ("0 and 3 of group 0 of row 1", bad(3, &[1.0; 4], &[0b0100, 0b1100])),
        ] {
            assert!(error.contains(said), "{said}: {error}");
        }
    }
}
