use super::*;
use crate::packed::values::Size;

/// Numbers between -1 and 1.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.7 + (i as f32 * 0.013).sin() * 9.0).sin()).collect()
}

/// The output of a convolution in a form.
fn run(form: Form, channels: usize, filters: usize, kernel: usize, rows: usize) -> Vec<f32> {
    let halo = kernel / 2;
    let size = |rows, channels| Size { rows, width: 9, channels };
    let xs = Value { halo: [halo, halo], ..Value::new(size(rows, channels)) };
    let ys = Value::new(size(rows, filters));
    let window = Window { kernel: [kernel; 2], padding: [halo; 2], ..Window::ONE };
    let (taps, each) = (kernel * kernel, channels * kernel * kernel);
    let weights = numbers(filters * each);
    let own = pack(form, &weights, &numbers(filters), (taps, kernel), ys.size.pixels()).unwrap();
    let Blocks { words, scales, bias } = own;
    let lanes = scales.len();
    let function = Function::Relu6;
    let (words_at, taps) = (0..words.len(), Taps::default());
    let (scales_at, bias_at) = (0..lanes, lanes..2 * lanes);
    let mut conv = Quantised {
        form,
        window,
        filters,
        words: words_at,
        scales: scales_at,
        bias: bias_at,
        function,
        taps,
    };
    conv.place(&xs);
    let mut x = vec![0.0; xs.len()];
    for row in 0..rows {
        let row = xs.row(row);
        let own = numbers(row.end)[row.clone()].to_vec();
        x[row].copy_from_slice(&own);
    }
    let mut y = vec![f32::NAN; ys.len()];
    // Codes of an earlier pass must not matter.
    let count = xs.len() + INPUTS;
    let mut codes = Codes { signed: vec![99; count], unsigned: vec![99; count] };
    conv.run((&[scales, bias].concat(), &words), (&xs, &x), (&ys, &mut y), &mut codes);
    y
}

#[test]
fn all_forms_have_the_same_numbers() {
    let forms = [Form::Model, Form::Avx2, Form::Vnni];
    for form in forms.into_iter().filter(|form| form.runs_here()) {
        for (channels, filters) in [(1, 3), (3, 8), (4, 16), (6, 17), (10, 33), (32, 70)] {
            for (kernel, rows) in [(1, 1), (3, 2), (5, 4)] {
                let want = run(Form::Portable, channels, filters, kernel, rows);
                let got = run(form, channels, filters, kernel, rows);
                assert_eq!(got, want, "{form:?}: {channels} to {filters}, {kernel}");
            }
        }
    }
}

#[test]
fn sums_of_the_largest_codes_do_not_saturate() {
    for form in [Form::Portable, Form::Model, Form::Avx2, Form::Vnni] {
        if !form.runs_here() {
            continue;
        }
        let own = pack(form, &[1.0; 64], &[0.0], (1, 1), 1).unwrap();
        let lanes = own.scales.len();
        let mut conv = Quantised {
            form,
            window: Window::ONE,
            filters: 1,
            words: 0..own.words.len(),
            scales: 0..lanes,
            bias: lanes..2 * lanes,
            function: Function::None,
            taps: Taps::default(),
        };
        let value = |channels| Value::new(Size { rows: 1, width: 1, channels });
        conv.place(&value(64));
        let mut codes = Codes { signed: vec![0; 68], unsigned: vec![0; 68] };
        let (weights, mut y) = ([own.scales, own.bias].concat(), [0.0]);
        conv.run(
            (&weights, &own.words),
            (&value(64), &[-1.0; 64]),
            (&value(1), &mut y),
            &mut codes,
        );
        assert!((y[0] + 64.0).abs() < 1e-4, "{form:?}: {}", y[0]);
    }
}
