//! Steps environments from given states with given inputs, for a comparison with another simulator.
//!
//! `transitions WORLD ENVIRONMENTS STEPS` reads f32 from the standard input: the states `[environments, state]`, then
//! the inputs `[steps, environments, labels]`. After each step it writes f32 to the standard output: the states, the
//! observations `[environments, observation]`, the rewards and both flags `[environments]`. The step after the end of
//! an episode begins another one.

use std::io::{Read, Write};
use std::path::Path;

use sconce_env::{Autoreset, EnvOptions, Envs, Stepped};
use sconce_tensor::{Error, Result};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [env, count, steps] = &args[..] else {
        return Err(Error::mismatch("arguments", "WORLD ENVIRONMENTS STEPS", args.len()));
    };
    let number = |text: &str| {
        text.parse::<usize>().map_err(|e| Error::corrupt(format!("the number {text:?}"), e))
    };
    let (count, steps) = (number(count)?, number(steps)?);
    let autoreset = Autoreset::NextStep;
    let options = EnvOptions { env: env.clone(), count, autoreset, ..EnvOptions::default() };
    let mut envs = Envs::new(&options)?;
    let given = read()?;
    let (size, labels) = (envs.state(0).len(), envs.spec().labels());
    let (all, needed) = (given.len(), count * (size + steps * labels));
    if all != needed {
        return Err(Error::mismatch("numbers in the standard input", needed, all));
    }
    let (states, inputs) = given.split_at(count * size);
    for (i, state) in states.chunks_exact(size).enumerate() {
        envs.set_state(i, state)?;
    }
    inputs.chunks_exact(count * labels).try_for_each(|inputs| write(&step(&mut envs, inputs)?))
}

/// The numbers of a step.
fn step(envs: &mut Envs, inputs: &[f32]) -> Result<Vec<f32>> {
    let (rows, width) = (envs.rows(), envs.spec().observation_size);
    let (mut observations, mut rewards) = (vec![0.0; rows * width], vec![0.0; rows]);
    let (mut terminated, mut truncated) = (vec![0; rows], vec![0; rows]);
    let mut out = Stepped {
        observations: &mut observations,
        rewards: &mut rewards,
        terminated: &mut terminated,
        truncated: &mut truncated,
        ended: &mut vec![],
        final_observations: &mut vec![],
    };
    envs.step(inputs, &mut out)?;
    let mut all: Vec<f32> = (0..rows).flat_map(|env| envs.state(env)).collect();
    all.extend(observations);
    all.extend(rewards);
    all.extend(terminated.into_iter().chain(truncated).map(f32::from));
    Ok(all)
}

fn read() -> Result<Vec<f32>> {
    let mut bytes = vec![];
    std::io::stdin().read_to_end(&mut bytes).map_err(Error::io(Path::new("the standard input")))?;
    let (words, _) = bytes.as_chunks::<4>();
    Ok(words.iter().map(|word| f32::from_le_bytes(*word)).collect())
}

fn write(numbers: &[f32]) -> Result<()> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
    std::io::stdout().write_all(&bytes).map_err(Error::io(Path::new("the standard output")))
}
