//! The initial states that Axon draws for LSTM and GRU: a Glorot-uniform tensor of a key, the same for each window.
//!
//! `Nx.Random` is Threefry-2x32 with 20 rounds (Salmon et al. 2011).

/// `count` words of the generator with this key, for the counters 0, 1, ..
pub fn words(key: [u32; 2], count: usize) -> Vec<u32> {
    let half = count.div_ceil(2);
    // An odd count has a counter of 0 as its last one.
    let counter = |i: usize| if i < count { i as u32 } else { 0 };
    let blocks = (0..half).map(|i| threefry(key, [counter(i), counter(half + i)]));
    let (mut first, second): (Vec<u32>, Vec<u32>) = blocks.map(|[a, b]| (a, b)).unzip();
    first.extend(second);
    first.truncate(count);
    first
}

fn threefry(key: [u32; 2], [mut a, mut b]: [u32; 2]) -> [u32; 2] {
    let keys = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD1_1BDA];
    a = a.wrapping_add(keys[0]);
    b = b.wrapping_add(keys[1]);
    for group in 0..5u32 {
        let turns = if group % 2 == 0 { [13, 15, 26, 6] } else { [17, 29, 16, 24] };
        for turn in turns {
            a = a.wrapping_add(b);
            b = b.rotate_left(turn) ^ a;
        }
        let at = group as usize;
        a = a.wrapping_add(keys[(at + 1) % 3]);
        b = b.wrapping_add(keys[(at + 2) % 3]).wrapping_add(group + 1);
    }
    [a, b]
}

/// The state `[rows, width]` that a layer's key draws.
pub fn drawn(key: [u32; 2], rows: usize, width: usize) -> Vec<f32> {
    let split = words(key, 4);
    let bound = (3.0f32 * (1.0 / ((rows + width) as f32 / 2.0))).sqrt();
    let number = |word: u32| {
        let unit = f32::from_bits(0x3F80_0000 | word >> 9) - 1.0;
        (unit * (bound + bound) - bound).max(-bound)
    };
    words([split[2], split[3]], rows * width).into_iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_published_vectors() {
        // Random123's known answers for Threefry-2x32-20.
        assert_eq!(threefry([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry([u32::MAX; 2], [u32::MAX; 2]), [0x1cb9_96fc, 0xbb00_2be7]);
        assert_eq!(
            threefry([0x13198a2e, 0x03707344], [0x243f6a88, 0x85a308d3]),
            [0xc492_3a9c, 0x483d_f7a0]
        );
        let (three, four) = (words([1, 2], 3), words([1, 2], 4));
        assert_eq!((three.len(), three[0]), (3, four[0]));
    }
}
