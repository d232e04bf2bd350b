defmodule Sconce.League do
  alias Sconce.{Env, Error, Figures, Native, Options, Policy, Text}
  alias Sconce.Env.{Catalogue, Hosting, Playing}
  alias Sconce.League.Picture
  alias Sconce.Native.Call
  alias Sconce.PPO.Settings
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
  | `env`, `players`, `games` | name of the environment, names of the players, games of each pair |
  | `payoff` | win rate of the row's player against the column's one; a draw is half a win, and the diagonal 0.5 |
  | `wins`, `draws` | games of the same pairs that the row's player has won, and games without a winner |
  | `ratings` | `name`, `elo`, `low` and `high` of each player |

  A game is won by the player with a positive return. The ratings are those of maximum likelihood in Elo's model (Elo
  1978; Bradley and Terry 1952), with two imagined draws of each player against an average one, which keep the rating of
  a player finite that always wins. Their mean is 1200, and 400 points are odds of 10 to 1. `low` and `high` are an
  interval of 95 %.
  """

  @enforce_keys [:env, :players, :games, :payoff, :wins, :draws, :ratings]
  defstruct @enforce_keys

  @typedoc "The results of all pairs, described above."
  @type t :: %__MODULE__{
          env: Env.name(),
          players: [String.t()],
          games: pos_integer,
          payoff: [[float]],
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
    is_list(players) || Options.argument!("players", players, "a list of players")
    scripts = scripts(options[:env])
    players = players |> Enum.map(&given!/1) |> Enum.map(&members(&1, scripts)) |> named()
    {play, world} = Keyword.split(options, [:games, :seed, :deterministic])
    {hosting, world} = Keyword.split(world, Keyword.keys(@hosting))

    with {:ok, players} <- loaded(players),
         {:ok, env, recorded} <- world(players, options[:env]),
         :ok <- known!(players, env),
         :ok <- processes!(env, hosting),
         native = Map.merge(recorded, Catalogue.to_native(env, Keyword.delete(world, :env))),
         refs = Enum.map(players, &native/1),
         start = &Native.league_play(&1, refs, {native, &2}, Map.new(play)),
         {:ok, payoff} <- Playing.hosted(env, options[:games], hosting, &run(start, &1)) do
      {:ok, league(env, for({name, _player} <- players, do: name), options[:games], payoff)}
    end
  end

  defp processes!(env, hosting) do
    if hosting[:processes] && not Hosting.world?(env),
      do: raise(ArgumentError, "option :processes: #{inspect(env)} is native")

    :ok
  end

  defp run(start, host), do: Call.run(&start.(&1, host))

  # The names of scripted players, which win over folders of these names.
  defp scripts(nil), do: Enum.flat_map(Env.names(), &scripts/1)

  defp scripts(env) do
    case Env.spec(env) do
      {:ok, spec} -> spec.players
      {:error, _error} -> []
    end
  end

  # Returns a player with its given name, which may be nil.
  defp given!({name, %Policy{} = policy}) when is_binary(name), do: {name, policy}

  defp given!({name, player}) when is_binary(name) do
    {_name, player} = given!(player)
    {name, player}
  end

  defp given!(name) when is_atom(name) and name not in [nil, true, false], do: {nil, name}

  defp given!(text) when is_binary(text) do
    Path.basename(text) == "" && Options.argument!("player", text, "a name or a path")
    {nil, Options.path!(text)}
  end

  defp given!(other), do: Options.argument!("player", other, "a name, a path or {name, player}")

  # The members of one argument, each with a short and a long name. The folder of a run becomes its past selves and its
  # last policy.
  defp members({name, path}, scripts) when is_binary(path) do
    if path not in scripts and File.dir?(path) do
      for {part, file} <- past(path) ++ [{"last", Path.join(path, "last.safetensors")}],
          do: {Path.join(name || Path.basename(path), part), Path.join(name || path, part), file}
    else
      [{name || ending(path), name || Path.rootname(path, ".safetensors"), path}]
    end
  end

  defp members({name, player}, _scripts) do
    name = name || to_string(player)
    [{name, name, player}]
  end

  # The last two parts of a path: each run has a file of the same name.
  defp ending(path) do
    parts = path |> Path.split() |> Enum.take(-2)
    parts |> List.delete("/") |> Path.join() |> Path.rootname(".safetensors")
  end

  # The members of an argument have their short names if no other argument has one of them.
  defp named(arguments) do
    counts = arguments |> List.flatten() |> Enum.frequencies_by(&elem(&1, 0))

    Enum.flat_map(arguments, fn members ->
      short? = Enum.all?(members, fn {short, _long, _player} -> counts[short] == 1 end)
      for {short, long, player} <- members, do: {if(short?, do: short, else: long), player}
    end)
  end

  defp past(folder) do
    folder = Path.join(folder, "league")

    case File.ls(folder) do
      {:ok, files} ->
        for file <- Enum.sort(files),
            String.starts_with?(file, "self-") and String.ends_with?(file, ".safetensors"),
            do: {number(file), Path.join(folder, file)}

      # A run without past selves has no such folder.
      {:error, _reason} ->
        []
    end
  end

  # self-00000020.safetensors becomes self-20.
  defp number(file),
    do: file |> Path.rootname(".safetensors") |> String.replace(~r/-0+(?=\d)/, "-")

  defp loaded(players) do
    names = for {name, _player} <- players, do: name

    for name <- names -- Enum.uniq(names),
        do: raise(ArgumentError, "two players are named #{inspect(name)}: give {name, player}")

    Enum.reduce_while(players, {:ok, []}, fn {name, player}, {:ok, all} ->
      case load(player) do
        {:ok, player} -> {:cont, {:ok, all ++ [{name, player}]}}
        {:error, _error} = failure -> {:halt, failure}
      end
    end)
  end

  defp load(player) when is_atom(player), do: {:ok, to_string(player)}

  defp load(text) when is_binary(text),
    do: if(Settings.file?(text), do: Policy.load(text), else: {:ok, text})

  defp load(policy), do: {:ok, policy}

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

  defp league(env, names, games, native) do
    ratings = Enum.zip_with(names, native.ratings, &Map.put(&2, :name, &1))
    payoff = Enum.zip_with(native.wins, native.draws, &rates(&1, &2, games))

    %__MODULE__{
      env: env,
      players: names,
      games: games,
      payoff:
        payoff |> Enum.with_index() |> Enum.map(fn {row, i} -> List.replace_at(row, i, 0.5) end),
      wins: native.wins,
      draws: native.draws,
      ratings: ratings
    }
  end

  defp rates(wins, draws, games), do: Enum.zip_with(wins, draws, &((&1 + 0.5 * &2) / games))

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

    title =
      "#{Hosting.label(league.env)} · #{league.games} games a pair · win rate of the row, a draw is half a win"

    lines = for {at, i} <- order, do: line(league, at, i, order, {digits, width})

    Enum.join(
      [title, String.pad_trailing("", digits + 1 + width) <> "#{head}   Elo" | lines],
      "\n"
    )
  end

  defp line(league, at, i, order, {digits, width}) do
    %{elo: elo, high: high} = Enum.at(league.ratings, at)
    name = league.players |> Enum.at(at) |> Text.printable() |> String.slice(0, width)
    row = Enum.at(league.payoff, at)

    cells =
      for {other, _j} <- order,
          do: String.pad_leading(if(other == at, do: "-", else: rate(Enum.at(row, other))), 6)

    label = String.pad_leading("#{i}", digits) <> " " <> String.pad_trailing(name, width)
    "#{label}#{cells}  #{round(elo)} ± #{round(high - elo)}"
  end

  @doc false
  def rate(value), do: :erlang.float_to_binary(value / 1, decimals: 2)

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
      games = Figures.counted(league.games, "game")

      env = Hosting.label(league.env)

      "#Sconce.League<#{env} · #{players} · #{games} a pair · best #{Text.printable(best)}>"
    end

    def inspect(_built_by_hand, _opts), do: "#Sconce.League<no results>"
  end
end
