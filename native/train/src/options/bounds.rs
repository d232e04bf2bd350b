//! The least and the most that numbers may be.

use sconce_tensor::{Error, Result};

/// The least and the most that a number may be, both included, by its option. `Sconce.Trainer.Catalogue` and
/// `Sconce.Loader` have the same bounds in their tables, which a test compares.
#[rustfmt::skip]
pub(super) const BOUNDS: &[(&str, f64, f64)] = &[
    ("batch_size", 1.0, 65_536.0),
    ("window_size", 1.0, 65_536.0),
    ("stride", 1.0, MAX_STEPS),
    ("truncate_bptt", 1.0, 65_536.0),
    ("checkpoint_every", 1.0, 1024.0),
    ("epochs", 1.0, 1_000_000.0),
    ("steps", 1.0, MAX_STEPS),
    ("accumulation_steps", 1.0, 65_536.0),
    ("learning_rate", 0.0, 1000.0),
    ("warmup_steps", 0.0, MAX_STEPS),
    ("decay_steps", 1.0, MAX_STEPS),
    ("decay_rate", 0.0, 1.0),
    ("restart_period", 1.0, MAX_STEPS),
    ("restart_mult", 1.0, 1000.0),
    ("weight_decay", 0.0, 1000.0),
    ("beta1", 0.0, ALMOST_ONE),
    ("beta2", 0.0, ALMOST_ONE),
    ("eps", 1e-30, 1.0),
    ("momentum", 0.0, ALMOST_ONE),
    ("ema_decay", 0.0, ALMOST_ONE),
    ("noise", 0.0, 1.0),
    ("noise_scale", 0.0, 1_000_000.0),
    ("previous_dropout", 0.0, 1.0),
    ("mirror", 0.0, 1.0),
    ("action_oversample", 1.0, 1_000_000.0),
    ("neutral_weight", 0.0, 1_000_000.0),
    ("transition_weight", 0.0, 1_000_000.0),
    ("scheduled_sampling", 0.0, 1.0),
    ("scheduled_sampling_steps", 0.0, MAX_STEPS),
    ("scheduled_sampling_slots", 1.0, 256.0),
    ("frame_delay", 0.0, 10_000.0),
    ("frame_delay_max", 0.0, 10_000.0),
    ("burn_in", 0.0, 65_535.0),
    ("prefetch", 0.0, 4096.0),
    ("loader_threads", 1.0, 4096.0),
    ("loader_deadline_ms", 1.0, 4_294_967_295.0),
    ("val_split", 0.0, 1.0),
    ("validate_every", 1.0, MAX_STEPS),
    ("save_every", 1.0, MAX_STEPS),
    ("save_minutes", 0.0, 1_000_000.0),
    ("keep_last", 0.0, 1_000_000.0),
    ("keep_best", 0.0, 1_000_000.0),
    ("validation_stride", 1.0, MAX_STEPS),
    ("patience", 1.0, MAX_STEPS),
    ("min_delta", 0.0, 1_000_000.0),
    ("teacher_weight", 0.0, 1_000_000.0),
    ("gradient_report", 1.0, MAX_STEPS),
    ("threads", 1.0, 4096.0),
    ("max_minutes", 0.001, 1_000_000.0),
];

/// The most updates of a run. Times the most `accumulation_steps` they number its batches in 46 bits.
const MAX_STEPS: f64 = 1_000_000_000.0;

/// Refuses a number outside the bounds of its option.
pub(super) fn bounded(option: &str, value: f64) -> Result<()> {
    match BOUNDS.iter().find(|(name, ..)| *name == option) {
        Some(&(_, min, max)) => at_least(option, value, min, max),
        None => Err(Error::not_found(format!("bounds of {option}"))),
    }
}

/// Frames of one step: more would not fit into the memory of the machines this is for.
pub(crate) const MAX_FRAMES: usize = 1 << 20;

/// The largest share of itself that a mean may keep.
const ALMOST_ONE: f64 = 1.0 - f64::EPSILON;

/// A number outside its bounds is an error that names it.
pub(crate) fn at_least(field: &str, value: f64, min: f64, max: f64) -> Result<()> {
    match value {
        v if v >= min && v <= max => Ok(()),
        v => Err(Error::out_of_range(field, v, min, max)),
    }
}
