//! Checks the bounds of a replay in loops, before peppi reads it.
//!
//! Peppi reads nested metadata by recursion, and a stack overflow cannot be caught. It allocates memory for
//! lengths that a file claims, and rows of all players for every frame, even if the file has none. This
//! module walks the bytes in peppi's order and checks nesting, lengths and frame counts against bounds. Other
//! errors are left to peppi, which stops at the same byte with its own error.

use peppi::io::slippi::FILE_SIGNATURE;

use crate::refusal::{Reason, Refusal};

/// Maximum bytes of a replay: six times an 8-minute game with four players and items.
pub(crate) const MAX_BYTES: u64 = 1 << 28;
/// Maximum frames, including rolled-back ones: 72 minutes.
pub(crate) const MAX_FRAMES: usize = 1 << 18;
/// Maximum events: 32 for each of [`MAX_FRAMES`].
const MAX_EVENTS: usize = 1 << 23;
/// Maximum frames without any player input.
const MAX_EMPTY_FRAMES: usize = 600;
/// Maximum bytes between the end of the game and the metadata. Some recorders leave a second end event there.
const MAX_EXTRA: usize = 1 << 16;
/// Maximum bytes of the metadata. Real metadata has less than 2,000.
const MAX_METADATA: usize = 1 << 20;
/// Maximum nesting of maps in the metadata. Real metadata has four levels.
const MAX_DEPTH: usize = 32;

const MESSAGE_SPLITTER: u8 = 0x10;
const PAYLOADS: u8 = 0x35;
const GAME_START: u8 = 0x36;
const FRAME_PRE: u8 = 0x37;
const GAME_END: u8 = 0x39;
const FRAME_START: u8 = 0x3A;
/// Payload bytes of a message part: 512 bytes of data, their count, the event code, and whether the part is
/// the last.
const SPLITTER_BYTES: usize = 516;

/// Offset of the first player in the start event, and bytes per player.
const PLAYERS_AT: usize = 4 + 0x60;
const PLAYER_BYTES: usize = 36;
const PORTS: usize = 4;
/// Player kinds from this value on mean an empty port.
const NO_PLAYER: u8 = 3;

/// Checks that reading a replay takes bounded memory, stack and time.
pub(crate) fn check(bytes: &[u8]) -> Result<(), Refusal> {
    let mut cursor = Cursor { bytes, at: FILE_SIGNATURE.len() };
    let Some(raw) = cursor.array().map(u32::from_be_bytes) else {
        return Err(Refusal::new(Reason::Truncated, "no header"));
    };
    if !bytes.starts_with(&FILE_SIGNATURE) {
        return Ok(());
    }
    let raw = raw as usize;
    if raw > bytes.len() {
        let detail = format!("{} bytes of {raw}", bytes.len());
        return Err(Refusal::new(Reason::Truncated, detail));
    }
    match events(&mut cursor, raw)? {
        Some(()) => metadata(&mut cursor),
        None => Ok(()),
    }
}

fn corrupt<T>(detail: String) -> Result<T, Refusal> {
    Err(Refusal::new(Reason::Corrupt, detail))
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn slice(&mut self, n: usize) -> Option<&'a [u8]> {
        let slice = self.bytes.get(self.at..self.at.checked_add(n)?)?;
        self.at += n;
        Some(slice)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.slice(N)?.try_into().ok()
    }
}

/// Walks the events to the end of the `raw` element. Returns `None` if peppi will stop earlier.
fn events(cursor: &mut Cursor, raw: usize) -> Result<Option<()>, Refusal> {
    let begin = cursor.at;
    let Some((sizes, start)) = first_events(cursor) else { return Ok(None) };
    let (players, early) = (players(start), is_before_2_2(start));
    if let Some(n) = players.filter(|n| *n != 2) {
        return Err(Refusal::new(Reason::NotTwoPlayers, format!("{n} players")));
    }
    let mut seen = Seen::default();
    // In an unfinished recording, `raw` has length 0.
    while raw == 0 || cursor.at - begin < raw {
        let Some(code) = cursor.byte() else { return Ok(None) };
        let size = sizes.get(usize::from(code)).copied().unwrap_or(0);
        let payload = if size == 0 { None } else { cursor.slice(size) };
        let Some(payload) = payload else { return Ok(None) };
        let Some(code) = unwrapped(code, payload) else { return Ok(None) };
        seen.count(code, payload, early)?;
        if code == GAME_END {
            break;
        }
    }
    let extra = raw.saturating_sub(cursor.at - begin);
    if extra > MAX_EXTRA {
        return corrupt(format!("{extra} bytes after the end of the game, more than {MAX_EXTRA}"));
    }
    Ok(cursor.slice(extra).map(drop))
}

