//! That threads wait for each other as on a card.

use std::process::Command;

use crate::Kernels;
use crate::emulated::Emulated;
use crate::memory::Memory;

/// Whole numbers, whose sums are exact.
fn count(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

#[test]
fn a_block_waits_for_all_of_its_threads() {
    let mut x = Memory::<f32>::of(&count(3 * 256));
    let mut sums = Memory::<f32>::unwritten(3);
    let arguments = &mut [x.argument(), sums.argument()];
    Emulated::compile("emulator").launch("block_sum", [3, 1, 1], [256, 1, 1], arguments);
    let want: Vec<f32> = count(3 * 256).chunks(256).map(|block| block.iter().sum()).collect();
    assert_eq!(sums.read(), want);
}

#[test]
fn a_warp_shows_its_numbers_to_itself_alone() {
    let mut x = Memory::<f32>::of(&count(64));
    let mut y = Memory::<f32>::unwritten(64);
    let arguments = &mut [x.argument(), y.argument()];
    Emulated::compile("emulator").launch("rotate", [1, 1, 1], [64, 1, 1], arguments);
    let want: Vec<f32> = (0..64).map(|i| (i / 32 * 32 + (i + 2) % 32) as f32).collect();
    assert_eq!(y.read(), want);
}

#[test]
fn lanes_that_wait_for_each_other_alone_go_on_alone() {
    let mut x = count(32);
    x[20] = -20.0;
    let (mut x, mut y) = (Memory::<f32>::of(&x), Memory::<f32>::unwritten(2));
    let arguments = &mut [x.argument(), y.argument()];
    Emulated::compile("emulator").launch("halves", [1, 1, 1], [32, 1, 1], arguments);
    let sums = [120.0, (16..32).sum::<i32>() as f32 - 40.0 + 100.0];
    assert_eq!(y.read(), sums);
}

/// In a process of its own, which it ends.
#[test]
fn threads_that_wait_for_nobody_are_told() {
    const CHILD: &str = "SCONCE_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let mut out = Memory::<f32>::unwritten(1);
        let arguments = &mut [out.argument()];
        Emulated::compile("emulator").launch("half_a_barrier", [1, 1, 1], [32, 1, 1], arguments);
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "emulator::threads_that_wait_for_nobody_are_told", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("threads wait for others that have ended"), "{told}");
}
