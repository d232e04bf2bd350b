//! Training: objectives, optimisers, schedules, runs, and the metrics of policies.

#![warn(unreachable_pub)]

pub mod baselines;
pub mod bench;
pub mod eval;
mod games;
pub mod gradients;
mod likeliest;
pub mod loss_scale;
pub mod metrics;
pub mod nets;
pub mod objective;
pub mod optimiser;
pub mod options;
pub mod plan;
pub mod range_test;
mod replicas;
pub mod report;
pub mod run;
pub mod schedule;
mod source;
mod states;
pub mod step;
mod stop;
mod transform;
pub mod tune;
mod unroll;
pub mod weights;

/// Tests of plans need an allocator that counts memory.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: sconce_tensor::memory::Counted<std::alloc::System> =
    sconce_tensor::memory::Counted(std::alloc::System);
