//! A store as its users see it.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sconce_store::disk::IndexFile;
use sconce_store::prefetch::PrefetchOptions;
use sconce_store::{Dtype, Store, StoreOptions};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Kind};
use support::{Lossy, f32s, numbers, small, u8s};

fn read(store: &Store, name: &str) -> Vec<u8> {
    store.read(name, None, 0).unwrap().to_vec()
}

fn kind<T>(result: sconce_tensor::Result<T>) -> Option<Kind> {
    result.err().map(|error| error.kind())
}

#[test]
fn what_was_put_is_read_in_whole_and_by_rows_from_every_tier() {
    let folder = tempfile::tempdir().unwrap();
    // 100,000 bytes of RAM and of compressed RAM hold a few of the blocks.
    let options = StoreOptions { ram: 100_000, compressed: 100_000, ..small() };
    let store = Store::open(folder.path(), options.clone()).unwrap();
    for seed in 0..20 {
        store.put(&format!("t{seed}"), f32s(), &[100, 3, 50], &numbers(seed, 15_000)).unwrap();
    }
    store.put("empty", f32s(), &[0, 4], &[]).unwrap();
    store.put("scalar", f32s(), &[], &1.5_f32.to_le_bytes()).unwrap();
    store.commit().unwrap();
    for store in
        [store, Store::open(folder.path(), StoreOptions { read_only: true, ..options }).unwrap()]
    {
        for round in 0..3 {
            for seed in 0..20 {
                let name = format!("t{seed}");
                let all = numbers(seed, 15_000);
                assert!(read(&store, &name) == all, "{name} in round {round}");
                for (first, count) in [(0, 100), (0, 0), (100, 0), (3, 1), (26, 30), (99, 1)] {
                    let rows = store.read(&name, Some((first, count)), 1).unwrap();
                    let range = first as usize * 600..(first + count) as usize * 600;
                    assert!(rows.to_vec() == all[range], "{name} rows {first}, {count}");
                }
            }
            assert!(
                store.stats().ram_bytes <= 100_000 && store.stats().compressed_bytes <= 100_000
            );
        }
        assert_eq!(read(&store, "empty"), Vec::<u8>::new());
        assert_eq!(read(&store, "scalar"), 1.5_f32.to_le_bytes());
        assert_eq!(store.read("scalar", Some((0, 1)), 0).unwrap().to_vec(), 1.5_f32.to_le_bytes());
        assert_eq!(store.names().len(), 22);
        assert_eq!(store.tensor("t3").unwrap().shape, vec![100, 3, 50]);
        assert!(store.stats().stored_bytes < store.stats().block_bytes / 2);
        assert_eq!(store.verify(), vec![]);
        assert_eq!(kind(store.read("t3", Some((90, 11)), 0)), Some(Kind::OutOfRange));
        assert_eq!(kind(store.read("t3", Some((u64::MAX, 2)), 0)), Some(Kind::OutOfRange));
        assert_eq!(kind(store.read("none", None, 0)), Some(Kind::NotFound));
    }
}

#[test]
fn a_budget_of_nothing_reads_everything_from_disk() {
    let options = StoreOptions { ram: 0, compressed: 0, threads: 0, ..small() };
    let store = Store::on(Box::new(Lossy::default()), options).unwrap();
    (0..9).for_each(|s| store.put(&format!("{s}"), f32s(), &[9000], &numbers(s, 9000)).unwrap());
    (0..9).for_each(|s| assert!(read(&store, &format!("{s}")) == numbers(s, 9000)));
    assert_eq!(store.stats().ram_bytes, 0);
    assert_eq!(store.stats().counts.in_ram, 0);
}

#[test]
fn equal_blocks_lie_once_and_stay_while_a_tensor_uses_them() {
    let store = Store::on(Box::new(Lossy::default()), small()).unwrap();
    let same = numbers(1, 40_000);
    for name in ["a", "b", "c"] {
        store.put(name, f32s(), &[40_000], &same).unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.bytes, stats.block_bytes), (480_000, 160_000));
    store.put("a", f32s(), &[10], &numbers(2, 10)).unwrap();
    store.delete("b").unwrap();
    assert!(read(&store, "c") == same);
    store.delete("c").unwrap();
    assert_eq!(store.stats().block_bytes, 40);
    assert_eq!(kind(store.delete("c")), Some(Kind::NotFound));
}

#[test]
fn wrong_arguments_are_named_and_leave_the_former_tensor() {
    let store = Store::on(Box::new(Lossy::default()), small()).unwrap();
    store.put("a", u8s(), &[3], &[1, 2, 3]).unwrap();
    assert_eq!(kind(store.put("a", u8s(), &[4], &[1, 2, 3])), Some(Kind::Mismatch));
    assert_eq!(kind(store.put("a", f32s(), &[u64::MAX, 2], &[])), Some(Kind::Mismatch));
    assert_eq!(kind(store.put("a", u8s(), &[1; 9], &[1])), Some(Kind::OutOfRange));
    assert_eq!(kind(store.put("", u8s(), &[1], &[1])), Some(Kind::OutOfRange));
    assert_eq!(kind(store.put(&"n".repeat(513), u8s(), &[1], &[1])), Some(Kind::OutOfRange));
    assert_eq!(kind(Dtype::named("f8")), Some(Kind::NotFound));
    assert_eq!(read(&store, "a"), [1, 2, 3]);
    for options in [
        StoreOptions { block: 100, ..small() },
        StoreOptions { threads: 65, ..small() },
        StoreOptions { background: Some(0), ..small() },
    ] {
        assert_eq!(kind(Store::on(Box::new(Lossy::default()), options)), Some(Kind::OutOfRange));
    }
}

