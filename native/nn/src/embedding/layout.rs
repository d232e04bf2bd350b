//! The embedded vector of a Melee frame: a list of blocks that both writes it and describes it. The file is long because
//! that list is one table.

use std::ops::Range;

use super::melee::{
    self, ACTIONS, CHARACTERS, CONTROLLER_WIDTH, DISTANCE, FRAME, FRAME_FIELDS, Field, FieldKind,
    NAME_ID, NUM_PROJECTILES, OPPONENT, OWN, PLAYER_FIELDS, PREVIOUS, PREVIOUS_FIELDS,
    PROJECTILE_FIELDS, PROJECTILE_WIDTH, PROJECTILES, Row, STAGE, STAGES, place,
};
use super::{Feature, IdSlot};
use crate::Result;
use crate::spec::{Layout, Melee};

/// A stretch of the vector that stands or falls with one condition.
struct Block {
    prefix: &'static str,
    /// Column of the raw row that its parts count from.
    at: usize,
    part_of: PartOf,
    live: Live,
    parts: &'static [Part],
    /// Parts of one number, counted once: each frame asks how wide the vector is.
    singles: usize,
}

/// Which vectors have the block.
enum PartOf {
    All,
    Packed,
    WithNames,
    /// Those with more controllers than the previous action.
    WithQueue,
    WithDelays,
    /// Those with so many projectile slots or more.
    WithProjectiles(usize),
}

/// Which frames give the block its values; the others give it zeros.
enum Live {
    Always,
    /// Where this column is not 0.
    Where(usize),
    /// Where there are this many projectiles or more.
    Projectiles(usize),
}

enum Part {
    /// A field of the raw row with the scale of its table.
    Field {
        field: &'static Field,
        offset: usize,
    },
    /// A number from several columns.
    Value {
        name: &'static str,
        formula: &'static str,
        value: fn(&Row, usize) -> f32,
    },
    OneHot {
        name: &'static str,
        formula: &'static str,
        width: fn(&Melee) -> usize,
        /// The class of a row, in so many classes.
        class: fn(&Row, usize, usize) -> usize,
    },
    Zeros {
        name: &'static str,
        width: fn(&Melee) -> usize,
    },
    /// What a raw row does not say: zeros until somebody writes it, see [`queue`] and [`delay`].
    Beyond {
        name: &'static str,
        formula: &'static str,
        width: fn(&Melee) -> usize,
    },
}

const fn part(fields: &'static [Field], name: &str) -> Part {
    let offset = place(fields, name);
    Part::Field { field: &fields[offset], offset }
}

const fn player(name: &str) -> Part {
    part(PLAYER_FIELDS, name)
}

const fn previous(name: &str) -> Part {
    part(PREVIOUS_FIELDS, name)
}

const fn projectile(name: &str) -> Part {
    part(PROJECTILE_FIELDS, name)
}

/// Half the width of an average stage, in the game's units.
const LEDGE: f32 = 85.0;
const X: usize = place(PLAYER_FIELDS, "x");
const Y: usize = place(PLAYER_FIELDS, "y");
const ACTION: usize = place(PLAYER_FIELDS, "action");
const CHARACTER: usize = place(PLAYER_FIELDS, "character");
const NANA_EXISTS: usize = place(PLAYER_FIELDS, "nana_exists");
const NANA_Y: usize = place(PLAYER_FIELDS, "nana_y");
const NANA_ACTION: usize = place(PLAYER_FIELDS, "nana_action");

const PLAYER: &[Part] = &[
    player("percent"),
    player("facing"),
    player("x"),
    player("y"),
    player("invulnerable"),
    player("jumps_left"),
    player("shield_strength"),
    player("on_ground"),
    player("speed_air_x_self"),
    player("speed_ground_x_self"),
    player("speed_y_self"),
    player("speed_x_attack"),
    player("speed_y_attack"),
    player("hitstun_frames_left"),
    player("action_frame"),
    player("stock"),
    Part::Value {
        name: "ledge_distance",
        formula: "(85 - abs x) / 85, clamp -10..10",
        value: |row, at| ((LEDGE - row[at + X].abs()) / LEDGE).clamp(-10.0, 10.0),
    },
];

