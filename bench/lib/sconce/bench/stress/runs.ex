defmodule Sconce.Bench.Stress.Runs do
  @moduledoc false
  # Training runs concurrent with the load, one at a time. The runs finish, are stopped, are polled, get
  # unknown messages, and lose their owners.

  alias Sconce.Bench.{Frames, Stress.Stray}
  alias Sconce.{Corpus, Error, Trainer}

  @ends ~w(finish stop owner)a
  # A run that has not ended in this time counts as hung.
  @hung_ms 10_000
  @polls 20
  @pause_ms 100
  @options [backbone: :mlp, hidden_sizes: [16], batch_size: 4, window_size: 10, loss: :plain] ++
             [evaluate: false, val_split: 0.25]

  @doc "Allowed outcomes of a run, for the call `:train`."
  def kinds, do: ~w(ok cancelled)a

  @doc "Starts runs until `stress.stop` is set. A run that ends in another way raises."
  def keep(stress) do
    :rand.seed(:exsss)

    Frames.scratched(fn dir ->
      corpus = corpus!(dir)
      next(stress, corpus, dir)
    end)
  end

  defp corpus!(dir) do
    games = for _game <- 1..4, do: {List.duplicate([1.0, -1.0], 40), List.duplicate(1, 40)}
    into = Path.join(dir, "corpus")
    {:ok, corpus} = Corpus.build({:vector, 2}, games, into: into, heads: [go: {:categorical, 2}])
    corpus.dir
  end

  defp next(stress, corpus, dir) do
    if :atomics.get(stress.stop, 1) == 0 do
      out = Path.join(dir, "run")
      kind = one(Enum.random(@ends), [corpus: corpus, out: out] ++ @options)
      :counters.add(stress.outcomes[{:near, :train, kind}], 1, 1)
      File.rm_rf!(out)
      Process.sleep(:rand.uniform(@pause_ms))
      next(stress, corpus, dir)
    end
  end

  defp one(how, options) do
    test = self()
    steps = if how == :finish, do: 20, else: 100_000_000
    {owner, monitor} = spawn_monitor(fn -> own([steps: steps] ++ options, test) end)
    run = receive do: ({:run, ^owner, run} -> run)
    gone = Process.monitor(run)
    Stray.send_all(run)
    for _ <- 1..@polls, do: poll!(run)
    kind = ended(how, run, owner)
    Process.exit(owner, :shutdown)
    down!(gone)
    down!(monitor)
    kind
  end

  defp own(options, test) do
    {:ok, run} = Trainer.start_link(options)
    send(test, {:run, self(), run})
    Process.sleep(:infinity)
  end

  defp poll!(run) do
    case Trainer.await(run, 0) do
      {:error, %Error{kind: :deadline}} -> :ok
      {:ok, _report} -> :ok
    end
  end

  defp ended(:finish, run, _owner), do: awaited!(run)

  defp ended(:stop, run, _owner) do
    :ok = Trainer.stop(run)
    awaited!(run)
  end

  # When the owner ends, a waiting caller still gets an answer.
  defp ended(:owner, run, owner) do
    Process.exit(owner, :kill)
    awaited!(run)
  end

  defp awaited!(run) do
    case Trainer.await(run, @hung_ms) do
      {:ok, _report} -> :ok
      {:error, %Error{kind: :cancelled}} -> :cancelled
      other -> raise "a run ended with #{inspect(other)}"
    end
  end

  defp down!(monitor) do
    receive do
      {:DOWN, ^monitor, _, _, _} -> :ok
    after
      @hung_ms -> raise "a run continues without its owner"
    end
  end
end
