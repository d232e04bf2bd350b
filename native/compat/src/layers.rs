//! Parameters by layer, as Axon names them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use half::{bf16, f16};
use sconce_tensor::memory;

use crate::term::{Fault, Term};

/// Most dimensions of a parameter.
const MAX_RANK: usize = 8;

/// A parameter: its shape and its numbers, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Leaf {
    /// Sizes of the dimensions.
    pub shape: Vec<usize>,
    /// The numbers.
    pub numbers: Numbers,
}

/// Numbers of a parameter.
#[derive(Debug, Clone, PartialEq)]
pub enum Numbers {
    /// Floats of 16, 32 or 64 bits.
    Floats(Vec<f32>),
    /// Integers of 32 bits, such as the key of random numbers.
    Words(Vec<u32>),
}

/// Parameters by `LAYER.PARAMETER`, in the order of their names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Layers(BTreeMap<String, Leaf>);

impl Layers {
    /// Adds a parameter.
    ///
    /// # Errors
    /// A text, if there is one of that name.
    pub fn add(&mut self, name: String, leaf: Leaf) -> Result<(), Fault> {
        match self.0.entry(name) {
            Entry::Occupied(own) => Err(format!("{} twice", own.key())),
            Entry::Vacant(place) => {
                place.insert(leaf);
                Ok(())
            }
        }
    }

    /// A parameter by its name.
    pub fn get(&self, name: &str) -> Option<&Leaf> {
        self.0.get(name)
    }

    /// Whether a layer has this parameter.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// All parameters with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Leaf)> {
        self.0.iter()
    }
}

impl Leaf {
    /// A parameter of floats.
    pub fn of(shape: Vec<usize>, floats: Vec<f32>) -> Self {
        Leaf { shape, numbers: Numbers::Floats(floats) }
    }

    /// The numbers, if they are floats.
    pub fn floats(&self) -> Option<&[f32]> {
        match &self.numbers {
            Numbers::Floats(floats) => Some(floats),
            Numbers::Words(_) => None,
        }
    }

    /// The two words of a key of random numbers.
    pub fn key(&self) -> Option<[u32; 2]> {
        match &self.numbers {
            Numbers::Words(words) => words[..].try_into().ok(),
            Numbers::Floats(_) => None,
        }
    }

    /// Reads numbers of a type of Nx, such as `{:f, 32}`, in little-endian bytes.
    ///
    /// # Errors
    /// A text, for an unknown type, or bytes that do not fit the shape.
    pub fn read(shape: Vec<usize>, kind: (&str, usize), bytes: &[u8]) -> Result<Self, Fault> {
        if shape.len() > MAX_RANK {
            return Err(format!("{} dimensions, more than {MAX_RANK}", shape.len()));
        }
        let count = shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n));
        let (name, bits) = kind;
        let expected = count.and_then(|count| count.checked_mul(bits / 8));
        if bits % 8 != 0 || expected != Some(bytes.len()) {
            let bytes = bytes.len();
            return Err(format!("{bytes} bytes for the shape {shape:?} of {name}{bits}"));
        }
        let numbers = match kind {
            ("f", 32) => Numbers::Floats(each(bytes, f32::from_le_bytes)),
            ("bf", 16) => Numbers::Floats(each(bytes, |own| bf16::from_le_bytes(own).to_f32())),
            ("f", 16) => Numbers::Floats(each(bytes, |own| f16::from_le_bytes(own).to_f32())),
            ("f", 64) => Numbers::Floats(each(bytes, |own| f64::from_le_bytes(own) as f32)),
            ("u" | "s", 32) => Numbers::Words(each(bytes, u32::from_le_bytes)),
            _ => return Err(format!("numbers of the unsupported type {name}{bits}")),
        };
        Ok(Leaf { shape, numbers })
    }
}

/// Numbers of N bytes each.
fn each<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    let (numbers, _) = bytes.as_chunks::<N>();
    let mut all = memory::with_capacity(numbers.len());
    all.extend(numbers.iter().map(|own| read(*own)));
    all
}

/// The name and the bits of a type of Nx, a tuple such as `{:f, 32}`.
pub(crate) fn kind<'t>(term: &'t Term) -> Option<(&'t str, usize)> {
    match term.tuple()? {
        [name, bits] => Some((name.atom()?, bits.size()?)),
        _ => None,
    }
}

/// The sizes of a shape of Nx, a tuple of integers.
pub(crate) fn shape(term: &Term) -> Option<Vec<usize>> {
    term.tuple()?.iter().map(Term::size).collect()
}
