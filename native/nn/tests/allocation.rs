//! A step allocates no memory. This is a separate program, because every allocation of the process is counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use sconce_nn::heads::NONE;
use sconce_nn::packed::{Frame, Game, Plan};
use sconce_nn::sampling::Sampling;
use sconce_nn::spec::{Embedding, Head, HeadKind, Heads, HeadsKind, Melee};
use sconce_nn::{Policy, Spec};
use sconce_realtime::{Format, Scratch};
use sconce_tensor::Result;
use sconce_tensor::rng::Rng;

#[path = "packed/backbones.rs"]
mod backbones;

use backbones::{BACKBONES, FORMS, Numbers};

struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every request goes unchanged to the system's allocator, and its result is returned.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
        // SAFETY: the caller fulfils the contract of `alloc`.
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
fn a_step_allocates_no_memory() -> Result<()> {
    for (kind, format) in [
        (HeadsKind::Independent, Format::F32),
        (HeadsKind::Autoregressive, Format::F32),
        (HeadsKind::Independent, Format::Int8(1.0)),
        (HeadsKind::Independent, Format::Int4(1.0)),
    ] {
        for (i, backbone) in BACKBONES.iter().chain(FORMS).enumerate() {
            let n = &mut Numbers::new(i as u64);
            let embedding = Embedding::melee(Melee::default());
            let mut heads = Heads { prior: true, ..Heads::controller(kind) };
            // Every second one has a critic.
            let critic = (i % 2 == 1).then(|| backbone(n));
            if critic.is_some() {
                let kind = HeadKind::Value(1);
                heads.parts.push(Head { name: "value".into(), kind, hidden_size: 64 });
            }
            let spec = Spec { embedding, backbone: backbone(n), heads, critic };
            let plan = Plan::of(&Policy::init(&spec, 1)?, format)?.expect("a plan");
            let continuous: Vec<f32> =
                (0..spec.embedding.continuous_width()).map(|_| n.normal()).collect();
            let ids = vec![1; spec.embedding.num_ids()];
            let previous = vec![NONE; spec.heads.num_labels()];
            let frame = Frame { continuous: &continuous, ids: &ids, previous: &previous };
            let sampling = Sampling::default();
            let mut scratch = Scratch::default();
            let mut decisions = [plan.blank(), plan.blank()];
            let mut states = [plan.zero_state().to_vec(), plan.zero_state().to_vec()];
            let mut step = |games: usize| -> Result<()> {
                let [first, second] = &mut decisions;
                let [one, two] = &mut states;
                let rng = || Rng::new(1, "act", 0);
                let mut both = [
                    Game::new(frame, one, &sampling, rng(), first),
                    Game::new(frame, two, &sampling, rng(), second),
                ];
                plan.step(&mut both[..games], &mut scratch);
                both.into_iter().try_for_each(|game| game.outcome)
            };
            step(2)?;
            let before = CALLS.get();
            for i in 0..100 {
                step(1 + i % 2)?;
            }
            assert_eq!(CALLS.get() - before, 0);
            // The counter works.
            drop(std::hint::black_box(vec![1u8]));
            assert_eq!(CALLS.get() - before, 1);
        }
    }
    Ok(())
}
