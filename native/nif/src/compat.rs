//! Policies of ExPhil and Axon: `Sconce.Policy.import` and `Sconce.Policy.export`.

use std::io::Write;
use std::path::{Path, PathBuf};

use rustler::{Encoder, Env, Reference, Term};
use sconce_compat::{Asked, Compared, Format, compare, export, import};
use sconce_tensor::{Result, fs};

use crate::border::{Answer, Bytes, Handle, call, decode, perform, pool};
use crate::policy::PolicyHandle;

/// Returns `{:ok, {policy, notes}}`.
#[rustler::nif(schedule = "DirtyIo")]
fn policy_import<'a>(env: Env<'a>, path: String, asked: Term<'a>) -> Term<'a> {
    call(env, "import", || {
        let asked: Asked = decode(asked)?;
        let imported = import(Path::new(&path), &asked)?;
        Ok((PolicyHandle::new(imported.policy), imported.notes))
    })
}

/// An export: its bytes, unless they were written to a file, and what its reader has to know.
struct Exported {
    bytes: Option<Vec<u8>>,
    notes: Vec<String>,
}

impl Answer for Exported {
    fn into_term(self, env: Env<'_>) -> Result<Term<'_>> {
        let bytes = self.bytes.map(|bytes| Bytes(bytes).into_term(env)).transpose()?;
        Ok((bytes, self.notes).encode(env))
    }
}

/// Sends `{:ok, {bytes, notes}}` by message; the bytes are nil if they were written to a file.
// On a worker: a policy may have gigabytes, and only native threads work with a card.
#[rustler::nif]
fn policy_export<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    format: Term<'a>,
    path: Option<String>,
) -> Term<'a> {
    perform(env, "export", || {
        let policy = policy.get()?;
        let format: Format = decode(format)?;
        pool::submit(env, "export", reference, move || {
            let (bytes, notes) = export(&*policy.policy()?, format)?;
            let Some(path) = path.map(PathBuf::from) else {
                return Ok(Exported { bytes: Some(bytes), notes });
            };
            fs::write_atomic(&path, |file| file.write_all(&bytes))?;
            Ok(Exported { bytes: None, notes })
        })
    })
}

/// Sends the differences of a policy's logits from those in a file by message, `{windows, frames, [{head, gap, most}]}`.
// On a worker: only native threads work with a card.
#[rustler::nif]
fn policy_compare<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    path: String,
) -> Term<'a> {
    perform(env, "compare", || {
        let policy = policy.get()?;
        pool::submit(env, "compare", reference, move || {
            let Compared { windows, frames, heads } =
                compare(&*policy.policy()?, Path::new(&path))?;
            Ok((windows, frames, heads))
        })
    })
}
