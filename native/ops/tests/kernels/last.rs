//! `last.cu` compared with `ops::last`.

use candle_core::{Device, Tensor, Var};
use half::bf16;
use sconce_ops::last;
use sconce_tensor::rng::Rng;
use sconce_tensor::{tape, tensor};

use crate::Kernels;
use crate::emulated::Emulated;
use crate::memory::Argument::Int;
use crate::memory::{Element, Memory};

/// Frames of each row: one row has none, one has all. There are more channels than a block has
/// threads.
const LENGTHS: [usize; 3] = [2, 0, 5];
const TIME: usize = 5;
const CHANNELS: usize = 40;

/// Numbers are copied, so nothing is rounded.
fn kernels_are_the_op<T: Element>(kernels: &impl Kernels) {
    let batch = LENGTHS.len();
    let numbers = |name: &str, count: usize| {
        let rng = Rng::new(1, name, count as u64);
        (0..count as u64).map(|i| T::of(rng.normal(i)).value()).collect::<Vec<_>>()
    };
    let states = numbers("states", batch * TIME * CHANNELS);
    let (first, dy) = (numbers("first", batch * CHANNELS), numbers("dy", batch * CHANNELS));

    let variable =
        |v: &[f32], dims: &[usize]| Var::from_slice(v, dims, &Device::Cpu).unwrap().into_inner();
    let inputs =
        [variable(&states, &[batch, TIME, CHANNELS]), variable(&first, &[batch, CHANNELS])];
    let _tape = tape::record();
    let y = last(&inputs[0], &inputs[1], &Some(LENGTHS.into())).unwrap();
    let d = Tensor::from_slice(&dy, (batch, CHANNELS), &Device::Cpu).unwrap();
    let store = tape::backward(&y, d).unwrap();
    let want = [&y, store.get(&inputs[0]).unwrap(), store.get(&inputs[1]).unwrap()];
    let want = want.map(|t| tensor::to_vec(t).unwrap());

    let mut lengths = Memory::<i32>::of(&LENGTHS.map(|length| length as f32));
    let (mut y, mut dy) = (Memory::<T>::unwritten(first.len()), Memory::<T>::of(&dy));
    let mut d_states = Memory::<T>::unwritten(states.len());
    let mut d_first = Memory::<T>::unwritten(first.len());
    let (mut states, mut first) = (Memory::<T>::of(&states), Memory::<T>::of(&first));
    let sizes = || [TIME, batch, CHANNELS].map(|n| Int(n as i32));
    // Each row of the grid has several rows of the batch.
    let (grid, block) = ([(CHANNELS as u32).div_ceil(32), 2, 1], [32, 1, 1]);
    let mut arguments = vec![states.argument(), first.argument(), lengths.argument(), y.argument()];
    arguments.extend(sizes());
    kernels.launch(&format!("last_{}_forward", T::NAME), grid, block, &mut arguments);
    let mut arguments =
        vec![lengths.argument(), dy.argument(), d_states.argument(), d_first.argument()];
    arguments.extend(sizes());
    kernels.launch(&format!("last_{}_backward", T::NAME), grid, block, &mut arguments);
    assert_eq!([y, d_states, d_first].map(|got| got.read()), want);
}

#[test]
fn last_states_equal_the_cpu() {
    let kernels = Emulated::compile("last");
    kernels_are_the_op::<f32>(&kernels);
    kernels_are_the_op::<bf16>(&kernels);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn last_states_on_a_card_equal_the_cpu() {
    let ptx = sconce_cuda::kernels::LAST.ptx;
    let kernels = crate::card::Card::open("last", ptx);
    kernels_are_the_op::<f32>(&kernels);
    kernels_are_the_op::<bf16>(&kernels);
}
