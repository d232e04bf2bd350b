//! The memory of a plan's weights: one contiguous block, in the order in which a step reads the weights.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::{iter, slice, vec};

use sconce_ops::weights::{Weight, Weights};
use sconce_tensor::candle::TensorId;
use sconce_tensor::digest::sha256;
use sconce_tensor::mapped::{Mapped, guarded};
use sconce_tensor::simd::non_finite;
use sconce_tensor::{Error, Result, fs, memory, tensor};

use crate::format::{Encoding, Format, Packed, Record};
use crate::huge::Huge;

/// f32 values in a cache line.
const LINE: usize = 16;
/// Bytes of a cache line. The arena of a file begins at a multiple of them.
pub const LINE_BYTES: usize = LINE * size_of::<f32>();

/// A block of values that begins at a cache line.
pub struct Arena(Memory);

enum Memory {
    /// The values of a vector from this index on.
    Own(Vec<f32>, usize),
    /// Values in huge pages.
    Huge(Huge),
    /// Bytes of a file, which other processes may map as well.
    File { map: [Arc<Mapped>; 1], file: fs::Regular, bytes: Range<usize> },
}

impl Arena {
    /// The values at `bytes` of a file, which is mapped: little-endian f32.
    ///
    /// # Errors
    /// `Corrupt` for bytes outside of the file and for bytes that do not begin and end at a cache line.
    pub fn of_file(file: fs::Regular, bytes: Range<usize>) -> Result<Self> {
        let map = Mapped::of(&file)?;
        let aligned = [bytes.start, bytes.end].iter().all(|at| at.is_multiple_of(LINE_BYTES));
        if !aligned || map.bytes().get(bytes.clone()).is_none() {
            let reason = format!("packed weights at bytes {} to {}", bytes.start, bytes.end);
            return Err(Error::corrupt(file.path().display().to_string(), reason));
        }
        Ok(Arena(Memory::File { map: [Arc::new(map)], file, bytes }))
    }

    /// Calls `work` with all values. A file may change while it is mapped, so `work` may compute with wrong values, and
    /// the error then says that its results are void.
    ///
    /// # Errors
    /// `Corrupt` for a file that was changed or cut since it was opened. A file that was replaced by another one under
    /// the same name keeps its values.
    pub fn read<T>(&self, work: impl FnOnce(&[f32]) -> T) -> Result<T> {
        match &self.0 {
            Memory::Own(numbers, first) => Ok(work(&numbers[*first..])),
            Memory::Huge(huge) => Ok(work(huge.numbers())),
            Memory::File { map, file, bytes } => {
                let [of] = map;
                let done = guarded(map, || {
                    let bytes = &of.bytes()[bytes.clone()];
                    let (start, len) =
                        (bytes.as_ptr().cast::<f32>(), bytes.len() / size_of::<f32>());
                    // SAFETY: the bytes live as long as the map. They begin at a cache line, because the map begins at
                    // a page and `of_file` checked the offset. Every pattern of bits is an f32. No code of Sconce
                    // writes to the map; changes by other programs are found by `verify_open`.
                    work(unsafe { slice::from_raw_parts(start, len) })
                });
                of.verify_open(file)?;
                Ok(done)
            }
        }
    }

    /// SHA-256 of `before` and of the values as little-endian f32.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn sha256(&self, before: &[u8]) -> Result<String> {
        let of_numbers = |numbers: &[f32]| {
            let bytes = |part: &[f32]| part.iter().flat_map(|v| v.to_le_bytes()).collect();
            Ok(sha256(iter::once(before.to_vec()).chain(numbers.chunks(1 << 14).map(bytes))))
        };
        match &self.0 {
            Memory::Own(numbers, first) => of_numbers(&numbers[*first..]),
            Memory::Huge(huge) => of_numbers(huge.numbers()),
            Memory::File { map, file, bytes } => {
                let [of] = map;
                let found = guarded(map, || sha256([before, &of.bytes()[bytes.clone()]]));
                of.verify_open(file)?;
                Ok(found)
            }
        }
    }

    /// Bytes of the values.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Memory::Own(numbers, first) => size_of_val(&numbers[*first..]),
            Memory::Huge(huge) => size_of_val(huge.numbers()),
            Memory::File { bytes, .. } => bytes.len(),
        }
    }

    fn new(numbers: &[f32]) -> Self {
        if let Some(huge) = Huge::copy(numbers) {
            return Arena(Memory::Huge(huge));
        }
        let mut memory: Vec<f32> = memory::with_capacity(numbers.len() + LINE);
        let first = memory.as_ptr().align_offset(LINE_BYTES).min(LINE);
        memory.resize(first, 0.0);
        memory.extend_from_slice(numbers);
        Arena(Memory::Own(memory, first))
    }
}

