//! One part of an input: a set of buttons, an axis or a choice, as raw values, as labels and as features.

use std::borrow::Cow;

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::check::{check_name, fits, within};
use crate::field::{FieldKind, Scale, is_range, permuted};

/// One part of an input. A head with the same name chooses it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputPart {
    /// Name, for example `main_x`.
    pub name: Cow<'static, str>,
    /// Meaning and unit.
    #[serde(default)]
    pub meaning: Cow<'static, str>,
    /// Values that the part can have.
    pub kind: InputKind,
    /// Change of the part when left and right are swapped.
    #[serde(default)]
    pub mirror: InputMirror,
    /// Conversion from a raw value to a feature. A choice becomes a one-hot instead.
    #[serde(default)]
    pub scale: Scale,
    /// Value of the part at rest. A frame is neutral when every part that has a rest value is at rest.
    #[serde(default)]
    pub rest: Option<f32>,
}

/// Values of a part of an input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputKind {
    /// Named buttons, each held or released.
    Flags(Cow<'static, [Cow<'static, str>]>),
    /// This many buttons without names.
    Bits(usize),
    /// A number in `min..=max`. Heads divide the range into `classes` steps by default.
    Axis {
        /// Smallest value.
        min: f32,
        /// Largest value.
        max: f32,
        /// Default number of steps, both ends included.
        classes: usize,
    },
    /// One of this many choices.
    Choice(usize),
    /// A vector of `size` numbers in `min..=max`, chosen without steps.
    Continuous {
        /// Length of the vector.
        size: usize,
        /// Smallest value.
        min: f32,
        /// Largest value.
        max: f32,
    },
}

/// Change of a part when left and right are swapped.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputMirror {
    /// The part does not change.
    #[default]
    Keep,
    /// `min + max - v`, for an axis.
    Flip,
    /// Replaces each button or choice by the list's entry at that index.
    Permute(Cow<'static, [u16]>),
}

impl InputKind {
    /// Number of raw values, which is also the number of labels.
    pub fn numbers(&self) -> usize {
        match self {
            InputKind::Flags(names) => names.len(),
            InputKind::Bits(n) => *n,
            InputKind::Axis { .. } | InputKind::Choice(_) => 1,
            InputKind::Continuous { size, .. } => *size,
        }
    }

    /// Entries in an action mask: one for each button, step or choice, none for a vector.
    pub fn mask_size(&self) -> usize {
        match self {
            InputKind::Flags(names) => names.len(),
            InputKind::Bits(n) | InputKind::Choice(n) => *n,
            InputKind::Axis { classes, .. } => *classes,
            InputKind::Continuous { .. } => 0,
        }
    }

    /// Whether the entries of an action mask are those of classes, of which a player chooses one.
    pub fn has_classes(&self) -> bool {
        matches!(self, InputKind::Axis { .. } | InputKind::Choice(_))
    }

    /// Number of features.
    pub fn features(&self) -> usize {
        match self {
            InputKind::Flags(names) => names.len(),
            InputKind::Axis { .. } => 1,
            InputKind::Bits(n) | InputKind::Choice(n) => *n,
            InputKind::Continuous { size, .. } => *size,
        }
    }

    /// The kind of values that each raw value can have.
    pub fn values(&self) -> FieldKind {
        match *self {
            InputKind::Flags(_) | InputKind::Bits(_) => FieldKind::Flag,
            InputKind::Axis { min, max, .. } | InputKind::Continuous { min, max, .. } => {
                FieldKind::Range { min, max }
            }
            InputKind::Choice(n) => FieldKind::Id(n),
        }
    }

    /// The label of a raw value: a bit, a class below `classes`, or the value itself. An axis takes the nearest class;
    /// a tie takes the upper class.
    pub fn label(&self, value: f32, classes: usize) -> f32 {
        match *self {
            InputKind::Flags(_) | InputKind::Bits(_) => bucket(value, classes),
            // A range of 0..1 needs no scaling; skipping it avoids rounding errors.
            InputKind::Axis { min: 0.0, max: 1.0, .. } => bucket(value, classes),
            InputKind::Axis { min, max, .. } => bucket((value - min) / (max - min), classes),
            InputKind::Choice(_) => f32::from(value as u16),
            InputKind::Continuous { min, max, .. } => value.clamp(min, max),
        }
    }

