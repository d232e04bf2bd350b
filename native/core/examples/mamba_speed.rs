//! Times of a Mamba backbone: full windows, one frame, and forward and backward of a training step.
//!
//!     cargo run --release --example mamba_speed -- [threads] [seconds]

use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use sconce_core::backbone::{self, Context};
use sconce_core::spec::{Backbone, MambaConfig};
use sconce_core::weights::{Builder, Source};
use sconce_core::{Result, pool};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut number = |or| args.next().and_then(|s| s.parse().ok()).unwrap_or(or);
    let (threads, seconds) = (number(1.0), number(2.0));
    pool::keep_libraries_single_threaded();
    pool::set_threads(threads as usize)?;
    let config = Backbone::Mamba(MambaConfig {
        hidden_size: 256,
        num_layers: 2,
        state_size: 16,
        expand_factor: 2,
        conv_size: 4,
        input_norm: false,
        dropout: 0.0,
        input_dropout: 0.0,
    });
    for train in [false, true] {
        let b = Builder::new(Source::Seed(1), train);
        let net = backbone::new(&config, 288, &b)?;
        let weights = b.finish()?;
        let shapes: &[(usize, usize)] =
            if train { &[(32, 60)] } else { &[(1, 60), (32, 60), (1, 1), (32, 1)] };
        for &(batch, time) in shapes {
            let x = Tensor::randn(0.0f32, 1.0, (batch, time, 288), &Device::Cpu)?;
            let frame = x.narrow(1, 0, 1)?.squeeze(1)?;
            let mut state = net.zero_state(batch)?;
            let (mut times, start) = (vec![], Instant::now());
            while start.elapsed() < Duration::from_secs_f64(seconds) || times.len() < 5 {
                let clock = Instant::now();
                if time == 1 {
                    state = net.step(&frame, &state, &Context::default())?.1;
                } else {
                    let (y, _) = net.forward(&x, &state, &Context::default())?;
                    if train {
                        let gradients = y.sum_all()?.backward()?;
                        weights
                            .values()
                            .try_for_each(|w| w.gather(&gradients).map(|_| w.forget()))?;
                    }
                }
                times.push(clock.elapsed().as_secs_f64() * 1e6);
            }
            times.sort_by(f64::total_cmp);
            let (least, median) = (times[0], times[times.len() / 2]);
            let what = if train { "forward and backward" } else { "forward" };
            println!("{what} {batch} x {time}: {median:.0} us in the middle, least {least:.0} us");
        }
    }
    Ok(())
}
