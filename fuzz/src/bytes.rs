//! Mutations that ignore the format.

use crate::rng::Rng;

/// Numbers that often break readers.
pub const ODD: [u64; 14] = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x1_0000,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// Changes a few bytes: flips, truncations, copies, and numbers of [`ODD`] in both byte orders.
pub fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let at = rng.below(bytes.len());
    match rng.below(9) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << rng.below(8),
        1 if !bytes.is_empty() => bytes[at] = rng.next() as u8,
        2 => bytes.truncate(at),
        3 => {
            let end = (at + 1 + rng.up_to(64)).min(bytes.len());
            bytes.drain(at.min(end)..end);
        }
        4 => {
            let end = (at + 1 + rng.up_to(64)).min(bytes.len());
            let copy = bytes[at.min(end)..end].to_vec();
            let to = rng.below(bytes.len() + 1);
            bytes.splice(to..to, copy);
        }
        5 => {
            let odd: Vec<u8> = (0..1 + rng.up_to(16)).map(|_| rng.next() as u8).collect();
            bytes.splice(at..at, odd);
        }
        6 => bytes.extend((0..1 + rng.up_to(256)).map(|_| rng.next() as u8)),
        7 => overwrite(rng, bytes, at),
        _ => {
            let odd = [0x00, 0xFF, 0x7F, b'{', b'[', b'"'];
            let (byte, length) = (*rng.pick(&odd), 1 + rng.up_to(32));
            let end = (at + length).min(bytes.len());
            bytes[at.min(end)..end].fill(byte);
        }
    }
}

/// Overwrites one to eight bytes with a number of [`ODD`].
fn overwrite(rng: &mut Rng, bytes: &mut [u8], at: usize) {
    let number = rng.pick(&ODD).wrapping_add(rng.below(3) as u64).wrapping_sub(1);
    let size = *rng.pick(&[1, 2, 4, 8]);
    let number = match rng.one_in(2) {
        true => number.to_le_bytes()[..size].to_vec(),
        false => number.to_be_bytes()[8 - size..].to_vec(),
    };
    for (byte, new) in bytes.iter_mut().skip(at).zip(number) {
        *byte = new;
    }
}
