//! Hosted environments: their limits, repeats, stacks, resets and states do not depend on who steps the rules.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use sconce_env::{
    Answered, Asked, Autoreset, Begin, Begun, EnvOptions, Episode, Host, HostSpec, Stepped,
    VectorEnv, Worker, open,
};
use sconce_game::{InputKind, InputPart};
use sconce_tensor::Result;

/// A world that counts its steps: the observation is `[step, input]`, the reward terms are the input and 1, and the
/// episode of environment `i` ends after `3 + i % 2` steps.
#[derive(Default)]
struct Counting {
    groups: Mutex<HashMap<u64, Vec<One>>>,
    /// Seeds of all episodes, by environment and number.
    seeds: Mutex<HashMap<(u64, u32), u64>>,
    forgetful: bool,
    /// Whether there are masks: after step `t` class `t` of 5 is not allowed, and in step 2 those of `nothing` too.
    masked: bool,
    nothing: bool,
    /// Whether there are two seats: each sees its own input, and the reward term `push` is its own.
    paired: bool,
}

impl Counting {
    fn seats(&self) -> usize {
        1 + usize::from(self.paired)
    }

    fn mask(&self, step: u8) -> Vec<u8> {
        let allowed = |class: u8| class != step && !(self.nothing && step == 2);
        (0..5 * u8::from(self.masked)).map(|class| u8::from(allowed(class))).collect()
    }
}

#[derive(Clone, Default)]
struct One {
    env: u64,
    step: u8,
}

/// The world as a host has it.
struct Shared(Arc<Counting>);

impl Worker for Shared {
    fn open(&self, group: u64, first: u64, count: usize) -> Result<()> {
        let one = |i| One { env: first + i as u64, step: 0 };
        self.0.groups.lock().unwrap().insert(group, (0..count).map(one).collect());
        Ok(())
    }

    fn reset(&self, group: u64, begins: &[Begin]) -> Result<Begun> {
        let mut groups = self.0.groups.lock().unwrap();
        let own = groups.get_mut(&group).unwrap();
        for begin in begins {
            own[begin.at].step = 0;
            assert_eq!(own[begin.at].env, begin.env);
            self.0.seeds.lock().unwrap().insert((begin.env, begin.episode), begin.seed);
        }
        let rows = begins.len() * self.0.seats();
        Ok(Begun { observations: [0.0, -1.0].repeat(rows), masks: self.0.mask(0).repeat(rows) })
    }

    fn step(&self, group: u64, asked: Asked<'_>) -> Result<Answered> {
        let mut groups = self.0.groups.lock().unwrap();
        let mut answered = Answered::default();
        let inputs = asked.inputs.chunks_exact(self.0.seats());
        for (one, (inputs, active)) in
            groups.get_mut(&group).unwrap().iter_mut().zip(inputs.zip(asked.active))
        {
            one.step += active;
            for input in inputs {
                answered.observations.extend([f32::from(one.step), *input]);
                answered.rewards.extend([*input, 1.0]);
                answered.masks.extend(self.0.mask(one.step));
            }
            answered.flags.push(u8::from(u64::from(one.step) >= 3 + one.env % 2));
        }
        Ok(answered)
    }

    fn save(&self, group: u64) -> Result<Vec<Vec<u8>>> {
        let groups = self.0.groups.lock().unwrap();
        let bytes = |one: &One| if self.0.forgetful { vec![] } else { vec![one.step] };
        Ok(groups[&group].iter().map(bytes).collect())
    }

    fn restore(&self, group: u64, states: Vec<Vec<u8>>) -> Result<Vec<bool>> {
        let mut groups = self.0.groups.lock().unwrap();
        let own = groups.get_mut(&group).unwrap().iter_mut().zip(states);
        Ok(own
            .map(|(one, bytes)| {
                one.step = bytes.first().copied().unwrap_or(0);
                !bytes.is_empty()
            })
            .collect())
    }

    fn close(&self, group: u64) {
        self.0.groups.lock().unwrap().remove(&group);
    }
}

fn spec() -> HostSpec {
    let kind = InputKind::Axis { min: -1.0, max: 1.0, classes: 5 };
    let part = InputPart {
        name: "push".into(),
        meaning: "".into(),
        kind,
        mirror: Default::default(),
        scale: Default::default(),
        rest: None,
    };
    HostSpec {
        name: "counting".into(),
        observation_size: 2,
        inputs: vec![part],
        time_limit: 100,
        reward_terms: vec!["push".into(), "time".into()],
        solved: None,
        masks: false,
        seats: 1,
    }
}

