//! Nanoseconds of an update of a metric, and of a span with and without a trace: medians of 101 rounds.
//! `metrics counter N` and `metrics histogram N` make `N` updates alone, whose instructions `bench/instructions.py` counts.

use std::hint::black_box;
use std::time::{Duration, Instant};

use sconce_tensor::metrics::METRICS;
use sconce_tensor::trace::{self, Kind};

const ROUNDS: usize = 101;
const UPDATES: u32 = 10_000;

fn main() {
    let counter = || METRICS.batches.add(black_box(1));
    let histogram = || METRICS.batch_time.record(black_box(Duration::from_micros(7)));
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [metric, updates] = &args[..] {
        let updates = updates.parse().expect("a number of updates");
        return match metric.as_str() {
            "counter" => (0..updates).for_each(|_: u64| counter()),
            "histogram" => (0..updates).for_each(|_: u64| histogram()),
            other => panic!("no metric {other}: counter or histogram"),
        };
    }
    report("counter, one addition", counter);
    report("histogram, a known time", histogram);
    report("reading of the clock", || _ = black_box(Instant::now()));
    report("span without a trace", || drop(trace::span(Kind::Step, black_box("a span"))));
    report_traced("span with a trace");
}

fn report(what: &str, update: impl Fn()) {
    print(what, (0..ROUNDS).map(|_| round(&update)).collect());
}

/// Each round has a trace of its own, so that the room for spans is never full.
fn report_traced(what: &str) {
    let span = || drop(trace::span(Kind::Step, black_box("a span")));
    let times = (0..ROUNDS).map(|_| {
        let trace = trace::start();
        span();
        let time = round(&span);
        drop(trace);
        time
    });
    print(what, times.collect());
}

fn round(update: &impl Fn()) -> f64 {
    let start = Instant::now();
    (0..UPDATES).for_each(|_| update());
    start.elapsed().as_secs_f64() * 1e9 / f64::from(UPDATES)
}

fn print(what: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    println!("{what:<28} {:7.1} ns", times[times.len() / 2]);
}
