//! Embedding of frames: `Sconce.Embedding`, and the columns of `Sconce.Frame`.

use rustler::{Binary, Encoder, Env, NewBinary, Term};
use sconce_game::Game;
use sconce_nn::spec::Embedding;
use sconce_tensor::{Error, Result, memory};

use crate::border::{Data, call, decode, from_binary, inline, to_binary};

#[rustler::nif(schedule = "DirtyCpu")]
fn embedding_schema<'a>(env: Env<'a>, embedding: Term<'a>) -> Term<'a> {
    call(env, "embedding_schema", || Ok(Data(embedding_of(embedding)?.schema())))
}

/// The columns of a raw row of a game, or the error in its declaration.
#[rustler::nif(schedule = "DirtyCpu")]
fn game_check<'a>(env: Env<'a>, declaration: Term<'a>) -> Term<'a> {
    call(env, "game", || {
        let game: Game = decode(declaration)?;
        game.validate()?;
        Ok(Data(game.raw_columns().into_iter().map(|column| column.name).collect::<Vec<_>>()))
    })
}

/// Returns `{:ok, {continuous, ids}}`, with the checks of a live frame.
#[rustler::nif]
fn embed<'a>(env: Env<'a>, embedding: Term<'a>, raw: Binary<'a>) -> Term<'a> {
    inline(env, "embed", || {
        let embedding = embedding_of(embedding)?;
        let raw = raw_row(&embedding, raw.as_slice())?;
        let mut continuous = numbers(embedding.continuous_width())?;
        let mut ids = vec![0; embedding.num_ids()];
        embedding.embed(&raw, true, &mut continuous, &mut ids)?;
        Ok((to_binary(env, &continuous), ids).encode(env))
    })
}

/// Returns `{:ok, {continuous, ids}}` of consecutive raw rows, as binaries of f32 and of u32, with the checks of live
/// frames.
#[rustler::nif(schedule = "DirtyCpu")]
fn embed_many<'a>(env: Env<'a>, embedding: Term<'a>, rows: Binary<'a>) -> Term<'a> {
    call(env, "embed", || {
        let embedding = embedding_of(embedding)?;
        let (raw, width, slots) =
            (embedding.raw_width(), embedding.continuous_width(), embedding.num_ids());
        let rows = from_binary("frames", &rows, f32::from_le_bytes)?;
        let count = rows.len() / raw.max(1);
        if rows.len() != count * raw {
            let expected = format!("rows of {raw} numbers");
            return Err(Error::mismatch("frames", expected, format!("{} numbers", rows.len())));
        }
        let mut continuous = numbers(count.saturating_mul(width))?;
        let mut ids = vec![0; count.saturating_mul(slots)];
        for (i, row) in rows.chunks_exact(raw.max(1)).enumerate() {
            let features = continuous.get_mut(i * width..(i + 1) * width).unwrap_or_default();
            let ids = ids.get_mut(i * slots..(i + 1) * slots).unwrap_or_default();
            embedding.embed(row, true, features, ids)?;
        }
        Ok(Embedded { continuous, ids })
    })
}

/// Features and ids of many frames.
struct Embedded {
    continuous: Vec<f32>,
    ids: Vec<u32>,
}

impl Encoder for Embedded {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let ids: &[u8] = bytemuck::cast_slice(&self.ids);
        let ids: Term = NewBinary::from_slice(env, ids).into();
        (to_binary(env, &self.continuous), ids).encode(env)
    }
}

/// Decodes and validates an embedding, before memory is allocated for it.
fn embedding_of(term: Term) -> Result<Embedding> {
    let embedding: Embedding = decode(term)?;
    embedding.validate()?;
    Ok(embedding)
}

/// The values of a packed frame (f32 little-endian); their count must be the embedding's raw width.
fn raw_row(embedding: &Embedding, bytes: &[u8]) -> Result<Vec<f32>> {
    let expected = embedding.raw_width().saturating_mul(size_of::<f32>());
    if bytes.len() != expected {
        let got = format!("{} bytes", bytes.len());
        return Err(Error::mismatch("frame", format!("{expected} bytes"), got));
    }
    from_binary("frame", bytes, f32::from_le_bytes)
}

/// `length` zeros, or `OutOfMemory` if a Spec needs more memory than is available.
fn numbers(length: usize) -> Result<Vec<f32>> {
    let bytes = (length as u64).saturating_mul(size_of::<f32>() as u64);
    memory::caught(|| Ok(memory::zeros(length))).map_err(|error| error.asking("embedding", bytes))
}
