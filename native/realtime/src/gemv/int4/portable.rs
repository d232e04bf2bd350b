//! The kernel that the compiler vectorises.

use sconce_tensor::simd::{LANES, dispatch, mul_add};

use super::{IN_A_WORD, Panel, Row, Sums, WORDS};

dispatch! {
    /// Adds to the sums of each of `R` vectors the products of its live blocks and the weights of a panel.
    pub fn add<[const R: usize], [R]>(sums: &mut [Sums; R], panel: &Panel, x: &[Row; R], live: &[bool]) {
        let vectors = panel.vectors;
        let size = 1 + WORDS * panel.blocks();
        for (sums, x) in sums.iter_mut().zip(x) {
            for (t, sum) in sums.iter_mut().take(vectors).enumerate() {
                for (group, live) in live.chunks(panel.blocks()).enumerate() {
                    let row = |row: usize| &panel.weights[(group * size + row) * vectors + t];
                    let mut part = [0.0; LANES];
                    for block in (0..live.len()).filter(|block| live[*block]) {
                        let place = group * panel.blocks() + block;
                        let (shared, codes) = (x.shared[place], &x.codes[place]);
                        let mut products = [shared.start; LANES];
                        for (k, codes) in codes.as_chunks::<IN_A_WORD>().0.iter().enumerate() {
                            let words = row(1 + block * WORDS + k);
                            for i in 0..LANES {
                                let bytes = words[i].to_bits().to_le_bytes();
                                for j in 0..IN_A_WORD / 2 {
                                    let (low, high) = (bytes[j] & 15, bytes[j] >> 4);
                                    products[i] += i32::from(low) * i32::from(codes[j]);
                                    products[i] += i32::from(high) * i32::from(codes[j + IN_A_WORD / 2]);
                                }
                            }
                        }
                        for i in 0..LANES {
                            part[i] = mul_add::<FMA>(products[i] as f32, shared.scale, part[i]);
                        }
                    }
                    let scales = row(0);
                    for i in 0..LANES {
                        sum[i] = mul_add::<FMA>(part[i], scales[i], sum[i]);
                    }
                }
            }
        }
    }
}
