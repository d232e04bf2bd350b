//! Gathering of bits: of 256 elements, the lowest bits of their first bytes come first, then the next bits. Numbers of
//! similar size share their high bits, which become runs that LZ4 shortens (bit shuffle, Masui et al. 2015).
//!
//! A group of 256 elements is eight vectors of 32. The first byte of a plane has a bit of the first element of each vector,
//! the next byte those of the second elements. Elements behind the last 256 stay as they are.
//!
//! A mask says which planes LZ4 gets; these come in a part of their own. Of a byte without such a plane the bits are not
//! gathered, only the bytes: the digits of weights are noise, of which LZ4 would spend its time.

use sconce_tensor::dispatch;

/// Elements of a group.
const GROUP: usize = 256;
/// Bytes of one bit of each element of a group.
const BYTES: usize = GROUP / 8;

/// Eight vectors of four words.
type Words = [[u64; 4]; 8];

/// The planes that LZ4 gets: bit `8 * byte + bit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mask(pub(super) u64);

impl Mask {
    /// All planes of elements of a width.
    pub(super) fn all(width: u8) -> Mask {
        Mask(u64::MAX >> (64 - 8 * u32::from(width.clamp(1, 8))))
    }

    /// Bytes of the planes of `bytes` bytes, and how many of them are in the mask.
    pub(super) fn lengths(self, width: u8, bytes: usize) -> (usize, usize) {
        let plane = bytes / (GROUP * usize::from(width)) * BYTES;
        (plane, plane * self.0.count_ones() as usize)
    }

    fn of_byte(self, byte: usize) -> u8 {
        self.0.to_le_bytes().get(byte).copied().unwrap_or_default()
    }
}

/// Writes the planes of the mask into `planes`, and the others into `others`. Together they have the length of `from`.
pub(super) fn gather(width: u8, mask: Mask, from: &[u8], planes: &mut [u8], others: &mut [u8]) {
    match width {
        2 => gathered::<2>(mask, from, planes, others),
        4 => gathered::<4>(mask, from, planes, others),
        8 => gathered::<8>(mask, from, planes, others),
        _ => gathered::<1>(mask, from, planes, others),
    }
}

/// Undoes [`gather`].
pub(super) fn scatter(width: u8, mask: Mask, planes: &[u8], others: &[u8], to: &mut [u8]) {
    match width {
        2 => scattered::<2>(mask, planes, others, to),
        4 => scattered::<4>(mask, planes, others, to),
        8 => scattered::<8>(mask, planes, others, to),
        _ => scattered::<1>(mask, planes, others, to),
    }
}

/// Where the bits of one byte of the elements lie.
enum Place<P> {
    /// As bytes.
    Bytes(P),
    /// As planes, the lowest bit first.
    Planes([P; 8]),
}

fn gathered<const W: usize>(mask: Mask, from: &[u8], mut planes: &mut [u8], mut others: &mut [u8]) {
    let stream = from.len() / (GROUP * W) * GROUP;
    let (whole, rest) = from.split_at(stream * W);
    let mut places: [Place<&mut [u8]>; W] = std::array::from_fn(|byte| match mask.of_byte(byte) {
        0 => Place::Bytes(taken_mut(&mut others, stream)),
        bits => Place::Planes(std::array::from_fn(|bit| match bits >> bit & 1 {
            1 => taken_mut(&mut planes, stream / 8),
            _ => taken_mut(&mut others, stream / 8),
        })),
    });
    others.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    to_places::<W>(whole, &mut places);
}

fn scattered<const W: usize>(mask: Mask, mut planes: &[u8], mut others: &[u8], to: &mut [u8]) {
    let stream = to.len() / (GROUP * W) * GROUP;
    let (whole, rest) = to.split_at_mut(stream * W);
    let places: [Place<&[u8]>; W] = std::array::from_fn(|byte| match mask.of_byte(byte) {
        0 => Place::Bytes(taken(&mut others, stream)),
        bits => Place::Planes(std::array::from_fn(|bit| match bits >> bit & 1 {
            1 => taken(&mut planes, stream / 8),
            _ => taken(&mut others, stream / 8),
        })),
    });
    rest.iter_mut().zip(others).for_each(|(to, from)| *to = *from);
    of_places::<W>(&places, whole);
}

/// The first bytes of those that are left, or all.
fn taken_mut<'b>(left: &mut &'b mut [u8], count: usize) -> &'b mut [u8] {
    let all = std::mem::take(left);
    let (first, rest) = all.split_at_mut(count.min(all.len()));
    *left = rest;
    first
}

fn taken<'b>(left: &mut &'b [u8], count: usize) -> &'b [u8] {
    let (first, rest) = left.split_at(count.min(left.len()));
    *left = rest;
    first
}

// No closures below: a call of one is compiled for any CPU.
dispatch! {
    fn to_places<[const W: usize], [W]>(from: &[u8], places: &mut [Place<&mut [u8]>; W]) {
        let (elements, _) = from.as_chunks::<W>();
        let mut all = [[0; GROUP]; W];
        for (at, group) in elements.as_chunks::<GROUP>().0.iter().enumerate() {
            for (at, element) in group.iter().enumerate() {
                for (bytes, byte) in all.iter_mut().zip(element) {
                    bytes[at] = *byte;
                }
            }
            for (bytes, place) in all.iter().zip(places.iter_mut()) {
                match place {
                    Place::Bytes(place) => {
                        if let Some(place) = place.as_chunks_mut::<GROUP>().0.get_mut(at) {
                            *place = *bytes;
                        }
                    }
                    Place::Planes(planes) => {
                        let mut words: Words = [[0; 4]; 8];
                        for (vector, word) in words.iter_mut().enumerate() {
                            *word = word_of(bytes, vector);
                        }
                        let words = exchanged(words);
                        for (word, plane) in words.iter().zip(planes.iter_mut()) {
                            if let Some(place) = plane.as_chunks_mut::<BYTES>().0.get_mut(at) {
                                put(word, place);
                            }
                        }
                    }
                }
            }
        }
    }
}

