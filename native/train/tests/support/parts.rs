//! The heads of a golden case: their logits and labels, and the names of their gradients.

use sconce_nn::head::Gaussian;
use sconce_nn::spec::{Head, HeadKind, Heads, HeadsKind};

use crate::support::Golden;

/// One head of a case. A Gaussian has one number, as each number has its own bounds.
pub(crate) struct Part {
    pub name: &'static str,
    pub kind: HeadKind,
    /// Index of a Gaussian among the numbers of its name.
    pub number: Option<usize>,
}

/// The parts of a case.
pub(crate) fn parts(golden: &Golden) -> Vec<Part> {
    let mut all = vec![];
    let width = |name: &str, rows: usize| golden.optional(name).map(|all| all.len() / rows);
    let rows = golden.config["batch"].as_u64().unwrap() as usize;
    for name in ["choice", "slot"] {
        if let Some(n) = width(&format!("input.logits.{name}"), rows) {
            all.push(Part { name, kind: HeadKind::Categorical(n), number: None });
        }
    }
    if let Some(n) = width("input.logits.bits", rows) {
        all.push(Part { name: "bits", kind: HeadKind::Bernoulli(n), number: None });
    }
    if let Some(low) = golden.optional("input.low.stick") {
        let bounds = low.into_iter().zip(golden.f32("input.high.stick")).enumerate();
        all.extend(bounds.map(|(i, (low, high))| {
            let kind = HeadKind::Gaussian(Gaussian { size: 1, low, high });
            Part { name: "stick", kind, number: Some(i) }
        }));
    }
    all
}

impl Part {
    /// Logits of the head in one row; `prefix` is empty or `other.`.
    pub(crate) fn logits(
        &self,
        golden: &Golden,
        prefix: &str,
        row: usize,
        rows: usize,
    ) -> Vec<f32> {
        let of = |name: &str| golden.f32(&format!("input.{prefix}{name}.{}", self.name));
        let Some(number) = self.number else {
            return part(&of("logits"), row, rows).to_vec();
        };
        let log_stds = of("log_std");
        let means = of("mean");
        let own = part(&means, row, rows);
        // One standard deviation for all rows, or one for each.
        let log_std = match log_stds.len() == own.len() {
            true => log_stds[number],
            false => part(&log_stds, row, rows)[number],
        };
        vec![own[number], log_std]
    }

    pub(crate) fn label(&self, golden: &Golden, row: usize, rows: usize) -> Vec<f32> {
        let name = format!("input.action.{}", self.name);
        match self.number {
            Some(number) => vec![part(&golden.f32(&name), row, rows)[number]],
            None => part(&golden.labels(&name), row, rows).to_vec(),
        }
    }
}

pub(crate) fn part(all: &[f32], row: usize, rows: usize) -> &[f32] {
    let width = all.len() / rows;
    &all[row * width..][..width]
}

/// Adds the gradients of a part's rows to those of its name, in the layout of the case.
pub(crate) fn add(
    golden: &Golden,
    part: &Part,
    gradients: &[Vec<f32>],
    out: &mut Vec<(String, Vec<f64>)>,
) {
    let mut sum = |name: String, at: Vec<usize>, gradients: Vec<f64>| {
        let len = golden.f32(&name.replace("grad.", "")).len();
        let place = out.iter().position(|(known, _)| *known == name);
        let place = place.unwrap_or_else(|| {
            out.push((name, vec![0.0; len]));
            out.len() - 1
        });
        at.iter().zip(gradients).for_each(|(at, gradient)| out[place].1[*at] += gradient);
    };
    let rows = gradients.len();
    let Some(number) = part.number else {
        let all: Vec<f64> = gradients.iter().flatten().map(|v| f64::from(*v)).collect();
        return sum(format!("grad.input.logits.{}", part.name), (0..all.len()).collect(), all);
    };
    for (i, name) in ["mean", "log_std"].into_iter().enumerate() {
        let width = golden.f32(&format!("input.{name}.{}", part.name)).len();
        let numbers = golden.f32(&format!("input.low.{}", part.name)).len();
        let place = |row: usize| if width == numbers { number } else { row * numbers + number };
        let own = gradients.iter().map(|row| f64::from(row[i])).collect();
        sum(format!("grad.input.{name}.{}", part.name), (0..rows).map(place).collect(), own);
    }
}

/// The heads of a case, and a value.
pub(crate) fn heads(parts: &[Part]) -> Heads {
    let head =
        |(i, kind): (usize, HeadKind)| Head { name: format!("part_{i}"), kind, hidden_size: 0 };
    let kinds = parts.iter().map(|part| part.kind).chain([HeadKind::Value(1)]);
    let parts = kinds.enumerate().map(head).collect();
    Heads { kind: HeadsKind::Independent, parts, stream_size: 1, prior: false }
}
