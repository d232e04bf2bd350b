//! The weights that integer codes and 2:4 are worth.

use sconce_ops::weights::two_four::fits;
use sconce_ops::weights::{TwoFour, Weight, Weights};
use sconce_tensor::Result;
use sconce_tensor::tensor::{to_vec, with};

/// Fewest inputs of a matrix that gets codes. The scales of a smaller one would take much of its memory, and packed steps
/// read it in f32 as fast.
pub const LEAST_INPUTS: usize = 32;

/// Whether a weight is a matrix that is worth codes: of rank 2 with at least [`LEAST_INPUTS`] inputs, and named `weight`, or
/// as the matrices of PyTorch's recurrent layers. Tables of embeddings and of earlier choices (`encode`) are not, which are
/// read by row, nor networks of embeddings, nor critics, which are not played. Neither are norms, biases, convolutions, and matrices of other names, such as the decay rates of
/// state-space models.
pub fn is_matrix(name: &str, dims: &[usize]) -> bool {
    let (first, last) = (name.split('.').next(), name.rsplit('.').next());
    let stays = first.is_some_and(|part| part.ends_with("embedding") || part == "critic")
        || name.split('.').any(|part| part == "encode");
    let named = last.is_some_and(|last| {
        last == "weight" || last.starts_with("weight_ih_") || last.starts_with("weight_hh_")
    });
    named && !stays && matches!(dims, [_, inputs] if *inputs >= LEAST_INPUTS)
}

/// Whether a matrix on a CPU has at most two weights of each four inputs that are not 0, and some.
pub fn has_two_four(weights: &Weights) -> bool {
    let has = |(name, weight): (&String, &Weight)| match weight.dims() {
        dims @ [_, inputs] if is_matrix(name, dims) && weight.device().is_cpu() => {
            let fits = |own: &[f32]| fits(own, *inputs) && own.iter().any(|w| *w != 0.0);
            with(weight, |own| Ok(fits(own))).unwrap_or(false)
        }
        _ => false,
    };
    weights.iter().any(has)
}

/// A matrix in 2:4; `None` for other weights. A matrix of zeros, as in a head that has not learned yet, is not pruned.
pub(crate) fn pruned(name: &str, dims: &[usize], values: &[f32]) -> Option<TwoFour> {
    let [_, inputs] = *dims else { return None };
    let is_pruned = is_matrix(name, dims) && values.iter().any(|w| *w != 0.0);
    is_pruned.then(|| TwoFour::of(values, inputs)).flatten()
}

/// Bytes of a weight in a checkpoint: of its codes, of its factors, in 2:4, or as f32.
///
/// # Errors
/// Those of a copy from a card.
pub fn stored_bytes(name: &str, weight: &Weight) -> Result<usize> {
    if let Some(codes) = weight.codes() {
        return Ok(codes.size());
    }
    if let Some(factors) = weight.factors() {
        return Ok(factors.size());
    }
    let values = to_vec(weight)?;
    let plain = size_of_val(values.as_slice());
    Ok(pruned(name, weight.dims(), &values).map_or(plain, |own| own.size()))
}
