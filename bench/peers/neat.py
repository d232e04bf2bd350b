"""XOR with neat-python 2.0.0: its time for a generation, and genomes with its distances and species.

    python neat.py time [EXAMPLE]    # microseconds a generation; EXAMPLE is target/release/examples/neat, run before and after
    python neat.py golden FILE       # ../../test/golden/neat_python.json

A test (native/evolve/tests/neat_python.rs) computes the distances and species of that file again. The bias is a third
input of 1 here, because neat-python has a bias in each node and Sconce a bias node.
"""
import importlib.metadata
import json
import os
import random
import subprocess
import sys
import tempfile
import time

# This file is called as the package is.
sys.path = [p for p in sys.path if os.path.abspath(p or ".") != os.path.dirname(os.path.abspath(__file__))]
import neat  # noqa: E402

VERSION = "2.0.0"
INPUTS = [(0.0, 0.0, 1.0), (0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 1.0)]
TARGETS = [0.0, 1.0, 1.0, 0.0]
GENERATIONS, RUNS = 100, 5

CONFIG = """
[NEAT]
fitness_criterion = max
fitness_threshold = 1000
pop_size = 150
reset_on_extinction = True
no_fitness_termination = True

[DefaultGenome]
num_inputs = 3
num_hidden = 0
num_outputs = 1
initial_connection = full_direct
feed_forward = True
compatibility_disjoint_coefficient = 1.0
compatibility_weight_coefficient = 0.5
conn_add_prob = 0.3
conn_delete_prob = 0.0
node_add_prob = 0.2
node_delete_prob = 0.0
single_structural_mutation = False
structural_mutation_surer = False
activation_default = sigmoid
activation_options = sigmoid
activation_mutate_rate = 0.0
aggregation_default = sum
aggregation_options = sum
aggregation_mutate_rate = 0.0
bias_init_type = gaussian
bias_init_mean = 0.0
bias_init_stdev = 0.0
bias_replace_rate = 0.0
bias_mutate_rate = 0.0
bias_mutate_power = 0.0
bias_max_value = 30.0
bias_min_value = -30.0
response_init_type = gaussian
response_init_mean = 1.0
response_init_stdev = 0.0
response_replace_rate = 0.0
response_mutate_rate = 0.0
response_mutate_power = 0.0
response_max_value = 30.0
response_min_value = -30.0
time_constant_init_type = gaussian
time_constant_init_mean = 1.0
time_constant_init_stdev = 0.0
time_constant_replace_rate = 0.0
time_constant_mutate_rate = 0.0
time_constant_mutate_power = 0.0
time_constant_max_value = 10.0
time_constant_min_value = 0.01
weight_init_type = gaussian
weight_init_mean = 0.0
weight_init_stdev = 1.0
weight_replace_rate = 0.1
weight_mutate_rate = 0.8
weight_mutate_power = 0.5
weight_max_value = 30.0
weight_min_value = -30.0
enabled_default = True
enabled_mutate_rate = 0.05
enabled_rate_to_true_add = 0.0
enabled_rate_to_false_add = 0.0

[DefaultSpeciesSet]
compatibility_threshold = 3.0

[DefaultStagnation]
species_fitness_func = max
max_stagnation = 15
species_elitism = 2

[DefaultReproduction]
elitism = 2
survival_threshold = 0.2
min_species_size = 2
"""


def config():
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as file:
        file.write(CONFIG)
        file.flush()
        return neat.Config(neat.DefaultGenome, neat.DefaultReproduction, neat.DefaultSpeciesSet,
                           neat.DefaultStagnation, file.name)


def evaluate(genomes, own):
    for _, genome in genomes:
        net = neat.nn.FeedForwardNetwork.create(genome, own)
        outputs = [net.activate(x)[0] for x in INPUTS]
        genome.fitness = 4.0 - sum((y - t) ** 2 for y, t in zip(outputs, TARGETS))


