defmodule Sconce.Game.Catalogue do
  @moduledoc false
  # The options of a declaration, of a field and of a part of the input, as schemas.

  alias Sconce.Options

  @field [
    type: [type: :any, required: true, doc: "One of the types below."],
    scale: [type: :float, doc: "For numbers and vectors: the divisor."],
    clamp: [
      type: {:tuple, [:float, :float]},
      doc: "For scaled numbers: bounds of the feature, -10..10 by default."
    ],
    mirror: [
      type: :any,
      default: :keep,
      doc: "Effect of a swap of left and right, see below."
    ],
    table: [
      type: :any,
      default: nil,
      doc:
        "For ids: the name of the table with its rows, which fields with the same name share. The default is a table of its own; `false` is none."
    ],
    width: [
      type: :pos_integer,
      max: 65_536,
      doc: "For ids: width of a row of the table, 16 by default."
    ],
    default: [
      type: :any,
      default: nil,
      doc: "Value of a frame without this field; without a default the field is required."
    ],
    doc: [type: :string, default: "", doc: "Meaning, with the unit."]
  ]

  @part [
    type: [type: :any, required: true, doc: "One of the types below."],
    steps: [
      type: :pos_integer,
      max: 65_535,
      doc: "For axes: number of values that a head chooses from, 17 by default."
    ],
    mirror: [
      type: :any,
      default: :keep,
      doc: "Effect of a swap of left and right, see below."
    ],
    rest: [
      type: :any,
      default: nil,
      doc:
        "Value of the part at rest; 0 or false for flags. A frame whose parts are all at rest has the weight `:neutral_weight`."
    ],
    doc: [type: :string, default: "", doc: "Meaning."]
  ]

  @game [
    name: [type: :any, required: true, doc: "Name of the game."],
    version: [
      type: :non_neg_integer,
      max: 0xFFFF_FFFF,
      default: 1,
      doc: "Raised when a field changes its meaning."
    ],
    fields: [type: :keyword, required: true, doc: "Fields of a frame."],
    input: [type: :keyword, default: [], doc: "Parts of an input."]
  ]

  def game, do: @game
  def field, do: @field
  def part, do: @part

  def docs(:field), do: Options.docs(@field)
  def docs(:part), do: Options.docs(@part)
end
