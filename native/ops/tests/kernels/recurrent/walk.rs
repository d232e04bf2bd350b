//! `recurrent_walk.cu` compared with `ops::lstm` and `ops::gru`.

use half::bf16;

use super::{Case, Cell, Gru, Lstm, Results, TILE, WHOLE_THREADS, sum};
use crate::emulated::Emulated;
use crate::memory::Argument::Int;
use crate::memory::{Argument, Element, Memory, NULL};
use crate::{Kernels, assert_near};

/// Less than a tile, several tiles, a row that is no whole number of lines, and the widest state.
const SIZES: [(Cell, [usize; 4]); 8] = [
    (Lstm, [1, 1, 1, 16]),
    (Lstm, [35, 4, 1, 80]),
    (Lstm, [70, 3, 1, 32]),
    (Lstm, [2, 2, 1, 256]),
    (Gru, [1, 1, 1, 16]),
    (Gru, [35, 4, 1, 80]),
    (Gru, [70, 3, 1, 48]),
    (Gru, [2, 2, 1, 256]),
];

/// Bytes that a block shares, at most.
const SHARED: u32 = 44_032;

impl Case {
    /// Results of a walk, whose launches have at most two tiles of rows each.
    fn walked<T: Element, O: Element>(&self, kernels: &impl Kernels, name: &str) -> Results {
        const TILES: usize = 2;
        let tiles = self.batch.div_ceil(TILE[0] as usize);
        let lengths: Vec<f32> = self.lengths.iter().map(|n| *n as f32).collect();
        let run = |way: &str, arguments: Vec<Argument>| {
            let kernel = format!("{:?}_{name}_walk_{way}", self.cell).to_lowercase();
            let own = |_| (Memory::<i32>::of(&[0.0; TILES]), Memory::<i32>::of(&lengths));
            let mut launches: Vec<_> = (0..tiles.div_ceil(TILES)).map(own).collect();
            let mut arguments: Vec<Argument> = arguments;
            let given = arguments.len();
            for (i, (met, lengths)) in launches.iter_mut().enumerate() {
                let skipped = i * TILES;
                let here = TILES.min(tiles - skipped) as u32;
                arguments.truncate(given);
                arguments.extend([met.argument(), lengths.argument()]);
                let sizes = [self.time, skipped * TILE[0] as usize, self.batch, self.width];
                arguments.extend(sizes.map(|n| Int(n as i32)));
                let (grid, block) = ([self.width as u32 / TILE[1], here, 1], [WHOLE_THREADS, 1, 1]);
                kernels.launch_with(&kernel, grid, block, Some(SHARED), &mut arguments);
            }
        };
        match self.cell {
            Lstm => self.walked_lstm::<T, O>(run),
            _ => self.walked_gru::<T, O>(run),
        }
    }

    fn walked_lstm<T: Element, O: Element>(&self, run: impl Fn(&str, Vec<Argument>)) -> Results {
        let mut x = Memory::<T>::of(&self.x);
        let [mut bias_ih, mut bias_hh] = self.biases.each_ref().map(|v| Memory::<f32>::of(v));
        let (mut h0, mut c0) =
            (Memory::<T>::of(&self.states[0]), Memory::<f32>::of(&self.states[1]));
        let mut weight = Memory::<O>::of(&self.weight);
        let (mut y, mut gates, mut cells) =
            (self.sequence::<T>(1), self.sequence::<T>(4), self.sequence::<f32>(1));
        let mut c = self.state::<f32>();
        // A pass that saves nothing gives the same.
        for kept in [false, true] {
            let mut arguments = vec![x.argument(), weight.argument(), bias_ih.argument()];
            arguments.extend([bias_hh.argument(), h0.argument(), c0.argument()]);
            arguments.extend([y.argument(), c.argument()]);
            match kept {
                true => arguments.extend([gates.argument(), cells.argument()]),
                false => arguments.extend([NULL, NULL]),
            }
            run("forward", arguments);
        }
        let mut results =
            vec![("y", y.read()), ("h", self.frame(&y.read(), self.time - 1)), ("c", c.read())];

        let mut dy = Memory::<T>::of(&self.with_last_state());
        let (mut dgates, mut previous) = (self.sequence::<O>(4), self.sequence::<O>(1));
        let (mut dh, mut dc) = (self.state::<f32>(), self.state::<f32>());
        let mut dc_last = Memory::<f32>::of(&self.d_states[1]);
        let mut arguments = vec![gates.argument(), c0.argument(), cells.argument(), h0.argument()];
        arguments.extend([y.argument(), dy.argument(), weight.argument(), dc_last.argument()]);
        arguments.extend([dh.argument(), dc.argument(), dgates.argument(), previous.argument()]);
        run("backward", arguments);
        let d = dgates.read();
        results.push(("dx", d.clone()));
        results.push(("dh0", sum(&dh.read(), &self.back(&self.frame(&d, 0)))));
        results.push(("dc0", dc.read()));
        results.push(("dweight", self.weight_gradient(&d, &previous.read())));
        results.extend(["dbias_ih", "dbias_hh"].map(|name| (name, self.bias_gradient(&d))));
        results
    }

