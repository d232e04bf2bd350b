//! Every world on a card, beside the same world on the CPU.

use sconce_env::{
    EnvOptions, EnvSnapshot, EnvSpec, Envs, Episode, Stepped, TERMINATED, names, spec,
};
use sconce_game::InputKind;
use sconce_tensor::rng::Rng;

use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::Memory;
use crate::{Kernels, assert_near};

/// Threads of a block, and environments in more than one block.
const THREADS: usize = 128;
const COUNT: usize = 150;
/// Steps of a test.
const STEPS: usize = 120;
/// Steps after which the card goes on from the state of the CPU. A rounding error of the acrobot, a double pendulum, grows
/// with time.
const FREE: usize = 40;

/// Results of a step, for all rows.
#[derive(Debug, Default, PartialEq)]
struct Results {
    observations: Vec<f32>,
    rewards: Vec<f32>,
    /// 1 for a termination, plus 2 for the time limit.
    ends: Vec<u32>,
    /// The last observations of the rows whose episode ended.
    finals: Vec<f32>,
    /// Episodes that ended: length, whether the rules ended it, and return, by environment.
    episodes: Vec<(u32, bool, f32)>,
}

fn on_cpu(envs: &mut Envs, inputs: &[f32]) -> Results {
    let (rows, width) = (envs.rows(), envs.spec().observation_size);
    let (mut terminated, mut truncated, mut ended) = (vec![0; rows], vec![0; rows], vec![]);
    let mut all = Results {
        observations: vec![0.0; rows * width],
        rewards: vec![0.0; rows],
        ..Results::default()
    };
    let mut out = Stepped {
        observations: &mut all.observations,
        rewards: &mut all.rewards,
        terminated: &mut terminated,
        truncated: &mut truncated,
        ended: &mut ended,
        final_observations: &mut all.finals,
    };
    envs.step(inputs, &mut out).unwrap();
    let flags = terminated.iter().zip(&truncated);
    all.ends = flags.map(|(terminated, truncated)| u32::from(terminated + 2 * truncated)).collect();
    let mut episodes: Vec<Episode> = vec![];
    envs.episodes(&mut episodes);
    let of_first = episodes.iter().filter(|episode| episode.seat == 0);
    all.episodes = of_first.map(|own| (own.length, own.terminated, own.ret)).collect();
    all
}

/// The memory of a card.
struct Card {
    spec: EnvSpec,
    states: Memory<f32>,
    counters: Memory<u32>,
    returns: Memory<f32>,
    terms: Memory<f64>,
    rules: Memory<i64>,
    observations: Vec<f32>,
}

impl Card {
    fn new(envs: &Envs) -> Self {
        let mut observations = vec![0.0; envs.rows() * envs.spec().observation_size];
        envs.observe(&mut observations);
        let EnvSnapshot { states, steps, episodes, returns, .. } = envs.snapshot();
        let size = states.len() / COUNT;
        let by_number: Vec<f32> =
            (0..size).flat_map(|i| states.chunks(size).map(move |state| state[i])).collect();
        let terms = envs.spec().reward_terms.len();
        Card {
            spec: envs.spec().clone(),
            states: Memory::of(&by_number),
            counters: Memory::exactly(&[steps, episodes].concat()),
            returns: Memory::of(&returns),
            terms: Memory::exactly(&vec![0.0; COUNT * terms]),
            rules: Memory::exactly(&envs.words_for_a_card().unwrap()),
            observations,
        }
    }

