//! The table of the fields that are read from a replay, each with the code that reads it.

use std::fmt;

use peppi::frame::immutable::{Data, Item};
use peppi::game::{PlayerType, Start};
use serde::Serialize;
use serde_json::{Value, json};

use super::place::{ITEM_SLOTS, NUM_CONTROLLER, NUM_ITEM, NUM_PLAYER};
use crate::column::Dtype;

/// One entry of the table.
pub struct Field {
    /// The group, which determines the field's columns.
    pub group: Group,
    /// Name of the field; column names are made from it, see [`Group`].
    pub name: &'static str,
    /// Path of the value in peppi's data structures.
    pub source: &'static str,
    /// First replay version that records the field.
    pub since: (u8, u8),
    /// Value if the replay lacks the field or the character is absent. Replaces NaN and infinity.
    pub fallback: f32,
    /// Conversion applied to the value, in words.
    pub conversion: &'static str,
    /// Type of the column.
    pub dtype: Dtype,
    pub(super) read: Read,
}

/// Group of a field, which determines the names of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// One value per game: an entry in the manifest.
    Game,
    /// One value per frame: column `name`.
    Frame,
    /// One value per player after each frame: columns `p0.name` and `p1.name`.
    Player,
    /// The input of each player that produced the frame: columns `p0.name` and `p1.name`.
    Controller,
    /// One value for each of the first five items by spawn id that are alive after the frame: columns
    /// `item0.name` to `item4.name`.
    Item,
}

pub(super) enum Read {
    Game(fn(&Start) -> Value),
    FrameId,
    ItemCount,
    Player(fn(&PlayerRows, usize) -> Option<f32>),
    Item(fn(&ItemRows, usize) -> Option<f32>),
}

/// Bits of the pad's button mask, in the order of [`Group::Controller`] buttons: A B X Y Z L R D_UP.
const BUTTON_BITS: [u8; 8] = [8, 9, 10, 11, 4, 6, 5, 3];
/// Bit in the fourth byte of the state flags. `misc_as` holds hitstun only while the bit is set.
const HITSTUN_FLAG: u8 = 0x02;

/// A player's data in a replay.
pub(super) struct PlayerRows<'a> {
    pub(super) leader: &'a Data,
    pub(super) follower: Option<&'a Data>,
    pub(super) has_pad: bool,
}

/// The items of a replay, and the ports of the two players.
pub(super) struct ItemRows<'a> {
    pub(super) item: &'a Item,
    pub(super) ports: [i8; 2],
}

/// Element of a peppi array at a row, as f32; `None` past the end of the array.
macro_rules! at {
    ($array:expr, $row:expr) => {
        $array.values().get($row).map(|&v| v as f32)
    };
}

/// Element of a peppi array that old replay versions lack, as f32; `None` if absent.
macro_rules! maybe {
    ($array:expr, $row:expr) => {
        $array.as_ref().and_then(|a| at!(a, $row))
    };
}

impl PlayerRows<'_> {
    fn nana(&self, row: usize) -> Option<&Data> {
        self.follower.filter(|f| present(f, row))
    }

    fn buttons(&self, row: usize) -> Option<f32> {
        let pre = &self.leader.pre;
        let mask = if self.has_pad {
            pre.buttons_physical.values().get(row).map(|&m| u32::from(m))
        } else {
            pre.buttons.values().get(row).copied()
        }?;
        let ours = BUTTON_BITS.iter().enumerate().map(|(i, bit)| (mask >> bit & 1) << i);
        Some(ours.sum::<u32>() as f32)
    }
}

/// Whether the character exists in this frame.
pub(super) fn present(data: &Data, row: usize) -> bool {
    data.validity.as_ref().is_none_or(|v| row < v.len() && v.get_bit(row))
}

/// Maps a stick axis from -1..1 to 0..1.
fn axis(value: Option<f32>) -> Option<f32> {
    value.filter(|v| v.is_finite()).map(|v| (v.clamp(-1.0, 1.0) + 1.0) / 2.0)
}

fn per_player(start: &Start, of: impl Fn(&peppi::game::Player) -> Value) -> Value {
    start.players.iter().map(of).collect()
}

