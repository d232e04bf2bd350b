//! `returns.cu` compared with `returns::advantages`.

use sconce_play::returns::{Discounts, Returns, Steps, advantages};
use sconce_tensor::rng::Rng;

use crate::emulated::Emulated;
use crate::memory::Argument::{Float, Int, Long};
use crate::memory::Memory;
use crate::{Kernels, assert_near};

const ROWS: usize = 150;
const TIME: usize = 40;
const N: usize = ROWS * TIME;
const DISCOUNTS: Discounts = Discounts { gamma: 0.97, lambda: 0.9 };

fn numbers(name: &str, n: usize) -> Vec<f32> {
    let rng = Rng::new(8, name, 0);
    (0..n as u64).map(|i| rng.normal(i)).collect()
}

/// Rewards, values (with those after the last step), values after cuts, and ends of each kind.
struct Segment {
    rewards: Vec<f32>,
    values: Vec<f32>,
    after: Vec<f32>,
    ends: Vec<u32>,
}

impl Segment {
    fn new() -> Self {
        let rng = Rng::new(8, "ends", 0);
        let end = |i: u64| [0, 0, 0, 0, 0, 1, 2, 3][rng.below(i, 8) as usize];
        Segment {
            rewards: numbers("rewards", N),
            values: numbers("values", N + ROWS),
            after: numbers("after", N),
            ends: (0..N as u64).map(end).collect(),
        }
    }

    fn on_cpu(&self) -> Returns {
        let next = |i: usize| match self.ends[i] {
            0 => self.values[i + ROWS],
            2 => self.after[i],
            _ => 0.0,
        };
        let flags = |bit: u32| -> Vec<u8> {
            self.ends.iter().map(|end| u8::from(end & bit != 0)).collect()
        };
        let steps = Steps {
            rows: ROWS,
            rewards: &self.rewards,
            values: &self.values[..N],
            next_values: &(0..N).map(next).collect::<Vec<_>>(),
            terminated: &flags(1),
            truncated: &flags(2),
        };
        advantages(steps, DISCOUNTS).unwrap()
    }

    /// Returns, and a reward and a value that is not finite.
    fn launched(&self, kernels: &impl Kernels) -> (Returns, Vec<f32>) {
        let mut ends = Memory::exactly(&self.ends);
        let [mut rewards, mut values, mut after] =
            [&self.rewards, &self.values, &self.after].map(|own| Memory::<f32>::of(own));
        let [mut advantages, mut targets] = [N; 2].map(Memory::<f32>::unwritten);
        let mut faults = Memory::<f32>::of(&[0.0; 2]);
        kernels.launch(
            "advantages",
            [ROWS.div_ceil(128) as u32, 1, 1],
            [128, 1, 1],
            &mut [
                rewards.argument(),
                values.argument(),
                after.argument(),
                ends.argument(),
                advantages.argument(),
                targets.argument(),
                faults.argument(),
                Int(TIME as i32),
                Long(ROWS as i64),
                Float(DISCOUNTS.gamma),
                Float(DISCOUNTS.lambda),
            ],
        );
        (Returns { advantages: advantages.read(), targets: targets.read() }, faults.read())
    }
}

fn returns_are_those_of_the_cpu(kernels: &impl Kernels) {
    let segment = Segment::new();
    let (want, (got, faults)) = (segment.on_cpu(), segment.launched(kernels));
    assert_near("advantages", &got.advantages, &want.advantages, 1e-5);
    assert_near("targets", &got.targets, &want.targets, 1e-5);
    assert_eq!(faults, [0.0; 2]);
    let at = segment.ends.iter().position(|end| *end == 2).unwrap();
    let rewards = [&segment.rewards[..N - 1], &[f32::INFINITY]].concat();
    let mut after = segment.after.clone();
    after[at] = f32::NAN;
    let reward = Segment { rewards, ..Segment::new() }.launched(kernels).1;
    assert!(reward[0] == f32::INFINITY && reward[1] == 0.0, "{reward:?}");
    let value = Segment { after, ..Segment::new() }.launched(kernels).1;
    assert!(value[0] == 0.0 && value[1].is_nan(), "{value:?}");
}

fn values_have_their_places(kernels: &impl Kernels) {
    let places: Vec<u32> = (0..200).map(|i| (i * 37 % 211) as u32).collect();
    let logits = numbers("logits", 200 * 3);
    let (mut there, mut x) = (Memory::exactly(&places), Memory::<f32>::of(&logits));
    let mut values = Memory::<f32>::of(&[9.0; 211]);
    kernels.launch(
        "place_values",
        [2, 1, 1],
        [128, 1, 1],
        &mut [x.argument(), there.argument(), values.argument(), Long(200), Int(3), Int(1)],
    );
    let mut want = vec![9.0; 211];
    places.iter().enumerate().for_each(|(i, at)| want[*at as usize] = logits[i * 3 + 1]);
    assert_eq!(values.read(), want);
}

fn sums_of_the_explained_variance_are_those_of_the_cpu(kernels: &impl Kernels) {
    let [targets, values] = ["targets", "values"].map(|name| numbers(name, N));
    let mut sums = Memory::<f64>::unwritten(4);
    let (mut t, mut v) = (Memory::<f32>::of(&targets), Memory::<f32>::of(&values));
    let arguments = &mut [t.argument(), v.argument(), sums.argument(), Long(N as i64)];
    kernels.launch("explained", [1; 3], [256, 1, 1], arguments);
    let pairs = || targets.iter().zip(&values).map(|(t, v)| (f64::from(*t), f64::from(*v)));
    let want = [
        pairs().map(|(t, _)| t).sum::<f64>(),
        pairs().map(|(t, _)| t * t).sum(),
        pairs().map(|(t, v)| t - v).sum(),
        pairs().map(|(t, v)| (t - v) * (t - v)).sum(),
    ];
    for (got, want) in sums.exact().iter().zip(want) {
        assert!((got - want).abs() < 1e-9 * N as f64, "{got} is not {want}");
    }
}

fn all(kernels: &impl Kernels) {
    returns_are_those_of_the_cpu(kernels);
    values_have_their_places(kernels);
    sums_of_the_explained_variance_are_those_of_the_cpu(kernels);
}

#[test]
fn advantages_and_targets_are_those_of_the_cpu() {
    all(&Emulated::compile("returns"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn advantages_on_a_card_are_those_of_the_cpu() {
    let module = sconce_cuda::kernels::RETURNS;
    all(&crate::card::Card::open(module.name, module.ptx));
}
