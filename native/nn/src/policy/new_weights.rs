//! Policies in which a caller replaces the values of some weights.

use sconce_ops::weights::Weight;
use sconce_tensor::simd::non_finite;
use sconce_tensor::tensor::tensor;

use super::{Learns, Policy};
use crate::weights::Source;
use crate::{Error, Result, memory};

/// New values of a weight.
#[derive(Debug, Clone, PartialEq)]
pub struct NewWeight {
    /// Name of the weight.
    pub name: String,
    /// Shape of the values, or `None` for that of the weight.
    pub dims: Option<Vec<usize>>,
    /// Values, row-major.
    pub values: Vec<f32>,
}

impl Policy {
    /// A copy of the policy with other values of these weights, on the same device and with the same notes. The other
    /// weights are shared. A replaced weight has no codes and no factors.
    ///
    /// # Errors
    /// `NotFound` for a name that the policy does not have, `Mismatch` for a name that is given twice, another shape or
    /// another number of values, `NonFinite` for values that are not finite. Each error names the weight.
    pub fn with_weights(&self, new: Vec<NewWeight>) -> Result<Self> {
        self.check_weights()?;
        let _turn = self.turn();
        let mut weights = self.weights.clone();
        let mut names = Vec::with_capacity(new.len());
        for NewWeight { name, dims, values } in new {
            let old = weights.get_mut(&name);
            let old = old.ok_or_else(|| Error::not_found(format!("weight {name}")))?;
            let expected = old.dims().to_vec();
            if names.contains(&name) {
                return Err(Error::mismatch(name, "one value", "two"));
            }
            if let Some(dims) = dims
                && dims != expected
            {
                return Err(Error::mismatch(name, shape(&expected), shape(&dims)));
            }
            if values.len() != old.elem_count() {
                let numbers = |n: usize| format!("{n} numbers");
                return Err(Error::mismatch(
                    name,
                    numbers(old.elem_count()),
                    numbers(values.len()),
                ));
            }
            if let Some(value) = non_finite(&values) {
                return Err(Error::NonFinite { what: name, value: value.into() });
            }
            let new = || Weight::from(tensor(values, expected)?).copied_to(self.device());
            *old = memory::caught(new)?;
            names.push(name);
        }
        Self::build(&self.spec, Source::Stored(weights), Learns::Nothing, self.notes.clone())
    }
}

fn shape(dims: &[usize]) -> String {
    format!("the shape {dims:?}")
}

#[cfg(test)]
mod tests {
    use sconce_tensor::Kind;
    use sconce_tensor::tensor::to_vec;
    use serde_json::json;

    use super::*;
    use crate::Spec;

    const BIAS: &str = "heads.go_logits.bias";

    fn policy() -> Policy {
        let spec: Spec = serde_json::from_value(json!({
            "embedding": {"vector": 2},
            "backbone": {"mlp": {
                "hidden_sizes": [3], "layer_norm": false, "residual": false, "dropout": 0.0, "input_dropout": 0.0,
            }},
            "heads": {
                "kind": "independent", "stream_size": 4, "prior": false,
                "parts": [{"name": "go", "kind": {"bernoulli": 2}, "hidden_size": 4}],
            },
        }))
        .unwrap();
        Policy::init(&spec, 1).unwrap().noting(json!({ "step": 10 }))
    }

    fn given(name: &str, dims: Option<Vec<usize>>, values: Vec<f32>) -> Vec<NewWeight> {
        vec![NewWeight { name: name.into(), dims, values }]
    }

    #[test]
    fn a_weight_is_replaced_and_the_others_stay() {
        let old = policy();
        let new = old.with_weights(given(BIAS, Some(vec![2]), vec![0.5, -1.0])).unwrap();
        assert_eq!(new.notes(), old.notes());
        for (name, weight) in new.weights() {
            let values = to_vec(weight).unwrap();
            match name.as_str() {
                BIAS => assert_eq!(values, [0.5, -1.0]),
                name => assert_eq!(values, to_vec(&old.weights()[name]).unwrap(), "{name}"),
            }
        }
        let unchanged = policy();
        for (name, weight) in old.weights() {
            assert_eq!(to_vec(weight).unwrap(), to_vec(&unchanged.weights()[name]).unwrap());
        }
    }

    #[test]
    fn wrong_values_are_refused_by_the_name_of_the_weight() {
        let cases = [
            (given("heads.no", None, vec![0.0; 2]), Kind::NotFound, "heads.no"),
            (given(BIAS, None, vec![0.0; 3]), Kind::Mismatch, BIAS),
            (given(BIAS, Some(vec![2, 1]), vec![0.0; 2]), Kind::Mismatch, BIAS),
            (given(BIAS, None, vec![0.0, f32::NAN]), Kind::NonFinite, BIAS),
            (given(BIAS, None, vec![f32::INFINITY, 0.0]), Kind::NonFinite, BIAS),
            (vec![given(BIAS, None, vec![0.0; 2]); 2].concat(), Kind::Mismatch, BIAS),
        ];
        for (given, kind, name) in cases {
            let error = policy().with_weights(given).err().unwrap();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
