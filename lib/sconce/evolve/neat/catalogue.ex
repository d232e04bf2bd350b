defmodule Sconce.Evolve.Neat.Catalogue do
  @moduledoc false
  # The options of `Sconce.Evolve.Neat`.

  @activations [:sigmoid, :steep_sigmoid, :tanh, :relu, :identity]
  @most 1.0e6

  @distance [
    rule: [
      type: {:in, [:paper, :neat_python]},
      default: :paper,
      doc:
        "The formula: `:paper` is equation 1 of Stanley & Miikkulainen 2002, `:neat_python` that of neat-python 2.0, which " <>
          "is much slower."
    ],
    excess: [
      type: :float,
      default: 1.0,
      min: 0,
      max: @most,
      doc:
        "Coefficient of connections beyond the last innovation of the other genome; only `:paper` reads it."
    ],
    disjoint: [
      type: :float,
      default: 1.0,
      min: 0,
      max: @most,
      doc: "Coefficient of other connections without a partner."
    ],
    weights: [
      type: :float,
      default: 0.4,
      min: 0,
      max: @most,
      doc: "Coefficient of the difference of matching weights."
    ],
    small_genome: [
      type: :non_neg_integer,
      default: 20,
      max: 2 ** 31,
      doc:
        "Counts are not divided by the size of the larger genome if both have fewer connections than this; only " <>
          "`:paper` reads it."
    ]
  ]

  @rate [type: :float, min: 0, max: 1]

  @new [
         inputs: [
           type: :pos_integer,
           required: true,
           max: 65_536,
           doc: "Number of inputs, without the bias node."
         ],
         outputs: [
           type: :pos_integer,
           required: true,
           max: 65_536,
           doc: "Number of outputs."
         ],
         population: [
           type: :pos_integer,
           default: 150,
           min: 2,
           max: 2 ** 20,
           doc: "Number of genomes."
         ],
         seed: [
           type: :non_neg_integer,
           default: 0,
           max: 2 ** 64 - 1,
           doc: "Seed of all random numbers."
         ],
         hidden_activation: [
           type: {:in, @activations},
           default: :steep_sigmoid,
           doc: "The function of hidden nodes."
         ],
         output_activation: [
           type: {:in, @activations},
           default: :steep_sigmoid,
           doc: "The function of output nodes."
         ],
         threshold: [
           type: :float,
           default: 3.0,
           min: 0,
           max: @most,
           doc: "Distance below which a genome joins a species, at the start."
         ],
         threshold_step: [
           type: :float,
           default: 0.3,
           min: 0,
           max: @most,
           doc:
             "Change of the threshold after a generation, towards `:target_species`; 0 keeps it."
         ],
         target_species: [
           type: :pos_integer,
           default: 10,
           max: 2 ** 20,
           doc: "Wanted number of species."
         ],
         stagnation: [
           type: :pos_integer,
           default: 15,
           max: 2 ** 31,
           doc: "Generations without a higher best fitness after which a species ends."
         ],
         protected_species: [
           type: :non_neg_integer,
           default: 2,
           max: 2 ** 20,
           doc: "Species with the highest best fitness that never end by stagnation."
         ],
         elitism: [
           type: :non_neg_integer,
           default: 1,
           max: 2 ** 20,
           doc:
             "Best genomes that stay unchanged, of each species of five or more and of the species of the best genome."
         ],
         survival:
           @rate ++ [default: 0.2, doc: "Share of a species, the best ones, that may be parents."],
         crossover: @rate ++ [default: 0.75, doc: "Rate of children that have two parents."],
         interspecies:
           @rate ++ [default: 0.001, doc: "Rate of second parents that are of any species."],
         weight_range: [
           type: :float,
           default: 3.0,
           min: 0,
           max: @most,
           doc: "New weights are uniform between its negative and itself."
         ],
         weight_limit: [
           type: :float,
           default: 30.0,
           min: 0,
           max: @most,
           doc: "Largest magnitude of a weight, at least `:weight_range`."
         ],
         weight_rate: @rate ++ [default: 0.8, doc: "Rate of children whose weights change."],
         weight_power: [
           type: :float,
           default: 1.0,
           min: 0,
           max: @most,
           doc: "Largest change of a weight that is perturbed."
         ],
         weight_replace:
           @rate ++
             [default: 0.1, doc: "Rate of weights that are replaced instead, in such a child."],
         add_node: @rate ++ [default: 0.03, doc: "Rate of children that get a node."],
         add_connection: @rate ++ [default: 0.2, doc: "Rate of children that get a connection."],
         toggle:
           @rate ++
             [
               default: 0.01,
               doc: "Rate of children with a connection that is enabled or disabled."
             ]
       ] ++ @distance

  @fit [
    generations: [
      type: :pos_integer,
      default: 100,
      max: 2 ** 31,
      doc: "Most populations that are evaluated."
    ],
    stop_at: [
      type: {:or, [:float, nil]},
      default: nil,
      doc: "Ends with the population in which a fitness reaches this number."
    ]
  ]

  @svg [title: [type: :string, default: "Genome", doc: "Heading."]]

  @doc "The options of a function."
  @spec schema(:new | :distance | :fit | :svg) :: Sconce.Options.schema()
  def schema(:new), do: @new
  def schema(:distance), do: @distance
  def schema(:fit), do: @fit
  def schema(:svg), do: @svg

  @doc "Functions of nodes."
  @spec activations() :: [atom]
  def activations, do: @activations
end
