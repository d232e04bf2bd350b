//! Checks `rows.cu`, which copies numbers and computes nothing. The begin of a step has its addresses in a table that
//! only a card can read: the steps of policies on a card test it.

use half::bf16;

use crate::Kernels;
use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long, Pointers};
use crate::memory::{Element, Memory, NULL};

fn counted(first: usize, count: usize) -> Vec<f32> {
    (first..first + count).map(|i| i as f32).collect()
}

/// Three columns, from the second on, are copied to those from the first on; other columns are unchanged.
fn columns_go_where_they_belong<T: Element>(kernels: &impl Kernels, kernel: &str) {
    let (rows, wide, to_wide) = (70, 6, 4);
    let mut from =
        Memory::<T>::of(&counted(0, rows * wide).iter().map(|v| v % 97.0).collect::<Vec<_>>());
    let mut to = Memory::<T>::of(&vec![-1.0; rows * to_wide]);
    let sizes = [3, wide, 2, to_wide, 1].map(|size| Int(size as i32));
    let mut arguments = vec![from.argument(), to.argument(), Long(rows as i64)];
    arguments.extend(sizes);
    kernels.launch(kernel, [(rows as u32 * 3).div_ceil(64), 1, 1], [64, 1, 1], &mut arguments);
    let (from, to) = (from.read(), to.read());
    for row in 0..rows {
        let want = &from[row * wide + 2..][..3];
        assert_eq!(to[row * to_wide], -1.0);
        assert_eq!(&to[row * to_wide + 1..][..3], want, "row {row}");
    }
}

/// Three rows; the second one has a part that is not finite. One part is longer than a block's stretch, and `blocks`
/// blocks copy it.
fn a_step_ends_with_states_and_an_answer(kernels: &impl Kernels, blocks: u32) {
    let (rows, widths, width) = (3, [2, 1500], 5);
    let mut parts = widths.map(|width| counted(7, rows * width));
    parts[1][1500 + 1499] = f32::INFINITY;
    let logits = counted(100, rows * width);
    let [mut a, mut b] = parts.each_ref().map(|part| Memory::<f32>::of(part));
    let mut from = Memory::<f32>::of(&logits);
    let [mut to_a, mut to_b] = widths.map(|width| Memory::<f32>::unwritten(rows * width));
    let mut answer = Memory::<f32>::of(&vec![0.0; rows * (width + 1)]);
    let mut arguments = vec![
        Pointers(vec![to_a.argument(), to_b.argument()]),
        a.argument(),
        b.argument(),
        NULL,
        NULL,
    ];
    arguments.extend([widths[0], widths[1], 0, 0, 2].map(|n| Int(n as i32)));
    arguments.extend([from.argument(), answer.argument(), Int(width as i32)]);
    kernels.launch("end_step", [rows as u32, 3, blocks], [64, 1, 1], &mut arguments);
    assert_eq!([to_a.read(), to_b.read()], parts);
    let answer = answer.read();
    for (row, answer) in answer.chunks(width + 1).enumerate() {
        assert_eq!(answer[..width], logits[row * width..][..width]);
        assert_eq!(answer[width], f32::from(row == 1), "row {row}");
    }
}

fn all(kernels: &impl Kernels) {
    columns_go_where_they_belong::<f32>(kernels, "copy_columns_32");
    columns_go_where_they_belong::<bf16>(kernels, "copy_columns_16");
    [1, 2].into_iter().for_each(|blocks| a_step_ends_with_states_and_an_answer(kernels, blocks));
}

#[test]
fn numbers_are_copied_to_their_place() {
    all(&Emulated::compile("rows"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn numbers_on_a_card_are_copied_to_their_place() {
    all(&crate::card::Card::open("rows", sconce_cuda::kernels::ROWS.ptx));
}