    /// The raw value of a label, the inverse of [`label`](Self::label).
    pub fn value(&self, label: f32, classes: usize) -> f32 {
        let share = || label / classes.saturating_sub(1) as f32;
        match *self {
            InputKind::Flags(_) | InputKind::Bits(_) => share(),
            InputKind::Axis { min: 0.0, max: 1.0, .. } => share(),
            InputKind::Axis { min, max, .. } => min + share() * (max - min),
            InputKind::Choice(_) | InputKind::Continuous { .. } => label,
        }
    }
}

/// The class below `classes` of a value in 0..1.
fn bucket(value: f32, classes: usize) -> f32 {
    let buckets = classes.saturating_sub(1) as f32;
    f32::from((value.clamp(0.0, 1.0) * buckets + 0.5) as u16)
}

impl InputPart {
    /// The name of each raw value.
    pub fn number_names(&self) -> impl Iterator<Item = String> {
        let of = |i: usize| match &self.kind {
            InputKind::Flags(names) => {
                format!("{}.{}", self.name, names.get(i).map_or("", |name| name))
            }
            InputKind::Bits(_) => format!("{}.{i}", self.name),
            InputKind::Continuous { size, .. } if *size > 1 => format!("{}[{i}]", self.name),
            InputKind::Continuous { .. } => self.name.to_string(),
            InputKind::Axis { .. } | InputKind::Choice(_) => self.name.to_string(),
        };
        (0..self.kind.numbers()).map(of)
    }

    /// The name of each raw value, except that a vector has one name for all its values.
    pub(crate) fn column_names(&self) -> Vec<String> {
        match self.kind {
            InputKind::Continuous { .. } => vec![self.name.to_string()],
            _ => self.number_names().collect(),
        }
    }

    /// Swaps left and right in the raw values of this part.
    pub(crate) fn swap_sides(&self, numbers: &mut [f32]) {
        match (&self.mirror, &self.kind) {
            (InputMirror::Keep, _) => {}
            (InputMirror::Flip, InputKind::Axis { min: 0.0, max: 1.0, .. }) => {
                numbers.iter_mut().for_each(|value| *value = 1.0 - *value);
            }
            (
                InputMirror::Flip,
                InputKind::Axis { min, max, .. } | InputKind::Continuous { min, max, .. },
            ) => {
                numbers.iter_mut().for_each(|value| *value = min + max - *value);
            }
            (InputMirror::Permute(to), InputKind::Flags(_) | InputKind::Bits(_)) => {
                // Validation allows only pairs. Skipping `i >= to` swaps each pair once.
                for (from, &to) in to.iter().enumerate().filter(|(i, to)| *i < usize::from(**to)) {
                    numbers.swap(from, to.into());
                }
            }
            (InputMirror::Permute(to), _) => {
                numbers.iter_mut().for_each(|value| *value = permuted(to, *value));
            }
            (InputMirror::Flip, _) => {}
        }
    }

