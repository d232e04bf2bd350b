//! Evolution of solutions, which are vectors of f32: archives of elites, variation, evolution strategies, populations of
//! small policies, and searches by them. Evolution of networks: NEAT.
//!
//! A higher objective is better, in archives and in strategies. Random numbers depend on a seed, a generation and an
//! index, so the number of threads changes no bit of a result.

#![warn(unreachable_pub)]

mod archive;
mod neat;
mod noise;
mod population;
mod saved;
mod search;
mod stop;
mod strategy;
mod variation;

pub use archive::{
    Added, Archive, ArchiveOptions, Batch, Elites, Grid, Raster, Space, SpaceOptions, Stats,
    Status, Unstructured, Voronoi,
};
pub use neat::{
    Activation, Compatibility, Connection, Differences, Fit, Genome, Neat, NeatOptions, NeatStats,
    Node, NodeKind, Rule, Species, assign_species,
};
pub use population::{
    CardImage, CardWeights, Episodes, Evaluated, Measure, Network, Population, PopulationOptions,
    Storage,
};
use sconce_tensor::Error;
pub use search::{
    EmitterOptions, Event, Progress, Ranking, Report, RunOptions, Search, SearchOptions, Selection,
    Source, Stages,
};
pub use stop::Stop;
pub use strategy::{Method, Strategy, StrategyOptions};
pub use variation::{Crossover, Variation, iso_line};

/// Largest magnitude of an objective or a measure. No sum over cells and no squared distance of such numbers overflows.
pub const MOST: f64 = 1e150;

/// The first number that is not finite or exceeds [`MOST`], with its index.
fn unbounded(numbers: &[f64]) -> Option<(usize, f64)> {
    // Without a branch the loop compiles to vector code.
    if numbers.iter().fold(true, |all, v| all & (v.abs() <= MOST)) {
        return None;
    }
    numbers.iter().copied().enumerate().find(|(_, v)| v.is_nan() || v.abs() > MOST)
}

/// The error of a number that [`unbounded`] found.
fn refused(what: String, value: f64) -> Error {
    match value.is_finite() {
        true => Error::out_of_range(what, value, -MOST, MOST),
        false => Error::NonFinite { what, value },
    }
}
