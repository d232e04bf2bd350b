//! Checks that threads of the emulated card wait for each other as on a card.

use std::process::{Command, Output};

use crate::Kernels;
use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long, Pointers};
use crate::memory::Memory;

/// Integers as numbers, whose sums are exact.
fn count(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[test]
fn a_block_waits_for_all_its_threads() {
    let mut x = Memory::<f32>::of(&count(3 * 256));
    let mut sums = Memory::<f32>::unwritten(3);
    let arguments = &mut [x.argument(), sums.argument()];
    Emulated::compile("emulator").launch("block_sum", [3, 1, 1], [256, 1, 1], arguments);
    let want: Vec<f32> = count(3 * 256).chunks(256).map(|block| block.iter().sum()).collect();
    assert_eq!(sums.read(), want);
}

#[test]
fn a_warp_shares_numbers_only_within_itself() {
    let mut x = Memory::<f32>::of(&count(64));
    let mut y = Memory::<f32>::unwritten(64);
    let arguments = &mut [x.argument(), y.argument()];
    Emulated::compile("emulator").launch("rotate", [1, 1, 1], [64, 1, 1], arguments);
    let want: Vec<f32> = (0..64).map(|i| (i / 32 * 32 + (i + 2) % 32) as f32).collect();
    assert_eq!(y.read(), want);
}

#[test]
fn pointers_to_pointers_are_resolved() {
    let mut parts = [1.0, 2.0, 3.0].map(|x| Memory::<f32>::of(&[x]));
    let mut sum = Memory::<f32>::unwritten(1);
    let mut all: Vec<_> = parts.iter_mut().map(Memory::argument).collect();
    all.push(Long(0));
    let arguments = &mut [Pointers(all), sum.argument()];
    Emulated::compile("emulator").launch("sum_of_pointers", [1, 1, 1], [4, 1, 1], arguments);
    assert_eq!(sum.read(), [6.0]);
}

#[test]
fn lanes_that_wait_only_for_each_other_continue_alone() {
    let mut x = count(32);
    x[20] = -20.0;
    let (mut x, mut y) = (Memory::<f32>::of(&x), Memory::<f32>::unwritten(2));
    let arguments = &mut [x.argument(), y.argument()];
    Emulated::compile("emulator").launch("halves", [1, 1, 1], [32, 1, 1], arguments);
    let sums = [120.0, (16..32).sum::<i32>() as f32 - 40.0 + 100.0];
    assert_eq!(y.read(), sums);
}

/// As a compiler for cards does, unless the kernel asks for the roundings one by one.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_product_and_a_sum_are_rounded_once() {
    // The square of x is 1 + 2^-11 + 2^-24. The last term is lost when it is rounded.
    let (x, lost) = (1.0 + 1.0 / 4096.0, 1.0 / (1 << 24) as f32);
    let mut x = Memory::<f32>::of(&[x, -(x * x)].repeat(3));
    let mut y = Memory::<f32>::unwritten(3);
    let arguments = &mut [x.argument(), y.argument()];
    Emulated::compile("emulator").launch("product_and_sum", [1, 1, 1], [1, 1, 1], arguments);
    let fuses = std::arch::is_x86_feature_detected!("fma");
    assert_eq!(y.read(), [if fuses { lost } else { 0.0 }, 0.0, 0.0]);
}

/// Each block waits for those after it, so that the first one is the last to end.
#[test]
fn blocks_wait_for_each_other() {
    let (mut met, mut seen) = (Memory::<i32>::of(&[0.0]), Memory::<f32>::unwritten(5));
    let arguments = &mut [met.argument(), seen.argument(), Int(0)];
    Emulated::compile("emulator").launch("in_turn", [5, 1, 1], [64, 1, 1], arguments);
    assert_eq!(seen.read()[0], 5.0);
    assert_eq!(met.read(), [5.0]);
}

/// The test runs in a process of its own, which it aborts.
#[test]
fn blocks_that_wait_forever_are_reported() {
    if std::env::var_os(CHILD).is_some() {
        let (mut met, mut seen) = (Memory::<i32>::of(&[0.0]), Memory::<f32>::unwritten(2));
        let arguments = &mut [met.argument(), seen.argument(), Int(1)];
        Emulated::compile("emulator").launch("in_turn", [2, 1, 1], [64, 1, 1], arguments);
        return;
    }
    let output = child("emulator::blocks_that_wait_forever_are_reported", "");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("in_turn: 1 blocks wait for others, which have ended"), "{said}");
}

#[test]
fn a_warp_multiplies_matrices() {
    let a: Vec<f32> = (0..16 * 8).map(|i| (i % 7) as f32 - 3.0).collect();
    let b: Vec<f32> = (0..8 * 8).map(|i| (i % 5) as f32 - 2.0).collect();
    let (mut x, mut y) = (Memory::<f32>::of(&a), Memory::<f32>::of(&b));
    let mut d = Memory::<f32>::unwritten(16 * 8);
    let arguments = &mut [x.argument(), y.argument(), d.argument()];
    Emulated::compile("emulator").launch("product_of_a_warp", [1, 1, 1], [32, 1, 1], arguments);
    let sum = |row: usize, column: usize| -> f32 {
        (0..8).map(|k| 2.0 * a[row * 8 + k] * b[k * 8 + column]).sum()
    };
    let want: Vec<f32> = (0..16 * 8).map(|i| sum(i / 8, i % 8)).collect();
    assert_eq!(d.read(), want);
}

/// Runs the test of this name in a process of its own, which a variable marks as the child.
fn child(test: &str, order: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .env("SCONCE_EMULATED_ORDER", order)
        .output()
        .unwrap()
}

const CHILD: &str = "SCONCE_TEST_CHILD";

/// The test runs in a process of its own, which it aborts.
#[test]
fn a_wait_for_ended_threads_is_reported() {
    if std::env::var_os(CHILD).is_some() {
        let mut out = Memory::<f32>::unwritten(1);
        let arguments = &mut [out.argument()];
        Emulated::compile("emulator").launch("half_a_barrier", [1, 1, 1], [32, 1, 1], arguments);
        return;
    }
    let output = child("emulator::a_wait_for_ended_threads_is_reported", "");
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("threads wait for others that have ended"), "{told}");
}

/// In a kernel without a wait, the number that a thread sees depends on the order.
#[test]
fn threads_run_in_any_order_between_waits() {
    if std::env::var_os(CHILD).is_some() {
        let (mut x, mut y) = (Memory::<f32>::of(&count(64)), Memory::<f32>::unwritten(64));
        let arguments = &mut [x.argument(), y.argument()];
        Emulated::compile("emulator").launch("no_barrier", [1, 1, 1], [64, 1, 1], arguments);
        println!("saw {:?}", y.read().iter().filter(|y| **y != 0.0).count());
        return;
    }
    let saw = |order| {
        let output = child("emulator::threads_run_in_any_order_between_waits", order);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let saw = said.split("saw ").nth(1).expect("a number").split_whitespace().next();
        saw.unwrap().parse::<usize>().unwrap()
    };
    // Of the next thread's numbers 63 are not 0.
    assert_eq!((saw(""), saw("backwards")), (0, 63));
    assert!((1..63).contains(&saw("1")));
}