const NANA: &[Part] = &[
    player("nana_exists"),
    player("nana_x"),
    player("nana_y"),
    player("nana_facing"),
    Part::Value {
        name: "nana_on_ground",
        formula: "nana_y < 5",
        value: |row, at| flag(row[at + NANA_Y] < 5.0),
    },
    player("nana_percent"),
    player("nana_stock"),
    Part::Zeros { name: "nana_reserved", width: |_| 3 },
    Part::OneHot {
        name: "nana_category",
        formula: "one-hot of the category of nana_action",
        width: |_| CATEGORY_ENDS.len() + 1,
        class: |row, at, _| category(row[at + NANA_ACTION]),
    },
    Part::Value {
        name: "nana_attacking",
        formula: "category of nana_action in 10..16",
        value: |row, at| flag(matches!(category(row[at + NANA_ACTION]), 10..=16)),
    },
    Part::Value {
        name: "nana_grabbing",
        formula: "category of nana_action is 17 or 18",
        value: |row, at| flag(matches!(category(row[at + NANA_ACTION]), 17 | 18)),
    },
    Part::Value {
        name: "nana_can_act",
        formula: "category of nana_action in 2, 3, 4, 6, 7, 9",
        value: |row, at| flag(matches!(category(row[at + NANA_ACTION]), 2 | 3 | 4 | 6 | 7 | 9)),
    },
    Part::Value {
        name: "nana_in_step",
        formula: "same category of nana_action and action",
        value: |row, at| flag(category(row[at + NANA_ACTION]) == category(row[at + ACTION])),
    },
];

const SCENE: &[Part] = &[
    Part::Value {
        name: "distance",
        formula: "distance (from positions where 0) / 200, clamp 0..1.5",
        value: distance,
    },
    Part::Value {
        name: "relative_x",
        formula: "(opponent.x - own.x) / 200, clamp -10..10",
        value: |row, _| ((row[OPPONENT + X] - row[OWN + X]) / 200.0).clamp(-10.0, 10.0),
    },
    Part::Value {
        name: "relative_y",
        formula: "(opponent.y - own.y) / 100, clamp -10..10",
        value: |row, _| ((row[OPPONENT + Y] - row[OWN + Y]) / 100.0).clamp(-10.0, 10.0),
    },
    Part::Field { field: &FRAME_FIELDS[place(FRAME_FIELDS, "frame")], offset: FRAME },
];

const PREVIOUS_ACTION: &[Part] = &[
    previous("prev_buttons.a"),
    previous("prev_buttons.b"),
    previous("prev_buttons.x"),
    previous("prev_buttons.y"),
    previous("prev_buttons.z"),
    previous("prev_buttons.l"),
    previous("prev_buttons.r"),
    previous("prev_buttons.d_up"),
    previous("prev_main_x"),
    previous("prev_main_y"),
    previous("prev_c_x"),
    previous("prev_c_y"),
    previous("prev_shoulder"),
];

const QUEUE: &[Part] = &[Part::Beyond {
    name: "queue",
    formula: "inputs before the newest, newest first, each as prev_*; 0 where there is none",
    width: |options| (options.queue_depth - 1) * CONTROLLER_WIDTH,
}];

const DELAY: &[Part] = &[Part::Beyond {
    name: "delay_id",
    formula: "one-hot of the frame delay, the last class that delay or a longer one",
    width: |options| options.num_delays,
}];

const PROJECTILE: &[Part] = &[
    Part::Value { name: "exists", formula: "1", value: |_, _| 1.0 },
    projectile("owner"),
    projectile("x"),
    projectile("y"),
    projectile("type"),
    projectile("speed_x"),
    projectile("speed_y"),
];

const STAGE_ONE_HOT: &[Part] = &[Part::OneHot {
    name: "stage",
    formula: "one-hot of the stages 2, 3, 8, 28, 31, 32, other",
    width: |_| STAGES.len() + 1,
    class: |row, _, _| melee::stage_row(row[STAGE]),
}];

const NAMES: &[Part] = &[Part::OneHot {
    name: "name",
    formula: "one-hot of name_id, 0 unknown",
    width: num_names,
    class: |row, _, names| match melee::id_row(row[NAME_ID], names) {
        known if known < names => known,
        _ => 0,
    },
}];

