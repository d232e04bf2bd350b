//! The embedded vector of a Melee frame, as blocks of features. The file is long because the list is one table.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::*;
use crate::feature::{Bands, Block, Class, Feature, Formula, Live, Term};

/// Options of the Melee embedding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Melee {
    /// Order and form of the vector.
    pub layout: Layout,
    /// Number of columns of the table of action states.
    pub action_embed_size: usize,
    /// Number of columns of the table of characters.
    pub character_embed_size: usize,
    /// Number of columns of the table of stages.
    pub stage_embed_size: usize,
    /// Width of the one-hot of player names; 0 omits the block.
    pub num_player_names: usize,
    /// Number of projectile slots; 0 omits the block.
    pub num_projectiles: usize,
    /// Number of inputs in the vector. 1 gives the input that led to the frame. A larger number gives the player's last
    /// inputs, newest first, including inputs that have not affected the frame yet.
    #[serde(default = "one")]
    pub queue_depth: usize,
    /// Width of the one-hot of the frame delay; 0 omits the block. The last class stands for its delay and all longer
    /// delays.
    #[serde(default)]
    pub num_delays: usize,
    /// The features of the previous input; without them their place holds zeros. A queue needs them.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub previous_action: bool,
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

fn is_true(value: &bool) -> bool {
    *value
}

/// Order and form of the embedded vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layout {
    /// Continuous features, then rows of trained tables for the ids.
    Learned,
    /// Ids as plain numbers. For Melee this is the 288-wide vector of the ExPhil application.
    Packed,
}

impl Default for Melee {
    fn default() -> Self {
        Melee {
            layout: Layout::Learned,
            action_embed_size: 64,
            character_embed_size: 64,
            stage_embed_size: 8,
            num_player_names: 0,
            num_projectiles: NUM_PROJECTILES,
            queue_depth: 1,
            num_delays: 0,
            previous_action: true,
        }
    }
}

/// Number of classes of the name one-hot in the packed vector, independent of the options.
const PACKED_NAMES: usize = 112;

impl Melee {
    /// The packed vector with its fixed number of names.
    pub fn packed() -> Self {
        Melee { layout: Layout::Packed, num_player_names: PACKED_NAMES, ..Melee::default() }
    }

    /// Number of classes of the name one-hot.
    pub fn num_names(&self) -> usize {
        match self.layout {
            Layout::Packed => PACKED_NAMES,
            Layout::Learned => self.num_player_names,
        }
    }

    /// The blocks of the vector, in order.
    pub fn features(&self) -> Vec<Block> {
        let packed = self.layout == Layout::Packed;
        let mut blocks = vec![];
        for (prefix, at) in [("own.", OWN), ("opponent.", OPPONENT)] {
            blocks.push(block(prefix, Live::Always, player(at)));
            blocks.push(block(prefix, Live::Where(at + NANA_EXISTS), nana(at)));
        }
        if packed {
            blocks.push(block("", Live::Always, vec![stage()]));
        }
        blocks.push(match self.previous_action {
            true => block("", Live::Where(PREVIOUS), vec![Feature::Previous]),
            false => {
                let zeros = Feature::Zeros { name: "previous".into(), width: CONTROLLER_WIDTH };
                block("", Live::Always, vec![zeros])
            }
        });
        let inputs = self.queue_depth.saturating_sub(1);
        let beyond = vec![Feature::Queue { inputs }, Feature::Delay { width: self.num_delays }];
        blocks.push(block("", Live::Always, beyond));
        blocks.push(block("", Live::Always, vec![names(self.num_names())]));
        blocks.push(block("", Live::Always, scene()));
        let slots = if packed { NUM_PROJECTILES } else { self.num_projectiles };
        for (i, prefix) in PROJECTILE_PREFIXES.iter().enumerate().take(slots) {
            let live = Live::From(PROJECTILES, i as f32 + 1.0);
            blocks.push(block(prefix, live, projectile(PROJECTILES + 1 + i * PROJECTILE_WIDTH)));
        }
        if packed {
            blocks.push(block("", Live::Always, self.packed_ids()));
        }
        blocks
    }

    fn packed_ids(&self) -> Vec<Feature> {
        let row = |name: &'static str, column, ids| {
            value(name, name, Formula::Row(column, Ids::Below(ids)))
        };
        vec![
            row("own.action", OWN + ACTION, ACTIONS),
            row("opponent.action", OPPONENT + ACTION, ACTIONS),
            row("own.character", OWN + CHARACTER, CHARACTERS),
            row("opponent.character", OPPONENT + CHARACTER, CHARACTERS),
            Feature::Zeros { name: "pad".into(), width: self.padding() },
        ]
    }

    /// Number of zeros that pad the packed vector to a multiple of 8 columns, as in the application: 288 in total, and
    /// 336 with a queue of 4 and 9 delay classes.
    fn padding(&self) -> usize {
        const UNPADDED: usize = 287;
        let queue = self.queue_depth.saturating_sub(1).saturating_mul(CONTROLLER_WIDTH);
        let width = queue.saturating_add(self.num_delays).saturating_add(UNPADDED);
        width.checked_next_multiple_of(8).map_or(0, |wide| wide - width)
    }
}

const PROJECTILE_PREFIXES: [&str; NUM_PROJECTILES] =
    ["projectile_0.", "projectile_1.", "projectile_2.", "projectile_3.", "projectile_4."];

