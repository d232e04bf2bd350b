//! Microseconds of a step of core and of a plan, and what reading the weights once would take at a rate:
//!
//! ```text
//! cargo run --release --workspace --example step [SECONDS]
//! ```

use std::time::Instant;

use sconce_core::backbone::Context;
use sconce_core::heads::{Decision, NONE};
use sconce_core::policy::Frames;
use sconce_core::pool;
use sconce_core::rng::Rng;
use sconce_core::sampling::{Draw, Sampling};
use sconce_core::spec::{
    AttentionConfig, Backbone, Embedding, Heads, HeadsKind, MambaConfig, Melee, MlpConfig,
    RecurrentConfig,
};
use sconce_core::{Policy, Result, Spec};
use sconce_realtime::{Format, Frame, Game, Plan, Scratch};

/// Games in one call.
const BATCH: usize = 32;

fn backbones() -> [(&'static str, Backbone); 5] {
    let layers = RecurrentConfig {
        hidden_size: 256,
        num_layers: 2,
        layer_norm: true,
        input_norm: true,
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let mlp = MlpConfig {
        hidden_sizes: vec![512, 512],
        layer_norm: false,
        residual: false,
        dropout: 0.0,
        input_dropout: 0.0,
    };
    let (gru, lstm) = (Backbone::Gru(layers.clone()), Backbone::Lstm(layers));
    let mamba = Backbone::Mamba(MambaConfig {
        hidden_size: 256,
        num_layers: 2,
        state_size: 16,
        expand_factor: 2,
        conv_size: 4,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    });
    let attention = Backbone::SlidingWindow(AttentionConfig {
        hidden_size: 256,
        num_layers: 2,
        num_heads: 4,
        head_dim: 64,
        window_size: 60,
        qk_layernorm: false,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    });
    [
        ("sliding_window", attention),
        ("mlp", Backbone::Mlp(mlp)),
        ("gru", gru),
        ("lstm", lstm),
        ("mamba", mamba),
    ]
}

/// The least microseconds of a call, over so many seconds.
fn least(seconds: f64, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    let mut least = f64::INFINITY;
    while start.elapsed().as_secs_f64() < seconds {
        let begin = Instant::now();
        call()?;
        least = least.min(begin.elapsed().as_secs_f64());
    }
    Ok(least * 1e6)
}

fn main() -> Result<()> {
    let seconds = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(1.0);
    for (name, backbone) in backbones() {
        let embedding = Embedding::Melee(Melee::packed());
        let heads = Heads::controller(HeadsKind::Independent);
        let spec = Spec { embedding, backbone, heads };
        let policy = Policy::init(&spec, 1)?;
        let rng = Rng::new(1, "frame", 0);
        let width = spec.embedding.continuous_width() as u64;
        let frames = Frames {
            batch: 1,
            time: 1,
            continuous: (0..width).map(|i| rng.normal(i)).collect(),
            ids: vec![0; spec.embedding.num_ids()],
            previous: vec![NONE; spec.heads.num_labels()],
        };
        let (sampling, rngs) = (Sampling::default(), [Rng::new(1, "act", 0)]);
        let draw = Draw { sampling: &sampling, rngs: &rngs, given: None };
        let mut state = policy.zero_state(1)?;
        let context = Context::default();
        let core = least(seconds, || {
            state = pool::serial(|| policy.act(&frames, &state, draw, &context))?.1;
            Ok(())
        })?;
        let Frames { continuous, ids, previous, .. } = &frames;
        let frame = Frame { continuous, ids, previous };
        println!("{name}, core: {core:.1} us");
        for format in [Format::F32, Format::Bf16] {
            let Some(plan) = Plan::of(&policy, format)? else { continue };
            let mut scratch = Scratch::default();
            let mut games = vec![(plan.zero_state().to_vec(), plan.blank()); BATCH];
            let mut step = |games: &mut [(Vec<f32>, Decision)]| -> Result<()> {
                let game = |(state, decision)| {
                    Game::new(frame, state, &sampling, rngs[0].clone(), decision)
                };
                let mut games: Vec<Game<'_>> =
                    games.iter_mut().map(|(s, d)| game((s, d))).collect();
                plan.step(&mut games, &mut scratch);
                games.into_iter().try_for_each(|game| game.outcome)
            };
            let us = least(seconds, || step(&mut games[..1]))?;
            let each = least(seconds, || step(&mut games))? / BATCH as f64;
            let (mb, rate) = (plan.bytes() as f64 / 1e6, plan.bytes() as f64 / us / 1e3);
            println!(
                "{name}, {format:?}: {us:.1} us, {mb:.2} MB at {rate:.0} GB/s; of {BATCH} {each:.1} us each"
            );
        }
    }
    Ok(())
}
