//! Gathering of bits: of 256 elements, the lowest bits of their first bytes come first, then the next bits. Numbers of
//! similar size share their high bits, which become runs that LZ4 shortens (bit shuffle, Masui et al. 2015).
//!
//! In a plane of 256 bits each of four words of 64 bits holds the bits of 64 elements; their order within the plane is
//! that of the vectors that compute them. Elements behind the last 256 stay as they are.

use sconce_tensor::dispatch;

/// Elements of a group.
const GROUP: usize = 256;
/// Bytes of one bit of each element of a group.
const BYTES: usize = GROUP / 8;

/// Eight vectors of four words.
type Words = [[u64; 4]; 8];

/// Writes the gathered bits of `from` into `to`, which has the same length.
pub(super) fn gather(width: u8, from: &[u8], to: &mut [u8]) {
    match width {
        2 => gathered::<2>(from, to),
        4 => gathered::<4>(from, to),
        8 => gathered::<8>(from, to),
        _ => gathered::<1>(from, to),
    }
}

/// Undoes [`gather`].
pub(super) fn scatter(width: u8, from: &[u8], to: &mut [u8]) {
    match width {
        2 => scattered::<2>(from, to),
        4 => scattered::<4>(from, to),
        8 => scattered::<8>(from, to),
        _ => scattered::<1>(from, to),
    }
}

dispatch! {
    fn gathered<[const W: usize], [W]>(from: &[u8], to: &mut [u8]) {
        let groups = from.len() / (GROUP * W);
        let (whole, rest) = from.split_at(groups * GROUP * W);
        let (planes, end) = to.split_at_mut(whole.len());
        end.copy_from_slice(rest);
        let plane = groups * BYTES;
        for (at, group) in whole.chunks_exact(GROUP * W).enumerate() {
            for (byte, bytes) in taken::<W>(group).iter().enumerate() {
                let words = bytes_transposed(bits_transposed(words_of(bytes)));
                for (bit, word) in words.iter().enumerate() {
                    let begin = (byte * 8 + bit) * plane + at * BYTES;
                    if let Some(place) = planes.get_mut(begin..begin + BYTES) {
                        put(word, place);
                    }
                }
            }
        }
    }
}

dispatch! {
    fn scattered<[const W: usize], [W]>(from: &[u8], to: &mut [u8]) {
        let from = from.get(..to.len()).unwrap_or_default();
        let groups = to.len() / (GROUP * W);
        let (planes, rest) = from.split_at(groups * GROUP * W);
        let (whole, end) = to.split_at_mut(planes.len());
        end.copy_from_slice(rest);
        let plane = groups * BYTES;
        for (at, group) in whole.chunks_exact_mut(GROUP * W).enumerate() {
            let mut all = [[0; GROUP]; W];
            for (byte, bytes) in all.iter_mut().enumerate() {
                let mut words: Words = [[0; 4]; 8];
                for (bit, word) in words.iter_mut().enumerate() {
                    let begin = (byte * 8 + bit) * plane + at * BYTES;
                    if let Some(Ok(place)) = planes.get(begin..begin + BYTES).map(<&[u8; BYTES]>::try_from) {
                        *word = word_of(place);
                    }
                }
                let words = bits_transposed(bytes_transposed(words));
                for (word, place) in words.iter().zip(bytes.chunks_exact_mut(BYTES)) {
                    put(word, place);
                }
            }
            given::<W>(&all, group);
        }
    }
}

/// The bytes of 256 elements by their place in the element.
#[inline(always)]
fn taken<const W: usize>(group: &[u8]) -> [[u8; GROUP]; W] {
    let mut all = [[0; GROUP]; W];
    let (elements, _) = group.as_chunks::<W>();
    for at in 0..GROUP.min(elements.len()) {
        for (bytes, byte) in all.iter_mut().zip(elements[at]) {
            bytes[at] = byte;
        }
    }
    all
}

/// Undoes [`taken`].
#[inline(always)]
fn given<const W: usize>(all: &[[u8; GROUP]; W], group: &mut [u8]) {
    let (elements, _) = group.as_chunks_mut::<W>();
    for (at, element) in elements.iter_mut().enumerate().take(GROUP) {
        for (byte, bytes) in element.iter_mut().zip(all) {
            *byte = bytes[at];
        }
    }
}

#[inline(always)]
fn words_of(bytes: &[u8; GROUP]) -> Words {
    let mut words: Words = [[0; 4]; 8];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = word_of(bytes);
    }
    words
}

#[inline(always)]
fn word_of(bytes: &[u8; BYTES]) -> [u64; 4] {
    let mut word = [0; 4];
    for (lane, bytes) in word.iter_mut().zip(bytes.as_chunks().0) {
        *lane = u64::from_le_bytes(*bytes);
    }
    word
}

#[inline(always)]
fn put(word: &[u64; 4], to: &mut [u8]) {
    for (to, lane) in to.as_chunks_mut().0.iter_mut().zip(word) {
        *to = lane.to_le_bytes();
    }
}

/// Transposes the bits of each word as an 8 x 8 matrix; its own inverse.
#[inline(always)]
fn bits_transposed(mut words: Words) -> Words {
    for word in &mut words {
        *word = word.map(|lane| swapped(lane, 7, 0x00AA_00AA_00AA_00AA));
        *word = word.map(|lane| swapped(lane, 14, 0x0000_CCCC_0000_CCCC));
        *word = word.map(|lane| swapped(lane, 28, 0x0000_0000_F0F0_F0F0));
    }
    words
}

/// Transposes the bytes of the eight words of each lane; its own inverse.
#[inline(always)]
fn bytes_transposed(mut words: Words) -> Words {
    exchange::<1>(&mut words, 8, 0x00FF_00FF_00FF_00FF);
    exchange::<2>(&mut words, 16, 0x0000_FFFF_0000_FFFF);
    exchange::<4>(&mut words, 32, 0x0000_0000_FFFF_FFFF);
    words
}

#[inline(always)]
fn swapped(word: u64, by: u32, mask: u64) -> u64 {
    let t = (word ^ (word >> by)) & mask;
    word ^ t ^ (t << by)
}

/// Exchanges the high parts of words with the low parts of the words `N` places behind.
#[inline(always)]
fn exchange<const N: usize>(words: &mut Words, by: u32, mask: u64) {
    for pair in words.chunks_exact_mut(2 * N) {
        let (low, high) = pair.split_at_mut(N);
        for (low, high) in low.as_flattened_mut().iter_mut().zip(high.as_flattened_mut()) {
            let t = ((*low >> by) ^ *high) & mask;
            *high ^= t;
            *low ^= t << by;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_where_the_module_says() {
        // Of 256 elements of two bytes one has the bit 11: bit 3 of byte 1.
        let mut elements = vec![0; 512];
        elements[2 * 77 + 1] = 1 << 3;
        let mut planes = vec![0; 512];
        gather(2, &elements, &mut planes);
        let places: Vec<usize> = (0..512).filter(|i| planes[*i] != 0).collect();
        assert_eq!(places.len(), 1);
        assert_eq!(places[0] / 32, 8 + 3);
        assert_eq!(planes[places[0]].count_ones(), 1);
    }
}
