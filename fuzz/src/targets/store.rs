//! Opens stores, and reads, checks and rewrites what is in them.
//!
//! An input is the length of the index (u32), the index, and the bytes of pack 0. With the highest bit of the length, a log
//! comes between: its length (u32), and its bytes.

use std::path::Path;

use sconce_store::disk::index::Index;
use sconce_store::disk::log::Change;
use sconce_store::{Cold, Dtype, Store, StoreOptions};
use sconce_tensor::{Error, Result, fs};

use crate::rng::Rng;
use crate::{bytes, scratch};

/// Most bytes of a tensor that is read, so that a run ends soon.
const MOST: u64 = 1 << 22;

fn options() -> StoreOptions {
    StoreOptions {
        ram: 1 << 16,
        compressed: 1 << 14,
        block: 4096,
        threads: 0,
        cold: Some(Cold::Int8),
        ..StoreOptions::default()
    }
}

/// The bit of the first length that says that there is a log.
const LOG: u32 = 1 << 31;

/// The files of a store.
struct Files<'i> {
    index: &'i [u8],
    log: &'i [u8],
    pack: &'i [u8],
}

impl Files<'_> {
    fn join(&self) -> Vec<u8> {
        let (index, log) = (self.index.len() as u32, self.log.len() as u32);
        let log = if log == 0 { vec![] } else { [&log.to_le_bytes()[..], self.log].concat() };
        let index = if log.is_empty() { index } else { index | LOG };
        [&index.to_le_bytes()[..], self.index, &log, self.pack].concat()
    }
}

fn split(input: &[u8]) -> Option<Files<'_>> {
    let (length, rest) = input.split_first_chunk()?;
    let length = u32::from_le_bytes(*length);
    let (index, rest) = rest.split_at_checked((length & !LOG) as usize)?;
    if length & LOG == 0 {
        return Some(Files { index, log: &[], pack: rest });
    }
    let (length, rest) = rest.split_first_chunk()?;
    let (log, pack) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some(Files { index, log, pack })
}

pub fn seeds() -> Vec<Vec<u8>> {
    let dir = scratch::folder("store");
    let made = || -> Result<Vec<Vec<u8>>> {
        let store = Store::open(&dir, options())?;
        let small: Vec<u8> = (0..20_000_u32).flat_map(|i| (i / 50).to_le_bytes()).collect();
        store.put("runs", Dtype::named("u32")?, &[200, 100], &small)?;
        let mixed: Vec<u8> =
            (0..9000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 21) as u8).collect();
        store.put("mixed", Dtype::named("bf16")?, &[4500], &mixed)?;
        store.put("again", Dtype::named("u32")?, &[20_000], &small)?;
        let bits = |i: u32| (i as f32).sin().to_bits();
        let f32s: Vec<u8> = (0..3000).flat_map(|i| bits(i).to_le_bytes()).collect();
        let halves: Vec<u8> =
            (0..3000).flat_map(|i| ((bits(i) >> 16) as u16).to_le_bytes()).collect();
        store.put_lossy("f32", Dtype::named("f32")?, &[60, 50], &f32s)?;
        store.put_lossy("f16", Dtype::named("f16")?, &[3000], &halves)?;
        // Another content than that of the other type, of which the block may lose nothing.
        let halves = halves.get(2..).unwrap_or_default();
        store.put_lossy("bf16", Dtype::named("bf16")?, &[2999], halves)?;
        store.put("none", Dtype::named("f64")?, &[0, 3], &[])?;
        // The first commit goes to the log; closing the store takes the log up.
        store.commit()?;
        store.delete("again")?;
        store.put("mixed", Dtype::named("bf16")?, &[4500], &mixed)?;
        store.commit()?;
        let logged = files(&dir)?;
        store.close()?;
        drop(store);
        let whole = files(&dir)?;
        let store = Store::open(&dir, options())?;
        // Nothing of it is in RAM yet, so everything that may lose something does.
        store.compact(1.0, &|| false)?;
        assert!(store.lossy_blocks("f32")? * store.lossy_blocks("f16")? > 0);
        assert!(store.lossy_blocks("bf16")? > 0);
        store.close()?;
        Ok(vec![logged, whole, first_pack(&dir)?])
    };
    let made = made().expect("a store");
    scratch::remove(&dir);
    made
}

