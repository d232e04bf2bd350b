defmodule HRRBehaviour do
  @moduledoc false
  # Descriptors of behaviour: MAP-Elites on CartPole (100 steps at most) with three kinds
  # of measures for an archive of 20 x 20, and 5,000 evaluations each:
  #
  #   * `final`: position and angle at the end;
  #   * `means`: mean position and the share of pushes to the right;
  #   * `HRR`: the course as a holographic sequence. Ten states of an episode become vectors of 512 numbers, `x^(position) (*)
  #     a^(angle)`, powers of two unitary atoms; the sequence binds each to its place and adds them. The measures are its
  #     cosines with two more atoms, and their ranges are those of the first generation.
  #
  # The elites of each archive are then counted in three grids of 20 x 20: `final` and `means` with the measures above, and
  # `course`, by the mean and the standard deviation of the position. `evaluated` counts all individuals in `course`, not only
  # elites. `best` is the highest return, and `at 100` counts elites that stay up for all 100 steps. Figures are means over
  # the seeds; `us` is the time of the measures of one individual, while all seeds run at once.

  alias Sconce.{Env, HRR}
  alias Sconce.Evolve.{Archive, Population}

  @batch 100
  @generations 50
  @steps 100
  @side 20
  @dimension 512
  @parts 10
  @reach %{
    final: [{-2.4, 2.4}, {-0.25, 0.25}],
    means: [{-1.2, 1.2}, {0.0, 1.0}],
    course: [{-1.2, 1.2}, {0.0, 1.0}]
  }

  def main(seeds) do
    IO.puts(line(["measures", "final", "means", "course", "evaluated", "best", "at 100", "us"]))

    kinds = [:final, :means, :hrr]
    all = for kind <- kinds, seed <- seeds, do: {kind, seed}
    own = [timeout: :infinity, max_concurrency: length(all)]
    runs = Task.async_stream(all, fn {kind, seed} -> {kind, run(kind, seed)} end, own)
    runs = for {:ok, run} <- runs, do: run

    for kind <- kinds do
      rows = for {^kind, row} <- runs, do: row
      mean = fn key -> Enum.sum(for row <- rows, do: row[key]) / length(rows) end
      keys = [:final, :means, :course, :evaluated, :best, :full]
      figures = for key <- keys, do: :erlang.float_to_binary(mean.(key) / 1, decimals: 1)
      us = :erlang.float_to_binary(mean.(:us) / 1, decimals: 1)
      IO.puts(line([if(kind == :hrr, do: "HRR", else: "#{kind}")] ++ figures ++ [us]))
    end
  end

  defp line(columns) do
    columns = for text <- columns, do: String.pad_trailing(text, 10)
    String.trim_trailing(Enum.join(columns, " "))
  end

  defp run(kind, seed) do
    spec = Population.spec(:cart_pole, hidden_sizes: [8])
    {:ok, many} = Population.new(spec, count: @batch, seed: seed, sigma: 1.0, as: :binaries)
    first = played(many, seed)
    {measures, us} = measured(first, kind)
    ranges = ranges(kind, measures)

    {:ok, archive} =
      Archive.new(
        cells: {:grid, [@side, @side]},
        ranges: ranges,
        solution_size: many.size,
        as: :binaries
      )

    games = store(archive, many, first, measures)

    {games, times} =
      Enum.reduce(2..@generations, {games, [us]}, fn generation, {games, times} ->
        opts = [from: archive, iso_sigma: 0.1, seed: seed, generation: generation]
        :ok = Population.vary(many, opts)
        played = played(many, seed)
        {measures, us} = measured(played, kind)
        {Map.merge(games, store(archive, many, played, measures)), [us | times]}
      end)

    evaluated = MapSet.new(games, fn {_solution, game} -> cell(:course, game) end)

    figures(archive, many, games)
    |> Map.merge(%{evaluated: MapSet.size(evaluated), us: Enum.sum(times) / length(times)})
  end

  defp ranges(:hrr, measures) do
    for at <- 0..1 do
      {low, high} = measures |> Enum.map(&Enum.at(&1, at)) |> Enum.min_max()
      {low, high + 1.0e-6}
    end
  end

  defp ranges(kind, _measures), do: @reach[kind]

  # Adds a generation, and returns its games by their solutions.
  defp store(archive, many, games, measures) do
    {:ok, solutions} = Population.read(many)
    {:ok, _added} = Archive.add(archive, solutions, Enum.map(games, &length(&1.states)), measures)
    Map.new(Enum.zip(parts(solutions.data, 4 * many.size), games))
  end

  defp parts(data, bytes), do: for(<<part::binary-size(bytes) <- data>>, do: part)

  defp figures(archive, many, games) do
    {:ok, elites} = Archive.elites(archive)
    games = for solution <- parts(elites.solutions.data, 4 * many.size), do: games[solution]
    returns = for game <- games, do: length(game.states)

    counts =
      for kind <- [:final, :means, :course],
          into: %{},
          do: {kind, MapSet.size(MapSet.new(games, &cell(kind, &1)))}

    Map.merge(counts, %{best: Enum.max(returns), full: Enum.count(returns, &(&1 == @steps))})
  end

  defp cell(kind, game) do
    for {value, {low, high}} <- Enum.zip(plain(kind, game), @reach[kind]) do
      trunc((value - low) / (high - low) * @side) |> max(0) |> min(@side - 1)
    end
  end

  defp plain(:final, %{states: [[x, _, angle, _] | _]}), do: [x, angle]

  defp plain(:means, %{states: states, pushes: pushes}),
    do: [mean(for [x | _] <- states, do: x), mean(pushes)]

  defp plain(:course, %{states: states}) do
    places = for [x | _] <- states, do: x
    middle = mean(places)
    [middle, :math.sqrt(mean(for x <- places, do: (x - middle) * (x - middle)))]
  end

  defp mean(values), do: Enum.sum(values) / length(values)

  # The measures of all games, and microseconds for each.
  defp measured(games, :hrr) do
    {us, rows} = :timer.tc(fn -> sequences(games) end)
    {rows, us / length(games)}
  end

  defp measured(games, kind) do
    {us, rows} = :timer.tc(fn -> for game <- games, do: plain(kind, game) end)
    {rows, us / length(games)}
  end

  defp sequences(games) do
    states =
      for %{states: states} <- games,
          states = List.to_tuple(states),
          last = tuple_size(states) - 1,
          part <- 1..@parts,
          # The last state comes first.
          do: elem(states, last - min(div(part * @steps, @parts) - 1, last))

    {:ok, [axis_x, axis_a, place, _]} = axes()
    {:ok, xs} = HRR.power(axis_x, for([x | _] <- states, do: 2 * x))
    {:ok, angles} = HRR.power(axis_a, for([_, _, angle, _] <- states, do: 10 * angle))
    {:ok, items} = HRR.bind(xs, angles)
    {:ok, sums} = HRR.sequence(items, place, length: @parts)
    {:ok, [_, _, _, probes]} = axes()
    {:ok, cosines} = HRR.similarity(sums, probes)
    cosines
  end

  defp axes do
    {:ok, atoms} = HRR.atoms(5, @dimension, seed: 3)
    parts = for at <- [[0], [1], [2], [3, 4]], {:ok, part} <- [HRR.take(atoms, at)], do: part
    {:ok, parts}
  end

  # An episode of each individual: its states, the last one first, and its pushes.
  defp played(many, seed) do
    # The start of an individual depends on its place in the population alone.
    {:ok, env} = Env.new(:cart_pole, count: many.count, seed: seed)
    {:ok, seen} = Env.read(env, :observation)
    games = List.duplicate(%{states: [], pushes: [], over: false}, many.count)
    steps(many, env, seen, games, @steps)
  end

  defp steps(_many, _env, _seen, games, 0), do: games

  defp steps(many, env, seen, games, left) do
    shape = {many.count, many.inputs}
    {:ok, logits} = Population.forward(many, %{data: seen, shape: shape, type: {:f, 32}})

    pushes =
      for <<a::float-32-little, b::float-32-little <- logits.data>>, do: if(b > a, do: 1, else: 0)

    {:ok, step} = Env.step(env, pushes)
    ended = MapSet.new(step.ended)
    states = for <<row::binary-size(16) <- seen>>, do: for(<<v::float-32-little <- row>>, do: v)

    games =
      for {{{game, state}, push}, at} <-
            games |> Enum.zip(states) |> Enum.zip(pushes) |> Enum.with_index() do
        if game.over,
          do: game,
          else: %{
            states: [state | game.states],
            pushes: [push | game.pushes],
            over: MapSet.member?(ended, at)
          }
      end

    if Enum.all?(games, & &1.over),
      do: games,
      else: steps(many, env, step.observation, games, left - 1)
  end
end