fn tag(player: &peppi::game::Player) -> Value {
    let online = player.netplay.as_ref().map(|n| n.name.to_normalized());
    let tag = || player.name_tag.as_ref().map(|t| t.to_normalized());
    json!(online.filter(|n| !n.is_empty()).or_else(tag).unwrap_or_default())
}

fn kind(player: &peppi::game::Player) -> Value {
    json!(match player.r#type {
        PlayerType::Human => "human",
        PlayerType::Cpu => "cpu",
        PlayerType::Demo => "demo",
    })
}

const AS_IS: &str = "as it is";

const fn game(
    name: &'static str,
    source: &'static str,
    since: (u8, u8),
    conversion: &'static str,
    read: fn(&Start) -> Value,
) -> Field {
    let (group, fallback, dtype, read) = (Group::Game, 0.0, Dtype::Json, Read::Game(read));
    Field { group, name, source, since, fallback, conversion, dtype, read }
}

const fn player(
    name: &'static str,
    dtype: Dtype,
    source: &'static str,
    since: (u8, u8),
    conversion: &'static str,
    read: fn(&PlayerRows, usize) -> Option<f32>,
) -> Field {
    let (group, fallback, read) = (Group::Player, 0.0, Read::Player(read));
    Field { group, name, source, since, fallback, conversion, dtype, read }
}

const fn controller(
    name: &'static str,
    dtype: Dtype,
    source: &'static str,
    fallback: f32,
    conversion: &'static str,
    read: fn(&PlayerRows, usize) -> Option<f32>,
) -> Field {
    let (group, since, read) = (Group::Controller, (0, 1), Read::Player(read));
    Field { group, name, source, since, fallback, conversion, dtype, read }
}

const fn item(
    name: &'static str,
    dtype: Dtype,
    source: &'static str,
    since: (u8, u8),
    conversion: &'static str,
    read: fn(&ItemRows, usize) -> Option<f32>,
) -> Field {
    let (group, fallback, read) = (Group::Item, 0.0, Read::Item(read));
    Field { group, name, source, since, fallback, conversion, dtype, read }
}

const fn frame(
    name: &'static str,
    dtype: Dtype,
    source: &'static str,
    since: (u8, u8),
    conversion: &'static str,
    read: Read,
) -> Field {
    Field { group: Group::Frame, name, source, since, fallback: 0.0, conversion, dtype, read }
}

use Dtype::{F32, I32, U8, U16};

