defmodule Sconce.Evolve.ArchiveTest do
  use ExUnit.Case, async: true
  doctest Sconce.Evolve
  doctest Sconce.Evolve.Archive

  import Sconce.Test.Scratch

  alias Sconce.{Error, Lock, Store}
  alias Sconce.Evolve.Archive

  @grid [cells: {:grid, [8, 8]}, ranges: [{-1, 1}, {-1, 1}], solution_size: 2]

  defp filled(opts \\ []) do
    {:ok, archive} = Archive.new(Keyword.merge(@grid, opts))
    solutions = for i <- 1..40, do: [:math.sin(i), :math.cos(3 * i)]
    objectives = for i <- 1..40, do: rem(7 * i, 11) / 4
    {:ok, _added} = Archive.add(archive, solutions, objectives, solutions)
    archive
  end

  test "objectives and measures keep 64 bits, and solutions 32" do
    {:ok, archive} = Archive.new(@grid)
    {:ok, _added} = Archive.add(archive, [[0.1, 0.2]], [0.1], [[0.3, 0.7]])
    {:ok, elites} = Archive.elites(archive)
    assert {elites.objectives, elites.measures} == {[0.1], [[0.3, 0.7]]}

    assert elites.solutions == [[0.10000000149011612, 0.20000000298023224]]
  end

  test "binaries are taken and given" do
    archive = filled(as: :binaries)

    solutions = %{
      data: <<0.5::float-32-little, -0.5::float-32-little>>,
      shape: {1, 2},
      type: {:f, 32}
    }

    objectives = %{data: <<9.0::float-64-little>>, shape: {1}, type: {:f, 64}}

    measures = %{
      data: <<0.5::float-64-little, -0.5::float-64-little>>,
      shape: {1, 2},
      type: {:f, 64}
    }

    assert {:ok, added} = Archive.add(archive, solutions, objectives, measures)
    assert %{data: <<status>>, shape: {1}, type: {:u, 8}} = added.status
    assert status in [1, 2]
    {:ok, %{found: found, elites: elites}} = Archive.retrieve(archive, measures)
    assert found.data == <<1>>
    assert elites.solutions == solutions
    assert elites.objectives == objectives
    assert {:ok, stats} = Archive.stats(archive)
    {:ok, elites} = Archive.elites(archive)
    assert elites.cells.shape == {stats.elites}
    assert byte_size(elites.cells.data) == 4 * stats.elites
  end

  test "numbers that are not finite name their candidate, and nothing is stored" do
    archive = filled()
    before = Archive.elites(archive)
    # Lists cannot hold such numbers.
    nan = <<0, 0, 0, 0, 0, 0, 0xF8, 0x7F>>
    objectives = %{data: <<9.0::float-64-little>> <> nan, shape: {2}, type: {:f, 64}}

    assert {:error, %Error{kind: :non_finite} = error} =
             Archive.add(archive, [[0, 0], [0, 0]], objectives, [[0, 0], [0, 0]])

    assert Exception.message(error) == "add: the objective of candidate 1 is not finite (NaN)"

    assert {:error, %Error{kind: :out_of_range}} =
             Archive.add(archive, [[0, 0]], [1.0e200], [[0, 0]])

    assert Archive.elites(archive) == before
  end

  test "wrong widths are errors with both numbers" do
    archive = filled()

    for {solutions, objectives, measures} <- [
          {[[0.0]], [1.0], [[0.0, 0.0]]},
          {[[0.0, 0.0]], [1.0, 2.0], [[0.0, 0.0]]},
          {[[0.0, 0.0]], [1.0], [[0.0, 0.0], [0.0, 0.0]]},
          {[[0.0, 0.0]], [1.0], [[0.0]]},
          {[[0.0, 0.0]], [[1.0]], [[0.0, 0.0]]}
        ] do
      assert {:error, %Error{kind: :mismatch, op: :add}} =
               Archive.add(archive, solutions, objectives, measures)
    end

    {:error, error} = Archive.add(archive, [[0.0, 0.0]], [1.0, 2.0], [[0.0, 0.0]])
    assert Exception.message(error) =~ "expected 4, got 2"
  end

  test "an empty batch changes nothing" do
    archive = filled()
    before = Archive.elites(archive)
    assert Archive.add(archive, [], [], []) == {:ok, %{status: [], improvement: []}}
    assert Archive.elites(archive) == before
  end

  test "a saved archive is loaded with the same elites, and goes on equally" do
    path = Path.join(tmp_dir!("archive"), "a.safetensors")

    for opts <- [
          [],
          [cells: {:voronoi, 20}],
          [cells: {:centroids, [[0.0, 0.5], [0.5, -0.5]]}],
          [cells: {:unstructured, 30}, distance: 0.2, measures: 2],
          [learning_rate: 0.2, threshold_min: -1]
        ] do
      archive = filled(opts)
      assert :ok = Archive.save(archive, path)
      assert {:ok, loaded} = Archive.load(path)
      assert inspect(loaded) == inspect(archive)
      assert Archive.elites(loaded) == Archive.elites(archive)
      assert Archive.stats(loaded) == Archive.stats(archive)
      more = fn archive -> Archive.add(archive, [[0.1, 0.1]], [2.0], [[0.1, 0.1]]) end
      assert more.(loaded) == more.(archive)
    end
  end

  test "an archive in a store is loaded with the same elites, and goes on equally" do
    {:ok, store} = Store.open(tmp_dir!("store"))

    for opts <- [
          [],
          [solution_size: 2, cells: {:voronoi, 20}, seed: 3],
          [cells: {:centroids, [[0.0, 0.5], [0.5, -0.5]]}],
          [threshold_min: -1, qd_offset: -2]
        ] do
      archive = filled(opts)
      {:ok, _removed} = Archive.prune(archive, 0.2)
      assert :ok = Archive.save(archive, {store, "elites"})
      assert {:ok, loaded} = Archive.load({store, "elites"})
      assert inspect(loaded) == inspect(archive)
      assert Archive.elites(loaded) == Archive.elites(archive)
      assert Archive.stats(loaded) == Archive.stats(archive)
      more = fn archive -> Archive.add(archive, [[0.1, 0.1]], [2.0], [[0.1, 0.1]]) end
      assert more.(loaded) == more.(archive)
      # The loaded one can be saved too.
      assert :ok = Archive.save(loaded, {store, "elites"})
    end

    {:ok, empty} = Archive.new(@grid)
    assert :ok = Archive.save(empty, {store, "elites"})
    assert {:ok, %{elites: 0}} = Archive.stats(elem(Archive.load({store, "elites"}), 1))
    # Nothing of the other archives is left.
    assert Store.names(store) == {:ok, ["elites"]}
  end

  # Elites of 4 KB: four in a chunk.
  defp large(count) do
    opts = [cells: {:grid, [count]}, ranges: [{0, count}], solution_size: 1000, as: :binaries]
    {:ok, archive} = Archive.new(opts)
    for at <- 0..(count - 1), do: offer(archive, at, 1.0)
    archive
  end

  defp offer(archive, at, objective) do
    data = for n <- 1..1000, into: <<>>, do: <<:math.sin(at + n * objective)::float-32-little>>
    solution = %{data: data, shape: {1, 1000}, type: {:f, 32}}
    {:ok, %{status: %{data: <<status>>}}} = Archive.add(archive, solution, [objective], [[at]])
    assert status > 0
  end

  test "a save into a store writes the chunks that have changed, and keeps no others" do
    {:ok, store} = Store.open(tmp_dir!("store"), compress: false)
    archive = large(30)
    written = fn -> store |> Store.stats() |> elem(1) |> Map.fetch!(:written_bytes) end
    assert :ok = Archive.save(archive, {store, "of/elites"})
    first = written.()
    offer(archive, 7, 2.0)
    assert :ok = Archive.save(archive, {store, "of/elites"})
    assert (written.() - first) * 5 < first
    {:ok, names} = Store.names(store)
    assert length(names) == 1 + 8
    {:ok, loaded} = Archive.load({store, "of/elites"}, as: :binaries)
    assert Archive.elites(loaded) == Archive.elites(archive)
  end

  test "a save that fails keeps the archive that was there" do
    {:ok, store} = Store.open(tmp_dir!("store"), disk: "200KB", compress: false)
    archive = large(30)
    before = Archive.elites(archive)
    assert :ok = Archive.save(archive, {store, "elites"})
    for at <- 0..29, do: offer(archive, at, 2.0)

    # The chunks of both do not fit.
    assert {:error, %Error{kind: :out_of_range}} = Archive.save(archive, {store, "elites"})
    {:ok, loaded} = Archive.load({store, "elites"}, as: :binaries)
    assert Archive.elites(loaded) == before
    # The next save removes the chunks of the failed one.
    assert :ok = Archive.save(loaded, {store, "elites"})
    {:ok, names} = Store.names(store)
    assert length(names) == 1 + 8
  end

  test "a load and a save wait for the save of their name in a queue, and not for others" do
    {:ok, store} = Store.open(tmp_dir!("store"))
    archive = filled(as: :binaries)
    for name <- ["a", "b"], do: assert(:ok = Archive.save(archive, {store, name}))
    load = fn name -> Archive.load({store, name}, as: :binaries) end
    key = {Sconce.Evolve.Stored, store.path, "a"}

    # As during a long save.
    {loaded, saved} =
      Lock.hold(key, fn ->
        assert {:ok, _other} = load.("b")
        tasks = {Task.async(fn -> load.("a") end), save(archive, {store, "a"})}
        for task <- Tuple.to_list(tasks), do: queued(key, task.pid)
        tasks
      end)

    assert {:ok, loaded} = Task.await(loaded)
    assert Archive.elites(loaded) == Archive.elites(archive)
    assert Task.await(saved) == :ok
  end

  defp save(archive, to), do: Task.async(fn -> Archive.save(archive, to) end)

  defp queued(key, pid) do
    queue = :sys.get_state(Lock) |> Map.get(key, []) |> Enum.map(&elem(&1, 0))
    pid in queue || (Process.sleep(1) && queued(key, pid))
  end

  test "what a store cannot hold, and what is no archive, are errors of their kinds" do
    {:ok, store} = Store.open(tmp_dir!("store"))
    path = Path.join(tmp_dir!("archive"), "a.safetensors")
    :ok = Archive.save(filled(), path)
    {:ok, loaded} = Archive.load(path)

    for archive <- [
          loaded,
          filled(cells: {:unstructured, 30}, distance: 0.2, measures: 2),
          filled(learning_rate: 0.2, threshold_min: -1)
        ] do
      assert {:error, %Error{kind: :unavailable} = error} = Archive.save(archive, {store, "a"})
      assert Exception.message(error) =~ "save the archive to a file"
    end

    # As the text of the documentation says.
    {:ok, made} = Archive.new(@grid)
    {:ok, _stored} = Archive.merge(made, loaded)
    assert :ok = Archive.save(made, {store, "a"})
    assert {:error, %Error{kind: :not_found}} = Archive.load({store, "b"})
    :ok = Store.put(store, "b", [1, 2, 3])
    assert {:error, %Error{kind: :corrupt}} = Archive.load({store, "b"})
    {:ok, names} = Store.names(store)
    chunk = Enum.find(names, &String.starts_with?(&1, "a/"))
    :ok = Store.put(store, chunk, [1])
    assert {:error, %Error{kind: :corrupt}} = Archive.load({store, "a"})
    :ok = Store.delete(store, chunk)
    assert {:error, %Error{kind: :not_found}} = Archive.load({store, "a"})
    assert_raise ArgumentError, ~r/name/, fn -> Archive.save(made, {store, :a}) end
  end

  test "a damaged file, another file and a missing one are errors of their kinds" do
    path = Path.join(tmp_dir!("archive"), "a.safetensors")
    :ok = Archive.save(filled(), path)
    bytes = File.read!(path)
    File.write!(path, binary_part(bytes, 0, byte_size(bytes) - 9))
    assert {:error, %Error{kind: :corrupt, op: :load}} = Archive.load(path)
    {:ok, strategy} = Sconce.Evolve.Strategy.new([0.0])
    :ok = Sconce.Evolve.Strategy.save(strategy, path)
    assert {:error, %Error{kind: :mismatch, op: :load}} = Archive.load(path)
    assert {:error, %Error{kind: :not_found}} = Archive.load(path <> ".none")
  end

  test "a full disk keeps the old file" do
    dir = tmp_dir!("archive")
    path = Path.join(dir, "a")
    File.write!(path, "old")

    script = """
    alias Sconce.Evolve.Archive
    {:ok, archive} = Archive.new(cells: {:grid, [1]}, ranges: [{0, 1}], solution_size: 5000)
    {:ok, _added} = Archive.add(archive, [List.duplicate(1.0, 5000)], [1.0], [[0.5]])
    IO.inspect(Archive.save(archive, #{inspect(path)}))
    """

    assert {output, 0} = elixir_within(script, 4)
    assert output =~ "kind: :io"
    assert {File.read!(path), File.ls!(dir)} == {"old", ["a"]}
  end

  test "a second call is busy while another one has the archive" do
    opts = [cells: {:grid, [1000, 1000]}, ranges: [{0, 1}, {0, 1}], solution_size: 1]
    {:ok, archive} = Archive.new(opts)
    count = 200_000

    zeros = fn bits, shape ->
      %{
        data: :binary.copy(<<0::size(bits)>>, Tuple.product(shape)),
        shape: shape,
        type: {:f, bits}
      }
    end

    numbers = fn seed ->
      for i <- 1..(2 * count), into: <<>>, do: <<rem(i * seed, 9973) / 9973::float-64-little>>
    end

    measures = %{data: numbers.(7), shape: {count, 2}, type: {:f, 64}}

    {:ok, _added} = Archive.add(archive, zeros.(32, {count, 1}), zeros.(64, {count}), measures)
    tasks = for _ <- 1..2, do: Task.async(fn -> Archive.novelty(archive, measures) end)

    # Novelty of 400,000 rows takes far longer than the start of both calls. One of them, and this one, is refused.
    refused = busy(archive, 1000)
    for task <- tasks, do: Task.shutdown(task, :brutal_kill)
    assert {:error, %Error{kind: :busy, details: %{what: "archive"}}} = refused
    assert inspect(archive) =~ "1,000,000 cells"
  end

  defp busy(archive, tries) do
    case Archive.stats(archive) do
      {:ok, _stats} when tries > 0 ->
        Process.sleep(1)
        busy(archive, tries - 1)

      answer ->
        answer
    end
  end

  test "two archives merge to the best of both" do
    [one, other] = [filled(), filled()]
    {:ok, _added} = Archive.add(other, [[0.0, 0.0]], [50.0], [[0.0, 0.0]])
    assert {:ok, 1} = Archive.merge(one, other)
    assert {:ok, %{best: 50.0}} = Archive.stats(one)
    {:ok, different} = Archive.new(Keyword.put(@grid, :cells, {:grid, [8, 9]}))
    assert {:error, %Error{kind: :mismatch, op: :merge}} = Archive.merge(one, different)
    assert {:error, %Error{kind: :busy, op: :merge}} = Archive.merge(one, one)
  end

  test "a picture has the cells of the archive in their place" do
    {:ok, archive} =
      Archive.new(cells: {:grid, [4, 2]}, ranges: [{0, 4}, {-1, 1}], solution_size: 1)

    {:ok, _added} =
      Archive.add(archive, [[0], [0], [0]], [0.0, 1.0, 1.0], [[0.5, -0.5], [2.5, 0.5], [3.5, 0.5]])

    {:ok, svg} = Archive.svg(archive, title: "A & B", axes: {"reach", "height"})
    assert svg =~ "A &amp; B"
    assert svg =~ "reach" and svg =~ "height"
    assert svg =~ "3 of 8 cells, QD score 2"
    # The frame begins at 76, 76 and has 480 pixels: cells of 120 x 240.
    assert svg =~
             ~s|<rect x="76.00" y="316.00" width="120.00" height="240.00" fill="rgb(49,18,98)"|

    # Two neighbours of one color are one rectangle.
    assert svg =~
             ~s|<rect x="316.00" y="76.00" width="240.00" height="240.00" fill="rgb(253,231,37)"|

    assert length(String.split(svg, "crispEdges")) == 1 + 2 + 48
    assert {:ok, fixed} = Archive.svg(archive, range: {0, 2})
    assert fixed =~ ~s|width="240.00" height="240.00" fill="rgb(32,150,128)"|
  end

  test "archives of centroids have pictures too, and those of three measures have none" do
    {:ok, svg} = Archive.svg(filled(cells: {:voronoi, 20}))
    assert svg =~ "of 20 cells"
    assert length(String.split(svg, "crispEdges")) > 500
    {:ok, svg} = Archive.svg(filled(cells: {:unstructured, 50}, distance: 0.1, measures: 2))
    assert svg =~ "of 50 cells"
    assert length(String.split(svg, "crispEdges")) > 200

    {:ok, archive} =
      Archive.new(cells: {:grid, [2, 2, 2]}, ranges: [{0, 1}, {0, 1}, {0, 1}], solution_size: 1)

    assert {:error, %Error{kind: :mismatch, op: :svg}} = Archive.svg(archive)
    path = Path.join(tmp_dir!("archive"), "a.png")
    assert {:error, %Error{kind: :mismatch}} = Archive.write(filled(), path)
  end

  test "wrong options raise and name the option" do
    for {opts, name} <- [
          {[cells: {:hexagon, 5}], "cells"},
          {[cells: {:unstructured, 5}, measures: 2], "distance"},
          {[cells: {:unstructured, 5}, distance: 0.5], "measures"},
          {[cells: {:unstructured, 5}, measures: 2, distance: "far"], "distance"},
          {[solution_size: 0], "solution_size"},
          {[learning_rate: 2], "learning_rate"},
          {[as: :text], "as"}
        ] do
      assert_raise ArgumentError, ~r/option :#{name}/, fn ->
        Archive.new(Keyword.merge(@grid, opts))
      end
    end

    assert {:error, %Error{kind: :mismatch}} =
             Archive.new(Keyword.put(@grid, :learning_rate, 0.5))

    assert {:error, %Error{kind: :mismatch}} =
             Archive.new(Keyword.put(@grid, :cells, {:grid, [8]}))

    assert_raise ArgumentError, ~r/count/, fn -> Archive.sample(filled(), 0) end
  end
end
