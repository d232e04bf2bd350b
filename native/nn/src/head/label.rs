//! Labels: a bit, a class or a value is one f32.

/// Marks a missing previous label. No bit, class or value is infinite.
pub const NONE: f32 = f32::INFINITY;

/// A bit or a class as the 16 bits that files and Elixir store. The largest word marks [`NONE`].
pub fn to_word(label: f32) -> u16 {
    label as u16
}

/// The label of a word, the inverse of [`to_word`].
pub fn of_word(word: u16) -> f32 {
    match word {
        u16::MAX => NONE,
        word => word.into(),
    }
}

/// The previous labels of a head, or none if there was no previous action.
pub fn known(labels: &[f32]) -> Option<&[f32]> {
    (labels.first() != Some(&NONE)).then_some(labels)
}