#[test]
fn one_process_writes_and_others_read_what_it_has_committed() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(
        kind(Store::open(folder.path(), StoreOptions { read_only: true, ..small() })),
        Some(Kind::NotFound)
    );
    let store = Store::open(folder.path(), small()).unwrap();
    store.put("a", f32s(), &[20_000], &numbers(1, 20_000)).unwrap();
    store.commit().unwrap();
    assert_eq!(kind(Store::open(folder.path(), small())), Some(Kind::Busy));
    let reader = Store::open(folder.path(), StoreOptions { read_only: true, ..small() }).unwrap();
    assert_eq!(kind(reader.put("b", u8s(), &[1], &[1])), Some(Kind::Unavailable));
    assert_eq!(kind(reader.delete("a")), Some(Kind::Unavailable));
    assert!(read(&reader, "a") == numbers(1, 20_000));
    store.put("a", f32s(), &[20_000], &numbers(2, 20_000)).unwrap();
    store.put("b", f32s(), &[20_000], &numbers(3, 20_000)).unwrap();
    assert!(read(&reader, "a") == numbers(1, 20_000));
    store.commit().unwrap();
    assert_eq!(kind(reader.read("b", None, 0)), Some(Kind::NotFound));
    reader.refresh().unwrap();
    assert!(read(&reader, "a") == numbers(2, 20_000) && read(&reader, "b") == numbers(3, 20_000));
    store.close().unwrap();
    drop(store);
    assert!(read(&Store::open(folder.path(), small()).unwrap(), "b") == numbers(3, 20_000));
}

#[test]
fn packs_are_rewritten_while_others_read_them() {
    let folder = tempfile::tempdir().unwrap();
    let options = StoreOptions { ram: 0, compressed: 0, ..small() };
    let store = Store::open(folder.path(), options.clone()).unwrap();
    for seed in 0..30 {
        store.put(&format!("t{seed}"), f32s(), &[5000], &numbers(seed, 5000)).unwrap();
    }
    store.commit().unwrap();
    let reader = Store::open(folder.path(), StoreOptions { read_only: true, ..options }).unwrap();
    assert!(read(&reader, "t29") == numbers(29, 5000));
    (0..25).for_each(|seed| store.delete(&format!("t{seed}")).unwrap());
    let before = store.stats().disk_bytes;
    let freed = store.compact(0.5, &|| false).unwrap();
    let after = store.stats().disk_bytes;
    assert!(freed > before / 2 && after == before - freed, "{before}, {freed}, {after}");
    let files = std::fs::read_dir(folder.path().join("packs")).unwrap();
    let on_disk: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(on_disk, after);
    for seed in 25..30 {
        assert!(read(&store, &format!("t{seed}")) == numbers(seed, 5000));
        assert!(read(&reader, &format!("t{seed}")) == numbers(seed, 5000));
    }
    assert_eq!(store.verify(), vec![]);
}

#[test]
fn damage_is_named_and_the_rest_is_served() {
    let disk = Lossy::default();
    let options = StoreOptions { ram: 0, compressed: 0, threads: 0, ..small() };
    let store = Store::on(Box::new(disk.clone()), options.clone()).unwrap();
    for seed in 0..10 {
        store.put(&format!("t{seed}"), f32s(), &[10_000], &numbers(seed, 10_000)).unwrap();
    }
    store.commit().unwrap();
    drop(store);
    let [(pack, bytes)] = disk.sizes()[..] else { panic!("one pack") };
    let rng = Rng::new(1, "flips", 0);
    for flip in 0..200 {
        let bit = rng.below(flip, bytes * 8);
        disk.flip(pack, bit);
        let store = Store::on(Box::new(disk.clone()), options.clone()).unwrap();
        let damaged = store.verify();
        assert_eq!(damaged.len(), 1, "bit {bit}");
        let name = &damaged[0].tensors[0];
        let offset = damaged[0].offset;
        assert!(offset.abs_diff(bit / 8) < 20_000 && damaged[0].file == "packs/00000000.pack");
        for seed in 0..10 {
            match store.read(&format!("t{seed}"), None, 0) {
                Ok(rows) => assert!(rows.to_vec() == numbers(seed, 10_000)),
                Err(Error::Corrupt { what, .. }) => {
                    assert!(*name == format!("t{seed}"), "{what}");
                    assert!(what.contains(name) && what.contains("00000000.pack"), "{what}");
                }
                Err(other) => panic!("{other}"),
            }
        }
        // A tensor that is put again is whole again.
        let seed = name[1..].parse().unwrap();
        store.put(name, f32s(), &[10_000], &numbers(seed, 10_000)).unwrap();
        assert!(read(&store, name) == numbers(seed, 10_000));
        drop(store);
        disk.flip(pack, bit);
    }
}

