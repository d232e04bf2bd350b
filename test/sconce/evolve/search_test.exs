defmodule Sconce.Evolve.SearchTest do
  use ExUnit.Case, async: true

  alias Sconce.Error
  alias Sconce.Evolve.{Archive, Population, Progress, Run, Search}

  doctest Search
  doctest Run
  doctest Progress

  @moduletag :tmp_dir

  defp archive(spec) do
    {:ok, archive} =
      Archive.new(
        cells: {:grid, [10, 10]},
        ranges: [{-2.4, 2.4}, {0, 1}],
        solution_size: Search.size(spec),
        as: :binaries
      )

    archive
  end

  defp search(opts \\ []) do
    spec = Population.spec(:cart_pole, hidden_sizes: [4])
    own = [archive: archive(spec), batch: 64, measures: [{:final, 0}, {:input, 0}], seed: 4]
    {:ok, search} = Search.new(spec, :cart_pole, Keyword.merge(own, opts))
    search
  end

  defp message({:error, error}), do: Exception.message(error)

  test "a run that is stopped and resumed ends with the archive of one that was not", %{
    tmp_dir: folder
  } do
    whole = search()
    {:ok, _progress} = Search.run(whole, 30)

    first = search()
    {:ok, run} = Run.start_link(first, out: folder, generations: 1_000_000)
    assert :ok = Run.subscribe(run)
    assert_receive {:sconce_evolve, ^run, %{event: :generation, step: step}}, 20_000
    assert step > 0
    # A folder in use.
    assert {:error, %Error{kind: :busy}} = Search.save(search(), folder)
    {:ok, other} = Run.start_link(search(), out: folder, generations: 1)
    assert {:error, %Error{kind: :busy}} = Run.await(other)
    GenServer.stop(other)
    assert :ok = Run.stop(run)
    {:ok, report} = Run.await(run)
    assert report.stopped == :stopped
    assert report.archive.elites > 0
    assert Progress.summary(report) =~ "stopped after"
    GenServer.stop(run)

    # A stop comes late, so the comparison begins anew at a known generation.
    {:ok, _progress} = Search.run(second = search(), 12)
    assert :ok = Search.save(second, folder)
    third = search()
    assert :ok = Search.resume(third, folder)
    {:ok, run} = Run.start_link(third, out: folder, generations: 30)
    {:ok, report} = Run.await(run)
    assert report.progress.generation == 30
    assert Archive.elites(third.archive) == Archive.elites(whole.archive)
    GenServer.stop(run)
  end

  test "a killed owner stops its run with the state saved", %{tmp_dir: folder} do
    parent = self()

    owner =
      spawn(fn ->
        {:ok, run} = Run.start_link(search(), out: folder, generations: 1_000_000)
        send(parent, {:run, run})
        Process.sleep(:infinity)
      end)

    assert_receive {:run, run}, 20_000
    monitor = Process.monitor(run)
    Process.sleep(100)
    Process.exit(owner, :kill)
    assert_receive {:DOWN, ^monitor, :process, ^run, _reason}, 30_000
    assert :ok = Search.resume(search(), folder)
  end

  test "novelty needs a tournament, and neither is stored" do
    assert_raise ArgumentError, ~r/:tournament/, fn -> search(novelty: 0.5) end
    search = search(tournament: 4, novelty: 1.0)
    {:ok, _progress} = Search.run(search, 10)
    {:ok, elites} = Archive.elites(search.archive)

    {:ok, population} =
      Population.new(search.spec, count: elem(elites.objectives.shape, 0), as: :binaries)

    :ok = Population.write(population, 0, elites.solutions)
    {:ok, played} = Population.episodes(population, :cart_pole)
    assert played.returns.data == elites.objectives.data
  end

  test "a plan has the bytes of the storage and of the strategies", %{tmp_dir: folder} do
    for storage <- [:f32, :bf16, :int8] do
      search = search(storage: storage)
      {:ok, population} = Population.new(search.spec, count: 64, storage: storage)
      {:ok, plan} = Search.plan(search, 10)
      assert {plan.population_bytes, plan.strategy_bytes} == {population.bytes, nil}
    end

    # The arrays of a saved state are those that are kept.
    for source <- [:snes, :open_ai_es, :sep_cma_es, :cma_es] do
      search = search(source: source, archive: nil, measures: [])
      {:ok, plan} = Search.plan(search, 10)
      out = Path.join(folder, to_string(source))
      :ok = Search.save(search, out)
      [path] = Path.wildcard(Path.join(out, "strategy-0-*.safetensors"))
      assert plan.strategy_bytes == array_bytes(path)
    end

    {:ok, one} = Search.plan(search(source: {:cma_me, 1}), 1)
    {:ok, four} = Search.plan(search(source: {:cma_me, 4}), 1)
    assert four.strategy_bytes == 4 * one.strategy_bytes
  end

  # Bytes of the arrays of a safetensors file.
  defp array_bytes(path) do
    <<size::64-little, _header::binary-size(size), arrays::binary>> = File.read!(path)
    byte_size(arrays)
  end

  test "states of other searches and damaged ones are named", %{tmp_dir: folder} do
    assert message(Search.resume(search(), folder)) =~ "search.json"
    :ok = Search.save(search(), folder)
    spec = Population.spec(:cart_pole, hidden_sizes: [4])
    {:ok, plain} = Search.new(spec, :cart_pole, source: :snes, batch: 8)

    assert message(Search.resume(plain, folder)) ==
             "resume: saved search: expected one without, got a search with an archive"

    wide = Population.spec(:cart_pole, hidden_sizes: [5])
    other = [archive: archive(wide), batch: 64, measures: [{:final, 0}, {:input, 0}]]
    {:ok, wide} = Search.new(wide, :cart_pole, other)
    assert message(Search.resume(wide, folder)) =~ "numbers of a solution"
    File.write!(Path.join(folder, "search.json"), "{}")
    assert {:error, %{kind: :corrupt}} = Search.resume(search(), folder)

    assert message(Search.save(search(), Path.join(folder, "search.json/x"))) =~ "not a directory"
  end
end
