defmodule Sconce.Bench.Evolve do
  @moduledoc false
  # The cases of `mix bench evolve`: populations, archives, searches, holographic vectors and billiards.

  alias Sconce.Bench.{Case, Machine}
  alias Sconce.Evolve.{Archive, Neat, Population, Search}
  alias Sconce.{Env, Figures, HRR}

  @individuals 4800
  @spec_867 [
    embedding: {:vector, 8},
    backbone: :mlp,
    hidden_sizes: [32, 16],
    activation: :tanh,
    heads: [action: {:categorical, 3}],
    head_hidden_size: 0
  ]
  @dimension 8192

  @doc "The Spec of the policies with 867 numbers that peers have too."
  @spec spec_867() :: keyword
  def spec_867, do: @spec_867

  @doc "All cases, on all threads of this VM."
  @spec all(pos_integer) :: [Case.t()]
  def all(threads) do
    forwards(threads) ++
      variations(threads) ++
      episodes(threads) ++
      archives() ++ searches(threads) ++ neat() ++ vectors(threads) ++ shots(threads)
  end

  defp forwards(threads) do
    for storage <- [:f32, :bf16, :int8] do
      bench(
        "population",
        "forward of 867 numbers, #{storage}",
        @individuals,
        threads,
        fn budget ->
          population = population(storage)
          seen = for i <- 1..8, do: i / 10
          run = fn -> Population.forward(population, seen) end
          {us, {:ok, logits}} = Case.time(run, budget)

          logits.shape == {@individuals, 3} ||
            raise "logits of the shape #{inspect(logits.shape)}"

          finite!(logits.data)

          {us, @individuals, "M forwards/s",
           fn -> Machine.bytes(population.bytes, threads, "reading all numbers") end}
        end
      )
    end
  end

  defp variations(threads) do
    [
      bench("population", "variation of 867 numbers", @individuals, threads, fn budget ->
        population = population(:f32)
        {us, :ok} = Case.time(fn -> Population.vary(population, iso_sigma: 0.01) end, budget)
        {:ok, solutions} = Population.read(population, [0])
        finite!(solutions.data)
        # Each parent and each child is read and written in rows and in blocks.
        {us, @individuals, "M children/s",
         fn -> Machine.bytes(6 * population.bytes, threads, "copies of parents and children") end}
      end)
    ]
  end

  defp population(storage) do
    opts = [count: @individuals, storage: storage, as: :binaries]
    Machine.value!(Population.new(@spec_867, opts))
  end

  defp episodes(threads) do
    for name <- [:pendulum, :cart_pole] do
      text = "#{name}, 4 episodes of each"

      bench("episodes", text, @individuals, threads, fn budget ->
        spec = Population.spec(name, hidden_sizes: [32, 16])
        population = Machine.value!(Population.new(spec, count: @individuals, as: :binaries))
        run = fn -> Population.episodes(population, name, episodes: 4) end
        {us, {:ok, played}} = Case.time(run, budget, 3)
        finite64!(played.returns.data)
        # Individuals whose episodes end early leave their lanes idle.
        flops = 2 * population.size * played.decisions

        {us, played.decisions, "M decisions/s",
         fn -> Machine.flops(flops, threads, "#{Figures.grouped(played.decisions)} decisions") end}
      end)
    end
  end

  defp archives do
    for side <- [10, 100] do
      text = "10 numbers, #{side}x#{side}, 0.1 % win"

      bench("archive", text, @individuals, 1, fn budget ->
        cells = [cells: {:grid, [side, side]}, ranges: [{0, 1}, {0, 1}], solution_size: 10]
        # Thresholds stay, so the same candidates win in each call.
        bar = [learning_rate: 0.0, threshold_min: 0.999]
        archive = Machine.value!(Archive.new(cells ++ bar ++ [as: :binaries]))
        candidates = candidates(10)
        {us, {:ok, added}} = Case.time(fn -> add(archive, candidates) end, budget)
        won = Enum.count(:binary.bin_to_list(added.status.data), &(&1 > 0))
        won in 2..10 || raise "#{won} of #{@individuals} candidates have won"

        {us, @individuals, "M candidates/s",
         fn -> Machine.bytes(24 * @individuals, 1, "objectives and measures") end}
      end)
    end
  end

  defp candidates(size) do
    :rand.seed(:exsss, 1)
    numbers = fn n -> for _ <- 1..n, into: <<>>, do: <<:rand.uniform()::float-64-little>> end
    solutions = for _ <- 1..(size * @individuals), into: <<>>, do: <<0.5::float-32-little>>

    {%{data: solutions, shape: {@individuals, size}, type: {:f, 32}},
     %{data: numbers.(@individuals), shape: {@individuals}, type: {:f, 64}},
     %{data: numbers.(2 * @individuals), shape: {@individuals, 2}, type: {:f, 64}}}
  end

  defp add(archive, {solutions, objectives, measures}),
    do: Archive.add(archive, solutions, objectives, measures)

  defp searches(threads) do
    [
      bench("search", "a generation of cart_pole, 50x50", 1024, threads, fn budget ->
        spec = Population.spec(:cart_pole, hidden_sizes: [8])
        size = Search.size(spec)
        ranges = [{-2.4, 2.4}, {0, 1}]
        archive = [cells: {:grid, [50, 50]}, ranges: ranges, solution_size: size]
        archive = Machine.value!(Archive.new(archive))
        own = [archive: archive, batch: 1024, measures: [{:final, 0}, {:input, 0}]]
        search = Machine.value!(Search.new(spec, :cart_pole, own))
        {us, {:ok, progress}} = Case.time(fn -> Search.run(search, 1) end, budget, 3)
        progress.best > 100 || raise "the best return is #{progress.best}"
        flops = 2 * size * progress.decisions

        {us, 1024, "M evaluations/s",
         fn -> Machine.flops(flops, threads, "decisions of the last generation") end}
      end)
    ]
  end

  defp neat do
    [
      bench("neat", "100 generations of 150 on XOR", 150, 1, fn budget ->
        run = fn ->
          neat = Machine.value!(Neat.new(inputs: 2, outputs: 1, population: 150, seed: 1))
          patterns = [[0, 0], [0, 1], [1, 0], [1, 1]]
          goal = [generations: 100, stop_at: 5.0]
          Neat.fit(neat, patterns, [[0], [1], [1], [0]], goal)
        end

        {us, {:ok, fit}} = Case.time(run, budget, 3)
        fit.generations == 100 || raise "#{fit.generations} generations"
        {us, 100, "k generations/s", fn -> {nil, "no bound is known"} end}
      end)
    ]
  end

  defp vectors(threads) do
    [
      bench("hrr", "bind, time to time", 256, threads, fn budget ->
        [a, b] = for seed <- [1, 2], do: atoms(256, seed, :time)
        run = fn -> with {:ok, bound} <- HRR.bind(a, b), do: HRR.in_domain(bound, :time) end
        {us, {:ok, bound}} = Case.time(run, budget)
        finite!(Machine.value!(HRR.to_tensor(bound)).data)

        {us, 256, "k/s",
         fn ->
           Machine.bytes(3 * 4 * @dimension * 256, threads, "two vectors and their product")
         end}
      end),
      bench("hrr", "bind, spectra", 256, threads, fn budget ->
        [a, b] = for seed <- [1, 2], do: atoms(256, seed, :spectrum)
        {us, {:ok, bound}} = Case.time(fn -> HRR.bind(a, b) end, budget)
        finite!(Machine.value!(HRR.to_tensor(bound)).data)

        {us, 256, "k/s",
         fn ->
           Machine.bytes(3 * 4 * @dimension * 256, threads, "two vectors and their product")
         end}
      end)
    ] ++
      for kind <- [:f32, :int8] do
        bench("hrr", "similarity of 1 to 1000, #{kind}", 1000, threads, fn budget ->
          [query, items] = for {n, seed} <- [{1, 3}, {1000, 4}], do: atoms(n, seed, :time)
          memory = if kind == :int8, do: Machine.value!(HRR.quantise(items)), else: items
          {us, {:ok, found}} = Case.time(fn -> HRR.similarity(query, memory) end, budget)
          found.shape == {1, 1000} || raise "similarities of the shape #{inspect(found.shape)}"
          finite!(found.data)
          bytes = if kind == :int8, do: 1, else: 4

          {us, 1000, "k/s",
           fn -> Machine.bytes(bytes * @dimension * 1000, threads, "reading all items") end}
        end)
      end
  end

  defp atoms(count, seed, domain) do
    atoms = Machine.value!(HRR.atoms(count, @dimension, seed: seed, as: :binaries))
    Machine.value!(HRR.in_domain(atoms, domain))
  end

  defp shots(threads) do
    for name <- [:billiards, :billiards_published] do
      bench("episodes", "#{name}, 3 random shots", @individuals, threads, fn budget ->
        env = Machine.value!(Env.new(name, count: @individuals))
        start = Machine.value!(Env.reset(env))

        inputs = for _ <- 1..@individuals, into: <<>>, do: shot()
        moved!(start, Machine.value!(Env.step(env, inputs)).observation)

        run = fn ->
          for _ <- 1..3, do: {:ok, _step} = Env.step(env, inputs)
          :ok
        end

        {us, :ok} = Case.time(run, budget, 3)

        {us, @individuals, "k episodes/s",
         fn ->
           Machine.flops(@individuals * 600 * 500, threads, "600 steps of about 500 operations")
         end}
      end)
    end
  end

  # Angle and spins are random in -1..1. A power below 0 would leave all balls where they are.
  defp shot do
    [angle, top, side] = for _ <- 1..3, do: 2 * :rand.uniform() - 1
    for number <- [angle, :rand.uniform(), top, side], into: <<>>, do: <<number::float-32-little>>
  end

  # The first two numbers of an observation are the place of the cue ball.
  defp moved!(start, ended) do
    places = fn rows ->
      width = div(byte_size(rows), @individuals)
      for i <- 0..(@individuals - 1), do: binary_part(rows, i * width, 8)
    end

    moved = Enum.zip(places.(start), places.(ended)) |> Enum.count(fn {a, b} -> a != b end)
    moved >= 0.99 * @individuals || raise "#{moved} of #{@individuals} cue balls have moved"
  end

  # `work` returns microseconds, how many things one call did, the unit of their rate, and a function of the limit.
  defp bench(name, text, batch, threads, work) do
    %Case{
      name: name,
      case: text,
      batch: batch,
      threads: threads,
      limit: fn _measured -> Process.delete(__MODULE__).() end,
      run: fn budget ->
        {us, count, unit, limit} = work.(budget)
        scale = if unit =~ ~r/\AM /, do: 1, else: 1000
        rate = scale * count / Figures.percentile(us, 50)
        best = scale * count / Enum.min(us)
        rates = "#{Figures.decimal(rate)} #{unit}, at best #{Figures.decimal(best)}"
        # The case is over before the next one runs.
        Process.put(__MODULE__, limit)
        %{us: us, extra: %{rates: rates}}
      end
    }
  end

  defp finite64!(<<_number::float-64-little, rest::binary>>), do: finite64!(rest)
  defp finite64!(""), do: :ok
  defp finite64!(_rest), do: raise("a number is not finite")

  # NaN and infinities do not match the segment of a float.
  defp finite!(<<_number::float-32-little, rest::binary>>), do: finite!(rest)
  defp finite!(""), do: :ok
  defp finite!(_rest), do: raise("a number is not finite")
end