#[test]
fn a_damaged_block_of_several_tensors_is_mended_for_all_by_one_put() {
    let disk = Lossy::default();
    let options = StoreOptions { ram: 0, compressed: 0, threads: 0, ..small() };
    let same = numbers(1, 1000);
    let store = Store::on(Box::new(disk.clone()), options.clone()).unwrap();
    ["a", "b"].iter().for_each(|name| store.put(name, f32s(), &[1000], &same).unwrap());
    store.close().unwrap();
    disk.flip(0, 8 * 100);
    // Found by a read, by a check, or by the put itself.
    for found_by in 0..3 {
        let disk = disk.after_power_cut(0);
        let store = Store::on(Box::new(disk.clone()), options.clone()).unwrap();
        match found_by {
            0 => assert_eq!(kind(store.read("a", None, 0)), Some(Kind::Corrupt)),
            1 => assert_eq!(store.verify()[0].tensors, ["a", "b"]),
            _ => {}
        }
        store.put(if found_by == 1 { "c" } else { "a" }, f32s(), &[1000], &same).unwrap();
        assert!(read(&store, "a") == same && read(&store, "b") == same);
        store.close().unwrap();
        let store = Store::on(Box::new(disk), options.clone()).unwrap();
        assert!(read(&store, "a") == same && read(&store, "b") == same);
        assert_eq!(store.verify(), vec![]);
    }
}

#[test]
fn a_pack_that_is_gone_is_named_and_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let options = StoreOptions { ram: 0, compressed: 0, ..small() };
    let put = |name: &str, seed| {
        // Each process begins a pack of its own.
        let store = Store::open(folder.path(), options.clone()).unwrap();
        store.put(name, f32s(), &[9000], &numbers(seed, 9000)).unwrap();
        store.close().unwrap();
    };
    put("a", 1);
    put("b", 2);
    std::fs::remove_file(folder.path().join("packs/00000000.pack")).unwrap();
    let store = Store::open(folder.path(), options.clone()).unwrap();
    let gone = store.read("a", None, 0).unwrap_err();
    assert_eq!(gone.kind(), Kind::Corrupt);
    assert!(gone.to_string().contains("00000000.pack"), "{gone}");
    assert!(read(&store, "b") == numbers(2, 9000));
    assert!(store.verify().iter().all(|damage| damage.tensors == ["a"]));
    store.put("a", f32s(), &[9000], &numbers(1, 9000)).unwrap();
    assert!(read(&store, "a") == numbers(1, 9000));
    assert_eq!(store.verify(), vec![]);
}

#[test]
fn packs_without_an_index_are_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), small()).unwrap();
    store.put("a", f32s(), &[9000], &numbers(1, 9000)).unwrap();
    store.close().unwrap();
    let pack = folder.path().join("packs/00000000.pack");
    let before = std::fs::metadata(&pack).unwrap().len();
    let hidden = folder.path().join("index.hidden");
    std::fs::rename(folder.path().join("index"), &hidden).unwrap();
    std::fs::remove_file(folder.path().join("index.copy")).unwrap();
    assert_eq!(kind(Store::open(folder.path(), small())), Some(Kind::Corrupt));
    assert_eq!(std::fs::metadata(&pack).unwrap().len(), before);
    std::fs::rename(&hidden, folder.path().join("index")).unwrap();
    assert!(read(&Store::open(folder.path(), small()).unwrap(), "a") == numbers(1, 9000));
}

#[test]
fn a_pack_is_cut_where_a_killed_process_went_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), small()).unwrap();
    store.put("a", f32s(), &[9000], &numbers(1, 9000)).unwrap();
    store.commit().unwrap();
    let pack = folder.path().join("packs/00000000.pack");
    let committed = std::fs::metadata(&pack).unwrap().len();
    store.put("b", f32s(), &[9000], &numbers(2, 9000)).unwrap();
    assert!(std::fs::metadata(&pack).unwrap().len() > committed);
    // As after a kill: nothing is committed.
    drop(store);
    let open = || Store::open(folder.path(), small());
    let store = (0..500).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        open().ok()
    });
    assert_eq!(std::fs::metadata(&pack).unwrap().len(), committed);
    let store = store.unwrap();
    assert_eq!((store.names(), store.stats().disk_bytes), (vec!["a".to_owned()], committed));
}

