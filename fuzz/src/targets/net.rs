//! Loads networks of images, signals and tokens, and runs them.

use std::path::Path;

use sconce_net::{Function, Input, Layer, Net, NetSpec, Packed, Storage};
use sconce_tensor::digest::sha256;
use sconce_tensor::{Result, fs};

use crate::json::{self, Node};
use crate::rng::Rng;
use crate::safetensors::{self, File};
use crate::{bytes, scratch};

/// Key of the manifest in the header's metadata.
const KEY: &str = "sconce.net";
/// Most floating-point operations and values of a network that is run, so that a run ends soon.
const MOST: u64 = 1 << 22;

fn conv(rank: usize, filters: usize, groups: usize) -> Layer {
    Layer::Conv {
        filters,
        kernel: vec![3; rank],
        stride: vec![1; rank],
        padding: vec![1; rank],
        dilation: vec![1; rank],
        groups,
        bias: true,
        activation: Function::Relu,
    }
}

fn transposed(rank: usize, filters: usize, groups: usize) -> Layer {
    Layer::ConvTranspose {
        filters,
        kernel: vec![3; rank],
        stride: vec![2; rank],
        padding: vec![1; rank],
        output_padding: vec![1; rank],
        dilation: vec![1; rank],
        groups,
        bias: true,
        activation: Function::None,
    }
}

fn dense(size: usize) -> Layer {
    Layer::Dense { size, bias: false, activation: Function::Tanh }
}

fn input(name: &str, shape: &[usize], vocabulary: Option<usize>) -> Input {
    Input { name: name.into(), shape: shape.to_vec(), vocabulary }
}

fn networks() -> Vec<NetSpec> {
    let norm = Layer::BatchNorm { epsilon: 1e-5, momentum: 0.1, activation: Function::Silu };
    let two = || vec![2; 2];
    let max = Layer::MaxPool { kernel: two(), stride: two(), padding: vec![1; 2] };
    let mean =
        Layer::MeanPool { kernel: two(), stride: two(), padding: vec![1; 2], count_padding: false };
    let image = vec![
        conv(2, 4, 2),
        norm,
        max,
        Layer::Residual { layers: vec![conv(2, 4, 4)] },
        mean,
        Layer::Upsample { factor: two() },
        transposed(2, 4, 2),
        Layer::Concat { branches: vec![vec![conv(2, 3, 1)], vec![]] },
        Layer::Flatten,
        dense(3),
    ];
    let tokens = vec![Layer::Embed { size: 4 }, Layer::Attention { heads: 2 }, Layer::GlobalMax];
    let signal = vec![conv(1, 5, 1), transposed(1, 3, 1), Layer::GlobalMean];
    let both = vec![
        Layer::Inputs { branches: vec![("words".into(), tokens), ("wave".into(), signal)] },
        Layer::Activation { function: Function::HardSwish },
        dense(2),
    ];
    let inputs = vec![input("words", &[4], Some(7)), input("wave", &[2, 9], None)];
    vec![
        NetSpec { inputs: vec![input("image", &[2, 6, 5], None)], layers: image },
        NetSpec { inputs, layers: both },
    ]
}

pub fn seeds() -> Vec<Vec<u8>> {
    let dir = scratch::folder("net");
    let path = dir.join("seed");
    let saved = |spec: &NetSpec| {
        Net::init(spec, 1).and_then(|net| net.save(&path)).expect("a file");
        fs::read(&path, u64::MAX).expect("a file")
    };
    let seeds = networks().iter().map(saved).collect();
    scratch::remove(&dir);
    seeds
}

/// Changes the declaration, the tensors or their numbers, and keeps the digest right.
pub fn mutate(rng: &mut Rng, input: &mut Vec<u8>) {
    let Some(mut file) = File::parse(input) else { return bytes::mutate(rng, input) };
    let Some(mut manifest) = manifest(&file) else { return safetensors::mutate(rng, input) };
    for _ in 0..1 + rng.up_to(2) {
        match rng.below(6) {
            0..3 => json::mutate(rng, &mut manifest),
            3 => json::mutate(rng, &mut file.header),
            _ => safetensors::numbers(rng, &mut file.data),
        }
    }
    sign(&mut file, manifest);
    *input = file.encode();
}

fn manifest(file: &File) -> Option<Node> {
    match file.header.get("__metadata__")?.get(KEY)? {
        Node::Text(text) => Node::parse(text.as_bytes()),
        _ => None,
    }
}

/// The digest is of the declaration as it is written. One that cannot be read has none.
fn sign(file: &mut File, mut manifest: Node) {
    let spec = manifest.get("spec").map(Node::write);
    let spec: Option<NetSpec> = spec.and_then(|text| serde_json::from_str(&text).ok());
    if let Some(text) = spec.and_then(|spec| serde_json::to_string(&spec).ok()) {
        manifest.set("sha256", Node::Text(sha256([text.as_bytes(), &file.data])));
    }
    if let Some(metadata) = file.header.get_mut("__metadata__") {
        metadata.set(KEY, Node::Text(manifest.write()));
    }
}

pub fn run(bytes: &[u8], dir: &Path) -> Result<()> {
    let path = super::write(dir, "net.safetensors", bytes)?;
    let net = Net::load(&path)?;
    let again = dir.join("again.safetensors");
    net.save(&again)?;
    assert!(Net::load(&again)?.spec() == net.spec(), "another declaration after a save");
    let outline = net.outline();
    let values = |shape: &[usize]| shape.iter().product::<usize>() as u64;
    let all: u64 = outline.layers.iter().map(|layer| values(&layer.output)).sum();
    let inputs: u64 = net.spec().inputs.iter().map(|input| values(&input.shape)).sum();
    if outline.flops.max(all).max(inputs) > MOST {
        return Ok(());
    }
    let mut packed = Packed::new(&net, Storage::F32)?;
    let inputs: Vec<Vec<f32>> =
        net.spec().inputs.iter().map(|input| vec![0.0; values(&input.shape) as usize]).collect();
    let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
    let mut first = vec![0.0; values(&outline.output) as usize];
    let mut second = first.clone();
    packed.run(&inputs, &mut first)?;
    packed.run(&inputs, &mut second)?;
    let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(bits(&first) == bits(&second), "two passes differ");
    Ok(())
}
