defmodule Sconce.GPU.Catalogue do
  @moduledoc false
  # The options of `Sconce.GPU` as tables, each in the form of `Sconce.Options`.

  alias Sconce.Options

  @warn [
    threshold: [
      type: :float,
      default: 0.85,
      min: 0,
      max: 1,
      doc: "Fraction of the card's memory."
    ]
  ]
  @free [
    required_mb: [type: :non_neg_integer, default: 0, doc: "Free memory that is needed, in MiB."]
  ]
  @checkpoint [
    param_count: [
      type: :non_neg_integer,
      default: 1_000_000,
      doc: "Number of weights of the policy."
    ],
    include_optimizer: [
      type: :boolean,
      default: true,
      doc: "Whether the file holds the two moments of Adam."
    ]
  ]
  @checkpoint_warning @checkpoint ++
                        [
                          threshold_mb: [
                            type: :non_neg_integer,
                            default: 500,
                            doc: "Size from which a warning is returned, in MiB."
                          ]
                        ]
  @diagnose [
    verbose: [type: :boolean, default: true, doc: "Whether passed checks are printed too."]
  ]
  @estimate [
    param_count: [
      type: :non_neg_integer,
      default: 1_000_000,
      doc: "Number of weights of the policy."
    ],
    batch_size: [type: :pos_integer, default: 64, doc: "Windows of a step."],
    precision: [type: {:in, [:f32, :bf16, :f16]}, default: :bf16, doc: "Type of the numbers."],
    temporal: [type: :boolean, default: false, doc: "Whether a window has several frames."],
    window_size: [
      type: :pos_integer,
      default: 60,
      doc: "Frames of a window, with `temporal: true`."
    ]
  ]

  @schemas %{
    warn: @warn,
    free: @free,
    checkpoint: @checkpoint,
    checkpoint_warning: @checkpoint_warning,
    diagnose: @diagnose,
    estimate: @estimate
  }

  @doc "A table of options by its name."
  def schema(name), do: Map.fetch!(@schemas, name)

  def docs(name), do: name |> schema() |> Options.docs()
end