    fn walked_gru<T: Element, O: Element>(&self, run: impl Fn(&str, Vec<Argument>)) -> Results {
        let mut x = Memory::<T>::of(&self.x);
        let [mut bias_ih, mut bias_hh] = self.biases.each_ref().map(|v| Memory::<f32>::of(v));
        let mut h0 = Memory::<T>::of(&self.states[0]);
        let (mut first, mut h) = (Memory::<f32>::of(&self.states[0]), self.state::<f32>());
        let mut weight = Memory::<O>::of(&self.weight);
        let (mut y, mut gates, mut reset) =
            (self.sequence::<T>(1), self.sequence::<T>(3), self.sequence::<T>(1));
        for kept in [false, true] {
            let mut arguments = vec![x.argument(), weight.argument(), bias_ih.argument()];
            arguments.extend([bias_hh.argument(), h0.argument(), first.argument()]);
            arguments.extend([y.argument(), h.argument()]);
            match kept {
                true => arguments.extend([gates.argument(), reset.argument()]),
                false => arguments.extend([NULL, NULL]),
            }
            run("forward", arguments);
        }
        let mut results = vec![("y", y.read()), ("h", h.read())];

        let mut dy = Memory::<T>::of(&self.with_last_state());
        let (mut dx, mut d, mut previous) =
            (self.sequence::<O>(3), self.sequence::<O>(3), self.sequence::<O>(1));
        let mut dh = self.state::<f32>();
        let mut arguments = vec![gates.argument(), reset.argument(), h0.argument(), y.argument()];
        arguments.extend([dy.argument(), weight.argument(), dh.argument(), dx.argument()]);
        arguments.extend([d.argument(), previous.argument()]);
        run("backward", arguments);
        results.push(("dx", dx.read()));
        results.push(("dh0", sum(&dh.read(), &self.back(&self.frame(&d.read(), 0)))));
        results.push(("dweight", self.weight_gradient(&d.read(), &previous.read())));
        results.push(("dbias_ih", self.bias_gradient(&dx.read())));
        results.push(("dbias_hh", self.bias_gradient(&d.read())));
        results
    }
}

fn walks_are_the_ops<T: Element, O: Element>(
    kernels: &impl Kernels,
    names: &[&str],
    rounding: f32,
) {
    for (cell, sizes) in SIZES {
        let case = Case::new::<T>(cell, sizes);
        let want = case.on_cpu();
        for name in names {
            let got = case.walked::<T, O>(kernels, name);
            assert_eq!(got.len(), want.len());
            for ((of, got), (also, want)) in got.iter().zip(&want) {
                assert_eq!(of, also);
                assert_near(&format!("{of} of {cell:?} {sizes:?}, {name}"), got, want, rounding);
            }
        }
    }
}

#[test]
fn walks_in_f32_equal_the_cpu() {
    walks_are_the_ops::<f32, f32>(&Emulated::compile("recurrent_walk"), &["f32"], 2e-5);
}

#[test]
fn walks_with_rounded_products_equal_the_cpu_up_to_rounding() {
    let kernels = Emulated::compile("recurrent_walk");
    walks_are_the_ops::<f32, f32>(&kernels, &["tf32"], 1.0 / 256.0);
    walks_are_the_ops::<bf16, bf16>(&kernels, &["bf16"], 1.0 / 64.0);
    walks_are_the_ops::<f32, bf16>(&kernels, &["mixed"], 1.0 / 64.0);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn walks_on_a_card_equal_the_cpu() {
    let kernels =
        crate::card::Card::open("recurrent_walk", sconce_cuda::kernels::RECURRENT_WALK.ptx);
    walks_are_the_ops::<f32, f32>(&kernels, &["f32"], 2e-5);
    walks_are_the_ops::<f32, f32>(&kernels, &["tf32"], 1.0 / 256.0);
    walks_are_the_ops::<bf16, bf16>(&kernels, &["bf16"], 1.0 / 64.0);
    walks_are_the_ops::<f32, bf16>(&kernels, &["mixed"], 1.0 / 64.0);
}
