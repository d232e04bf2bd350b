//! Reads a replay: keeps the last row of each frame, and builds columns from the table of fields.

use std::collections::BTreeMap;
use std::io::Cursor;

use peppi::frame::immutable::{Data, Frame, PortData};
use peppi::game::immutable::Game as Replay;
use peppi::game::{PlayerType, Start};
use peppi::io::Error as PeppiError;
use sconce_game::melee::{ACTIONS, CHARACTERS, STAGES};
use serde_json::Value;

use super::fields::{Field, Group, ItemRows, PlayerRows, Read, group, present};
use super::place::{self, ITEM_SLOTS};
use crate::column::{Column, Dtype};
use crate::game::{GameInfo, OtherIds};
use crate::refusal::{Reason, Refusal};
use crate::replay;

/// A game in the form that the corpus stores. The importer fills in `file`, `digest`, `source` and `bytes`.
pub(crate) struct Game {
    pub info: GameInfo,
    pub columns: Vec<Column>,
}

/// Reads a replay. May panic where peppi does; the importer catches panics per file.
pub(crate) fn read(bytes: &[u8], min_frames: usize) -> Result<Game, Refusal> {
    replay::check(bytes)?;
    let replay = peppi::io::slippi::read(Cursor::new(bytes), None).map_err(refuse)?;
    let [a, b] = replay.frames.ports.as_slice() else {
        let detail = format!("{} players", replay.frames.ports.len());
        return Err(Refusal::new(Reason::NotTwoPlayers, detail));
    };
    let rows = final_rows(&replay)?;
    if rows.len() < min_frames {
        let detail = format!("{} frames of at least {min_frames}", rows.len());
        return Err(Refusal::new(Reason::TooShort, detail));
    }
    assemble(&replay, [a, b], &rows)
}