fn options(counting: &Arc<Counting>, count: usize) -> EnvOptions {
    let spec = HostSpec { masks: counting.masked, seats: counting.seats(), ..spec() };
    let host = Host::new(spec, Box::new(Shared(counting.clone()))).unwrap();
    EnvOptions { count, host: Some(host), ..EnvOptions::default() }
}

/// The outputs of a step.
#[derive(Debug, Default, PartialEq)]
struct Out {
    observations: Vec<f32>,
    rewards: Vec<f32>,
    terminated: Vec<u8>,
    truncated: Vec<u8>,
    ended: Vec<u32>,
    finals: Vec<f32>,
}

fn step(envs: &mut Box<dyn VectorEnv>, inputs: &[f32]) -> Result<Out> {
    let rows = envs.rows();
    let mut out = Out {
        observations: vec![0.0; rows * envs.spec().observation_size],
        rewards: vec![0.0; rows],
        terminated: vec![0; rows],
        truncated: vec![0; rows],
        ..Out::default()
    };
    envs.step(
        inputs,
        &mut Stepped {
            observations: &mut out.observations,
            rewards: &mut out.rewards,
            terminated: &mut out.terminated,
            truncated: &mut out.truncated,
            ended: &mut out.ended,
            final_observations: &mut out.finals,
        },
    )?;
    Ok(out)
}

#[test]
fn an_episode_ends_by_its_rules_and_the_next_one_begins_in_the_same_step() {
    let counting = Arc::<Counting>::default();
    let mut envs = open(&options(&counting, 2)).unwrap();
    // Class 4 of 5 of an axis from -1 to 1 is 1.
    for _ in 0..2 {
        let out = step(&mut envs, &[4.0, 0.0]).unwrap();
        assert_eq!((out.rewards, out.ended), (vec![2.0, 0.0], vec![]));
    }
    let out = step(&mut envs, &[4.0, 0.0]).unwrap();
    assert_eq!((out.terminated, out.truncated), (vec![1, 0], vec![0, 0]));
    assert_eq!((out.ended, out.finals), (vec![0], vec![3.0, 1.0]));
    assert_eq!(out.observations, [0.0, -1.0, 3.0, -1.0]);
    let mut episodes = vec![];
    envs.episodes(&mut episodes);
    let expected = Episode { env: 0, seat: 0, ret: 6.0, length: 3, terminated: true };
    assert_eq!(episodes, [expected]);
    assert_eq!(envs.take_terms(), [0.0, 6.0]);
    assert_eq!(envs.take_terms(), [0.0, 0.0]);
    assert_eq!(counting.seeds.lock().unwrap().len(), 3);
    drop(envs);
    assert!(counting.groups.lock().unwrap().is_empty());
}

#[test]
fn limits_repeats_stacks_and_weights_are_those_of_native_environments() {
    let counting = Arc::<Counting>::default();
    let base = options(&counting, 1);
    let weights = vec![("push".to_string(), 10.0)];
    let mut envs = open(&EnvOptions {
        time_limit: Some(2),
        frame_stack: 3,
        action_repeat: 2,
        reward_weights: weights,
        ..base.clone()
    })
    .unwrap();
    assert_eq!(envs.spec().observation_size, 6);
    let out = step(&mut envs, &[3.0]).unwrap();
    assert_eq!((out.rewards, out.truncated, out.terminated), (vec![12.0], vec![1], vec![0]));
    assert_eq!(out.finals, [0.0, -1.0, 1.0, 0.5, 2.0, 0.5]);
    assert_eq!(out.observations, [0.0, -1.0].repeat(3));
    // An end stops the repeats.
    let mut envs = open(&EnvOptions { action_repeat: 10, ..base.clone() }).unwrap();
    assert_eq!(step(&mut envs, &[2.0]).unwrap().rewards, [3.0]);
    // In the next step: the input of that step is ignored.
    let mut envs = open(&EnvOptions { autoreset: Autoreset::NextStep, ..base.clone() }).unwrap();
    (0..2).for_each(|_| assert_eq!(step(&mut envs, &[4.0]).unwrap().ended.len(), 0));
    let out = step(&mut envs, &[4.0]).unwrap();
    assert_eq!((out.ended, out.observations), (vec![0], vec![3.0, 1.0]));
    let out = step(&mut envs, &[4.0]).unwrap();
    assert_eq!((out.rewards, out.observations), (vec![0.0], vec![0.0, -1.0]));
    let unknown = EnvOptions { reward_weights: vec![("pish".into(), 1.0)], ..base.clone() };
    let error = open(&unknown).err().unwrap().to_string();
    assert!(error.contains("push"), "{error}");
    assert!(open(&EnvOptions { autoreset: Autoreset::Disabled, ..base.clone() }).is_err());
    assert!(open(&EnvOptions { opponent: Some("x".into()), ..base }).is_err());
}

