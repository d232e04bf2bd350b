//! Buffers for the steps of environments, and random inputs.
#![allow(dead_code)] // each test binary uses a part

use sconce_env::{EnvOptions, Envs, Stepped};
use sconce_game::InputKind;
use sconce_tensor::Result;
use sconce_tensor::rng::Rng;

/// Environments with the buffers of their last step.
pub struct Run {
    pub envs: Envs,
    pub observations: Vec<f32>,
    pub rewards: Vec<f32>,
    pub terminated: Vec<u8>,
    pub truncated: Vec<u8>,
    pub ended: Vec<u32>,
    pub finals: Vec<f32>,
}

/// Everything that a step returns, as bits.
#[derive(Debug, Clone, PartialEq)]
pub struct Bits {
    pub observations: Vec<u32>,
    pub rewards: Vec<u32>,
    pub flags: Vec<u8>,
    pub ended: Vec<u32>,
    pub finals: Vec<u32>,
}

impl Run {
    pub fn new(options: &EnvOptions) -> Run {
        let envs = Envs::new(options).unwrap();
        let (rows, width) = (envs.rows(), envs.spec().observation_size);
        let mut observations = vec![0.0; rows * width];
        envs.observe(&mut observations);
        Run {
            envs,
            observations,
            rewards: vec![0.0; rows],
            terminated: vec![9; rows],
            truncated: vec![9; rows],
            ended: vec![],
            finals: vec![],
        }
    }

    pub fn of(env: &str, count: usize) -> Run {
        Run::new(&options(env, count))
    }

    pub fn try_step(&mut self, inputs: &[f32]) -> Result<()> {
        let mut out = Stepped {
            observations: &mut self.observations,
            rewards: &mut self.rewards,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
            ended: &mut self.ended,
            final_observations: &mut self.finals,
        };
        self.envs.step(inputs, &mut out)
    }

    pub fn step(&mut self, inputs: &[f32]) {
        self.try_step(inputs).unwrap();
    }

    /// A step in which all rows have the same input.
    pub fn step_all(&mut self, input: f32) {
        self.step(&vec![input; self.envs.rows()]);
    }

    /// The random inputs of step `t`. Those of a row depend on nothing but `t` and the row.
    pub fn random(&self, t: u64) -> Vec<f32> {
        let parts = &self.envs.spec().inputs;
        let rng = Rng::new(77, "test", t);
        let number = |at: usize| {
            let u = rng.uniform(at as u64);
            match parts[at % parts.len()].kind {
                InputKind::Choice(n) => (u * n as f32).floor(),
                InputKind::Continuous { min, max, .. } => (min + u * (max - min)) * 1.2,
                _ => panic!("no world has such an input"),
            }
        };
        (0..self.envs.rows() * parts.len()).map(number).collect()
    }

    pub fn bits(&self) -> Bits {
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect();
        Bits {
            observations: bits(&self.observations),
            rewards: bits(&self.rewards),
            flags: self.terminated.iter().chain(&self.truncated).copied().collect(),
            ended: self.ended.clone(),
            finals: bits(&self.finals),
        }
    }

    /// The observation of a row.
    pub fn row(&self, row: usize) -> &[f32] {
        let width = self.envs.spec().observation_size;
        &self.observations[row * width..][..width]
    }
}

pub fn options(env: &str, count: usize) -> EnvOptions {
    EnvOptions { env: env.into(), count, seed: 5, ..EnvOptions::default() }
}