/// Returns the payload sizes by event code (0 if absent), and the payload of the start event.
fn first_events<'a>(cursor: &mut Cursor<'a>) -> Option<([usize; 256], &'a [u8])> {
    let code = cursor.byte()?;
    let table = usize::from(cursor.byte()?);
    if code != PAYLOADS || table % 3 != 1 {
        return None;
    }
    let mut sizes = [0; 256];
    for entry in cursor.slice(table - 1)?.as_chunks::<3>().0 {
        let [code, high, low] = *entry;
        sizes[usize::from(code)] = usize::from(u16::from_be_bytes([high, low]));
    }
    let code = cursor.byte()?;
    let start = cursor.slice(sizes[usize::from(code)])?;
    (code == GAME_START).then_some((sizes, start))
}

/// Count of players in the start event; `None` if the event is too short.
fn players(start: &[u8]) -> Option<usize> {
    let kinds = start.get(PLAYERS_AT..)?.chunks_exact(PLAYER_BYTES).take(PORTS);
    let kinds: Vec<u8> = kinds.filter_map(|player| player.get(1).copied()).collect();
    (kinds.len() == PORTS).then(|| kinds.iter().filter(|kind| **kind < NO_PLAYER).count())
}

/// Whether frames begin with the input of their first player, because the version has no frame start event.
fn is_before_2_2(start: &[u8]) -> bool {
    matches!(start, [0 | 1, ..] | [2, 0 | 1, ..])
}

/// The event code of a payload. The last part of a split message gives the code of the whole message.
fn unwrapped(code: u8, payload: &[u8]) -> Option<u8> {
    match (code, payload) {
        (MESSAGE_SPLITTER, [.., own, last]) if payload.len() == SPLITTER_BYTES => {
            Some(if *last == 0 { code } else { *own })
        }
        (MESSAGE_SPLITTER, _) => None,
        _ => Some(code),
    }
}

/// Counts of the events walked so far.
#[derive(Default)]
struct Seen {
    events: usize,
    frames: usize,
    inputs: usize,
    /// Id of the last frame that was started.
    id: Option<[u8; 4]>,
}

