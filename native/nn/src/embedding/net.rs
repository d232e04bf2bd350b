//! An embedding that is a small network: the vector of a frame is its input, and its output enters the backbone.

use sconce_net::NetSpec;

use crate::bounds::{size, within};
use crate::{Error, Result};

/// Most numbers of all inputs together.
const MAX_NUMBERS: usize = 1 << 20;

/// Numbers of all inputs.
pub(super) fn numbers(spec: &NetSpec) -> usize {
    let of = |shape: &[usize]| shape.iter().copied().fold(1, usize::saturating_mul);
    spec.inputs.iter().map(|input| of(&input.shape)).fold(0, usize::saturating_add)
}

/// Numbers of the output; 0 for layers that do not fit.
pub(super) fn width(spec: &NetSpec) -> usize {
    spec.check().map_or(0, |outline| outline.output.iter().product())
}

/// Checks that the layers fit, and that what is trained is what plays.
pub(super) fn check(spec: &NetSpec) -> Result<()> {
    let (outline, slots) = spec.slots()?;
    within("embedding.net (numbers of the inputs)", numbers(spec), 1, MAX_NUMBERS)?;
    if let Some(tokens) = spec.inputs.iter().find(|input| input.vocabulary.is_some()) {
        let got = format!("tokens in input {}", tokens.name);
        return Err(Error::mismatch("embedding.net", "inputs of numbers", got));
    }
    let [width] = outline.output[..] else {
        let got = format!("{:?}", outline.output);
        return Err(Error::mismatch("embedding.net (output)", "a vector", got));
    };
    size("embedding.net (numbers of the output)", width, 1)?;
    match slots.iter().find(|slot| !slot.trainable) {
        // Statistics of a batch would make a policy play otherwise than it was trained.
        Some(slot) => Err(Error::mismatch("embedding.net", "no batch_norm", &slot.name)),
        None => Ok(()),
    }
}
