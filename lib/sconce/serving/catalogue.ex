defmodule Sconce.Serving.Catalogue do
  @moduledoc false
  # The options of `Sconce.Serving` as tables, each in the form of `Sconce.Options`.

  alias Sconce.{Device, Options, Policy}

  @start [
    policy: [type: :any, required: true, doc: "The `Sconce.Policy` that is served."],
    name: [
      type: :any,
      default: nil,
      doc: "An atom, `{:global, term}` or `{:via, module, term}`, as of any process."
    ],
    max_batch: [
      type: :pos_integer,
      max: 4096,
      default: 64,
      doc: "Requests that are computed together, at most."
    ],
    max_queue: [
      type: :pos_integer,
      max: 1_048_576,
      default: 1024,
      doc: "Requests that may wait; the next one is `:busy`."
    ],
    workers: [
      type: :pos_integer,
      max: 256,
      default: 1,
      doc:
        "Native threads that compute, each a batch of its own: more where there are cores to spare beside the " <>
          "callers'."
    ],
    weights: [
      type: {:or, [{:in, [:f32, :bf16, :int8]}, {:tuple, [{:in, [:int8]}, :float]}]},
      default: :f32,
      doc: "How the matrices of a packed policy are kept, as in `Sconce.Session`."
    ],
    device: Device.option("the policy's")[:device],
    lane: [
      type: {:in, [:auto, :inline, :worker]},
      default: :auto,
      doc:
        "Where a step is made: on the scheduler of its caller or by a worker. `:auto`: on the scheduler where it " <>
          "takes little more alone than as one of many at once, by 13 us at most, and 250 us at all, as measured " <>
          "at the start and at each swap. `:inline` is refused as `:out_of_range` for steps of 1 ms or more."
    ],
    group: [
      type: :any,
      default: nil,
      doc:
        "A term that names the servings which may stand for each other, on all nodes that are connected."
    ],
    telemetry_ms: [
      type: :pos_integer,
      max: 4_294_967_295,
      default: 10_000,
      doc: "Between two `:statistics` events, where there is `:telemetry`."
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

  # `Sconce.Serving.forward` takes the state as an argument of its own.
  @forward Keyword.delete(Policy.forward_options(), :state) ++ @deadline

  @schemas %{start: @start, deadline: @deadline, forward: @forward}

  @doc "A table of options by its name."
  def schema(name), do: Map.fetch!(@schemas, name)

  def docs(name), do: name |> schema() |> Options.docs()
end
