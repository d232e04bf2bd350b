//! Microseconds of a step by the ops ("core") and by a plan, the memory rate of reading all weights once in that
//! time, and a decision of the ops on a whole window:
//!
//! ```text
//! cargo build --release --workspace --examples
//! target/release/examples/step [SECONDS [BACKBONE..]]
//! ```

use std::time::Instant;

use sconce_nn::backbone::Context;
use sconce_nn::heads::{Decision, NONE};
use sconce_nn::packed::{Frame, Game, Plan};
use sconce_nn::policy::Frames;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::spec::{
    AttentionConfig, Backbone, Embedding, ExpandConfig, GlaConfig, GriffinConfig, HawkConfig,
    Heads, HeadsConfig, HeadsKind, JambaConfig, Mamba2Config, MambaConfig, Melee, MlpConfig,
    RecurrentConfig, StackConfig, StateConfig,
};
use sconce_nn::{Policy, Spec};
use sconce_realtime::{Format, Scratch};
use sconce_tensor::Result;
use sconce_tensor::pool;
use sconce_tensor::rng::Rng;

/// Number of games in one call.
const BATCH: usize = 32;
/// Number of frames in a window.
const WINDOW: usize = 60;

/// Each backbone with two layers of 256, or an MLP of similar size.
fn backbones() -> Vec<(&'static str, Backbone)> {
    let (hidden_size, num_layers, input_norm) = (256, 2, false);
    let (dropout, input_dropout) = (0.0, 0.0);
    let (state_size, expand_factor, conv_size) = (16, 2, 4);
    let (num_heads, head_dim, window_size, qk_layernorm) = (4, 64, 60, false);
    let mlp = MlpConfig {
        hidden_sizes: vec![512, 512],
        layer_norm: false,
        residual: false,
        activation: Default::default(),
        dropout,
        input_dropout,
    };
    let layers = RecurrentConfig {
        hidden_size,
        num_layers,
        layer_norm: true,
        input_norm: true,
        dropout,
        input_dropout,
        ..Default::default()
    };
    let mamba = MambaConfig {
        hidden_size,
        num_layers,
        state_size,
        expand_factor,
        conv_size,
        input_norm,
        dropout,
        input_dropout,
    };
    let mamba_2 = Mamba2Config {
        hidden_size,
        num_layers,
        state_size: 64,
        expand_factor,
        conv_size,
        head_dim,
        chunk_size: 32,
        input_norm,
        dropout,
        input_dropout,
    };
    let attention = AttentionConfig {
        hidden_size,
        num_layers,
        num_heads,
        head_dim,
        window_size,
        qk_layernorm,
        input_norm,
        dropout,
        input_dropout,
    };
    let jamba = JambaConfig {
        hidden_size,
        num_layers,
        state_size,
        expand_factor,
        conv_size,
        attention_every: 2,
        num_heads,
        head_dim,
        window_size,
        qk_layernorm,
        input_norm,
        dropout,
        input_dropout,
    };
    let griffin = GriffinConfig {
        hidden_size,
        num_layers,
        expand_factor: 3,
        conv_size,
        attention_every: 2,
        num_heads,
        window_size,
        input_norm,
        dropout,
        input_dropout,
    };
    let hawk = HawkConfig {
        hidden_size,
        num_layers,
        expand_factor: 3,
        conv_size,
        input_norm,
        dropout,
        input_dropout,
    };
    let stack = StackConfig { hidden_size, num_layers, input_norm, dropout, input_dropout };
    let expand =
        ExpandConfig { hidden_size, num_layers, expand_factor, input_norm, dropout, input_dropout };
    let state =
        StateConfig { hidden_size, num_layers, state_size: 64, input_norm, dropout, input_dropout };
    let heads = HeadsConfig {
        hidden_size,
        num_layers,
        num_heads,
        expand_factor,
        input_norm,
        dropout,
        input_dropout,
    };
    let gla = GlaConfig {
        hidden_size,
        num_layers,
        num_heads,
        head_dim,
        expand_factor,
        input_norm,
        dropout,
        input_dropout,
    };
    vec![
        ("mlp", Backbone::Mlp(mlp)),
        ("gru", Backbone::Gru(layers.clone())),
        ("lstm", Backbone::Lstm(layers)),
        ("mamba", Backbone::Mamba(mamba)),
        ("sliding_window", Backbone::SlidingWindow(attention.clone())),
        ("lstm_hybrid", Backbone::LstmHybrid(attention)),
        ("mamba_2", Backbone::Mamba2(mamba_2)),
        ("jamba", Backbone::Jamba(jamba.clone())),
        ("zamba", Backbone::Zamba(jamba)),
        ("griffin", Backbone::Griffin(griffin)),
        ("hawk", Backbone::Hawk(hawk.clone())),
        ("gated_ssm", Backbone::GatedSsm(HawkConfig { expand_factor, ..hawk })),
        ("min_gru", Backbone::MinGru(stack.clone())),
        ("min_lstm", Backbone::MinLstm(stack.clone())),
        ("res_lstm", Backbone::ResLstm(stack)),
        ("tx_like", Backbone::TxLike(expand.clone())),
        ("hgrn", Backbone::Hgrn(expand.clone())),
        ("rwkv", Backbone::Rwkv(ExpandConfig { expand_factor: 4, ..expand })),
        ("s4d", Backbone::S4d(state.clone())),
        ("s5", Backbone::S5(state)),
        ("retnet", Backbone::Retnet(heads.clone())),
        ("gla", Backbone::Gla(gla)),
        ("xlstm", Backbone::Xlstm(heads)),
    ]
}