const PACKED_IDS: &[Part] = &[
    Part::Value {
        name: "own.action",
        formula: "own.action",
        value: |row, _| melee::id_row(row[OWN + ACTION], ACTIONS) as f32,
    },
    Part::Value {
        name: "opponent.action",
        formula: "opponent.action",
        value: |row, _| melee::id_row(row[OPPONENT + ACTION], ACTIONS) as f32,
    },
    Part::Value {
        name: "own.character",
        formula: "own.character",
        value: |row, _| melee::id_row(row[OWN + CHARACTER], CHARACTERS) as f32,
    },
    Part::Value {
        name: "opponent.character",
        formula: "opponent.character",
        value: |row, _| melee::id_row(row[OPPONENT + CHARACTER], CHARACTERS) as f32,
    },
    Part::Zeros { name: "pad", width: padding },
];

const fn block(
    prefix: &'static str,
    at: usize,
    part_of: PartOf,
    live: Live,
    parts: &'static [Part],
) -> Block {
    let (mut singles, mut i) = (0, 0);
    while i < parts.len() {
        singles += parts[i].is_single() as usize;
        i += 1;
    }
    Block { prefix, at, part_of, live, parts, singles }
}

const fn slot(prefix: &'static str, index: usize) -> Block {
    let at = PROJECTILES + 1 + index * PROJECTILE_WIDTH;
    let part_of = PartOf::WithProjectiles(index + 1);
    block(prefix, at, part_of, Live::Projectiles(index + 1), PROJECTILE)
}

/// The vector, in order.
static BLOCKS: [Block; 11 + NUM_PROJECTILES] = [
    block("own.", OWN, PartOf::All, Live::Always, PLAYER),
    block("own.", OWN, PartOf::All, Live::Where(OWN + NANA_EXISTS), NANA),
    block("opponent.", OPPONENT, PartOf::All, Live::Always, PLAYER),
    block("opponent.", OPPONENT, PartOf::All, Live::Where(OPPONENT + NANA_EXISTS), NANA),
    block("", 0, PartOf::Packed, Live::Always, STAGE_ONE_HOT),
    block("", PREVIOUS, PartOf::All, Live::Where(PREVIOUS), PREVIOUS_ACTION),
    block("", 0, PartOf::WithQueue, Live::Always, QUEUE),
    block("", 0, PartOf::WithDelays, Live::Always, DELAY),
    block("", 0, PartOf::WithNames, Live::Always, NAMES),
    block("", 0, PartOf::All, Live::Always, SCENE),
    slot("projectile_0.", 0),
    slot("projectile_1.", 1),
    slot("projectile_2.", 2),
    slot("projectile_3.", 3),
    slot("projectile_4.", 4),
    block("", 0, PartOf::Packed, Live::Always, PACKED_IDS),
];

/// Names of the packed vector, whatever the options say.
const PACKED_NAMES: usize = 112;

/// Zeros that make the packed vector a multiple of 8 numbers, as the application has it: 288, and 336
/// with a queue of 4 and a delay id of 9.
fn padding(options: &Melee) -> usize {
    const UNPADDED: usize = 287;
    let width = UNPADDED + (options.queue_depth - 1) * CONTROLLER_WIDTH + options.num_delays;
    width.next_multiple_of(8) - width
}

fn num_names(options: &Melee) -> usize {
    match options.layout {
        Layout::Packed => PACKED_NAMES,
        Layout::Learned => options.num_player_names,
    }
}

impl PartOf {
    fn includes(&self, options: &Melee) -> bool {
        let packed = options.layout == Layout::Packed;
        match *self {
            PartOf::All => true,
            PartOf::Packed => packed,
            PartOf::WithNames => num_names(options) > 0,
            PartOf::WithQueue => options.queue_depth > 1,
            PartOf::WithDelays => options.num_delays > 0,
            PartOf::WithProjectiles(n) => packed || n <= options.num_projectiles,
        }
    }
}

impl Live {
    fn holds(&self, row: &Row) -> bool {
        match *self {
            Live::Always => true,
            Live::Where(column) => row[column] != 0.0,
            Live::Projectiles(n) => row[PROJECTILES] >= n as f32,
        }
    }

    /// What a formula adds to say so.
    fn condition(&self) -> String {
        match *self {
            Live::Always => String::new(),
            Live::Where(column) => format!("; 0 without {}", melee::column_name(column)),
            Live::Projectiles(n) => format!("; 0 with fewer than {n} projectiles"),
        }
    }
}

