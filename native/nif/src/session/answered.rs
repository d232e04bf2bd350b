//! Encodes the answer of a decision.

use std::borrow::Cow;

use rustler::{Encoder, Env, Term};
use sconce_nn::heads::Decision;
use sconce_serve::session::Session;

use crate::border::to_binary;

/// A session's last answer.
pub(crate) struct Answered<'s> {
    decision: Cow<'s, Decision>,
    frame: u64,
    logits: bool,
}

impl<'s> Answered<'s> {
    pub(crate) fn of(session: &'s Session, logits: bool) -> Self {
        let (decision, frame) = session.last();
        Answered { decision: Cow::Borrowed(decision), frame, logits }
    }

    pub(crate) fn into_owned(self) -> Answered<'static> {
        Answered { decision: Cow::Owned(self.decision.into_owned()), ..self }
    }
}

/// Encodes `{choices, confidence, logits or nil, frame}`.
impl Encoder for Answered<'_> {
    fn encode<'a>(&self, env: Env<'a>) -> Term<'a> {
        let Decision { logits, choices, confidence } = &*self.decision;
        let logits = self.logits.then(|| to_binary(env, logits));
        // Bits and classes become integers. So do whole values of continuous heads; Elixir knows which heads those are.
        let label = |label: &f32| match label.fract() == 0.0 && (0.0..65_536.0).contains(label) {
            true => (*label as i64).encode(env),
            false => label.encode(env),
        };
        let choices: Vec<Term> = choices.iter().map(label).collect();
        (choices, confidence, logits, self.frame).encode(env)
    }
}