/// All fields, in the order of the columns.
#[rustfmt::skip]
static FIELDS: [Field; 6 + 2 + NUM_PLAYER + NUM_CONTROLLER + NUM_ITEM] = [
    game("version", "start.slippi.version", (0, 1), "major.minor.build",
        |s| json!(s.slippi.version.to_string())),
    game("stage", "start.stage", (0, 1), "stage id of the game's start",
        |s| json!(s.stage)),
    game("ports", "start.players[].port", (0, 1), "1 to 4; p0 is the lower one",
        |s| per_player(s, |p| json!(p.port as u8 + 1))),
    game("kinds", "start.players[].type", (0, 1), "human, cpu or demo",
        |s| per_player(s, kind)),
    game("tags", "start.players[].netplay.name, else name_tag", (1, 3), "normalised; empty if none",
        |s| per_player(s, tag)),
    game("start_characters", "start.players[].character", (0, 1), "external ids, as chosen",
        |s| per_player(s, |p| json!(p.character))),

    frame("frame", I32, "id", (0, 1), "the last row of a rolled-back frame counts", Read::FrameId),
    frame("item_count", U8, "item", (3, 0), "items alive", Read::ItemCount),

    player("percent", F32, "post.percent", (0, 1), AS_IS,
        |p, i| at!(p.leader.post.percent, i)),
    player("facing", F32, "post.direction", (0, 1), AS_IS,
        |p, i| at!(p.leader.post.direction, i)),
    player("x", F32, "post.position.x", (0, 1), AS_IS,
        |p, i| at!(p.leader.post.position.x, i)),
    player("y", F32, "post.position.y", (0, 1), AS_IS,
        |p, i| at!(p.leader.post.position.y, i)),
    player("action", U16, "post.state", (0, 1), "action state id as it is",
        |p, i| at!(p.leader.post.state, i)),
    player("character", U8, "post.character", (0, 1), "internal id, changes with a transformation",
        |p, i| at!(p.leader.post.character, i)),
    player("invulnerable", U8, "post.hurtbox_state", (2, 1), "1 if invulnerable or intangible",
        |p, i| maybe!(p.leader.post.hurtbox_state, i).map(|v| (v > 0.0).into())),
    player("jumps_left", U8, "post.jumps", (2, 0), AS_IS,
        |p, i| maybe!(p.leader.post.jumps, i)),
    player("shield_strength", F32, "post.shield", (0, 1), AS_IS,
        |p, i| at!(p.leader.post.shield, i)),
    player("on_ground", U8, "post.airborne", (2, 0), "1 if not airborne",
        |p, i| maybe!(p.leader.post.airborne, i).map(|v| (v == 0.0).into())),
    player("speed_air_x_self", F32, "post.velocities.self_x_air", (3, 5), AS_IS,
        |p, i| p.leader.post.velocities.as_ref().and_then(|v| at!(v.self_x_air, i))),
    player("speed_ground_x_self", F32, "post.velocities.self_x_ground", (3, 5), AS_IS,
        |p, i| p.leader.post.velocities.as_ref().and_then(|v| at!(v.self_x_ground, i))),
    player("speed_y_self", F32, "post.velocities.self_y", (3, 5), AS_IS,
        |p, i| p.leader.post.velocities.as_ref().and_then(|v| at!(v.self_y, i))),
    player("speed_x_attack", F32, "post.velocities.knockback_x", (3, 5), AS_IS,
        |p, i| p.leader.post.velocities.as_ref().and_then(|v| at!(v.knockback_x, i))),
    player("speed_y_attack", F32, "post.velocities.knockback_y", (3, 5), AS_IS,
        |p, i| p.leader.post.velocities.as_ref().and_then(|v| at!(v.knockback_y, i))),
    player("hitstun_frames_left", F32, "post.misc_as", (2, 0),
        "0 unless bit 0x02 of post.state_flags[3] is set",
        |p, i| {
            let flags = p.leader.post.state_flags.as_ref()?.3.values().get(i)?;
            if flags & HITSTUN_FLAG == 0 { return Some(0.0); }
            maybe!(p.leader.post.misc_as, i)
        }),
    player("action_frame", F32, "post.state_age", (0, 2), AS_IS,
        |p, i| maybe!(p.leader.post.state_age, i)),
    player("stock", U8, "post.stocks", (0, 1), AS_IS,
        |p, i| at!(p.leader.post.stocks, i)),
    player("nana_exists", U8, "follower", (0, 1), "1 where the follower has a row",
        |p, i| Some(p.nana(i).is_some().into())),
    player("nana_x", F32, "follower.post.position.x", (0, 1), AS_IS,
        |p, i| at!(p.nana(i)?.post.position.x, i)),
    player("nana_y", F32, "follower.post.position.y", (0, 1), AS_IS,
        |p, i| at!(p.nana(i)?.post.position.y, i)),
    player("nana_facing", F32, "follower.post.direction", (0, 1), AS_IS,
        |p, i| at!(p.nana(i)?.post.direction, i)),
    player("nana_percent", F32, "follower.post.percent", (0, 1), AS_IS,
        |p, i| at!(p.nana(i)?.post.percent, i)),
    player("nana_stock", U8, "follower.post.stocks", (0, 1), AS_IS,
        |p, i| at!(p.nana(i)?.post.stocks, i)),
    player("nana_action", U16, "follower.post.state", (0, 1), "action state id as it is",
        |p, i| at!(p.nana(i)?.post.state, i)),

    controller("buttons", U8, "pre.buttons_physical; pre.buttons for a player without a pad", 0.0,
        "bits 0 to 7: A B X Y Z L R D_UP",
        |p, i| p.buttons(i)),
    controller("main_x", F32, "pre.joystick.x", 0.5, "(v + 1) / 2, v held within -1..1",
        |p, i| axis(at!(p.leader.pre.joystick.x, i))),
    controller("main_y", F32, "pre.joystick.y", 0.5, "(v + 1) / 2, v held within -1..1",
        |p, i| axis(at!(p.leader.pre.joystick.y, i))),
    controller("c_x", F32, "pre.cstick.x", 0.5, "(v + 1) / 2, v held within -1..1",
        |p, i| axis(at!(p.leader.pre.cstick.x, i))),
    controller("c_y", F32, "pre.cstick.y", 0.5, "(v + 1) / 2, v held within -1..1",
        |p, i| axis(at!(p.leader.pre.cstick.y, i))),
    controller("shoulder", F32, "pre.triggers", 0.0, "held within 0..1",
        |p, i| at!(p.leader.pre.triggers, i).map(|v| v.clamp(0.0, 1.0))),

    item("owner", U8, "item.owner", (3, 6), "0 none, 1 player p0, 2 player p1",
        |t, i| {
            let owner = *t.item.owner.as_ref()?.values().get(i)?;
            t.ports.iter().position(|&p| p == owner).map(|p| p as f32 + 1.0)
        }),
    item("type", U16, "item.type", (3, 0), AS_IS,
        |t, i| at!(t.item.r#type, i)),
    item("x", F32, "item.position.x", (3, 0), AS_IS,
        |t, i| at!(t.item.position.x, i)),
    item("y", F32, "item.position.y", (3, 0), AS_IS,
        |t, i| at!(t.item.position.y, i)),
    item("speed_x", F32, "item.velocity.x", (3, 0), AS_IS,
        |t, i| at!(t.item.velocity.x, i)),
    item("speed_y", F32, "item.velocity.y", (3, 0), AS_IS,
        |t, i| at!(t.item.velocity.y, i)),
];

/// The table of all fields that are read from a replay. [`Field`] implements `Display`.
pub fn fields() -> &'static [Field] {
    &FIELDS
}

pub(super) fn group(group: Group) -> impl Iterator<Item = &'static Field> {
    FIELDS.iter().filter(move |f| f.group == group)
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let group = format!("{:?}", self.group).to_lowercase();
        let (name, dtype, fallback) = (self.name, self.dtype.name(), self.fallback);
        write!(f, "{group:<10} {name:<19} {dtype:<4} since {}.{}", self.since.0, self.since.1)?;
        write!(f, " else {fallback:<3} {} ({})", self.source, self.conversion)
    }
}

