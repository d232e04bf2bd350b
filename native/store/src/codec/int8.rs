//! Eight bits an element, which is lossy: of each group of elements the largest magnitude becomes 127 steps of a scale.
//!
//! The stored form is the elements of a group (u32), the scale of each group (f32), and the steps of each element (i8).

use half::{bf16, f16};
use sconce_tensor::memory;

/// Most elements of a group.
const MOST_GROUP: usize = 256;
/// Elements of a group of rows that are shorter than half of it, or longer than a group may be.
const GROUP: usize = 64;
/// The steps of the largest magnitude.
const STEPS: f32 = 127.0;

/// The type of elements that may be stored in eight bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Real {
    /// 32 bits.
    F32,
    /// 16 bits, of which 10 are digits.
    F16,
    /// The upper half of 32 bits.
    Bf16,
}

impl Real {
    /// All, in the order of their codes.
    pub(super) const ALL: [Real; 3] = [Real::F32, Real::F16, Real::Bf16];

    /// Bytes of an element.
    pub fn width(self) -> u8 {
        if self == Real::F32 { 4 } else { 2 }
    }

    /// The largest error of an element, as a share of the largest magnitude of its group: half a step, and what the type
    /// rounds off.
    pub fn bound(self) -> f32 {
        match self {
            Real::F32 => 1.0 / 250.0,
            Real::F16 => 1.0 / 200.0,
            Real::Bf16 => 1.0 / 125.0,
        }
    }

    fn get(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Real::F32, [a, b, c, d]) => f32::from_le_bytes([*a, *b, *c, *d]),
            (Real::F16, [a, b]) => f16::from_le_bytes([*a, *b]).to_f32(),
            (Real::Bf16, [a, b]) => bf16::from_le_bytes([*a, *b]).to_f32(),
            _ => f32::NAN,
        }
    }

    fn put(self, value: f32, to: &mut [u8]) {
        match self {
            Real::F32 => to.copy_from_slice(&value.to_le_bytes()),
            Real::F16 => to.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            Real::Bf16 => to.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        }
    }
}

/// The elements of a group: a row of the last dimension, if that is neither short nor long.
pub fn group_of(shape: &[u64]) -> u32 {
    let row = shape.last().copied().unwrap_or(1) as usize;
    if (GROUP / 2..=MOST_GROUP).contains(&row) { row as u32 } else { GROUP as u32 }
}

/// Bytes of the stored form of `raw` bytes.
pub fn stored_bytes(real: Real, group: u32, raw: u32) -> u32 {
    let elements = raw / u32::from(real.width());
    4 + elements.div_ceil(group.max(1)) * 4 + elements
}

/// The stored form. `None` if the bytes have an element that is not finite, or one that would be further off than the
/// bound of its type, as the scale of the smallest numbers would be 0.
pub fn encode(real: Real, group: u32, raw: &[u8]) -> Option<Vec<u8>> {
    let width = usize::from(real.width());
    if !raw.len().is_multiple_of(width) || group == 0 || group as usize > MOST_GROUP {
        return None;
    }
    let groups = raw.chunks(group as usize * width);
    let mut stored = memory::with_capacity(4 + 4 * groups.len() + raw.len() / width);
    stored.extend_from_slice(&group.to_le_bytes());
    let mut steps: Vec<u8> = memory::with_capacity(raw.len() / width);
    for bytes in groups {
        let values = || bytes.chunks_exact(width).map(|bytes| real.get(bytes));
        if !values().all(f32::is_finite) {
            return None;
        }
        let most = values().fold(0.0, |most: f32, value| most.max(value.abs()));
        let scale = most / STEPS;
        let mut back = [0; 4];
        for value in values() {
            let step = if scale > 0.0 { (value / scale).round().clamp(-STEPS, STEPS) } else { 0.0 };
            let back = back.get_mut(..width)?;
            real.put(step * scale, back);
            let is_near = (real.get(back) - value).abs() <= most * real.bound();
            is_near.then_some(())?;
            steps.push((step as i8).cast_unsigned());
        }
        stored.extend_from_slice(&scale.to_le_bytes());
    }
    stored.extend_from_slice(&steps);
    Some(stored)
}