    /// Writes the features of the part's raw values.
    fn encode(&self, numbers: &[f32], out: &mut [f32]) {
        match self.kind {
            InputKind::Choice(_) => {
                out.fill(0.0);
                let chosen = numbers.first().filter(|value| **value >= 0.0);
                if let Some(one) = chosen.and_then(|value| out.get_mut(*value as usize)) {
                    *one = 1.0;
                }
            }
            InputKind::Flags(_)
            | InputKind::Bits(_)
            | InputKind::Axis { .. }
            | InputKind::Continuous { .. } => {
                for (out, &value) in out.iter_mut().zip(numbers) {
                    *out = self.scale.apply(value);
                }
            }
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        let name = &self.name;
        let what = || format!("input part {name}");
        let not = |expected: &str, got: String| Err(Error::mismatch(what(), expected, got));
        match &self.kind {
            InputKind::Flags(names) => {
                within(&format!("{} (buttons)", what()), names.len(), 1, MAX_NUMBERS)?;
                for (i, button) in names.iter().enumerate() {
                    check_name(&what(), button)?;
                    if names[..i].contains(button) {
                        return not("distinct buttons", format!("{button} twice"));
                    }
                }
            }
            InputKind::Axis { min, max, classes } => {
                if !is_range(*min, *max) {
                    return not("a range from a number to a greater one", format!("{min}..{max}"));
                }
                within(&format!("{} (classes)", what()), *classes, 2, MAX_CLASSES)?;
            }
            InputKind::Continuous { size, min, max } => {
                if !is_range(*min, *max) {
                    return not("a range from a number to a greater one", format!("{min}..{max}"));
                }
                within(&format!("{} (size)", what()), *size, 1, MAX_NUMBERS)?;
            }
            InputKind::Bits(n) => within(&format!("{} (buttons)", what()), *n, 1, MAX_NUMBERS)?,
            InputKind::Choice(n) => within(&format!("{} (choices)", what()), *n, 2, MAX_CLASSES)?,
        }
        self.scale.check(&what())?;
        match (&self.mirror, &self.kind) {
            (InputMirror::Keep, _)
            | (InputMirror::Flip, InputKind::Axis { .. } | InputKind::Continuous { .. }) => {}
            (InputMirror::Permute(to), InputKind::Flags(names)) => {
                check_pairs(&what(), to, names.len())?
            }
            (InputMirror::Permute(to), InputKind::Bits(n) | InputKind::Choice(n)) => {
                check_pairs(&what(), to, *n)?;
            }
            (InputMirror::Flip, _) => return not("an axis to flip", "another part".into()),
            (InputMirror::Permute(_), _) => {
                return not("buttons or choices to swap", "an axis".into());
            }
        }
        match self.rest {
            Some(rest) => self.kind.values().check(rest, || format!("{} (rest)", what())),
            None => Ok(()),
        }
    }
}

/// Maximum number of raw values of all parts together.
pub(crate) const MAX_NUMBERS: usize = 1 << 10;
/// Maximum number of classes. The largest u16 is not a class; it marks a missing label.
pub const MAX_CLASSES: usize = u16::MAX as usize;

/// Checks that the replacement list of a mirror is its own inverse.
pub(crate) fn check_pairs(what: &str, to: &[u16], size: usize) -> Result<()> {
    let back = |(i, to_i): (usize, &u16)| {
        to.get(usize::from(*to_i)).is_some_and(|back| usize::from(*back) == i)
    };
    match to.len() == size && to.iter().enumerate().all(back) {
        true => Ok(()),
        false => {
            let expected = format!("a mirror of {size} in which pairs are swapped");
            Err(Error::mismatch(what, expected, format!("{to:?}")))
        }
    }
}

/// Writes the features of an input's raw values.
pub fn encode(parts: &[InputPart], mut numbers: &[f32], mut out: &mut [f32]) {
    for part in parts {
        let (own, rest) = numbers.split_at(part.kind.numbers().min(numbers.len()));
        let width = part.kind.features().min(out.len());
        let (here, tail) = std::mem::take(&mut out).split_at_mut(width);
        part.encode(own, here);
        (numbers, out) = (rest, tail);
    }
}

/// Swaps left and right in the raw values of an input.
pub fn mirror_input(parts: &[InputPart], numbers: &mut [f32]) -> Result<()> {
    fits("input", parts.iter().map(|part| part.kind.numbers()).sum(), numbers.len())?;
    let mut rest = numbers;
    for part in parts {
        let (own, tail) = rest.split_at_mut(part.kind.numbers());
        part.swap_sides(own);
        rest = tail;
    }
    Ok(())
}