dispatch! {
    fn of_places<[const W: usize], [W]>(places: &[Place<&[u8]>; W], to: &mut [u8]) {
        let (elements, _) = to.as_chunks_mut::<W>();
        let mut all = [[0; GROUP]; W];
        for (at, group) in elements.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
            for (bytes, place) in all.iter_mut().zip(places) {
                match place {
                    Place::Bytes(place) => {
                        if let Some(place) = place.as_chunks::<GROUP>().0.get(at) {
                            *bytes = *place;
                        }
                    }
                    Place::Planes(planes) => {
                        let mut words: Words = [[0; 4]; 8];
                        for (word, plane) in words.iter_mut().zip(planes) {
                            *word = word_of(plane, at);
                        }
                        let words = exchanged(words);
                        for (word, place) in words.iter().zip(bytes.as_chunks_mut::<BYTES>().0) {
                            put(word, place);
                        }
                    }
                }
            }
            for (at, element) in group.iter_mut().enumerate() {
                for (byte, bytes) in element.iter_mut().zip(&all) {
                    *byte = bytes[at];
                }
            }
        }
    }
}

/// The 32 bytes at a place.
#[inline(always)]
fn word_of(bytes: &[u8], at: usize) -> [u64; 4] {
    let mut word = [0; 4];
    if let Some(bytes) = bytes.as_chunks::<BYTES>().0.get(at) {
        for (lane, bytes) in word.iter_mut().zip(bytes.as_chunks().0) {
            *lane = u64::from_le_bytes(*bytes);
        }
    }
    word
}

#[inline(always)]
fn put(word: &[u64; 4], to: &mut [u8; BYTES]) {
    for (to, lane) in to.as_chunks_mut().0.iter_mut().zip(word) {
        *to = lane.to_le_bytes();
    }
}

/// Exchanges, for each bit of 32 bytes, the places of a bit in its byte with those of eight vectors. Its own inverse.
#[inline(always)]
fn exchanged(words: Words) -> Words {
    let [a, b, c, d, e, f, g, h] = words;
    let ([a, b], [c, d]) = (exchange::<1>(a, b), exchange::<1>(c, d));
    let ([e, f], [g, h]) = (exchange::<1>(e, f), exchange::<1>(g, h));
    let ([a, c], [b, d]) = (exchange::<2>(a, c), exchange::<2>(b, d));
    let ([e, g], [f, h]) = (exchange::<2>(e, g), exchange::<2>(f, h));
    let ([a, e], [b, f]) = (exchange::<4>(a, e), exchange::<4>(b, f));
    let ([c, g], [d, h]) = (exchange::<4>(c, g), exchange::<4>(d, h));
    [a, b, c, d, e, f, g, h]
}

/// Exchanges the bits behind each `N` of a vector with the bits before of another one.
#[inline(always)]
fn exchange<const N: u32>(mut low: [u64; 4], mut high: [u64; 4]) -> [[u64; 4]; 2] {
    let mask = match N {
        1 => 0x5555_5555_5555_5555,
        2 => 0x3333_3333_3333_3333,
        _ => 0x0F0F_0F0F_0F0F_0F0F,
    };
    for lane in 0..4 {
        let t = ((low[lane] >> N) ^ high[lane]) & mask;
        high[lane] ^= t;
        low[lane] ^= t << N;
    }
    [low, high]
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
        gather(2, Mask::all(2), &elements, &mut planes, &mut []);
        let places: Vec<usize> = (0..512).filter(|i| planes[*i] != 0).collect();
        assert_eq!(places.len(), 1);
        assert_eq!(places[0] / 32, 8 + 3);
        assert_eq!(planes[places[0]].count_ones(), 1);
    }

    #[test]
    fn every_mask_is_undone() {
        let rng = sconce_tensor::rng::Rng::new(1, "masks", 0);
        for width in [1, 2, 4, 8] {
            for (at, bytes) in [0, 255, 256, 2047, 2048, 9999].into_iter().enumerate() {
                let from: Vec<u8> = (0..bytes).map(|i| rng.u32(i) as u8).collect();
                for draw in 0..20 {
                    let any = rng.below(100 * at as u64 + draw, u64::MAX);
                    let mask = Mask(
                        [0, 1, u64::MAX].get(draw as usize).map_or(any, |m| *m)
                            & Mask::all(width).0,
                    );
                    let (_, count) = mask.lengths(width, from.len());
                    let (mut planes, mut others) = (vec![0; count], vec![0; from.len() - count]);
                    gather(width, mask, &from, &mut planes, &mut others);
                    let mut back = vec![0; from.len()];
                    scatter(width, mask, &planes, &others, &mut back);
                    assert!(back == from, "width {width}, {bytes} bytes, {mask:?}");
                }
            }
        }
    }
}