#[test]
fn a_prefetched_block_that_is_never_asked_for_gives_its_room_back() {
    let disk = Lossy::default();
    let prefetch = PrefetchOptions { bytes: 20 << 14, ..PrefetchOptions::default() };
    // All blocks fit into RAM, so none leaves it.
    let options = StoreOptions { ram: 1 << 24, compressed: 0, prefetch, ..small() };
    let store = Store::on(Box::new(disk.clone()), options.clone()).unwrap();
    for seed in 0..400 {
        store.put(&format!("{seed:03}"), f32s(), &[4096], &numbers(seed, 4096)).unwrap();
    }
    store.close().unwrap();
    let store = Store::on(Box::new(disk), options).unwrap();
    let ask = |at: u64| {
        read(&store, &format!("{at:03}"));
        while !store.is_idle() {
            std::thread::yield_now();
        }
    };
    // Short runs leave blocks behind that were prefetched for nothing, until there is no room for others.
    (0..12).for_each(|run| (20 * run..20 * run + 14).for_each(ask));
    (0..300).for_each(|_| ask(0));
    let before = store.stats().counts;
    (250..400).for_each(ask);
    let after = store.stats().counts;
    assert!(after.prefetched_used > before.prefetched_used + 80, "{before:?}, {after:?}");
}

#[test]
fn a_damaged_index_is_named_and_its_copy_is_read() {
    let disk = Lossy::default();
    let store = Store::on(Box::new(disk.clone()), small()).unwrap();
    store.put("a", f32s(), &[9000], &numbers(1, 9000)).unwrap();
    store.commit().unwrap();
    assert_eq!(store.fault(), None);
    drop(store);
    for (file, name) in [(IndexFile::Index, "index"), (IndexFile::Copy, "index.copy")] {
        disk.flip_index(file, 200);
        let store = Store::on(Box::new(disk.clone()), small()).unwrap();
        assert!(store.fault().unwrap().contains(name), "{:?}", store.fault());
        assert!(read(&store, "a") == numbers(1, 9000));
        drop(store);
        disk.flip_index(file, 200);
    }
    IndexFile::ALL.iter().for_each(|file| disk.flip_index(*file, 200));
    let both = Store::on(Box::new(disk), small());
    assert_eq!(kind(both), Some(Kind::Corrupt));
}

#[test]
fn a_flipped_bit_of_a_log_is_named_and_its_copy_is_read() {
    let disk = Lossy::default();
    let store = Store::on(Box::new(disk.clone()), small()).unwrap();
    for seed in 0..5 {
        store.put(&format!("t{seed}"), f32s(), &[900], &numbers(seed, 900)).unwrap();
        store.commit().unwrap();
    }
    drop(store);
    let (mut bits, mut unnamed) = (0, 0);
    for bit in (0..).step_by(37).take_while(|bit| disk.flip_log(IndexFile::Index, *bit)) {
        disk.flip_log(IndexFile::Index, bit);
        for (file, name) in [(IndexFile::Index, "log:"), (IndexFile::Copy, "log.copy:")] {
            disk.flip_log(file, bit);
            let store = Store::on(Box::new(disk.clone()), small()).unwrap();
            assert!(store.fault().is_none_or(|fault| fault.contains(name)), "{:?}", store.fault());
            unnamed += u32::from(store.fault().is_none());
            (0..5).for_each(|at| assert!(read(&store, &format!("t{at}")) == numbers(at, 900)));
            disk.flip_log(file, bit);
        }
        bits += 1;
    }
    // Without its mark or its length, a record looks like the rest of an older log: 64 bits of each of 5.
    assert!(bits > 50 && unnamed <= 2 * 5 * 2, "{bits}, {unnamed}");
    let store = Store::on(Box::new(disk.clone()), small()).unwrap();
    assert_eq!((store.fault(), store.verify()), (None, vec![]));
}

#[test]
fn a_store_whose_logs_are_both_damaged_or_unreadable_is_not_written() {
    let disk = Lossy::default();
    let store = Store::on(Box::new(disk.clone()), small()).unwrap();
    for seed in 0..2 {
        store.put(&format!("t{seed}"), f32s(), &[900], &numbers(seed, 900)).unwrap();
        store.commit().unwrap();
    }
    drop(store);
    let open = |read_only| Store::on(Box::new(disk.clone()), StoreOptions { read_only, ..small() });
    let packs = disk.sizes();
    disk.0.lock().unwrap().unread = IndexFile::ALL.to_vec();
    assert_eq!(kind(open(false)), Some(Kind::Io));
    assert_eq!(kind(open(true)), Some(Kind::Io));
    disk.0.lock().unwrap().unread.clear();
    IndexFile::ALL.iter().for_each(|file| assert!(disk.flip_log(*file, 8 * 40)));
    let error = open(false).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("lossy/log"), "{error}");
    assert!(open(true).unwrap().fault().is_some_and(|fault| fault.contains("log")));
    assert_eq!(disk.sizes(), packs);
    disk.flip_log(IndexFile::Index, 8 * 40);
    disk.0.lock().unwrap().unread = vec![IndexFile::Copy];
    let store = open(false).unwrap();
    assert!(store.fault().is_some_and(|fault| fault.contains("log.copy")));
    (0..2).for_each(|at| assert!(read(&store, &format!("t{at}")) == numbers(at, 900)));
}

