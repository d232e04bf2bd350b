//! A buffer that the system refuses in the middle of a pass is an error, whichever it is: a program that is told
//! no by the allocator ends where a buffer is taken as if it always came.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use common::backbones::{INPUT, configs};
use sconce_core::backbone::Context;
use sconce_core::memory;
use sconce_core::ops::tensor;
use sconce_core::policy::Frames;
use sconce_core::spec::{self, Embedding, Head, HeadKind, Heads, HeadsKind};
use sconce_core::{Kind, Policy, Result, Spec};
use serde_json::Value;

/// A buffer from here on may be refused.
const LARGE: usize = 1 << 20;

/// Refuses every large request once so many were granted.
struct Refusing;

static LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);

impl Refusing {
    fn refuses(&self, size: usize) -> bool {
        let one_less = |left: usize| match left {
            usize::MAX => None,
            left => Some(left.saturating_sub(1)),
        };
        size >= LARGE && LEFT.fetch_update(SeqCst, SeqCst, one_less) == Ok(0)
    }
}

// SAFETY: requests go to `System` as they came, or are refused, which any request may be.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if self.refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory is `System`'s.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if self.refuses(size) {
            return null_mut();
        }
        // SAFETY: the memory is `System`'s.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// The backbone in layers wide enough for buffers of a mebibyte.
fn wide(config: &spec::Backbone) -> spec::Backbone {
    let mut value = serde_json::to_value(config).unwrap();
    for config in value.as_object_mut().unwrap().values_mut() {
        if let Some(size) = config.get("hidden_size").and_then(Value::as_u64) {
            config["hidden_size"] = Value::from(8 * size);
        } else {
            config["hidden_sizes"] = serde_json::json!([136, 72]);
        }
    }
    serde_json::from_value(value).unwrap()
}

fn spec(backbone: spec::Backbone, kind: HeadsKind) -> Spec {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 64 };
    let parts =
        vec![head("press", HeadKind::Bernoulli(4)), head("stick", HeadKind::Categorical(63))];
    let heads = Heads { kind, parts, stream_size: 64, prior: false };
    Spec { embedding: Embedding::Vector(INPUT), backbone, heads }
}

const BATCH: usize = 50;
const TIME: usize = 100;

fn examples() -> (Frames, Vec<u16>) {
    let rows = BATCH * TIME;
    let continuous = (0..rows * INPUT).map(|i| (i % 13) as f32 / 13.0).collect();
    let frames =
        Frames { batch: BATCH, time: TIME, continuous, ids: vec![], previous: vec![0; rows * 5] };
    (frames, vec![0; rows * 5])
}

/// Logits, and gradients of the weights if they are trained.
fn pass(policy: &Policy, frames: &Frames, labels: &[u16]) -> Result<Vec<Vec<f32>>> {
    memory::caught(|| {
        let zero = policy.zero_state(BATCH)?;
        let (logits, _) = policy.forward(frames, Some(labels), &zero, &Context::default())?;
        let mut numbers = vec![tensor::to_vec(&logits)?];
        if logits.track_op() {
            let gradient = logits.detach();
            let store = tensor::backward(&logits, gradient)?;
            for weight in policy.weights().values() {
                weight.gather(&store)?;
                numbers.push(weight.gradient(|gradient| gradient.to_vec()));
                weight.forget();
            }
        }
        Ok(numbers)
    })
}

/// How many large buffers `work` takes.
fn large(work: impl FnOnce()) -> usize {
    const MANY: usize = 1 << 40;
    LEFT.store(MANY, SeqCst);
    work();
    MANY - LEFT.swap(usize::MAX, SeqCst)
}

fn attack(name: &str, policy: &Policy) {
    let (frames, labels) = examples();
    // Weights are packed, and buffers kept, by the first.
    let expected = pass(policy, &frames, &labels).unwrap();
    let count = large(|| drop(pass(policy, &frames, &labels)));
    assert!(count > 0, "{name} takes no large buffer");
    for granted in (0..count).step_by(count.div_ceil(40)) {
        eprintln!("{name}: {granted} of {count} granted");
        LEFT.store(granted, SeqCst);
        let refused = pass(policy, &frames, &labels);
        let refusals = LEFT.swap(usize::MAX, SeqCst);
        // Which buffers are kept for later may differ from pass to pass.
        if let Err(error) = refused {
            assert_eq!(error.kind(), Kind::OutOfMemory, "{name}: {error}");
        } else {
            assert!(refusals > 0 || granted + 4 > count, "{name}: {granted} of {count}");
        }
        policy.weights().values().for_each(|weight| weight.forget());
    }
    assert!(pass(policy, &frames, &labels).unwrap() == expected, "{name}: other numbers");
}

#[test]
fn a_buffer_that_is_refused_in_a_pass_is_an_error_and_the_next_pass_gives_the_same_numbers() {
    for config in configs() {
        for kind in [HeadsKind::Independent, HeadsKind::Autoregressive] {
            let policy = Policy::init(&spec(wide(&config), kind), 1).unwrap();
            attack(&format!("{} {kind:?}", config.name()), &policy);
        }
    }
}
