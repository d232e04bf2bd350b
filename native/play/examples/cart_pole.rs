//! Time of the parts of PPO on CartPole, and steps until it is solved: `cart_pole [threads] [seed]`.

use std::time::Instant;

use mimalloc::MiMalloc;
use sconce_nn::Policy;
use sconce_nn::spec::{Backbone, Embedding, Head, HeadKind, Heads, HeadsKind, Spec};
use sconce_play::learner::Learner;
use sconce_play::options::PpoOptions;
use sconce_play::rollout::{Player, Rollout};
use sconce_tensor::{Result, pool};

// As in the library: with the C library's allocator a fifth of the time would go to pages that the kernel maps again.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn spec() -> Spec {
    let head = |name: &str, kind| Head { name: name.into(), kind, hidden_size: 0 };
    let parts = vec![head("action", HeadKind::Categorical(2)), head("value", HeadKind::Value(1))];
    let heads = Heads { kind: HeadsKind::Independent, parts, stream_size: 64, prior: false };
    let config = serde_json::json!({"mlp": {
        "hidden_sizes": [64, 64], "layer_norm": false, "residual": false, "dropout": 0.0,
        "input_dropout": 0.0, "activation": "tanh",
    }});
    let backbone: Backbone = serde_json::from_value(config).expect("a backbone");
    Spec { embedding: Embedding::vector(4), critic: Some(backbone.clone()), backbone, heads }
}

fn main() -> Result<()> {
    let number = |i: usize, default: u64| {
        std::env::args().nth(i).and_then(|arg| arg.parse().ok()).unwrap_or(default)
    };
    pool::set_threads(number(1, 1) as usize)?;
    let seed = number(2, 1);
    let given = serde_json::json!({"seed": seed, "steps": 2_000_000});
    let options: PpoOptions = serde_json::from_value(given).expect("options");
    options.validate()?;
    let begun = Instant::now();
    let policy = Policy::init_orthogonal(&spec(), seed)?;
    let mut player = Player::new(&options.env("cart_pole"), &policy)?;
    let mut learner = Learner::new(&policy, &options, None)?;
    let rollout = Rollout { steps: options.rollout.rollout_steps, stride: 16 };
    let (mut recent, mut times) = (vec![], [0.0; 3]);
    for update in 0.. {
        let clock = Instant::now();
        let frozen = learner.stepper().frozen()?;
        let mut segments = player.play(&frozen, rollout)?;
        times[0] += clock.elapsed().as_secs_f64();
        let clock = Instant::now();
        for segment in &mut segments {
            segment.estimate(options.discounts())?;
        }
        times[1] += clock.elapsed().as_secs_f64();
        let clock = Instant::now();
        let done = player.steps() as f64 / options.schedule.steps as f64;
        learner.learn(&segments, update, done)?;
        times[2] += clock.elapsed().as_secs_f64();
        recent.extend(player.episodes().0.iter().map(|episode| episode.ret));
        recent.drain(..recent.len().saturating_sub(100));
        let mean = recent.iter().sum::<f32>() / recent.len().max(1) as f32;
        if mean >= 475.0 || player.steps() >= options.schedule.steps {
            let (steps, seconds) = (player.steps(), begun.elapsed().as_secs_f64());
            println!(
                "seed {seed}: {mean:.1} after {steps} steps, {seconds:.2} s, {:.0} k steps/s; rollout {:.2}, advantages {:.3}, learning {:.2} s",
                steps as f64 / seconds / 1e3,
                times[0],
                times[1],
                times[2],
            );
            break;
        }
    }
    Ok(())
}