#[test]
fn commits_append_to_a_log_that_the_index_takes_up_now_and_then() {
    let folder = tempfile::tempdir().unwrap();
    let long = |name: &str| std::fs::metadata(folder.path().join(name)).map_or(0, |own| own.len());
    let store = Store::open(folder.path(), small()).unwrap();
    let (mut whole, mut longest) = (0, 0);
    for step in 0..400_u64 {
        let before = long("index");
        for at in 0..10 {
            let name = format!("t{}", (step * 10 + at) % 3000);
            store.put(&name, u8s(), &[8], &(step * 10 + at).to_le_bytes()).unwrap();
        }
        if step % 7 == 6 {
            store.delete(&format!("t{}", step * 10 % 3000)).unwrap();
        }
        store.commit().unwrap();
        whole += u64::from(long("index") != before);
        longest = longest.max(long("log"));
        assert_eq!(long("log"), long("log.copy"));
    }
    assert!((2..40).contains(&whole), "{whole} whole indices");
    assert!((10_000..600_000).contains(&longest), "{longest} bytes of the log");
    let read_only = StoreOptions { read_only: true, ..small() };
    let reader = Store::open(folder.path(), read_only).unwrap();
    assert_eq!(reader.names(), store.names());
    store.put("last", u8s(), &[1], &[1]).unwrap();
    store.delete("t5").unwrap();
    store.commit().unwrap();
    reader.refresh().unwrap();
    assert_eq!(reader.names(), store.names());
    let names = store.names();
    let all = |store: &Store| names.iter().map(|name| read(store, name)).collect::<Vec<_>>();
    let expected = all(&store);
    assert!(long("log") > 0 && all(&reader) == expected);
    store.close().unwrap();
    assert_eq!((long("log"), long("log.copy")), (0, 0));
    // A folder without logs, as older versions have made it.
    std::fs::remove_file(folder.path().join("log")).unwrap();
    std::fs::remove_file(folder.path().join("log.copy")).unwrap();
    let again = Store::open(folder.path(), small()).unwrap();
    assert!(again.names() == names && all(&again) == expected && again.verify().is_empty());
}

/// The tensors of every acknowledged commit are there after a cut at any operation, and what was not committed is there
/// whole or not at all.
#[test]
fn what_was_committed_survives_a_power_cut_at_any_moment() {
    let run = |disk: &Lossy| {
        let options = StoreOptions { ram: 1 << 16, ..small() };
        let mut acknowledged: Vec<(String, u64)> = vec![];
        let mut pending = vec![];
        let work = || -> sconce_tensor::Result<()> {
            let store = Store::on(Box::new(disk.clone()), options)?;
            for step in 0..30_u64 {
                let name = format!("t{}", step % 7);
                store.put(&name, f32s(), &[6000], &numbers(step, 6000))?;
                pending.push((name, step));
                if step % 3 == 2 {
                    store.commit()?;
                    acknowledged.append(&mut pending);
                }
                if step == 17 {
                    store.compact(0.9, &|| false)?;
                }
            }
            Ok(())
        };
        let _ = work();
        (acknowledged, pending)
    };
    let whole = Lossy::default();
    run(&whole);
    let operations = whole.0.lock().unwrap().operations;
    assert!(operations > 60, "{operations}");
    for cut in 0..operations {
        let disk = Lossy::default();
        let mut content = disk.0.lock().unwrap();
        (content.left, content.torn, content.logs_stay) = (Some(cut), true, cut % 2 == 0);
        drop(content);
        let (acknowledged, pending) = run(&disk);
        for seed in 0..3 {
            let store = Store::on(Box::new(disk.after_power_cut(seed)), small()).unwrap();
            assert_eq!(store.verify(), vec![], "cut {cut}");
            for at in 0..7 {
                let name = format!("t{at}");
                let of = |list: &[(String, u64)]| {
                    list.iter().filter(|(own, _)| *own == name).map(|(_, s)| *s).collect::<Vec<_>>()
                };
                let may: Vec<u64> =
                    of(&acknowledged).last().copied().into_iter().chain(of(&pending)).collect();
                match store.read(&name, None, 0) {
                    Ok(rows) => {
                        let rows = rows.to_vec();
                        assert!(may.iter().any(|s| rows == numbers(*s, 6000)), "cut {cut}, {name}");
                    }
                    Err(Error::NotFound { .. }) => {
                        assert!(of(&acknowledged).is_empty(), "cut {cut}")
                    }
                    Err(other) => panic!("cut {cut}: {other}"),
                }
            }
        }
    }
}

