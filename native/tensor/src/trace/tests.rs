//! Tests of traces. They share the room for spans, so one runs at a time.

use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::summary::shown;
use super::*;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn named<'a>(recording: &'a Recording, name: &str) -> Vec<&'a Event> {
    let events = recording.threads.iter().flat_map(|track| &track.events);
    events.filter(|event| event.name == name).collect()
}

#[test]
fn a_trace_has_the_spans_of_all_threads_that_began_and_ended_in_it() {
    let _alone = alone();
    let before = span(Kind::Step, "begun before");
    let trace = start();
    drop(before);
    let open = span(Kind::Step, "still open");
    drop(sized(Kind::Forward, "here", 24));
    let there = thread::Builder::new().name("a thread".into());
    there.spawn(|| drop(span(Kind::Wait, "there"))).unwrap().join().unwrap();
    let recording = trace.end();
    drop(open);
    assert_eq!(named(&recording, "here").len(), 1);
    assert_eq!(named(&recording, "here")[0].bytes, 24);
    assert_eq!(named(&recording, "there").len(), 1);
    assert!(recording.threads.iter().any(|track| track.name == "a thread"));
    assert!(named(&recording, "begun before").is_empty());
    assert!(named(&recording, "still open").is_empty());
    assert_eq!(recording.lost, 0);
}

#[test]
fn traces_overlap_and_each_has_its_own_time() {
    let _alone = alone();
    let outer = start();
    drop(span(Kind::Step, "first of two"));
    let inner = start();
    drop(span(Kind::Step, "second of two"));
    let inner = inner.end();
    drop(span(Kind::Step, "third of two"));
    let outer = outer.end();
    let count = |recording: &Recording, name| named(recording, name).len();
    assert_eq!(
        ["first of two", "second of two", "third of two"].map(|n| count(&outer, n)),
        [1, 1, 1]
    );
    assert_eq!(
        ["first of two", "second of two", "third of two"].map(|n| count(&inner, n)),
        [0, 1, 0]
    );
}

#[test]
fn device_time_counts_a_moment_once_and_bytes_those_of_outer_ops() {
    let zero = Instant::now();
    let at = |ms| zero + Duration::from_millis(ms);
    let event =
        |kind, from, to, bytes| Event { kind, name: "x", start: at(from), end: at(to), bytes };
    let track = |number, events| Track { number, name: "t".into(), events };
    let recording = Recording {
        start: zero,
        end: at(100),
        threads: vec![
            track(1, vec![event(Kind::Forward, 12, 14, 5), event(Kind::Forward, 10, 20, 100)]),
            track(2, vec![event(Kind::Shards, 15, 30, 0), event(Kind::Wait, 30, 90, 0)]),
            track(3, vec![event(Kind::Backward, 50, 60, 7), event(Kind::Call, 0, 100, 0)]),
        ],
        lost: 0,
    };
    assert_eq!(recording.device_time(), Duration::from_millis(30));
    assert_eq!(recording.bytes(), 107);
    assert_eq!(recording.time(), Duration::from_millis(100));
    let rows = recording.rows();
    assert_eq!((rows[0].kind, rows[0].time), (Kind::Call, Duration::from_millis(100)));
    let forward = rows.iter().find(|row| row.kind == Kind::Forward).unwrap();
    assert_eq!((forward.count, forward.bytes), (2, 105));
}

#[test]
fn the_file_is_json_with_each_span_and_thread() {
    let _alone = alone();
    let trace = start();
    drop(sized(Kind::Forward, "of the \"file\"", 8));
    let recording = trace.end();
    let mut bytes = vec![];
    recording.write_to(&mut bytes).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let span = events.iter().find(|event| event["name"] == "of the \"file\"").unwrap();
    assert_eq!((&span["ph"], &span["cat"]), (&"X".into(), &"forward".into()));
    assert_eq!(span["args"]["bytes"], 8);
    assert!(span["ts"].as_f64().unwrap() >= 0.0 && span["dur"].as_f64().unwrap() >= 0.0);
    let thread =
        |event: &&serde_json::Value| event["name"] == "thread_name" && event["tid"] == span["tid"];
    assert!(events.iter().any(|event| thread(&event)));
}

#[test]
fn a_full_recorder_counts_what_it_loses_and_frees_all_at_the_end() {
    let _alone = alone();
    let trace = start();
    let barrier = Barrier::new(2);
    let fill = || {
        barrier.wait();
        (0..recorder::MOST).for_each(|_| drop(span(Kind::Shards, "many")));
    };
    thread::scope(|scope| {
        scope.spawn(fill);
        scope.spawn(fill);
    });
    let recording = trace.end();
    assert!(recording.lost >= recorder::MOST as u64);
    assert!(named(&recording, "many").len() as i64 <= recorder::MOST);
    drop(recording);
}

#[test]
fn names_of_types_are_shown_without_their_path() {
    assert_eq!(shown("act"), "act");
    assert_eq!(shown("sconce_ops::dense::linear::Linear"), "linear::Linear");
    assert_eq!(shown("sconce_ops::a::Op<alloc::vec::Vec<f32>>"), "a::Op");
}
