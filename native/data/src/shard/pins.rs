//! The segments that a thread is reading. It finds them without a lock, value by value, until the read ends.

use std::cell::RefCell;

use super::cache::Segment;

/// Segments of one read: the state, the input that answers it with a delay, and both once more behind a border.
const MOST: usize = 4;

struct Pin {
    game: u64,
    segment: usize,
    bytes: Segment,
}

struct Pins {
    depth: usize,
    /// The pin that was read last.
    last: usize,
    next: usize,
    pins: [Option<Pin>; MOST],
}

thread_local! {
    static PINS: RefCell<Pins> =
        const { RefCell::new(Pins { depth: 0, last: 0, next: 0, pins: [const { None }; MOST] }) };
}

struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        PINS.with_borrow_mut(|own| {
            own.depth -= 1;
            if own.depth == 0 {
                own.pins = [const { None }; MOST];
            }
        });
    }
}

/// Runs `work`. Segments that it reads stay until the outermost such call ends.
pub(super) fn within<T>(work: impl FnOnce() -> T) -> T {
    PINS.with_borrow_mut(|own| own.depth += 1);
    let _leave = Leave;
    work()
}

/// Reads a segment of a game. Inside [`within`], `fetch` is called once for it.
#[inline]
pub(super) fn with<T>(
    game: u64,
    segment: usize,
    fetch: impl FnOnce() -> Segment,
    read: impl FnOnce(&[u8]) -> T,
) -> T {
    PINS.with_borrow_mut(|own| {
        let is_it = |pin: &&Pin| pin.game == game && pin.segment == segment;
        if own.pins[own.last].as_ref().filter(is_it).is_none()
            && let Some(at) = own.pins.iter().position(|pin| pin.as_ref().filter(is_it).is_some())
        {
            own.last = at;
        }
        if let Some(pin) = own.pins[own.last].as_ref().filter(is_it) {
            return read(&pin.bytes);
        }
        let bytes = fetch();
        let answer = read(&bytes);
        if own.depth > 0 {
            own.pins[own.next] = Some(Pin { game, segment, bytes });
            (own.last, own.next) = (own.next, (own.next + 1) % MOST);
        }
        answer
    })
}
