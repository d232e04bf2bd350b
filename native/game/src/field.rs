//! One field of a frame: its values, its feature, its mirror image.

use std::borrow::Cow;

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// One field of a frame: a column of the raw row, or several that belong together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// As in `own.percent`.
    pub name: Cow<'static, str>,
    /// What it is, with its unit.
    #[serde(default)]
    pub meaning: Cow<'static, str>,
    pub kind: FieldKind,
    #[serde(default)]
    pub scale: Scale,
    #[serde(default)]
    pub mirror: Mirror,
    /// The table that has a trained row for each of its ids.
    #[serde(default)]
    pub table: Option<Cow<'static, str>>,
    /// Its value in a frame that does not say it; without one a frame has to.
    #[serde(default)]
    pub default: Option<f32>,
}

/// The values that a field can take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldKind {
    /// Any finite number.
    Number,
    /// A number of `min` to `max`.
    Range { min: f32, max: f32 },
    /// 0 or 1.
    Flag,
    /// A whole number below so many.
    Id(usize),
    /// The same, as a feature each.
    OneHot(usize),
    /// So many finite numbers.
    Vector(usize),
}

/// How a value becomes a feature.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    #[default]
    AsIs,
    /// -1, 0 or 1.
    Sign,
    /// From 0..1 to -1..1.
    Centred,
    Over {
        by: f32,
        min: f32,
        max: f32,
    },
    /// From `min..max` to -1..1, held within.
    Between {
        min: f32,
        max: f32,
    },
}

/// What swapping left and right does to a value.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mirror {
    #[default]
    Keep,
    Negate,
    /// `min + max - v`, of a range.
    Flip,
    /// The value of another field, which takes this one's.
    Swap(Cow<'static, str>),
    /// The id or class that each becomes.
    Permute(Cow<'static, [u16]>),
}

impl Scale {
    pub fn apply(self, value: f32) -> f32 {
        match self {
            Scale::AsIs => value,
            Scale::Sign if value > 0.0 => 1.0,
            Scale::Sign if value < 0.0 => -1.0,
            Scale::Sign => 0.0,
            Scale::Centred => (value - 0.5) * 2.0,
            Scale::Over { by, min, max } => (value / by).clamp(min, max),
            Scale::Between { min, max } => {
                ((value - min) / (max - min) * 2.0 - 1.0).clamp(-1.0, 1.0)
            }
        }
    }

    pub fn formula(self, name: &str) -> String {
        match self {
            Scale::AsIs => name.to_owned(),
            Scale::Sign => format!("sign of {name}"),
            Scale::Centred => format!("({name} - 0.5) * 2"),
            Scale::Over { by, max: f32::INFINITY, .. } => format!("{name} / {by}"),
            Scale::Over { by, min, max } => format!("{name} / {by}, clamp {min}..{max}"),
            Scale::Between { min, max } => format!("{name} of {min}..{max} to -1..1, clamp"),
        }
    }

    /// Refuses numbers by which a value becomes none.
    pub(crate) fn check(self, of: &str) -> Result<()> {
        let sound = match self {
            Scale::AsIs | Scale::Sign | Scale::Centred => true,
            Scale::Over { by, min, max } => by.is_normal() && min <= max,
            Scale::Between { min, max } => is_range(min, max),
        };
        match sound {
            true => Ok(()),
            false => {
                Err(Error::mismatch(of, "a scale by a number other than 0", format!("{self:?}")))
            }
        }
    }
}

pub(crate) fn is_range(min: f32, max: f32) -> bool {
    min < max && (max - min).is_finite()
}

impl FieldKind {
    /// Columns of the raw row.
    pub fn width(self) -> usize {
        match self {
            FieldKind::Vector(size) => size,
            _ => 1,
        }
    }

    /// Features where nothing else is made of it.
    pub fn features(self) -> usize {
        match self {
            FieldKind::Vector(size) | FieldKind::OneHot(size) => size,
            _ => 1,
        }
    }

    /// An error that names the field, unless the value is one of its own.
    #[inline]
    pub fn check(self, value: f32, name: impl FnOnce() -> String) -> Result<()> {
        let (min, max, whole) = match self {
            FieldKind::Number | FieldKind::Vector(_) if value.is_finite() => return Ok(()),
            FieldKind::Number | FieldKind::Vector(_) => (f32::NEG_INFINITY, f32::INFINITY, false),
            FieldKind::Range { min, max } => (min, max, false),
            FieldKind::Flag => (0.0, 1.0, true),
            FieldKind::Id(ids) | FieldKind::OneHot(ids) => {
                (0.0, ids.saturating_sub(1) as f32, true)
            }
        };
        if !value.is_finite() {
            return Err(Error::NonFinite { what: name(), value: value.into() });
        }
        if !(min..=max).contains(&value) {
            return Err(Error::out_of_range(name(), shown(value), shown(min), shown(max)));
        }
        if whole && value.fract() != 0.0 {
            return Err(Error::mismatch(name(), format!("a whole number of 0..{max}"), value));
        }
        Ok(())
    }
}

/// The number that prints as these 32 bits do.
fn shown(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(value.into())
}

impl Mirror {
    /// What becomes of a value that keeps its place.
    pub(crate) fn apply(&self, kind: FieldKind, value: f32) -> f32 {
        match (self, kind) {
            (Mirror::Negate, _) => -value,
            (Mirror::Flip, FieldKind::Range { min, max }) => min + max - value,
            (Mirror::Permute(to), _) => permuted(to, value),
            _ => value,
        }
    }
}

/// The id that another becomes; one that no row speaks of stays.
pub(crate) fn permuted(to: &[u16], value: f32) -> f32 {
    match value >= 0.0 {
        true => to.get(value as usize).map_or(value, |&id| id.into()),
        false => value,
    }
}
