defmodule Sconce.Compress.Catalogue do
  @moduledoc false
  # The options of `Sconce.Compress`.

  alias Sconce.Options

  @per [
    type: {:or, [{:in, [:tensor, :row]}, {:tuple, [{:in, [:group]}, :pos_integer]}]},
    default: :row,
    doc: "Numbers that share a scale: all, a row, or `{:group, n}` consecutive columns of a row."
  ]

  @codes [
    bits: [type: :integer, min: 2, max: 8, default: 8, doc: "Bits of a code."],
    per: @per,
    zero_point: [
      type: :boolean,
      default: false,
      doc: "Codes from 0 with a zero point beside each scale, for ranges that are not symmetric."
    ]
  ]

  @scale [
    type: {:in, [:largest, :search]},
    default: :largest,
    doc:
      "How scales are found: `:largest` gives the largest magnitude the largest code; `:search` tries scales and signs, and " <>
        "takes the one with the least squared error of its numbers."
  ]

  @grid @codes ++ [scale: @scale]

  @fake @codes ++
          [
            learned: [
              type: :boolean,
              default: false,
              doc: "The rule of LSQ: steps, and with `:zero_point` offsets, have gradients."
            ],
            full_range: [
              type: :boolean,
              default: false,
              doc:
                "The lowest code is `-2^(bits - 1)`, not its successor; excludes `:zero_point`."
            ],
            step: [
              type: :any,
              default: nil,
              doc: "Tensor with a step for each scale; `nil` takes it from the numbers."
            ],
            zero: [
              type: :any,
              default: nil,
              doc: "Tensor with a whole zero point, or if learned an offset, beside each step."
            ],
            gradient: [
              type: :any,
              default: nil,
              doc: "Gradient of the result, in its shape; adds the gradients to the answer."
            ]
          ]

  @gptq @grid ++
          [
            damping: [
              type: :float,
              min: 0,
              max: 1,
              default: 0.01,
              doc: "Part of the mean of the Hessian's diagonal that is added to the diagonal."
            ],
            order: [
              type: {:in, [:given, :diagonal]},
              default: :given,
              doc: "Order of the columns: their own, or the inputs with the most energy first."
            ]
          ]

  @policy [
    bits: [type: {:in, [4, 8]}, default: 8, doc: "Bits of a code."],
    group: [
      type: {:or, [:pos_integer, nil]},
      max: 2 ** 20,
      default: nil,
      doc:
        "Inputs of an output that share a scale; `nil` is 32 for 4 bits, and all inputs for 8 bits. Sessions read codes " <>
          "of 4 bits in groups of a multiple of 32, and codes of 8 bits without groups; others they read as f32."
    ],
    scale: @scale,
    only: [
      type: {:list, :string},
      default: [],
      doc: "Beginnings of the names of matrices; all matrices if empty."
    ],
    except: [
      type: {:list, :string},
      default: [],
      doc: "Beginnings of the names of matrices that stay as they are."
    ],
    calibration: [
      type: :any,
      default: nil,
      doc: "A `Sconce.Corpus` or its path, whose games show which errors matter."
    ],
    calibration_frames: [
      type: :pos_integer,
      max: 2 ** 24,
      default: 4096,
      doc: "Frames of the calibration, from the middle of each game."
    ],
    frame_delay: [
      type: {:or, [:non_neg_integer, nil]},
      max: 10_000,
      default: nil,
      doc: "Frame delay of the calibration; `nil` is that of the training."
    ],
    damping: [
      type: :float,
      min: 0,
      max: 1,
      default: 0.01,
      doc: "Part of the mean of a Hessian's diagonal that is added to the diagonal."
    ]
  ]

  @sparse [
    pattern: [
      type: {:in, [nil, :two_four]},
      default: nil,
      doc:
        "`:two_four` keeps two weights of each four consecutive inputs of an output, which sessions read from half of " <>
          "the bytes. Excludes `:sparsity`."
    ],
    sparsity: [
      type: {:or, [:float, nil]},
      min: 0,
      max: 1,
      default: nil,
      doc:
        "The part of the weights of each output that is removed, wherever they are. Excludes `:pattern`."
    ]
  ]

  @factoring [
    rank: [
      type: :pos_integer,
      max: 65_536,
      doc: "The rank of all matrices. Excludes `:energy` and `:error`."
    ],
    energy: [
      type: :float,
      min: 0,
      max: 1,
      doc:
        "The smallest rank of a matrix with this part of its energy: of the squares of its outputs with a calibration, " <>
          "else of its weights."
    ],
    error: [
      type: :float,
      min: 0,
      max: 1,
      doc:
        "The smallest rank of a matrix whose relative error is at most this, of its outputs or weights."
    ]
  ]

  @calibrated [:calibration, :calibration_frames, :frame_delay, :damping]

  @shrink [
    keep: [
      type: {:or, [:float, nil]},
      above: 0,
      max: 1,
      default: nil,
      doc:
        "Largest share of the weights that stay. All widths shrink in proportion, to multiples of 8 above 8."
    ],
    hidden_size: [
      type: {:or, [:pos_integer, nil]},
      max: 65_536,
      default: nil,
      doc: "Width of the layers, for all backbones but `:mlp`."
    ],
    hidden_sizes: [
      type: {:or, [{:list, :pos_integer}, nil]},
      max: 65_536,
      default: nil,
      doc: "Widths of the layers of an `:mlp`."
    ],
    num_heads: [
      type: {:or, [:pos_integer, nil]},
      max: 65_536,
      default: nil,
      doc: "Heads of attention; may be given with one of the other sizes."
    ],
    calibration: [
      type: :any,
      default: nil,
      doc: "A `Sconce.Corpus` or its path, whose games show which units matter."
    ],
    calibration_frames: @policy[:calibration_frames],
    frame_delay: @policy[:frame_delay],
    damping: @policy[:damping]
  ]

  @average [
    weights: [
      type: {:or, [{:list, :float}, nil]},
      default: nil,
      doc: "A share for each policy, of any sum; `nil` gives all the same."
    ]
  ]

  @search [
    within: [
      type: {:tuple, [{:in, [:nll, :changed, :return]}, :float]},
      default: {:nll, 0.01},
      doc:
        "Largest loss: `{:nll, 0.01}` allows an NLL on the corpus that is 1 % above that of the policy, `{:changed, 0.02}` " <>
          "other likeliest actions on 2 % of its frames, and `{:return, 0.05}` a mean return in `:env` that is 5 % of its " <>
          "magnitude below that of the policy."
    ],
    env: [
      type: {:or, [nil, :atom, {:tuple, [:atom, :keyword]}]},
      default: nil,
      doc:
        "For `{:return, share}`: the environment, as in `Sconce.Env.play/3`; `nil` is that of the policy's notes."
    ],
    episodes: [
      type: {:or, [nil, :pos_integer]},
      max: 65_536,
      default: nil,
      doc: "For `{:return, share}`: episodes of each score, the same for all; `nil` is 100."
    ],
    for: [
      type: {:in, [:bytes, :speed]},
      default: :bytes,
      doc: "What the chosen policy has least of: bytes, or measured time of a decision."
    ],
    group: [
      type: :pos_integer,
      max: 2 ** 20,
      default: 32,
      doc: "Inputs that share a scale of 4 bits: 32 is more exact, 128 smaller and faster."
    ],
    mode: [
      type: {:in, [:window, :carry]},
      default: :carry,
      doc: "Memory while scoring on a corpus, as in `Sconce.Trainer.evaluate/3`."
    ],
    out: [
      type: {:or, [nil, :path]},
      default: nil,
      doc:
        "Folder for `best.safetensors`, `report.txt`, `front.svg` and the scores so far, from which a later call goes on."
    ],
    progress: [
      type: {:or, [nil, {:fun, 1}]},
      default: nil,
      doc: "Function that gets a line of text for each score."
    ]
  ]

  @smooth [
    alpha: [
      type: :float,
      min: 0,
      max: 1,
      default: 0.5,
      doc: "1 makes the largest magnitudes of all inputs equal, 0 those of all columns."
    ]
  ]

  @sparsity [
    type: :float,
    min: 0,
    max: 1,
    required: true,
    doc: "The part that is removed, rounded half to even."
  ]

  @prune [
    sparsity: @sparsity,
    per: [
      type: {:in, [:tensor, :row]},
      default: :tensor,
      doc: "Numbers among which the smallest are removed."
    ]
  ]

  @structured [
    sparsity: @sparsity,
    axis: [
      type: {:in, [:rows, :columns]},
      default: :rows,
      doc: "Removed parts: outputs of the layer, or inputs."
    ]
  ]

  @schedule [
    steps: [type: :pos_integer, required: true, doc: "Steps until the last sparsity."],
    from: [type: :float, min: 0, max: 1, default: 0.0, doc: "Sparsity at step 0."],
    to: [type: :float, min: 0, max: 1, required: true, doc: "Sparsity from the last step on."]
  ]

  @low_rank [
    rank: [type: :pos_integer, doc: "The rank."],
    energy: [
      type: :float,
      min: 0,
      max: 1,
      doc: "The smallest rank with this part of the squared singular values."
    ],
    error: [
      type: :float,
      min: 0,
      max: 1,
      doc: "The smallest rank whose error is at most this part of the matrix' Frobenius norm."
    ],
    method: [
      type: {:in, [:auto, :exact, :randomised]},
      default: :auto,
      doc:
        "`:auto` is exact if a side has at most 128 numbers or the rank is above half of the full one."
    ],
    power_iterations: [
      type: :non_neg_integer,
      max: 64,
      default: 2,
      doc: "Iterations of the randomised method; each brings it closer to the exact one."
    ],
    seed: [
      type: :non_neg_integer,
      max: 2 ** 64 - 1,
      default: 0,
      doc: "Seed of the randomised method."
    ]
  ]

  @distillation [
    kind: [
      type: {:in, [:categorical, :bernoulli]},
      default: :categorical,
      doc: "One class for each row, or independent bits."
    ],
    temperature: [type: :float, above: 0, default: 2.0, doc: "Divides logits in the soft loss."],
    alpha: [type: :float, min: 0, max: 1, default: 0.5, doc: "Part of the soft loss."],
    target: [
      type: :any,
      default: nil,
      doc: "Tensor of labels: a class for each row, or the bits; `nil` if `alpha: 1`."
    ]
  ]

  @schemas %{
    grid: @grid,
    fake: @fake,
    gptq: @gptq,
    policy: @policy,
    shrink: @shrink,
    average: @average,
    policy_prune: @sparse ++ Keyword.take(@policy, [:only, :except] ++ @calibrated),
    # The directions of few frames are those of a few games.
    policy_low_rank:
      (@factoring ++ Keyword.take(@policy, [:only, :except] ++ @calibrated))
      |> put_in([:calibration_frames, :default], 32_768),
    search: @search ++ Keyword.take(@policy, @calibrated),
    smooth: @smooth,
    prune: @prune,
    structured: @structured,
    schedule: @schedule,
    low_rank: @low_rank,
    distillation: @distillation
  }

  @doc "The options of a function as a Markdown list."
  @spec docs(atom) :: String.t()
  def docs(name), do: Options.docs(Map.fetch!(@schemas, name))

  @doc "Returns the schema with this name."
  def schema(name), do: Map.fetch!(@schemas, name)

  @doc "The options with defaults; see `Sconce.Options.validate!/2`."
  @spec validate!(term, atom) :: keyword
  def validate!(opts, name), do: Options.validate!(opts, Map.fetch!(@schemas, name))
end
