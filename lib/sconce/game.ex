defmodule Sconce.Game do
  alias Sconce.Game.{Catalogue, Declaration}

  @moduledoc """
  Declares a game as data: the fields of a frame and the parts of an input. A new game needs no Rust.

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

  `Pong` is then an embedding, alone or with the options of `Sconce.Embedding`, and has the structs `Pong.Frame` and
  `Pong.Action`:

      {:ok, corpus} = Sconce.Corpus.import("games", game: Pong, into: "corpus")
      {:ok, run} = Sconce.Trainer.start_link(corpus: corpus, out: "run", backbone: :gru)
      {:ok, _report} = Sconce.Trainer.await(run)
      {:ok, policy} = Sconce.Policy.load("run/best.safetensors")
      {:ok, session} = Sconce.Session.open(policy)
      {:ok, action} = Sconce.Session.act(session, %Pong.Frame{ball_x: 0.2, ball_y: 0.5, speed: 3, table: 2})
      Pong.action(action)

  ## Fields

  A field has a name and these options:

  #{Catalogue.docs(:field)}

  | type | values | features |
  |---|---|---|
  | `:number` | any finite number | the number divided by `:scale`, clamped to `:clamp` |
  | `{:range, min, max}` | that range | -1..1 |
  | `:flag` | true or false | 1 or 0 |
  | `{:id, n}` | 0..n-1 | the row of the id in a trained table, or the id itself in the packed layout |
  | `{:one_hot, n}` | 0..n-1 | n numbers: 1 at the index of the value, 0 elsewhere |
  | `{:vector, n}` | n finite numbers, as a list or a binary of f32 | the numbers, divided by `:scale` |

  ## Parts of an input

  A part has a name and these options. The head of the same name chooses its value.

  #{Catalogue.docs(:part)}

  | type | values | head |
  |---|---|---|
  | `{:flags, names}` | a map of names to booleans, or a list of the pressed names | `{:bernoulli, n}` |
  | `{:axis, min, max}` | that range | `{:categorical, steps}` |
  | `{:choice, n}` | 0..n-1 | `{:categorical, n}` |
  | `{:continuous, min, max}` | that range | `{:gaussian, 1, min, max}` |
  | `{:continuous, n, min, max}` | a list of n such numbers | `{:gaussian, n, min, max}` |

  ## Mirror

  The option `:mirror` of a run is the share of windows in which training swaps left and right. `mirror:` of a field or a
  part sets the effect of the swap; the default is no change:

  | `mirror:` | effect |
  |---|---|
  | `:negate` | negates a number field |
  | `:flip` | replaces a range, an axis or a continuous number v by `min + max - v` |
  | `{:swap, name}` | swaps a field with another field |
  | `[{1, 2}]` | swaps ids or choices with each other |
  | `[left: :right]` | swaps buttons |

  ## Version

  Corpora and checkpoints contain the declaration that they were made with, so that they open without the module. A
  corpus whose declaration differs from that of a policy is an error that names game and version.
  """

  @enforce_keys [:name, :version, :fields, :tables, :input]
  defstruct @enforce_keys

  @typedoc "A validated declaration of a game."
  @type t :: %__MODULE__{
          name: String.t(),
          version: non_neg_integer,
          fields: [map],
          tables: [map],
          input: [map]
        }

  @typedoc "A declaration, or a module that uses `Sconce.Game`."
  @type like :: t | module

  @doc """
  Returns a declaration for a game without a module. Raises `ArgumentError` for a contradiction.

      iex> Sconce.Game.new!(name: :walk, fields: [x: [type: {:range, 0, 9}]], input: [step: [type: {:choice, 3}]])
      #Sconce.Game<walk 1 · 1 field · step(3)>
      iex> Sconce.Game.new!(name: :walk, fields: [x: [type: :number, mirror: :flip]], input: [])
      ** (ArgumentError) game: field x: expected a range to flip, got Number
  """
  @spec new!(keyword) :: t
  def new!(opts), do: Declaration.new!(opts)

  @doc """
  Returns the declaration of a module that uses `Sconce.Game`, or the declaration itself.

      iex> game = Sconce.Game.new!(name: :walk, fields: [x: [type: :number]], input: [step: [type: {:choice, 3}]])
      iex> Sconce.Game.of!(game) == game
      true
      iex> Sconce.Game.of!(String)
      ** (ArgumentError) String is no game: it does not `use Sconce.Game`
  """
  @spec of!(like) :: t
  def of!(%__MODULE__{} = game) do
    if Declaration.whole?(game),
      do: game,
      else: raise(ArgumentError, "game: expected a declaration of Sconce.Game.new!/1")
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
  Returns the columns of a file for `Sconce.Corpus.import/2`: fields, then the input; `reward`, `end`, `weight` and
  `log_likelihood` may follow.

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
        @moduledoc "A frame of #{game.name}: its fields, and the input that led to it if known."
        defstruct Sconce.Game.Declaration.frame_struct(game)
      end

      defmodule Action do
        @moduledoc "An input of #{game.name}; an input that a session decided has its confidence and its frame."
        defstruct Sconce.Game.Declaration.action_struct(game)
      end

      @doc false
      def __game__, do: @sconce_game

      @doc "Converts a decision of a session to an input of this game."
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
