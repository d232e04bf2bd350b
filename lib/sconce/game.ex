defmodule Sconce.Game do
  alias Sconce.Game.{Catalogue, Declaration}

  @moduledoc """
  What a frame and an input of a game are, as data. No line of Rust is written for it.

      defmodule Pong do
        use Sconce.Game,
          version: 1,
          fields: [
            ball_x: [type: {:range, -1, 1}, mirror: :negate],
            ball_y: [type: {:range, 0, 1}],
            speed: [type: :number, scale: 10],
            table: [type: {:id, 4}],
            serving: [type: :flag, default: false]
          ],
          input: [
            buttons: [type: {:flags, [:left, :right, :smash]}, mirror: [left: :right]],
            power: [type: {:axis, 0, 1}, steps: 9]
          ]
      end

  `Pong` then stands wherever an embedding does, alone or with the options of `Sconce.Embedding`, and there are the
  structs `Pong.Frame` and `Pong.Action`:

      {:ok, corpus} = Sconce.Corpus.import("games", game: Pong, into: "corpus")
      {:ok, trainer} = Sconce.Trainer.start(corpus, backbone: :gru, run: "runs/pong")
      {:ok, session} = Sconce.Session.open(policy)
      {:ok, action} = Sconce.Session.act(session, %Pong.Frame{ball_x: 0.2, ball_y: 0.5, speed: 3, table: 2})
      Pong.action(action)

  ## Fields

  A field is a name with `type:` and more:

  #{Catalogue.docs(:field)}

  | type | values | features |
  |---|---|---|
  | `:number` | any finite number | the number over `:scale`, held within `:clamp` |
  | `{:range, min, max}` | that range | -1..1 |
  | `:flag` | true, false | 1, 0 |
  | `{:id, n}` | 0..n-1 | its row of a trained table, or the number in the packed layout |
  | `{:one_hot, n}` | 0..n-1 | n, one of which is 1 |
  | `{:vector, n}` | n finite numbers, as a list or a binary of f32 | the numbers, over `:scale` |

  ## Parts of an input

  A part is a name with `type:` and more. A head of the same name chooses it.

  #{Catalogue.docs(:part)}

  | type | values | head |
  |---|---|---|
  | `{:flags, names}` | a map of names to booleans, or a list of those held | `{:bernoulli, n}` |
  | `{:axis, min, max}` | that range | `{:categorical, steps}` |
  | `{:choice, n}` | 0..n-1 | `{:categorical, n}` |
  | `{:continuous, min, max}` | that range, as it is | `{:gaussian, 1, min, max}` |
  | `{:continuous, n, min, max}` | a list of n such numbers | `{:gaussian, n, min, max}` |

  ## Mirror

  Training swaps left and right where `:mirror` of a run says so. Of a field it negates a number (`:negate`), turns a
  range around (`:flip`, `min + max - v`), swaps it with another field (`{:swap, name}`) or ids with each other
  (`[{1, 2}]`); of an input it turns an axis or numbers around (`:flip`) and swaps buttons or choices (`[left: :right]`,
  `[{0, 2}]`). What says nothing stays.

  ## Version

  Corpora and checkpoints hold the declaration that they were made with, and nothing else is needed to open them. A
  corpus of another declaration than a policy's is refused by name and version.
  """

  @enforce_keys [:name, :version, :fields, :tables, :input]
  defstruct @enforce_keys

  @typedoc "A declaration with everything filled in."
  @type t :: %__MODULE__{
          name: String.t(),
          version: non_neg_integer,
          fields: [map],
          tables: [map],
          input: [map]
        }

  @typedoc "A declaration, or the module that has one."
  @type like :: t | module

  @doc """
  A declaration as data, for a game that has no module. Raises `ArgumentError` where it contradicts itself.

      iex> Sconce.Game.new!(name: :walk, fields: [x: [type: {:range, 0, 9}]], input: [step: [type: {:choice, 3}]])
      #Sconce.Game<walk 1 · 1 field · step(3)>
      iex> Sconce.Game.new!(name: :walk, fields: [x: [type: :number, mirror: :flip]], input: [])
      ** (ArgumentError) game: field x: expected a range to flip, got Number
  """
  @spec new!(keyword) :: t
  def new!(opts), do: Declaration.new!(opts)

  @doc """
  The declaration of a module that uses `Sconce.Game`, or the declaration itself.
  """
  @spec of!(like) :: t
  def of!(%__MODULE__{} = game) do
    if Declaration.whole?(game),
      do: game,
      else: raise(ArgumentError, "game: expected what Sconce.Game.new!/1 makes")
  end

  def of!(module) when is_atom(module) do
    if game?(module),
      do: module.__game__(),
      else: raise(ArgumentError, "#{inspect(module)} is no game: it does not `use Sconce.Game`")
  end

  def of!(other),
    do: Sconce.Options.argument!("game", other, "a Sconce.Game or a module that uses it")

  @doc false
  @spec game?(term) :: boolean
  def game?(%__MODULE__{}), do: true

  def game?(module) when is_atom(module) and module not in [nil, true, false],
    do: Code.ensure_loaded?(module) and function_exported?(module, :__game__, 0)

  def game?(_other), do: false

  @doc """
  The columns of a file of its games, as `Sconce.Corpus.import/2` reads them: fields, then the input; `reward`, `end`,
  `weight` and `log_likelihood` may follow.

      iex> game = Sconce.Game.new!(name: :walk, fields: [x: [type: :number]], input: [go: [type: {:flags, [:l, :r]}]])
      iex> Sconce.Game.columns(game)
      ["x", "go.l", "go.r"]
  """
  @spec columns(like) :: [String.t()]
  def columns(game) do
    %__MODULE__{fields: fields, input: input} = of!(game)
    Enum.flat_map(fields, &field_columns/1) ++ Enum.flat_map(input, &part_columns/1)
  end

  defp field_columns(%{name: name, type: {:vector, n}}),
    do: for(i <- 0..(n - 1), do: "#{name}[#{i}]")

  defp field_columns(%{name: name}), do: ["#{name}"]

  defp part_columns(%{name: name, type: {:flags, buttons}}),
    do: for(b <- buttons, do: "#{name}.#{b}")

  defp part_columns(%{name: name, type: {:continuous, n, _min, _max}}) when n > 1,
    do: for(i <- 0..(n - 1), do: "#{name}[#{i}]")

  defp part_columns(%{name: name}), do: ["#{name}"]

  @doc false
  defmacro __using__(opts) do
    quote do
      game = Sconce.Game.new!(Sconce.Game.Declaration.named(unquote(opts), __MODULE__))
      @sconce_game game

      defmodule Frame do
        @moduledoc "A frame of #{game.name}: its fields, and the input that led to it where it is known."
        defstruct Sconce.Game.Declaration.frame_struct(game)
      end

      defmodule Action do
        @moduledoc "An input of #{game.name}, with its confidence and its number where a session decided it."
        defstruct Sconce.Game.Declaration.action_struct(game)
      end

      @doc false
      def __game__, do: @sconce_game

      @doc "A decision of a session as an input of this game."
      def action(%Sconce.Action{input: %{} = input} = action) do
        struct!(__MODULE__.Action, Map.merge(input, Map.take(action, [:confidence, :frame])))
      end
    end
  end

  defimpl Inspect do
    def inspect(game, opts) do
      if Sconce.Game.Declaration.whole?(game),
        do: summary(game),
        else: Inspect.Any.inspect(game, opts)
    end

    defp summary(game) do
      fields = if length(game.fields) == 1, do: "1 field", else: "#{length(game.fields)} fields"
      input = Enum.map_join(game.input, " ", &"#{&1.name}(#{Sconce.Game.Declaration.logits(&1)})")
      input = if input == "", do: "no input", else: input
      Sconce.Text.printable("#Sconce.Game<#{game.name} #{game.version} · #{fields} · #{input}>")
    end
  end
end
