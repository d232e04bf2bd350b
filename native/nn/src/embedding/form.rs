//! An embedding as files store it: the game and the options of its vector.

use std::collections::BTreeMap;
use std::sync::Arc;

pub use sconce_game::melee::{Layout, Melee};
use sconce_game::{Declaration, Game, features, melee};
use sconce_net::NetSpec;
use serde::{Deserialize, Serialize};

use super::{layout, net};
use crate::Result;
use crate::bounds::{MAX_QUEUE_DEPTH, size, within};

/// Form of an embedding, as checkpoints store it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Form {
    /// A vector of this width, used unchanged.
    Vector(usize),
    /// A vector whose numbers are normalised.
    Normalised(Normalised),
    /// A vector, such as an image, that a network of its own turns into another vector.
    Net(NetSpec),
    Melee(Melee),
    Game(Declared),
}

/// Statistics of the numbers of a vector. The feature of a number x is `(x - mean) / deviation`, bounded to -10..=10.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalised {
    /// Means of the numbers.
    pub mean: Vec<f32>,
    /// Standard deviations of the numbers.
    pub deviation: Vec<f32>,
}

impl Normalised {
    /// Bound of the absolute value of a normalised number.
    pub const BOUND: f32 = 10.0;

    pub(super) fn apply(&self, numbers: &mut [f32]) {
        for ((x, mean), deviation) in numbers.iter_mut().zip(&self.mean).zip(&self.deviation) {
            *x = ((*x - mean) / deviation).clamp(-Self::BOUND, Self::BOUND);
        }
    }

    fn validate(&self) -> Result<()> {
        size("embedding.normalised.mean (length)", self.mean.len(), 1)?;
        let n = self.mean.len();
        if self.deviation.len() != n {
            let what = "embedding.normalised.deviation (length)";
            return Err(crate::Error::mismatch(what, n, self.deviation.len()));
        }
        if let Some(mean) = self.mean.iter().find(|mean| !mean.is_finite()) {
            let (least, most) = (f32::MIN.into(), f32::MAX.into());
            let what = "embedding.normalised.mean";
            return Err(crate::Error::out_of_range(what, (*mean).into(), least, most));
        }
        let wrong = self.deviation.iter().find(|d| !(d.is_finite() && **d > 0.0));
        wrong.map_or(Ok(()), |d| {
            let (least, most) = (f32::MIN_POSITIVE.into(), f32::MAX.into());
            let what = "embedding.normalised.deviation";
            Err(crate::Error::out_of_range(what, (*d).into(), least, most))
        })
    }
}

/// Options of the embedding of a declared game.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// Fields, tables and input of the game.
    pub game: Declaration,
    /// Layout of ids: trained tables or plain numbers.
    pub layout: Layout,
    /// Widths of trained tables by name, where a width differs from the game's default.
    #[serde(default)]
    pub embed_sizes: BTreeMap<String, usize>,
    /// Number of inputs in the vector, the previous input included.
    #[serde(default = "one")]
    pub queue_depth: usize,
    /// Width of the one-hot of the frame delay; 0 omits the one-hot.
    #[serde(default)]
    pub num_delays: usize,
}

fn one() -> usize {
    1
}

impl Declared {
    /// Default options for a game.
    pub fn new(game: Declaration) -> Self {
        let (layout, embed_sizes) = (Layout::Learned, BTreeMap::new());
        Declared { game, layout, embed_sizes, queue_depth: 1, num_delays: 0 }
    }
}

impl Form {
    pub(super) fn game(&self) -> Arc<Game> {
        match self {
            Form::Vector(n) => Arc::new(Game::vector(*n)),
            Form::Normalised(own) => Arc::new(Game::vector(own.mean.len())),
            Form::Net(spec) => Arc::new(Game::vector(net::numbers(spec))),
            Form::Melee(_) => melee::game().clone(),
            Form::Game(declared) => Arc::new(declared.game.clone().into()),
        }
    }

    pub(super) fn queue_depth(&self) -> usize {
        match self {
            Form::Vector(_) | Form::Normalised(_) | Form::Net(_) => 1,
            Form::Melee(options) => options.queue_depth,
            Form::Game(options) => options.queue_depth,
        }
    }

    pub(super) fn num_delays(&self) -> usize {
        match self {
            Form::Vector(_) | Form::Normalised(_) | Form::Net(_) => 0,
            Form::Melee(options) => options.num_delays,
            Form::Game(options) => options.num_delays,
        }
    }

    pub(super) fn names(&self) -> usize {
        match self {
            Form::Melee(options) if options.layout == Layout::Learned => options.num_names(),
            Form::Melee(_)
            | Form::Vector(_)
            | Form::Normalised(_)
            | Form::Net(_)
            | Form::Game(_) => 0,
        }
    }

    /// The blocks of the vector, and the tables that ids are looked up in.
    pub(super) fn layout(&self, game: &Game) -> layout::Layout {
        let (depth, delays) = (self.queue_depth(), self.num_delays());
        let (blocks, packed) = match self {
            Form::Vector(_) | Form::Normalised(_) | Form::Net(_) => {
                (features(game, false, depth, delays), false)
            }
            Form::Melee(options) => (options.features(), options.layout == Layout::Packed),
            Form::Game(options) => {
                let packed = options.layout == Layout::Packed;
                (features(game, packed, depth, delays), packed)
            }
        };
        let width = |table: &str| match (self, table) {
            (Form::Melee(options), "action") => Some(options.action_embed_size),
            (Form::Melee(options), "character") => Some(options.character_embed_size),
            (Form::Melee(options), "stage") => Some(options.stage_embed_size),
            (Form::Game(options), table) => options.embed_sizes.get(table).copied(),
            _ => None,
        };
        layout::Layout::new(game, blocks, packed, width)
    }

    /// Checks that every number is in range, before any memory is allocated.
    pub(super) fn validate(&self) -> Result<()> {
        match self {
            Form::Vector(n) => size("embedding.vector", *n, 1),
            Form::Normalised(own) => own.validate(),
            Form::Net(spec) => net::check(spec),
            Form::Melee(m) => {
                size("embedding.action_embed_size", m.action_embed_size, 1)?;
                size("embedding.character_embed_size", m.character_embed_size, 1)?;
                size("embedding.stage_embed_size", m.stage_embed_size, 1)?;
                size("embedding.num_player_names", m.num_player_names, 0)?;
                let slots = melee::NUM_PROJECTILES;
                within("embedding.num_projectiles", m.num_projectiles, 0, slots)?;
                let most = if m.previous_action { MAX_QUEUE_DEPTH } else { 1 };
                within("embedding.queue_depth", m.queue_depth, 1, most)?;
                size("embedding.num_delays", m.num_delays, 0)
            }
            Form::Game(options) => {
                options.game.validate()?;
                let tables = &options.game.tables;
                for (name, width) in &options.embed_sizes {
                    if tables.iter().all(|table| table.name != *name) {
                        let known: Vec<_> = tables.iter().map(|table| &*table.name).collect();
                        let (expected, got) = (format!("a table of {known:?}"), name);
                        return Err(crate::Error::mismatch("embedding.embed_sizes", expected, got));
                    }
                    size(&format!("embedding.embed_sizes.{name}"), *width, 1)?;
                }
                within("embedding.queue_depth", options.queue_depth, 1, MAX_QUEUE_DEPTH)?;
                size("embedding.num_delays", options.num_delays, 0)
            }
        }
    }
}
