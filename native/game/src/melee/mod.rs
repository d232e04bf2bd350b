//! Melee: its raw row and its controller, as one table.
//!
//! A raw row is one frame from the viewpoint of the own player: both players, the scene, the previous input and up to
//! five projectiles.

mod features;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

pub use features::{Layout, Melee};
use sconce_tensor::Result;

use crate::check::fits;
use crate::declaration::Declaration;
use crate::field::{Field, FieldKind, Mirror, Scale};
use crate::input::{InputKind, InputMirror, InputPart};
use crate::row::Game;
use crate::table::{Ids, Table};

/// Number of action states. In the table, the row after the last action state is "other".
pub const ACTIONS: usize = 399;
/// Number of internal character ids.
pub const CHARACTERS: usize = 33;
/// Stages with a table row of their own, by the id in the game start. All other stages share the row "other".
pub const STAGES: [u16; 6] = [2, 3, 8, 28, 31, 32];
/// Number of stage ids of the versus mode.
pub const STAGE_IDS: usize = 33;
/// Number of projectile slots in a row.
pub const NUM_PROJECTILES: usize = 5;
/// The buttons of a controller, in the order of their head.
pub const BUTTONS: [&str; 8] = ["a", "b", "x", "y", "z", "l", "r", "d_up"];

const UNBOUNDED: (f32, f32) = (f32::NEG_INFINITY, f32::INFINITY);
/// Bounds of scaled positions and speeds, far beyond any blast zone. Limits the effect of a glitch or a wrong unit on
/// the network.
const FAR: (f32, f32) = (-10.0, 10.0);

const fn over(by: f32, (min, max): (f32, f32)) -> Scale {
    Scale::Over { by, min, max }
}

const fn field(
    name: &'static str,
    kind: FieldKind,
    scale: Scale,
    mirror: Mirror,
    meaning: &'static str,
) -> Field {
    let (name, meaning) = (Cow::Borrowed(name), Cow::Borrowed(meaning));
    Field { name, meaning, kind, scale, mirror, table: None, default: None }
}

const fn number(name: &'static str, scale: Scale, meaning: &'static str) -> Field {
    field(name, FieldKind::Number, scale, Mirror::Keep, meaning)
}

/// A field whose sign changes when left and right are swapped.
const fn sideways(name: &'static str, scale: Scale, meaning: &'static str) -> Field {
    field(name, FieldKind::Number, scale, Mirror::Negate, meaning)
}

const fn flag(name: &'static str, meaning: &'static str) -> Field {
    field(name, FieldKind::Flag, Scale::AsIs, Mirror::Keep, meaning)
}

const fn id(name: &'static str, ids: usize, meaning: &'static str) -> Field {
    field(name, FieldKind::Id(ids), Scale::AsIs, Mirror::Keep, meaning)
}

/// A field whose id is looked up in a table.
const fn looked_up(
    name: &'static str,
    ids: usize,
    table: &'static str,
    meaning: &'static str,
) -> Field {
    let (name, meaning) = (Cow::Borrowed(name), Cow::Borrowed(meaning));
    let (kind, table) = (FieldKind::Id(ids), Some(Cow::Borrowed(table)));
    let (scale, mirror, default) = (Scale::AsIs, Mirror::Keep, None);
    Field { name, meaning, kind, scale, mirror, table, default }
}