#[test]
fn seeds_depend_on_seed_environment_and_episode_alone() {
    let (all, part) = (Arc::<Counting>::default(), Arc::<Counting>::default());
    let mut envs = open(&EnvOptions { seed: 7, ..options(&all, 4) }).unwrap();
    let _some = open(&EnvOptions { seed: 7, first: 2, ..options(&part, 2) }).unwrap();
    (0..4).for_each(|_| drop(step(&mut envs, &[0.0; 4]).unwrap()));
    let all = all.seeds.lock().unwrap();
    for (key, seed) in part.seeds.lock().unwrap().iter() {
        assert_eq!(all[key], *seed);
    }
    let mut distinct: Vec<u64> = all.values().copied().collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), all.len());
    assert!(all.len() >= 8);
}

#[test]
fn environments_go_on_from_their_state_or_begin_the_next_episode() {
    for forgetful in [false, true] {
        let counting = Arc::new(Counting { forgetful, ..Counting::default() });
        let mut envs = open(&options(&counting, 3)).unwrap();
        (0..2).for_each(|_| drop(step(&mut envs, &[1.0; 3]).unwrap()));
        let saved = envs.numbers().unwrap();
        let after = step(&mut envs, &[1.0; 3]).unwrap();
        let mut other = open(&options(&counting, 3)).unwrap();
        let lost = other.restore(&saved).unwrap();
        let again = step(&mut other, &[1.0; 3]).unwrap();
        match forgetful {
            false => assert_eq!((lost.len(), again), (0, after)),
            true => {
                assert_eq!(lost, [0, 1, 2]);
                assert_eq!(again.ended.len(), 0);
                assert_eq!(counting.seeds.lock().unwrap().len(), 3 + 3);
            }
        }
        let few = open(&options(&counting, 2)).unwrap().restore(&saved);
        assert!(few.is_err());
    }
}

#[test]
fn a_number_that_is_not_finite_and_a_wrong_length_are_errors_that_name_the_environment() {
    struct Bad(f32, usize);
    impl Worker for Bad {
        fn open(&self, _: u64, _: u64, _: usize) -> Result<()> {
            Ok(())
        }
        fn reset(&self, _: u64, begins: &[Begin]) -> Result<Begun> {
            Ok(Begun { observations: vec![0.0; 2 * begins.len()], masks: vec![] })
        }
        fn step(&self, _: u64, asked: Asked<'_>) -> Result<Answered> {
            let n = asked.active.len();
            let observations = vec![self.0; 2 * n - self.1];
            let (rewards, flags) = (vec![0.0; 2 * n], vec![0; n]);
            Ok(Answered { observations, rewards, flags, masks: vec![] })
        }
        fn save(&self, _: u64) -> Result<Vec<Vec<u8>>> {
            Ok(vec![])
        }
        fn restore(&self, _: u64, _: Vec<Vec<u8>>) -> Result<Vec<bool>> {
            Ok(vec![])
        }
        fn close(&self, _: u64) {}
    }
    for (bad, named) in
        [(Bad(f32::NAN, 0), "environment 5 of counting"), (Bad(0.0, 1), "observations of a step")]
    {
        let host = Host::new(spec(), Box::new(bad)).unwrap();
        let options = EnvOptions { first: 5, host: Some(host), ..EnvOptions::default() };
        let mut envs = open(&options).unwrap();
        let error = step(&mut envs, &[0.0]).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
        assert!(step(&mut envs, &[5.0]).unwrap_err().to_string().contains("push"));
        assert!(envs.numbers().is_err());
    }
    // A world that has no masks although it says so.
    let masked = HostSpec { masks: true, ..spec() };
    let host = Host::new(masked.clone(), Box::new(Bad(0.0, 0))).unwrap();
    let unmasked = EnvOptions { host: Some(host), ..EnvOptions::default() };
    assert!(open(&unmasked).err().unwrap().to_string().contains("masks of a reset"));
    let numbers = InputKind::Continuous { size: 1, min: 0.0, max: 1.0 };
    let mut inputs = spec().inputs;
    inputs[0].kind = numbers;
    let numeric = HostSpec { inputs, ..masked };
    assert!(Host::new(numeric, Box::new(Bad(0.0, 0))).is_err());
    let wrong = HostSpec { observation_size: 0, ..spec() };
    assert!(Host::new(wrong, Box::new(Bad(0.0, 0))).is_err());
}

