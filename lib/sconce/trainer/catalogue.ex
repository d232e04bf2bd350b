defmodule Sconce.Trainer.Catalogue do
  @moduledoc false
  # The options of `Sconce.Trainer` as tables, each in the form of `Sconce.Options`.

  alias Sconce.{Device, Options}
  alias Sconce.Trainer.Table

  # The native table says "below" for text that in Elixir is in the guide.
  explained = fn schema ->
    for {name, spec} <- schema,
        do: {name, Keyword.update!(spec, :doc, &String.replace(&1, "see below", "see the guide"))}
  end

  # `Sconce.Device.run_option/0` replaces the native option for the device.
  @training explained.(Keyword.delete(Table.schema(), :device)) ++
              [
                loss: [
                  type: {:or, [:plain, :keyword]},
                  default: [],
                  doc: "The loss that training minimises, see below."
                ]
              ]
  @loss Table.group(:loss)

  @run [
         corpus: [
           type: :any,
           required: true,
           doc: "A `Sconce.Corpus` or its folder; a resumed run knows its own."
         ],
         out: [type: :path, required: true, doc: "Folder of the run, created if missing."],
         preset: [
           type: :any,
           default: nil,
           doc:
             "Name of a `Sconce.Preset`, also `{:exphil, name}` or `{:gpu, card}`; given options override it."
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
             "Called between steps, see the guide; may change the learning rate or stop the run."
         ],
         pressure: [
           type: :keyword,
           default: [],
           doc: "What follows a failure, in the options of `Sconce.Pressure.new/2`."
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
      doc: "Frames of a window; `nil` is that of the training."
    ],
    stride: [
      type: :pos_integer,
      default: 1,
      max: 1_000_000_000,
      doc: "Scores every n-th frame."
    ],
    frame_delay: [
      type: {:or, [:non_neg_integer, nil]},
      default: nil,
      max: 10_000,
      doc: "`nil` is that of the training, the shortest of several."
    ],
    threads: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      max: 4096,
      doc: "Native threads; `nil` is the setting of `Sconce.Config`, or the current number."
    ],
    precision: [
      type: {:in, [:f32, :tf32, :bf16, :f16]},
      default: :f32,
      doc: "Format of the operands of products, even where it gains nothing."
    ],
    reference: [
      type: {:or, [:path, nil]},
      default: nil,
      doc: "File of a policy whose likeliest actions are compared with those of the checkpoint."
    ],
    progress: [type: {:or, [{:fun, 1}, nil]}, default: nil, doc: "Called with `:evaluating`."]
  ]
  @evaluate @scored ++ Device.option()

  # Measurements also accept every option of a run, including options without effect on them.
  @tune [
    initial: [type: :pos_integer, default: 32, max: 65_536, doc: "Windows of the first batch."],
    max: [type: :pos_integer, default: 4096, max: 65_536, doc: "Windows of the largest batch."],
    backoff: [
      type: :float,
      default: 0.8,
      min: 0.01,
      max: 1,
      doc: "Share of `:memory_limit` that a batch may take."
    ],
    tuner: [
      type: {:or, [:boolean, nil]},
      default: nil,
      doc:
        "`false` measures without the cache of `Sconce.Tuner`; `nil` is the setting of `Sconce.Config`."
    ]
  ]

  @range [
    start_lr: [type: :float, default: 1.0e-7, max: 1000, doc: "The first learning rate."],
    end_lr: [type: :float, default: 10.0, max: 1000, doc: "The last learning rate."],
    num_it: [
      type: :pos_integer,
      default: 100,
      max: 1_000_000,
      doc: "Steps from the first rate to the last."
    ]
  ]

  # The options of a run, with `:corpus` and `:out` optional, for measurements.
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

  # The value of each loss option that makes the loss the plain NLL.
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

  @doc "Returns the schema with this name."
  def schema(name), do: Map.fetch!(@schemas, name)

  @doc "Returns a schema as Markdown; the schema of a run has one list for each group."
  def docs(:run) do
    groups =
      for group <- Table.groups(),
          group != :loss,
          do: {group, Keyword.take(@training, Keyword.keys(Table.group(group)))}

    names = for {_group, schema} <- groups, {name, _spec} <- schema, do: name
    own = Options.docs(Keyword.drop(@run, names))
    Enum.map_join([{nil, own} | groups], "\n\n", &group/1)
  end

  def docs(name), do: name |> schema() |> Options.docs()

  defp group({nil, docs}), do: docs
  defp group({group, schema}), do: "`#{inspect(group)}`:\n\n#{Options.docs(schema)}"

  @doc "Returns the loss options of the plain NLL, in their native form."
  def plain, do: @plain

  @doc "Returns whether the loss of a report is the plain NLL."
  def plain?(loss), do: Map.take(loss, Map.keys(@plain)) == @plain
end
