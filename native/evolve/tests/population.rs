//! Populations beside the policies of their individuals.

use sconce_env::{EnvOptions, Envs, Stepped, spec};
use sconce_evolve::{
    Archive, ArchiveOptions, Batch, Crossover, Episodes, Measure, Network, Population,
    PopulationOptions, SpaceOptions, Storage, Variation,
};
use sconce_nn::Policy;
use sconce_nn::backbone::Context;
use sconce_nn::policy::Frames;
use sconce_nn::sampling::{Draw, Sampling};
use sconce_nn::spec::{Backbone, Embedding, Heads, HeadsKind, MlpActivation, MlpConfig, Spec};
use sconce_tensor::rng::Rng;
use sconce_tensor::{Error, Kind, pool, tensor};

fn mlp(hidden: &[usize], activation: MlpActivation) -> MlpConfig {
    MlpConfig {
        hidden_sizes: hidden.to_vec(),
        layer_norm: false,
        residual: false,
        activation,
        dropout: 0.0,
        input_dropout: 0.0,
    }
}

/// A Spec for an environment, with heads of one hidden layer or none.
fn of_env(env: &str, hidden: &[usize], activation: MlpActivation, head: usize) -> Spec {
    let env = spec(&EnvOptions { env: env.into(), ..EnvOptions::default() }).unwrap();
    let mut heads = Heads::of_parts(&env.inputs, HeadsKind::Independent);
    heads.parts.iter_mut().for_each(|part| part.hidden_size = head);
    Spec {
        embedding: Embedding::vector(env.observation_size),
        backbone: Backbone::Mlp(mlp(hidden, activation)),
        heads,
        critic: None,
    }
}

fn options(count: usize) -> PopulationOptions {
    PopulationOptions { count, storage: Storage::F32, sigma: 0.5, seed: 3 }
}

fn population(spec: &Spec, count: usize, storage: Storage) -> Population {
    Population::new(spec, &PopulationOptions { storage, ..options(count) }, None).unwrap()
}

fn policy(population: &Population, at: usize) -> Policy {
    let solution = population.read(&[at]).unwrap();
    Population::policy(population.network(), &solution).unwrap()
}

fn logits(policy: &Policy, observation: &[f32]) -> Vec<f32> {
    let frames =
        Frames { batch: 1, time: 1, continuous: observation.to_vec(), ..Frames::default() };
    let state = policy.zero_state(1).unwrap();
    let (logits, _) = policy.forward(&frames, None, &state, &Context::default()).unwrap();
    tensor::to_vec(&logits).unwrap()
}

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let rng = Rng::new(seed, "test", 0);
    (0..count as u64).map(|at| rng.normal(at)).collect()
}

fn specs() -> Vec<Spec> {
    vec![
        of_env("cart_pole", &[32, 16], MlpActivation::Tanh, 0),
        of_env("duel", &[7], MlpActivation::Relu, 5),
        of_env("pendulum", &[5, 6, 7], MlpActivation::Silu, 0),
        of_env("acrobot", &[9], MlpActivation::Gelu, 3),
    ]
}

