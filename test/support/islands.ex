defmodule Sconce.Test.Islands do
  @moduledoc "Searches in CartPole for tests of islands, also on other nodes."

  alias Sconce.Evolve.{Archive, Island, Population, Search}

  @doc "An empty archive."
  def archive(spec) do
    {:ok, archive} =
      Archive.new(
        cells: {:grid, [10, 10]},
        ranges: [{-2.4, 2.4}, {0, 1}],
        solution_size: Search.size(spec),
        as: :binaries
      )

    archive
  end

  @doc "A search with an archive of its own."
  def search(seed) do
    spec = Population.spec(:cart_pole, hidden_sizes: [4])
    own = [archive: archive(spec), batch: 64, measures: [{:final, 0}, {:input, 0}], seed: seed]
    {:ok, search} = Search.new(spec, :cart_pole, own)
    search
  end

  @doc "Starts an island that outlives its caller."
  def start(group, seed) do
    opts = %{group: group, every: 5, migrants: 16, generations: nil, seed: seed}
    {:ok, island} = GenServer.start(Island, {search(seed), opts})
    island
  end
end
