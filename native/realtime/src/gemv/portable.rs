//! Panels in the vectors that the compiler finds.

use sconce_core::ops::simd::{LANES, dispatch, mul_add};

use super::Entry;

dispatch! {
    /// Adds to the sums each row of a panel times what its entry says.
    pub fn add<[const T: usize], [T]>(sums: &mut [[f32; LANES]; T], rows: &[[[f32; LANES]; T]], entries: &[Entry]) {
        let mut all = *sums;
        for entry in entries {
            let row = &rows[entry.row as usize];
            for t in 0..T {
                for i in 0..LANES {
                    all[t][i] = mul_add::<FMA>(row[t][i], entry.value, all[t][i]);
                }
            }
        }
        *sums = all;
    }
}

dispatch! {
    /// [`add`] of rows whose words are two bf16.
    pub fn add_pairs<[const T: usize], [T]>(low: &mut [[f32; LANES]; T], high: &mut [[f32; LANES]; T], rows: &[[[f32; LANES]; T]], entries: &[Entry]) {
        let (mut lows, mut highs) = (*low, *high);
        for entry in entries {
            let row = &rows[entry.row as usize];
            for t in 0..T {
                for i in 0..LANES {
                    let word = row[t][i].to_bits();
                    let (first, second) = (f32::from_bits(word << 16), f32::from_bits(word & 0xFFFF_0000));
                    lows[t][i] = mul_add::<FMA>(first, entry.value, lows[t][i]);
                    highs[t][i] = mul_add::<FMA>(second, entry.value, highs[t][i]);
                }
            }
        }
        (*low, *high) = (lows, highs);
    }
}
