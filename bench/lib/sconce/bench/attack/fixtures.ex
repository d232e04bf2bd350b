defmodule Sconce.Bench.Attack.Fixtures do
  @moduledoc false
  # Small corpora, runs and policies that are attacked.

  alias Sconce.{Corpus, Policy, Trainer}

  @heads [go: {:categorical, 2}]
  @tiny [backbone: :mlp, hidden_sizes: [24]]
  @steps [batch_size: 4, window_size: 10, loss: :plain, evaluate: false, steps: 2]

  @doc "A corpus of vectors in the folder `corpus` of `dir`."
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

  @doc "A run to its end, in its folder."
  def run!(corpus, out, opts \\ []) do
    {:ok, run} = corpus |> training(out) |> Keyword.merge(opts) |> Trainer.start_link()
    answer = Trainer.await(run, 60_000)
    GenServer.stop(run)
    answer
  end

  @doc "What a run answers that is started with these options; the process is stopped then."
  def outcome(opts, ms \\ 5_000) do
    Process.flag(:trap_exit, true)

    with {:ok, run} <- Trainer.start_link(opts) do
      answer = Trainer.await(run, ms)
      Process.exit(run, :shutdown)
      answer
    end
  end

  @doc "A policy of two numbers and one head."
  def policy!(opts \\ []) do
    tiny = if opts[:backbone], do: [], else: @tiny
    spec = Keyword.merge([embedding: {:vector, 2}, heads: @heads] ++ tiny, opts)
    {:ok, policy} = Policy.init(spec, seed: 1)
    policy
  end

  @doc "A checkpoint of that, by its path."
  def checkpoint!(dir) do
    path = Path.join(dir, "policy.safetensors")
    :ok = Policy.save(policy!(), path)
    path
  end
end
