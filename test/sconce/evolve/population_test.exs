defmodule Sconce.Evolve.PopulationTest do
  use ExUnit.Case, async: true

  alias Sconce.Evolve.{Archive, Population}
  alias Sconce.{Env, Policy, Session}

  doctest Population

  defp population(opts) do
    {:ok, population} =
      :cart_pole
      |> Population.spec(hidden_sizes: [8])
      |> Population.new([count: 40, seed: 3] ++ opts)

    population
  end

  defp message({:error, error}), do: Exception.message(error)

  test "an individual's policy computes and plays what the individual does" do
    for storage <- [:f32, :bf16, :int8] do
      population = population(storage: storage)
      {:ok, [solution]} = Population.read(population, [17])
      {:ok, policy} = Population.policy(population.spec, solution)
      {:ok, logits} = Population.forward(population, [0.1, -0.2, 0.05, 0.3])
      {:ok, %{logits: own}} = Policy.forward(policy, [[[0.1, -0.2, 0.05, 0.3]]])
      own = for <<v::float-32-little <- own>>, do: v

      for {a, b} <- Enum.zip(Enum.at(logits, 17), own),
          do: assert_in_delta(a, b, 1.0e-5)

      {:ok, %{returns: returns}} = Population.episodes(population, :cart_pole, env_seed: 5)
      # The first episode of environment 0 of this seed.
      {:ok, env} = Env.new(:cart_pole, seed: 5)
      {:ok, session} = Session.open(policy, seed: 0, deterministic: true)
      assert Enum.at(returns, 17) == played(env, session)
    end
  end

  defp played(env, session) do
    {:ok, observation} = Env.read(env, :observation)
    played(env, session, observation, 0.0)
  end

  defp played(env, session, observation, total) do
    frame = for <<v::float-32-little <- observation>>, do: v
    {:ok, action} = Session.act(session, frame)
    {:ok, step} = Env.step(env, [action.choices.action])
    <<reward::float-32-little>> = step.reward

    if step.ended == [],
      do: played(env, session, step.observation, total + reward),
      else: total + reward
  end

  test "a session computes the bits of the individual" do
    spec = Population.spec(:billiards, hidden_sizes: [32, 16])

    for storage <- [:f32, :bf16] do
      {:ok, population} = Population.new(spec, count: 20, seed: 8, storage: storage)
      seen = for i <- 1..29, do: :math.sin(i) / 1
      {:ok, logits} = Population.forward(population, seen)
      {:ok, solutions} = Population.read(population)

      for {solution, own} <- Enum.zip(solutions, logits) do
        {:ok, policy} = Population.policy(spec, solution)
        {:ok, session} = Session.open(policy, seed: 0, deterministic: true, logits: true)
        {:ok, action} = Session.act(session, seen)
        heads = for name <- [:angle, :power, :top, :side], do: action.logits[name]
        assert List.flatten(heads) == own
      end
    end
  end

  test "each individual may have an observation of its own, and starts of its own" do
    population = population([])
    rows = for i <- 1..40, do: [0.01 * i, 0.0, 0.1, -0.01 * i]
    {:ok, each} = Population.forward(population, rows)
    {:ok, shared} = Population.forward(population, Enum.at(rows, 4))
    assert Enum.at(each, 4) == Enum.at(shared, 4)
    assert Enum.at(each, 5) != Enum.at(shared, 5)

    {:ok, same} = Population.episodes(population, :cart_pole, measures: [{:observation, 2}])
    {:ok, other} = Population.episodes(population, :cart_pole, same_starts: false)
    assert same.returns != other.returns
    assert length(same.measures) == 40 and other.measures == nil

    assert {:ok, same} ==
             Population.episodes(population, :cart_pole, measures: [{:observation, 2}])
  end

  test "children of an archive are its variations" do
    population = population(as: :binaries)
    size = population.size

    {:ok, archive} =
      Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: size, as: :binaries)

    assert message(Population.vary(population, from: archive)) =~ "an elite"
    {:ok, solutions} = Population.read(population, [0, 1, 2])
    {:ok, _added} = Archive.add(archive, solutions, [1, 2, 3], [[0.1], [0.4], [0.9]])

    for crossover <- [nil, {:sbx, 15.0}, {:uniform, 0.5}, :holographic] do
      opts = [crossover: crossover, iso_sigma: 0.1, generation: 4, seed: 9]
      assert :ok = Population.vary(population, [from: archive] ++ opts)
      assert Population.read(population) == Archive.vary(archive, 40, opts)
    end
  end

  test "parents are ignored beside an archive, and without a pair they are random" do
    opts = [iso_sigma: 0.1, seed: 2]
    first = for _ <- 1..40, do: {0, 0}
    population = population([])
    {:ok, archive} = Archive.new(cells: {:grid, [4]}, ranges: [{0, 1}], solution_size: 58)
    {:ok, solutions} = Population.read(population, [0, 1, 2])
    {:ok, _added} = Archive.add(archive, solutions, [1, 2, 3], [[0.1], [0.4], [0.9]])

    children = fn given ->
      population = population([])
      :ok = Population.vary(population, opts ++ given)
      Population.read(population)
    end

    assert children.(from: archive, parents: first) == children.(from: archive)
    assert children.(parents: []) == children.([])
    assert children.(parents: first) != children.([])
  end

  test "a rounded solution computes what its individual computes, with int8 nearly" do
    observation = [0.3, -0.7, 0.11, 0.9]

    for {storage, error} <- [f32: 0.0, bf16: 0.0, int8: 1.0e-5] do
      population = population(storage: storage)
      {:ok, logits} = Population.forward(population, observation)
      {:ok, solutions} = Population.read(population)
      wide = population([])
      :ok = Population.write(wide, 0, solutions)
      {:ok, other} = Population.forward(wide, observation)
      off = Enum.zip_with(List.flatten(logits), List.flatten(other), &abs(&1 - &2)) |> Enum.max()
      assert off <= error
      # The codes of int8 are multiplied by a scale after their sum.
      assert off > 0 == (storage == :int8)
    end
  end

  test "episodes of two seats need an opponent, and worlds of modules are refused" do
    {:ok, fighters} = Population.new(Population.spec(:duel, hidden_sizes: [4]), count: 2)

    assert message(Population.episodes(fighters, :duel)) ==
             "episodes: opponent: expected a scripted one, got none"

    assert {:ok, %{returns: [_, _]}} = Population.episodes(fighters, :duel, opponent: :guarder)

    assert Env.Hosting.world?(Sconce.Test.Worlds.Catch)

    assert_raise ArgumentError, ~r/unknown environment Sconce.Test.Worlds.Catch/, fn ->
      Population.episodes(population([]), Sconce.Test.Worlds.Catch)
    end
  end

  test "invalid input is named" do
    population = population([])
    assert message(Population.read(population, [40])) == "read: individual: 40 is outside 0..39"
    assert message(Population.write(population, 0, [[1.0]])) =~ "rows of 58"

    assert message(Population.forward(population, [1.0])) ==
             "forward: numbers of observations: expected 4, or 4 for each of 40, got 1"

    assert message(Population.vary(population, parents: [{0, 1}])) ==
             "vary: pairs of parents: expected 40, got 1"

    assert message(Population.episodes(population, :pendulum)) =~ "observation of the policy"

    assert message(Population.episodes(population, :cart_pole, measures: [{:final, 9}])) =~
             "measure"

    assert_raise ArgumentError, ~r/unknown environment/, fn ->
      Population.episodes(population, :cart)
    end

    assert_raise ArgumentError, ~r/:crossover/, fn ->
      Population.vary(population, crossover: :swap)
    end

    assert_raise ArgumentError, ~r/individuals/, fn -> Population.read(population, [-1]) end
    assert message(Population.policy(population.spec, [1.0])) =~ "expected rows of 58, got 1"
  end

  test "the death of a caller ends its episodes, which would take hours" do
    {:ok, population} = Population.new(Population.spec(:pendulum), count: 2000)
    parent = self()

    {busy, monitor} =
      spawn_monitor(fn ->
        send(parent, :begun)
        # A read of the test may come first.
        play = fn -> Population.episodes(population, :pendulum, episodes: 65_536) end
        play |> Stream.repeatedly() |> Enum.find(&match?({:ok, _played}, &1))
      end)

    assert_receive :begun
    until_busy(population, monitor)
    Process.exit(busy, :kill)

    result =
      Enum.find_value(1..600, fn _try ->
        case Population.read(population, [0]) do
          {:ok, solutions} ->
            {:ok, solutions}

          {:error, %{kind: :busy}} ->
            Process.sleep(50)
            nil
        end
      end)

    assert {:ok, [_solution]} = result
  end

  defp until_busy(population, monitor) do
    case Population.read(population, [0]) do
      {:error, %{kind: :busy}} ->
        :ok

      {:ok, _solution} ->
        refute_receive {:DOWN, ^monitor, :process, _busy, _reason}, 1
        until_busy(population, monitor)
    end
  end
end
