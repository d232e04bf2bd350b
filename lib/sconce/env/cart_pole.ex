defmodule Sconce.Env.CartPole do
  alias Sconce.{Corpus, Error, Native, Options, Policy}
  alias Sconce.Native.Call

  @demonstrations [
    games: [type: :pos_integer, default: 100, doc: "Games to play."],
    steps: [type: {:in, 1..500}, default: 500, doc: "Most steps of a game."],
    min_steps: [type: {:in, 1..500}, default: 60, doc: "A shorter game is left out."],
    perturb: [
      type: :float,
      default: 0.1,
      min: 0,
      max: 1,
      doc: "Share of random actions; the label stays the expert's."
    ],
    velocities: [type: :boolean, default: false, doc: "Whether the frames show them."],
    seed: [type: :non_neg_integer, default: 0, doc: "Of starts and random actions."]
  ]

  @play [
    episodes: [type: {:in, 1..1000}, default: 20, doc: "Episodes, one after the other."],
    velocities: [type: :boolean, default: false, doc: "Whether the policy is shown them."],
    deterministic: [type: :boolean, default: true, doc: "The likeliest action, or a sampled one."],
    seed: [type: :non_neg_integer, default: 0, doc: "Of starts and samples."]
  ]

  @moduledoc """
  A pole on a cart, with the constants of Gymnasium's CartPole-v1: 500 steps at most, each worth 1.

  A frame is `{x, theta}`, position and angle as shares of where an episode ends, so whoever is to
  keep the pole up has to remember; with `velocities: true` it is `{x, x', theta, theta'}`, and the
  speeds are in units of 2. The action is 0 (to the left) or 1.

      {:ok, games} = Sconce.Env.CartPole.demonstrations(games: 100)
      {:ok, corpus} = Sconce.Env.CartPole.corpus(games, into: "corpus")
      {:ok, run} = Sconce.Trainer.start_link(corpus: corpus, out: "run", backbone: :gru)
      {:ok, _report} = Sconce.Trainer.await(run)
      {:ok, policy} = Sconce.Policy.load("run/best.safetensors")
      {:ok, %{mean: mean}} = Sconce.Env.CartPole.play(policy)
  """

  @typedoc "`x` (f32, little-endian) holds the frames, `labels` (u16) the expert's action on each."
  @type game :: {x :: binary, labels :: binary}

  @type played :: %{
          returns: [float],
          mean: float,
          decisions: pos_integer,
          median_us: float,
          p99_us: float
        }

  @doc """
  Games of an expert that sees the full state, for `corpus/2`.

  Of kind `:out_of_range` where hardly a game grows as long as `:min_steps`.

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
  Makes a corpus of such games, with one head, `action`. Options: `:into`, its folder, and
  `:velocities` as the games were made with.
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
  Lets a policy play, all of it on the native side: its memory empty at the beginning of each
  episode, as in the windows it learned from, and carried to its end.

  Returns the `returns` of the episodes and their `mean` (500 is the most), the number of `decisions`
  and what one took, `median_us` and `p99_us`. Of kind `:mismatch` for a policy of another world.

  #{Options.docs(@play)}
  """
  @spec play(Policy.t(), keyword) :: {:ok, played} | {:error, Error.t()}
  def play(%Policy{ref: policy}, opts \\ []) do
    {velocities, options} = opts |> Options.validate!(@play) |> Keyword.pop!(:velocities)
    Call.run(&Native.cartpole_play(&1, policy, velocities, Map.new(options)))
  end
end
