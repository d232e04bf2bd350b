//! The Melee frame: one raw row, as tables from which columns, ranges, mirror and embedding follow.
//!
//! A raw row is what one frame is from the viewpoint of the own player, in the game's own units:
//! both players, the scene, the previous action and up to five projectiles. Ids are whole numbers,
//! which f32 holds exactly.

use crate::spec::{Heads, MAX_PROJECTILES};
use crate::{Error, Result};

/// One number of a raw row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field {
    pub name: &'static str,
    /// What it is, with its unit.
    pub meaning: &'static str,
    pub kind: FieldKind,
    pub scale: Scale,
    pub mirror: Mirror,
}

/// The values a field can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// Any finite number.
    Number,
    /// 0 to 1.
    Unit,
    /// 0 or 1.
    Flag,
    /// A whole number below `rows`.
    Id { rows: usize },
}

/// How a value becomes a feature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    AsIs,
    /// -1, 0 or 1.
    Sign,
    /// From 0..1 to -1..1.
    Centred,
    Over {
        by: f32,
        min: f32,
        max: f32,
    },
}

/// What swapping left and right does to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mirror {
    Keep,
    Negate,
    /// A stick axis: 1 - v.
    Axis,
}

impl Scale {
    pub fn apply(self, value: f32) -> f32 {
        match self {
            Scale::AsIs => value,
            Scale::Sign if value > 0.0 => 1.0,
            Scale::Sign if value < 0.0 => -1.0,
            Scale::Sign => 0.0,
            Scale::Centred => (value - 0.5) * 2.0,
            Scale::Over { by, min, max } => (value / by).clamp(min, max),
        }
    }

    pub fn formula(self, name: &str) -> String {
        match self {
            Scale::AsIs => name.to_owned(),
            Scale::Sign => format!("sign of {name}"),
            Scale::Centred => format!("({name} - 0.5) * 2"),
            Scale::Over { by, max: f32::INFINITY, .. } => format!("{name} / {by}"),
            Scale::Over { by, min, max } => format!("{name} / {by}, clamp {min}..{max}"),
        }
    }
}

impl FieldKind {
    /// An error that names the field, unless the value is one of its own.
    pub fn check(self, value: f32, name: impl FnOnce() -> String) -> Result<()> {
        let max = match self {
            FieldKind::Number => f32::INFINITY,
            FieldKind::Unit | FieldKind::Flag => 1.0,
            FieldKind::Id { rows } => rows.saturating_sub(1) as f32,
        };
        let whole = matches!(self, FieldKind::Flag | FieldKind::Id { .. });
        if !value.is_finite() {
            return Err(Error::NonFinite { what: name(), value: value.into() });
        }
        if self != FieldKind::Number && !(0.0..=max).contains(&value) {
            return Err(Error::out_of_range(name(), value.into(), 0.0, max.into()));
        }
        if whole && value.fract() != 0.0 {
            return Err(Error::mismatch(name(), format!("a whole number of 0..{max}"), value));
        }
        Ok(())
    }
}

impl Mirror {
    fn apply(self, value: f32) -> f32 {
        match self {
            Mirror::Keep => value,
            Mirror::Negate => -value,
            Mirror::Axis => 1.0 - value,
        }
    }
}

/// Action states; the row after the last of its table is "other".
pub const ACTIONS: usize = 399;
/// Internal character ids.
pub const CHARACTERS: usize = 33;
/// Stages with a row of their own, as the game start names them; every other one is "other".
pub const STAGES: [u16; 6] = [2, 3, 8, 28, 31, 32];
/// Stage ids of the versus mode.
pub const STAGE_IDS: usize = 33;
/// Projectile slots of a row.
pub const NUM_PROJECTILES: usize = MAX_PROJECTILES;
/// The buttons of a controller, in the order of their head.
pub const BUTTONS: [&str; 8] = ["a", "b", "x", "y", "z", "l", "r", "d_up"];

const UNBOUNDED: (f32, f32) = (f32::NEG_INFINITY, f32::INFINITY);
/// Far beyond any blast zone: holds back what a glitch or a wrong unit would do to the network.
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
    Field { name, meaning, kind, scale, mirror }
}

const fn number(name: &'static str, scale: Scale, meaning: &'static str) -> Field {
    field(name, FieldKind::Number, scale, Mirror::Keep, meaning)
}

