//! Genomes as networks: the values of their nodes.

use sconce_tensor::simd::{LANES, mul_add, sigmoid_with, tanh_with};
use sconce_tensor::{Result, dispatch, memory, pool};

use super::genomes::{Genes, Genomes};
use super::options::Activation;

/// Largest magnitude of an input and of the value of a node: values beyond are cut.
pub(super) const MOST_VALUE: f32 = 1e18;
/// Lanes for few patterns: the floats of an AVX2 vector.
const FEW: usize = 8;
/// Products that a shard of parallel work computes.
const SHARD: usize = 1 << 15;

/// Functions of the nodes of a population.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activations {
    pub(super) hidden: Activation,
    pub(super) output: Activation,
}

/// Inputs in lanes.
struct Patterns<const W: usize> {
    count: usize,
    /// `[chunks, inputs, W]`; unused lanes are 0.
    lanes: Vec<[f32; W]>,
}

impl<const W: usize> Patterns<W> {
    fn new(inputs: &[f32], width: usize, count: usize) -> Self {
        let mut lanes = vec![[0.0; W]; count.div_ceil(W) * width];
        for (pattern, row) in inputs.chunks_exact(width.max(1)).enumerate() {
            let chunk = &mut lanes[pattern / W * width..][..width];
            for (lanes, value) in chunk.iter_mut().zip(row) {
                lanes[pattern % W] = *value;
            }
        }
        Patterns { count, lanes }
    }
}

/// The enabled connections of a genome by target, each target's in the order of the innovations.
#[derive(Default)]
struct Incoming {
    starts: Vec<u32>,
    links: Vec<(u32, f32)>,
}

impl Incoming {
    fn fill(&mut self, nodes: usize, genes: &Genes<'_>) {
        let Incoming { starts, links } = self;
        starts.clear();
        starts.resize(nodes + 2, 0);
        for (target, enabled) in genes.target.iter().zip(genes.enabled) {
            starts[*target as usize + 2] += u32::from(*enabled);
        }
        for at in 2..starts.len() {
            starts[at] += starts[at - 1];
        }
        links.clear();
        links.resize(genes.weight.len(), (0, 0.0));
        for at in 0..genes.weight.len() {
            if genes.enabled[at] {
                let place = &mut starts[genes.target[at] as usize + 1];
                links[*place as usize] = (genes.source[at], genes.weight[at]);
                *place += 1;
            }
        }
    }

    fn of(&self, node: u32) -> &[(u32, f32)] {
        let node = node as usize;
        &self.links[self.starts[node] as usize..self.starts[node + 1] as usize]
    }
}

#[inline(always)]
fn activate<const W: usize, const FMA: bool>(activation: Activation, sum: &mut [f32; W]) {
    match activation {
        Activation::Sigmoid => sum.iter_mut().for_each(|v| *v = sigmoid_with::<FMA>(*v)),
        Activation::SteepSigmoid => {
            sum.iter_mut().for_each(|v| *v = sigmoid_with::<FMA>(4.9 * *v));
        }
        Activation::Tanh => sum.iter_mut().for_each(|v| *v = tanh_with::<FMA>(*v)),
        Activation::Relu => sum.iter_mut().for_each(|v| *v = v.clamp(0.0, MOST_VALUE)),
        Activation::Identity => {
            sum.iter_mut().for_each(|v| *v = v.clamp(-MOST_VALUE, MOST_VALUE));
        }
    }
}

dispatch! {
    /// Values of the outputs of genomes from `first` on, `[genomes, patterns, outputs]`.
    fn evaluate<[const W: usize], [W]>(
        genomes: &Genomes,
        first: usize,
        activations: Activations,
        patterns: &Patterns<W>,
        out: &mut [f32],
    ) {
        let ends = genomes.ends;
        let (sources, fixed) = (ends.sources(), ends.fixed());
        let mut incoming = Incoming::default();
        let mut values = vec![[0.0; W]; fixed];
        for (at, out) in out.chunks_exact_mut(patterns.count * ends.outputs).enumerate() {
            let genes = genomes.get(first + at);
            let nodes = fixed + genes.hidden.len();
            incoming.fill(nodes, &genes);
            if values.len() < nodes {
                values.resize(nodes, [0.0; W]);
            }
            for (chunk, out) in out.chunks_mut(W * ends.outputs).enumerate() {
                values[..ends.inputs]
                    .copy_from_slice(&patterns.lanes[chunk * ends.inputs..][..ends.inputs]);
                values[ends.inputs] = [1.0; W];
                for node in genes.order {
                    let mut sum = [0.0; W];
                    for (source, weight) in incoming.of(*node) {
                        let value = &values[*source as usize];
                        for lane in 0..W {
                            sum[lane] = mul_add::<FMA>(*weight, value[lane], sum[lane]);
                        }
                    }
                    let own = match (*node as usize) < fixed {
                        true => activations.output,
                        false => activations.hidden,
                    };
                    activate::<W, FMA>(own, &mut sum);
                    values[*node as usize] = sum;
                }
                for (lane, row) in out.chunks_exact_mut(ends.outputs).enumerate() {
                    for (place, value) in row.iter_mut().zip(&values[sources..fixed]) {
                        *place = value[lane];
                    }
                }
            }
        }
    }
}

/// The outputs of all genomes on the same patterns, `[genomes, patterns, outputs]`, in `out`.
pub(super) fn forward(
    genomes: &Genomes,
    activations: Activations,
    (inputs, patterns): (&[f32], usize),
    out: &mut Vec<f32>,
) -> Result<()> {
    let count = genomes.count() * patterns * genomes.ends.outputs;
    memory::room("outputs", (count * size_of::<f32>() + 2 * size_of_val(inputs)) as u64)?;
    memory::caught(|| {
        out.resize(count, 0.0);
        Ok(())
    })?;
    if patterns <= FEW {
        spread::<FEW>(genomes, activations, (inputs, patterns), out);
    } else {
        spread::<LANES>(genomes, activations, (inputs, patterns), out);
    }
    Ok(())
}

fn spread<const W: usize>(
    genomes: &Genomes,
    activations: Activations,
    (inputs, patterns): (&[f32], usize),
    out: &mut [f32],
) {
    if out.is_empty() {
        return;
    }
    let lanes = Patterns::<W>::new(inputs, genomes.ends.inputs, patterns);
    let products = genomes.innovation.len() / genomes.count() + genomes.ends.fixed();
    let shard = (SHARD / (products * patterns.next_multiple_of(W))).max(1);
    pool::for_each_rows(out, patterns * genomes.ends.outputs, shard, |first, out| {
        evaluate::<W>(genomes, first, activations, &lanes, out);
    });
}
