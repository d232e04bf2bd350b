defmodule Sconce.Evolve do
  @moduledoc """
  Evolution without gradients: archives of many different good solutions, strategies that search for one, and networks
  whose connections evolve.

  | module | holds | source |
  |---|---|---|
  | `Sconce.Evolve.Archive` | the best solution of each cell of a space of measures | MAP-Elites, Mouret & Clune 2015 |
  | `Sconce.Evolve.Strategy` | a distribution of solutions that moves towards higher fitness | CMA-ES, Hansen 2016, and others |
  | `Sconce.Evolve.Population` | many small policies, which play whole episodes in one call | |
  | `Sconce.Evolve.Search` | both together with environments, in a native loop | CMA-ME, Fontaine et al. 2020, and others |
  | `Sconce.Evolve.Run` | a long search with events and saves, as in `mix sconce.evolve` | |
  | `Sconce.Evolve.Island` | a search that exchanges elites with others, also of other nodes | |
  | `Sconce.Evolve.Neat` | networks with weights and connections of their own | NEAT, Stanley & Miikkulainen 2002 |

  A solution is a vector of 32-bit floats, such as the weights of a small policy. Its objective or fitness is a number; a
  higher one is better. Measures say what the solution does, such as how far it jumps.

  Where the app evaluates solutions, an archive gives variations of its elites, and takes them back with their objectives and
  measures:

      iex> {:ok, archive} = Sconce.Evolve.Archive.new(cells: {:grid, [10, 10]}, ranges: [{-1, 1}, {-1, 1}], solution_size: 2)
      iex> add = fn solutions ->
      ...>   objectives = for [x, y] <- solutions, do: -(x * x + y * y)
      ...>   Sconce.Evolve.Archive.add(archive, solutions, objectives, solutions)
      ...> end
      iex> {:ok, _added} = add.([[0.1, 0.2], [-0.3, 0.1]])
      iex> for generation <- 1..60 do
      ...>   {:ok, children} = Sconce.Evolve.Archive.vary(archive, 100, iso_sigma: 0.1, generation: generation)
      ...>   {:ok, _added} = add.(children)
      ...> end
      iex> {:ok, stats} = Sconce.Evolve.Archive.stats(archive)
      iex> stats.coverage
      1.0

  Random numbers depend on seeds and generations. Results do not depend on the number of threads, and an archive or a
  strategy that is saved and loaded goes on with the same bits.
  """
end
