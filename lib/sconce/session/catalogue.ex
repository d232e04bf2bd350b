defmodule Sconce.Session.Catalogue do
  @moduledoc false
  # The options of `Sconce.Session` as tables, each in the form of `Sconce.Options`.

  alias Sconce.{Device, Options}

  @seed [type: {:or, [:non_neg_integer, nil]}, max: 2 ** 64 - 1]
  @probability [type: :float, min: 0.0, max: 1.0]

  @sampling [
    temperature: [
      type: :float,
      min: 1.0e-3,
      max: 1.0e3,
      default: 1.0,
      doc: "Divides the logits: below 1 the choice comes nearer to the most likely one."
    ],
    deterministic: [
      type: :boolean,
      default: false,
      doc: "The most likely choice of every head."
    ],
    deterministic_buttons: [
      type: :boolean,
      default: false,
      doc: "The most likely bits, sampled classes."
    ],
    press_threshold:
      @probability ++
        [default: 0.5, doc: "A deterministic bit is pressed above this probability."],
    release_threshold:
      @probability ++
        [default: 0.5, doc: "One that was held is released at or below this probability."]
  ]

  @open [
          mode: [
            type: {:or, [:carry, :window, {:tuple, [{:in, [:resync]}, :pos_integer]}]},
            default: :carry,
            doc: "What a decision remembers, see below."
          ],
          window_size: [
            type: :pos_integer,
            max: 16_384,
            default: 60,
            doc: "Frames of a window, also of the one that warms a cold state."
          ],
          seed: @seed ++ [default: nil, doc: "Of all choices; `nil` draws one."],
          lane: [
            type: {:in, [:auto, :inline, :worker]},
            default: :auto,
            doc:
              "Where a decision runs: on the caller's scheduler, on a native thread, or as measured. `:inline` is " <>
                "refused as `:out_of_range` where a decision takes 1 ms or more, which all other processes of the " <>
                "scheduler would wait for."
          ],
          frame_delay: [
            type: {:or, [:non_neg_integer, nil]},
            max: 10_000,
            default: nil,
            doc:
              "How many frames later than the next one a choice shows; `nil` is that of the training, " <>
                "as the checkpoint has it, or 0. A policy that reads a delay id and learned several " <>
                "wants it said."
          ],
          weights: [
            type: {:or, [{:in, [:f32, :bf16, :int8]}, {:tuple, [{:in, [:int8]}, :float]}]},
            default: :f32,
            doc:
              "How the matrices of a packed policy are kept: as they are, rounded to bf16, which are read in " <>
                "half the time, or to int8, in a quarter of it; with `{:int8, bound}` those within a bound."
          ],
          rollback: [
            type: :non_neg_integer,
            max: 60,
            default: 0,
            doc:
              "How many decisions `rollback/2` can take back, and `:game_frame` answer again; each takes " <>
                "the bytes of one more state, and in a window of one more frame."
          ],
          snapshot: [
            type: {:or, [:string, nil]},
            default: nil,
            doc: "Goes on from there, as after `restore/2`."
          ],
          logits: [type: :boolean, default: false, doc: "Whether actions come with their logits."],
          project_out: [
            type: :any,
            default: nil,
            doc: "Directions that the heads do not see, as in `Sconce.Policy.forward/3`."
          ]
        ] ++ Device.option("the policy's") ++ @sampling

  @act [
         seed: @seed ++ [doc: "For this decision, instead of the session's."],
         previous: [
           type: :any,
           doc:
             "The action that led to this frame: a `Sconce.Action` or its `choices`; `nil` as if " <>
               "not given."
         ],
         queue: [
           type: {:list, :any},
           doc:
             "The inputs that were given last, newest first, each as `previous`; `nil` for one that " <>
               "the session shall know itself."
         ],
         choices: [
           type: :any,
           doc:
             "An action to score, as `previous` or as a list of labels: nothing is drawn, it " <>
               "becomes the decision, and logits are those of its parts."
         ],
         game_frame: [
           type: {:or, [:integer, nil]},
           min: -0x8000_0000_0000_0000,
           max: 0x7FFF_FFFF_FFFF_FFFF,
           doc:
             "The game's number of this frame, higher than those before. Asked again for one that was decided, " <>
               "the session answers what it decided and stays as it was; what it does not keep is `:not_found`. " <>
               "A decision without a number goes with the one before."
         ],
         deadline_ms: [
           type: {:or, [:non_neg_integer, nil]},
           max: 4_294_967_295,
           doc: "Milliseconds until the answer is an error of kind `:deadline`."
         ],
         logits: [type: :boolean, doc: "As above, for this decision."],
         project_out: [
           type: :any,
           doc:
             "Instead of the session's, for this decision; `[]` for none, `nil` as if not given."
         ]
       ] ++ Enum.map(@sampling, fn {name, spec} -> {name, Keyword.delete(spec, :default)} end)

  # Without those that a serving sets for all its sessions.
  @served Keyword.drop(@open, [:device, :lane, :weights])

  @reset [seed: @seed ++ [default: nil, doc: "Another seed; `nil` keeps the session's."]]

  @schemas %{sampling: @sampling, open: @open, served: @served, act: @act, reset: @reset}

  @doc "A table of options by its name."
  def schema(name), do: Map.fetch!(@schemas, name)

  def docs(name), do: name |> schema() |> Options.docs()
end
