# Measures for `evolve.py`, in turns with the peers: reads the name of a case from a line of its input, does the work for about
# the given milliseconds, and answers with `=> CASE BEST MEDIAN CHECK`: microseconds of a call.

defmodule EvolveTurns do
  alias Sconce.Evolve.{Archive, Neat, Population}
  alias Sconce.HRR

  @individuals 4800
  @dimension 8192
  @spec_867 Sconce.Bench.Evolve.spec_867()

  def main([]) do
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    IO.puts("=> ready")
    turns(%{})
  end

  defp turns(made) do
    case IO.gets("") do
      :eof ->
        :ok

      line ->
        [name, ms] = String.split(line)
        made = Map.put_new_lazy(made, name, fn -> make(name) end)
        {best, median, check} = timed(made[name], String.to_integer(ms))
        IO.puts("=> #{name} #{best} #{median} #{check}")
        turns(made)
    end
  end

  defp timed(work, ms) do
    until = System.monotonic_time(:millisecond) + ms
    {times, check} = calls(work, until, [])
    {Enum.min(times), Enum.at(Enum.sort(times), div(length(times), 2)), check}
  end

  defp calls(work, until, times) do
    start = System.monotonic_time(:nanosecond)
    check = work.()
    times = [(System.monotonic_time(:nanosecond) - start) / 1000 | times]
    # Drops the result, as the peers' reference counts do.
    :erlang.garbage_collect()

    if length(times) >= 2 and System.monotonic_time(:millisecond) >= until,
      do: {times, check},
      else: calls(work, until, times)
  end

  defp make("forward_" <> storage) do
    storage = String.to_existing_atom(storage)
    {:ok, many} = Population.new(@spec_867, count: @individuals, storage: storage, as: :binaries)

    seen = %{
      data: for(i <- 1..8, into: <<>>, do: <<i / 10::float-32-little>>),
      shape: {8},
      type: {:f, 32}
    }

    fn ->
      {:ok, %{shape: {@individuals, 3}}} = Population.forward(many, seen)
      0
    end
  end

  # The answer is the mean return, which a peer compares with its own.
  defp make("pendulum") do
    spec = Population.spec(:pendulum, hidden_sizes: [32, 16])
    {:ok, many} = Population.new(spec, count: @individuals, as: :binaries)

    fn ->
      {:ok, played} = Population.episodes(many, :pendulum, same_starts: false)
      returns = for <<v::float-64-little <- played.returns.data>>, do: v
      Enum.sum(returns) / length(returns)
    end
  end

  defp make("archive_" <> side) do
    side = String.to_integer(side)
    cells = [cells: {:grid, [side, side]}, ranges: [{0, 1}, {0, 1}], solution_size: 867]
    {:ok, archive} = Archive.new(cells ++ [as: :binaries])
    :rand.seed(:exsss, 1)
    f64 = fn n -> for _ <- 1..n, into: <<>>, do: <<:rand.uniform()::float-64-little>> end
    row = for i <- 1..867, into: <<>>, do: <<i / 867::float-32-little>>
    solutions = tensor(String.duplicate(row, @individuals), {@individuals, 867}, {:f, 32})

    batches =
      for _ <- 1..16 do
        {tensor(f64.(@individuals), {@individuals}, {:f, 64}),
         tensor(f64.(2 * @individuals), {@individuals, 2}, {:f, 64})}
      end

    counter = :counters.new(1, [])

    fn ->
      :counters.add(counter, 1, 1)
      {objectives, measures} = Enum.at(batches, rem(:counters.get(counter, 1), 16))
      {:ok, _added} = Archive.add(archive, solutions, objectives, measures)
      0
    end
  end

  defp make("neat") do
    patterns = [[0, 0], [0, 1], [1, 0], [1, 1]]

    fn ->
      {:ok, neat} = Neat.new(inputs: 2, outputs: 1, population: 150, seed: 1)
      goal = [generations: 100, stop_at: 5.0]
      {:ok, %{generations: 100}} = Neat.fit(neat, patterns, [[0], [1], [1], [0]], goal)
      0
    end
  end

  defp make("bind_" <> how) do
    [count, domain] = String.split(how, "_")
    domain = String.to_existing_atom(domain)
    [a, b] = for seed <- [1, 2], do: atoms(String.to_integer(count), seed, domain)

    fn ->
      {:ok, bound} = HRR.bind(a, b)
      {:ok, _bound} = if domain == :time, do: HRR.in_domain(bound, :time), else: {:ok, bound}
      0
    end
  end

  defp make("similarity_" <> kind) do
    [query, items] = for {n, seed} <- [{1, 3}, {1000, 4}], do: atoms(n, seed, :time)
    {:ok, codes} = HRR.quantise(items)
    memory = if kind == "int8", do: codes, else: items

    fn ->
      {:ok, %{shape: {1, 1000}}} = HRR.similarity(query, memory)
      0
    end
  end

  defp atoms(count, seed, domain) do
    {:ok, atoms} = HRR.atoms(count, @dimension, seed: seed, as: :binaries)
    {:ok, atoms} = HRR.in_domain(atoms, domain)
    atoms
  end

  defp tensor(data, shape, type), do: %{data: data, shape: shape, type: type}
end

EvolveTurns.main(System.argv())
