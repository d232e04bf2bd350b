# Compares reports with the statistics of slippi-js on real games: each conversion and each stock.
#
#     npm install --prefix FOLDER @slippi/slippi-js@9.1.2
#     SCONCE_REPLAYS=replays mix run reports.exs FOLDER
#
# Prints each difference, and exits with status 1 if there is one that the docs of Sconce.Report do not name.

Code.require_file("games.exs", __DIR__)

defmodule Reports do
  @openings %{neutral_win: "neutral-win", counter_attack: "counter-attack", trade: "trade"}
  # Percents are f32 in a replay.
  @close 1.0e-3

  def run([folder]) do
    dir = Path.join(System.tmp_dir!(), "sconce-reports-#{System.pid()}")
    corpus = Games.corpus!(dir)
    {:ok, entries} = Sconce.Corpus.games(corpus)
    {:ok, games} = Sconce.Report.games(corpus)
    us = fold_us(corpus, entries)
    theirs = theirs(folder, entries)
    File.rm_rf!(dir)

    found =
      Enum.zip_with([entries, games, theirs], fn [entry, game, peer] ->
        compare(entry, game, peer)
      end)

    IO.puts("\n#{total(found)}")

    IO.puts(
      "#{Float.round(us, 2)} us to add a packed frame: median of 21 passes over the longest game"
    )

    for name <- [:known, :unknown], do: IO.puts("#{name} differences: #{sum(found, name)}")
    if sum(found, :unknown) > 0, do: System.halt(1)
  end

  def run(_other), do: raise("which folder has node_modules? mix run reports.exs FOLDER")

  defp fold_us(corpus, entries) do
    {_entry, game} =
      entries |> Enum.with_index() |> Enum.max_by(fn {entry, _i} -> entry.frames end)

    {:ok, recording} = Sconce.Corpus.recording(corpus, game)
    rows = for {row, _labels} <- recording, do: row

    times =
      for _ <- 1..21,
          do: fn -> Enum.reduce(rows, Sconce.Report.new(), &add!/2) end |> :timer.tc() |> elem(0)

    Sconce.Figures.percentile(times, 50) / length(rows)
  end

  defp add!(row, report) do
    {:ok, report} = Sconce.Report.add(report, row)
    report
  end

  defp theirs(folder, entries) do
    script = Path.join(__DIR__, "peers/slippi_stats.mjs")
    {text, 0} = System.cmd("node", [script, folder | Enum.map(entries, &source/1)])
    {:ok, peers} = Sconce.Monitor.Json.decode(text)
    peers
  end

  # A corpus keeps the name of a replay, not its folder.
  defp source(entry) do
    [path | _] =
      Path.wildcard(
        Path.join(System.fetch_env!("SCONCE_REPLAYS"), "**/" <> Path.basename(entry.source))
      )

    path
  end

  defp compare(entry, game, %{"error" => error}) do
    IO.puts("#{entry.source}: slippi-js: #{error}, #{length(game.conversions)} conversions here")
    %{known: 0, unknown: 1, conversions: 0, stocks: 0}
  end

  defp compare(entry, game, peer) do
    # slippi-js counts ports from 0.
    ports = Enum.map(entry.ports, &(&1 - 1))
    conversions = conversions(ports, game, peer["conversions"])
    stocks = stocks(ports, game, peer["stocks"])
    overall = overall(ports, game, peer["overall"])
    differences = conversions ++ stocks ++ overall

    IO.puts(
      "#{Path.basename(entry.source)}: #{length(game.conversions)} conversions, #{length(peer["stocks"])} stocks, #{length(differences)} differences"
    )

    for {kind, text} <- differences, do: IO.puts("    #{kind}: #{text}")

    %{
      known: Enum.count(differences, &(elem(&1, 0) != :unknown)),
      unknown: Enum.count(differences, &(elem(&1, 0) == :unknown)),
      conversions: length(game.conversions),
      stocks: length(peer["stocks"])
    }
  end

  defp conversions(ports, game, theirs) do
    ours = Map.new(game.conversions, &{{Enum.at(ports, &1.player), &1.start}, &1})
    theirs = Map.new(theirs, &{{&1["player"], &1["start"]}, &1})

    for key <- Enum.uniq(Map.keys(ours) ++ Map.keys(theirs)) |> Enum.sort(),
        difference <- conversion(ours[key], theirs[key], game),
        do: difference
  end

  defp conversion(nil, theirs, _game), do: [{:unknown, "missing here: #{inspect(theirs)}"}]
  defp conversion(ours, nil, _game), do: [{:unknown, "missing there: #{inspect(ours)}"}]

  defp conversion(ours, theirs, game) do
    figures =
      for key <- [:end, :start_percent, :end_percent, :damage, :kill],
          not same?(ours[key], theirs["#{key}"]) do
        {:unknown, "frame #{ours.start}, #{key}: #{ours[key]} here, #{theirs["#{key}"]} there"}
      end

    moves =
      if length(ours.moves) == theirs["moves"],
        do: [],
        else: [
          {:unknown,
           "frame #{ours.start}: #{length(ours.moves)} moves here, #{theirs["moves"]} there"}
        ]

    figures ++ moves ++ opening(ours, theirs, game)
  end

  defp opening(ours, theirs, game) do
    name = @openings[ours.opening]

    if name == theirs["opening"],
      do: [],
      else: [{cause(ours, game), "frame #{ours.start}: #{name} here, #{theirs["opening"]} there"}]
  end

  # The differences that the docs name.
  defp cause(%{moves: []}, _game), do: :no_damage

  defp cause(ours, game) do
    runs? =
      Enum.any?(
        game.conversions,
        &(&1.end == nil and &1.start < ours.start and &1.player != ours.player)
      )

    if ours.opening == :counter_attack and runs?, do: :runs_until_the_end, else: :unknown
  end

  defp stocks(ports, game, theirs) do
    ours =
      for {player, i} <- Enum.with_index(game.players),
          stock <- player.stocks,
          do: {Enum.at(ports, i), stock}

    ours = Enum.sort_by(ours, fn {port, stock} -> {port, stock.start} end)
    theirs = Enum.sort_by(theirs, &{&1["player"], &1["start"]})

    if length(ours) == length(theirs),
      do: Enum.zip(ours, theirs) |> Enum.flat_map(&stock/1),
      else: [{:unknown, "#{length(ours)} stocks here, #{length(theirs)} there"}]
  end

  defp stock({{port, ours}, theirs}) do
    start = max(theirs["start"], -40)
    theirs = Map.put(theirs, "start", start)

    for key <- [:count, :start, :end, :end_percent], not same?(ours[key], theirs["#{key}"]) do
      {:unknown, "stock of port #{port}, #{key}: #{ours[key]} here, #{theirs["#{key}"]} there"}
    end
  end

  defp overall(ports, game, theirs) do
    for {player, i} <- Enum.with_index(game.players),
        peer = Enum.find(theirs, &(&1["player"] == Enum.at(ports, i))),
        key <- [:openings, :kills, :damage, :openings_per_kill, :damage_per_opening],
        not same?(player[key], peer["#{key}"]),
        do:
          {:unknown,
           "#{key} of port #{Enum.at(ports, i)}: #{player[key]} here, #{peer["#{key}"]} there"}
  end

  defp same?(a, b) when is_number(a) and is_number(b), do: abs(a - b) <= @close
  defp same?(a, b), do: a == b

  defp total(found),
    do:
      "#{length(found)} games, #{sum(found, :conversions)} conversions, #{sum(found, :stocks)} stocks"

  defp sum(found, key), do: found |> Enum.map(& &1[key]) |> Enum.sum()
end

Reports.run(System.argv())
