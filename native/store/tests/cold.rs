//! Cold blocks of tensors that may lose something.

mod support;

use sconce_store::{Cold, Dtype, Store, StoreOptions};
use sconce_tensor::rng::Rng;
use support::{Lossy, f32s, small};

/// Elements of a tensor, and of a row.
const COUNT: u64 = 8000;
const ROW: u64 = 40;
/// The largest error as a share of the largest magnitude of a row.
const BOUND: f32 = 1.0 / 250.0;

/// Nothing stays in RAM, so that every block is cold.
fn cold() -> StoreOptions {
    StoreOptions { ram: 0, compressed: 0, cold: Some(Cold::Int8), ..small() }
}

/// Rows of different magnitude.
fn values(seed: u64) -> Vec<u8> {
    let rng = Rng::new(seed, "values", 0);
    let value = |i: u64| rng.normal(i) * 10_f32.powi((i / ROW) as i32 % 3);
    (0..COUNT).flat_map(|i| value(i).to_le_bytes()).collect()
}

fn put(store: &Store, name: &str, seed: u64) {
    store.put_lossy(name, f32s(), &[COUNT / ROW, ROW], &values(seed)).unwrap();
}

fn read(store: &Store, name: &str) -> Vec<u8> {
    store.read(name, None, 0).unwrap().to_vec()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn assert_near(found: &[u8], put: &[u8]) {
    let (found, put) = (floats(found), floats(put));
    assert_eq!(found.len(), put.len());
    for (found, put) in found.chunks(ROW as usize).zip(put.chunks(ROW as usize)) {
        let most = put.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
        for (found, put) in found.iter().zip(put) {
            assert!((found - put).abs() <= most * BOUND, "{found} of {put}");
        }
    }
}

#[test]
fn cold_blocks_lose_something_only_with_permission_of_each_tensor_and_of_the_store() {
    let disk = Lossy::default();
    let store = Store::on(Box::new(disk.clone()), cold()).unwrap();
    (0..4).for_each(|seed| put(&store, &format!("lossy {seed}"), seed));
    let shape = [COUNT / ROW, ROW];
    store.put("exact", f32s(), &shape, &values(10)).unwrap();
    put(&store, "shared", 3);
    store.put("shared with an exact one", f32s(), &shape, &values(3)).unwrap();
    let u32s = Dtype::named("u32").unwrap();
    store.put_lossy("integers", u32s, &shape, &values(11)).unwrap();
    let mut infinite = values(12);
    infinite[400..404].copy_from_slice(&f32::INFINITY.to_le_bytes());
    store.put_lossy("infinite", f32s(), &shape, &infinite).unwrap();
    store.close().unwrap();
    // Without the option nothing is lost.
    let store = Store::on(Box::new(disk.clone()), StoreOptions { cold: None, ..cold() }).unwrap();
    store.compact(0.9, &|| false).unwrap();
    assert!((0..4).all(|seed| read(&store, &format!("lossy {seed}")) == values(seed)));
    assert_eq!(store.stats().lossy_blocks, 0);
    store.close().unwrap();
    let store = Store::on(Box::new(disk.clone()), cold()).unwrap();
    let before = store.stats().disk_bytes;
    let freed = store.compact(0.5, &|| false).unwrap();
    assert_eq!(store.stats().disk_bytes, before - freed);
    for store in [store, Store::on(Box::new(disk.clone()), cold()).unwrap()] {
        for seed in 0..3 {
            let name = format!("lossy {seed}");
            assert!(read(&store, &name) != values(seed));
            assert_near(&read(&store, &name), &values(seed));
            assert_eq!(store.lossy_blocks(&name).unwrap(), 2);
            assert!(store.tensor(&name).unwrap().lossy);
            let rows = store.read(&name, Some((100, 20)), 0).unwrap().to_vec();
            assert_near(&rows, &values(seed)[16_000..19_200]);
        }
        for name in ["lossy 3", "shared", "shared with an exact one"] {
            assert!(read(&store, name) == values(3), "{name}");
        }
        assert!(read(&store, "exact") == values(10) && read(&store, "integers") == values(11));
        let found = read(&store, "infinite");
        assert!(found[..16_320] == infinite[..16_320]);
        assert_near(&found[16_320..], &infinite[16_320..]);
        assert_eq!(store.lossy_blocks("infinite").unwrap(), 1);
        assert_eq!(store.lossy_blocks("exact").unwrap(), 0);
        let stats = store.stats();
        assert_eq!(stats.lossy_blocks, 7);
        assert!(stats.counts.lossy > 0);
        assert_eq!(store.verify(), vec![]);
        store.close().unwrap();
    }
    // A second time there is nothing to do.
    let store = Store::on(Box::new(disk), cold()).unwrap();
    let before = store.stats().counts.written_bytes;
    store.compact(0.1, &|| false).unwrap();
    assert_eq!((store.stats().counts.written_bytes, store.stats().counts.quantised), (before, 0));
}

#[test]
fn blocks_in_ram_are_what_was_put() {
    let store =
        Store::on(Box::new(Lossy::default()), StoreOptions { ram: 1 << 20, ..cold() }).unwrap();
    put(&store, "a", 1);
    store.compact(1.0, &|| false).unwrap();
    assert!(read(&store, "a") == values(1));
    assert_eq!(store.lossy_blocks("a").unwrap(), 0);
}

#[test]
fn the_bytes_that_were_put_and_those_that_are_read_are_different_blocks() {
    let disk = Lossy::default();
    let store = Store::on(Box::new(disk.clone()), cold()).unwrap();
    put(&store, "a", 1);
    store.compact(1.0, &|| false).unwrap();
    let lost = read(&store, "a");
    store.put("original", f32s(), &[COUNT], &values(1)).unwrap();
    assert_eq!(store.stats().counts.repeated, 0);
    assert!(read(&store, "original") == values(1) && read(&store, "a") == lost);
    // Its blocks lie there already, and are what this tensor was put with.
    store.put("copy", f32s(), &[COUNT / ROW, ROW], &lost).unwrap();
    assert_eq!(store.stats().counts.repeated, 2);
    assert_eq!(store.lossy_blocks("copy").unwrap(), 0);
    put(&store, "a", 1);
    store.close().unwrap();
    let store = Store::on(Box::new(disk), StoreOptions { cold: None, ..cold() }).unwrap();
    assert!(read(&store, "original") == values(1) && read(&store, "copy") == lost);
    assert!(read(&store, "a") == values(1));
    assert_eq!(store.verify(), vec![]);
}

#[test]
fn damage_of_a_lossy_block_is_named_and_the_rest_is_served() {
    let disk = Lossy::default();
    let store = Store::on(Box::new(disk.clone()), cold()).unwrap();
    (0..5).for_each(|seed| put(&store, &format!("t{seed}"), seed));
    store.compact(1.0, &|| false).unwrap();
    store.close().unwrap();
    let [(pack, bytes)] = disk.sizes()[..] else { panic!("one pack") };
    assert!(bytes < 5 * COUNT * 5 / 4);
    let rng = Rng::new(1, "flips", 0);
    for flip in 0..50 {
        let bit = rng.below(flip, bytes * 8);
        disk.flip(pack, bit);
        let store = Store::on(Box::new(disk.clone()), cold()).unwrap();
        let damaged = store.verify();
        assert_eq!(damaged.len(), 1, "bit {bit}");
        let name = &damaged[0].tensors[0];
        for seed in 0..5 {
            match store.read(&format!("t{seed}"), None, 0) {
                Ok(rows) => assert_near(&rows.to_vec(), &values(seed)),
                Err(error) => assert!(error.to_string().contains(name.as_str()), "{error}"),
            }
        }
        // A tensor that is put again is exact again.
        let seed = name[1..].parse().unwrap();
        put(&store, name, seed);
        assert!(read(&store, name) == values(seed));
        drop(store);
        disk.flip(pack, bit);
    }
}

#[test]
fn a_power_cut_while_blocks_lose_something_leaves_each_in_one_of_its_forms() {
    let disk = Lossy::default();
    let store = Store::on(Box::new(disk.clone()), cold()).unwrap();
    (0..4).for_each(|seed| put(&store, &format!("t{seed}"), seed));
    store.put("exact", f32s(), &[COUNT], &values(9)).unwrap();
    store.close().unwrap();
    for at in 0.. {
        let own = disk.after_power_cut(0);
        let store = Store::on(Box::new(own.clone()), cold()).unwrap();
        own.0.lock().unwrap().left = Some(at);
        let ended = store.compact(1.0, &|| false).is_ok();
        drop(store);
        let again = Store::on(Box::new(own.after_power_cut(at)), cold()).unwrap();
        assert_eq!(again.verify(), vec![]);
        (0..4).for_each(|seed| assert_near(&read(&again, &format!("t{seed}")), &values(seed)));
        assert!(read(&again, "exact") == values(9));
        if ended {
            assert!(again.stats().lossy_blocks > 0 && at > 5);
            break;
        }
    }
}

#[test]
fn another_process_reads_on_while_blocks_lose_something() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), cold()).unwrap();
    (0..4).for_each(|seed| put(&store, &format!("t{seed}"), seed));
    store.commit().unwrap();
    let options = StoreOptions { read_only: true, ..cold() };
    let reader = Store::open(folder.path(), options).unwrap();
    store.compact(1.0, &|| false).unwrap();
    (0..4).for_each(|seed| assert_near(&read(&reader, &format!("t{seed}")), &values(seed)));
    assert_eq!(reader.lossy_blocks("t0").unwrap(), 2);
    assert_eq!(
        reader.compact(1.0, &|| false).map_err(|error| error.kind().name()),
        Err("unavailable")
    );
}

