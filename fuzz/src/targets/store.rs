//! Opens stores, and reads, checks and rewrites what is in them.
//!
//! An input is the length of the index (u32), the index, and the bytes of pack 0.

use std::path::Path;

use sconce_store::disk::index::Index;
use sconce_store::{Dtype, Store, StoreOptions};
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
        ..StoreOptions::default()
    }
}

fn join(index: &[u8], pack: &[u8]) -> Vec<u8> {
    [&(index.len() as u32).to_le_bytes()[..], index, pack].concat()
}

fn split(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = input.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

pub fn seeds() -> Vec<Vec<u8>> {
    let dir = scratch::folder("store");
    let made = || -> Result<Vec<u8>> {
        let store = Store::open(&dir, options())?;
        let small: Vec<u8> = (0..20_000_u32).flat_map(|i| (i / 50).to_le_bytes()).collect();
        store.put("runs", Dtype::named("u32")?, &[200, 100], &small)?;
        let mixed: Vec<u8> =
            (0..9000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 21) as u8).collect();
        store.put("mixed", Dtype::named("bf16")?, &[4500], &mixed)?;
        store.put("again", Dtype::named("u32")?, &[20_000], &small)?;
        store.put("none", Dtype::named("f64")?, &[0, 3], &[])?;
        store.commit()?;
        let index = fs::read(&dir.join("index"), u64::MAX)?;
        Ok(join(&index, &fs::read(&dir.join("packs/00000000.pack"), u64::MAX)?))
    };
    let made = made().expect("a store");
    scratch::remove(&dir);
    vec![made]
}

/// Changes the index, and keeps its checksum right, or the pack, and keeps the checksums of its blocks right.
pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>) {
    let Some((index, pack)) = split(input) else { return bytes::mutate(rng, input) };
    let (mut index, mut pack) = (index.to_vec(), pack.to_vec());
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
    } else {
        index.truncate(index.len().saturating_sub(4));
        bytes::mutate(rng, &mut index);
        let sum = crc32fast::hash(&index).to_le_bytes();
        index.extend_from_slice(&sum);
    }
    *input = join(&index, &pack);
}

pub fn run(bytes: &[u8], dir: &Path) -> Result<()> {
    let (index, pack) = split(bytes).ok_or_else(|| Error::corrupt("input", "no store"))?;
    std::fs::create_dir_all(dir.join("packs")).map_err(Error::io(dir))?;
    super::write(dir, "index", index)?;
    super::write(&dir.join("packs"), "00000000.pack", pack)?;
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
    store.compact(0.9)?;
    store.close()?;
    drop(store);
    let again = Store::open(dir, options())?;
    assert_eq!(again.read("new", None, 0)?.to_vec(), [1, 2, 3, 4, 5]);
    first
}