impl Part {
    fn name(&self) -> &'static str {
        match self {
            Part::Field { field, .. } => field.name,
            Part::Value { name, .. }
            | Part::OneHot { name, .. }
            | Part::Zeros { name, .. }
            | Part::Beyond { name, .. } => name,
        }
    }

    const fn is_single(&self) -> bool {
        matches!(self, Part::Field { .. } | Part::Value { .. })
    }

    fn width(&self, options: &Melee) -> usize {
        match self {
            Part::Field { .. } | Part::Value { .. } => 1,
            Part::OneHot { width, .. } | Part::Zeros { width, .. } | Part::Beyond { width, .. } => {
                width(options)
            }
        }
    }

    fn formula(&self) -> String {
        match self {
            Part::Field { field, .. } => field.scale.formula(field.name),
            Part::Value { formula, .. }
            | Part::OneHot { formula, .. }
            | Part::Beyond { formula, .. } => (*formula).to_owned(),
            Part::Zeros { .. } => "0".to_owned(),
        }
    }

    fn write(&self, row: &Row, at: usize, out: &mut [f32]) {
        match self {
            Part::Field { field, offset } => out.fill(field.scale.apply(row[at + offset])),
            Part::Value { value, .. } => out.fill(value(row, at)),
            Part::Zeros { .. } | Part::Beyond { .. } => out.fill(0.0),
            Part::OneHot { class, .. } => {
                let class = class(row, at, out.len());
                out.fill(0.0);
                if let Some(one) = out.get_mut(class) {
                    *one = 1.0;
                }
            }
        }
    }
}

impl Block {
    fn width(&self, options: &Melee) -> usize {
        if self.singles == self.parts.len() {
            return self.singles;
        }
        let others = self.parts.iter().filter(|part| !part.is_single());
        self.singles + others.map(|part| part.width(options)).sum::<usize>()
    }
}

fn blocks(options: &Melee) -> impl Iterator<Item = &'static Block> {
    BLOCKS.iter().filter(|block| block.part_of.includes(options))
}

/// Where the controllers stand in the vector, the newest first.
pub(super) fn queue(options: &Melee) -> Range<usize> {
    let before = blocks(options).take_while(|block| block.at != PREVIOUS);
    let start = before.map(|block| block.width(options)).sum();
    start..start + options.queue_depth * CONTROLLER_WIDTH
}

/// Where the one-hot of the frame delay stands in the vector.
pub(super) fn delay(options: &Melee) -> Range<usize> {
    let start = queue(options).end;
    start..start + options.num_delays
}

/// Writes the features of a controller's raw numbers.
pub(super) fn write_controller(controller: &[f32; CONTROLLER_WIDTH], out: &mut [f32]) {
    for ((out, field), &value) in out.iter_mut().zip(&PREVIOUS_FIELDS[1..]).zip(controller) {
        *out = field.scale.apply(value);
    }
}

/// Width of the continuous features.
pub(super) fn width(options: &Melee) -> usize {
    blocks(options).map(|block| block.width(options)).sum()
}

/// Writes the continuous features; `out` is as wide as [`width`] says.
pub(super) fn write(options: &Melee, row: &Row, out: &mut [f32]) {
    let mut rest = out;
    for block in blocks(options) {
        if block.live.holds(row) {
            for part in block.parts {
                let (here, tail) = rest.split_at_mut(part.width(options));
                part.write(row, block.at, here);
                rest = tail;
            }
        } else {
            let (here, tail) = rest.split_at_mut(block.width(options));
            here.fill(0.0);
            rest = tail;
        }
    }
}

/// The blocks and the rows looked up after them, with their offsets.
pub(super) fn schema(options: &Melee) -> Vec<Feature> {
    let mut features: Vec<Feature> = Vec::new();
    let mut add = |name: String, width: usize, formula: String| {
        let offset = features.last().map_or(0, |f| f.offset + f.width);
        features.push(Feature { name, offset, width, formula });
    };
    for block in blocks(options) {
        for part in block.parts {
            let name = format!("{}{}", block.prefix, part.name());
            let formula = format!("{}{}", part.formula(), block.live.condition());
            match part.width(options) {
                0 => (),
                width => add(name, width, formula),
            }
        }
    }
    for slot in id_slots(options) {
        let other = slot.rows - 1;
        add(
            slot.name.into(),
            slot.width,
            format!("row of {}_embedding, {other} other", slot.table),
        );
    }
    features
}

