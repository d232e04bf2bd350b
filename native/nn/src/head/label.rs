//! What an action is in numbers: a bit, a class or a value is one f32.

/// In labels of a previous action: there was none. No bit, class or value is infinite.
pub const NONE: f32 = f32::INFINITY;

/// A bit or a class as the 16 bits that it has in files and in Elixir; the largest stands for [`NONE`].
pub fn to_word(label: f32) -> u16 {
    label as u16
}

/// The way back of [`to_word`].
pub fn of_word(word: u16) -> f32 {
    match word {
        u16::MAX => NONE,
        word => word.into(),
    }
}

/// A head's part of a previous action; nothing where there was none.
pub fn known(labels: &[f32]) -> Option<&[f32]> {
    (labels.first() != Some(&NONE)).then_some(labels)
}
