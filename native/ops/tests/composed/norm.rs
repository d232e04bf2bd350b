//! Norms of rows and heads equal their composed forms.

use candle_core::Tensor;
use sconce_ops::weights::Weight;
use sconce_ops::{self as ops, HeadNorms, Norm};

use crate::common::composed::check;
use crate::common::noise;

fn norm(weight: &Weight, bias: Option<&Weight>) -> Norm {
    Norm { weight: weight.clone(), bias: bias.cloned(), eps: 1e-5 }
}

/// Numbers around 3, so that subtracting the mean has an effect.
fn aside(shape: &[usize], seed: u64) -> Tensor {
    (noise(shape, seed) + 3.0).unwrap()
}

#[test]
fn norms_of_rows_equal_their_composed_forms() {
    let mut all = vec![aside(&[2, 43, 24], 1), noise(&[24], 2)];
    check("RMSNorm", &all, |t| Ok(vec![ops::row_norm(&t[0], &norm(&t[1], None))?]));
    all.push(noise(&[24], 3));
    check("LayerNorm", &all, |t| Ok(vec![ops::row_norm(&t[0], &norm(&t[1], Some(&t[2])))?]));
}

#[test]
fn norms_of_groups_equal_their_composed_forms() {
    for groups in [1, 4] {
        for center in [true, false] {
            let name = format!("norm of {groups} groups, centred: {center}");
            check(&name, &[aside(&[2, 43, 24], 1), noise(&[24], 2)], |t| {
                Ok(vec![ops::group_norm(&t[0], &t[1], groups, center, 1e-5)?])
            });
        }
    }
}

#[test]
fn norms_of_queries_and_keys_equal_their_composed_forms() {
    // Two heads of four numbers.
    let mut all = vec![aside(&[2, 43, 3 * 2 * 4], 1), noise(&[4], 2), noise(&[4], 3)];
    check("RMSNorm of heads", &all, |t| {
        let norms = HeadNorms { queries: norm(&t[1], None), keys: norm(&t[2], None) };
        Ok(vec![ops::head_norm(&t[0], &norms)?])
    });
    all.extend([noise(&[4], 4), noise(&[4], 5)]);
    check("LayerNorm of heads", &all, |t| {
        let norms = HeadNorms { queries: norm(&t[1], Some(&t[3])), keys: norm(&t[2], Some(&t[4])) };
        Ok(vec![ops::head_norm(&t[0], &norms)?])
    });
}