/// A trained table.
#[derive(Clone, Copy)]
enum Lookup {
    Action,
    Character,
    Stage,
}

/// An id of the learned layout and the column that it stands in.
pub(super) struct Slot {
    name: &'static str,
    lookup: Lookup,
    column: usize,
}

static SLOTS: [Slot; 5] = [
    Slot { name: "own.action", lookup: Lookup::Action, column: OWN + ACTION },
    Slot { name: "opponent.action", lookup: Lookup::Action, column: OPPONENT + ACTION },
    Slot { name: "own.character", lookup: Lookup::Character, column: OWN + CHARACTER },
    Slot { name: "opponent.character", lookup: Lookup::Character, column: OPPONENT + CHARACTER },
    Slot { name: "stage", lookup: Lookup::Stage, column: STAGE },
];

impl Lookup {
    fn name(self) -> &'static str {
        match self {
            Lookup::Action => "action",
            Lookup::Character => "character",
            Lookup::Stage => "stage",
        }
    }

    /// Ids with a row of their own.
    fn ids(self) -> usize {
        match self {
            Lookup::Action => ACTIONS,
            Lookup::Character => CHARACTERS,
            Lookup::Stage => STAGES.len(),
        }
    }

    fn width(self, options: &Melee) -> usize {
        match self {
            Lookup::Action => options.action_embed_size,
            Lookup::Character => options.character_embed_size,
            Lookup::Stage => options.stage_embed_size,
        }
    }

    fn row(self, value: f32) -> usize {
        match self {
            Lookup::Stage => melee::stage_row(value),
            Lookup::Action | Lookup::Character => melee::id_row(value, self.ids()),
        }
    }
}

/// The ids of a layout: the packed one has them among its numbers.
pub(super) fn slots(options: &Melee) -> &'static [Slot] {
    match options.layout {
        Layout::Learned => &SLOTS,
        Layout::Packed => &[],
    }
}

pub(super) fn id_slots(options: &Melee) -> Vec<IdSlot> {
    let describe = |slot: &Slot| IdSlot {
        name: slot.name,
        table: slot.lookup.name(),
        rows: slot.lookup.ids() + 1,
        width: slot.lookup.width(options),
    };
    slots(options).iter().map(describe).collect()
}

/// Writes the ids; `out` is as long as [`slots`].
pub(super) fn write_ids(options: &Melee, row: &Row, out: &mut [u32]) {
    for (id, slot) in out.iter_mut().zip(slots(options)) {
        *id = slot.lookup.row(row[slot.column]) as u32;
    }
}

/// Checks a live frame: every value is one of its field's, the name one of the vector's.
pub(super) fn check(options: &Melee, row: &Row) -> Result<()> {
    melee::check(row)?;
    match num_names(options) {
        0 => Ok(()),
        rows => FieldKind::Id { rows }.check(row[NAME_ID], || "name_id".into()),
    }
}

fn distance(row: &Row, _at: usize) -> f32 {
    let (dx, dy) = (row[OPPONENT + X] - row[OWN + X], row[OPPONENT + Y] - row[OWN + Y]);
    let given = row[DISTANCE];
    let distance = if given > 0.0 { given } else { (dx * dx + dy * dy).sqrt() };
    (distance / 200.0).clamp(0.0, 1.5)
}

fn flag(value: bool) -> f32 {
    f32::from(u8::from(value))
}

/// The last action state of each category but the last, which holds the rest.
const CATEGORY_ENDS: [u16; 24] = [
    0x0A, 0x0D, 0x14, 0x18, 0x1E, 0x22, 0x2C, 0x36, 0x3C, 0x42, 0x54, 0x60, 0x6B, 0x7F, 0x93, 0xA7,
    0xBB, 0xC7, 0xD3, 0xDF, 0xED, 0xFF, 0x130, 0x160,
];

/// Category of an action state.
fn category(action: f32) -> usize {
    CATEGORY_ENDS.partition_point(|&end| f32::from(end) < action)
}
