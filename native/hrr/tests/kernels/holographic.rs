//! Vectors on a card, beside the same vectors on the CPU.

use std::sync::Arc;

use sconce_hrr::{Codes, Domain, Items, Kind, Sum, Vectors};

use crate::emulated::Emulated;
use crate::memory::Argument::{Float, Int, Long};
use crate::memory::{Memory, NULL};
use crate::{Kernels, assert_near};

const THREADS: u32 = 256;
const WARPS: usize = 8;
const QUERIES: usize = 4;
const DIMENSIONS: [usize; 5] = [8, 16, 128, 1024, 8192];

fn atoms(count: usize, d: usize, seed: u64) -> Arc<Vectors> {
    Arc::new(Vectors::atoms(count, d, seed, Kind::Gaussian).unwrap())
}

fn in_time(count: usize, d: usize, seed: u64) -> Arc<Vectors> {
    atoms(count, d, seed).within(Domain::Time).unwrap()
}

/// The largest number is the unit of the comparison.
fn assert_rows(what: &str, got: &[f32], want: &[f32]) {
    let most = want.iter().fold(f32::MIN_POSITIVE, |most, v| most.max(v.abs()));
    let share = |values: &[f32]| values.iter().map(|v| v / most).collect::<Vec<_>>();
    assert_near(what, &share(got), &share(want), 1e-4);
}

fn factors(d: usize) -> [f32; 2] {
    [(1.0 / d as f64).sqrt() as f32, (2.0 / d as f64).sqrt() as f32]
}

/// The rows of a batch in the other domain.
fn moved(kernels: &impl Kernels, of: &Vectors) -> Vec<f32> {
    let (d, [ends, bins]) = (of.dimension(), factors(of.dimension()));
    let kernel = match of.domain() {
        Domain::Time => "hrr_spectrum",
        Domain::Spectrum => "hrr_time",
    };
    let mut x = Memory::<f32>::of(of.numbers());
    let mut out = Memory::<f32>::unwritten(of.numbers().len());
    let bits = (d / 2).ilog2() as i32;
    kernels.launch(
        kernel,
        [of.count() as u32, 1, 1],
        [THREADS, 1, 1],
        &mut [x.argument(), out.argument(), Int(d as i32), Int(bits), Float(ends), Float(bins)],
    );
    out.read()
}

fn transforms(kernels: &impl Kernels) {
    for d in DIMENSIONS {
        let (spectra, times) = (atoms(3, d, 1), in_time(3, d, 2));
        let want = spectra.within(Domain::Time).unwrap();
        assert_rows(&format!("times of {d}"), &moved(kernels, &spectra), want.numbers());
        let want = times.within(Domain::Spectrum).unwrap();
        assert_rows(&format!("spectra of {d}"), &moved(kernels, &times), want.numbers());
    }
}

fn multiplied(kernels: &impl Kernels, a: &Vectors, b: &Vectors, conjugate: bool) -> Vec<f32> {
    let (d, [ends, bins]) = (a.dimension(), factors(a.dimension()));
    let rows = a.count().max(b.count());
    let step = |of: &Vectors| Int(i32::from(of.count() > 1));
    let (mut x, mut y) = (Memory::<f32>::of(a.numbers()), Memory::<f32>::of(b.numbers()));
    let mut out = Memory::<f32>::unwritten(rows * d);
    kernels.launch(
        "hrr_multiply",
        [(rows * d / 2).div_ceil(THREADS as usize) as u32, 1, 1],
        [THREADS, 1, 1],
        &mut [
            x.argument(),
            y.argument(),
            out.argument(),
            Long(rows as i64),
            Int(d as i32),
            step(a),
            step(b),
            Int(i32::from(conjugate)),
            Float(ends),
            Float(bins),
        ],
    );
    out.read()
}

fn products(kernels: &impl Kernels) {
    for d in [8, 24, 1024] {
        let (many, one) = (atoms(5, d, 1), atoms(1, d, 2));
        for (a, b) in [(&many, &many), (&many, &one), (&one, &many)] {
            let want = a.bind(b).unwrap();
            assert_rows("bound", &multiplied(kernels, a, b, false), want.numbers());
            let want = a.unbind(b).unwrap();
            assert_rows("unbound", &multiplied(kernels, a, b, true), want.numbers());
        }
    }
}

