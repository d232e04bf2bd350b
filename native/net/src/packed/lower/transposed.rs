//! Transposed convolutions as convolutions of stride 1 with the filters of all phases.

use sconce_tensor::{Result, memory};

use super::{Lowerer, Place, Product, pair};
use crate::packed::plan::Op;
use crate::packed::shuffle::Shuffle;
use crate::packed::values::Window;
use crate::phases::Phases;
use crate::spec::Layer;

impl Lowerer<'_> {
    /// The product of a transposed convolution, with the weights of a convolution: `[filters, channels / groups, taps]`.
    pub(super) fn transposed(
        &self,
        name: &str,
        layer: &Layer,
        from: Place,
    ) -> Result<Option<Product>> {
        let Layer::ConvTranspose {
            filters,
            kernel,
            stride,
            padding,
            output_padding,
            dilation,
            groups,
            bias,
            activation,
        } = layer
        else {
            return Ok(None);
        };
        let weights = self.net.weight(&format!("{name}.weight"))?;
        let bias = match bias {
            true => self.net.weight(&format!("{name}.bias"))?.to_vec(),
            false => vec![0.0; *filters],
        };
        let kernel = pair(kernel, 1);
        let window = Window {
            kernel,
            stride: pair(stride, 1),
            padding: pair(padding, 0),
            dilation: pair(dilation, 1),
        };
        let taps = kernel[0] * kernel[1];
        let (own, channels) = (filters / groups, self.size(from).channels / groups);
        let mut turned = memory::zeros(weights.len());
        for (c, weights) in weights.chunks_exact(own * taps).enumerate() {
            for (f, weights) in weights.chunks_exact(taps).enumerate() {
                let filter = c / channels * own + f;
                turned[(filter * channels + c % channels) * taps..][..taps]
                    .copy_from_slice(weights);
            }
        }
        Ok(Some(Product {
            weights: turned,
            bias,
            window,
            groups: *groups,
            filters: *filters,
            function: *activation,
            more: Some(pair(output_padding, 0)),
        }))
    }

    /// Packs a transposed convolution with these numbers of output padding.
    pub(super) fn pack_transposed(
        &mut self,
        mut product: Product,
        more: [usize; 2],
        from: Place,
    ) -> Result<Place> {
        let (x, of) = (self.size(from), product.window);
        let [rows, columns] = [0, 1].map(|i| {
            let size = [x.rows, x.width][i];
            Phases::new(size, [of.kernel[i], of.stride[i], of.padding[i], of.dilation[i], more[i]])
        });
        let length = |size: usize, i: usize| {
            let full =
                (size - 1) * of.stride[i] + of.dilation[i] * (of.kernel[i] - 1) + 1 + more[i];
            full - 2 * of.padding[i]
        };
        let (height, width) = (length(x.rows, 0), length(x.width, 1));
        let (filters, groups) = (product.filters, product.groups);
        split(&mut product, [&rows, &columns]);
        let all = self.pack(product, from)?;
        let phases = [rows.count, columns.count];
        if phases == [1, 1] && [rows.crop, columns.crop] == [0, 0] {
            return Ok(all);
        }
        let value = self.value(height, width, filters);
        let own = filters / groups;
        let shuffle = Shuffle { phases, crop: [rows.crop, columns.crop], groups, own };
        Ok(self.step(Op::Shuffle(shuffle), &[all.value], value))
    }
}

/// Replaces the filters by those of all phases: for each group the first phase with its filters, then the next one.
fn split(product: &mut Product, [rows, columns]: [&Phases; 2]) {
    let [_, wide] = product.window.kernel;
    let (phases, own) = (rows.count * columns.count, product.filters / product.groups);
    let taps = product.window.numbers() as usize;
    let channels = product.weights.len() / product.filters / taps;
    let each = rows.kernel * columns.kernel;
    let mut weights = memory::zeros(product.filters * phases * channels * each);
    let mut bias = memory::zeros(product.filters * phases);
    for (filter, numbers) in product.weights.chunks_exact(channels * taps).enumerate() {
        let place = |phase: usize| (filter / own * phases + phase) * own + filter % own;
        (0..phases).for_each(|phase| bias[place(phase)] = product.bias[filter]);
        for tap in 0..taps {
            let ((row, i), (column, j)) = (rows.place(tap / wide), columns.place(tap % wide));
            let first = place(row * columns.count + column) * channels;
            for c in 0..channels {
                weights[(first + c) * each + i * columns.kernel + j] = numbers[c * taps + tap];
            }
        }
    }
    product.window = Window {
        kernel: [rows.kernel, columns.kernel],
        stride: [1, 1],
        padding: [rows.padding, columns.padding],
        dilation: [rows.dilation, columns.dilation],
    };
    product.filters *= phases;
    (product.weights, product.bias) = (weights, bias);
}