#[test]
fn a_full_disk_keeps_what_was_committed_and_goes_on_when_there_is_room() {
    let disk = Lossy::default();
    let store = Store::on(Box::new(disk.clone()), small()).unwrap();
    store.put("a", f32s(), &[20_000], &numbers(1, 20_000)).unwrap();
    store.commit().unwrap();
    disk.0.lock().unwrap().room = Some(store.stats().disk_bytes + 5000);
    assert_eq!(kind(store.put("b", f32s(), &[20_000], &numbers(2, 20_000))), Some(Kind::Io));
    assert_eq!(kind(store.put("a", f32s(), &[20_000], &numbers(3, 20_000))), Some(Kind::Io));
    assert!(read(&store, "a") == numbers(1, 20_000));
    assert_eq!(store.names(), ["a"]);
    disk.0.lock().unwrap().room = Some(0);
    store.delete("a").unwrap();
    assert_eq!(kind(store.commit()), Some(Kind::Io));
    let cut = Store::on(Box::new(disk.after_power_cut(1)), small()).unwrap();
    assert!(read(&cut, "a") == numbers(1, 20_000));
    disk.0.lock().unwrap().room = None;
    store.put("b", f32s(), &[20_000], &numbers(2, 20_000)).unwrap();
    store.commit().unwrap();
    let cut = Store::on(Box::new(disk.after_power_cut(2)), small()).unwrap();
    assert!(read(&cut, "b") == numbers(2, 20_000));
    assert_eq!(cut.names(), ["b"]);

    let bounded = StoreOptions { disk: Some(50_000), compress: false, ..small() };
    let store = Store::on(Box::new(Lossy::default()), bounded).unwrap();
    store.put("a", f32s(), &[10_000], &numbers(1, 10_000)).unwrap();
    assert_eq!(
        kind(store.put("b", f32s(), &[10_000], &numbers(2, 10_000))),
        Some(Kind::OutOfRange)
    );
}

#[test]
fn a_store_that_is_committed_can_be_closed_on_a_full_disk() {
    let disk = Lossy::default();
    let store = Store::on(Box::new(disk.clone()), small()).unwrap();
    store.put("a", f32s(), &[900], &numbers(1, 900)).unwrap();
    store.commit().unwrap();
    store.put("b", f32s(), &[900], &numbers(2, 900)).unwrap();
    disk.0.lock().unwrap().room = Some(0);
    assert_eq!(kind(store.close()), Some(Kind::Io));
    disk.0.lock().unwrap().room = None;
    store.commit().unwrap();
    store.put("c", f32s(), &[900], &numbers(3, 900)).unwrap();
    store.commit().unwrap();
    disk.0.lock().unwrap().room = Some(0);
    store.close().unwrap();
    let again = Store::on(Box::new(disk.after_power_cut(0)), small()).unwrap();
    assert_eq!(again.names(), ["a", "b", "c"]);
    assert!(read(&again, "c") == numbers(3, 900));
}

#[test]
fn a_full_budget_is_made_room_for_by_rewriting_packs() {
    let bounded = StoreOptions { disk: Some(100_000), compress: false, ..small() };
    let store = Store::on(Box::new(Lossy::default()), bounded).unwrap();
    for seed in 0..20 {
        store.put("a", f32s(), &[10_000], &numbers(seed, 10_000)).unwrap();
    }
    assert!(read(&store, "a") == numbers(19, 10_000));
    assert!(store.stats().disk_bytes <= 100_000);
}

#[test]
fn a_failed_sync_is_not_followed_by_an_acknowledgement() {
    let disk = Lossy::default();
    let store = Store::on(Box::new(disk.clone()), small()).unwrap();
    store.put("a", f32s(), &[100], &numbers(1, 100)).unwrap();
    store.commit().unwrap();
    store.put("b", f32s(), &[100], &numbers(2, 100)).unwrap();
    disk.0.lock().unwrap().syncs_fail = true;
    assert_eq!(kind(store.commit()), Some(Kind::Io));
    disk.0.lock().unwrap().syncs_fail = false;
    assert_eq!(kind(store.commit()), Some(Kind::Unavailable));
    assert_eq!(kind(store.close()), None);
    assert_eq!(kind(store.put("c", f32s(), &[100], &numbers(3, 100))), Some(Kind::Unavailable));
    let again = Store::on(Box::new(disk.after_power_cut(0)), small()).unwrap();
    assert_eq!(again.names(), ["a"]);
    assert_eq!(again.verify(), vec![]);
}

