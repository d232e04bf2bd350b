//! Learning from play: rollouts, proximal policy optimisation, and what they need.

#![warn(unreachable_pub)]

pub mod evaluate;
mod heads;
pub mod league;
pub mod learner;
pub mod live;
pub mod objective;
pub mod options;
pub mod plan;
pub mod returns;
pub mod rollout;
pub mod run;
pub mod segment;
mod side_by_side;
pub mod statistics;
pub mod tune;

/// Tests of plans need an allocator that counts memory.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: sconce_tensor::memory::Counted<std::alloc::System> =
    sconce_tensor::memory::Counted(std::alloc::System);