/// Builds an arena: reads weights and appends them one after the other. Or finds the places of the weights in an arena
/// that was built before, without reading weights.
pub struct Packer<'a> {
    /// The names of the weights, for [`Packed::name`].
    names: HashMap<TensorId, &'a str>,
    numbers: Vec<f32>,
    /// Values so far, also where none are appended.
    len: usize,
    format: Format,
    /// The matrices of an arena that was built before.
    records: Option<vec::IntoIter<Record>>,
    matrices: Vec<Packed>,
    widest: usize,
    finite: bool,
}

impl<'a> Packer<'a> {
    /// An empty packer. `format` applies to matrices; everything else is f32.
    pub fn new(weights: &'a Weights, format: Format) -> Self {
        let names = weights.iter().map(|(name, weight)| (weight.id(), name.as_str())).collect();
        let (numbers, matrices, records) = (vec![], vec![], None);
        Packer { names, numbers, len: 0, format, records, matrices, widest: 0, finite: true }
    }

    /// A packer that finds places in an arena with these matrices. The values of `weights` are not used.
    pub fn recorded(weights: &'a Weights, format: Format, records: Vec<Record>) -> Self {
        Packer { records: Some(records.into_iter()), ..Packer::new(weights, format) }
    }

    /// The encoding and the record of the next matrix of an arena that was built before; `None` while one is built.
    pub(crate) fn record(&mut self, name: &str) -> Result<Option<(Encoding, Record)>> {
        let Some(records) = &mut self.records else { return Ok(None) };
        let record = records.next().ok_or_else(|| Error::not_found(format!("packed {name}")))?;
        match record.name == name {
            true => Ok(Some((record.encoding()?, record))),
            false => Err(Error::mismatch("packed matrix", name, record.name)),
        }
    }

    /// The format of matrices.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The path of a weight in the policy.
    pub fn name(&self, weight: &Weight) -> &'a str {
        self.names.get(&weight.id()).copied().unwrap_or_default()
    }

    /// The values of a weight, row by row.
    pub fn read(&mut self, weight: &Weight) -> Result<Vec<f32>> {
        let numbers = tensor::to_vec(weight)?;
        self.check(&numbers);
        Ok(numbers)
    }

    /// Appends a whole weight ([`lay`](Self::lay)).
    pub fn keep(&mut self, weight: &Weight) -> Result<Range<usize>> {
        if self.records.is_some() {
            return Ok(self.place(weight.elem_count()));
        }
        let numbers = self.read(weight)?;
        Ok(self.lay(&numbers))
    }

    /// Records whether all values are finite.
    pub fn check(&mut self, numbers: &[f32]) {
        self.finite &= non_finite(numbers).is_none();
    }

    /// Appends values at the next cache line. Returns their range in the arena.
    pub fn lay(&mut self, numbers: &[f32]) -> Range<usize> {
        let own = self.place(numbers.len());
        if self.records.is_none() {
            memory::reserve(&mut self.numbers, LINE + numbers.len());
            self.numbers.resize(own.start, 0.0);
            self.numbers.extend_from_slice(numbers);
        }
        own
    }

    /// The range of the next `len` values, which begin at a cache line.
    pub(crate) fn place(&mut self, len: usize) -> Range<usize> {
        let at = self.len.next_multiple_of(LINE);
        self.len = at + len;
        at..self.len
    }

    /// Adds the report of a packed matrix. Returns its place.
    pub fn packed(&mut self, matrix: Packed) -> usize {
        self.matrices.push(matrix);
        self.matrices.len() - 1
    }

    /// Records that a step holds a vector of `width` values.
    pub fn holds(&mut self, width: usize) {
        self.widest = self.widest.max(width);
    }

    /// The length of the longest vector that a step holds.
    pub fn widest(&self) -> usize {
        self.widest
    }

    /// Returns the arena and the reports of its matrices. `None` if a weight is not finite: a step skips products with
    /// 0, so it could miss NaN or infinity in a weight.
    pub fn finish(mut self) -> Option<(Arena, Vec<Packed>)> {
        self.numbers.resize(self.len.next_multiple_of(LINE), 0.0);
        self.finite.then(|| (Arena::new(&self.numbers), self.matrices))
    }

    /// Returns the reports of the matrices of an arena that was built before.
    ///
    /// # Errors
    /// `Mismatch` for an arena of another size or with more matrices.
    pub fn finish_recorded(mut self, arena: &Arena) -> Result<Vec<Packed>> {
        if let Some(record) = self.records.iter_mut().flatten().next() {
            return Err(Error::mismatch("packed matrices", self.matrices.len(), record.name));
        }
        let bytes = self.len.next_multiple_of(LINE) * size_of::<f32>();
        match arena.bytes() == bytes {
            true => Ok(self.matrices),
            false => Err(Error::mismatch("bytes of packed weights", bytes, arena.bytes())),
        }
    }
}
