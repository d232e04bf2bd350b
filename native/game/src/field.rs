//! One field of a frame: its values, its features and its mirror image.

use std::borrow::Cow;

use sconce_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

/// One field of a frame: one column of the raw row, or several columns with one meaning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Field {
    /// Name, for example `own.percent`.
    pub name: Cow<'static, str>,
    /// Meaning and unit.
    #[serde(default)]
    pub meaning: Cow<'static, str>,
    /// Values that the field can have.
    pub kind: FieldKind,
    /// Conversion from a value to a feature.
    #[serde(default)]
    pub scale: Scale,
    /// Change of the value when left and right are swapped.
    #[serde(default)]
    pub mirror: Mirror,
    /// Table with a trained row for each id of the field.
    #[serde(default)]
    pub table: Option<Cow<'static, str>>,
    /// Value for a frame that does not give this field. Without a default, every frame must give the field.
    #[serde(default)]
    pub default: Option<f32>,
}

/// The values that a field can take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FieldKind {
    /// Any finite number.
    Number,
    /// A number in `min..=max`.
    Range {
        /// Smallest value.
        min: f32,
        /// Largest value.
        max: f32,
    },
    /// 0 or 1.
    Flag,
    /// A whole number below this count of ids.
    Id(usize),
    /// A whole number below this count of classes, encoded as a one-hot.
    OneHot(usize),
    /// A vector of this many finite numbers.
    Vector(usize),
}

/// How a value becomes a feature.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// The value itself.
    #[default]
    AsIs,
    /// The sign of the value: -1, 0 or 1.
    Sign,
    /// Maps 0..1 to -1..1.
    Centred,
    /// `value / by`, clamped to `min..=max`.
    Over {
        /// Divisor.
        by: f32,
        /// Lower bound of the feature.
        min: f32,
        /// Upper bound of the feature.
        max: f32,
    },
    /// Maps `min..max` to -1..1 and clamps the result.
    Between {
        /// Value that becomes -1.
        min: f32,
        /// Value that becomes 1.
        max: f32,
    },
}

/// Change of a value when left and right are swapped.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mirror {
    /// The value does not change.
    #[default]
    Keep,
    /// `-v`.
    Negate,
    /// `min + max - v`, for a range.
    Flip,
    /// This field and the named field exchange their values.
    Swap(Cow<'static, str>),
    /// Replaces each id or class by the list's entry at that index.
    Permute(Cow<'static, [u16]>),
}

impl Scale {
    /// Converts a value to its feature.
    #[inline]
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

    /// The formula of the feature, as text. `name` is the name of the value.
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

    /// Returns an error if the parameters would turn a finite value into a non-finite one.
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
    /// Number of columns in the raw row.
    pub fn width(self) -> usize {
        match self {
            FieldKind::Vector(size) => size,
            _ => 1,
        }
    }

    /// Number of features of the field in the default layout.
    pub fn features(self) -> usize {
        match self {
            FieldKind::Vector(size) | FieldKind::OneHot(size) => size,
            _ => 1,
        }
    }

    /// Returns an error that names the field if the value is not valid for the field.
    #[inline]
    pub fn check(self, value: f32, name: impl FnOnce() -> String) -> Result<()> {
        let (min, max, whole) = self.bounds();
        // Nearly all values end here, so nothing else is inlined.
        let within = value.is_finite() && (min..=max).contains(&value);
        if within && (!whole || value as u32 as f32 == value) {
            return Ok(());
        }
        self.check_in_full(value, name)
    }

    /// The least and the largest valid value, and whether only whole numbers are valid.
    #[inline]
    fn bounds(self) -> (f32, f32, bool) {
        match self {
            FieldKind::Number | FieldKind::Vector(_) => (f32::MIN, f32::MAX, false),
            FieldKind::Range { min, max } => (min, max, false),
            FieldKind::Flag => (0.0, 1.0, true),
            FieldKind::Id(ids) | FieldKind::OneHot(ids) => {
                (0.0, ids.saturating_sub(1) as f32, true)
            }
        }
    }

    #[cold]
    fn check_in_full(self, value: f32, name: impl FnOnce() -> String) -> Result<()> {
        let (min, max, whole) = self.bounds();
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

/// The f64 with the same shortest decimal form as this f32.
fn shown(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(value.into())
}

impl Mirror {
    /// The value after the mirror. For `Swap` the caller exchanges the fields.
    pub(crate) fn apply(&self, kind: FieldKind, value: f32) -> f32 {
        match (self, kind) {
            (Mirror::Negate, _) => -value,
            (Mirror::Flip, FieldKind::Range { min, max }) => min + max - value,
            (Mirror::Permute(to), _) => permuted(to, value),
            _ => value,
        }
    }
}

/// The replacement of an id. An id outside the list is unchanged.
pub(crate) fn permuted(to: &[u16], value: f32) -> f32 {
    match value >= 0.0 {
        true => to.get(value as usize).map_or(value, |&id| id.into()),
        false => value,
    }
}