impl Seen {
    #[inline]
    fn count(&mut self, code: u8, payload: &[u8], early: bool) -> Result<(), Refusal> {
        self.events += 1;
        if self.events > MAX_EVENTS {
            return corrupt(format!("more than {MAX_EVENTS} events"));
        }
        match code {
            FRAME_START => self.open(),
            FRAME_PRE => {
                self.inputs += 1;
                let id = payload.first_chunk().copied();
                if early && id != self.id {
                    self.id = id;
                    return self.open();
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn open(&mut self) -> Result<(), Refusal> {
        self.frames += 1;
        if self.frames > MAX_FRAMES {
            return corrupt(format!("more than {MAX_FRAMES} frames"));
        }
        let Seen { frames, inputs, .. } = self;
        match frames.saturating_sub(*inputs) > MAX_EMPTY_FRAMES {
            true => corrupt(format!("{frames} frames with {inputs} inputs of players")),
            false => Ok(()),
        }
    }
}

/// Walks the metadata, whose maps may be nested.
fn metadata(cursor: &mut Cursor) -> Result<(), Refusal> {
    const OPENING: &[u8] = b"U\x08metadata{";
    if cursor.slice(OPENING.len()) != Some(OPENING) {
        return Ok(());
    }
    let (begin, mut depth) = (cursor.at, 1);
    while depth > 0 {
        match value(cursor) {
            Some(Value::Map) => depth += 1,
            Some(Value::End) => depth -= 1,
            Some(Value::Leaf) => {}
            None => return Ok(()),
        }
        if depth > MAX_DEPTH {
            let more = deeper(cursor, depth);
            return corrupt(format!("metadata {more} levels deep, more than {MAX_DEPTH}"));
        }
        let size = cursor.at - begin;
        if size > MAX_METADATA {
            return corrupt(format!("metadata of more than {MAX_METADATA} bytes"));
        }
    }
    Ok(())
}

/// Continues the walk to find the total depth of the metadata, for the error message.
fn deeper(cursor: &mut Cursor, mut depth: usize) -> usize {
    let mut deepest = depth;
    while depth > 0 {
        match value(cursor) {
            Some(Value::Map) => depth += 1,
            Some(Value::End) => depth -= 1,
            Some(Value::Leaf) => {}
            None => break,
        }
        deepest = deepest.max(depth);
    }
    deepest
}

enum Value {
    /// Start of a map.
    Map,
    /// End of a map.
    End,
    /// A complete number or string.
    Leaf,
}

/// The next entry of a map: a key and the start of its value. Returns `None` for anything peppi rejects.
fn value(cursor: &mut Cursor) -> Option<Value> {
    match cursor.byte()? {
        b'}' => return Some(Value::End),
        b'U' => string(cursor)?,
        _ => return None,
    }
    match cursor.byte()? {
        b'{' => Some(Value::Map),
        b'l' => cursor.slice(4).map(|_| Value::Leaf),
        b'S' if cursor.byte()? == b'U' => string(cursor).map(|()| Value::Leaf),
        _ => None,
    }
}

fn string(cursor: &mut Cursor) -> Option<()> {
    let length = cursor.byte()?;
    cursor.slice(usize::from(length)).map(drop)
}

#[cfg(test)]
mod tests {
    use sconce_fixtures::Fixture;

    use super::*;

    fn refusal(bytes: &[u8]) -> Option<String> {
        check(bytes).err().map(|r| format!("{:?}: {}", r.reason, r.detail))
    }

    /// A replay without its closing brace, so that metadata can be appended.
    fn open_ended() -> Vec<u8> {
        let mut bytes = Fixture { frames: 10, ..Fixture::default() }.bytes().unwrap();
        assert_eq!(bytes.pop(), Some(b'}'));
        bytes
    }

    fn with_metadata(body: &[u8]) -> Vec<u8> {
        [&open_ended(), b"U\x08metadata{".as_slice(), body, b"}}"].concat()
    }

    fn nested(levels: usize) -> Vec<u8> {
        let inner = levels - 1;
        with_metadata(&[b"U\x01a{".repeat(inner), b"}".repeat(inner)].concat())
    }

    #[test]
    fn replays_of_every_version_are_within_the_bounds() {
        for version in [(1, 0), (2, 0), (3, 14), (3, 18)] {
            let rollback_every = if version < (2, 2) { 0 } else { 7 };
            let fixture = Fixture { version, rollback_every, items: true, ..Fixture::default() };
            let bytes = fixture.bytes().unwrap();
            assert_eq!(refusal(&bytes), None, "{version:?}");
            // Peppi, not this module, finds a truncation within the last bytes.
            for n in (15..bytes.len() - 16).step_by(bytes.len() / 50) {
                let cut = refusal(&bytes[..n]);
                assert!(cut.is_some_and(|r| r.starts_with("Truncated")), "{version:?} {n}");
            }
        }
        assert_eq!(refusal(b"{U\x03raw"), Some("Truncated: no header".into()));
        assert_eq!(refusal(&[7; 5000]), None);
    }

    #[test]
    fn metadata_may_be_nested_up_to_a_bound() {
        assert_eq!(refusal(&nested(MAX_DEPTH)), None);
        let said = |n| format!("Corrupt: metadata {n} levels deep, more than 32");
        for levels in [MAX_DEPTH + 1, 3_000, 1_000_000] {
            assert_eq!(refusal(&nested(levels)), Some(said(levels)));
        }
        // The nested levels are never closed.
        let open = [open_ended(), b"U\x08metadata{".to_vec(), b"U\x01a{".repeat(5_000)].concat();
        assert_eq!(refusal(&open), Some(said(5_001)));
    }

    #[test]
    fn metadata_is_bounded_in_bytes() {
        let string = [b"U\x01aSU\xFF".as_slice(), &[b'x'; 255]].concat();
        assert_eq!(refusal(&with_metadata(&string.repeat(4_000))), None);
        let long = refusal(&with_metadata(&string.repeat(4_100)));
        assert_eq!(long.as_deref(), Some("Corrupt: metadata of more than 1048576 bytes"));
    }

    /// The bytes of a replay with its events replaced by these.
    fn replay(events: &[u8]) -> Vec<u8> {
        let bytes = open_ended();
        let table = 2 + usize::from(bytes[16]) - 1;
        let mut cursor = Cursor { bytes: &bytes, at: 15 };
        let (_, start) = first_events(&mut cursor).unwrap();
        let head = &bytes[15..15 + table + 1 + start.len()];
        let raw = ((head.len() + events.len()) as u32).to_be_bytes();
        [&FILE_SIGNATURE[..], &raw, head, events, b"}"].concat()
    }

    /// An event of zeros, with the size in the replay's table.
    fn event(code: u8) -> Vec<u8> {
        let bytes = open_ended();
        let mut cursor = Cursor { bytes: &bytes, at: 15 };
        let (sizes, _) = first_events(&mut cursor).unwrap();
        [vec![code], vec![0; sizes[usize::from(code)]]].concat()
    }

    #[test]
    fn frames_and_bytes_after_the_game_are_bounded() {
        let frame = [event(FRAME_START), event(FRAME_PRE)].concat();
        assert_eq!(refusal(&replay(&frame.repeat(MAX_FRAMES))), None);
        let many = refusal(&replay(&frame.repeat(MAX_FRAMES + 1)));
        assert_eq!(many.as_deref(), Some("Corrupt: more than 262144 frames"));
        let empty = refusal(&replay(&event(FRAME_START).repeat(601)));
        assert_eq!(empty.as_deref(), Some("Corrupt: 601 frames with 0 inputs of players"));
        let tail = |n| replay(&[event(GAME_END), vec![0; n]].concat());
        assert_eq!(refusal(&tail(MAX_EXTRA)), None);
        let long = refusal(&tail(MAX_EXTRA + 1));
        assert!(long.is_some_and(|said| said.contains("65537 bytes after the end")));
    }

    #[test]
    fn a_length_beyond_the_file_is_refused() {
        let mut bytes = open_ended();
        bytes[11..15].copy_from_slice(&u32::MAX.to_be_bytes());
        let expected = format!("Truncated: {} bytes of 4294967295", bytes.len());
        assert_eq!(refusal(&bytes), Some(expected));
    }
}
