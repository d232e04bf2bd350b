defmodule Sconce.Corpus.Catalogue do
  @moduledoc false
  # The options of `Sconce.Corpus` as tables, each in the form of `Sconce.Options`.

  alias Sconce.Options

  @import [
    into: [type: :path, required: true, doc: "Folder of the corpus, created if missing."],
    game: [
      type: :any,
      default: :melee,
      doc:
        "`:melee` for Slippi replays, or a `Sconce.Game` for `.csv` and `.jsonl` files of its games."
    ],
    compress: [
      type: :boolean,
      default: false,
      doc: "Writes the added games compressed. A corpus may have games of both kinds."
    ],
    min_frames: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      doc: "Shorter games are skipped; `nil` is 600 frames for replays and 1 for other games."
    ],
    max_frames: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      doc: "Longer games are skipped."
    ],
    stages: [
      type: {:or, [{:list, {:or, [:non_neg_integer, :string]}}, nil]},
      default: nil,
      doc: "Games on other stages are skipped. A stage is a name, as in `stage_id/1`, or its id."
    ],
    characters: [
      type: {:or, [{:list, {:or, [:non_neg_integer, :string]}}, nil]},
      default: nil,
      doc: "Games in which no player has one of these characters are skipped."
    ],
    min_damage_dealt: [
      type: :float,
      default: 0.0,
      min: 0,
      max: 1_000_000,
      doc: "Games in which no player dealt this damage, in percent, are skipped."
    ],
    min_damage_taken: [
      type: :float,
      default: 0.0,
      min: 0,
      max: 1_000_000,
      doc:
        "Games in which no player took this damage are skipped; beside `:min_damage_dealt`, one player did both."
    ],
    humans: [
      type: :boolean,
      default: false,
      doc: "Games with a player that is not human are skipped."
    ],
    unique: [
      type: :boolean,
      default: false,
      doc:
        "Skips a game with the same values as another, such as the recording of the other player. The same file is always imported once."
    ],
    min_quality: [
      type: :float,
      default: 0.0,
      min: 0,
      max: 100,
      doc: "Games of a lower quality are skipped, see below."
    ],
    threads: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      doc: "Threads that read; `nil` is one for each processor."
    ],
    retry: [
      type: :boolean,
      default: false,
      doc: "Also reads replays that were open at two deaths of an import, see below."
    ],
    progress: [
      type: {:or, [{:fun, 1}, :auto, false]},
      default: :auto,
      doc:
        "Called with `%{done, total, added, known, skipped, frames, seconds}` after each file. " <>
          "`:auto` prints a line in a terminal, `false` prints nothing."
    ]
  ]

  @build [
    into: [type: :path, required: true, doc: "Folder of the corpus, created if missing."],
    heads: [
      type: :any,
      default: nil,
      doc:
        "For vectors: the kinds of the labels, such as `[move: {:categorical, 3}, fire: {:bernoulli, 1}]`."
    ],
    compress: [
      type: :boolean,
      default: false,
      doc: "Writes the games compressed. A corpus may have games of both kinds."
    ],
    columns: [
      type: {:list, {:in, [:reward, :end, :weight, :log_likelihood]}},
      default: [],
      doc: "For a declared game: further keys of its rows, beside `frame` and `input`."
    ]
  ]

  @verify [
    progress: [
      type: {:or, [{:fun, 1}, :auto, false]},
      default: :auto,
      doc: "As in `import/2`, with `%{done, total, bytes, damaged}` after each game."
    ]
  ]

  @schemas %{import: @import, build: @build, verify: @verify}

  # Why an import skips a file.
  @reasons ~w(corrupt truncated not_two_players too_short duplicate unreadable fatal stage not_human too_long
              character player damage quality port)a

  @doc "A table of options by its name."
  def schema(name), do: Map.fetch!(@schemas, name)

  def docs(name), do: name |> schema() |> Options.docs()

  @doc "The reasons of skipped files."
  @spec reasons() :: [atom]
  def reasons, do: @reasons
end
