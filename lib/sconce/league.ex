defmodule Sconce.League do
  alias Sconce.{Env, Error, Figures, Native, Options, Policy, Text}
  alias Sconce.Env.{Catalogue, Hosting, Playing}
  alias Sconce.League.{Difference, Picture, Players, Results}
  alias Sconce.Native.Call
  alias Sconce.Trainer.Curve.Page

  @play [
    env: [
      type: :any,
      default: nil,
      doc: "Environment of two seats, also a module; `nil` is that of the first policy's notes."
    ],
    games: [
      type: :pos_integer,
      default: 200,
      max: 65_536,
      doc: "Games of each pair, half of them in either seat."
    ],
    seed: [
      type: :non_neg_integer,
      default: 0,
      max: 2 ** 64 - 1,
      doc: "Seed of the starts and of all choices."
    ],
    deterministic: [
      type: :boolean,
      default: false,
      doc: "Whether policies take the likeliest action instead of a sampled one."
    ]
  ]
  @world Keyword.take(Catalogue.schema(:play), [:action_repeat, :frame_stack, :time_limit])
  @hosting Keyword.take(Catalogue.schema(:play), [:processes, :step_timeout_ms])
  @schema @play ++ @world ++ @hosting
  @rate [
    players: [
      type: {:or, [{:list, :any}, nil]},
      default: nil,
      doc:
        "Names of all players in the order of the rows; `nil` are those of the results, sorted."
    ],
    label: [
      type: {:or, [:string, nil]},
      default: nil,
      doc: "Name of what was played, for the table and the picture."
    ]
  ]

  @moduledoc """
  Lets players of a two-seat environment play against each other: a payoff matrix, and Elo ratings.

      iex> {:ok, league} = Sconce.League.play([:striker, :thrower, :guarder], env: :duel, games: 100)
      iex> league
      #Sconce.League<duel · 3 players · 100 games a pair · best striker>
      iex> for row <- league.payoff, do: for rate <- row, do: rate > 0.5
      [[false, true, false], [false, false, true], [true, false, false]]

  Each of these players beats the next one, and the last one beats the first: a ring. No rating shows that, and the
  matrix does.

  | a player | is |
  |---|---|
  | `:mixer`, `"mixer"` | a scripted player of the environment |
  | a `Sconce.Policy` in `{name, policy}` | this policy |
  | `"run/last.safetensors"` | the policy of a file |
  | `"run"` | the last policy of a run of `Sconce.PPO`, and its past selves |

  `{name, player}` names a player; otherwise the name is that of the scripted player, or the end of the path. Where two
  ends are the same, the name is the whole path. A scripted player wins over a folder of its name: write `"./mixer"` for
  the folder.

  A world in Elixir with two seats (`Sconce.Env.World`) is named by its module; its players are policies. Give one whose games may go on for ever
  a `:time_limit`.

  All games run on native threads, many side by side. A game depends on the seed, on its number, and on the places of its
  players in the list, so a longer list changes games. It depends neither on the number of threads nor on other pairs'
  results. `mix sconce.play --league` does the same in a shell.

  ## Figures

  | key | content |
  |---|---|
  | `env` | name of the environment; of `rate/2` the label, or nil |
  | `players` | names of the players |
  | `games` | games of each pair; nil if pairs have different numbers of games |
  | `payoff` | win rate of the row's player against the column's one; a draw is half a win, and the diagonal 0.5; nil for a pair that has not met |
  | `wins`, `draws` | games of the same pairs that the row's player has won, and games without a winner |
  | `ratings` | `name`, `elo`, `low` and `high` of each player |

  A game is won by the player with a positive return. The ratings are those of maximum likelihood in Elo's model (Elo
  1978; Bradley and Terry 1952), with two imagined draws of each player against an average one, which keep the rating of
  a player finite that always wins. Their mean is 1200, and 400 points are odds of 10 to 1. `low` and `high` are an
  interval of 95 % for the distance of a player from the mean of all; `difference/3` compares two players.
  """

  @enforce_keys [:env, :players, :games, :payoff, :wins, :draws, :ratings]
  defstruct @enforce_keys

  @typedoc "The results of all pairs, described above."
  @type t :: %__MODULE__{
          env: Env.name() | String.t() | nil,
          players: [String.t()],
          games: pos_integer | nil,
          payoff: [[float | nil]],
          wins: [[non_neg_integer]],
          draws: [[non_neg_integer]],
          ratings: [%{name: String.t(), elo: float, low: float, high: float}]
        }

  @typedoc "A scripted player, a file, the folder of a run, or a named player."
  @type player :: atom | Path.t() | {String.t(), atom | Path.t() | Policy.t()}

  @doc false
  def schema, do: @schema

  @doc """
  Lets all pairs of players play; the moduledoc has an example.

  Wrong options and an unknown or repeated name raise `ArgumentError`. A policy that does not fit the environment, and an
  environment of one seat, are errors of kind `:mismatch`; fewer than 2 or more than 256 players one of kind
  `:out_of_range`.

  #{Options.docs(@schema)}

      iex> spec = [embedding: {:vector, 19}, backbone: :mlp, hidden_sizes: [8]]
      iex> {:ok, env} = Sconce.Env.spec(:duel)
      iex> {:ok, policy} = Sconce.Policy.init(spec ++ [heads: env.heads], seed: 1)
      iex> {:ok, league} = Sconce.League.play([:striker, {"new", policy}], env: :duel, games: 20)
      iex> league.players
      ["striker", "new"]
  """
  @spec play([player], keyword) :: {:ok, t} | {:error, Error.t()}
  def play(players, opts \\ []) do
    options = Options.validate!(opts, @schema)
    players = Players.named!(players, options[:env])
    {play, world} = Keyword.split(options, [:games, :seed, :deterministic])
    {hosting, world} = Keyword.split(world, Keyword.keys(@hosting))

    with {:ok, players} <- Players.load(players),
         {:ok, env, recorded} <- world(players, options[:env]),
         :ok <- known!(players, env),
         :ok <- processes!(env, hosting),
         native = Map.merge(recorded, Catalogue.to_native(env, Keyword.delete(world, :env))),
         refs = Enum.map(players, &native/1),
         start = &Native.league_play(&1, refs, {native, &2}, Map.new(play)),
         {:ok, payoff} <- Playing.hosted(env, options[:games], hosting, &run(start, &1)) do
      {:ok, league(env, for({name, _player} <- players, do: name), payoff)}
    end
  end

  @doc """
  Rates players by results of games that were played elsewhere, such as games of a bot against people.

  `results` is an enumerable, also a stream over many days of games. Its order does not matter. A name is text or an
  atom, and `:fox` and `"fox"` are the same player. Each result is one of these:

  | result | meaning |
  |---|---|
  | `{a, b, :win}` | `a` has won against `b`; `:loss` and `:draw` likewise |
  | `{a, b, {wins, draws, losses}}` | games of `a` against `b` |
  | `%{players: [a, b], winner: a}` | a game with this winner; nil is a draw. Keys may be text |
  | `"a,b,win"` | a line of a CSV file |
  | `~s({"players": ["a", "b"], "winner": null})` | a line of a JSONL file |

  An app that appends a line to a file after each game rates all of them with
  `"games.jsonl" |> File.stream!() |> Sconce.League.rate()`. Empty lines are skipped.

  The intervals were checked by simulation: of 1000 leagues of six players with known ratings, a standard deviation of 150
  points, and 20 games a pair, 94.6 % of the intervals contain the true rating. If three of ten games are draws, 98.6 %
  (of 40 games a pair) do, because a draw says more than the model assumes. Of two players whose ratings differ by some
  400 points, 20 games are too few: 91.6 %. Four times the games halve an interval.

  Pairs may have different numbers of games, also none. `groups/1` returns the players that results connect: only the
  ratings of one group can be compared.

  A wrong result is an error of kind `:mismatch` that has its number, and fewer than 2 or more than 256 players are one of
  kind `:out_of_range`. Wrong options raise `ArgumentError`.

      iex> results = [{:ace, "bob", :win}, {"bob", "cy", :draw}, %{players: ["cy", "ace"], winner: "ace"}, "bob,ace,loss"]
      iex> {:ok, league} = Sconce.League.rate(results, label: "netplay")
      iex> league
      #Sconce.League<netplay · 3 players · 4 games · best ace>
      iex> league.payoff
      [[0.5, 1.0, 1.0], [0.0, 0.5, 0.5], [0.0, 0.5, 0.5]]
      iex> {:error, error} = Sconce.League.rate([{:ace, :ace, :win}])
      iex> Exception.message(error) =~ "result 1: players: expected two"
      true

  #{Options.docs(@rate)}
  """
  @spec rate(Enumerable.t(), keyword) :: {:ok, t} | {:error, Error.t()}
  def rate(results, opts \\ []) do
    [players: players, label: label] =
      opts |> Options.validate!(@rate) |> Keyword.take([:players, :label])

    with {:ok, {names, wins, draws}} <- Results.tally(results, players),
         {:ok, payoff} <- Call.run(&Native.league_rate(&1, wins, draws)),
         do: {:ok, league(label, names, payoff)}
  end

  defp processes!(env, hosting) do
    if hosting[:processes] && not Hosting.world?(env),
      do: raise(ArgumentError, "option :processes: #{inspect(env)} is native")

    :ok
  end

  defp run(start, host), do: Call.run(&start.(&1, host))

  # Returns the environment, and the options that the first policy's notes have for it.
  defp world(players, env) do
    case {Enum.find(players, &is_struct(elem(&1, 1), Policy)), env} do
      {nil, nil} -> raise ArgumentError, "option :env is required without a policy"
      {nil, env} -> {:ok, env, %{}}
      {{_name, policy}, env} -> recorded(Playing.world(policy, env))
    end
  end

  defp recorded({:ok, env, recorded}),
    do: {:ok, env, Map.drop(recorded, [:opponent, :reward_weights])}

  defp recorded(error), do: error

  defp known!(players, env) do
    with {:ok, spec} <- Env.spec(env), :ok <- two(env, spec) do
      for {_name, script} <- players,
          is_binary(script),
          do: Options.known!(script, spec.players, "player of #{inspect(env)}")

      :ok
    end
  end

  defp two(_env, %{seats: 2}), do: :ok

  defp two(env, spec) do
    details = %{what: "seats of #{Hosting.label(env)}", expected: 2, got: spec.seats}
    {:error, %Error{kind: :mismatch, op: :league, details: details}}
  end

  defp native({_name, %Policy{ref: ref}}), do: ref
  defp native({_name, script}), do: script

  defp league(env, names, native) do
    ratings = Enum.zip_with(names, native.ratings, &Map.put(&2, :name, &1))
    games = met(native.wins, native.draws)

    payoff =
      Enum.zip_with([native.wins, native.draws, games], fn row -> Enum.zip_with(row, &share/1) end)

    %__MODULE__{
      env: env,
      players: names,
      games: equal(games),
      payoff:
        payoff |> Enum.with_index() |> Enum.map(fn {row, i} -> List.replace_at(row, i, 0.5) end),
      wins: native.wins,
      draws: native.draws,
      ratings: ratings
    }
  end

  defp share([_wins, _draws, 0]), do: nil
  defp share([wins, draws, games]), do: (wins + 0.5 * draws) / games

  # Games of each pair.
  defp met(wins, draws) do
    losses = Enum.zip_with(wins, &Function.identity/1)

    Enum.zip_with([wins, draws, losses], fn row -> Enum.zip_with(row, &Enum.sum/1) end)
  end

  # The number of games of all pairs, if they have the same.
  defp equal(games) do
    pairs =
      for {row, i} <- Enum.with_index(games),
          count <- Enum.drop(row, i + 1),
          uniq: true,
          do: count

    with [same] <- pairs, do: same, else: (_different -> nil)
  end

  @doc false
  # The games as words: `10 games a pair`, or their sum.
  @spec played(t) :: String.t()
  def played(%__MODULE__{games: games}) when is_integer(games),
    do: "#{Figures.counted(games, "game")} a pair"

  def played(%__MODULE__{wins: wins, draws: draws}) do
    sum = wins |> met(draws) |> List.flatten() |> Enum.sum()
    Figures.counted(div(sum, 2), "game")
  end

  @doc false
  # The environment or the label of results, and nil without one.
  @spec label(t) :: String.t() | nil
  def label(%__MODULE__{env: nil}), do: nil
  def label(%__MODULE__{env: env}), do: env |> Hosting.label() |> Text.printable()

  @doc false
  # A warning if the ratings of some players cannot be compared, and nil otherwise.
  @spec apart(t) :: String.t() | nil
  def apart(%__MODULE__{} = league) do
    case length(groups(league)) do
      1 -> nil
      n -> "#{n} groups that have not met; only ratings of one group can be compared"
    end
  end

  @doc """
  Returns the names of the players in groups that results connect, directly or through others.

  Players of one group have comparable ratings. Between groups nothing is known: the ratings of each group are close to
  the mean of all by assumption.

      iex> {:ok, league} = Sconce.League.rate([{"a", "b", :win}, {"b", "c", :draw}, {"x", "y", :loss}])
      iex> Sconce.League.groups(league)
      [["a", "b", "c"], ["x", "y"]]
  """
  @spec groups(t) :: [[String.t()]]
  def groups(%__MODULE__{players: players, wins: [_ | _] = wins, draws: [_ | _] = draws}) do
    for group <- Results.groups(wins, draws), do: Enum.map(group, &Enum.at(players, &1))
  end

  @doc """
  Returns the difference of two players' ratings, that of `a` less that of `b`, and its interval of 95 %.

  It answers whether a player is better than another one: if `low` is above 0. The intervals of the single ratings do not,
  because two errors partly cancel: two intervals may overlap while that of the difference is above 0.

  The interval is that of maximum likelihood, by the covariance of both ratings. Of 1000 simulated leagues of six players with
  known ratings, as `rate/2` describes them, 95.0 % of the 15,000 intervals contain the true difference.

  Players that no results connect, see `groups/1`, are an error of kind `:mismatch`. An unknown name raises
  `ArgumentError`.

      iex> {:ok, league} = Sconce.League.rate([{"new", "old", {70, 0, 30}}, {"old", "oldest", {60, 0, 40}}])
      iex> {:ok, difference} = Sconce.League.difference(league, "new", "old")
      iex> {round(difference.elo), round(difference.low), round(difference.high)}
      {144, 71, 218}
  """
  @spec difference(t, String.t() | atom, String.t() | atom) ::
          {:ok, %{elo: float, low: float, high: float}} | {:error, Error.t()}
  def difference(%__MODULE__{players: players, ratings: [_ | _] = ratings} = league, a, b) do
    [i, j] = for name <- [a, b], do: index!(players, name)

    if Enum.any?(Results.groups(league.wins, league.draws), &(i in &1 and j in &1)) do
      elos = Enum.map(ratings, & &1.elo)
      elo = Enum.at(elos, i) - Enum.at(elos, j)
      margin = Difference.margin(elos, met(league.wins, league.draws), i, j)
      {:ok, %{elo: elo, low: elo - margin, high: elo + margin}}
    else
      details = %{
        what: "players",
        expected: "two that results connect",
        got: Enum.map_join([i, j], " and ", &inspect(Enum.at(players, &1)))
      }

      {:error, %Error{kind: :mismatch, op: :difference, details: details}}
    end
  end

  defp index!(players, name) do
    name = if is_atom(name), do: Atom.to_string(name), else: name
    Options.known!(name, players, "player")
    Enum.find_index(players, &(&1 == name))
  end

  @doc """
  Returns the indices of the players, the one with the highest Elo first.

      iex> {:ok, league} = Sconce.League.play([:idle, :mixer], env: :duel, games: 10)
      iex> Sconce.League.ranking(league)
      [1, 0]
  """
  @spec ranking(t) :: [non_neg_integer]
  def ranking(%__MODULE__{ratings: [_ | _] = ratings}) do
    ratings |> Enum.with_index() |> Enum.sort_by(&(-elem(&1, 0).elo)) |> Enum.map(&elem(&1, 1))
  end

  @doc """
  Returns the matrix and the ratings as lines of text, the best player first.

      iex> {:ok, league} = Sconce.League.play([:idle, :mixer], env: :duel, games: 10)
      iex> league |> Sconce.League.table() |> String.split("\\n") |> Enum.take(3)
      [
        "duel · 10 games a pair · win rate of the row, a draw is half a win",
        "            1     2   Elo",
        "1 mixer     -  1.00  1439 ± 200"
      ]
  """
  @spec table(t) :: String.t()
  def table(%__MODULE__{ratings: [_ | _]} = league) do
    order = Enum.with_index(ranking(league), 1)
    width = league.players |> Enum.map(&String.length/1) |> Enum.max() |> min(40)
    digits = order |> length() |> Integer.to_string() |> String.length()
    head = for {_at, i} <- order, do: String.pad_leading("#{i}", 6)

    parts = [label(league), games(league), "win rate of the row, a draw is half a win"]
    title = parts |> Enum.reject(&is_nil/1) |> Enum.join(" · ")
    last = league |> apart() |> List.wrap()
    lines = for {at, i} <- order, do: line(league, at, i, order, {digits, width})

    Enum.join(
      [title, String.pad_trailing("", digits + 1 + width) <> "#{head}   Elo" | lines ++ last],
      "\n"
    )
  end

  # A title has always had the plural.
  defp games(%{games: games}) when is_integer(games), do: "#{games} games a pair"
  defp games(league), do: played(league)

  defp line(league, at, i, order, {digits, width}) do
    %{elo: elo, high: high} = Enum.at(league.ratings, at)
    name = league.players |> Enum.at(at) |> Text.printable() |> String.slice(0, width)
    row = Enum.at(league.payoff, at)

    cells =
      for {other, _j} <- order,
          do: String.pad_leading(if(other == at, do: "-", else: shown(Enum.at(row, other))), 6)

    label = String.pad_leading("#{i}", digits) <> " " <> String.pad_trailing(name, width)
    "#{label}#{cells}  #{round(elo)} ± #{round(high - elo)}"
  end

  @doc false
  # A win rate as text, and a dash for players that have not met.
  @spec shown(number | nil) :: String.t()
  def shown(nil), do: "-"
  def shown(value), do: :erlang.float_to_binary(value / 1, decimals: 2)

  @doc """
  Returns a picture as the text of an SVG file: the matrix, and the ratings with their intervals.

      iex> {:ok, league} = Sconce.League.play([:idle, :mixer], env: :duel, games: 10)
      iex> Sconce.League.svg(league) =~ "2 players, 10 games a pair"
      true
  """
  @spec svg(t) :: String.t()
  def svg(%__MODULE__{ratings: [_ | _]} = league), do: Picture.svg(league, ranking(league))

  @doc """
  Writes `svg/1` to a file. A path that does not end in `.svg` is an error of kind `:mismatch`, and a failed write is
  one of kind `:io`.

      iex> {:ok, league} = Sconce.League.play([:idle, :mixer], env: :duel, games: 10)
      iex> path = Path.join(System.tmp_dir!(), "sconce-league-#{System.pid()}.svg")
      iex> {Sconce.League.write(league, path), File.rm(path)}
      {:ok, :ok}
  """
  @spec write(t, Path.t()) :: :ok | {:error, Error.t()}
  def write(%__MODULE__{ratings: [_ | _]} = league, path),
    do: league |> svg() |> Page.write(path, :write_svg)

  defimpl Inspect do
    def inspect(%{ratings: [_ | _]} = league, _opts) do
      best = Enum.at(league.players, hd(Sconce.League.ranking(league)))
      players = Figures.counted(length(league.players), "player")
      label = Sconce.League.label(league)
      best = "best #{Text.printable(best)}"
      parts = [label, players, Sconce.League.played(league), best, apart(league)]
      "#Sconce.League<#{parts |> Enum.reject(&is_nil/1) |> Enum.join(" · ")}>"
    end

    def inspect(_built_by_hand, _opts), do: "#Sconce.League<no results>"

    defp apart(league) do
      n = length(Sconce.League.groups(league))
      if n > 1, do: "#{n} groups that have not met"
    end
  end
end
