//! Tests of regions.

use super::*;

fn file_words(path: &Path) -> Vec<u64> {
    words_of(&crate::fs::read(path, 16 << 20).unwrap())
}

fn words_of(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Place of the words of a metric.
fn data_of(words: &[u64], i: usize) -> usize {
    words[HEADER + i * ROW + 1] as usize
}

fn metric(kind: Kind, name: &str) -> Metric<'_> {
    Metric { kind, name, unit: "ns", help: "a test" }
}

fn text(words: &[u64], at: usize, bytes: usize) -> String {
    let all: Vec<u8> = words[at..].iter().flat_map(|word| word.to_le_bytes()).collect();
    String::from_utf8(all[..bytes].to_vec()).unwrap()
}

#[test]
fn values_move_into_the_file_and_go_on_there() {
    metrics::METRICS.panics.add(3);
    metrics::METRICS.decision_time.record(std::time::Duration::from_micros(5));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("1.vm");
    let region = share(Some(&path), "{}").unwrap();
    metrics::METRICS.panics.add(4);
    metrics::METRICS.decision_time.record(std::time::Duration::from_micros(7));
    assert_eq!(metrics::METRICS.panics.get(), 7);
    region.beat(State::Running).unwrap();
    let words = file_words(&path);
    let place = |name: &str| {
        let i = CATALOGUE.iter().position(|metric| metric.name == name).unwrap();
        data_of(&words, i)
    };
    assert_eq!(words[place("sconce_panics_total")], 7);
    let times = place("sconce_decision_seconds");
    assert_eq!(words[times], 12_000);
    assert_eq!(words[times + 1..times + histogram::WORDS].iter().sum::<u64>(), 2);
    // A second call returns the same region, and may give it another file.
    assert!(std::ptr::eq(share(None, "{}").unwrap(), region));
    assert_eq!(region.path(), Some(path));
    let other = dir.path().join("2.vm");
    share(Some(&other), "{}").unwrap();
    metrics::METRICS.panics.add(1);
    region.beat(State::Running).unwrap();
    assert_eq!(file_words(&other)[place("sconce_panics_total")], 8);
}

#[test]
fn another_reader_of_the_file_finds_each_kind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.run");
    let region = Region::new(Some(&path), "{\"id\": \"ä\"}", 8, 10_000).unwrap();
    let kinds = [Kind::Counter, Kind::Gauge, Kind::Histogram, Kind::Series, Kind::Text];
    let names = ["c", "g{a=\"b\"}", "h", "s", "t"];
    for (i, (kind, name)) in kinds.into_iter().zip(names).enumerate() {
        assert_eq!(region.metric(&metric(kind, name)).unwrap(), i);
        assert_eq!(region.metric(&metric(kind, name)).unwrap(), i, "again");
    }
    region.beat(State::Running).unwrap();
    assert!(f64::from_bits(file_words(&path)[data_of(&file_words(&path), 1)]).is_nan());
    region.add(0, 2).unwrap();
    region.add(0, 40).unwrap();
    region.set(1, -0.5).unwrap();
    region.record(2, 7).unwrap();
    region.push(3, 1.0, 2.5).unwrap();
    region.tell(4, &"ä".repeat(1000)).unwrap();
    region.beat(State::Failed).unwrap();

    let words = file_words(&path);
    assert_eq!(words, words_of(&region.read()));
    assert_eq!(words[..3], [MAGIC, VERSION, words.len() as u64]);
    assert_eq!((words[3], words[6], words[7]), (u64::from(std::process::id()), 8, 5));
    assert_eq!((words[9], text(&words, 16, words[10] as usize)), (2, "{\"id\": \"ä\"}".into()));
    let row = HEADER + ROW;
    assert_eq!((words[row], words[row + 2], words[row + 3]), (2, 1, 8 | 2 << 16 | 6 << 32));
    assert_eq!(text(&words, row + 4, 16), "g{a=\"b\"}nsa test");
    let data: Vec<usize> = (0..5).map(|i| data_of(&words, i)).collect();
    assert_eq!((words[data[0]], f64::from_bits(words[data[1]])), (42, -0.5));
    assert_eq!((words[data[2]], words[data[2] + 1 + 7]), (7, 1));
    assert_eq!(words[data[3]..data[3] + 3], [2, 1, 1]);
    assert_eq!(f64::from_bits(words[data[3] + 4]), 2.5);
    assert_eq!((words[data[4]], words[data[4] + 1]), (2, 512));
    assert_eq!(text(&words, data[4] + 2, 512), "ä".repeat(256));
}