/// A number that changes its sign when left and right are swapped.
const fn sideways(name: &'static str, scale: Scale, meaning: &'static str) -> Field {
    field(name, FieldKind::Number, scale, Mirror::Negate, meaning)
}

const fn flag(name: &'static str, meaning: &'static str) -> Field {
    field(name, FieldKind::Flag, Scale::AsIs, Mirror::Keep, meaning)
}

const fn id(name: &'static str, rows: usize, meaning: &'static str) -> Field {
    field(name, FieldKind::Id { rows }, Scale::AsIs, Mirror::Keep, meaning)
}

const fn axis(name: &'static str, mirror: Mirror, meaning: &'static str) -> Field {
    field(name, FieldKind::Unit, Scale::Centred, mirror, meaning)
}

/// One player. Distances are in the game's units, speeds in units a frame.
pub const PLAYER_FIELDS: &[Field] = &[
    number("percent", over(100.0, (0.0, 5.0)), "damage, percent"),
    sideways("facing", Scale::Sign, "1 right, -1 left, 0 unknown"),
    sideways("x", over(20.0, FAR), "horizontal position, 0 is the middle of the stage"),
    number("y", over(20.0, FAR), "vertical position"),
    id("action", ACTIONS, "action state"),
    id("character", CHARACTERS, "internal character id"),
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

/// What the players share.
pub const FRAME_FIELDS: &[Field] = &[
    id("stage", STAGE_IDS, "stage id as the game start gives it"),
    number("frame", over(28800.0, (0.0, 1.0)), "frame number, 60 a second, 0 at GO"),
    number("distance", over(200.0, (0.0, 1.5)), "between the players, 0 to take it from positions"),
    number("name_id", Scale::AsIs, "player name or style, 0 unknown"),
];

/// The controller input that led to this frame.
pub const PREVIOUS_FIELDS: &[Field] = &[
    flag("prev_exists", "there is a previous action"),
    flag("prev_buttons.a", "A held"),
    flag("prev_buttons.b", "B held"),
    flag("prev_buttons.x", "X held"),
    flag("prev_buttons.y", "Y held"),
    flag("prev_buttons.z", "Z held"),
    flag("prev_buttons.l", "L held"),
    flag("prev_buttons.r", "R held"),
    flag("prev_buttons.d_up", "D-pad up held"),
    axis("prev_main_x", Mirror::Axis, "main stick, 0 left to 1 right"),
    axis("prev_main_y", Mirror::Keep, "main stick, 0 down to 1 up"),
    axis("prev_c_x", Mirror::Axis, "C-stick, 0 left to 1 right"),
    axis("prev_c_y", Mirror::Keep, "C-stick, 0 down to 1 up"),
    field("prev_shoulder", FieldKind::Unit, Scale::AsIs, Mirror::Keep, "trigger, 0 to 1"),
];

const COUNT_FIELDS: &[Field] = &[number(
    "projectile_count",
    Scale::AsIs,
    "projectiles on the stage, of which five have slots",
)];

/// One projectile slot.
pub const PROJECTILE_FIELDS: &[Field] = &[
    field(
        "owner",
        FieldKind::Id { rows: 3 },
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

/// A stretch of the row; the prefix stands before the names of its fields.
struct Section {
    prefix: &'static str,
    fields: &'static [Field],
}

const fn section(prefix: &'static str, fields: &'static [Field]) -> Section {
    Section { prefix, fields }
}

/// The whole row, in order.
const SECTIONS: [Section; 5 + NUM_PROJECTILES] = [
    section("own.", PLAYER_FIELDS),
    section("opponent.", PLAYER_FIELDS),
    section("", FRAME_FIELDS),
    section("", PREVIOUS_FIELDS),
    section("", COUNT_FIELDS),
    section("projectile_0.", PROJECTILE_FIELDS),
    section("projectile_1.", PROJECTILE_FIELDS),
    section("projectile_2.", PROJECTILE_FIELDS),
    section("projectile_3.", PROJECTILE_FIELDS),
    section("projectile_4.", PROJECTILE_FIELDS),
];

/// First column of a section.
const fn start(section: usize) -> usize {
    let (mut at, mut i) = (0, 0);
    while i < section {
        at += SECTIONS[i].fields.len();
        i += 1;
    }
    at
}

/// Place of a field in its table. Runs in the compiler, which refuses a name that is not there.
pub(super) const fn place(fields: &[Field], name: &str) -> usize {
    let mut i = 0;
    while i < fields.len() {
        if same(fields[i].name.as_bytes(), name.as_bytes()) {
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

pub const PLAYER_WIDTH: usize = PLAYER_FIELDS.len();
/// The own player's first column.
pub const OWN: usize = start(0);
pub const OPPONENT: usize = start(1);
pub const STAGE: usize = start(2) + place(FRAME_FIELDS, "stage");
pub const FRAME: usize = start(2) + place(FRAME_FIELDS, "frame");
pub const DISTANCE: usize = start(2) + place(FRAME_FIELDS, "distance");
pub const NAME_ID: usize = start(2) + place(FRAME_FIELDS, "name_id");
/// `prev_exists`; the controller's numbers follow it.
pub const PREVIOUS: usize = start(3);
pub const PREVIOUS_WIDTH: usize = PREVIOUS_FIELDS.len();
/// `projectile_count`; the slots follow it.
pub const PROJECTILES: usize = start(4);
pub const PROJECTILE_WIDTH: usize = PROJECTILE_FIELDS.len();
/// Numbers in a raw row.
pub const RAW_WIDTH: usize = start(SECTIONS.len());
/// A controller as raw numbers: eight buttons, main x and y, C x and y, shoulder.
pub const CONTROLLER_WIDTH: usize = PREVIOUS_WIDTH - 1;

/// A raw row whose length is known.
pub type Row = [f32; RAW_WIDTH];

/// The field of each column.
static ROW_FIELDS: [Field; RAW_WIDTH] = row_fields();

const fn row_fields() -> [Field; RAW_WIDTH] {
    let mut row = [PLAYER_FIELDS[0]; RAW_WIDTH];
    let (mut column, mut s) = (0, 0);
    while s < SECTIONS.len() {
        let mut i = 0;
        while i < SECTIONS[s].fields.len() {
            row[column] = SECTIONS[s].fields[i];
            column += 1;
            i += 1;
        }
        s += 1;
    }
    row
}

/// A column of the raw row.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// As in `own.percent`, `stage`, `projectile_0.x`.
    pub name: String,
    pub field: Field,
}

/// The row, column by column.
pub fn raw_columns() -> Vec<Column> {
    let named = |s: &Section| {
        let prefix = s.prefix;
        s.fields.iter().map(move |&f| Column { name: format!("{prefix}{}", f.name), field: f })
    };
    SECTIONS.iter().flat_map(named).collect()
}

/// The place of a column by its name.
pub fn column(name: &str) -> Option<usize> {
    SECTIONS.iter().enumerate().find_map(|(i, section)| {
        let name = name.strip_prefix(section.prefix)?;
        let place = section.fields.iter().position(|f| f.name == name)?;
        Some(start(i) + place)
    })
}

/// The name of a column, empty beyond the last.
pub fn column_name(column: usize) -> String {
    raw_columns().into_iter().nth(column).map(|c| c.name).unwrap_or_default()
}

/// Checks that a row is as long as a row is.
pub fn row(raw: &[f32]) -> Result<&Row> {
    raw.try_into().map_err(|_| unfit("frame", RAW_WIDTH, raw.len()))
}

/// Checks every value against its field; the first that does not fit is named.
pub fn check(row: &Row) -> Result<()> {
    row.iter()
        .zip(&ROW_FIELDS)
        .enumerate()
        .try_for_each(|(column, (&value, field))| field.kind.check(value, || column_name(column)))
}

/// Row of a table of `rows` ids; what is none of them takes the row after the last.
pub fn id_row(value: f32, rows: usize) -> usize {
    if value >= 0.0 && value < rows as f32 { value as usize } else { rows }
}

/// Row of a stage: its place in [`STAGES`], or the row after the last.
pub fn stage_row(value: f32) -> usize {
    STAGES.iter().position(|&id| f32::from(id) == value).unwrap_or(STAGES.len())
}

/// Swaps left and right, as if the game were played in a mirror.
pub fn mirror(raw: &mut [f32]) -> Result<()> {
    let previous = row(raw)?[PREVIOUS] != 0.0;
    for (value, field) in raw.iter_mut().zip(&ROW_FIELDS) {
        // Without a previous action its sticks are zeros that mean nothing.
        if field.mirror != Mirror::Axis || previous {
            *value = field.mirror.apply(*value);
        }
    }
    Ok(())
}

/// Swaps left and right of a controller's raw numbers.
pub fn mirror_controller(controller: &mut [f32]) -> Result<()> {
    fits("controller", CONTROLLER_WIDTH, controller.len())?;
    for (value, field) in controller.iter_mut().zip(&PREVIOUS_FIELDS[1..]) {
        *value = field.mirror.apply(*value);
    }
    Ok(())
}

/// Raw numbers of the action that led to the frame, if one is known.
pub fn previous(row: &Row) -> Option<&[f32]> {
    let numbers = &row[PREVIOUS + 1..PREVIOUS + PREVIOUS_WIDTH];
    (row[PREVIOUS] != 0.0).then_some(numbers)
}

/// Makes a controller's raw numbers the previous action of a row.
pub fn set_previous(raw: &mut [f32], controller: &[f32]) -> Result<()> {
    fits("frame", RAW_WIDTH, raw.len())?;
    fits("controller", CONTROLLER_WIDTH, controller.len())?;
    raw[PREVIOUS] = 1.0;
    raw[PREVIOUS + 1..PREVIOUS + PREVIOUS_WIDTH].copy_from_slice(controller);
    Ok(())
}

/// Takes the previous action out of a row.
pub fn forget_previous(raw: &mut [f32]) -> Result<()> {
    fits("frame", RAW_WIDTH, raw.len())?;
    raw[PREVIOUS..PREVIOUS + PREVIOUS_WIDTH].fill(0.0);
    Ok(())
}

/// Class of a value of 0..1 in so many classes: the nearest, the upper one at a tie.
fn bucket(value: f32, classes: usize) -> u16 {
    let buckets = classes.saturating_sub(1) as f32;
    (value.clamp(0.0, 1.0) * buckets + 0.5) as u16
}

/// Labels of a controller's raw numbers: a bit per button, a class per axis.
///
/// # Shapes
/// `controller [13]`, `out [num_labels]`, 13 for the heads of a controller.
pub fn discretise(controller: &[f32], heads: &Heads, out: &mut [u16]) -> Result<()> {
    controller_fits(heads, controller.len(), out.len())?;
    for ((label, &value), classes) in out.iter_mut().zip(controller).zip(classes(heads)) {
        *label = bucket(value, classes);
    }
    Ok(())
}

/// Raw numbers of labels, the way back of [`discretise`].
///
/// # Shapes
/// `labels [num_labels]`, `out [13]`.
pub fn controller(labels: &[u16], heads: &Heads, out: &mut [f32]) -> Result<()> {
    controller_fits(heads, out.len(), labels.len())?;
    for (i, (value, (&label, classes))) in
        out.iter_mut().zip(labels.iter().zip(classes(heads))).enumerate()
    {
        let buckets = classes.saturating_sub(1);
        if usize::from(label) > buckets {
            let name = PREVIOUS_FIELDS[i + 1].name.trim_start_matches("prev_");
            return Err(Error::out_of_range(name, label.into(), 0.0, buckets as f64));
        }
        *value = f32::from(label) / buckets as f32;
    }
    Ok(())
}

/// Classes of each label.
fn classes(heads: &Heads) -> impl Iterator<Item = usize> {
    heads.parts.iter().flat_map(|h| std::iter::repeat_n(h.kind.classes(), h.kind.labels()))
}

fn controller_fits(heads: &Heads, numbers: usize, labels: usize) -> Result<()> {
    if !heads.is_controller() {
        let names: Vec<_> = heads.parts.iter().map(|h| h.name.as_str()).collect();
        return Err(Error::mismatch("heads", "those of a controller", names.join(", ")));
    }
    fits("controller", CONTROLLER_WIDTH, numbers)?;
    fits("labels", heads.num_labels(), labels)
}

pub(super) fn fits(what: &str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(unfit(what, expected, got)) }
}

fn unfit(what: &str, expected: usize, got: usize) -> Error {
    Error::mismatch(what, format!("{expected} numbers"), got)
}