/// Fields of one player. Distances are in the game's units, speeds in units per frame.
pub const PLAYER_FIELDS: &[Field] = &[
    number("percent", over(100.0, (0.0, 5.0)), "damage, percent"),
    sideways("facing", Scale::Sign, "1 right, -1 left, 0 unknown"),
    sideways("x", over(20.0, FAR), "horizontal position, 0 is the middle of the stage"),
    number("y", over(20.0, FAR), "vertical position"),
    looked_up("action", ACTIONS, "action", "action state"),
    looked_up("character", CHARACTERS, "character", "internal character id"),
    flag("invulnerable", "cannot be hit"),
    number("jumps_left", over(6.0, (0.0, 1.0)), "jumps left"),
    number("shield_strength", over(100.0, (0.0, 1.0)), "shield, 60 when whole"),
    flag("on_ground", "stands on the ground"),
    sideways("speed_air_x_self", over(2.0, FAR), "own horizontal speed in the air"),
    sideways("speed_ground_x_self", over(2.0, FAR), "own horizontal speed on the ground"),
    number("speed_y_self", over(2.0, FAR), "own vertical speed"),
    sideways("speed_x_attack", over(2.0, FAR), "horizontal speed from a hit"),
    number("speed_y_attack", over(2.0, FAR), "vertical speed from a hit"),
    number("hitstun_frames_left", over(120.0, (0.0, 1.0)), "hitstun left, frames"),
    number("action_frame", over(60.0, (0.0, 2.0)), "age of the action state, frames"),
    number("stock", over(4.0, (0.0, 1.0)), "stocks left"),
    flag("nana_exists", "has a partner on the stage"),
    sideways("nana_x", over(20.0, FAR), "partner: horizontal position"),
    number("nana_y", over(20.0, FAR), "partner: vertical position"),
    sideways("nana_facing", Scale::Sign, "partner: 1 right, -1 left, 0 unknown"),
    number("nana_percent", over(100.0, (0.0, 5.0)), "partner: damage, percent"),
    number("nana_stock", over(4.0, (0.0, 1.0)), "partner: stocks left"),
    id("nana_action", ACTIONS, "partner: action state"),
];

/// Fields that both players share.
const FRAME_FIELDS: &[Field] = &[
    looked_up("stage", STAGE_IDS, "stage", "stage id as the game start gives it"),
    number("frame", over(28800.0, (0.0, 1.0)), "frame number, 60 a second, 0 at GO"),
    number("distance", over(200.0, (0.0, 1.5)), "between the players, 0 to take it from positions"),
    number("name_id", Scale::AsIs, "player name or style, 0 unknown"),
];

const COUNT_FIELDS: &[Field] = &[number(
    "projectile_count",
    Scale::AsIs,
    "projectiles on the stage, of which five have slots",
)];

/// Fields of one projectile slot.
const PROJECTILE_FIELDS: &[Field] = &[
    field(
        "owner",
        FieldKind::Id(3),
        over(2.0, UNBOUNDED),
        Mirror::Keep,
        "0 nobody, 1 own player, 2 opponent",
    ),
    number("type", over(100.0, UNBOUNDED), "item type"),
    sideways("x", over(20.0, UNBOUNDED), "horizontal position"),
    number("y", over(20.0, UNBOUNDED), "vertical position"),
    sideways("speed_x", over(2.0, UNBOUNDED), "horizontal speed"),
    number("speed_y", over(2.0, UNBOUNDED), "vertical speed"),
];

/// Parts of the controller: eight buttons, two sticks, a trigger.
fn controller_parts() -> Vec<InputPart> {
    let axis = |name: &'static str, mirror, rest, meaning: &'static str| InputPart {
        name: name.into(),
        meaning: meaning.into(),
        kind: InputKind::Axis { min: 0.0, max: 1.0, classes: 17 },
        mirror,
        scale: Scale::Centred,
        rest,
    };
    let (keep, flip) = (InputMirror::Keep, InputMirror::Flip);
    let buttons = InputPart {
        name: "buttons".into(),
        meaning: "held".into(),
        kind: InputKind::Flags(BUTTONS.map(Cow::Borrowed).to_vec().into()),
        mirror: keep.clone(),
        scale: Scale::AsIs,
        rest: Some(0.0),
    };
    let shoulder = InputPart {
        kind: InputKind::Axis { min: 0.0, max: 1.0, classes: 5 },
        scale: Scale::AsIs,
        ..axis("shoulder", keep.clone(), None, "trigger, 0 to 1")
    };
    vec![
        buttons,
        axis("main_x", flip.clone(), Some(0.5), "main stick, 0 left to 1 right"),
        axis("main_y", keep.clone(), Some(0.5), "main stick, 0 down to 1 up"),
        axis("c_x", flip, None, "C-stick, 0 left to 1 right"),
        axis("c_y", keep, None, "C-stick, 0 down to 1 up"),
        shoulder,
    ]
}

