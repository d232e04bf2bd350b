//! Passes rows of frames, and options of a call, to sessions.

use std::path::Path;

use sconce_serve::frames::{Beyond, embed};
use sconce_serve::session::Overrides;
use sconce_tensor::Result;

use super::snapshot::with;
use crate::json;
use crate::rng::Rng;
use crate::safetensors::numbers;

/// Encodes an input: the session, the length of the options, the options of the call as JSON, and the row.
fn join(session: u8, says: &[u8], row: &[u8]) -> Vec<u8> {
    [&[session], &(says.len() as u16).to_le_bytes()[..], says, row].concat()
}

fn split(input: &[u8]) -> (&[u8], &[u8]) {
    let Some((length, rest)) = input.split_first_chunk() else { return (&[], &[]) };
    rest.split_at_checked(u16::from_le_bytes(*length).into()).unwrap_or((&[], rest))
}

pub fn seeds() -> Vec<Vec<u8>> {
    let says = [
        "{}",
        r#"{"temperature":0.5,"deterministic":false,"deterministic_buttons":true}"#,
        r#"{"press_threshold":0.6,"release_threshold":0.4,"seed":7,"game_frame":5}"#,
        r#"{"previous":[1,0,2],"choices":[0,1,1]}"#,
        r#"{"queue":[1,0,2]}"#,
    ];
    let row = |session: u8| {
        let width = with(&[session], |_, raw, _| Ok(raw.len())).expect("a session");
        vec![0; width * size_of::<f32>()]
    };
    let of =
        |session: u8| says.iter().map(move |says| join(session, says.as_bytes(), &row(session)));
    let all = (0..9).flat_map(of);
    // The last three models have more labels than the options above, so they get none.
    all.chain((9..12).map(|session| join(session, b"{}", &row(session)))).collect()
}

pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>) {
    let Some((session, rest)) = input.split_first() else { return };
    let (says, row) = split(rest);
    let (mut says, mut row) = (says.to_vec(), row.to_vec());
    match rng.below(4) {
        0 => json::mutate_text(rng, &mut says),
        1 => crate::bytes::mutate(rng, &mut row),
        2 => (0..1 + rng.up_to(8)).for_each(|_| numbers(rng, &mut row)),
        _ => {
            // Ids and flags in a frame are small integers.
            let (chunks, _) = row.as_chunks_mut();
            for chunk in chunks.iter_mut() {
                *chunk = (rng.up_to(1 << 16) as f32 - rng.below(3) as f32).to_le_bytes();
            }
        }
    }
    says.truncate(usize::from(u16::MAX));
    *input = join(*session, &says, &row);
}

pub fn run(input: &[u8], _dir: &Path) -> Result<()> {
    with(input, |session, good, rest| {
        let (says, row) = split(rest);
        let row: Vec<f32> =
            row.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect();
        let embedded = embed(session.policy().spec(), &row, 1, 1, Beyond::default());
        let says: Overrides = serde_json::from_slice(says)
            .map_err(|e| sconce_tensor::Error::corrupt("options of a call", e))?;
        session.reset(Some(1))?;
        let before = session.snapshot()?;
        let acted = session.act(&row, &says);
        if acted.is_err() {
            assert!(session.snapshot()? == before, "a refused frame changed the session");
        }
        session.reset(Some(1))?;
        session.act(good, &Overrides::default())?;
        acted.and(embedded).map(drop)
    })
}