#[test]
fn a_full_budget_is_made_room_for_by_losing_something() {
    let disk = Some(5 * COUNT * 4 / 2);
    let options = StoreOptions { disk, compress: false, ..cold() };
    let store = Store::on(Box::new(Lossy::default()), options).unwrap();
    (0..6).for_each(|seed| put(&store, &format!("t{seed}"), seed));
    (0..6).for_each(|seed| assert_near(&read(&store, &format!("t{seed}")), &values(seed)));
    let is_exact = |name| store.put(name, f32s(), &[COUNT], &values(20)).is_ok();
    assert!(!["a", "b", "c"].into_iter().all(is_exact));
}

#[test]
fn callers_that_put_exact_tensors_meanwhile_read_what_they_put() {
    let store = Store::on(Box::new(Lossy::default()), cold()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..60_u64 {
                    let seed = round % 5;
                    put(store, &format!("lossy {thread} {seed}"), seed);
                    let name = format!("exact {thread} {}", round % 3);
                    store.put(&name, f32s(), &[COUNT / ROW, ROW], &values(seed)).unwrap();
                    assert!(read(store, &name) == values(seed));
                    store.delete(&name).unwrap();
                }
            });
        }
        scope.spawn(|| (0..40).for_each(|_| assert!(store.compact(1.0, &|| false).is_ok())));
    });
    store.compact(1.0, &|| false).unwrap();
    assert!(store.stats().lossy_blocks > 0);
    assert_eq!(store.verify(), vec![]);
}
