//! Sums over the spans of a recording.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::event::{Event, Kind};
use super::recording::{Recording, Track};

/// All spans of a kind and a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Their kind.
    pub kind: Kind,
    /// Their name.
    pub name: String,
    /// Their number.
    pub count: u64,
    /// The sum of their times. Spans of several threads may lie side by side.
    pub time: Duration,
    /// Bytes that they read and wrote.
    pub bytes: u64,
}

impl Recording {
    /// The time from start to end.
    pub fn time(&self) -> Duration {
        self.end.saturating_duration_since(self.start)
    }

    /// Sums by kind and name, the longest first.
    pub fn rows(&self) -> Vec<Row> {
        let mut sums = BTreeMap::<_, (u64, Duration, u64)>::new();
        for event in self.threads.iter().flat_map(|track| &track.events) {
            let sum = sums.entry((event.kind, event.name)).or_default();
            sum.0 += 1;
            sum.1 += event.time();
            sum.2 += event.bytes;
        }
        let row = |((kind, name), (count, time, bytes))| Row {
            kind,
            name: shown(name),
            count,
            time,
            bytes,
        };
        let mut rows: Vec<_> = sums.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.time.cmp(&a.time).then_with(|| a.name.cmp(&b.name)));
        rows
    }

    /// The time in which a device computed for at least one thread.
    pub fn device_time(&self) -> Duration {
        let spans = self.threads.iter().flat_map(|track| &track.events);
        let mut spans: Vec<_> = spans.filter(|event| event.kind.computes()).collect();
        spans.sort_by_key(|event| event.start);
        let mut until = self.start;
        spans.iter().map(|event| beyond(&mut until, event)).sum()
    }

    /// Bytes that ops read and wrote. An op within another op is not counted again.
    pub fn bytes(&self) -> u64 {
        self.threads.iter().map(bytes).sum()
    }
}

/// The part of a span behind `until`, which moves to its end.
fn beyond(until: &mut Instant, event: &Event) -> Duration {
    let time = event.end.saturating_duration_since(event.start.max(*until));
    *until = event.end.max(*until);
    time
}

fn bytes(track: &Track) -> u64 {
    let mut spans: Vec<_> = track.events.iter().filter(|event| event.bytes > 0).collect();
    spans.sort_by_key(|event| (event.start, std::cmp::Reverse(event.end)));
    let mut until = None;
    let mut outer = |event: &&&Event| {
        let is_outer = until.is_none_or(|until| event.end > until);
        if is_outer {
            until = Some(event.end);
        }
        is_outer
    };
    spans.iter().filter(|event| outer(event)).map(|event| event.bytes).sum()
}

/// A name for people: of the path of a type, the module and the type.
pub(super) fn shown(name: &str) -> String {
    let path = name.split_once('<').map_or(name, |(path, _)| path);
    let mut parts: Vec<_> = path.split("::").collect();
    match (parts.pop(), parts.pop()) {
        (Some(last), Some(module)) => format!("{module}::{last}"),
        (last, _) => last.unwrap_or(name).to_owned(),
    }
}