/// The minimum microseconds of a call, over this many seconds.
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
    let wanted: Vec<String> = std::env::args().skip(2).collect();
    let mut all = backbones();
    all.retain(|(name, _)| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name));
    for (name, backbone) in all {
        let embedding = Embedding::melee(Melee::packed());
        let heads = Heads::controller(HeadsKind::Independent);
        let spec = Spec { embedding, backbone, heads, critic: None };
        let policy = Policy::init(&spec, 1)?;
        let rng = Rng::new(1, "frame", 0);
        let width = spec.embedding.continuous_width() as u64;
        let frames = |time: usize| Frames {
            batch: 1,
            time,
            continuous: (0..time as u64 * width).map(|i| rng.normal(i)).collect(),
            ids: vec![0; time * spec.embedding.num_ids()],
            previous: vec![NONE; time * spec.heads.num_labels()],
        };
        let (frames, last) = (frames(1), frames(WINDOW));
        let (sampling, rngs) = (Sampling::default(), [Rng::new(1, "act", 0)]);
        let draw = Draw { sampling: &sampling, rngs: &rngs, given: None, mask: None };
        let mut state = policy.zero_state(1)?;
        let context = Context::default();
        let core = least(seconds, || {
            state = pool::serial(|| policy.act(&frames, &state, draw, &context))?.1;
            Ok(())
        })?;
        let Frames { continuous, ids, previous, .. } = &frames;
        let frame = Frame { continuous, ids, previous };
        println!("{name}, core: {core:.1} us");
        let zero = policy.zero_state(1)?;
        let forgetting = Context::default().forgetting();
        let window = || policy.act(&last, &zero, draw, &forgetting).map(drop);
        let alone = least(seconds, || pool::serial(window))?;
        let shared = least(seconds, window)?;
        println!("{name}, core: {alone:.0} us a window of {WINDOW}, {shared:.0} us by all threads");
        for format in [Format::F32, Format::Bf16, Format::Int8(0.02), Format::Int4(0.2)] {
            let Some(plan) = Plan::of(&policy, format)? else { continue };
            let mut scratch = Scratch::default();
            let mut games = vec![(plan.zero_state().to_vec(), plan.blank()); BATCH];
            let mut step = |games: &mut [(Vec<f32>, Decision)]| -> Result<()> {
                let game =
                    |(state, decision)| Game::new(frame, state, &sampling, rngs[0], decision);
                let mut games: Vec<Game<'_>> =
                    games.iter_mut().map(|(s, d)| game((s, d))).collect();
                plan.step(&mut games, &mut scratch);
                games.into_iter().try_for_each(|game| game.outcome)
            };
            let us = least(seconds, || step(&mut games[..1]))?;
            let each = least(seconds, || step(&mut games))? / BATCH as f64;
            let (mb, rate) = (plan.bytes() as f64 / 1e6, plan.bytes() as f64 / us / 1e3);
            println!(
                "{name}, {:?}: {us:.1} us, {mb:.2} MB at {rate:.0} GB/s; of {BATCH} {each:.1} us each",
                plan.encoding()
            );
        }
    }
    Ok(())
}