/// Binding in time by the transforms and the product beside the sum that defines it, in f64.
fn convolution_by_its_definition(kernels: &impl Kernels) {
    let d = 64;
    let (a, b) = (in_time(1, d, 5), in_time(1, d, 6));
    // `multiplied` reads numbers, and not their domain.
    let spectrum = |of: &Vectors| Vectors::new(d, moved(kernels, of)).unwrap();
    let (x, y) = (spectrum(&a), spectrum(&b));
    let [ends, bins] = factors(d);
    let product = multiplied(kernels, &x, &y, false);
    let (mut x, mut out) = (Memory::<f32>::of(&product), Memory::<f32>::unwritten(d));
    kernels.launch(
        "hrr_time",
        [1, 1, 1],
        [THREADS, 1, 1],
        &mut [x.argument(), out.argument(), Int(d as i32), Int(5), Float(ends), Float(bins)],
    );
    let sum = |k: usize| {
        let term = |j: usize| f64::from(a.numbers()[j]) * f64::from(b.numbers()[(d + k - j) % d]);
        (0..d).map(term).sum::<f64>() as f32
    };
    assert_rows("convolution", &out.read(), &(0..d).map(sum).collect::<Vec<_>>());
}

fn norms(kernels: &impl Kernels, of: &[f32], d: usize) -> Memory<f32> {
    let rows = of.len() / d;
    let (mut x, mut norms) = (Memory::<f32>::of(of), Memory::<f32>::unwritten(rows));
    kernels.launch(
        "hrr_norms",
        [rows as u32, 1, 1],
        [THREADS, 1, 1],
        &mut [x.argument(), norms.argument(), Int(d as i32)],
    );
    norms
}

fn sums(kernels: &impl Kernels) {
    let (count, d) = (6, 300);
    let batch = atoms(count, d, 3);
    let weights = [2.0, -0.5, 0.25];
    for (group, weights) in [(6, None), (3, Some(&weights[..])), (1, None)] {
        let options = |normalise| Sum {
            group: Some(group),
            weights: weights.map(<[f32]>::to_vec),
            normalise,
        };
        let mut x = Memory::<f32>::of(batch.numbers());
        let mut factors = Memory::<f32>::of(weights.unwrap_or(&[0.0]));
        let sums = count / group;
        let mut out = Memory::<f32>::unwritten(sums * d);
        kernels.launch(
            "hrr_superpose",
            [(sums * d).div_ceil(THREADS as usize) as u32, 1, 1],
            [THREADS, 1, 1],
            &mut [
                x.argument(),
                if weights.is_some() { factors.argument() } else { NULL },
                out.argument(),
                Long(sums as i64),
                Long(group as i64),
                Int(d as i32),
            ],
        );
        let want = batch.superpose(&options(false)).unwrap();
        assert_rows("sums", &out.read(), want.numbers());
        let mut lengths = norms(kernels, &out.read(), d);
        kernels.launch(
            "hrr_normalise",
            [sums as u32, 1, 1],
            [THREADS, 1, 1],
            &mut [out.argument(), lengths.argument(), Int(d as i32)],
        );
        let want = batch.superpose(&options(true)).unwrap();
        assert_rows("normalised sums", &out.read(), want.numbers());
    }
}

/// Codes in words of four, and their lengths.
fn encoded(kernels: &impl Kernels, of: &Vectors) -> (Memory<u32>, Memory<f32>) {
    let d = of.dimension();
    let mut x = Memory::<f32>::of(of.numbers());
    let mut codes = Memory::<u32>::exactly(&vec![7; of.numbers().len() / 4]);
    let mut norms = Memory::<f32>::unwritten(of.count());
    kernels.launch(
        "hrr_encode",
        [of.count() as u32, 1, 1],
        [THREADS, 1, 1],
        &mut [x.argument(), codes.argument(), norms.argument(), Int(d as i32)],
    );
    (codes, norms)
}

