defmodule Sconce.Evolve.Catalogue do
  @moduledoc false
  # The options of `Sconce.Evolve.Archive`, `Sconce.Evolve.Population` and `Sconce.Evolve.Search`.

  alias Sconce.{Env, Options}

  @new [
    cells: [
      type:
        {:or,
         [
           {:tuple, [{:in, [:grid]}, {:list, :pos_integer}]},
           {:tuple, [{:in, [:voronoi]}, :pos_integer]},
           {:tuple, [{:in, [:centroids]}, {:list, {:list, :float}}]},
           {:tuple, [{:in, [:unstructured]}, :pos_integer]}
         ]},
      required: true,
      doc:
        "`{:grid, [64, 64]}` has 64 cells along each of two measures; `{:voronoi, 1000}` has 1000 centroids; " <>
          "`{:centroids, rows}` has these; `{:unstructured, 1000}` makes at most 1000 where candidates land."
    ],
    ranges: [
      type: {:list, {:tuple, [:float, :float]}},
      default: [],
      doc: "Lowest and highest value of each measure, for `:grid` and `:voronoi`."
    ],
    distance: [
      type: {:or, [:float, nil]},
      default: nil,
      doc: "Radius of a cell of `:unstructured`, required there."
    ],
    measures: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      doc:
        "Number of measures of `:unstructured`, required there; others have it from their ranges."
    ],
    solution_size: [type: :pos_integer, required: true, doc: "Numbers of a solution."],
    samples: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      doc: "Uniform samples from which centroids are computed; `nil` is 25 for each."
    ],
    seed: [
      type: :non_neg_integer,
      default: 0,
      max: 2 ** 64 - 1,
      doc: "Seed of these samples."
    ],
    learning_rate: [
      type: :float,
      default: 1.0,
      min: 0,
      max: 1,
      doc:
        "Share by which an accepted objective moves the threshold of its cell; below 1 the archive is that of CMA-MAE."
    ],
    threshold_min: [
      type: {:or, [:float, nil]},
      default: nil,
      doc:
        "Threshold of an empty cell; `nil` accepts every objective, and needs a learning rate of 1."
    ],
    qd_offset: [
      type: :float,
      default: 0.0,
      doc:
        "Subtracted from each objective in the QD score: the lowest objective that is possible."
    ]
  ]

  @seed [type: :non_neg_integer, default: 0, max: 2 ** 64 - 1, doc: "Seed of the choice."]

  @variation [
    iso_sigma: [
      type: :float,
      default: 0.01,
      min: 0,
      max: 1.0e30,
      doc: "Standard deviation of the noise of each number."
    ],
    line_sigma: [
      type: :float,
      default: 0.2,
      min: 0,
      max: 1.0e30,
      doc: "Standard deviation of the step towards the second parent, as a share of the distance."
    ],
    crossover: [
      type:
        {:or,
         [
           {:in, [nil, :holographic]},
           {:tuple, [{:in, [:sbx]}, :float]},
           {:tuple, [{:in, [:uniform]}, :float]}
         ]},
      default: nil,
      doc:
        "Instead of that step: `{:sbx, index}` is simulated binary crossover, `{:uniform, rate}` takes each number " <>
          "from the second parent with this probability, and `:holographic` is the sum of both with random weights, " <>
          "scaled to the mean of their norms."
    ],
    bounds: [
      type: {:or, [{:tuple, [:float, :float]}, nil]},
      default: nil,
      doc: "Lowest and highest number of a child."
    ]
  ]
  @stream [
    seed: Keyword.put(@seed, :doc, "Seed of parents and noise."),
    generation: Keyword.put(@seed, :doc, "Number of the generation; each has noise of its own.")
  ]
  @vary @variation ++ @stream

  @population [
    count: [type: :pos_integer, required: true, max: 2 ** 24, doc: "Individuals."],
    storage: [
      type: {:in, [:f32, :bf16, :int8]},
      default: :f32,
      doc: "Type of stored weights; biases are 32-bit floats."
    ],
    sigma: [
      type: :float,
      default: 0.5,
      min: 0,
      max: 1.0e30,
      doc: "Standard deviation of the numbers of the first individuals."
    ],
    seed: [type: :non_neg_integer, default: 0, max: 2 ** 64 - 1, doc: "Seed of these numbers."]
  ]

  @measure {:or,
            [
              {:in, [:length]},
              {:tuple, [{:in, [:final, :observation, :input]}, :non_neg_integer]}
            ]}
  @episodes [
              episodes: [
                type: :pos_integer,
                default: 1,
                max: 65_536,
                doc: "Episodes of each individual, one after the other."
              ],
              env_seed: [
                type: :non_neg_integer,
                default: 0,
                max: 2 ** 64 - 1,
                doc: "Seed of the first states."
              ],
              same_starts: [
                type: :boolean,
                default: true,
                doc: "Whether all individuals begin in the same states."
              ],
              measures: [
                type: {:list, @measure},
                default: [],
                doc:
                  "Numbers that say what an individual does: `{:final, i}` is number `i` of an episode's last observation, " <>
                    "`{:observation, i}` and `{:input, i}` are averages over all decisions, `:length` is in steps; each is " <>
                    "a mean over the episodes."
              ]
            ] ++ Env.Catalogue.schema(:spec)

  @search [
            batch: [
              type: :pos_integer,
              default: 512,
              max: 2 ** 20,
              doc: "Individuals of a generation."
            ],
            source: [
              type:
                {:or,
                 [
                   {:in, [:elites]},
                   {:in, [:open_ai_es, :snes, :sep_cma_es, :cma_es]},
                   {:tuple, [{:in, [:cma_me, :cma_mae]}, :pos_integer]}
                 ]},
              default: :elites,
              doc:
                "`:elites` are children of elites (MAP-Elites); `{:cma_me, n}` and `{:cma_mae, n}` are `n` emitters, each a " <>
                  "sep-CMA-ES; a name of `Sconce.Evolve.Strategy` maximises the return."
            ],
            tournament: [
              type: {:or, [:pos_integer, nil]},
              default: nil,
              max: 1024,
              doc:
                "Random elites of which the best becomes a parent; `nil` draws parents uniformly."
            ],
            novelty: [
              type: :float,
              default: 0.0,
              min: 0,
              max: 1,
              doc:
                "Share of novelty in a tournament against the objective; with 1 it is novelty search. It is part of the choice " <>
                  "and of no objective that is stored."
            ],
            nearest: [
              type: :pos_integer,
              default: 15,
              max: 2 ** 20,
              doc: "Elites to which novelty is the mean distance."
            ],
            sigma: [
              type: :float,
              default: 0.5,
              min: 0,
              max: 1.0e30,
              doc:
                "Standard deviation of random individuals, and of a strategy's first generation."
            ],
            learning_rate: [
              type: :float,
              default: 0.05,
              above: 0,
              max: 1.0e150,
              doc: "Step size of Adam; only `:open_ai_es` reads it."
            ],
            storage: Keyword.fetch!(@population, :storage),
            seed: [
              type: :non_neg_integer,
              default: 0,
              max: 2 ** 64 - 1,
              doc: "Seed of individuals, parents and noise."
            ],
            new_starts: [
              type: :boolean,
              default: false,
              doc:
                "Whether each generation begins in states of its own. Otherwise an individual has the same return in every " <>
                  "generation."
            ]
          ] ++ @variation

  @novelty [
    nearest: [type: :pos_integer, default: 15, max: 2 ** 31, doc: "Number of elites compared."]
  ]

  @svg [
    title: [type: :string, default: "Archive", doc: "Heading."],
    axes: [
      type: {:tuple, [:string, :string]},
      default: {"measure 0", "measure 1"},
      doc: "Names of both measures."
    ],
    range: [
      type: {:or, [{:tuple, [:float, :float]}, nil]},
      default: nil,
      doc: "Objectives of the first and the last color; `nil` is the range of all elites."
    ]
  ]

  @device [
    device: [
      type: Sconce.Device.type(),
      default: :cpu,
      doc: "`:cpu`, `:cuda`, `{:cuda, n}` or `:auto`: the device of episodes and forward passes."
    ]
  ]

  @doc "The options of a function."
  @spec schema(
          :new
          | :sample
          | :vary
          | :novelty
          | :svg
          | :population
          | :episodes
          | :search
          | :device
        ) :: Sconce.Options.schema()
  def schema(:new), do: @new
  def schema(:sample), do: [seed: @seed]
  def schema(:vary), do: @vary
  def schema(:novelty), do: @novelty
  def schema(:svg), do: @svg
  def schema(:population), do: @population
  def schema(:episodes), do: @episodes
  def schema(:search), do: @search
  def schema(:device), do: @device

  @doc "The variation of validated options, as the native side reads it."
  def variation(opts) do
    crossover = opts[:crossover] || {:line, opts[:line_sigma]}
    bounds = with {low, high} <- opts[:bounds], do: [low, high]
    %{iso_sigma: opts[:iso_sigma], crossover: crossover, bounds: bounds}
  end

  @doc "The episodes of validated options, as the native side reads them."
  def episodes(env, opts) do
    Sconce.Options.known!(env, Env.names(), "environment")
    {own, world} = Keyword.split(opts, [:episodes, :env_seed, :same_starts, :measures])

    %{
      env: Env.Catalogue.to_native(env, [seed: own[:env_seed]] ++ world),
      episodes: own[:episodes],
      same_starts: own[:same_starts],
      measures: own[:measures]
    }
  end

  @doc "The cells of an archive for the native side, from the options of `Sconce.Evolve.Archive.new/1`."
  @spec space(tuple, keyword) :: {atom, term}
  def space({:grid, sizes}, opts), do: {:grid, %{dimensions: sizes, ranges: ranges(opts)}}
  def space({:centroids, rows}, _opts), do: {:centroids, rows}

  def space({:unstructured, most}, opts) do
    for name <- [:distance, :measures],
        opts[name] == nil,
        do: Options.argument!("option :#{name}", nil, "a number, which :unstructured needs")

    {:unstructured, %{measures: opts[:measures], distance: opts[:distance], cells: most}}
  end

  def space({:voronoi, count}, opts) do
    samples = opts[:samples] || 25 * count
    {:voronoi, %{cells: count, ranges: ranges(opts), samples: samples, seed: opts[:seed]}}
  end

  defp ranges(opts), do: for({low, high} <- opts[:ranges], do: [low, high])
end
