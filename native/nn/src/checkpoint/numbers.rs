//! The values of a checkpoint's weights, and the tensors that hold them.

use std::borrow::Cow;
use std::sync::Arc;

use safetensors::tensor::{Dtype, View};
use sconce_ops::weights::{Coded, Factors, TwoFour};
use sconce_tensor::tensor::to_vec;

use crate::Result;
use crate::policy::matrices::pruned;
use crate::weights::Weight;

/// The suffixes of the names of codes and of their scales.
pub(super) const CODES: &str = ".codes";
pub(super) const SCALES: &str = ".scales";
/// The suffixes of the names of the values of a matrix in 2:4 and of their places.
pub(super) const VALUES: &str = ".values";
pub(super) const PLACES: &str = ".places";
/// The suffixes of the names of the factors of a product.
pub(super) const LEFT: &str = ".left";
pub(super) const RIGHT: &str = ".right";

#[derive(Debug, Clone)]
pub(super) struct Numbers {
    pub(super) dims: Vec<usize>,
    pub(super) values: Values,
}

#[derive(Debug, Clone)]
pub(super) enum Values {
    F32(Vec<f32>),
    Codes(Arc<Coded>),
    Factors(Arc<Factors>),
    TwoFour(TwoFour),
}

impl Numbers {
    /// The values of a weight: its codes or factors, or 2:4 if it is a matrix with this pattern.
    pub(super) fn of(name: &str, weight: &Weight) -> Result<Self> {
        let dims = weight.dims().to_vec();
        if let Some(codes) = weight.codes() {
            return Ok(Numbers { dims, values: Values::Codes(codes.clone()) });
        }
        if let Some(factors) = weight.factors() {
            return Ok(Numbers { dims, values: Values::Factors(factors.clone()) });
        }
        let values = to_vec(weight)?;
        let own = pruned(name, &dims, &values);
        Ok(Numbers { dims, values: own.map_or(Values::F32(values), Values::TwoFour) })
    }

    /// The numbers of 32 bits, apart from scales and factors, which are finite.
    pub(super) fn f32s(&self) -> Option<&[f32]> {
        match &self.values {
            Values::F32(values) => Some(values),
            Values::TwoFour(own) => Some(own.values()),
            Values::Codes(_) | Values::Factors(_) => None,
        }
    }

    /// Bytes of writing. Codes are packed first.
    pub(super) fn bytes(&self) -> usize {
        match &self.values {
            Values::F32(values) => size_of_val(values.as_slice()),
            Values::TwoFour(own) => own.size(),
            Values::Factors(own) => own.size(),
            Values::Codes(codes) => 2 * codes.size(),
        }
    }

    /// The tensors of a file.
    pub(super) fn stored(&self, name: &str) -> Vec<(String, Tensor<'_>)> {
        let f32s = |dims: &[usize], values| (Dtype::F32, dims.to_vec(), Stored::F32(values));
        let of = |name: String, (dtype, dims, values)| (name, Tensor { dtype, dims, values });
        match &self.values {
            Values::F32(values) => vec![of(name.to_string(), f32s(&self.dims, values))],
            Values::TwoFour(own) => {
                let (outputs, places) = (own.outputs(), own.places());
                let values = f32s(&[outputs, own.values().len() / outputs], own.values());
                let bytes = Stored::Bytes(places.to_vec());
                let places = (Dtype::U8, vec![outputs, places.len() / outputs], bytes);
                vec![of(format!("{name}{VALUES}"), values), of(format!("{name}{PLACES}"), places)]
            }
            Values::Factors(own) => {
                let left = f32s(&[own.outputs(), own.rank()], own.left());
                let right = f32s(&[own.rank(), own.inputs()], own.right());
                vec![of(format!("{name}{LEFT}"), left), of(format!("{name}{RIGHT}"), right)]
            }
            Values::Codes(codes) => {
                let (bytes, outputs) = (codes.bytes(), codes.outputs());
                let dtype = if codes.bits() == 8 { Dtype::I8 } else { Dtype::U8 };
                let coded = (dtype, vec![outputs, bytes.len() / outputs], Stored::Bytes(bytes));
                let scales = f32s(&[outputs, codes.groups()], codes.scales());
                vec![of(format!("{name}{CODES}"), coded), of(format!("{name}{SCALES}"), scales)]
            }
        }
    }
}

/// A tensor of a file.
pub(super) struct Tensor<'a> {
    pub(super) dtype: Dtype,
    pub(super) dims: Vec<usize>,
    pub(super) values: Stored<'a>,
}

/// Its values.
pub(super) enum Stored<'a> {
    F32(&'a [f32]),
    Bytes(Vec<u8>),
}

impl Tensor<'_> {
    pub(super) fn bytes(&self) -> Cow<'_, [u8]> {
        match &self.values {
            Stored::F32(values) => super::bytes(values).into(),
            Stored::Bytes(bytes) => bytes.into(),
        }
    }
}

impl View for &Tensor<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.dims
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes()
    }

    fn data_len(&self) -> usize {
        match &self.values {
            Stored::F32(values) => size_of_val(*values),
            Stored::Bytes(bytes) => bytes.len(),
        }
    }
}