fn similarities(kernels: &impl Kernels) {
    for (d, queries, items) in [(8, 1, 1), (100, 3, 9), (1024, 5, 70)] {
        let of = atoms(items, d, 4);
        let noise = atoms(queries, d, 5);
        let taken = of.take(&(0..queries).map(|at| at % items).collect::<Vec<_>>()).unwrap();
        let sum = Sum { group: None, weights: None, normalise: false };
        let x = Vectors::superpose_rows(&[&taken, &noise], &sum).unwrap();
        let grid = [items.div_ceil(WARPS) as u32, queries.div_ceil(QUERIES) as u32, 1];
        let sizes = || [Long(queries as i64), Long(items as i64), Int(d as i32)];
        let mut out = Memory::<f32>::unwritten(queries * items);
        let mut own = norms(kernels, x.numbers(), d);
        let mut others = norms(kernels, of.numbers(), d);
        let (mut a, mut b) = (Memory::<f32>::of(x.numbers()), Memory::<f32>::of(of.numbers()));
        let mut arguments = vec![a.argument(), b.argument(), own.argument(), others.argument()];
        arguments.push(out.argument());
        arguments.extend(sizes());
        kernels.launch("hrr_similarity", grid, [THREADS, 1, 1], &mut arguments);
        let want = x.similarity(Items::Numbers(&of)).unwrap();
        assert_near("cosines", &out.read(), &want, 1e-4);

        let mut out = Memory::<f32>::unwritten(queries * items);
        let ((mut a, mut own), (mut b, mut others)) = (encoded(kernels, &x), encoded(kernels, &of));
        let mut arguments = vec![a.argument(), b.argument(), own.argument(), others.argument()];
        arguments.push(out.argument());
        arguments.extend(sizes());
        kernels.launch("hrr_similarity_codes", grid, [THREADS, 1, 1], &mut arguments);
        let want = x.similarity(Items::Codes(&Codes::of(&of).unwrap())).unwrap();
        assert_near("cosines of codes", &out.read(), &want, 1e-6);
    }
}

/// A vector of zeros is similar to none.
fn zeros(kernels: &impl Kernels) {
    let d = 16;
    let zeros = Vectors::new(d, vec![0.0; d]).unwrap();
    let (codes, lengths) = encoded(kernels, &zeros);
    assert!(codes.exact().iter().all(|word| *word == 0));
    assert_eq!(lengths.read(), [0.0]);
    let mut out = Memory::<f32>::of(zeros.numbers());
    let mut lengths = norms(kernels, zeros.numbers(), d);
    kernels.launch(
        "hrr_normalise",
        [1, 1, 1],
        [THREADS, 1, 1],
        &mut [out.argument(), lengths.argument(), Int(d as i32)],
    );
    assert_eq!(out.read(), zeros.numbers());
}

fn all(kernels: &impl Kernels) {
    transforms(kernels);
    products(kernels);
    convolution_by_its_definition(kernels);
    sums(kernels);
    similarities(kernels);
    zeros(kernels);
}

#[test]
fn vectors_are_those_of_the_cpu() {
    all(&Emulated::compile("holographic"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn kernels_on_a_card_are_those_of_the_cpu() {
    let module = sconce_cuda::kernels::HOLOGRAPHIC;
    all(&crate::card::Card::open(module.name, module.ptx));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn vectors_on_a_card_are_those_of_the_cpu() {
    use sconce_hrr::{CardCodes, CardItems, CardVectors};
    let device = crate::card::open();
    let there = |of: &Vectors| CardVectors::of(of, &device).unwrap();
    let (a, b) = (in_time(4, 1024, 1), atoms(4, 1024, 2));
    let bound = there(&a).bind(&there(&b)).unwrap();
    assert_rows("bound", bound.to_cpu().unwrap().numbers(), a.bind(&b).unwrap().numbers());
    let back = bound.unbind(&there(&b)).unwrap();
    let want = a.bind(&b).unwrap().unbind(&b).unwrap();
    assert_rows("unbound", back.to_cpu().unwrap().numbers(), want.numbers());
    let sum = Sum { group: Some(2), weights: Some(vec![1.0, 3.0]), normalise: true };
    let (got, want) =
        (bound.superpose(&sum).unwrap(), a.bind(&b).unwrap().superpose(&sum).unwrap());
    assert_rows("sums", got.to_cpu().unwrap().numbers(), want.numbers());
    let items = there(&b);
    let codes = CardCodes::of(&items).unwrap();
    let got = back.similarity(CardItems::Numbers(&items)).unwrap();
    let cpu = back.to_cpu().unwrap();
    assert_near("cosines", &got, &cpu.similarity(Items::Numbers(&b)).unwrap(), 1e-4);
    let got = back.similarity(CardItems::Codes(&codes)).unwrap();
    let want = cpu.similarity(Items::Codes(&Codes::of(&b).unwrap())).unwrap();
    assert_near("cosines of codes", &got, &want, 1e-4);
    for d in [24, 16384] {
        let refused = there(&in_time(1, d, 1)).within(Domain::Spectrum).unwrap_err();
        assert_eq!(refused.kind(), sconce_tensor::Kind::Unavailable, "{refused}");
    }
}