/// The files of a store whose only pack is another one than the first.
fn first_pack(dir: &Path) -> Result<Vec<u8>> {
    let index = fs::read(&dir.join("index"), u64::MAX)?;
    let mut index = Index::of_bytes(&index).map_err(|reason| Error::corrupt("index", reason))?;
    let pack = index.packs.first().map_or(0, |(pack, _)| *pack);
    let pack = fs::read(&dir.join(sconce_store::disk::pack_name(pack)), u64::MAX)?;
    index.packs.iter_mut().for_each(|(pack, _)| *pack = 0);
    index.blocks.iter_mut().for_each(|block| block.pack = 0);
    Ok(Files { index: &index.to_bytes(), log: &[], pack: &pack }.join())
}

fn files(dir: &Path) -> Result<Vec<u8>> {
    let [index, log, pack] =
        ["index", "log", "packs/00000000.pack"].map(|name| fs::read(&dir.join(name), u64::MAX));
    Ok(Files { index: &index?, log: &log?, pack: &pack? }.join())
}

/// Changes the index, or a record of the log, and keeps its checksum right, or the pack, and keeps the checksums of its
/// blocks right.
pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>) {
    let Some(files) = split(input) else { return bytes::mutate(rng, input) };
    let (mut index, mut log) = (files.index.to_vec(), files.log.to_vec());
    let mut pack = files.pack.to_vec();
    if rng.below(3) == 0 {
        bytes::mutate(rng, &mut pack);
        if let (Ok(mut own), true) = (Index::of_bytes(&index), rng.below(8) > 0) {
            for block in &mut own.blocks {
                let end = block.offset.saturating_add(u64::from(block.stored)) as usize;
                let stored = pack.get(block.offset as usize..end).unwrap_or_default();
                block.crc = crc32fast::hash(stored);
            }
            index = own.to_bytes();
        }
    } else if log.is_empty() || rng.below(2) == 0 {
        changed(rng, &mut index);
    } else {
        log = changed_log(rng, &log);
    }
    *input = Files { index: &index, log: &log, pack: &pack }.join();
}

/// Changes bytes whose last four are the checksum of the others.
fn changed(rng: &mut Rng, bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len().saturating_sub(4));
    bytes::mutate(rng, bytes);
    let sum = crc32fast::hash(bytes).to_le_bytes();
    bytes.extend_from_slice(&sum);
}

/// Changes any bytes of a log, or one record: its place, its names, its index or any of its bytes.
fn changed_log(rng: &mut Rng, log: &[u8]) -> Vec<u8> {
    let (mut records, mut rest): (Vec<Vec<u8>>, &[u8]) = (vec![], log);
    while let Ok((_, length)) = Change::first(rest) {
        let (record, others) = rest.split_at(length);
        records.push(record.to_vec());
        rest = others;
    }
    let mut log = log.to_vec();
    let at = rng.below(records.len());
    let Some(record) = records.get_mut(at) else {
        bytes::mutate(rng, &mut log);
        return log;
    };
    match (rng.below(4), Change::first(record)) {
        (0, _) => {
            bytes::mutate(rng, &mut log);
            return log;
        }
        (1, Ok((mut change, _))) => {
            change.put.generation = rng.below(8) as u64;
            change.base = rng.below(4) as u64;
            *record = change.to_bytes();
        }
        (2, Ok((mut change, _))) => {
            let mut index = change.put.to_bytes();
            changed(rng, &mut index);
            change.put = Index::of_bytes(&index).unwrap_or(change.put);
            *record = change.to_bytes();
        }
        _ => changed(rng, record),
    }
    records.concat()
}

pub fn run(bytes: &[u8], dir: &Path) -> Result<()> {
    let files = split(bytes).ok_or_else(|| Error::corrupt("input", "no store"))?;
    std::fs::create_dir_all(dir.join("packs")).map_err(Error::io(dir))?;
    super::write(dir, "index", files.index)?;
    super::write(dir, "log", files.log)?;
    super::write(&dir.join("packs"), "00000000.pack", files.pack)?;
    let store = Store::open(dir, options())?;
    let damaged = store.verify();
    let mut first = Ok(());
    for name in store.names() {
        let tensor = store.tensor(&name)?;
        if tensor.bytes() > MOST {
            continue;
        }
        let read = store.read(&name, None, 0).map(|rows| rows.to_vec());
        match read {
            Ok(read) => assert_eq!(read.len() as u64, tensor.bytes()),
            Err(error) => first = first.and(Err(error)),
        }
    }
    if damaged.is_empty() {
        assert!(first.is_ok(), "verified, and not readable: {first:?}");
    }
    // A damaged store still takes new tensors, and gives them back.
    store.put("new", Dtype::named("u8")?, &[5], &[1, 2, 3, 4, 5])?;
    store.compact(0.9, &|| false)?;
    store.close()?;
    drop(store);
    let again = Store::open(dir, options())?;
    assert_eq!(again.read("new", None, 0)?.to_vec(), [1, 2, 3, 4, 5]);
    first
}
