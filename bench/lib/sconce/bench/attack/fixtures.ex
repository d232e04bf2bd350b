defmodule Sconce.Bench.Attack.Fixtures do
  @moduledoc false
  # Small corpora, runs and policies to attack.

  alias Sconce.{Corpus, Policy, Trainer}

  @heads [go: {:categorical, 2}]
  @tiny [backbone: :mlp, hidden_sizes: [24]]
  @steps [batch_size: 4, window_size: 10, loss: :plain, evaluate: false, steps: 2]

  @doc "Builds a corpus of vectors in the folder `corpus` of `dir`."
  def corpus!(dir, games \\ 8, frames \\ 100, heads \\ @heads) do
    into = Path.join(dir, "corpus")
    classes = length(heads)
    x = List.duplicate([1.0, -1.0], frames)
    labels = List.duplicate(List.duplicate(1, classes), frames)
    made = for _game <- 1..games, do: {x, labels}
    {:ok, corpus} = Corpus.build({:vector, 2}, made, into: into, heads: heads)
    corpus.dir
  end

  @doc "Options of a short run."
  def training(corpus, out), do: [corpus: corpus, out: out] ++ @tiny ++ @steps

  @doc "Runs a run to its end."
  def run!(corpus, out, opts \\ []) do
    {:ok, run} = corpus |> training(out) |> Keyword.merge(opts) |> Trainer.start_link()
    answer = Trainer.await(run, 60_000)
    GenServer.stop(run)
    answer
  end

  @doc "Starts a run with these options, and returns its answer. The process is then stopped."
  def outcome(opts, ms \\ 5_000) do
    Process.flag(:trap_exit, true)

    with {:ok, run} <- Trainer.start_link(opts) do
      answer = Trainer.await(run, ms)
      Process.exit(run, :shutdown)
      answer
    end
  end

  @doc "A policy with two input numbers and one head."
  def policy!(opts \\ []) do
    tiny = if opts[:backbone], do: [], else: @tiny
    spec = Keyword.merge([embedding: {:vector, 2}, heads: @heads] ++ tiny, opts)
    {:ok, policy} = Policy.init(spec, seed: 1)
    policy
  end

  @doc "Saves such a policy. Returns the path of the checkpoint."
  def checkpoint!(dir) do
    path = Path.join(dir, "policy.safetensors")
    :ok = Policy.save(policy!(), path)
    path
  end
end
