defmodule Sconce.Bot.Bridge.Recording do
  alias Sconce.{Corpus, Options}
  alias Sconce.Bot.Row

  @connect [
    corpus: [type: :any, required: true, doc: "A `Sconce.Corpus`, or its folder."],
    games: [
      type: {:or, [{:list, :non_neg_integer}, nil]},
      default: nil,
      doc: "Indices of the games in `Sconce.Corpus.games/1`, in order; `nil` is each game once."
    ],
    player: [
      type: {:in, [0, 1]},
      default: 0,
      doc: "Player whose place the bot takes. The other one is the recorded opponent."
    ],
    hz: [
      type: {:or, [:float, nil]},
      default: 60.0,
      above: 0,
      max: 1_000_000,
      doc: "Frames a second; `nil` is as fast as the bot answers."
    ],
    previous: [
      type: {:in, [:own, :recorded]},
      default: :own,
      doc:
        "Input that led to a frame, as the policy sees it: the bot's own, or that of the recorded player."
    ],
    repeat: [
      type: :boolean,
      default: false,
      doc: "Whether the games begin anew after the last one."
    ]
  ]

  @moduledoc """
  A bridge to recorded games: the bot plays in the place of a player, whose recorded states come whatever it does.

  It shows a bot that plays, and its times, without a game.

      iex> dir = Path.join(System.tmp_dir!(), "sconce-recording-bridge-" <> System.pid())
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, [{[0.5, 1.0], [1, 0]}], into: dir, heads: [go: {:bernoulli, 1}])
      iex> spec = [embedding: {:vector, 1}, backbone: :mlp, heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> this = self()
      iex> {:ok, _bot} = Sconce.Bot.start_link(policy: policy, deadline_ms: 1_000, on_game: &send(this, {:game, &1}),
      ...>   bridge: {Sconce.Bot.Bridge.Recording, corpus: corpus, hz: nil})
      iex> game = receive do: ({:game, game} -> game)
      iex> File.rm_rf!(dir)
      iex> {game.frames, game.decisions, game.ended}
      {2, 2, :finished}

  After the last game the bridge stays open, and the bot is idle.

  ## Options

  #{Options.docs(@connect)}
  """

  @behaviour Sconce.Bot.Bridge

  @impl true
  def connect(opts) do
    options = Options.validate!(opts, @connect)

    with {:ok, corpus} <- corpus(options[:corpus]),
         {:ok, all} <- Corpus.games(corpus) do
      games = options[:games] || Enum.to_list(0..(length(all) - 1)//1)

      {:ok,
       %{
         corpus: corpus,
         options: options,
         games: games,
         left: games,
         frames: nil,
         due: System.monotonic_time(:microsecond)
       }}
    end
  end

  defp corpus(%Corpus{} = corpus), do: {:ok, corpus}
  defp corpus(dir), do: Corpus.open(dir)

  @impl true
  def next(%{frames: nil, left: []} = bridge, timeout_ms) do
    if bridge.options[:repeat] and bridge.games != [] do
      next(%{bridge | left: bridge.games}, timeout_ms)
    else
      Process.sleep(timeout_ms)
      {:none, bridge}
    end
  end

  def next(%{frames: nil, left: [game | left]} = bridge, timeout_ms) do
    case Corpus.states(bridge.corpus, game, bridge.options[:player]) do
      {:ok, rows} ->
        frames = numbered(rows, bridge.corpus.info.schema)
        next(%{bridge | frames: frames, left: left}, timeout_ms)

      {:error, error} ->
        {{:closed, error}, bridge}
    end
  end

  def next(%{frames: []} = bridge, _timeout_ms), do: {{:over, :finished}, %{bridge | frames: nil}}

  def next(%{frames: [{number, row} | rest], options: options} = bridge, _timeout_ms) do
    due = wait(bridge.due, options[:hz])
    {{:frame, {number, row(row, bridge)}}, %{bridge | frames: rest, due: due}}
  end

  # A frame of Melee has its number; others are counted.
  defp numbered(rows, :melee), do: for(row <- rows, do: {Row.number(row), row})
  defp numbered(rows, _schema), do: for({row, i} <- Enum.with_index(rows), do: {i, row})

  # A bridge that is behind does not hurry afterwards.
  defp wait(due, nil), do: due

  defp wait(due, hz) do
    due = max(due + round(1_000_000 / hz), System.monotonic_time(:microsecond))
    Process.sleep(max(div(due - System.monotonic_time(:microsecond), 1000), 0))
    due
  end

  defp row(row, %{options: options, corpus: %{info: %{schema: :melee}}}),
    do: if(options[:previous] == :own, do: Row.without_input(row), else: row)

  defp row(row, _bridge), do: row

  @impl true
  def put(bridge, _input), do: {:ok, bridge}

  @impl true
  def disconnect(_bridge), do: :ok
end
