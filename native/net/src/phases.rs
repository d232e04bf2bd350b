//! An axis of a transposed convolution as a convolution of stride 1.
//!
//! A number `o` of the output is the sum of all `x[i] w[k]` with `o + padding = stride i + dilation k` (Dumoulin & Visin 2016,
//! section 4). For `o + padding = stride m + r`, all outputs of the phase `r` read the same places around `m`. So one
//! convolution with the filters of all phases gives the phases of each `m`, which lie side by side in the output (as in the
//! sub-pixel convolution of Shi et al. 2016).

/// An axis of `size` places.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phases {
    size: usize,
    /// The distance of neighbouring places of the transposed kernel.
    step: usize,
    /// Number of phases.
    pub(crate) count: usize,
    /// The kernel of the convolution, its dilation and its padding.
    pub(crate) kernel: usize,
    pub(crate) dilation: usize,
    pub(crate) padding: usize,
    /// The first outputs of the convolution that are none of the layer.
    pub(crate) crop: usize,
}

impl Phases {
    /// The sizes of an axis; `more` is the output padding, less than the stride.
    pub(crate) fn new(size: usize, [kernel, stride, padding, dilation, more]: [usize; 5]) -> Self {
        let reach = dilation * (kernel - 1) + 1 + more;
        // A stride beyond the reach of the only place has no meaning.
        let count = if size == 1 { stride.min(reach) } else { stride };
        let (taps, distance) = match count {
            1 => (kernel, dilation),
            _ => (reach.div_ceil(count), 1),
        };
        let span = (taps - 1) * distance;
        let skipped = span.min(padding / count);
        Phases {
            size,
            step: dilation,
            count,
            kernel: taps,
            dilation: distance,
            padding: span - skipped,
            crop: padding - skipped * count,
        }
    }

    fn span(&self) -> usize {
        (self.kernel - 1) * self.dilation
    }

    /// Outputs of all phases, those outside of the layer included.
    pub(crate) fn outputs(&self) -> usize {
        (self.size + 2 * self.padding - self.span()) * self.count
    }

    /// Numbers of the kernels of all phases together.
    pub(crate) fn taps(&self) -> usize {
        self.kernel * self.count
    }

    /// The phase of a number of the transposed kernel, and its place in the kernel of the phase.
    pub(crate) fn place(&self, k: usize) -> (usize, usize) {
        let at = k * self.step;
        (at % self.count, (self.span() - at / self.count) / self.dilation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_add_the_products_of_the_definition() {
        for (size, kernel, stride, dilation) in (1..5)
            .flat_map(|size| (1..5).flat_map(move |k| (1..5).map(move |s| (size, k, s))))
            .flat_map(|(size, k, s)| (1..4).map(move |d| (size, k, s, d)))
        {
            for (more, padding) in (0..stride).flat_map(|more| (0..7).map(move |p| (more, p))) {
                let full: usize = (size - 1) * stride + dilation * (kernel - 1) + 1 + more;
                let Some(outputs) = full.checked_sub(2 * padding).filter(|n| *n > 0) else {
                    continue;
                };
                let own = Phases::new(size, [kernel, stride, padding, dilation, more]);
                let mut found = vec![vec![]; own.outputs()];
                for (m, k) in
                    (0..own.outputs() / own.count).flat_map(|m| (0..kernel).map(move |k| (m, k)))
                {
                    let (phase, tap) = own.place(k);
                    assert!(phase < own.count && tap < own.kernel);
                    let from = (m + tap * own.dilation).checked_sub(own.padding);
                    found[m * own.count + phase].extend(from.filter(|i| *i < size).map(|i| (i, k)));
                }
                let of_layer = &mut found[own.crop..own.crop + outputs];
                for (o, found) in of_layer.iter_mut().enumerate() {
                    let all = (0..size).flat_map(|i| (0..kernel).map(move |k| (i, k)));
                    let want: Vec<_> =
                        all.filter(|(i, k)| o + padding == stride * i + dilation * k).collect();
                    found.sort_unstable();
                    assert_eq!(*found, want, "{own:?}, output {o}");
                }
            }
        }
    }
}
