//! Populations of networks: evaluation, distances, species, generations, files.

mod support;
#[path = "../examples/xor/mod.rs"]
mod xor;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use sconce_evolve::{
    Activation, Compatibility, Connection, Differences, Genome, Neat, NeatOptions, Node, NodeKind,
    Rule, assign_species,
};
use sconce_tensor::{Kind, pool};
use support::Golden;

static NEVER: AtomicBool = AtomicBool::new(false);

fn apply(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::SteepSigmoid => 1.0 / (1.0 + (-4.9 * x).exp()),
        Activation::Tanh => x.tanh(),
        Activation::Relu => x.max(0.0),
        Activation::Identity => x,
    }
}

/// The value of a node by its definition, without an order.
fn value(genome: &Genome, id: u32, inputs: &[f32], known: &mut HashMap<u32, f64>) -> f64 {
    if let Some(value) = known.get(&id) {
        return *value;
    }
    let kind = genome.nodes.iter().find(|node| node.id == id).unwrap().kind;
    let mut sum = 0.0;
    for own in genome.connections.iter().filter(|own| own.enabled && own.target == id) {
        sum += f64::from(own.weight) * value(genome, own.source, inputs, known);
    }
    let value = match kind {
        NodeKind::Input => f64::from(inputs[id as usize]),
        NodeKind::Bias => 1.0,
        NodeKind::Output => apply(genome.output_activation, sum),
        NodeKind::Hidden => apply(genome.hidden_activation, sum),
    };
    known.insert(id, value);
    value
}

fn reference(genome: &Genome, inputs: &[f32]) -> Vec<f64> {
    let mut known = HashMap::new();
    let outputs = genome.nodes.iter().filter(|node| node.kind == NodeKind::Output);
    outputs.map(|node| value(genome, node.id, inputs, &mut known)).collect()
}

/// Numbers in -1..1.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let rng = sconce_tensor::rng::Rng::new(seed, "test", 0);
    (0..count).map(|at| 2.0 * rng.uniform(at as u64) - 1.0).collect()
}

