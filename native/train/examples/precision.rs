//! Times of training steps in each precision, in turn, so that other load of the machine affects all of them alike:
//! `precision [ROUNDS [THREADS]]`. Prints the fastest steps of 32 windows of 60 frames (256 single frames for an MLP),
//! and their speed relative to f32.

use sconce_nn::Spec;
use sconce_nn::spec::{
    AttentionConfig, Backbone, Embedding, Heads, HeadsKind, MambaConfig, Melee, MlpConfig,
    RecurrentConfig,
};
use sconce_tensor::{Error, Precision, Result};
use sconce_train::bench::{Steps, step_times};

const PRECISIONS: [Precision; 4] =
    [Precision::F32, Precision::Tf32, Precision::Bf16, Precision::F16];

fn main() -> Result<()> {
    let number = |text: String| {
        text.parse::<usize>().map_err(|_| Error::mismatch("argument", "a number", text))
    };
    let numbers = std::env::args().skip(1).map(number).collect::<Result<Vec<_>>>()?;
    let rounds = numbers.first().copied().unwrap_or(10);
    let threads = numbers.get(1).copied().unwrap_or(1);
    sconce_tensor::pool::keep_libraries_single_threaded();
    println!("{:<12} {:>10} {:>18} {:>18}", "ms a step", "f32", "bf16", "f16");
    for (name, backbone, batch, window) in backbones() {
        let embedding = Embedding::melee(Melee::packed());
        let heads = Heads::controller(HeadsKind::Independent);
        let spec = Spec { embedding, backbone, heads, critic: None };
        let [f32, bf16, f16] = fastest(&spec, rounds, (batch, window, threads))?;
        let beside = |ms: f64| format!("{ms:8.1} ({:4.2} x)", f32 / ms);
        println!("{name:<12} {f32:10.1} {:>18} {:>18}", beside(bf16), beside(f16));
    }
    Ok(())
}

/// Milliseconds of the fastest step in each precision.
fn fastest(
    spec: &Spec,
    rounds: usize,
    (batch, window, threads): (usize, usize, usize),
) -> Result<[f64; 3]> {
    let mut fastest = [f64::INFINITY; 3];
    for _ in 0..rounds {
        for (fastest, precision) in fastest.iter_mut().zip(PRECISIONS) {
            let (seed, seconds, min_steps) = (1, 0.0, 3);
            let steps = Steps { batch, window, threads, seed, seconds, min_steps, precision };
            let times = step_times(spec, &steps)?.us;
            *fastest = times.into_iter().fold(*fastest, |least, us| least.min(us / 1000.0));
        }
    }
    Ok(fastest)
}

fn backbones() -> [(&'static str, Backbone, usize, usize); 5] {
    let (hidden_size, num_layers) = (256, 2);
    let (dropout, input_dropout, input_norm) = (0.0, 0.0, true);
    let mlp = MlpConfig {
        hidden_sizes: vec![512, 512],
        layer_norm: true,
        residual: false,
        activation: Default::default(),
        dropout,
        input_dropout,
    };
    let recurrent = RecurrentConfig {
        hidden_size,
        num_layers,
        layer_norm: true,
        input_norm,
        dropout,
        input_dropout,
        ..Default::default()
    };
    let mamba = MambaConfig {
        hidden_size,
        num_layers,
        state_size: 16,
        expand_factor: 2,
        conv_size: 4,
        input_norm,
        dropout,
        input_dropout,
    };
    let attention = AttentionConfig {
        hidden_size,
        num_layers,
        num_heads: 4,
        head_dim: 64,
        window_size: 60,
        qk_layernorm: true,
        input_norm,
        dropout,
        input_dropout,
    };
    [
        ("MLP", Backbone::Mlp(mlp), 256, 1),
        ("GRU", Backbone::Gru(recurrent.clone()), 32, 60),
        ("LSTM", Backbone::Lstm(recurrent), 32, 60),
        ("Mamba", Backbone::Mamba(mamba), 32, 60),
        ("attention", Backbone::SlidingWindow(attention), 32, 60),
    ]
}