impl Serialize for Field {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json!({
            "group": self.group,
            "name": self.name,
            "source": self.source,
            "since": format!("{}.{}", self.since.0, self.since.1),
            // A game's entry has no numeric fallback.
            "fallback": (self.group != Group::Game).then_some(self.fallback),
            "conversion": self.conversion,
            "dtype": self.dtype.name(),
        })
        .serialize(serializer)
    }
}

/// Names and types of a shard's columns, in order.
pub(crate) fn columns() -> Vec<(String, Dtype)> {
    let plain = |f: &Field| (f.name.to_owned(), f.dtype);
    let mut all: Vec<_> = group(Group::Frame).map(plain).collect();
    for p in 0..2 {
        let fields = group(Group::Player).chain(group(Group::Controller));
        all.extend(fields.map(|f| (format!("p{p}.{}", f.name), f.dtype)));
    }
    for slot in 0..ITEM_SLOTS {
        all.extend(group(Group::Item).map(|f| (format!("item{slot}.{}", f.name), f.dtype)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::place;
    use super::*;

    #[test]
    fn columns_have_the_indices_of_the_place_module() {
        let names: Vec<_> = columns().into_iter().map(|c| c.0).collect();
        assert_eq!(names[place::FRAME], "frame");
        assert_eq!(names[place::ITEM_COUNT], "item_count");
        assert_eq!(names[place::player(1)], "p1.percent");
        assert_eq!(names[place::controller(0)], "p0.buttons");
        assert_eq!(names[place::item(4)], "item4.owner");
        assert_eq!(names.len(), place::item(ITEM_SLOTS));
    }

    #[test]
    fn the_table_prints_a_line_for_each_field() {
        let lines: Vec<_> = fields().iter().map(ToString::to_string).collect();
        assert!(lines.iter().any(|l| l.contains("post.velocities.self_y") && l.contains("3.5")));
        assert!(fields().iter().all(|f| (f.dtype == Dtype::Json) == (f.group == Group::Game)));
    }
}
