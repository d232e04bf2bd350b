# Compares archives with those of pyribs on the same streams of candidates.
#
#     python peers/archives.py DIR
#     mix run peers/archives.exs DIR | tee peers/archives.txt
#
# For each stream, candidate by candidate: the cell, the status, and the objective minus the threshold (to 1e-12, as pyribs
# computes a moved threshold by another formula). After each batch: the winner of each cell, and at the end the number of
# elites, the QD score and the best objective. The status is 1 if one differs.

defmodule Archives do
  alias Sconce.Evolve.Archive

  # Those of archives.py.
  @grid [cells: {:grid, [20, 15]}, ranges: [{-1, 1}, {0, 6}]]
  @mae [learning_rate: 0.1, threshold_min: -2.0]

  def main([folder]) do
    {:ok, cases} = :file.consult(Path.join(folder, "cases"))
    if Enum.all?(for case <- cases, do: same?(case, folder)), do: :ok, else: exit({:shutdown, 1})
  end

  defp same?(case, folder) do
    column = fn name -> File.read!(Path.join(folder, "#{case.name}.#{name}")) end

    space =
      if case.space == :grid, do: @grid, else: [cells: {:centroids, centroids(case, folder)}]

    own = if case.mae, do: @mae, else: []
    {:ok, archive} = Archive.new(space ++ own ++ [solution_size: case.size, as: :binaries])
    widths = [solutions: 4 * case.size, objectives: 8, measures: 8 * case.measures]
    batches = for {name, width} <- widths, do: parts(column.(name), width * case.batch)

    {answers, won} =
      batches
      |> Enum.zip()
      |> Enum.map(fn {solutions, objectives, measures} ->
        given = [
          tensor(solutions, {case.batch, case.size}, {:f, 32}),
          tensor(objectives, {case.batch}, {:f, 64}),
          tensor(measures, {case.batch, case.measures}, {:f, 64})
        ]

        {:ok, added} = apply(Archive, :add, [archive | given])
        {added, winners(archive)}
      end)
      |> Enum.unzip()

    status = for %{status: %{data: data}} <- answers, <<status <- data>>, do: status
    value = for %{improvement: %{data: data}} <- answers, v <- f64(data), do: v
    cells = cells(archive, column.("measures"), case)
    {:ok, stats} = Archive.stats(archive)

    checks = [
      cells: cells == i32(column.("cells")),
      status: status == i32(column.("status")),
      improvement: near?(value, f64(column.("value"))),
      winners: Enum.concat(won) == i32(column.("won")),
      elites: stats.elites == case.elites,
      qd_score: near?([stats.qd_score], [case.qd_score]),
      best: stats.best == case.best
    ]

    batch = agreement(Enum.concat(won), i32(column.("batch_won")))
    checks = if case.mae, do: checks, else: checks ++ [winners_of_batches: batch == 1.0]
    report(case, stats, status, checks, batch)
    Enum.all?(Keyword.values(checks))
  end

  # The cell of each candidate. Every stream fills all cells, so each one has an elite that says its number.
  defp cells(archive, measures, case) do
    rows = div(byte_size(measures), 8 * case.measures)
    {:ok, answer} = Archive.retrieve(archive, tensor(measures, {rows, case.measures}, {:f, 64}))
    i32(answer.elites.cells.data)
  end

  defp winners(archive) do
    {:ok, elites} = Archive.elites(archive)
    numbers = for <<n::float-32-little <- elites.solutions.data>>, do: n
    firsts = Enum.take_every(numbers, archive.solution_size)
    won = Enum.zip(i32(elites.cells.data), firsts) |> Map.new()
    for cell <- 0..(archive.cells - 1), do: trunc(Map.get(won, cell, -1.0))
  end

  defp report(case, stats, status, checks, batch) do
    of = fn kind -> Enum.count(status, &(&1 == kind)) end
    wrong = for {name, false} <- checks, do: name
    verdict = if wrong == [], do: "equal", else: "DIFFERENT: #{Enum.join(wrong, ", ")}"

    IO.puts(
      "#{case.name}: #{length(status)} candidates, #{of.(2)} new, #{of.(1)} better, #{of.(0)} refused; " <>
        "#{stats.elites} elites, QD score #{Float.round(stats.qd_score, 6)}; #{verdict}"
    )

    if case.mae do
      share = Float.round(100 * batch, 2)
      IO.puts("  winners as by pyribs' rule for whole batches: #{share} % of cells and batches")
    end
  end

  defp agreement(ours, theirs) do
    same = Enum.zip(ours, theirs) |> Enum.count(fn {a, b} -> a == b end)
    same / length(theirs)
  end

  defp near?(ours, theirs) do
    length(ours) == length(theirs) and
      Enum.all?(Enum.zip(ours, theirs), fn {a, b} -> abs(a - b) <= 1.0e-12 * max(1, abs(b)) end)
  end

  defp centroids(case, folder) do
    numbers = f64(File.read!(Path.join(folder, "centroids")))
    Enum.chunk_every(numbers, case.measures)
  end

  defp tensor(data, shape, type), do: %{data: data, shape: shape, type: type}
  defp parts(data, bytes), do: for(<<part::binary-size(bytes) <- data>>, do: part)
  defp i32(data), do: for(<<n::signed-32-little <- data>>, do: n)
  defp f64(data), do: for(<<n::float-64-little <- data>>, do: n)
end

Archives.main(System.argv())