/// Restores a block of `length` bytes. Returns the fault of bytes that no encoder makes.
pub(super) fn decode(real: Real, stored: &[u8], length: usize) -> Result<Vec<u8>, &'static str> {
    let width = usize::from(real.width());
    let (group, rest) = stored.split_first_chunk::<4>().ok_or("a group that is cut off")?;
    let group = u32::from_le_bytes(*group) as usize;
    if !(1..=MOST_GROUP).contains(&group) || !length.is_multiple_of(width) {
        return Err("a group of no such size");
    }
    let elements = length / width;
    let (scales, steps) =
        rest.split_at_checked(elements.div_ceil(group) * 4).ok_or("scales that are cut off")?;
    if steps.len() != elements {
        return Err("steps of another length");
    }
    if steps.contains(&i8::MIN.cast_unsigned()) {
        return Err("a step that no encoder makes");
    }
    let mut raw = memory::repeated(0, length);
    let parts = raw.chunks_mut(group * width).zip(steps.chunks(group));
    for ((to, steps), scale) in parts.zip(scales.as_chunks().0) {
        let scale = f32::from_le_bytes(*scale);
        if !scale.is_finite() || scale.is_sign_negative() {
            return Err("a scale of no magnitude");
        }
        for (to, step) in to.chunks_exact_mut(width).zip(steps) {
            real.put(f32::from(step.cast_signed()) * scale, to);
        }
    }
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sconce_tensor::rng::Rng;

    fn bytes(real: Real, values: impl Iterator<Item = f32>) -> Vec<u8> {
        let width = usize::from(real.width());
        let mut all = vec![];
        for value in values {
            all.resize(all.len() + width, 0);
            let at = all.len() - width;
            real.put(value, &mut all[at..]);
        }
        all
    }

    #[test]
    fn every_element_is_within_the_bound_of_its_group() {
        let rng = Rng::new(5, "values", 0);
        // Rows of very different magnitude.
        let value = |i: u64| rng.normal(i) * 10_f32.powi((i / 40) as i32 % 5 - 2);
        for real in Real::ALL {
            for (count, group) in [(4000, 40), (4000, 64), (1, 64), (65, 64), (0, 64)] {
                let raw = bytes(real, (0..count).map(value));
                let stored = encode(real, group, &raw).unwrap();
                assert_eq!(stored.len() as u32, stored_bytes(real, group, raw.len() as u32));
                let back = decode(real, &stored, raw.len()).unwrap();
                let width = usize::from(real.width());
                let parts = raw.chunks(group as usize * width);
                for (own, back) in parts.zip(back.chunks(group as usize * width)) {
                    let values = |bytes: &[u8]| -> Vec<f32> {
                        bytes.chunks(width).map(|bytes| real.get(bytes)).collect()
                    };
                    let (own, back) = (values(own), values(back));
                    let most = own.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
                    for (own, back) in own.iter().zip(&back) {
                        assert!((own - back).abs() <= most * real.bound(), "{real:?} {own} {back}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_within_the_bound_stays_exact() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let raw = bytes(Real::F32, [1.0, bad].into_iter());
            assert_eq!(encode(Real::F32, 64, &raw), None);
        }
        let smallest = bytes(Real::F32, [f32::from_bits(3), 0.0].into_iter());
        assert_eq!(encode(Real::F32, 64, &smallest), None);
        assert_eq!(encode(Real::F32, 64, &[0; 3]), None);
        let most = bytes(Real::F16, [65504.0, -65504.0].into_iter());
        assert!(encode(Real::F16, 64, &most).is_some());
    }

    #[test]
    fn groups_are_rows_that_are_neither_short_nor_long() {
        let groups = [&[][..], &[7], &[9, 31], &[9, 32], &[2, 256], &[2, 257], &[0, 0]];
        assert_eq!(groups.map(group_of), [64, 64, 64, 32, 256, 64, 64]);
    }

    #[test]
    fn bytes_that_no_encoder_makes_are_refused() {
        let raw = bytes(Real::Bf16, (0..500).map(|i| i as f32));
        let stored = encode(Real::Bf16, 64, &raw).unwrap();
        for at in 0..stored.len() {
            assert!(decode(Real::Bf16, &stored[..at], raw.len()).is_err());
        }
        assert!(decode(Real::Bf16, &[&stored[..], &[0]].concat(), raw.len()).is_err());
        for group in [0_u32, 257, u32::MAX] {
            let wrong = [&group.to_le_bytes()[..], &stored[4..]].concat();
            assert!(decode(Real::Bf16, &wrong, raw.len()).is_err());
        }
        for scale in [f32::NAN, f32::INFINITY, -1.0] {
            let wrong = [&stored[..4], &scale.to_le_bytes(), &stored[8..]].concat();
            assert!(decode(Real::Bf16, &wrong, raw.len()).is_err());
        }
    }
}
