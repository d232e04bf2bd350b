//! The check of inputs before a step changes anything.

use sconce_game::{InputKind, InputPart};
use sconce_tensor::{Error, Result, dispatch};

/// The values that one number of an input may have.
#[derive(Debug, Clone)]
pub(crate) struct Label {
    name: String,
    /// The number of classes, or 0 for a number that is not a class.
    classes: f32,
    min: f32,
    max: f32,
}

impl Label {
    /// The labels of all parts, in order.
    pub(crate) fn all(parts: &[InputPart]) -> Vec<Label> {
        parts.iter().flat_map(Label::of).collect()
    }

    fn of(part: &InputPart) -> Vec<Label> {
        let (classes, min, max) = match part.kind {
            InputKind::Choice(n) => (n as f32, 0.0, (n - 1) as f32),
            InputKind::Axis { classes, .. } => (classes as f32, 0.0, (classes - 1) as f32),
            InputKind::Flags(_) | InputKind::Bits(_) => (2.0, 0.0, 1.0),
            InputKind::Continuous { min, max, .. } => (0.0, min, max),
        };
        part.number_names().map(|name| Label { name, classes, min, max }).collect()
    }

    /// Whether a value is a class, or a finite number.
    #[inline(always)]
    fn allows(&self, value: f32) -> bool {
        allows(self.classes, value)
    }
}

/// Without branches. The comparisons are false for NaN.
#[inline(always)]
fn allows(classes: f32, value: f32) -> bool {
    // Adding and subtracting 2^23 rounds to the nearest integer.
    let whole = (value + 8_388_608.0) - 8_388_608.0 == value;
    let class = (value >= 0.0) & (value < classes) & whole;
    class | ((classes == 0.0) & (value.abs() <= f32::MAX))
}

/// Checks inputs `[rows, labels]`.
///
/// # Errors
/// `OutOfRange` for NaN, an infinity, and a number that is not a class; it names the input and the row.
pub(crate) fn check(labels: &[Label], inputs: &[f32]) -> Result<()> {
    if let [label] = labels {
        let mut bad = 0;
        count_bad(&mut bad, label.classes, inputs);
        if bad == 0 {
            return Ok(());
        }
    }
    for (row, numbers) in inputs.chunks_exact(labels.len().max(1)).enumerate() {
        for (label, value) in labels.iter().zip(numbers) {
            if !label.allows(*value) {
                let field = format!("{} of row {row}", label.name);
                let (min, max) = (f64::from(label.min), f64::from(label.max));
                return Err(Error::out_of_range(field, f64::from(*value), min, max));
            }
        }
    }
    Ok(())
}

dispatch! {
    /// Counts values that are not allowed.
    fn count_bad(bad: &mut u32, classes: f32, inputs: &[f32]) {
        for value in inputs {
            *bad += u32::from(!allows(classes, *value));
        }
    }
}