    fn step(&mut self, kernels: &impl Kernels, inputs: &[f32]) -> Results {
        let (rows, width) = (COUNT * self.spec.seats, self.spec.observation_size);
        let mut inputs = Memory::<f32>::of(inputs);
        let mut before = Memory::<f32>::of(&self.observations);
        let mut after = Memory::<f32>::unwritten(rows * width);
        let mut finals = Memory::<f32>::unwritten(rows * width);
        let mut rewards = Memory::<f32>::unwritten(rows);
        let mut ends = Memory::<u32>::unwritten(rows);
        // Three steps, of which the second is written.
        let mut lengths = Memory::exactly(&vec![7u32; COUNT * 3]);
        let mut totals = Memory::<f32>::unwritten(COUNT * 3);
        kernels.launch(
            &format!("env_step_{}", self.spec.name),
            [COUNT.div_ceil(THREADS) as u32, 1, 1],
            [THREADS as u32, 1, 1],
            &mut [
                self.states.argument(),
                self.counters.argument(),
                self.returns.argument(),
                self.terms.argument(),
                inputs.argument(),
                before.argument(),
                after.argument(),
                finals.argument(),
                rewards.argument(),
                ends.argument(),
                lengths.argument(),
                totals.argument(),
                self.rules.argument(),
                Long(COUNT as i64),
                Int(1),
                Int(3),
            ],
        );
        self.observations = after.read();
        let ends = ends.exact().to_vec();
        let finals = finals.read();
        let ended = ends.iter().enumerate().filter(|(_, end)| **end != 0);
        let finals = ended.flat_map(|(row, _)| finals[row * width..(row + 1) * width].to_vec());
        let steps = lengths.exact().chunks(3).zip(totals.exact().chunks(3));
        let steps = steps.inspect(|(lengths, _)| assert_eq!((lengths[0], lengths[2]), (7, 7)));
        let episodes = steps.filter(|(lengths, _)| lengths[1] > 0);
        let episode = |(lengths, totals): (&[u32], &[f32])| {
            (lengths[1] & !TERMINATED, lengths[1] & TERMINATED != 0, totals[1])
        };
        Results {
            finals: finals.collect(),
            episodes: episodes.map(episode).collect(),
            observations: self.observations.clone(),
            rewards: rewards.read(),
            ends,
        }
    }
}

/// Random inputs of all rows.
fn inputs(spec: &EnvSpec, t: usize) -> Vec<f32> {
    let rng = Rng::new(9, "inputs", t as u64);
    let rows = COUNT * spec.seats;
    let parts = spec.inputs.iter().enumerate().collect::<Vec<_>>();
    let of_row = |row: usize| {
        parts.iter().map(move |(i, part)| {
            let uniform = rng.uniform((row * 8 + i) as u64);
            match part.kind {
                InputKind::Choice(n) => (uniform * n as f32).floor(),
                // Some numbers are beyond the bounds.
                _ => 6.0 * (uniform - 0.5),
            }
        })
    };
    (0..rows).flat_map(of_row).collect()
}

fn assert_same(what: &str, got: &Results, want: &Results) {
    assert_eq!(got.ends, want.ends, "ends of {what}");
    assert_near(&format!("observations of {what}"), &got.observations, &want.observations, 1e-4);
    assert_near(&format!("rewards of {what}"), &got.rewards, &want.rewards, 1e-4);
    assert_near(&format!("last observations of {what}"), &got.finals, &want.finals, 1e-4);
    let lengths = |all: &Results| all.episodes.iter().map(|own| (own.0, own.1)).collect::<Vec<_>>();
    let returns = |all: &Results| all.episodes.iter().map(|own| own.2).collect::<Vec<_>>();
    assert_eq!(lengths(got), lengths(want), "episodes of {what}");
    assert_near(&format!("returns of {what}"), &returns(got), &returns(want), 1e-4);
}