fn refuse(error: PeppiError) -> Refusal {
    let reason = match &error {
        PeppiError::Io(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Reason::Truncated,
        _ => Reason::Corrupt,
    };
    Refusal::new(reason, error)
}

/// Rows to keep: the last row of each frame id, in order of id.
fn final_rows(replay: &Replay) -> Result<Vec<(i32, usize)>, Refusal> {
    let frames = &replay.frames;
    let ids = frames.id.values();
    let ends = frames.ports.iter().map(|p| p.leader.pre.random_seed.len().min(rows_of(&p.leader)));
    let whole = ends.min().unwrap_or(0).min(ids.len());
    // A recording may stop within its last frame; more missing rows mean a corrupt file.
    if whole + 1 < ids.len() {
        let detail = format!("{whole} rows of players for {} frames", ids.len());
        return Err(Refusal::new(Reason::Corrupt, detail));
    }
    let last: BTreeMap<i32, usize> =
        ids.iter().take(whole).enumerate().map(|(row, &id)| (id, row)).collect();
    let rows: Vec<_> = last.into_iter().collect();
    if let Some(gap) = rows.windows(2).find(|w| w[0].0 + 1 != w[1].0) {
        let detail = format!("no frame between {} and {}", gap[0].0, gap[1].0);
        return Err(Refusal::new(Reason::Corrupt, detail));
    }
    Ok(rows)
}

fn rows_of(data: &Data) -> usize {
    data.post.character.len()
}

fn assemble(
    replay: &Replay,
    ports: [&PortData; 2],
    rows: &[(i32, usize)],
) -> Result<Game, Refusal> {
    let start = in_order(&replay.start, ports)?;
    let players = [0, 1].map(|p| PlayerRows {
        leader: &ports[p].leader,
        follower: ports[p].follower.as_ref(),
        has_pad: start.players.get(p).is_none_or(|q| q.r#type == PlayerType::Human),
    });
    let items = Items::of(&replay.frames, ports, rows);
    let mut columns: Vec<Column> = group(Group::Frame)
        .map(|field| match field.read {
            Read::FrameId => Column::I32(rows.iter().map(|r| r.0).collect()),
            _ => items.counts(field.dtype),
        })
        .collect();
    for player in &players {
        let fields = group(Group::Player).chain(group(Group::Controller));
        columns.extend(fields.map(|field| player_column(field, player, rows)));
    }
    for slot in 0..ITEM_SLOTS {
        columns.extend(group(Group::Item).map(|field| items.column(field, slot)));
    }
    let info = describe(&start, rows.len(), &columns);
    Ok(Game { info, columns })
}

/// Returns the start event with players in the order of the ports in the frames.
fn in_order(start: &Start, ports: [&PortData; 2]) -> Result<Start, Refusal> {
    let player = |port: &PortData| {
        let found = start.players.iter().find(|p| p.port == port.port);
        found.cloned().ok_or_else(|| {
            Refusal::new(Reason::Corrupt, format!("no player at port {}", port.port as u8 + 1))
        })
    };
    Ok(Start { players: vec![player(ports[0])?, player(ports[1])?], ..start.clone() })
}

fn player_column(field: &Field, player: &PlayerRows, rows: &[(i32, usize)]) -> Column {
    let Read::Player(read) = field.read else { return Column::zeros(field.dtype, rows.len()) };
    let value = |&(_, row): &(i32, usize)| {
        let value = present(player.leader, row).then(|| read(player, row)).flatten();
        value.filter(|v| v.is_finite()).unwrap_or(field.fallback)
    };
    Column::collect(field.dtype, rows.iter().map(value))
}

/// The items of each kept frame.
struct Items<'a> {
    rows: Option<ItemRows<'a>>,
    slots: Vec<Slots>,
}

/// The items of one frame.
#[derive(Default)]
struct Slots {
    /// Count of items alive.
    count: usize,
    /// Rows of the first items by spawn id.
    rows: [Option<usize>; ITEM_SLOTS],
}

impl<'a> Items<'a> {
    fn of(frames: &'a Frame, ports: [&PortData; 2], rows: &[(i32, usize)]) -> Self {
        let slots = rows.iter().map(|&(_, row)| slots_of(frames, row)).collect();
        let ports = ports.map(|p| p.port as i8);
        Items { rows: frames.item.as_ref().map(|item| ItemRows { item, ports }), slots }
    }

    fn counts(&self, dtype: Dtype) -> Column {
        Column::collect(dtype, self.slots.iter().map(|s| s.count as f32))
    }

    fn column(&self, field: &Field, slot: usize) -> Column {
        let value = |slots: &Slots| match (&self.rows, &field.read) {
            (Some(items), Read::Item(read)) => slots.rows[slot].and_then(|row| read(items, row)),
            _ => None,
        };
        let finite = |v: Option<f32>| v.filter(|v| v.is_finite()).unwrap_or(field.fallback);
        Column::collect(field.dtype, self.slots.iter().map(|s| finite(value(s))))
    }
}

fn slots_of(frames: &Frame, row: usize) -> Slots {
    let mut slots = Slots::default();
    let (Some(item), Some(offsets)) = (&frames.item, &frames.item_offset) else { return slots };
    let bounds = (offsets.as_slice().get(row), offsets.as_slice().get(row + 1));
    let (Some(&begin), Some(&end)) = bounds else { return slots };
    let ids = item.id.values();
    let mut found: Vec<(u32, usize)> =
        (begin as usize..end as usize).filter_map(|i| ids.get(i).map(|&id| (id, i))).collect();
    found.sort_unstable();
    slots.count = found.len();
    for (slot, (_, row)) in slots.rows.iter_mut().zip(found) {
        *slot = Some(row);
    }
    slots
}

/// Metadata of the game, built from the table of fields.
fn describe(start: &Start, frames: usize, columns: &[Column]) -> GameInfo {
    let entry: serde_json::Map<_, _> = group(Group::Game)
        .filter_map(|f| match f.read {
            Read::Game(read) => Some((f.name.to_owned(), read(start))),
            _ => None,
        })
        .collect();
    let mut info: GameInfo = serde_json::from_value(Value::Object(entry)).unwrap_or_default();
    info.frames = frames;
    info.characters = [0, 1].map(|p| first(columns, place::player(p) + CHARACTER) as u8).to_vec();
    info.other_ids = count_others(info.stage, columns);
    info
}

/// Offset of the character id in a player's columns.
const CHARACTER: usize = 5;

fn first(columns: &[Column], place: usize) -> f32 {
    columns.get(place).and_then(|c| c.get(0)).unwrap_or(0.0)
}

/// Counts ids that are missing from the id tables. The embedding maps these ids to its "other" row.
fn count_others(stage: u16, columns: &[Column]) -> OtherIds {
    let beyond = |place: usize, rows: usize| -> u64 {
        let column = columns.get(place);
        column.map_or(0, |c| c.iter().filter(|&v| v as usize >= rows).count() as u64)
    };
    let both = |field, rows| [0, 1].map(|p| beyond(place::player(p) + field, rows)).iter().sum();
    OtherIds {
        actions: both(place::ACTION, ACTIONS),
        characters: both(CHARACTER, CHARACTERS),
        stages: u64::from(!STAGES.contains(&stage)),
    }
}

#[cfg(test)]
mod tests {
    use sconce_fixtures::Fixture;
    use sconce_game::melee::PLAYER_FIELDS;

    use super::*;

    #[test]
    fn players_are_matched_by_port_in_any_order() {
        let mut fixture = Fixture { frames: 600, ..Fixture::default() };
        fixture.players[1].cpu = true;
        let bytes = fixture.bytes().unwrap();
        let mut replay = peppi::io::slippi::read(Cursor::new(&bytes), None).unwrap();
        let game = |replay: &Replay| {
            let [a, b] = replay.frames.ports.as_slice() else { panic!("two ports") };
            let rows = final_rows(replay)?;
            assemble(replay, [a, b], &rows)
        };
        let straight = game(&replay).map_err(|r| r.detail).unwrap();
        assert_eq!(straight.info.kinds, ["human", "cpu"]);
        replay.start.players.reverse();
        let crossed = game(&replay).map_err(|r| r.detail).unwrap();
        assert_eq!(crossed.info, straight.info);
        let bytes = |game: &Game| game.columns.iter().map(Column::bytes).collect::<Vec<_>>();
        assert_eq!(bytes(&crossed), bytes(&straight));
        replay.start.players.truncate(1);
        assert_eq!(game(&replay).err().map(|r| r.detail).as_deref(), Some("no player at port 1"));
    }

    #[test]
    fn player_columns_are_the_raw_fields_of_the_embedding() {
        let ours: Vec<_> = group(Group::Player).map(|f| f.name).collect();
        let theirs: Vec<_> = PLAYER_FIELDS.iter().map(|f| &*f.name).collect();
        assert_eq!(ours, theirs);
        assert_eq!((ours[place::PERCENT], ours[place::ACTION]), ("percent", "action"));
        assert_eq!(ours[CHARACTER], "character");
    }
}
