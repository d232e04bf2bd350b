//! Transposed convolutions.

use super::windows::check_lists;
use super::{Initial, Walk, axes, shown};
use crate::bounds::{MAX_PARAMETERS, MAX_SIZE, MAX_VALUES, product, within};
use crate::phases::Phases;
use crate::spec::Layer;
use crate::{Error, Result};

impl Walk<'_> {
    pub(super) fn conv_transpose(
        &mut self,
        name: &str,
        at: &str,
        layer: &Layer,
        x: &[usize],
        flops: &mut u64,
    ) -> Result<Vec<usize>> {
        let Layer::ConvTranspose {
            filters,
            kernel,
            stride,
            padding,
            output_padding,
            dilation,
            groups,
            bias,
            ..
        } = layer
        else {
            return Err(Error::mismatch(at, "a transposed convolution", layer.kind()));
        };
        within(&format!("{at}.filters"), *filters, 1, MAX_SIZE)?;
        within(&format!("{at}.groups"), *groups, 1, MAX_SIZE)?;
        axes(at, x, 2..=3)?;
        let lists: [(&str, &[usize], usize); 5] = [
            ("kernel", kernel, 1),
            ("stride", stride, 1),
            ("padding", padding, 0),
            ("dilation", dilation, 1),
            ("output_padding", output_padding, 0),
        ];
        check_lists(at, x, &lists)?;
        for (more, stride) in output_padding.iter().zip(stride) {
            within(&format!("{at}.output_padding"), *more, 0, stride - 1)?;
        }
        let fits = |n: usize| n.is_multiple_of(*groups);
        if !fits(x[0]) || !fits(*filters) {
            let got = format!("{} input channels and {filters} filters", x[0]);
            return Err(Error::mismatch(at, format!("multiples of {groups} groups"), got));
        }
        let sizes = (0..kernel.len())
            .map(|i| [kernel[i], stride[i], padding[i], dilation[i], output_padding[i]]);
        let output = output(at, *filters, &x[1..], sizes.clone())?;
        let phases = x[1..].iter().zip(sizes).map(|(n, sizes)| Phases::new(*n, sizes));
        let phases: Vec<Phases> = phases.collect();
        let all: Vec<usize> = phases.iter().map(Phases::outputs).chain([*filters]).collect();
        product(&format!("{at} (padded values)"), &all, MAX_VALUES)?;
        let each = x[0] / groups;
        let taps: Vec<usize> = phases.iter().map(Phases::taps).chain([*filters, each]).collect();
        product(&format!("{at} (weights with the zeros between them)"), &taps, MAX_VALUES)?;
        let own = filters / groups;
        let mut shape = vec![x[0], own];
        shape.extend(kernel);
        let fan_in = product(&format!("{name}.weight"), &shape[1..], MAX_PARAMETERS)?;
        // PyTorch takes the filters for the inputs.
        let initial = Initial::Uniform(1.0 / (fan_in as f64).sqrt());
        self.slot(format!("{name}.weight"), shape, initial)?;
        if *bias {
            self.slot(format!("{name}.bias"), vec![*filters], initial)?;
        }
        let values: usize = x.iter().product();
        *flops = (2 * fan_in as u64).saturating_mul(values as u64);
        Ok(output)
    }
}

/// The shape of the output: `(n - 1) stride + dilation (kernel - 1) + 1 + output_padding - 2 padding` on each axis.
fn output(
    at: &str,
    filters: usize,
    x: &[usize],
    sizes: impl Iterator<Item = [usize; 5]>,
) -> Result<Vec<usize>> {
    let (mut output, mut full, mut lost) = (vec![filters], vec![], vec![]);
    for (n, [kernel, stride, padding, dilation, more]) in x.iter().zip(sizes) {
        full.push((n - 1) * stride + dilation * (kernel - 1) + 1 + more);
        lost.push(2 * padding);
    }
    for (full, lost) in full.iter().zip(&lost) {
        output.push(full.saturating_sub(*lost));
    }
    match output.contains(&0) {
        false => Ok(output),
        true => {
            let expected = format!("padding of less than {} on both sides together", shown(&full));
            Err(Error::mismatch(at, expected, shown(&lost)))
        }
    }
}
