defmodule Sconce.Trainer.Catalogue do
  @moduledoc false
  # The options of `Sconce.Trainer` as tables, each in the form of `Sconce.Options`.

  alias Sconce.{Device, Options}
  alias Sconce.Trainer.Table

  # What it runs on is said in other words than the native side's.
  @training Keyword.delete(Table.schema(), :device) ++
              [
                loss: [
                  type: {:or, [:plain, :keyword]},
                  default: [],
                  doc: "What is made small, see below."
                ]
              ]
  @loss Table.group(:loss)

  @run [
         corpus: [
           type: :any,
           required: true,
           doc: "A `Sconce.Corpus`, or the folder of one; a run that goes on knows its own."
         ],
         out: [type: :path, required: true, doc: "The run's folder, made if need be."],
         preset: [
           type: :any,
           default: nil,
           doc: "Name of a `Sconce.Preset`; every option that is given is worth more."
         ],
         spec: [type: :any, default: nil, doc: "A `Sconce.Policy.Spec` instead of its options."],
         options: [type: {:or, [:path, nil]}, default: nil, doc: "A file of options, see below."],
         progress: [
           type: {:or, [{:fun, 1}, nil]},
           default: nil,
           doc: "Called with each event, in the run's process."
         ],
         callback: [
           type: {:or, [{:fun, 1}, nil]},
           default: nil,
           doc:
             "Called between steps, see below; it may change the learning rate, and stop the run."
         ]
       ] ++ Device.run_option() ++ @training

  @scored [
    train: [type: :any, default: nil, doc: "The training corpus; without it no baselines."],
    mode: [
      type: {:in, [:window, :carry]},
      default: :window,
      doc: "The policy on the last window, or its memory carried through the game."
    ],
    window_size: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 65_536,
      doc: "`nil`: the training's."
    ],
    stride: [
      type: :pos_integer,
      default: 1,
      max: 1_000_000_000,
      doc: "Every n-th frame is scored."
    ],
    frame_delay: [
      type: {:or, [:non_neg_integer, nil]},
      default: nil,
      max: 10_000,
      doc: "`nil`: the training's, of several the shortest."
    ],
    threads: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 4096,
      doc: "Of the native side; `nil` is that of `Sconce.Config`, or leaves them as they are."
    ],
    precision: [
      type: {:in, [:f32, :bf16, :f16]},
      default: :f32,
      doc: "What operands of products are rounded to, also where that gains nothing."
    ],
    progress: [type: {:or, [{:fun, 1}, nil]}, default: nil, doc: "Called with `:evaluating`."]
  ]
  @evaluate @scored ++ Device.option()

  # Any option of a run may stand beside these, including one that has no effect.
  @tune [
    initial: [type: :pos_integer, default: 32, max: 65_536, doc: "Windows of the first batch."],
    max: [type: :pos_integer, default: 4096, max: 65_536, doc: "Windows of the largest."],
    backoff: [
      type: :float,
      default: 0.8,
      min: 0.01,
      max: 1,
      doc: "Share of `:memory_limit` that a batch may take."
    ]
  ]

  @range [
    start_lr: [type: :float, default: 1.0e-7, max: 1000, doc: "The first learning rate."],
    end_lr: [type: :float, default: 10.0, max: 1000, doc: "The last."],
    num_it: [
      type: :pos_integer,
      default: 100,
      max: 1_000_000,
      doc: "Steps from one to the other."
    ]
  ]

  # A run as it is measured beforehand, which needs neither games nor a folder.
  @measured Keyword.merge(
              @run,
              [
                corpus: [type: :any, default: nil],
                out: [type: {:or, [nil, :path]}, default: nil]
              ] ++ Device.option()
            )

  @schemas %{
    run: @run,
    training: @training,
    loss: @loss,
    evaluate: @evaluate,
    plan: [],
    tune: @tune,
    range: @range,
    measured: @measured
  }

  # Each option of the loss at the value that leaves the plain NLL.
  @plain %{
    button_weight: 1.0,
    bernoulli_reduction: "sum",
    pos_weight: "none",
    label_smoothing: 0.0,
    focal_gamma: nil,
    stick_edge_weight: nil,
    entropy_weight: 0.0,
    head_normalize: false
  }

  @doc "A table of options by its name."
  def schema(name), do: Map.fetch!(@schemas, name)

  @doc "A table as Markdown, that of a run by its groups."
  def docs(:run) do
    groups =
      for group <- Table.groups(),
          group != :loss,
          do: {group, Keyword.delete(Table.group(group), :device)}

    names = for {_group, schema} <- groups, {name, _spec} <- schema, do: name
    own = Options.docs(Keyword.drop(@run, names))
    Enum.map_join([{nil, own} | groups], "\n\n", &group/1)
  end

  def docs(name), do: name |> schema() |> Options.docs()

  defp group({nil, docs}), do: docs
  defp group({group, schema}), do: "`#{inspect(group)}`:\n\n#{Options.docs(schema)}"

  @doc "The loss options of the plain NLL, as the native side has them."
  def plain, do: @plain

  @doc "Whether a loss, as a report has it, is the plain NLL."
  def plain?(loss), do: Map.take(loss, Map.keys(@plain)) == @plain
end