def data(genome):
    """A genome in Sconce's form: inputs 0 and 1, the bias node 2, the output 3, then hidden nodes."""
    number = lambda key: -key - 1 if key < 0 else key + 3
    kinds = ["input", "input", "bias", "output"]
    nodes = [{"id": at, "kind": kind} for at, kind in enumerate(kinds)]
    nodes += [{"id": number(key), "kind": "hidden"} for key in sorted(genome.nodes) if key > 0]
    links = [{"innovation": link.innovation, "source": number(key[0]), "target": number(key[1]),
              "weight": link.weight, "enabled": link.enabled} for key, link in genome.connections.items()]
    links.sort(key=lambda link: link["innovation"])
    return {"hidden_activation": "sigmoid", "output_activation": "sigmoid", "nodes": nodes, "connections": links}


def rounded(genome):
    """Sconce keeps weights as 32-bit floats."""
    import struct
    for link in genome.connections.values():
        link.weight = struct.unpack("f", struct.pack("f", link.weight))[0]


def golden(path):
    random.seed(7)
    own = config()
    own.pop_size = 40
    population = neat.Population(own)
    cases = []

    def watched(genomes, own):
        evaluate(genomes, own)
        for _, genome in genomes:
            rounded(genome)
        if population.generation in (1, 6, 15):
            # A new set of species with these representatives repeats the assignment.
            again = neat.DefaultSpeciesSet(own.species_set_config, population.reporters)
            rest = [genome for _, genome in genomes]
            old = [before[0], before[7], before[19]]
            for genome in old:
                sid = next(again.indexer)
                again.species[sid] = neat.species.Species(sid, 0)
                again.species[sid].representative = genome
            again.species_set_config.compatibility_threshold = own.threshold
            again.speciate(own, {genome.key: genome for genome in rest}, 0)
            keys = sorted(genome.key for genome in rest)
            of = {genome.key: again.get_species_id(genome.key) - 1 for genome in rest}
            order = {key: genome for key, genome in genomes}
            cases.append({
                "threshold": own.threshold,
                "representatives": [data(genome) for genome in old],
                "genomes": [data(order[key]) for key in keys],
                "distances": [[genome.distance(order[key], own.genome_config) for key in keys] for genome in old],
                "species": [of[key] for key in keys],
            })
        before.clear()
        before.extend(genome for _, genome in genomes)

    before = []
    thresholds = {1: 0.9, 6: 1.6, 15: 2.2}
    for generation in range(16):
        own.threshold = thresholds.get(generation, 3.0)
        own.species_set_config.compatibility_threshold = 3.0
        population.run(watched, 1)
    with open(path, "w") as file:
        json.dump({"source": f"neat-python {VERSION}", "disjoint": 1.0, "weights": 0.5, "cases": cases}, file,
                  separators=(",", ":"))
        file.write("\n")
    print([len(set(case["species"])) for case in cases], "species")


def timed():
    """The fastest generation of each place in a run, because other programs interrupt some."""
    best = [float("inf")] * GENERATIONS
    for run in range(RUNS):
        random.seed(run)
        own = config()
        own.genome_config.node_add_prob, own.genome_config.conn_add_prob = 0.03, 0.2
        population = neat.Population(own)
        for at in range(GENERATIONS):
            start = time.perf_counter()
            population.run(evaluate, 1)
            best[at] = min(best[at], time.perf_counter() - start)
    print(f"neat-python {VERSION}: {1e6 * sum(best) / GENERATIONS:.0f} us a generation of 150 on XOR", flush=True)


def main(args):
    if importlib.metadata.version("neat-python") != VERSION:
        sys.exit(f"neat-python {VERSION} is needed")
    match args:
        case ["golden", path]:
            golden(path)
        case ["time", *example]:
            for program in example:
                subprocess.run([program, str(GENERATIONS)], check=True)
            timed()
            for program in example:
                subprocess.run([program, str(GENERATIONS)], check=True)
        case _:
            sys.exit(__doc__)


main(sys.argv[1:])