#[test]
fn a_long_series_keeps_points_at_equal_distances_from_the_first_on() {
    let region = Region::new(None, "", 1, 1000).unwrap();
    region.metric(&metric(Kind::Series, "s")).unwrap();
    for x in 0..10_000 {
        region.push(0, f64::from(x), f64::from(2 * x)).unwrap();
        let words = words_of(&region.read());
        let place = data_of(&words, 0);
        let (points, stride) = (words[place + 1] as usize, words[place + 2]);
        for k in [0, points / 2, points - 1] {
            let x = k as f64 * stride as f64;
            let at = place + 3 + 2 * k;
            assert_eq!([words[at], words[at + 1]].map(f64::from_bits), [x, 2.0 * x]);
        }
        let last = (points - 1) as u64 * stride;
        assert!(last <= x as u64 && x as u64 - last < stride, "{x}: {points} {stride}");
    }
}

#[test]
fn wrong_calls_are_errors_that_name_the_metric() {
    let region = Region::new(None, "", 2, 4000).unwrap();
    let kind = |name: &str, kind| region.metric(&metric(kind, name)).map_err(|e| e.to_string());
    kind("n", Kind::Counter).unwrap();
    assert_eq!(kind("n", Kind::Gauge).unwrap_err(), "kind of n: expected counter, got gauge");
    assert_eq!(
        region.set(0, 1.0).unwrap_err().to_string(),
        "kind of n: expected gauge, got counter"
    );
    assert!(region.add(1, 1).is_err());
    assert!(kind(&"n".repeat(300), Kind::Gauge).is_err());
    kind("h", Kind::Histogram).unwrap();
    assert!(kind("more", Kind::Gauge).is_err());
    // The place of a removed metric is free for one of its size.
    region.remove(0);
    assert!(region.add(0, 1).is_err());
    assert!(kind("t", Kind::Text).is_err());
    assert_eq!(kind("g", Kind::Gauge).unwrap(), 0);
    region.set(0, 3.0).unwrap();
    assert!(Region::new(None, &"x".repeat(4000), 1, 1).is_err());
    let nowhere = Path::new("/nonexistent/a.run");
    assert_eq!(Region::new(Some(nowhere), "", 1, 1).unwrap_err().kind().name(), "not_found");
}

#[test]
fn a_file_that_is_cut_or_gone_is_whole_again_or_does_not_matter() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.run");
    let region = Region::new(Some(&path), "", 8, 10_000).unwrap();
    region.metric(&metric(Kind::Counter, "c")).unwrap();
    region.metric(&metric(Kind::Histogram, "h")).unwrap();
    region.beat(State::Running).unwrap();
    for length in [0, 5000, 1 << 20] {
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
        region.add(0, 1).unwrap();
        region.record(1, length << 40).unwrap();
        region.beat(State::Running).unwrap();
        let words = words_of(&region.read());
        assert_eq!(file_words(&path)[..words.len()], words);
    }
    std::fs::remove_file(&path).unwrap();
    region.add(0, 1).unwrap();
    region.beat(State::Running).unwrap();
    assert!(!path.exists());
}

#[test]
fn only_changed_pages_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.run");
    let region = Region::new(Some(&path), "", 8, 10_000).unwrap();
    for name in ["a", "b"] {
        region.metric(&metric(Kind::Histogram, name)).unwrap();
    }
    region.beat(State::Running).unwrap();
    // Another program's change of a page stays until the page changes.
    let place = |i| data_of(&file_words(&path), i);
    let (a, b) = (place(0), place(1));
    let put = |at: usize, word: u64| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&word.to_le_bytes(), 8 * at as u64).unwrap();
    };
    put(a, 77);
    put(b, 77);
    region.record(0, 5).unwrap();
    region.beat(State::Running).unwrap();
    assert_eq!((file_words(&path)[a], file_words(&path)[b]), (5, 77));
}

#[test]
fn only_this_user_can_read_the_file_and_no_part_of_another_is_left() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.run");
    let _region = Region::new(Some(&path), "", 8, 100).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn the_start_of_the_process_is_that_of_proc() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("2.vm");
    let region = Region::new(Some(&path), "{}", 1, 1).unwrap();
    region.beat(State::Running).unwrap();
    let stat = crate::fs::kernel(Path::new("/proc/self/stat")).unwrap();
    let field = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap();
    assert_eq!(file_words(&path)[5].to_string(), field);
}
