//! A recording as JSON of Chrome's trace viewer, which Perfetto opens too.
//!
//! Source: "Trace Event Format", <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use super::event::Event;
use super::recording::{Recording, Track};
use super::summary::shown;
use crate::{Result, fs};

impl Recording {
    /// Writes the spans to a file: times in microseconds since the start of the trace, a track for each thread.
    pub fn write(&self, path: &Path) -> Result<()> {
        fs::write_atomic(path, |file| {
            let mut out = BufWriter::new(file);
            self.write_to(&mut out)?;
            out.flush()
        })
    }

    pub(super) fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let process = std::process::id();
        write!(out, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"lost\":{}}},", self.lost)?;
        write!(
            out,
            "\"traceEvents\":[\n{{\"ph\":\"M\",\"pid\":{process},\"name\":\"process_name\","
        )?;
        write!(out, "\"args\":{{\"name\":\"sconce\"}}}}")?;
        self.threads.iter().try_for_each(|track| write_track(out, process, track, self.start))?;
        out.write_all(b"\n]}\n")
    }
}

fn write_track(out: &mut impl Write, process: u32, track: &Track, zero: Instant) -> io::Result<()> {
    let (thread, name) = (track.number, serde_json::Value::from(&track.name[..]));
    write!(out, ",\n{{\"ph\":\"M\",\"pid\":{process},\"tid\":{thread},\"name\":\"thread_name\",")?;
    write!(out, "\"args\":{{\"name\":{name}}}}}")?;
    track.events.iter().try_for_each(|event| {
        let Event { kind, name, start, end, bytes } = *event;
        let since = micros(start.saturating_duration_since(zero).as_nanos());
        let time = micros(end.saturating_duration_since(start).as_nanos());
        let (kind, name) = (kind.name(), serde_json::Value::from(shown(name)));
        write!(
            out,
            ",\n{{\"ph\":\"X\",\"pid\":{process},\"tid\":{thread},\"ts\":{since},\"dur\":{time},"
        )?;
        write!(out, "\"cat\":\"{kind}\",\"name\":{name}")?;
        if bytes > 0 {
            write!(out, ",\"args\":{{\"bytes\":{bytes}}}")?;
        }
        out.write_all(b"}")
    })
}

/// Microseconds with three digits behind the point.
fn micros(nanos: u128) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}
