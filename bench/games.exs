defmodule Games do
  @moduledoc false
  # Real games for benchmarks.

  @doc "Imports the replays in `SCONCE_REPLAYS` into a corpus in the folder `dir`."
  def corpus!(dir) do
    replays = System.get_env("SCONCE_REPLAYS") || raise "SCONCE_REPLAYS is not set"
    into = Path.join(dir, "corpus")
    {:ok, corpus} = Sconce.Corpus.import([replays], into: into, progress: false)
    corpus
  end
end
