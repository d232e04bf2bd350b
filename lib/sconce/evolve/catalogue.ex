defmodule Sconce.Evolve.Catalogue do
  @moduledoc false
  # The options of `Sconce.Evolve.Archive`.

  @new [
    cells: [
      type:
        {:or,
         [
           {:tuple, [{:in, [:grid]}, {:list, :pos_integer}]},
           {:tuple, [{:in, [:voronoi]}, :pos_integer]},
           {:tuple, [{:in, [:centroids]}, {:list, {:list, :float}}]}
         ]},
      required: true,
      doc:
        "`{:grid, [64, 64]}` has 64 cells along each of two measures; `{:voronoi, 1000}` has 1000 centroids; " <>
          "`{:centroids, rows}` has these."
    ],
    ranges: [
      type: {:list, {:tuple, [:float, :float]}},
      default: [],
      doc: "Lowest and highest value of each measure; given centroids need none."
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

  @vary [
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
    bounds: [
      type: {:or, [{:tuple, [:float, :float]}, nil]},
      default: nil,
      doc: "Lowest and highest number of a child."
    ],
    seed: Keyword.put(@seed, :doc, "Seed of parents and noise."),
    generation: Keyword.put(@seed, :doc, "Number of the generation; each has noise of its own.")
  ]

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

  @doc "The options of a function."
  @spec schema(:new | :sample | :vary | :novelty | :svg) :: Sconce.Options.schema()
  def schema(:new), do: @new
  def schema(:sample), do: [seed: @seed]
  def schema(:vary), do: @vary
  def schema(:novelty), do: @novelty
  def schema(:svg), do: @svg
end
