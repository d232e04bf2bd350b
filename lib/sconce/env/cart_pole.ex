defmodule Sconce.Env.CartPole do
  alias Sconce.{Corpus, Error, Native, Options, Policy}
  alias Sconce.Native.Call

  @demonstrations [
    games: [type: :pos_integer, default: 100, doc: "Number of games."],
    steps: [type: {:in, 1..500}, default: 500, doc: "Maximum steps of a game."],
    min_steps: [type: {:in, 1..500}, default: 60, doc: "Shorter games are left out."],
    perturb: [
      type: :float,
      default: 0.1,
      min: 0,
      max: 1,
      doc: "Fraction of actions that are random; the label is the expert's action in any case."
    ],
    velocities: [
      type: :boolean,
      default: false,
      doc: "Whether the frames include the velocities."
    ],
    seed: [type: :non_neg_integer, default: 0, doc: "Seed of the starts and the random actions."]
  ]

  @play [
    episodes: [
      type: {:in, 1..1000},
      default: 20,
      doc: "Number of episodes, played one after the other."
    ],
    velocities: [
      type: :boolean,
      default: false,
      doc: "Whether the frames include the velocities."
    ],
    deterministic: [
      type: :boolean,
      default: true,
      doc: "Whether the policy takes the likeliest action instead of a sampled one."
    ],
    seed: [type: :non_neg_integer, default: 0, doc: "Seed of the starts and the samples."]
  ]

  @moduledoc """
  A pole on a cart, with the constants of Gymnasium's CartPole-v1: at most 500 steps, each with a reward of 1.

  A frame is `{x, theta}`: the position and the angle, each divided by the value at which an episode ends. The
  velocities are hidden, so a policy needs memory to keep the pole up. With `velocities: true` a frame is
  `{x, x', theta, theta'}`, with velocities divided by 2. The action is 0 (push to the left) or 1 (to the right).

      {:ok, games} = Sconce.Env.CartPole.demonstrations(games: 100)
      {:ok, corpus} = Sconce.Env.CartPole.corpus(games, into: "corpus")
      {:ok, run} = Sconce.Trainer.start_link(corpus: corpus, out: "run", backbone: :gru)
      {:ok, _report} = Sconce.Trainer.await(run)
      {:ok, policy} = Sconce.Policy.load("run/best.safetensors")
      {:ok, %{mean: mean}} = Sconce.Env.CartPole.play(policy)
  """

  @typedoc "A game: `x` (f32, little-endian) holds the frames, `labels` (u16) the expert's action on each frame."
  @type game :: {x :: binary, labels :: binary}

  @typedoc "Results of `play/2`."
  @type played :: %{
          returns: [float],
          mean: float,
          decisions: pos_integer,
          median_us: float,
          p99_us: float
        }

  @doc """
  Returns games of an expert that sees the full state, for `corpus/2`.

  The error is of kind `:out_of_range` if hardly any game reaches `:min_steps`.

  #{Options.docs(@demonstrations)}

      iex> {:ok, [{x, labels}]} = Sconce.Env.CartPole.demonstrations(games: 1, steps: 100, perturb: 0)
      iex> {byte_size(x), byte_size(labels)}
      {800, 200}
  """
  @spec demonstrations(keyword) :: {:ok, [game]} | {:error, Error.t()}
  def demonstrations(opts \\ []) do
    options = opts |> Options.validate!(@demonstrations) |> Map.new()
    Call.run(&Native.cartpole_demonstrations(&1, options))
  end

  @doc """
  Makes a corpus of games from `demonstrations/1`, with one head, `action`.

  Options: `:into`, the folder of the corpus, and `:velocities`, which must have the value that the games were made
  with.

      iex> folder = Path.join(System.tmp_dir!(), "cart_pole-#{System.unique_integer([:positive])}")
      iex> {:ok, games} = Sconce.Env.CartPole.demonstrations(games: 2, steps: 80, perturb: 0)
      iex> {:ok, corpus} = Sconce.Env.CartPole.corpus(games, into: folder)
      iex> corpus
      #Sconce.Corpus<vector 2 · 2 games · 160 frames · 3.0 KB>
      iex> {:ok, _removed} = File.rm_rf(folder)
  """
  @spec corpus([game], keyword) :: {:ok, Corpus.t()} | {:error, Error.t()}
  def corpus(games, opts) do
    schema = [
      into: [type: :path, required: true],
      velocities: [type: :boolean, default: false]
    ]

    opts = Options.validate!(opts, schema)
    size = if opts[:velocities], do: 4, else: 2
    Corpus.build({:vector, size}, games, into: opts[:into], heads: [action: {:categorical, 2}])
  end

  @doc """
  Plays episodes with a policy, on the native side. The memory is empty at the start of each episode, as in
  training windows, and is carried to the end of the episode.

  Returns the `returns` of the episodes and their `mean` (at most 500), the number of `decisions`, and the time of
  one decision as `median_us` and `p99_us`. A policy with another embedding or other heads is an error of kind
  `:mismatch`.

  #{Options.docs(@play)}

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [action: {:categorical, 2}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, played} = Sconce.Env.CartPole.play(policy, episodes: 3)
      iex> {length(played.returns), Enum.sum(played.returns) == played.decisions}
      {3, true}
  """
  @spec play(Policy.t(), keyword) :: {:ok, played} | {:error, Error.t()}
  def play(%Policy{ref: policy}, opts \\ []) do
    {velocities, options} = opts |> Options.validate!(@play) |> Keyword.pop!(:velocities)
    Call.run(&Native.cartpole_play(&1, policy, velocities, Map.new(options)))
  end
end