fn wild(seed: u64) -> NeatOptions {
    NeatOptions {
        population: 24,
        add_node: 0.4,
        add_connection: 0.6,
        toggle: 0.3,
        weight_range: 1.0,
        weight_power: 0.3,
        weight_limit: 2.0,
        ..xor::options(seed)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Each case has hundreds of genomes, each after many mutations.
    #[test]
    fn evaluation_agrees_with_a_recursive_one_after_any_mutations(
        seed in 0u64..1 << 40,
        inputs in 0usize..4,
        outputs in 1usize..4,
        patterns in 1usize..20,
        hidden in 0usize..5,
        output in 0usize..5,
    ) {
        let all = [
            Activation::Sigmoid,
            Activation::SteepSigmoid,
            Activation::Tanh,
            Activation::Relu,
            Activation::Identity,
        ];
        let (hidden_activation, output_activation) = (all[hidden], all[output]);
        let own = NeatOptions { inputs, outputs, hidden_activation, output_activation, ..wild(seed) };
        let mut neat = Neat::new(&own).unwrap();
        let given = numbers(seed, inputs * patterns);
        for generation in 0..20 {
            let got = neat.forward(&given, patterns).unwrap();
            for (at, got) in got.chunks(patterns * outputs).enumerate() {
                let genome = neat.genome(at).unwrap();
                for (pattern, got) in got.chunks(outputs).enumerate() {
                    let want = reference(&genome, &given[pattern * inputs..][..inputs]);
                    for (got, want) in got.iter().zip(want) {
                        let error = (f64::from(*got) - want).abs();
                        prop_assert!(error <= 2e-5 * want.abs().max(1.0), "{got} {want} {genome:?}");
                    }
                }
                prop_assert_eq!(genome.forward(&given, patterns).unwrap(), got);
            }
            let fitness = numbers(seed + generation, own.population);
            let fitness: Vec<f64> = fitness.into_iter().map(f64::from).collect();
            neat.tell(&fitness).unwrap();
            let stats = neat.stats();
            let sizes = stats.species.iter().map(|own| own.size).sum::<usize>();
            prop_assert_eq!(sizes, own.population);
        }
        // The mutations did occur.
        prop_assert!(neat.stats().hidden_nodes > 1.0);
    }
}

#[test]
fn distances_are_those_of_the_reference() {
    let golden = Golden::open("evolve_neat_distance");
    let innovation = golden.i64("input.innovation");
    let weight = golden.f64("input.weight");
    let room = innovation.len() / golden.size("pairs") / 2;
    let genes = |at: usize| {
        let own = innovation[at * room..][..room].iter().take_while(|number| **number >= 0);
        let own: Vec<u32> = own.map(|number| *number as u32).collect();
        let weights = weight[at * room..][..own.len()].to_vec();
        (own, weights)
    };
    let coefficient = |name: &str| golden.config[name].as_f64().unwrap();
    let mut got = vec![];
    for pair in 0..golden.size("pairs") {
        let (a, b) = (genes(2 * pair), genes(2 * pair + 1));
        let own = Differences::new((&a.0, &a.1), (&b.0, &b.1));
        let counts = [own.excess, own.disjoint, own.matching].map(|count| count as i64);
        let want = ["excess", "disjoint", "matching"];
        let want = want.map(|name| golden.i64(&format!("output.{name}"))[pair]);
        assert_eq!(counts, want, "{pair}");
        let mean = &golden.f64("output.mean_difference")[pair..=pair];
        golden.check("mean_difference", &[own.weight], mean);
        for small_genome in [0, 20] {
            let compatibility = Compatibility {
                rule: Rule::Paper,
                excess: coefficient("c1"),
                disjoint: coefficient("c2"),
                weights: coefficient("c3"),
                small_genome,
            };
            got.push(compatibility.distance(&own, a.0.len().max(b.0.len())));
        }
    }
    golden.check("distance", &got, &golden.f64("output.distance"));
}

#[test]
fn xor_is_solved_in_a_median_of_at_most_50_generations() {
    let mut all = vec![];
    for seed in 0..21 {
        let mut neat = Neat::new(&xor::options(seed)).unwrap();
        let fit = neat.fit((&xor::INPUTS, &xor::TARGETS), 300, xor::SOLVED, &NEVER).unwrap();
        assert!(fit.reached, "seed {seed}: {fit:?}");
        let (best, fitness) = neat.best().unwrap();
        assert_eq!(fitness, fit.best);
        let outputs = best.forward(&xor::INPUTS, 4).unwrap();
        for (got, want) in outputs.iter().zip(xor::TARGETS) {
            assert_eq!(*got > 0.5, want > 0.5, "seed {seed}: {outputs:?}");
        }
        all.push(fit.generations);
    }
    all.sort_unstable();
    assert!(all[10] <= 50, "{all:?}");
    // XOR is no problem for a network without hidden nodes.
    assert!(all[0] > 1, "{all:?}");
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let run = || {
        let own = NeatOptions { population: 400, ..wild(3) };
        let mut neat = Neat::new(&own).unwrap();
        let (inputs, targets) = (numbers(1, 2 * 40), numbers(2, 40));
        neat.fit((&inputs, &targets), 12, f64::INFINITY, &NEVER).unwrap();
        (neat.forward(&inputs, 40).unwrap(), neat)
    };
    let parallel = run();
    assert!(parallel == pool::serial(run));
}

fn told(neat: &mut Neat, generations: u64) {
    for _ in 0..generations {
        let outputs = neat.forward(&xor::INPUTS, 4).unwrap();
        let error = |row: &[f32]| -> f32 {
            row.iter().zip(xor::TARGETS).map(|(got, want)| (got - want).powi(2)).sum()
        };
        let fitness: Vec<f64> = outputs.chunks(4).map(|row| 4.0 - f64::from(error(row))).collect();
        neat.tell(&fitness).unwrap();
    }
}

#[test]
fn a_saved_population_goes_on_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("neat.safetensors");
    for generations in [0, 30] {
        let mut neat = Neat::new(&wild(5)).unwrap();
        told(&mut neat, generations);
        neat.save(&path).unwrap();
        let mut loaded = Neat::load(&path).unwrap();
        assert!(loaded == neat);
        told(&mut neat, 20);
        told(&mut loaded, 20);
        assert!(loaded == neat);
    }
    let bytes = sconce_tensor::fs::read(&path, u64::MAX).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(Neat::load(&path).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn a_fitness_that_is_not_finite_is_named_and_changes_nothing() {
    let mut neat = Neat::new(&wild(1)).unwrap();
    told(&mut neat, 3);
    let before = neat.clone();
    let mut fitness = vec![1.0; 24];
    for (value, kind) in
        [(f64::NAN, Kind::NonFinite), (f64::INFINITY, Kind::NonFinite), (1e200, Kind::OutOfRange)]
    {
        fitness[7] = value;
        let error = neat.tell(&fitness).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains("genome 7"), "{error}");
        assert!(neat == before);
    }
    assert_eq!(neat.tell(&fitness[..3]).unwrap_err().kind(), Kind::Mismatch);
    let bad = [0.0, f32::NAN];
    assert_eq!(neat.forward(&bad, 1).unwrap_err().kind(), Kind::NonFinite);
    assert_eq!(neat.forward(&bad, 2).unwrap_err().kind(), Kind::Mismatch);
    assert_eq!(neat.forward(&[], 0).unwrap_err().kind(), Kind::Mismatch);
}

fn chain(links: &[(u32, u32)]) -> Genome {
    let kinds = [
        NodeKind::Input,
        NodeKind::Bias,
        NodeKind::Output,
        NodeKind::Hidden,
        NodeKind::Hidden,
        NodeKind::Hidden,
    ];
    let nodes = kinds.iter().enumerate().map(|(id, kind)| Node { id: id as u32, kind: *kind });
    let connection = |(at, (source, target)): (usize, &(u32, u32))| Connection {
        innovation: at as u32,
        source: *source,
        target: *target,
        weight: 1.0,
        enabled: true,
    };
    Genome {
        hidden_activation: Activation::Identity,
        output_activation: Activation::Identity,
        nodes: nodes.collect(),
        connections: links.iter().enumerate().map(connection).collect(),
    }
}

#[test]
fn a_genome_that_is_no_network_is_refused_by_name() {
    let good = chain(&[(0, 5), (5, 4), (4, 3), (3, 2), (1, 2), (5, 2)]);
    assert_eq!(good.forward(&[2.0], 1).unwrap(), [5.0]);
    let refused = |genome: &Genome| genome.forward(&[2.0], 1).unwrap_err().to_string();
    // Node 2 comes after the cycle and is not a part of it.
    let cycle = refused(&chain(&[(0, 3), (3, 4), (4, 5), (5, 4), (4, 2)]));
    assert!(
        cycle.contains("a cycle through node 4") || cycle.contains("a cycle through node 5"),
        "{cycle}"
    );
    let mut own = chain(&[(0, 3), (3, 3)]);
    assert!(refused(&own).contains("a cycle through node 3"));
    // A connection that may be enabled later counts too.
    own.connections[1].enabled = false;
    assert!(refused(&own).contains("a cycle through node 3"));
    assert!(refused(&chain(&[(0, 9)])).contains("node 9 of connection 0"));
    assert!(refused(&chain(&[(0, 1)])).contains("connection 0"));
    assert!(refused(&chain(&[(0, 2), (0, 2)])).contains("connection 1"));
    let mut twice = good.clone();
    twice.connections[1].innovation = 0;
    assert!(refused(&twice).contains("connection 0"));
    let mut weight = good.clone();
    weight.connections[2].weight = f32::INFINITY;
    assert!(refused(&weight).contains("the weight of connection 2"));
    let mut nodes = good.clone();
    nodes.nodes[4].id = 3;
    assert!(refused(&nodes).contains("nodes of the genome"));
    nodes.nodes.clear();
    assert!(refused(&nodes).contains("bias nodes"));
    let other = Neat::new(&xor::options(0)).unwrap().genome(0).unwrap();
    let own = xor::options(0).compatibility;
    assert_eq!(good.distance(&other, &own).unwrap_err().kind(), Kind::Mismatch);
}

/// The rule of species by the public distance, one pair after the other.
fn slow_species(
    genomes: &[Genome],
    old: &[Genome],
    own: &Compatibility,
    threshold: f64,
) -> Vec<u32> {
    let mut of = vec![None; genomes.len()];
    let mut chosen = vec![];
    for (species, old) in old.iter().enumerate() {
        let free = (0..genomes.len()).filter(|at| of[*at].is_none());
        let mut all: Vec<_> =
            free.map(|at| (old.distance(&genomes[at], own).unwrap(), at)).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        of[all[0].1] = Some(species as u32);
        chosen.push(all[0].1);
    }
    for at in 0..genomes.len() {
        if of[at].is_none() {
            let all = chosen.iter().map(|own_| genomes[*own_].distance(&genomes[at], own).unwrap());
            let mut all: Vec<_> = all.enumerate().filter(|(_, d)| *d < threshold).collect();
            all.sort_by(|a, b| a.1.total_cmp(&b.1));
            if all.is_empty() {
                chosen.push(at);
            }
            of[at] = Some(all.first().map_or(chosen.len() as u32 - 1, |own| own.0 as u32));
        }
    }
    of.into_iter().flatten().collect()
}

#[test]
fn species_are_those_of_the_rule_for_each_distance() {
    for (seed, rule, excess, small_genome) in [
        (1, Rule::Paper, 1.0, 20),
        (2, Rule::Paper, 2.5, 0),
        (3, Rule::Paper, 1.0, 0),
        (4, Rule::NeatPython, 1.0, 0),
    ] {
        let mut neat = Neat::new(&NeatOptions { population: 70, ..wild(seed) }).unwrap();
        told(&mut neat, 8);
        let all = |neat: &Neat| (0..70).map(|at| neat.genome(at).unwrap()).collect::<Vec<_>>();
        let before = all(&neat);
        told(&mut neat, 1);
        let after = all(&neat);
        let own = Compatibility { rule, excess, disjoint: 1.0, weights: 0.5, small_genome };
        let old = [before[3].clone(), before[40].clone(), before[11].clone()];
        for threshold in [0.3, 1.0, 3.0] {
            let got = assign_species(&after, &old, &own, threshold).unwrap();
            assert_eq!(got, slow_species(&after, &old, &own, threshold), "{rule:?} {threshold}");
        }
    }
}

#[test]
fn the_same_mutation_has_the_same_numbers_in_one_generation() {
    let own = NeatOptions { add_node: 1.0, add_connection: 0.0, crossover: 0.0, ..wild(2) };
    let mut neat = Neat::new(&own).unwrap();
    neat.tell(&[1.0; 24]).unwrap();
    // Each of three connections is split, and nothing else is.
    let mut splits: HashMap<u32, (u32, u32, u32)> = HashMap::new();
    for at in 0..24 {
        let genome = neat.genome(at).unwrap();
        if let [.., into, out] = genome.connections.as_slice()
            && genome.connections.len() == 5
        {
            assert_eq!((into.target, into.weight, out.source), (out.source, 1.0, into.target));
            let split = genome.connections.iter().find(|own| own.source == into.source).unwrap();
            let numbers = (into.target, into.innovation, out.innovation);
            assert_eq!(*splits.entry(split.innovation).or_insert(numbers), numbers);
        }
    }
    assert_eq!(splits.len(), 3);
}

#[test]
fn a_species_that_does_not_improve_ends_and_the_best_genome_stays() {
    let own = NeatOptions {
        stagnation: 4,
        protected_species: 0,
        target_species: 4,
        threshold: 0.5,
        ..wild(7)
    };
    let mut neat = Neat::new(&own).unwrap();
    let mut seen: HashMap<u64, u64> = HashMap::new();
    for generation in 0..40 {
        // All are equal but the first, which stays because it is the best.
        let mut fitness = vec![1.0; 24];
        fitness[0] = 2.0;
        let best = neat.genome(0).unwrap();
        neat.tell(&fitness).unwrap();
        assert!((0..24).any(|at| neat.genome(at).unwrap() == best), "{generation}");
        let stats = neat.stats();
        assert_eq!(stats.best, Some(2.0));
        for own in &stats.species {
            *seen.entry(own.id).or_default() += 1;
        }
    }
    let mut lives: Vec<u64> = seen.into_values().collect();
    lives.sort_unstable();
    // One species has the best genome. The others live for the generations that stagnation allows.
    let long = lives.iter().filter(|own| **own > 6).count();
    assert!(lives.len() > 4 && long <= 8, "{lives:?}");
}

#[test]
fn options_out_of_range_are_refused() {
    let refused = |own: NeatOptions| Neat::new(&own).unwrap_err().to_string();
    let base = || xor::options(0);
    assert!(refused(NeatOptions { population: 1, ..base() }).contains("population"));
    assert!(refused(NeatOptions { outputs: 0, ..base() }).contains("outputs"));
    assert!(refused(NeatOptions { inputs: 1 << 30, ..base() }).contains("inputs"));
    assert!(refused(NeatOptions { survival: 1.5, ..base() }).contains("survival"));
    assert!(refused(NeatOptions { weight_range: f32::NAN, ..base() }).contains("weight_range"));
    let pair = ([0.0, 0.0].as_slice(), [0.0, f32::NAN].as_slice());
    let mut neat = Neat::new(&base()).unwrap();
    assert_eq!(neat.fit(pair, 1, 0.0, &NEVER).unwrap_err().kind(), Kind::Mismatch);
    let set = AtomicBool::new(true);
    let error = neat.fit((&xor::INPUTS, &xor::TARGETS), 1, 9.0, &set).unwrap_err();
    assert_eq!(error.kind(), Kind::Cancelled);
}