/// Half the width of an average stage, in the game's units.
const LEDGE: f32 = 85.0;
const X: usize = place(PLAYER_FIELDS, "x");
const Y: usize = place(PLAYER_FIELDS, "y");
const ACTION: usize = place(PLAYER_FIELDS, "action");
const CHARACTER: usize = place(PLAYER_FIELDS, "character");
const NANA_EXISTS: usize = place(PLAYER_FIELDS, "nana_exists");
const NANA_Y: usize = place(PLAYER_FIELDS, "nana_y");
const NANA_ACTION: usize = place(PLAYER_FIELDS, "nana_action");

/// Categories of action states, given by the last state of each category. The last category is not listed; it holds all
/// greater states.
const CATEGORIES: Bands = &[
    0x0A, 0x0D, 0x14, 0x18, 0x1E, 0x22, 0x2C, 0x36, 0x3C, 0x42, 0x54, 0x60, 0x6B, 0x7F, 0x93, 0xA7,
    0xBB, 0xC7, 0xD3, 0xDF, 0xED, 0xFF, 0x130, 0x160,
];

fn block(prefix: &'static str, live: Live, features: Vec<Feature>) -> Block {
    Block { prefix: prefix.into(), live, features }
}

fn value(name: &'static str, text: &'static str, formula: Formula) -> Feature {
    Feature::Value { name: name.into(), text: text.into(), formula }
}

/// The feature of the field in this column.
fn field(column: usize) -> Feature {
    // Each field has one column. The columns of the previous input lie between two fields and are not counted.
    let behind = if column > PREVIOUS { 1 + CONTROLLER_WIDTH } else { 0 };
    Feature::Field { field: column - behind, column }
}

fn player(at: usize) -> Vec<Feature> {
    let names = [
        "percent",
        "facing",
        "x",
        "y",
        "invulnerable",
        "jumps_left",
        "shield_strength",
        "on_ground",
        "speed_air_x_self",
        "speed_ground_x_self",
        "speed_y_self",
        "speed_x_attack",
        "speed_y_attack",
        "hitstun_frames_left",
        "action_frame",
        "stock",
    ];
    let ledge = Formula::Sum {
        constant: LEDGE,
        terms: vec![Term { column: at + X, factor: -1.0, abs: true }],
        by: LEDGE,
        min: -10.0,
        max: 10.0,
    };
    let ledge = value("ledge_distance", "(85 - abs x) / 85, clamp -10..10", ledge);
    names.iter().map(|name| field(at + place(PLAYER_FIELDS, name))).chain([ledge]).collect()
}

fn nana(at: usize) -> Vec<Feature> {
    let of = |name| field(at + place(PLAYER_FIELDS, name));
    let (action, own) = (at + NANA_ACTION, at + ACTION);
    let within = |these| Formula::InBands(action, CATEGORIES, these);
    vec![
        of("nana_exists"),
        of("nana_x"),
        of("nana_y"),
        of("nana_facing"),
        value("nana_on_ground", "nana_y < 5", Formula::Below(at + NANA_Y, 5.0)),
        of("nana_percent"),
        of("nana_stock"),
        Feature::Zeros { name: "nana_reserved".into(), width: 3 },
        Feature::OneHot {
            name: "nana_category".into(),
            text: "one-hot of the category of nana_action".into(),
            width: CATEGORIES.len() + 1,
            class: Class::Band(action, CATEGORIES),
        },
        value(
            "nana_attacking",
            "category of nana_action in 10..16",
            within(&[10, 11, 12, 13, 14, 15, 16]),
        ),
        value("nana_grabbing", "category of nana_action is 17 or 18", within(&[17, 18])),
        value(
            "nana_can_act",
            "category of nana_action in 2, 3, 4, 6, 7, 9",
            within(&[2, 3, 4, 6, 7, 9]),
        ),
        value(
            "nana_in_step",
            "same category of nana_action and action",
            Formula::SameBand(action, own, CATEGORIES),
        ),
    ]
}

fn stage() -> Feature {
    Feature::OneHot {
        name: "stage".into(),
        text: "one-hot of the stages 2, 3, 8, 28, 31, 32, other".into(),
        width: STAGES.len() + 1,
        class: Class::Row(STAGE, Ids::Listed(Cow::Borrowed(&STAGES))),
    }
}

fn names(width: usize) -> Feature {
    let (name, text) = ("name".into(), "one-hot of name_id, 0 unknown".into());
    Feature::OneHot { name, text, width, class: Class::Known(NAME_ID) }
}

fn scene() -> Vec<Feature> {
    let apart = |coordinate: usize, by| {
        let term = |player, factor| Term { column: player + coordinate, factor, abs: false };
        let terms = vec![term(OPPONENT, 1.0), term(OWN, -1.0)];
        Formula::Sum { constant: 0.0, terms, by, min: -10.0, max: 10.0 }
    };
    let distance = Formula::Distance {
        given: DISTANCE,
        from: [OWN + X, OWN + Y],
        to: [OPPONENT + X, OPPONENT + Y],
        by: 200.0,
        min: 0.0,
        max: 1.5,
    };
    vec![
        value("distance", "distance (from positions where 0) / 200, clamp 0..1.5", distance),
        value("relative_x", "(opponent.x - own.x) / 200, clamp -10..10", apart(X, 200.0)),
        value("relative_y", "(opponent.y - own.y) / 100, clamp -10..10", apart(Y, 100.0)),
        field(FRAME),
    ]
}

fn projectile(at: usize) -> Vec<Feature> {
    let names = ["owner", "x", "y", "type", "speed_x", "speed_y"];
    let fields = names.iter().map(|name| field(at + place(PROJECTILE_FIELDS, name)));
    std::iter::once(value("exists", "1", Formula::One)).chain(fields).collect()
}