/// Steps of both, from the same states.
fn steps_are_those_of_the_cpu(kernels: &impl Kernels, options: &EnvOptions) {
    let mut envs = Envs::new(options).unwrap();
    let mut card = Card::new(&envs);
    let (mut ended, mut sums) = ([0; 4], vec![0.0; envs.spec().reward_terms.len()]);
    for t in 0..STEPS {
        let inputs = inputs(envs.spec(), t);
        let (want, got) = (on_cpu(&mut envs, &inputs), card.step(kernels, &inputs));
        assert_same(&format!("step {t} of {options:?}"), &got, &want);
        want.ends.iter().for_each(|end| ended[*end as usize] += 1);
        if (t + 1).is_multiple_of(FREE) {
            let terms = card.terms.exact().chunks(sums.len());
            terms.for_each(|own| sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own));
            card = Card::new(&envs);
        }
    }
    // Every world but the pendulum ends by its rules, and with a time limit also by that.
    assert!(ended[1] + ended[2] + ended[3] > 0, "{options:?}: {ended:?}");
    let want: Vec<f32> = envs.take_terms().iter().map(|sum| *sum as f32).collect();
    let got: Vec<f32> = sums.iter().map(|sum| *sum as f32).collect();
    assert_near(&format!("terms of {options:?}"), &got, &want, 1e-4);
}

/// Every world as it is, and with a limit, a stack, repeated inputs and weights; the duel also against its players.
fn cases() -> Vec<EnvOptions> {
    let mut all = vec![];
    let has_kernel = |name: &&str| !(name.starts_with("billiards") || name.starts_with("pixel"));
    for name in names().into_iter().filter(has_kernel) {
        let plain = EnvOptions {
            env: name.into(),
            count: COUNT,
            seed: 3 << 40 | 11,
            first: (1 << 32) - 60,
            time_limit: Some(77),
            ..EnvOptions::default()
        };
        let term = spec(&plain).unwrap().reward_terms[0].to_string();
        all.push(plain.clone());
        all.push(EnvOptions {
            time_limit: Some(31),
            action_repeat: 3,
            frame_stack: 3,
            reward_weights: vec![(term, -2.5)],
            ..plain.clone()
        });
        for player in spec(&plain).unwrap().players {
            all.push(EnvOptions { opponent: Some(player.to_string()), ..plain.clone() });
        }
    }
    all
}

#[test]
fn steps_of_every_world_are_those_of_the_cpu() {
    let kernels = Emulated::compile("environments");
    cases().iter().for_each(|options| steps_are_those_of_the_cpu(&kernels, options));
}

/// Angles far from 0, up to the bound on states.
#[test]
fn sines_are_right_on_the_whole_line() {
    let kernels = Emulated::compile("environments");
    sines_are_right(&kernels);
}

fn sines_are_right(kernels: &impl Kernels) {
    for name in ["pendulum", "acrobot", "mountain_car", "cart_pole"] {
        let options = EnvOptions { env: name.into(), count: COUNT, ..EnvOptions::default() };
        let mut envs = Envs::new(&options).unwrap();
        for env in 0..COUNT {
            let angle = 8192.0 * (2.0 * env as f32 / COUNT as f32 - 1.0);
            let state = match name {
                "acrobot" => vec![angle, 0.9 * angle, 0.0, 0.0],
                _ => vec![angle; envs.state(env).len()],
            };
            envs.set_state(env, &state).unwrap();
        }
        let mut card = Card::new(&envs);
        let inputs = inputs(envs.spec(), 0);
        let (want, got) = (on_cpu(&mut envs, &inputs), card.step(kernels, &inputs));
        assert_same(name, &got, &want);
        if name == "pendulum" {
            for (env, seen) in got.observations.chunks(3).enumerate() {
                let angle = f64::from(envs.state(env)[0]);
                let off = (f64::from(seen[0]) - angle.cos()).abs();
                assert!(off.max((f64::from(seen[1]) - angle.sin()).abs()) < 1e-6, "{angle}");
            }
        }
    }
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn steps_on_a_card_are_those_of_the_cpu() {
    let module = sconce_cuda::kernels::ENVIRONMENTS;
    let kernels = crate::card::Card::open(module.name, module.ptx);
    cases().iter().for_each(|options| steps_are_those_of_the_cpu(&kernels, options));
    sines_are_right(&kernels);
}
