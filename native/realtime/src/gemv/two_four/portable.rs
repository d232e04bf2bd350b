//! The kernel in plain Rust.

use sconce_tensor::simd::{LANES, dispatch, mul_add};

use super::{BITS, BLOCK, FOUR, GROUPS, Panel, Sums, TWO, groups_of};

dispatch! {
    /// Adds to the sums of each of `R` vectors the products of its live groups and the weights of a panel.
    pub fn add<[const R: usize], [R]>(sums: &mut [Sums; R], panel: &Panel, x: &[&[[f32; FOUR]]; R], live: &[u32]) {
        let row = |row: usize| &panel.weights[row * panel.vectors..][..panel.vectors];
        for (sums, x) in sums.iter_mut().zip(x) {
            for (block, live) in live.iter().enumerate() {
                let live = groups_of(*live);
                for group in (0..GROUPS).filter(|group| live >> (FOUR * group) & 1 == 1) {
                    let inputs = &x[block * GROUPS + group];
                    let places = row(block * BLOCK);
                    for j in 0..TWO {
                        let at = TWO * group + j;
                        let values = row(block * BLOCK + 1 + at);
                        for (sum, (places, values)) in sums.iter_mut().zip(places.iter().zip(values)) {
                            for i in 0..LANES {
                                let place = places[i].to_bits() >> (BITS * at) & 3;
                                sum[i] = mul_add::<FMA>(values[i], inputs[place as usize], sum[i]);
                            }
                        }
                    }
                }
            }
        }
    }
}
