//! Ops along the frames of a game equal their composed forms.

use sconce_ops as ops;
use sconce_ops::weights::Weight;

use crate::common::composed::{check, check_in_bf16};
use crate::common::{noise, values, wide};

#[test]
fn convolutions_equal_their_composed_forms() {
    // The last filter is longer than a kernel supports.
    for (time, kernel) in [(43, 4), (2, 4), (1, 2), (20, 9)] {
        let inputs = [
            noise(&[3, time, 6], 1),
            noise(&[6, 1, kernel], 2),
            noise(&[3, 6, kernel - 1], 3),
            noise(&[6], 4),
        ];
        for (silu, lengths) in [(false, None), (true, Some([time, 0, time - 1]))] {
            for bias in [false, true] {
                let name = format!("convolution of {time}, {kernel}, {silu}, {bias}");
                let inputs = &inputs[..if bias { 4 } else { 3 }];
                let op = |t: &[Weight]| {
                    let bias = t.get(3).map(|bias| &**bias);
                    let lengths = lengths.map(Into::into);
                    let (y, next) = ops::causal_conv(&t[0], &t[1], bias, &t[2], silu, lengths)?;
                    Ok(vec![y, next])
                };
                check(&name, inputs, op);
                check_in_bf16(&name, inputs, op);
            }
        }
    }
}

#[test]
fn a_convolution_over_one_frame_has_no_state() {
    let state = noise(&[3, 6, 0], 3);
    check("convolution of 1", &[noise(&[3, 43, 6], 1), noise(&[6, 1, 1], 2)], |t| {
        let (y, next) = ops::causal_conv(&t[0], &t[1], None, &state, true, None)?;
        assert_eq!(next.dims(), [3, 6, 0]);
        Ok(vec![y])
    });
}

#[test]
fn token_shifts_equal_their_composed_forms() {
    for (time, lengths) in [(43, None), (43, Some([17, 0, 43])), (1, None)] {
        let inputs = [noise(&[3, time, 6], 1), noise(&[3, 6], 2), noise(&[5, 6], 3)];
        check(&format!("token shift of {time}, {lengths:?}"), &inputs, |t| {
            ops::token_shift(&t[0], &t[1], &t[2], lengths.map(Into::into))
        });
    }
}

#[test]
fn last_states_equal_their_composed_forms() {
    let inputs = [noise(&[3, 43, 6], 1), noise(&[3, 6], 2)];
    check("last", &inputs, |t| Ok(vec![ops::last(&t[0], &t[1], &Some([43, 0, 17].into()))?]));
}

#[test]
fn frames_past_a_length_have_no_effect() {
    let x = noise(&[1, 3, 2], 1);
    let nan = (x.narrow(1, 2, 1).unwrap() * f64::NAN).unwrap();
    let x = candle_core::Tensor::cat(&[x.narrow(1, 0, 2).unwrap(), nan], 1).unwrap();
    let (weight, state) = (noise(&[2, 1, 2], 2), noise(&[1, 2, 1], 3));
    let run = |[x, weight, state]: [&candle_core::Tensor; 3]| {
        ops::causal_conv(x, weight, None, state, true, Some([2].into())).unwrap()
    };
    let inputs = [&x, &weight, &state];
    let ((y, next), (want, want_next)) = (run(inputs.map(wide).each_ref()), run(inputs));
    assert!(crate::common::apart(&y, &want) < 1e-6 && values(&y)[4..] == [0.0; 2]);
    assert_eq!(values(&next), values(&want_next));
}
