defmodule Sconce.Serving.Catalogue do
  @moduledoc false
  # The options of `Sconce.Serving` as tables, each in the form of `Sconce.Options`.

  alias Sconce.{Device, Options, Policy}

  @start [
    policy: [type: :any, required: true, doc: "The `Sconce.Policy` to serve."],
    name: [
      type: :any,
      default: nil,
      doc: "Name of the process: an atom, `{:global, term}` or `{:via, module, term}`."
    ],
    max_batch: [
      type: :pos_integer,
      max: 4096,
      default: 64,
      doc: "Maximum requests of a batch."
    ],
    max_queue: [
      type: :pos_integer,
      max: 1_048_576,
      default: 1024,
      doc: "Maximum requests in the queue; a further one is `:busy`."
    ],
    workers: [
      type: :pos_integer,
      max: 256,
      default: 1,
      doc:
        "Native threads, each with its own batch. Use several if the callers leave processors idle."
    ],
    weights: [
      type: Sconce.Session.Catalogue.schema(:open)[:weights][:type],
      default: :stored,
      doc: "Format of the matrices of a packed policy, as in `Sconce.Session`."
    ],
    tuner: Sconce.Session.Catalogue.schema(:open)[:tuner],
    device: Device.option("the policy's")[:device],
    lane: [
      type: {:in, [:auto, :inline, :worker]},
      default: :auto,
      doc:
        "Where a step runs: on the scheduler of its caller (`:inline`) or on a worker. `:auto` measures at the " <>
          "start and at each swap, and chooses `:inline` if a step takes at most 250 us and at most 13 us more " <>
          "than as part of a batch. `:inline` is an error of kind `:out_of_range` for steps of 1 ms or more."
    ],
    group: [
      type: :any,
      default: nil,
      doc: "A term that names servings which can replace each other, on all connected nodes."
    ],
    objective_ms: [
      type: {:or, [:float, nil]},
      above: 0,
      max: 3_600_000,
      default: nil,
      doc:
        "Milliseconds within which 99 % of the requests shall be answered, see below; `nil` limits nothing."
    ],
    objective_window_ms: [
      type: :pos_integer,
      max: 3_600_000,
      default: 200,
      doc: "Milliseconds between two looks at the latencies, with an `:objective_ms`."
    ],
    pressure: [
      type: :keyword,
      default: [],
      doc: "What follows a failure, in the options of `Sconce.Pressure.new/2`."
    ],
    telemetry_ms: [
      type: :pos_integer,
      max: 4_294_967_295,
      default: 10_000,
      doc: "Milliseconds between two `:statistics` events, if `:telemetry` is loaded."
    ]
  ]

  @deadline [
    deadline_ms: [
      type: {:or, [:non_neg_integer, nil]},
      max: 4_294_967_295,
      default: nil,
      doc: "Milliseconds until the answer is an error of kind `:deadline`."
    ]
  ]

  # `Sconce.Serving.forward` takes the state as a separate argument.
  @forward Keyword.delete(Policy.Pass.options(), :state) ++ @deadline

  @schemas %{start: @start, deadline: @deadline, forward: @forward}

  @doc "A table of options by its name."
  def schema(name), do: Map.fetch!(@schemas, name)

  def docs(name), do: name |> schema() |> Options.docs()
end
