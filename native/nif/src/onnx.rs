//! Export of policies: `Sconce.Onnx`.

use std::path::Path;

use rustler::{Env, Reference, Term};
use sconce_onnx::{Form, Format, Model, Port};
use serde::Serialize;

use crate::border::{Data, Handle, decode, perform, pool};
use crate::policy::PolicyHandle;

#[derive(Serialize)]
struct Exported {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

/// Writes a model of a step or of a window. Sends `{:ok, %{inputs: ports, outputs: ports}}` by message.
// On a worker: a policy may have gigabytes, and only native threads work with a card.
#[rustler::nif]
fn onnx_export<'a>(
    env: Env<'a>,
    policy: Handle<PolicyHandle>,
    reference: Reference<'a>,
    path: String,
    (is_window, state, weights): (bool, bool, Term<'a>),
) -> Term<'a> {
    perform(env, "export", || {
        let policy = policy.get()?;
        let form = if is_window { Form::Window { state } } else { Form::Step };
        let format: Format = decode(weights)?;
        pool::submit(env, "export", reference, move || {
            let model = Model::new(&*policy.policy()?, form, format)?;
            model.write(Path::new(&path))?;
            let Model { inputs, outputs, .. } = model;
            Ok(Data(Exported { inputs, outputs }))
        })
    })
}