#[test]
fn masks_are_those_of_the_present_states_and_allow_all_where_an_episode_has_ended() {
    let counting = Arc::new(Counting { masked: true, ..Counting::default() });
    let base = EnvOptions { autoreset: Autoreset::NextStep, ..options(&counting, 2) };
    let mut envs = open(&base).unwrap();
    assert_eq!(envs.spec().mask_size, 5);
    assert_eq!(envs.masks(), [0, 1, 1, 1, 1].repeat(2));
    (0..2).for_each(|_| drop(step(&mut envs, &[4.0; 2]).unwrap()));
    assert_eq!(envs.masks(), [1, 1, 0, 1, 1].repeat(2));
    let saved = envs.numbers().unwrap();
    // Environment 0 ends in step 3, and begins in step 4.
    step(&mut envs, &[4.0; 2]).unwrap();
    assert_eq!(envs.masks(), [[1, 1, 1, 1, 1], [1, 1, 1, 0, 1]].concat());
    step(&mut envs, &[4.0; 2]).unwrap();
    assert_eq!(envs.masks(), [[0, 1, 1, 1, 1], [1, 1, 1, 1, 1]].concat());
    let mut other = open(&base).unwrap();
    other.restore(&saved).unwrap();
    assert_eq!(other.masks(), [1, 1, 0, 1, 1].repeat(2));
    assert!(open(&options(&Arc::default(), 2)).unwrap().masks().is_empty());
}

#[test]
fn two_seats_are_two_rows_with_an_input_a_reward_a_mask_and_an_end_each() {
    let counting = Arc::new(Counting { paired: true, masked: true, ..Counting::default() });
    let base = EnvOptions { frame_stack: 2, ..options(&counting, 2) };
    let mut envs = open(&base).unwrap();
    assert_eq!((envs.rows(), envs.spec().seats, envs.masks().len()), (4, 2, 20));
    let mut out = Out::default();
    for _ in 0..3 {
        out = step(&mut envs, &[4.0, 0.0, 2.0, 3.0]).unwrap();
        assert_eq!(out.rewards, [2.0, 0.0, 1.0, 1.5]);
    }
    // Environment 0 has ended for both seats, and has begun; environment 1 goes on.
    assert_eq!((&out.ended[..], &out.terminated[..]), (&[0, 1][..], &[1, 1, 0, 0][..]));
    assert_eq!(out.finals, [2.0, 1.0, 3.0, 1.0, 2.0, -1.0, 3.0, -1.0]);
    assert_eq!(&out.observations[..8], [0.0, -1.0].repeat(4));
    assert_eq!(&out.observations[8..], [2.0, 0.0, 3.0, 0.0, 2.0, 0.5, 3.0, 0.5]);
    assert_eq!(envs.masks()[..10], [0, 1, 1, 1, 1].repeat(2));
    assert_eq!(envs.masks()[10..], [1, 1, 1, 0, 1].repeat(2));
    let mut episodes = vec![];
    envs.episodes(&mut episodes);
    let episode = |seat, ret| Episode { env: 0, seat, ret, length: 3, terminated: true };
    assert_eq!(episodes, [episode(0, 6.0), episode(1, 0.0)]);
    // Terms are those of the first seat.
    assert_eq!(envs.take_terms(), [3.0, 6.0]);
    // A restored state goes on with the returns of both seats.
    let saved = envs.numbers().unwrap();
    let mut other = open(&base).unwrap();
    assert!(other.restore(&saved).unwrap().is_empty());
    for envs in [&mut envs, &mut other] {
        step(envs, &[4.0, 0.0, 2.0, 3.0]).unwrap();
        let mut episodes = vec![];
        envs.episodes(&mut episodes);
        assert_eq!(
            episodes.iter().map(|e| (e.env, e.seat, e.ret)).collect::<Vec<_>>(),
            [(1, 0, 4.0), (1, 1, 6.0)]
        );
    }
    let forgetful = Arc::new(Counting { paired: true, forgetful: true, ..Counting::default() });
    let mut envs = open(&options(&forgetful, 2)).unwrap();
    let saved = envs.numbers().unwrap();
    assert_eq!(envs.restore(&saved).unwrap(), [0, 1, 2, 3]);
    assert!(step(&mut envs, &[0.0; 2]).is_err());
}

#[test]
fn a_mask_that_allows_nothing_and_repeated_actions_are_errors_that_name_the_world() {
    let counting = Arc::new(Counting { masked: true, nothing: true, ..Counting::default() });
    let base = EnvOptions { first: 7, ..options(&counting, 1) };
    let mut envs = open(&base).unwrap();
    step(&mut envs, &[4.0]).unwrap();
    let error = step(&mut envs, &[4.0]).unwrap_err().to_string();
    assert!(error.contains("mask of push in environment 7 of counting"), "{error}");
    let repeated = EnvOptions { action_repeat: 2, ..base };
    let error = open(&repeated).err().unwrap().to_string();
    assert!(error.contains("action_repeat") && error.contains("counting"), "{error}");
}
