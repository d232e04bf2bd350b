//! Gathering of bits: of 256 elements, the lowest bits of their first bytes come first, then the next bits. Numbers of
//! similar size share their high bits, which become runs that LZ4 shortens (bit shuffle, Masui et al. 2015).
//!
//! A group of 256 elements is eight vectors of 32. The first byte of a plane has a bit of the first element of each vector,
//! the next byte those of the second elements. Elements behind the last 256 stay as they are.

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
                let words = exchanged(words_of(bytes));
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
                let words = exchanged(words);
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

/// Exchanges, for each bit of 32 bytes, the places of a bit in its byte with those of eight vectors. Its own inverse.
#[inline(always)]
fn exchanged(mut words: Words) -> Words {
    exchange::<1>(&mut words, 0x5555_5555_5555_5555);
    exchange::<2>(&mut words, 0x3333_3333_3333_3333);
    exchange::<4>(&mut words, 0x0F0F_0F0F_0F0F_0F0F);
    words
}

/// Exchanges the bits behind each `N` of the vectors with the bits before of the vectors `N` places behind.
#[inline(always)]
fn exchange<const N: usize>(words: &mut Words, mask: u64) {
    for pair in words.chunks_exact_mut(2 * N) {
        let (low, high) = pair.split_at_mut(N);
        for (low, high) in low.as_flattened_mut().iter_mut().zip(high.as_flattened_mut()) {
            let t = ((*low >> N) ^ *high) & mask;
            *high ^= t;
            *low ^= t << N;
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
