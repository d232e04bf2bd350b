defmodule Sconce.Session.Catalogue do
  @moduledoc false
  # The options of `Sconce.Session` as tables, each in the form of `Sconce.Options`.

  alias Sconce.{Device, Options}

  @seed [type: {:or, [:non_neg_integer, nil]}, max: 2 ** 64 - 1]
  @probability [type: :float, min: 0.0, max: 1.0]
  @weights {:or,
            [
              {:in, [:stored, :f32, :bf16, :int8, :int4]},
              {:tuple, [{:in, [:int8, :int4]}, :float]}
            ]}

  @sampling [
    temperature: [
      type: :float,
      min: 1.0e-3,
      max: 1.0e3,
      default: 1.0,
      doc: "Divides the logits: below 1, likely choices become more likely."
    ],
    deterministic: [
      type: :boolean,
      default: false,
      doc: "Whether every head takes its most likely choice."
    ],
    deterministic_buttons: [
      type: :boolean,
      default: false,
      doc: "Whether bits take their most likely value, while classes are sampled."
    ],
    press_threshold:
      @probability ++
        [default: 0.5, doc: "Probability above which a deterministic bit is pressed."],
    release_threshold:
      @probability ++
        [default: 0.5, doc: "Probability at or below which a held bit is released."]
  ]

  @open [
          mode: [
            type: {:or, [:carry, :window, {:tuple, [{:in, [:resync]}, :pos_integer]}]},
            default: :carry,
            doc: "The frames that a decision remembers, see \"Modes\"."
          ],
          window_size: [
            type: :pos_integer,
            max: 16_384,
            default: 60,
            doc: "Frames of a window, also of the window that warms a new state."
          ],
          seed: @seed ++ [default: nil, doc: "Seed of all choices; `nil` draws a seed."],
          lane: [
            type: {:in, [:auto, :inline, :worker]},
            default: :auto,
            doc:
              "Where a decision runs: on the caller's scheduler (`:inline`), on a native thread (`:worker`), or " <>
                "chosen by measurement (`:auto`). `:inline` is an error of kind `:out_of_range` if a decision takes " <>
                "1 ms or more, because it blocks all other processes of the scheduler."
          ],
          frame_delay: [
            type: {:or, [:non_neg_integer, nil]},
            max: 10_000,
            default: nil,
            doc:
              "Frames between the next frame and the frame in which a choice takes effect. `nil` is the delay of " <>
                "the training, from the checkpoint, or 0. A policy with a delay id that was trained with several " <>
                "delays needs a number."
          ],
          weights: [
            type: {:or, [@weights, {:tuple, [{:in, [:auto]}, {:list, @weights}]}]},
            default: :stored,
            doc:
              "Format of the matrices of a packed policy. `:stored` reads the packed weights of a checkpoint that has " <>
                "them (see `Sconce.Policy.save/3`), else the codes of a policy that has them, and " <>
                "matrices with two weights of each four inputs in half of the bytes (see " <>
                "`Sconce.Compress.Policy`), and f32 otherwise. `:bf16`, `:int8` and `:int4` round matrices; reading " <>
                "them takes about a half, a quarter and a fifth of the time. `{:int8, bound}` and `{:int4, bound}` " <>
                "set the error bound of a matrix. A format that this CPU does not read faster is not taken. " <>
                "`{:auto, formats}` is the one of these formats with the fastest step on this machine, see `Sconce.Tuner`."
          ],
          tuner: [
            type: {:or, [:boolean, nil]},
            default: nil,
            doc:
              "Whether `{:auto, formats}` is measured; `false` takes the first format, and `nil` is the setting of " <>
                "`Sconce.Config`."
          ],
          rollback: [
            type: :non_neg_integer,
            max: 60,
            default: 0,
            doc:
              "Number of decisions that `rollback/2` can take back, and that `:game_frame` can repeat. Each " <>
                "needs the memory of one more state, and in mode `:window` of one more frame."
          ],
          snapshot: [
            type: {:or, [:string, nil]},
            default: nil,
            doc: "Memory to start from, as with `restore/2`."
          ],
          logits: [type: :boolean, default: false, doc: "Whether actions include their logits."],
          project_out: [
            type: :any,
            default: nil,
            doc: "Directions to remove from the trunk vectors, as in `Sconce.Policy.forward/3`."
          ]
        ] ++ Device.option("the policy's") ++ @sampling

  @act [
         seed: @seed ++ [doc: "Seed of this decision, instead of the session's."],
         previous: [
           type: :any,
           doc:
             "The action that led to this frame: a `Sconce.Action` or its `choices`; `nil` means not given."
         ],
         queue: [
           type: {:list, :any},
           doc:
             "The latest inputs, newest first, each in the form of `previous`; for `nil` the session uses its own."
         ],
         choices: [
           type: :any,
           doc:
             "An action to score, in the form of `previous` or as a list of labels. It becomes the decision " <>
               "without sampling, and the logits are conditioned on it."
         ],
         mask: [
           type: :any,
           doc:
             "Which actions are allowed, by head: `%{move: [true, false, true]}`. A head of classes has a boolean for " <>
               "each, one of which is true; a head of bits has one for each bit, or a map of its flags. Heads and " <>
               "flags that are missing are allowed, and numbers have no mask; `nil` means not given. The decision " <>
               "is drawn from the allowed actions alone, and the logit of another action is -1.0e9."
         ],
         game_frame: [
           type: {:or, [:integer, nil]},
           min: -0x8000_0000_0000_0000,
           max: 0x7FFF_FFFF_FFFF_FFFF,
           doc:
             "The game's number of this frame, higher than all before. For a frame that was decided already, the " <>
               "session repeats its decision and is unchanged; a frame that it no longer stores is " <>
               "`:not_found`. A decision without a number belongs to the numbered one before it."
         ],
         deadline_ms: [
           type: {:or, [:non_neg_integer, nil]},
           max: 4_294_967_295,
           doc: "Milliseconds until the answer is an error of kind `:deadline`."
         ],
         logits: [type: :boolean, doc: "Whether this action includes its logits."],
         as: [
           type: {:in, [:terms, :nx]},
           doc:
             "Form of the `choices` and `logits` of the action: numbers and lists (`:terms`, the default), or Nx tensors."
         ],
         project_out: [
           type: :any,
           doc:
             "Directions for this decision, instead of the session's; `[]` means none, `nil` not given."
         ]
       ] ++ Enum.map(@sampling, fn {name, spec} -> {name, Keyword.delete(spec, :default)} end)

  # The options of a session of a serving. The serving sets the other options for all its sessions.
  @served Keyword.drop(@open, [:device, :lane, :weights, :tuner])

  @reset [seed: @seed ++ [default: nil, doc: "New seed; `nil` keeps the session's."]]

  @schemas %{sampling: @sampling, open: @open, served: @served, act: @act, reset: @reset}

  @doc "The type of a format of weights."
  def weights, do: @weights

  @doc "A table of options by its name."
  def schema(name), do: Map.fetch!(@schemas, name)

  def docs(name), do: name |> schema() |> Options.docs()
end
