//! A decision by a step allocates no memory. The test has a program of its own, because it counts allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use sconce_nn::embedding::melee;
use sconce_nn::sampling::Sampling;
use sconce_nn::spec::{Backbone, Embedding, Heads, HeadsKind, Melee, RecurrentConfig};
use sconce_nn::{Policy, Spec};
use sconce_serve::Format;
use sconce_serve::session::{Mode, Options, Overrides, Session};

struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: each request is passed unchanged to the system's allocator, and its result is returned unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory comes from `System.alloc` with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_decision_allocates_no_memory() {
    for melee in [Melee::default(), Melee { queue_depth: 3, num_delays: 4, ..Melee::packed() }] {
        let config = RecurrentConfig {
            hidden_size: 40,
            num_layers: 2,
            layer_norm: true,
            input_norm: true,
            dropout: 0.0,
            input_dropout: 0.0,
            ..Default::default()
        };
        let spec = Spec {
            embedding: Embedding::melee(melee),
            backbone: Backbone::Gru(config),
            heads: Heads { prior: true, ..Heads::controller(HeadsKind::Autoregressive) },
            critic: None,
        };
        let options = Options {
            mode: Mode::Carry,
            window_size: 5,
            sampling: Sampling::default(),
            seed: 1,
            weights: Format::F32,
            lane: None,
            rollback: 8,
            frame_delay: Some(2),
            project_out: None,
        };
        let policy = Arc::new(Policy::init(&spec, 1).unwrap());
        let mut session = Session::open(policy, options).unwrap();
        let mut raw = vec![0.0; melee::RAW_WIDTH];
        raw[melee::game().column("own.stock").unwrap()] = 4.0;
        let mut act = |t: i64| {
            let overrides = Overrides { game_frame: Some(t), ..Overrides::default() };
            session.decide(&raw, &overrides).unwrap();
            session.commit();
            if t % 7 == 0 {
                assert_eq!(session.rollback(t - 2).unwrap(), 3);
            }
            assert!(session.last().1 > 0);
        };
        // The first decision reads a window; the next ones fill the storage that the session keeps.
        (1..30).for_each(&mut act);
        let before = CALLS.get();
        (30..130).for_each(&mut act);
        assert_eq!(CALLS.get() - before, 0);
        // The counter sees an allocation.
        drop(std::hint::black_box(vec![1u8]));
        assert_eq!(CALLS.get() - before, 1);
    }
}
