defmodule Sconce.Game.Catalogue do
  @moduledoc false
  # The options of a declaration, of its fields and of the parts of its input.

  alias Sconce.Options

  @field [
    type: [type: :any, required: true, doc: "One of the types below."],
    scale: [type: :float, doc: "Of a number or a vector: what it is divided by."],
    clamp: [
      type: {:tuple, [:float, :float]},
      doc: "Of a scaled number: what the feature is held within, else -10..10."
    ],
    mirror: [
      type: :any,
      default: :keep,
      doc: "What swapping left and right does to it, see below."
    ],
    table: [
      type: :any,
      default: nil,
      doc:
        "Of an id: the table that has its rows, shared by ids that name the same; its own where none is named, and `false` for none."
    ],
    width: [
      type: :pos_integer,
      max: 65_536,
      doc: "Of an id: numbers in a row of its table, 16 where nothing is said."
    ],
    default: [
      type: :any,
      default: nil,
      doc: "Its value in a frame that does not say it; without one a frame has to."
    ],
    doc: [type: :string, default: "", doc: "What it is, with its unit."]
  ]

  @part [
    type: [type: :any, required: true, doc: "One of the types below."],
    steps: [
      type: :pos_integer,
      max: 65_535,
      doc: "Of an axis: values that a head chooses from, 17 where nothing is said."
    ],
    mirror: [
      type: :any,
      default: :keep,
      doc: "What swapping left and right does to it, see below."
    ],
    rest: [
      type: :any,
      default: nil,
      doc:
        "Its value while nobody does anything, 0 or false for flags: frames of which all such parts are at rest are weighed by `:neutral_weight`."
    ],
    doc: [type: :string, default: "", doc: "What it is."]
  ]

  @game [
    name: [type: :any, required: true, doc: "Of the game."],
    version: [
      type: :non_neg_integer,
      max: 0xFFFF_FFFF,
      default: 1,
      doc: "Raised when a field changes its meaning."
    ],
    fields: [type: :keyword, required: true, doc: "Of a frame."],
    input: [type: :keyword, default: [], doc: "Its parts."]
  ]

  def game, do: @game
  def field, do: @field
  def part, do: @part

  def docs(:field), do: Options.docs(@field)
  def docs(:part), do: Options.docs(@part)
end
