//! Directions that are removed from the trunk vector before the heads read it.

use sconce_tensor::Tensor;
use sconce_tensor::simd::{axpy, dot};
use sconce_tensor::tensor::tensor;

use crate::ops::{self, Activation, arrange};
use crate::weights::Weight;
use crate::{Error, Result};

/// Removes the span of some vectors: `x - sum_i (x . u_i) u_i`, where `u` is an orthonormal basis of the span. For a
/// single vector this is `x - (x . u) u`.
pub struct Projection {
    /// The values of `basis`, row by row.
    rows: Vec<f32>,
    /// `[n, width]`
    basis: Weight,
    /// `-basis^T`
    back: Weight,
}

/// Smallest residual norm of a unit vector that still adds a direction to the basis.
const DEPENDENT: f64 = 1e-6;

impl Projection {
    /// Takes `vectors [n, width]`, each of any nonzero length. A vector in the span of earlier vectors adds no
    /// direction.
    pub fn new(vectors: &[f32], width: usize) -> Result<Self> {
        if width == 0 || vectors.is_empty() || !vectors.len().is_multiple_of(width) {
            let expected = format!("vectors of {width} numbers");
            return Err(Error::mismatch("project_out", expected, vectors.len()));
        }
        let mut basis: Vec<Vec<f64>> = vec![];
        for vector in vectors.chunks_exact(width) {
            basis.extend(direction(vector, &basis)?);
        }
        let rows: Vec<f32> = basis.iter().flatten().map(|v| *v as f32).collect();
        let n = basis.len();
        let back = (0..width * n).map(|i| -rows[i % n * width + i / n]).collect();
        Ok(Projection {
            basis: tensor(rows.clone(), (n, width))?.into(),
            back: tensor(back, (width, n))?.into(),
            rows,
        })
    }

    /// Projects one vector `x [width]` in place.
    pub fn apply_to(&self, x: &mut [f32]) -> Result<()> {
        let width = self.basis.dim(1)?;
        if x.len() != width {
            return Err(Error::mismatch("project_out", width, x.len()));
        }
        for u in self.rows.chunks_exact(width) {
            let along = dot(x, u);
            axpy(x, -along, u);
        }
        Ok(())
    }

    /// Projects each row of `x [.., width]` and keeps the shape.
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let (basis, back) = (self.basis.beside(x)?, self.back.beside(x)?);
        let along = ops::linear(x, &basis, None, Activation::None)?;
        arrange::add(x, &ops::linear(&along, &back, None, Activation::None)?)
    }
}

/// The unit vector that a vector adds to an orthonormal basis, or none if the vector lies in the span of the basis.
fn direction(vector: &[f32], basis: &[Vec<f64>]) -> Result<Option<Vec<f64>>> {
    if let Some(value) = vector.iter().find(|v| !v.is_finite()) {
        let value = f64::from(*value);
        return Err(Error::NonFinite { what: "number of project_out".into(), value });
    }
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let unit = |mut v: Vec<f64>, length: f64| {
        v.iter_mut().for_each(|v| *v /= length);
        v
    };
    let given: Vec<f64> = vector.iter().map(|v| f64::from(*v)).collect();
    let length = dot(&given, &given).sqrt();
    if length == 0.0 {
        let field = "length of a vector to project out";
        return Err(Error::out_of_range(field, 0.0, f64::MIN_POSITIVE, f64::INFINITY));
    }
    let mut rest = unit(given, length);
    // Two passes of Gram-Schmidt suffice (Parlett 1998, section 6-9).
    for u in basis.iter().chain(basis) {
        let along = dot(&rest, u);
        rest.iter_mut().zip(u).for_each(|(r, u)| *r -= along * u);
    }
    let left = dot(&rest, &rest).sqrt();
    Ok((left > DEPENDENT).then(|| unit(rest, left)))
}

#[cfg(test)]
mod tests {
    use sconce_tensor::tensor::to_vec;

    use super::*;

    fn apply(vectors: &[f32], x: &[f32]) -> Vec<f32> {
        let projection = Projection::new(vectors, x.len()).unwrap();
        let all = projection.apply(&tensor(x.to_vec(), (1, x.len())).unwrap()).unwrap();
        let mut one = x.to_vec();
        projection.apply_to(&mut one).unwrap();
        for (one, all) in one.iter().zip(to_vec(&all).unwrap()) {
            assert!((one - all).abs() < 1e-6, "one vector: {one}, batch: {all}");
        }
        one
    }

    #[test]
    fn given_directions_are_removed_and_the_rest_is_kept() {
        let (u, v) = ([3.0, 0.0, 4.0f32], [1.0, 2.0, 2.0f32]);
        let y = apply(&u, &[1.0, 5.0, 2.0]);
        // (x . u) u = 2.2 (0.6, 0, 0.8)
        for (y, want) in y.iter().zip([1.0 - 1.32, 5.0, 2.0 - 1.76]) {
            assert!((y - want).abs() < 1e-6, "got {y}, want {want}");
        }
        let both = apply(&[u, v, u].concat(), &[1.0, 5.0, 2.0]);
        for vector in [u, v] {
            let along: f32 = both.iter().zip(vector).map(|(a, b)| a * b).sum();
            assert!(along.abs() < 1e-5, "{along}");
        }
        // Two directions of three are removed; the third remains.
        assert!(both.iter().map(|v| v * v).sum::<f32>() > 0.1);
    }

    #[test]
    fn a_vector_of_wrong_length_of_zeros_or_with_a_nan_is_an_error() {
        let said = |vectors: &[f32]| Projection::new(vectors, 3).err().map(|e| e.to_string());
        let wrong = "project_out: expected vectors of 3 numbers, got 4";
        assert_eq!(said(&[1.0; 4]).as_deref(), Some(wrong));
        assert!(said(&[]).is_some());
        assert!(said(&[0.0; 3]).unwrap().starts_with("length of a vector to project out"));
        assert!(said(&[1.0, f32::NAN, 0.0]).unwrap().contains("not finite"));
    }
}