#[test]
fn a_forward_equals_those_of_the_policies_one_by_one() {
    for spec in specs() {
        for storage in [Storage::F32, Storage::Bf16, Storage::Int8] {
            let population = population(&spec, 37, storage);
            let (inputs, outputs) = (population.network().inputs(), population.network().outputs());
            // Small ones, so that the roundings of both in f32 stay below the bound: of twelve seeds all pass so, and eight
            // with whole ones.
            let own: Vec<f32> = numbers(5, 37 * inputs).iter().map(|x| x / 4.0).collect();
            let each = population.forward(&own).unwrap();
            let shared = population.forward(&own[..inputs]).unwrap();
            for at in 0..37 {
                let policy = policy(&population, at);
                let seen = [&own[at * inputs..][..inputs], &own[..inputs]];
                for (got, seen) in [&each, &shared].into_iter().zip(seen) {
                    let wanted = logits(&policy, seen);
                    for (a, b) in got[at * outputs..][..outputs].iter().zip(&wanted) {
                        assert!(
                            (a - b).abs() <= 1e-6 * b.abs().max(1.0),
                            "{storage:?} {at}: {a} {b}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_policy_becomes_a_solution_and_comes_back() {
    for spec in specs() {
        let policy = Policy::init(&spec, 9).unwrap();
        let solution = Population::solution(&policy).unwrap();
        let network = Network::of(&spec).unwrap();
        assert_eq!(solution.len(), policy.num_weights());
        let back = Population::policy(&network, &solution).unwrap();
        for (name, weight) in policy.weights() {
            let (a, b) =
                (tensor::to_vec(weight).unwrap(), tensor::to_vec(&back.weights()[name]).unwrap());
            assert_eq!(a, b, "{name}");
        }
        let mut population = Population::new(
            &spec,
            &PopulationOptions { sigma: 0.0, ..options(20) },
            Some(&solution),
        )
        .unwrap();
        assert_eq!(population.read(&[19]).unwrap(), solution);
        let other = numbers(1, solution.len());
        population.write(17, &other).unwrap();
        assert_eq!(population.read(&[17, 16]).unwrap(), [&other[..], &solution].concat());
        // Over the end of a block.
        let rows = numbers(2, 9 * solution.len());
        population.write(10, &rows).unwrap();
        let all = population.read(&(9..20).collect::<Vec<_>>()).unwrap();
        assert_eq!(all, [&solution[..], &rows, &solution].concat());
        assert_eq!(population.solutions().unwrap()[9 * solution.len()..], all);
    }
}

#[test]
fn stored_weights_are_rounded_as_their_type_says() {
    let spec = of_env("cart_pole", &[32, 16], MlpActivation::Tanh, 0);
    let size = Network::of(&spec).unwrap().size();
    let given = numbers(2, 20 * size);
    let stored = |storage| {
        let mut population = population(&spec, 20, storage);
        population.write(0, &given).unwrap();
        population.read(&(0..20).collect::<Vec<_>>()).unwrap()
    };
    assert_eq!(stored(Storage::F32), given);
    for (a, b) in stored(Storage::Bf16).iter().zip(&given) {
        assert!((a - b).abs() <= b.abs() / 256.0, "{a} {b}");
    }
    // Half a step of a row whose largest magnitude is at most that of all numbers.
    let most = given.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    let got = stored(Storage::Int8);
    assert!(got.iter().zip(&given).all(|(a, b)| (a - b).abs() <= 0.51 * most / 127.0));
    // Rounded numbers stay as they are.
    let mut again = population(&spec, 20, Storage::Int8);
    again.write(0, &got).unwrap();
    let twice = again.read(&(0..20).collect::<Vec<_>>()).unwrap();
    assert!(twice.iter().zip(&got).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs()));
    let bytes = |storage| population(&spec, 16, storage).bytes() / 16;
    assert_eq!(bytes(Storage::F32), 4 * size);
    assert_eq!([bytes(Storage::Bf16), bytes(Storage::Int8)], [2 * size + 100, size + 350]);
}

/// Returns and measures of an individual, by its policy and an environment of its own.
fn played(policy: &Policy, options: &Episodes, at: usize) -> (f64, Vec<f64>) {
    let first = if options.same_starts { 0 } else { at as u64 };
    let env = EnvOptions { count: 1, first, ..options.env.clone() };
    let mut envs = Envs::new(&env).unwrap();
    let width = envs.spec().observation_size;
    let mut seen = vec![0.0; width];
    let (mut total, mut measures) = (0.0, vec![0.0; options.measures.len()]);
    let (mut left, mut decisions) = (options.episodes, 0);
    let (mut rewards, mut terminated, mut truncated) = (vec![0.0], vec![0], vec![0]);
    let (mut ended, mut finals) = (vec![], vec![]);
    envs.observe(&mut seen);
    while left > 0 {
        let frames = Frames { batch: 1, time: 1, continuous: seen.clone(), ..Frames::default() };
        let sampling = Sampling { deterministic: true, ..Sampling::default() };
        let rngs = [Rng::new(0, "test", 0)];
        let draw = Draw { sampling: &sampling, rngs: &rngs, given: None, mask: None };
        let state = policy.zero_state(1).unwrap();
        let (decision, _) = policy.act(&frames, &state, draw, &Context::default()).unwrap();
        decisions += 1;
        for (sum, measure) in measures.iter_mut().zip(&options.measures) {
            *sum += match measure {
                Measure::Observation(at) => f64::from(seen[*at]),
                Measure::Input(at) => f64::from(decision.choices[*at]),
                _ => 0.0,
            };
        }
        let mut out = Stepped {
            observations: &mut seen,
            rewards: &mut rewards,
            terminated: &mut terminated,
            truncated: &mut truncated,
            ended: &mut ended,
            final_observations: &mut finals,
        };
        envs.step(&decision.choices, &mut out).unwrap();
        total += f64::from(rewards[0]);
        if !ended.is_empty() {
            left -= 1;
            for (sum, measure) in measures.iter_mut().zip(&options.measures) {
                if let Measure::Final(at) = measure {
                    *sum += f64::from(finals[*at]);
                }
            }
        }
    }
    let episodes = f64::from(options.episodes);
    for (sum, measure) in measures.iter_mut().zip(&options.measures) {
        match measure {
            Measure::Final(_) => *sum /= episodes,
            Measure::Length => *sum = f64::from(decisions) / episodes,
            _ => *sum /= f64::from(decisions),
        }
    }
    (total / episodes, measures)
}

#[test]
fn episodes_equal_those_of_the_policies_one_by_one() {
    let measures =
        vec![Measure::Final(0), Measure::Observation(1), Measure::Input(0), Measure::Length];
    for (name, time_limit) in [("cart_pole", 200), ("pendulum", 40), ("mountain_car", 60)] {
        for same_starts in [false, true] {
            let spec = of_env(name, &[8], MlpActivation::Tanh, 0);
            let population = population(&spec, 70, Storage::F32);
            let env = EnvOptions {
                env: name.into(),
                seed: 4,
                time_limit: Some(time_limit),
                ..EnvOptions::default()
            };
            let options = Episodes { env, episodes: 3, same_starts, measures: measures.clone() };
            let got = population.episodes(&options).unwrap();
            for at in [0, 15, 16, 63, 64, 69] {
                let (ret, own) = played(&policy(&population, at), &options, at);
                let near = |a: f64, b: f64| (a - b).abs() <= 1e-3 * b.abs().max(1.0);
                assert!(near(got.returns[at], ret), "{name} {at}: {} {ret}", got.returns[at]);
                for (a, b) in got.measures[at * 4..][..4].iter().zip(&own) {
                    assert!(near(*a, *b), "{name} {at}: {a} {b}");
                }
            }
            let lengths: f64 = got.measures.chunks_exact(4).map(|row| row[3]).sum();
            assert_eq!((3.0 * lengths).round() as u64, got.decisions);
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let spec = of_env("cart_pole", &[8], MlpActivation::Tanh, 0);
    let env = EnvOptions { env: "cart_pole".into(), ..EnvOptions::default() };
    let options =
        Episodes { env, episodes: 2, same_starts: true, measures: vec![Measure::Final(2)] };
    let variation =
        Variation { iso_sigma: 0.1, crossover: Crossover::Sbx(15.0), bounds: Some((-2.0, 2.0)) };
    let run = || {
        let mut population = population(&spec, 200, Storage::F32);
        population.vary(&variation, None, (1, 2)).unwrap();
        let solutions = population.read(&(0..200).collect::<Vec<_>>()).unwrap();
        (solutions, population.episodes(&options).unwrap())
    };
    pool::set_threads(1).unwrap();
    let one = run();
    pool::set_threads(2).unwrap();
    assert_eq!(run(), one);
    assert!(one.0.iter().all(|v| v.abs() <= 2.0));
}

#[test]
fn children_come_from_their_parents() {
    let spec = of_env("cart_pole", &[8], MlpActivation::Tanh, 0);
    let size = Network::of(&spec).unwrap().size();
    let pairs: Vec<u32> = (0..100).flat_map(|at| [at, (at + 7) % 100]).collect();
    let vary = |crossover, iso_sigma| {
        let mut population = population(&spec, 100, Storage::F32);
        let all: Vec<usize> = (0..100).collect();
        let parents = population.read(&all).unwrap();
        let variation = Variation { iso_sigma, crossover, bounds: None };
        population.vary(&variation, Some(&pairs), (5, 1)).unwrap();
        (parents, population.read(&all).unwrap())
    };
    let row = |all: &[f32], at: usize| all[at * size..][..size].to_vec();
    let (parents, same) = vary(Crossover::Line(0.0), 0.0);
    assert_eq!(parents, same);
    let (parents, noisy) = vary(Crossover::Line(0.0), 0.1);
    let square: f64 = parents.iter().zip(&noisy).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let deviation = (square / parents.len() as f64).sqrt();
    assert!((deviation - 0.1).abs() < 0.003, "{deviation}");
    let (parents, mixed) = vary(Crossover::Uniform(0.25), 0.0);
    let mut seconds = 0;
    for at in 0..100 {
        let (first, second, child) =
            (row(&parents, at), row(&parents, (at + 7) % 100), row(&mixed, at));
        for ((a, b), c) in first.iter().zip(&second).zip(&child) {
            assert!(c == a || c == b);
            seconds += usize::from(c == b);
        }
    }
    let share = seconds as f64 / parents.len() as f64;
    assert!((share - 0.25).abs() < 0.02, "{share}");
    // The mean over both mirrored spreads is the mean of the parents.
    let (parents, crossed) = vary(Crossover::Sbx(2.0), 0.0);
    let (mut inside, mut all) = (0, 0);
    for at in 0..100 {
        let (first, second, child) =
            (row(&parents, at), row(&parents, (at + 7) % 100), row(&crossed, at));
        for ((a, b), c) in first.iter().zip(&second).zip(&child) {
            all += 1;
            inside += usize::from(*c >= a.min(*b) && *c <= a.max(*b));
        }
    }
    // Spreads below 1 lie inside, which half of them are.
    let share = inside as f64 / f64::from(all);
    assert!((share - 0.5).abs() < 0.02, "{share}");
    let (parents, summed) = vary(Crossover::Holographic, 0.0);
    let norm = |row: &[f32]| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    for at in 0..100 {
        let (first, second, child) =
            (row(&parents, at), row(&parents, (at + 7) % 100), row(&summed, at));
        let wanted = 0.5 * (norm(&first) + norm(&second));
        assert!((norm(&child) - wanted).abs() < 1e-4 * wanted);
    }
}

#[test]
fn children_of_an_archive_equal_those_that_it_returns() {
    let spec = of_env("cart_pole", &[8], MlpActivation::Tanh, 0);
    let mut population = population(&spec, 150, Storage::F32);
    let size = population.network().size();
    let options = ArchiveOptions {
        space: SpaceOptions::Grid { dimensions: vec![10], ranges: vec![(0.0, 1.0)] },
        solution_size: size,
        learning_rate: 1.0,
        threshold_min: None,
        offset: 0.0,
    };
    let mut archive = Archive::new(&options).unwrap();
    let variation = Variation { iso_sigma: 0.1, crossover: Crossover::Line(0.2), bounds: None };
    let empty = population.vary_from(&archive, &variation, None, (0, 0)).map_err(|e| e.kind());
    assert_eq!(empty, Err(Kind::NotFound));
    let solutions = population.read(&(0..10).collect::<Vec<_>>()).unwrap();
    let measures: Vec<f64> = (0..10).map(|at| 0.05 + 0.1 * f64::from(at)).collect();
    archive
        .add(Batch { solutions: &solutions, objectives: &[1.0; 10], measures: &measures })
        .unwrap();
    population.vary_from(&archive, &variation, None, (3, 4)).unwrap();
    let all: Vec<usize> = (0..150).collect();
    assert_eq!(population.read(&all).unwrap(), archive.vary(&variation, 150, (3, 4)).unwrap());
    let narrow = ArchiveOptions { solution_size: 3, ..options };
    let mut narrow = Archive::new(&narrow).unwrap();
    narrow.add(Batch { solutions: &[0.0; 3], objectives: &[0.0], measures: &[0.0] }).unwrap();
    let said = message(population.vary_from(&narrow, &variation, None, (0, 0)));
    assert_eq!(said, format!("numbers of a solution of the archive: expected {size}, got 3"));
}

fn message<T>(result: Result<T, Error>) -> String {
    result.err().map(|e| e.to_string()).unwrap_or_default()
}

#[test]
fn invalid_input_is_named_and_changes_nothing() {
    let spec = of_env("cart_pole", &[8], MlpActivation::Tanh, 0);
    let mut own = population(&spec, 20, Storage::F32);
    let size = own.network().size();
    let before = own.read(&[0, 19]).unwrap();
    let mut bad = vec![0.0; 2 * size];
    bad[size + 3] = f32::NAN;
    assert_eq!(message(own.write(0, &bad)), "solution 1 is not finite (NaN)");
    bad[size + 3] = 1e31;
    assert!(message(own.write(0, &bad)).starts_with("solution 1: "));
    let said = message(own.write(0, &bad[1..]));
    assert_eq!(
        said,
        format!("numbers of solutions: expected rows of {size}, got {}", 2 * size - 1)
    );
    assert_eq!(
        message(own.write(19, &vec![0.0; 2 * size])),
        "end of the individuals: 21 is outside 0..20"
    );
    assert_eq!(message(own.read(&[20])), "individual: 20 is outside 0..19");
    assert_eq!(
        message(own.forward(&[0.0; 5])),
        "numbers of observations: expected 4, or 4 for each of 20, got 5"
    );
    assert_eq!(own.forward(&[f32::NAN; 4]).map_err(|e| e.kind()), Err(Kind::NonFinite));
    let mut huge = population(&of_env("cart_pole", &[8], MlpActivation::Relu, 0), 20, Storage::F32);
    huge.write(7, &vec![1e30; size]).unwrap();
    let said = message(huge.forward(&[1e30; 4]));
    assert!(said.starts_with("a logit of individual 7 is not finite"), "{said}");
    let variation = Variation { iso_sigma: -1.0, crossover: Crossover::Line(0.0), bounds: None };
    assert!(message(own.vary(&variation, None, (0, 0))).starts_with("iso_sigma: -1 is outside"));
    let variation = Variation { iso_sigma: 0.0, crossover: Crossover::Uniform(1.5), bounds: None };
    assert_eq!(
        message(own.vary(&variation, None, (0, 0))),
        "crossover (uniform): 1.5 is outside 0..1"
    );
    let variation = Variation { crossover: Crossover::Line(0.0), ..variation };
    assert_eq!(
        message(own.vary(&variation, Some(&[0, 1]), (0, 0))),
        "pairs of parents: expected 20, got 1"
    );
    assert_eq!(
        message(own.vary(&variation, Some(&[20; 40]), (0, 0))),
        "parent: 20 is outside 0..19"
    );
    assert_eq!(own.read(&[0, 19]).unwrap(), before);

    let episodes = |env: EnvOptions, measures: Vec<Measure>, episodes: u32| {
        let options = Episodes { env, episodes, same_starts: true, measures };
        message(own.episodes(&options))
    };
    let env = |name: &str| EnvOptions { env: name.into(), ..EnvOptions::default() };
    assert_eq!(episodes(env("cart_pole"), vec![], 0), "episodes: 0 is outside 1..65536");
    assert_eq!(
        episodes(env("cart_pole"), vec![Measure::Final(4)], 1),
        "index of a measure: 4 is outside 0..3"
    );
    assert_eq!(episodes(env("duel"), vec![], 1), "opponent: expected a scripted one, got none");
    assert!(
        episodes(env("acrobot"), vec![], 1)
            .starts_with("observation of the policy: expected 6, got 4")
    );
    assert!(episodes(env("pole"), vec![], 1).starts_with("environment \"pole\""));

    let refused = |spec: &Spec| message(Network::of(spec).map(|_| ()));
    let norm = MlpConfig { layer_norm: true, ..mlp(&[8], MlpActivation::Relu) };
    let said = refused(&Spec { backbone: Backbone::Mlp(norm), ..spec.clone() });
    assert!(
        said.starts_with("the backbone of a population: expected an MLP without norms"),
        "{said}"
    );
    let mut heads = spec.heads.clone();
    heads.kind = HeadsKind::Autoregressive;
    let said = refused(&Spec { heads, ..spec.clone() });
    assert!(said.starts_with("the heads of a population: expected independent heads"), "{said}");
}