#[test]
fn many_threads_put_read_and_delete_at_once() {
    let store = Arc::new(
        Store::on(Box::new(Lossy::default()), StoreOptions { ram: 200_000, ..small() }).unwrap(),
    );
    let done = Arc::new(AtomicBool::new(false));
    let writers = 3;
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (store, done) = (store.clone(), done.clone());
            scope.spawn(move || {
                for step in 0..120_u64 {
                    let name = format!("w{writer}.{}", step % 5);
                    let seed = writer * 1000 + step;
                    store.put(&name, f32s(), &[7000], &numbers(seed, 7000)).unwrap();
                    if step % 11 == 10 {
                        store.commit().unwrap();
                    }
                    if step % 13 == 12 {
                        store.delete(&name).unwrap();
                    }
                    if step % 50 == 49 {
                        store.compact(0.7, &|| false).unwrap();
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        for reader in 0..2_u64 {
            let (store, done) = (store.clone(), done.clone());
            scope.spawn(move || {
                let rng = Rng::new(reader, "reader", 0);
                for at in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let writer = rng.below(3 * at, writers);
                    let name = format!("w{writer}.{}", rng.below(3 * at + 1, 5));
                    match store.read(&name, None, reader) {
                        Ok(rows) => {
                            let rows = rows.to_vec();
                            let whole = (0..120).any(|s| rows == numbers(writer * 1000 + s, 7000));
                            assert!(whole, "{name}");
                        }
                        Err(Error::NotFound { .. }) => {}
                        Err(other) => panic!("{name}: {other}"),
                    }
                }
            });
        }
    });
    assert_eq!(store.verify(), vec![]);
}

#[test]
fn a_name_has_one_writer_at_a_time() {
    let store = Store::on(Box::new(Lossy::default()), small()).unwrap();
    let bytes = numbers(1, 2_000_000);
    let outcomes: Vec<Option<Kind>> = std::thread::scope(|scope| {
        let put = || kind(store.put("a", f32s(), &[2_000_000], &bytes));
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(put)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(outcomes.contains(&None));
    assert!(outcomes.iter().all(|o| matches!(o, None | Some(Kind::Busy))), "{outcomes:?}");
    assert!(read(&store, "a") == bytes);
}

#[test]
fn a_reader_in_order_finds_blocks_ahead_and_a_random_one_does_not_prefetch() {
    let options = StoreOptions { ram: 40 << 14, compressed: 0, ..small() };
    let store = Store::on(Box::new(Lossy::default()), options).unwrap();
    for seed in 0..200 {
        store.put(&format!("{seed:03}"), f32s(), &[4096], &numbers(seed, 4096)).unwrap();
    }
    for seed in 0..200_u64 {
        assert!(read(&store, &format!("{seed:03}")) == numbers(seed, 4096));
        while !store.is_idle() {
            std::thread::yield_now();
        }
    }
    let counts = store.stats().counts;
    assert!(counts.prefetched_used > 140 && counts.in_ram > 140, "{counts:?}");
    let before = counts.prefetched;
    let rng = Rng::new(1, "random", 0);
    for at in 0..400 {
        read(&store, &format!("{:03}", rng.below(at, 200)));
    }
    let after = store.stats().counts.prefetched;
    assert!(after - before < 40, "{before}, {after}");
}

#[test]
fn blocks_that_leave_ram_are_compressed_and_come_back_from_there() {
    let prefetch = PrefetchOptions { depth: 0, ..PrefetchOptions::default() };
    let options = StoreOptions { ram: 20 << 14, compressed: 1 << 20, prefetch, ..small() };
    let store = Store::on(Box::new(Lossy::default()), options).unwrap();
    for seed in 0..100 {
        store.put(&format!("{seed}"), f32s(), &[4096], &numbers(seed, 4096)).unwrap();
    }
    while !store.is_idle() {
        std::thread::yield_now();
    }
    let read_before = store.stats().counts.read_bytes;
    (0..100).for_each(|seed| assert!(read(&store, &format!("{seed}")) == numbers(seed, 4096)));
    let stats = store.stats();
    assert!(stats.counts.in_compressed > 50, "{stats:?}");
    assert_eq!(stats.counts.read_bytes, read_before);
    assert!(stats.ram_bytes <= 20 << 14);
}

#[test]
fn a_loop_keeps_what_fits_into_ram_and_reads_the_rest_once_a_round() {
    let options = StoreOptions { ram: 40 << 14, compressed: 0, ..small() };
    let store = Store::on(Box::new(Lossy::default()), options).unwrap();
    let blocks = 100_u64;
    for seed in 0..blocks {
        store.put(&format!("{seed:03}"), f32s(), &[4096], &numbers(seed, 4096)).unwrap();
    }
    let round = |count: u64| {
        let before = store.stats().counts;
        for at in 0..count * blocks {
            // The order of the names is not that of the requests.
            let seed = at * 37 % blocks;
            assert!(read(&store, &format!("{seed:03}")) == numbers(seed, 4096));
            while !store.is_idle() {
                std::thread::yield_now();
            }
        }
        let after = store.stats().counts;
        assert!(store.stats().ram_bytes <= 40 << 14);
        (after.read_bytes - before.read_bytes) as f64 / store.stats().stored_bytes as f64
    };
    round(2);
    // 40 of 100 blocks fit; a few are on their way.
    let share = round(4) / 4.0;
    assert!(share < 0.8, "{share}");
    assert_eq!(store.stats().counts.prefetched_unused, 0);
}

#[test]
fn small_blocks_are_read_without_a_thread_and_checked() {
    let disk = Lossy::default();
    // Without threads no other one holds the lock.
    let options = StoreOptions { ram: 0, compressed: 0, threads: 0, ..small() };
    let store = Store::on(Box::new(disk.clone()), options.clone()).unwrap();
    for seed in 0..50 {
        store.put(&format!("{seed}"), f32s(), &[500], &numbers(seed, 500)).unwrap();
    }
    store.close().unwrap();
    let store = Store::on(Box::new(disk.clone()), options).unwrap();
    for seed in 0..50 {
        let rows = store.resident(&format!("{seed}"), None, 0).unwrap().unwrap();
        assert!(rows.to_vec() == numbers(seed, 500));
    }
    let counts = store.stats().counts;
    assert_eq!((counts.requests, counts.in_ram), (50, 0));
    let [(pack, bytes)] = disk.sizes()[..] else { panic!("one pack") };
    // No block is shorter.
    (40..bytes).step_by(64).for_each(|byte| disk.flip(pack, 8 * byte));
    for seed in 0..50 {
        let name = format!("{seed}");
        assert!(store.resident(&name, None, 0).unwrap().is_none());
        assert_eq!(kind(store.read(&name, None, 0)), Some(Kind::Corrupt));
    }
}

#[test]
fn what_the_system_has_in_ram_is_read_from_a_folder_as_it_was_put() {
    let folder = tempfile::tempdir().unwrap();
    let options = StoreOptions { ram: 0, compressed: 0, threads: 0, ..small() };
    let store = Store::open(folder.path(), options).unwrap();
    for seed in 0..50 {
        store.put(&format!("{seed}"), f32s(), &[500], &numbers(seed, 500)).unwrap();
    }
    for seed in 0..50 {
        // Whether the system has the block in RAM is its own affair.
        if let Some(rows) = store.resident(&format!("{seed}"), None, 0).unwrap() {
            assert!(rows.to_vec() == numbers(seed, 500));
        }
    }
}

#[test]
fn callers_are_served_while_rewriting_waits_for_its_budget() {
    let folder = tempfile::tempdir().unwrap();
    // Each opening begins a pack; two thirds of each will be unused.
    for pack in 0..4 {
        let store = Store::open(folder.path(), small()).unwrap();
        for at in 0..3 {
            let seed = pack * 3 + at;
            store.put(&format!("t{seed}"), f32s(), &[9000], &numbers(seed, 9000)).unwrap();
        }
        store.close().unwrap();
    }
    let options = StoreOptions { background: Some(1), ..small() };
    let store = Store::open(folder.path(), options).unwrap();
    (0..12).filter(|at| at % 3 > 0).for_each(|at| store.delete(&format!("t{at}")).unwrap());
    store.commit().unwrap();
    let before = store.stats().disk_bytes;
    std::thread::scope(|scope| {
        // The first pack exhausts the budget for hours.
        let compact = scope.spawn(|| store.compact(0.9, &|| false));
        while store.stats().disk_bytes >= before {
            std::thread::yield_now();
        }
        store.put("new", f32s(), &[9000], &numbers(50, 9000)).unwrap();
        store.commit().unwrap();
        for at in (0..12).step_by(3) {
            assert!(read(&store, &format!("t{at}")) == numbers(at, 9000));
        }
        assert!(!compact.is_finished());
        store.close().unwrap();
        assert_eq!(kind(compact.join().unwrap()), None);
    });
    let store = Store::open(folder.path(), small()).unwrap();
    assert_eq!(store.names(), ["new", "t0", "t3", "t6", "t9"]);
    assert_eq!(store.verify(), vec![]);
    assert!(store.compact(0.9, &|| false).unwrap() > 0);
    assert!(read(&store, "new") == numbers(50, 9000) && read(&store, "t9") == numbers(9, 9000));
}

/// Packs 0 to 3, each of which is half used.
fn half_used(disk: &Lossy) {
    for pack in 0..4 {
        let store = Store::on(Box::new(disk.clone()), small()).unwrap();
        for name in ["kept", "gone"] {
            let seed = 2 * pack + u64::from(name == "gone");
            store.put(&format!("{name}{pack}"), f32s(), &[9000], &numbers(seed, 9000)).unwrap();
        }
        store.close().unwrap();
    }
    let store = Store::on(Box::new(disk.clone()), small()).unwrap();
    (0..4).for_each(|pack| store.delete(&format!("gone{pack}")).unwrap());
    store.close().unwrap();
}

#[test]
fn rewriting_that_is_cancelled_ends_before_the_next_pack() {
    let disk = Lossy::default();
    half_used(&disk);
    let store = Store::on(Box::new(disk.clone()), small()).unwrap();
    assert_eq!(store.compact(0.9, &|| true).unwrap(), 0);
    let packs = || disk.sizes().iter().map(|(pack, _)| *pack).collect::<Vec<_>>();
    assert_eq!(packs(), [0, 1, 2, 3]);
    let is_cancelled = || !packs().contains(&0);
    assert!(store.compact(0.9, &is_cancelled).unwrap() > 0);
    assert_eq!(packs(), [1, 2, 3, 4]);
    (0..4).for_each(|at| assert!(read(&store, &format!("kept{at}")) == numbers(2 * at, 9000)));
}

#[test]
fn a_pack_that_rewriting_itself_has_filled_is_not_rewritten() {
    let disk = Lossy::default();
    half_used(&disk);
    let store = Store::on(Box::new(disk.clone()), small()).unwrap();
    ["a", "b"].iter().zip(90..).for_each(|(name, seed)| {
        store.put(name, f32s(), &[100], &numbers(seed, 100)).unwrap();
    });
    store.delete("a").unwrap();
    // Pack 4 is half used, until it gets the blocks of the others.
    assert!(store.compact(0.9, &|| false).unwrap() > 0);
    let packs: Vec<u32> = disk.sizes().iter().map(|(pack, _)| *pack).collect();
    assert_eq!(packs, [4]);
    assert!(read(&store, "b") == numbers(91, 100) && read(&store, "kept3") == numbers(6, 9000));
}
