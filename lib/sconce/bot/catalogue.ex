defmodule Sconce.Bot.Catalogue do
  @moduledoc false
  # The options of `Sconce.Bot`, in the form of `Sconce.Options`.

  alias Sconce.Options

  @start [
    policy: [
      type: :any,
      default: nil,
      doc: "A `Sconce.Policy`, or the path of a file. The bot opens a session of its own."
    ],
    serving: [
      type: :any,
      default: nil,
      doc: "A `Sconce.Serving`, instead of `:policy`: several bots share one policy."
    ],
    session: [
      type: :keyword,
      default: [],
      doc: "Options of `Sconce.Session.open/2`, such as `temperature:` and `mode:`."
    ],
    bridge: [
      type: :any,
      default: nil,
      doc: "`{module, options}` of a `Sconce.Bot.Bridge`; `nil` for a bot that `step/3` drives."
    ],
    port: [
      type: {:in, [1, 2, 3, 4]},
      default: 1,
      doc: "Port of the own player in a game of Melee."
    ],
    stage_ids: [
      type: {:in, [:game, :replay]},
      default: :game,
      doc: "Ids of stages in game states, as in `Sconce.Compat.Melee.frame/3`."
    ],
    deadline_ms: [
      type: :pos_integer,
      default: 12,
      max: 60_000,
      doc:
        "Milliseconds from the moment at which the bridge brings a frame to its input. After that the neutral input is sent."
    ],
    action_repeat: [
      type: :pos_integer,
      default: 1,
      max: 600,
      doc: "Frames of a choice. The memory sees each frame."
    ],
    jump_debounce: [
      type: :non_neg_integer,
      default: 0,
      max: 600,
      doc:
        "Frames after a jump or a released jump button in which no jump button is pressed anew in the air; 0 is off. " <>
          "For controllers."
    ],
    rollback: [
      type: :non_neg_integer,
      default: 8,
      max: 60,
      doc:
        "Frames that a game may repeat, or that may come in another order, and the memory is corrected."
    ],
    frame_delay: [
      type: {:or, [:non_neg_integer, nil, :measure]},
      default: nil,
      max: 10_000,
      doc:
        "Frames between the next frame and the one in which an input shows; `nil` is the delay of the training. With " <>
          "`:measure`, the bot moves the stick in the countdown of a game and opens the session for the delay it sees."
    ],
    first_frame: [
      type: {:or, [:integer, nil, :auto]},
      default: :auto,
      doc:
        "First frame with a decision; before it the neutral input is sent. `:auto` is -40 in Melee, the first frame that " <>
          "policies learn from, and `nil`, which decides from any frame on, elsewhere."
    ],
    neutral: [
      type: {:or, [:map, nil]},
      default: nil,
      doc:
        "Choices by head of the neutral input. Controllers have one; without it, late frames of other policies send nothing."
    ],
    menu: [
      type: {:or, [{:fun, 2}, nil]},
      default: nil,
      doc:
        "Called with each state outside of a game and the value that it returned last, `nil` first: " <>
          "`{input or nil, value}`. It may call its library itself."
    ],
    on_game: [
      type: {:or, [{:fun, 1}, nil]},
      default: nil,
      doc:
        "Called with the `Sconce.Bot.Game` of each game that has ended, in a process of its own."
    ],
    record: [
      type: :boolean,
      default: false,
      doc: "Whether the `Sconce.Bot.Game` of `:on_game` has the packed frames of its game."
    ],
    reconnect: [
      type: :non_neg_integer,
      default: 5,
      max: 1_000_000,
      doc: "Attempts to connect again after a bridge has failed. Then the bot stops."
    ],
    reconnect_ms: [
      type: :pos_integer,
      default: 500,
      max: 3_600_000,
      doc: "Milliseconds between these attempts."
    ],
    name: [type: :any, default: nil, doc: "Registered name, as in `GenServer`."]
  ]

  def schema(:start), do: @start
  def docs(:start), do: Options.docs(@start)
end
