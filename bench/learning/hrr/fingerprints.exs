defmodule HRRFingerprints do
  @moduledoc false
  # Fingerprints of NEAT's genomes. The fingerprint of a genome is the sum over its enabled connections of `weight * (source
  # (*) target)`, with a unitary atom for each node as source and another as target; a distance is 1 minus the cosine. It is
  # compared with NEAT's distance (with and without its weights' share) on populations of 150 that evolve on XOR:
  #
  #   * `rank_correlation` (Spearman) of both distances over all pairs of genomes, and `structure`, of the fingerprint with
  #     NEAT's distance without the term of weights;
  #   * `nearest`: of the tenth of all pairs that are nearest by NEAT's distance, the share that is in the nearest tenth by
  #     the fingerprint. A random order has `by_chance`;
  #   * the time of all 11,175 pairs: NEAT's distance by one call for each pair from Elixir (`NEAT_pairs_ms`), and
  #     fingerprints with their cosines (`HRR_ms`, the best of five). `species_us` is the native time in which `Neat.fit/4`
  #     assigns the species of a generation, which needs no more than the distances to the representatives.
  #
  # Species by fingerprints inside of NEAT would be a change of the native part; it is not measured here.

  alias Sconce.Evolve.Neat
  alias Sconce.HRR

  @dimension 1024
  @generations [10, 30, 100]
  @patterns [[0, 0], [0, 1], [1, 0], [1, 1]]
  @targets [[0], [1], [1], [0]]

  def main(seeds) do
    IO.puts(
      line(
        ~w(generation connections rank_correlation structure nearest by_chance NEAT_pairs_ms HRR_ms species_us)
      )
    )

    for generation <- @generations do
      rows = for seed <- seeds, do: run(seed, generation)
      mean = fn key -> Enum.sum(for row <- rows, do: row[key]) / length(rows) end

      figures =
        for {key, decimals} <- [
              connections: 1,
              both: 3,
              structure: 3,
              near: 3,
              chance: 3,
              neat_ms: 1,
              hrr_ms: 2,
              species_us: 1
            ],
            do: :erlang.float_to_binary(mean.(key) / 1, decimals: decimals)

      IO.puts(line(["#{generation}" | figures]))
    end
  end

  defp line(columns) do
    widths = [11, 12, 18, 10, 8, 10, 14, 8, 10]
    columns = for {text, width} <- Enum.zip(columns, widths), do: String.pad_trailing(text, width)
    String.trim_trailing(Enum.join(columns, " "))
  end

  defp run(seed, generation) do
    {:ok, neat} = Neat.new(inputs: 2, outputs: 1, population: 150, seed: seed)

    {:ok, fit} = Neat.fit(neat, @patterns, @targets, generations: generation, stop_at: 100.0)

    genomes = for i <- 0..149, do: value!(Neat.genome(neat, i))
    pairs = for i <- 0..148, j <- (i + 1)..149, do: {i, j}
    all = List.to_tuple(genomes)

    distances = fn opts ->
      for {i, j} <- pairs, do: value!(Neat.distance(elem(all, i), elem(all, j), opts))
    end

    {us, both} = :timer.tc(fn -> distances.([]) end)
    structure = distances.(weights: 0)
    {hrr_us, cosines} = best_of(5, fn -> cosines(genomes) end)
    cosines = List.to_tuple(for row <- cosines, do: List.to_tuple(row))
    hrr = for {i, j} <- pairs, do: 1 - elem(elem(cosines, i), j)
    connections = for genome <- genomes, do: length(genome.connections)

    %{
      connections: Enum.sum(connections) / 150,
      both: spearman(both, hrr),
      structure: spearman(structure, hrr),
      near: near(both, hrr),
      chance: 0.1,
      neat_ms: us / 1000,
      hrr_ms: hrr_us / 1000,
      species_us: 1.0e6 * fit.seconds.species / generation
    }
  end

  defp value!({:ok, value}), do: value

  defp best_of(count, work) do
    results = for _ <- 1..count, do: :timer.tc(work)
    Enum.min_by(results, &elem(&1, 0))
  end

  # The cosines of all fingerprints. Products of the atoms of all connections are one batch, and sums are made of groups
  # of one size: shorter genomes have connections of weight 0.
  defp cosines(genomes) do
    enabled = for genome <- genomes, do: Enum.filter(genome.connections, & &1.enabled)
    most = enabled |> Enum.map(&length/1) |> Enum.max() |> max(1)
    nodes = 1 + Enum.max(for links <- enabled, link <- links, do: max(link.source, link.target))
    filler = %{source: 0, target: 0, weight: 0.0}
    links = Enum.flat_map(enabled, &(&1 ++ List.duplicate(filler, most - length(&1))))
    {:ok, sources} = HRR.atoms(nodes, @dimension, seed: 1)
    {:ok, targets} = HRR.atoms(nodes, @dimension, seed: 2)
    # Equal connections of many genomes are bound once.
    kinds = Enum.uniq(for link <- links, do: {link.source, link.target})
    at = kinds |> Enum.with_index() |> Map.new()
    {:ok, from} = HRR.take(sources, for({source, _target} <- kinds, do: source))
    {:ok, to} = HRR.take(targets, for({_source, target} <- kinds, do: target))
    {:ok, atoms} = HRR.bind(from, to)
    sums = for links <- Enum.chunk_every(links, most), do: sum(atoms, at, links)
    {:ok, prints} = HRR.concat(sums)
    {:ok, cosines} = HRR.similarity(prints, prints)
    cosines
  end

  defp sum(atoms, at, links) do
    {:ok, taken} = HRR.take(atoms, for(link <- links, do: at[{link.source, link.target}]))
    weights = for link <- links, do: link.weight
    {:ok, sum} = HRR.superpose(taken, weights: weights)
    sum
  end

  # The tenth of all pairs that are nearest by one distance: the share that is also in the nearest tenth by the other.
  defp near(one, other) do
    count = div(length(one), 10)

    nearest = fn values ->
      values |> Enum.with_index() |> Enum.sort() |> Enum.take(count) |> MapSet.new(&elem(&1, 1))
    end

    MapSet.size(MapSet.intersection(nearest.(one), nearest.(other))) / count
  end

  defp spearman(one, other), do: correlation(ranks(one), ranks(other))

  # Equal values share the mean of their ranks.
  defp ranks(values) do
    values
    |> Enum.with_index()
    |> Enum.sort()
    |> Enum.with_index()
    |> Enum.chunk_by(fn {{value, _at}, _rank} -> value end)
    |> Enum.flat_map(fn group ->
      mean = Enum.sum(for {_pair, rank} <- group, do: rank) / length(group)
      for {{_value, at}, _rank} <- group, do: {at, mean}
    end)
    |> Enum.sort()
    |> Enum.map(&elem(&1, 1))
  end

  defp correlation(one, other) do
    n = length(one)
    {a, b} = {Enum.sum(one) / n, Enum.sum(other) / n}
    pairs = for {x, y} <- Enum.zip(one, other), do: {x - a, y - b}
    both = Enum.sum(for {x, y} <- pairs, do: x * y)

    both /
      :math.sqrt(
        Enum.sum(for {x, _} <- pairs, do: x * x) * Enum.sum(for {_, y} <- pairs, do: y * y)
      )
  end
end