/// The declaration of Melee, built once from constant tables.
pub fn game() -> &'static Arc<Game> {
    static GAME: OnceLock<Arc<Game>> = OnceLock::new();
    GAME.get_or_init(|| Arc::new(declaration().into()))
}

fn declaration() -> Declaration {
    let named = |(prefix, fields): (String, &[Field])| -> Vec<Field> {
        let under = |field: &Field| Field {
            name: format!("{prefix}{}", field.name).into(),
            ..field.clone()
        };
        fields.iter().map(under).collect()
    };
    let slots = (0..NUM_PROJECTILES).map(|i| (format!("projectile_{i}."), PROJECTILE_FIELDS));
    let sections = [
        ("own.".to_owned(), PLAYER_FIELDS),
        ("opponent.".to_owned(), PLAYER_FIELDS),
        (String::new(), FRAME_FIELDS),
        (String::new(), COUNT_FIELDS),
    ];
    let table = |name: &'static str, ids, width| Table { name: name.into(), ids, width };
    Declaration {
        name: "melee".into(),
        version: 1,
        fields: sections.into_iter().chain(slots).flat_map(named).collect(),
        tables: vec![
            table("action", Ids::Below(ACTIONS), 64),
            table("character", Ids::Below(CHARACTERS), 64),
            table("stage", Ids::Listed(STAGES.as_slice().into()), 8),
        ],
        input: controller_parts(),
        previous_after: Some(2 * PLAYER_WIDTH + FRAME_FIELDS.len()),
    }
}

/// Index of a field in a list. Evaluated at compile time; an unknown name is a compile error.
const fn place(fields: &[Field], name: &str) -> usize {
    let mut i = 0;
    while i < fields.len() {
        if let Cow::Borrowed(known) = &fields[i].name
            && same(known.as_bytes(), name.as_bytes())
        {
            return i;
        }
        i += 1;
    }
    panic!("no field of this name")
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// Number of columns of one player.
pub const PLAYER_WIDTH: usize = PLAYER_FIELDS.len();
/// First column of the own player.
pub const OWN: usize = 0;
/// First column of the opponent.
pub const OPPONENT: usize = OWN + PLAYER_WIDTH;
const SCENE: usize = OPPONENT + PLAYER_WIDTH;
/// Column of the stage id.
pub const STAGE: usize = SCENE + place(FRAME_FIELDS, "stage");
/// Column of the frame number.
pub const FRAME: usize = SCENE + place(FRAME_FIELDS, "frame");
/// Column of the distance between the players.
pub const DISTANCE: usize = SCENE + place(FRAME_FIELDS, "distance");
/// Column of the player name or style.
pub const NAME_ID: usize = SCENE + place(FRAME_FIELDS, "name_id");
/// Column of `prev_exists`. The values of the controller follow this column.
pub const PREVIOUS: usize = SCENE + FRAME_FIELDS.len();
/// Number of raw values of a controller: eight buttons, main x and y, C x and y, shoulder.
pub const CONTROLLER_WIDTH: usize = BUTTONS.len() + 5;
/// Column of `projectile_count`. The projectile slots follow this column.
pub const PROJECTILES: usize = PREVIOUS + 1 + CONTROLLER_WIDTH;
/// Number of columns of one projectile slot.
pub const PROJECTILE_WIDTH: usize = PROJECTILE_FIELDS.len();
/// Number of columns of a raw row.
pub const RAW_WIDTH: usize = PROJECTILES + 1 + NUM_PROJECTILES * PROJECTILE_WIDTH;

/// Sets the previous input of a row to the raw values of a controller.
pub fn set_previous(raw: &mut [f32], controller: &[f32]) -> Result<()> {
    fits("controller", CONTROLLER_WIDTH, controller.len())?;
    game().set_previous(raw, controller)
}
