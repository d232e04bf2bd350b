defmodule Sconce.Report do
  alias Sconce.{Corpus, Error, Frame, Options}
  alias Sconce.Report.{Fold, Game, Picture, Reading, States, Summary, Table}

  @new [
    players: [
      type: {:tuple, [:string, :string]},
      default: {"own", "opponent"},
      doc: "Names of the player whose frames these are, and of the other one."
    ],
    title: [type: {:or, [:string, nil]}, default: nil, doc: "Name of the game."]
  ]
  @read [
    player: [
      type: {:in, [0, 1]},
      default: 0,
      doc: "The player that the report lists first, as in `Sconce.Corpus.recording/3`."
    ]
  ]
  @games [
    games: [
      type: {:or, [{:list, :non_neg_integer}, nil]},
      default: nil,
      doc: "Indices in `Sconce.Corpus.games/1`; `nil` is all games."
    ]
  ]
  @sum [
    by: [
      type: {:in, [:name, :character]},
      default: :name,
      doc: "What a row of the summary is about: a player's name, or a character."
    ]
  ]

  # Players have control from frame -39 on, so the state after frame -40 is the first that matters.
  @first_frame -40
  # The largest number up to which a 32-bit float holds every integer.
  @last_frame 16_777_216
  # At least this many frames before the last one can be replaced. Slippi rolls back at most 7.
  @kept_frames 60

  @moduledoc """
  Reports on games of Melee that players read: openings, conversions, stocks and self-destructs.

      iex> player = %{percent: 0.0, facing: 1, x: -20.0, y: 0.0, action: 14, character: 1, on_ground: true, stock: 4}
      iex> quiet = %{own: player, opponent: player, stage: 31, frame: 1}
      iex> hit = %{quiet | own: %{player | action: 65}, opponent: %{player | action: 75, percent: 12.0}, frame: 2}
      iex> {:ok, report} = Sconce.Report.new() |> Sconce.Report.add(quiet)
      iex> {:ok, report} = Sconce.Report.add(report, hit)
      iex> game = Sconce.Report.finish(report)
      #Sconce.Report.Game<own Fox 1 opening, 0 kills · opponent Fox 0 openings, 0 kills · 2 frames>
      iex> [conversion] = game.conversions
      iex> {conversion.opening, conversion.opener, conversion.damage}
      {:neutral_win, "neutral air", 12.0}

  A report is a fold over frames. A bot adds each frame as it plays, and `of_corpus/3` adds those of an imported replay;
  both give the same report of the same game.

  ## Definitions

  They are those of Slippi's statistics (project slippi-js), so that figures compare.

  | word | meaning |
  |---|---|
  | conversion | begins when the opponent is hit, grabbed or captured; ends when the opponent loses the stock, or 45 frames after the opponent is first in control, unless hit again |
  | opening | the begin of a conversion |
  | trade | an opening on the frame on which the opponent has one, too |
  | counter-attack | an opening during a conversion of the opponent |
  | neutral win | any other opening |
  | kill | a stock that was lost during a conversion of the opponent |
  | self-destruct | a stock that was lost at another time |
  | damage | the increase of the opponent's percent on frames of a conversion on which the opponent is hit, grabbed or captured |
  | move | hits without a change of the attacker's action state are one move |

  The classes are ranges of action states:

  | class | meaning | action states |
  |---|---|---|
  #{States.docs()}

  These points differ from Slippi's statistics:

    * A frame does not have the last attack that landed. The name of a move is that of the attacker's action state, and a
      hit by a projectile is `"other"`, or the name of the move that the attacker performs at that moment.
    * Frames before #{@first_frame}, on which no player has control, are left out: a first stock starts at frame
      #{@first_frame} instead of -123.
    * A conversion without damage, such as a grab that the opponent breaks, has the opening of any other one. Slippi
      compares its end with its own start, calls it a counter-attack, and leaves it out of the ratio of neutral wins.
    * An opening during a conversion that runs until the end of the game is a counter-attack, and a neutral win in Slippi.
    * A decrease of the percent, by an item that heals, is no damage.
    * If frame numbers are missing, the last known frame takes the place of the missing one.

  As in Slippi's statistics, a victim is thrown from the moment the throw begins until it is released, and no longer held:
  hits in between, as those of some throws, are damage taken and no damage of the conversion.

  Games with more than two players are not in a corpus. The partner of the Ice Climbers has no part in a report.

  ## Rollback

  A frame with the number of an earlier frame replaces it and all frames after it: after a rollback, add the corrected
  frames. At least the last #{@kept_frames} frames can be replaced.
  """

  @enforce_keys [:names, :title]
  defstruct [:names, :title, stage: nil, frame: nil, sides: {%Fold{}, %Fold{}}, past: {[], [], 0}]

  @typedoc "A report that is fed with frames. Its fields are private."
  @type t :: %__MODULE__{}

  @doc """
  Makes an empty report.

  #{Options.docs(@new)}

      iex> Sconce.Report.new(players: {"bot", "guest"})
      #Sconce.Report<bot and guest · no frames>
  """
  @spec new(keyword) :: t
  def new(opts \\ []) do
    opts = Options.validate!(opts, @new)
    %__MODULE__{names: opts[:players], title: opts[:title]}
  end

  @doc """
  Adds a frame: a packed row of `Sconce.Frame.pack/1`, or any frame that this function accepts.

  Frames need their number. A frame without one has the number 0, and replaces the last frame. A frame before the oldest
  frame that can be replaced is an error of kind `:out_of_range`; a new game needs a new report. A frame with a number
  that is not finite is an error of kind `:non_finite`. After an error the old report is as before.

      iex> player = %{percent: 0.0, facing: 1, x: 0.0, y: 0.0, action: 14, character: 2, on_ground: true, stock: 4}
      iex> {:ok, report} = Sconce.Report.new() |> Sconce.Report.add(%{own: player, opponent: player, stage: 31, frame: 7})
      iex> report
      #Sconce.Report<own and opponent · frame 7>
  """
  @spec add(t, Frame.t() | map | binary) :: {:ok, t} | {:error, Error.t()}
  def add(%__MODULE__{names: {_, _}, sides: {_, _}} = report, frame) do
    with {:ok, moment} <- Reading.moment(frame), do: put(report, moment)
  end

  defp put(report, {frame, _stage, _players}) when frame < @first_frame, do: {:ok, report}

  defp put(%{frame: last, past: past} = report, {frame, stage, players})
       when last == nil or frame > last do
    gap = if last, do: frame - last, else: 1
    sides = Fold.step(report.sides, players, frame, gap)
    past = kept(past, {last, report.sides})
    {:ok, %{report | frame: frame, stage: stage, sides: sides, past: past}}
  end

  defp put(%{past: {recent, older, _count}} = report, {frame, _, _} = moment) do
    case Enum.drop_while(recent ++ older, fn {earlier, _sides} ->
           earlier != nil and earlier >= frame
         end) do
      [{last, sides} | rest] ->
        put(%{report | frame: last, sides: sides, past: {rest, [], length(rest)}}, moment)

      [] ->
        {oldest, _sides} = List.last(recent ++ older)
        details = %{field: "frame", value: frame, min: oldest + 1, max: @last_frame}
        {:error, %Error{kind: :out_of_range, op: :report, details: details}}
    end
  end

  # The earlier moments in two lists, the last one first. The older list is dropped as a whole, so that adding a frame
  # takes constant time.
  defp kept({recent, _older, count}, moment) when count >= @kept_frames,
    do: {[moment], recent, 1}

  defp kept({recent, older, count}, moment), do: {[moment | recent], older, count + 1}

  @doc """
  Returns the figures of the frames so far, as a `Sconce.Report.Game`. The report can be continued.

      iex> game = Sconce.Report.finish(Sconce.Report.new())
      iex> {game.frames, game.conversions}
      {0, []}
  """
  @spec finish(t) :: Game.t()
  def finish(%__MODULE__{names: {_, _}, sides: {_, _}} = report), do: Game.of(report)

  @doc """
  Reports on one game of a corpus of Melee; `game` is the index in `Sconce.Corpus.games/1`.

  A player's name is the tag in the replay, or `P1` and `P2`. A corpus of another game is an error of kind `:mismatch`.

  #{Options.docs(@read)}

      {:ok, corpus} = Sconce.Corpus.import("replays", into: "corpus")
      {:ok, game} = Sconce.Report.of_corpus(corpus, 0)
      IO.puts(Sconce.Report.text(game))
  """
  @spec of_corpus(Corpus.t(), non_neg_integer, keyword) :: {:ok, Game.t()} | {:error, Error.t()}
  def of_corpus(%Corpus{handle: _} = corpus, game, opts \\ []) do
    opts = Options.validate!(opts, @read)
    (is_integer(game) and game >= 0) || Options.argument!("game", game, "0 or more")
    with {:ok, entries} <- Reading.entries(corpus), do: one(corpus, entries, game, opts[:player])
  end

  @doc """
  Reports on all games of a corpus of Melee, or on some.

  #{Options.docs(@games ++ @read)}

      {:ok, games} = Sconce.Report.games(corpus, games: [0, 2])
      games |> Sconce.Report.sum() |> Sconce.Report.text() |> IO.puts()
  """
  @spec games(Corpus.t(), keyword) :: {:ok, [Game.t()]} | {:error, Error.t()}
  def games(%Corpus{handle: _} = corpus, opts \\ []) do
    opts = Options.validate!(opts, @games ++ @read)

    with {:ok, entries} <- Reading.entries(corpus) do
      indices = opts[:games] || Enum.to_list(0..(length(entries) - 1)//1)
      all(indices, &one(corpus, entries, &1, opts[:player]))
    end
  end

  defp all(indices, read) do
    indices
    |> Enum.reduce_while([], fn index, done ->
      case read.(index) do
        {:ok, game} -> {:cont, [game | done]}
        {:error, _error} = failure -> {:halt, failure}
      end
    end)
    |> then(&if is_list(&1), do: {:ok, Enum.reverse(&1)}, else: &1)
  end

  defp one(corpus, entries, game, player) do
    with {:ok, entry} <- Reading.entry(entries, game),
         {:ok, moments} <- Reading.moments(corpus, game, player) do
      report = new(players: Reading.names(entry, player), title: Reading.title(entry))
      {:ok, moments |> Enum.reduce(report, &put!(&2, &1)) |> finish()}
    end
  end

  # The frame numbers of a replay were checked when it was imported: they rise.
  defp put!(report, moment) do
    {:ok, report} = put(report, moment)
    report
  end

  @doc """
  Adds up reports: a `Sconce.Report.Summary` with one row for each player, or each character.

  #{Options.docs(@sum)}

      iex> game = Sconce.Report.finish(Sconce.Report.new(players: {"ann", "bob"}))
      iex> Sconce.Report.sum([game, game])
      #Sconce.Report.Summary<2 games · ann, bob>
  """
  @spec sum([Game.t()], keyword) :: Summary.t()
  def sum(games, opts \\ []) do
    opts = Options.validate!(opts, @sum)

    (length_of(games) && Enum.all?(games, &match?(%Game{players: [_, _]}, &1))) ||
      Options.argument!("games", games, "a list of Sconce.Report.Game")

    Summary.of(games, opts[:by])
  end

  defp length_of(list) when length(list) >= 0, do: length(list)
  defp length_of(_other), do: nil

  @doc """
  Returns the report of a game, or a summary, as a table of at most 80 columns.

      iex> game = Sconce.Report.finish(Sconce.Report.new(players: {"ann", "bob"}))
      iex> game |> Sconce.Report.text() |> String.split("\\n") |> Enum.slice(2, 3)
      ["                                      ann                bob",
       "openings                                0                  0",
       "  neutral wins                          0                  0"]
  """
  @spec text(Game.t() | Summary.t()) :: String.t()
  def text(%Game{players: [_, _]} = game), do: Table.game(game)
  def text(%Summary{rows: rows} = summary) when is_list(rows), do: Table.summary(summary)

  @doc """
  Returns the conversions of a game as a table of at most 80 columns, one line for each.

      iex> game = Sconce.Report.finish(Sconce.Report.new())
      iex> Sconce.Report.conversions(game)
      "  time  player        opening         first move       moves  percent"
  """
  @spec conversions(Game.t()) :: String.t()
  def conversions(%Game{players: [_, _]} = game), do: Table.conversions(game)

  @doc """
  Returns a picture of a game as the text of an SVG file: the percent of both players over time, the conversions as bars
  in the color of the attacker, and the lost stocks.

      iex> game = Sconce.Report.finish(Sconce.Report.new())
      iex> Sconce.Report.svg(game) =~ "no frames"
      true
  """
  @spec svg(Game.t()) :: String.t()
  def svg(%Game{players: [_, _]} = game), do: Picture.svg(game)

  @doc """
  Writes `svg/1` to a file. A path that does not end in `.svg` is an error of kind `:mismatch`, and a failed write is
  one of kind `:io`.

      iex> game = Sconce.Report.finish(Sconce.Report.new())
      iex> path = Path.join(System.tmp_dir!(), "sconce-report-#{System.pid()}.svg")
      iex> {Sconce.Report.write(game, path), File.rm(path)}
      {:ok, :ok}
  """
  @spec write(Game.t(), Path.t()) :: :ok | {:error, Error.t()}
  def write(%Game{players: [_, _]} = game, path), do: Picture.write(game, path)

  defimpl Inspect do
    alias Sconce.Text

    def inspect(%{names: {own, opponent}, frame: frame}, _opts) do
      seen = if is_integer(frame), do: "frame #{frame}", else: "no frames"
      "#Sconce.Report<#{Text.printable(own)} and #{Text.printable(opponent)} · #{seen}>"
    end

    def inspect(_built_by_hand, _opts), do: "#Sconce.Report<no players>"
  end
end
