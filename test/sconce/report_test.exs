defmodule Sconce.ReportTest do
  use ExUnit.Case, async: true

  import Sconce.Test.{Melee, Scratch}

  alias Sconce.{Corpus, Error, Native, Report}
  alias Sconce.Report.Reading

  doctest Sconce.Report

  # Action states.
  @wait 14
  @nair 65
  @hurt 75
  @fall 29
  @dead 0
  @grab 212
  @holds 216
  @held 224
  @throws 222
  @thrown 241

  defp hit(percent), do: [action: @hurt, percent: percent]

  test "a hit begins a conversion that ends 45 frames after the victim is in control" do
    game =
      game(
        frames([
          {10, [], []},
          {5, [action: @nair], hit(12.0)},
          {20, [action: @wait], [action: @fall]},
          {100, [], [action: @wait]}
        ])
      )

    assert [conversion] = game.conversions
    assert %{player: 0, opening: :neutral_win, opener: "neutral air", kill: false} = conversion
    # In control from frame 35 on.
    assert {conversion.start, conversion.end} == {10, 35 + 45}

    assert {conversion.start_percent, conversion.end_percent, conversion.damage} ==
             {0.0, 12.0, 12.0}

    assert [%{move: "neutral air", frame: 10, hits: 1, damage: 12.0}] = conversion.moves

    [own, opponent] = game.players

    assert {own.openings, own.neutral_wins, own.damage, own.neutral_win_ratio} ==
             {1, 1, 12.0, 1.0}

    assert {own.damage_per_opening, own.openings_per_kill} == {12.0, nil}

    assert {opponent.openings, opponent.damage_taken, opponent.neutral_win_ratio} ==
             {0, 12.0, 0.0}
  end

  test "a further hit within these 45 frames belongs to the same conversion, and a later one does not" do
    hits = fn pause ->
      game(
        frames([
          {1, [], []},
          {5, [action: @nair], hit(12.0)},
          {pause, [action: @wait], [action: @wait]},
          {5, [action: 66], hit(20.0)},
          {1, [], []}
        ])
      )
    end

    assert [%{damage: 20.0, moves: [_nair, %{move: "forward air"}]}] = hits.(45).conversions
    assert [%{damage: 12.0, moves: [_]}, %{damage: 8.0}] = hits.(46).conversions
  end

  test "hits without a change of the attacker's action state are one move, and a repeated move is another" do
    game =
      game(
        frames([
          {1, [action: 69, action_frame: 4.0], []},
          {2, [action_frame: 5.0], hit(3.0)},
          {2, [action_frame: 7.0], [percent: 6.0]},
          {1, [action_frame: 1.0], []},
          {2, [action_frame: 5.0], [percent: 9.0]}
        ])
      )

    assert [%{moves: moves}] = game.conversions
    assert [%{hits: 2, damage: 6.0, move: "down air"}, %{hits: 1, damage: 3.0}] = moves
  end

  test "openings on one frame are a trade" do
    game =
      game(
        frames([
          {1, [action: @nair], [action: @nair]},
          {5, hit(7.0), hit(12.0)},
          {1, [], []}
        ])
      )

    assert [%{opening: :trade, player: 0}, %{opening: :trade, player: 1}] = game.conversions
    # Both have left the attack when it is seen.
    assert Enum.map(game.conversions, & &1.opener) == ["neutral air", "neutral air"]
    assert Enum.map(game.players, & &1.trades) == [1, 1]
    assert Enum.map(game.players, & &1.neutral_win_ratio) == [nil, nil]
  end

  test "an opening during a conversion of the opponent is a counter-attack" do
    segments = fn pause ->
      frames([
        {1, [], []},
        {5, [action: @nair], hit(12.0)},
        {pause, [action: @wait], [action: @wait]},
        {5, hit(4.0), [action: 57]},
        {1, [], []}
      ])
    end

    assert [_first, second] = game(segments.(44)).conversions
    assert %{player: 1, opening: :counter_attack, opener: "down tilt"} = second
    # The conversion ends on the frame of the hit.
    assert [%{end: 51}, %{start: 51, opening: :neutral_win}] = game(segments.(45)).conversions
  end

  test "a grab opens a conversion, also without damage" do
    game =
      game(
        frames([
          {1, [action: @grab], []},
          {30, [action: @holds], [action: @held]},
          {60, [action: @wait], [action: @wait]},
          {1, [action: @grab], []},
          {10, [action: @holds], [action: @held]},
          {5, [action: @throws], [action: @thrown]},
          {5, [], hit(7.0)},
          {1, [], []}
        ])
      )

    assert [broken, thrown] = game.conversions
    assert %{opener: "grab", moves: [], damage: 0.0, opening: :neutral_win, kill: false} = broken
    assert %{opener: "grab", moves: [%{move: "down throw"}], damage: 7.0, end: nil} = thrown
  end

  test "a stock that is lost during a conversion is a kill" do
    game =
      game(
        frames([
          {1, [], []},
          {5, [action: @nair], hit(90.0)},
          {60, [action: @wait], [action: @fall]},
          {60, [], [action: @dead, stock: 3]},
          {10, [], [action: 12, percent: 0.0]}
        ])
      )

    assert [%{kill: true, end: 66, end_percent: 90.0}] = game.conversions
    [own, opponent] = game.players
    assert {own.kills, own.openings_per_kill} == {1, 1.0}
    assert {opponent.stocks_lost, opponent.self_destructs, opponent.stocks_left} == {1, 0, 3}
    assert [first, second] = opponent.stocks

    assert first == %{
             count: 4,
             start: 0,
             start_percent: 0.0,
             end: 66,
             end_percent: 90.0,
             lost: :kill
           }

    assert %{count: 3, start: 126, end: nil, lost: nil} = second
  end

  test "a stock that is lost at another time is a self-destruct" do
    fallen = [
      {1, [], []},
      {5, [action: @nair], hit(90.0)},
      {60, [action: @wait], [action: @wait]},
      {60, [], [action: @fall]},
      {60, [], [action: @dead, stock: 3]}
    ]

    game = game(frames(fallen))
    [own, opponent] = game.players
    assert {own.kills, opponent.self_destructs, opponent.stocks_lost} == {0, 1, 1}
    assert [%{lost: :self_destruct, end_percent: 90.0}] = opponent.stocks
  end

  test "a game may end amid a conversion" do
    game = game(frames([{1, [], []}, {3, [action: @nair], hit(8.0)}]))
    assert [%{end: nil, end_percent: 8.0, kill: false, opening: :neutral_win}] = game.conversions
    assert [%{damage: 8.0}, %{stocks: [%{end: nil, end_percent: 8.0}]}] = game.players
  end

  test "the last stock is not followed by another" do
    game =
      game(
        frames([{5, [], [stock: 1]}, {5, [], [action: @dead, stock: 0]}, {50, [], [action: 11]}])
      )

    assert [_own, %{stocks: [%{count: 1, end: 5}], stocks_left: 0}] = game.players
  end

  test "a decrease of the percent, and damage without hitstun, are no damage of a conversion" do
    game =
      game(
        frames([
          {1, [], []},
          {5, [action: @nair], hit(12.0)},
          {5, [], [percent: 2.0]},
          {5, [action: @wait], [action: @fall, percent: 5.0]}
        ])
      )

    assert [%{damage: 12.0}] = game.conversions
    assert [_own, %{damage_taken: 15.0}] = game.players
  end

  test "frames before the first that matters are left out, and missing frames are no error" do
    all =
      frames(
        [{123, [], []}, {5, [action: @nair], hit(12.0)}, {200, [action: @wait], [action: @wait]}],
        -123
      )

    game = game(all)
    assert {game.first, game.last, game.frames} == {-40, 204, 245}
    assert [%{stocks: [%{start: -40}]}, _opponent] = game.players

    sparse = game(Enum.filter(all, &(rem(&1.frame, 7) in [0, 2])))
    assert [%{damage: 12.0, start: start, end: stop}] = sparse.conversions
    assert start in 0..7 and stop in 50..57
  end

  test "frames after a rollback replace the ones before" do
    quiet = frames([{100, [], []}])
    hit = frames([{50, [], []}, {5, [action: @nair], hit(12.0)}, {45, [action: @wait], []}])

    report = added(Report.new(), quiet)
    assert Report.finish(report).conversions == []
    report = added(report, Enum.drop(hit, 45))
    assert Report.finish(report) == game(hit)
    # A hit that did not happen is forgotten, also on the very frame that is replaced.
    wrong = added(Report.new(), Enum.take(hit, 54))
    assert [_hit] = Report.finish(wrong).conversions
    assert wrong |> added(Enum.drop(quiet, 50)) |> Report.finish() == game(quiet)
    # A repeated frame changes nothing.
    assert report |> added([List.last(hit)]) |> Report.finish() == game(hit)

    long = added(Report.new(), frames([{1000, [], []}]))

    assert {:error, %Error{kind: :out_of_range, details: %{field: "frame"}}} =
             Report.add(long, hd(quiet))

    assert {:ok, _report} = Report.add(long, %{hd(quiet) | frame: 940})
  end

  test "a report can be read before its end, and fed on" do
    all =
      frames([
        {10, [], []},
        {5, [action: @nair], hit(12.0)},
        {90, [action: @wait], [action: @wait]}
      ])

    {first, second} = Enum.split(all, 12)
    half = added(Report.new(), first)
    assert [%{end: nil}] = Report.finish(half).conversions
    assert half |> added(second) |> Report.finish() == game(all)
  end

  test "packed rows and maps give the same report, and the other view the same figures" do
    all =
      frames([
        {3, [], []},
        {5, [action: @nair], hit(12.0)},
        {90, [action: @wait], [action: @wait]}
      ])

    {:ok, _row} = Sconce.Frame.pack(hd(all))
    rows = for frame <- all, {:ok, row} = Sconce.Frame.pack(frame), do: row
    assert game(rows) == game(all)

    other = game(swapped(all))
    strip = fn player -> Map.delete(player, :name) end

    assert Enum.map(other.players, strip) ==
             game(all).players |> Enum.reverse() |> Enum.map(strip)
  end

  test "the partner of the Ice Climbers has no part in a report" do
    nana = [
      nana_exists: true,
      nana_percent: 40.0,
      nana_stock: 1,
      nana_action: @hurt,
      character: 10
    ]

    game = game(frames([{10, [], nana}, {10, [], [nana_percent: 80.0]}]))
    assert {game.conversions, Enum.map(game.players, & &1.damage_taken)} == {[], [0.0, 0.0]}
    assert inspect(game) =~ "opponent Popo"
  end

  test "moves of characters with action states of their own have their names" do
    opener = fn action, character ->
      [%{opener: opener}] =
        game(frames([{1, [character: character], []}, {1, [action: action], hit(5.0)}])).conversions

      opener
    end

    assert opener.(349, 24) == "up air"
    assert opener.(349, 9) == "forward smash"
    assert opener.(349, 1) == "special"
    assert opener.(14, 1) == "other"
  end

  test "a frame that cannot be read is an error, and the report stays" do
    report = added(Report.new(), frames([{3, [], []}]))
    assert {:error, %Error{kind: :mismatch, op: :report}} = Report.add(report, "row")
    assert {:error, %Error{kind: :not_found}} = Report.add(report, %{own: %{}})
    {:ok, row} = Sconce.Frame.pack(hd(frames([{1, [], []}])))
    nan = <<0, 0, 0xC0, 0x7F>> <> binary_part(row, 4, byte_size(row) - 4)
    assert {:error, %Error{kind: :non_finite}} = Report.add(report, nan)
  end

  test "totals of any game agree" do
    for seed <- 1..200 do
      frames = drawn(seed)
      game = game(frames)
      at = :rand.uniform(length(frames))
      {first, second} = Enum.split(frames, at)
      half = added(Report.new(), first)
      Report.finish(half)
      assert half |> added(second) |> Report.finish() == game
      # A rollback of a few frames that are then repeated changes nothing.
      back = Enum.drop(frames, max(at - 20, 0))
      assert half |> added(back) |> Report.finish() == game
      agree(game)
    end
  end

  defp agree(%{players: [own, opponent], conversions: conversions}) do
    for {player, other, index} <- [{own, opponent, 0}, {opponent, own, 1}] do
      mine = Enum.filter(conversions, &(&1.player == index))
      assert player.openings == length(mine)
      assert player.openings == player.neutral_wins + player.counter_attacks + player.trades
      assert player.damage <= other.damage_taken + 1.0e-6
      assert other.stocks_lost == player.kills + other.self_destructs
      assert other.stocks_lost == Enum.count(other.stocks, & &1.lost)
      assert_in_delta player.damage, Enum.sum(for c <- mine, m <- c.moves, do: m.damage), 1.0e-6
      assert player.trades == other.trades
      # Conversions of one player do not overlap.
      for [a, b] <- Enum.chunk_every(mine, 2, 1, :discard), do: assert(a.end < b.start)
    end
  end

  # A game of drawn action states, percents and deaths. Some frame numbers are missing.
  defp drawn(seed) do
    :rand.seed(:exsss, seed)
    player = %{action: @wait, percent: 0.0, stock: 4, action_frame: 0.0}
    start = {0, player, player}

    {frames, _last} =
      Enum.flat_map_reduce(1..300, start, fn _step, {frame, own, opponent} ->
        frame = frame + Enum.random([1, 1, 1, 1, 1, 3])
        own = moved(own)
        opponent = moved(opponent)
        [one] = frames([{1, own, opponent}], frame)
        {[one], {frame, own, opponent}}
      end)

    frames
  end

  defp moved(player) do
    case :rand.uniform(20) do
      1 ->
        %{
          player
          | action: Enum.random([@hurt, @held, 38]),
            percent: player.percent + :rand.uniform(20)
        }

      2 ->
        %{player | action: @wait}

      3 ->
        %{player | action: Enum.random([@nair, 57, 212, 341, 398])}

      4 ->
        %{player | action: @fall, percent: max(player.percent - 1, 0.0)}

      5 when player.stock > 0 ->
        dead(player)

      _ ->
        %{player | action_frame: player.action_frame + 1}
    end
  end

  defp dead(player) do
    if :rand.uniform(4) == 1,
      do: %{player | action: @dead, stock: player.stock - 1},
      else: %{player | action: 12, percent: 0.0}
  end

  test "a summary adds up the games of a player or a character" do
    won =
      frames([
        {5, [], [stock: 1]},
        {5, [action: @nair], hit(30.0)},
        {5, [], [action: @dead, stock: 0]}
      ])

    quiet = frames([{5, [], []}])
    games = for frames <- [won, won, quiet], do: game(frames)
    assert %{games: 3, rows: [opponent, own]} = Report.sum(games)
    assert {own.key, own.games, own.wins, own.openings, own.kills} == {"own", 3, 2, 2, 2}

    assert {own.damage_per_opening, own.openings_per_kill, own.openings_per_game} ==
             {30.0, 1.0, 2 / 3}

    assert {opponent.wins, opponent.stocks_lost, opponent.neutral_win_ratio} == {0, 2, 0.0}

    summary = Report.sum(games, by: :character)
    assert Enum.map(summary.rows, & &1.key) == [1, 18]
    text = Report.text(summary)
    assert text =~ ~r/^Fox +3 +2 +0.7 +30.0 +1.0 +100 % +0.7 +0.0$/m
    assert inspect(summary) == "#Sconce.Report.Summary<3 games · Fox, Marth>"

    assert_raise ArgumentError, ~r/games: expected a list of Sconce.Report.Game/, fn ->
      Report.sum([1])
    end
  end

  test "a table has at most 80 columns, and escapes names" do
    name = "\e[2J" <> String.duplicate("long name ", 20)
    report = added(Report.new(players: {name, "b"}, title: name), drawn(3))
    game = Report.finish(report)

    for text <- [Report.text(game), Report.conversions(game), Report.text(Report.sum([game]))] do
      refute text =~ "\e"
      for line <- String.split(text, "\n"), do: assert(String.length(line) <= 80, line)
    end

    refute Report.svg(game) =~ "\e"
  end

  test "the lost stocks stand in the order of time" do
    text =
      frames([
        {700, [], []},
        {60, [], [action: @dead, stock: 3]},
        {3000, [], [action: @wait]},
        {60, [action: @dead, stock: 3], []},
        {36_000, [action: @wait], []},
        {60, [], [action: @dead, stock: 2]}
      ])
      |> Enum.filter(&(rem(&1.frame, 10) == 0))
      |> game()
      |> Report.text()

    assert [_, lost] = String.split(text, "lost stocks\n")
    assert Regex.scan(~r/\d+:\d+/, lost) == [["0:11"], ["1:02"], ["11:03"]]
  end

  test "a picture shows both percents, each conversion and each lost stock" do
    game =
      game(
        frames([
          {60, [], []},
          {5, [action: @nair], hit(90.0)},
          {60, [action: @wait], [action: @fall]},
          {60, [], [action: @dead, stock: 3]},
          {100, [], [action: @wait, percent: 0.0]},
          {60, [action: @dead, stock: 3], []}
        ])
      )

    svg = Report.svg(game)
    assert length(Regex.scan(~r/<path d="M[^"]*H/, svg)) > 2
    assert svg =~ ~s(<title>0:01 neutral air, 90.0 %, kill</title>)
    assert svg =~ "0:02 opponent: killed" and svg =~ "0:04 own: self-destruct"
    assert length(Regex.scan(~r/<circle/, svg)) == 2

    dir = tmp_dir!("report")
    assert :ok = Report.write(game, Path.join(dir, "game.svg"))
    assert File.read!(Path.join(dir, "game.svg")) == svg
    assert {:error, %Error{kind: :mismatch}} = Report.write(game, Path.join(dir, "game.png"))
    assert {:error, %Error{kind: :io}} = Report.write(game, Path.join(dir, "none/game.svg"))
    assert File.ls!(dir) == ["game.svg"]
  end

  describe "a corpus" do
    setup do
      dir = tmp_dir!("report")
      replays = Path.join(dir, "replays")
      :ok = Native.corpus_fixtures(replays)
      [replay | _] = Path.wildcard(replays <> "/valid*.slp")
      {:ok, corpus} = Corpus.import(replay, into: Path.join(dir, "corpus"))
      {:ok, dir: dir, corpus: corpus}
    end

    test "has a report of each game, up to the last frame", %{corpus: corpus} do
      {:ok, recording} = Corpus.recording(corpus, 0)
      {:ok, game} = Report.of_corpus(corpus, 0)
      # A recording lacks the last frame.
      assert game.frames == length(recording) + 1
      {:ok, [entry]} = Corpus.games(corpus)
      assert game.stage == entry.stage
      assert game.title == Path.basename(entry.source, ".slp")
      assert Enum.map(game.players, & &1.character) == entry.characters
      assert {:ok, [^game]} = Report.games(corpus)

      {:ok, moments} = Reading.moments(corpus, 0, 0)
      {:ok, mirrored} = Reading.moments(corpus, 0, 1)
      {number, stage, {own, opponent}} = List.last(moments)
      assert {number, own != opponent} == {game.last, true}
      assert List.last(mirrored) == {number, stage, {opponent, own}}

      {:ok, other} = Report.of_corpus(corpus, 0, player: 1)
      assert Enum.reverse(other.players) == game.players
    end

    test "without the game, or of other games, is an error", %{corpus: corpus, dir: dir} do
      assert {:error, %Error{kind: :out_of_range, details: %{field: "game", max: 0}}} =
               Report.of_corpus(corpus, 1)

      {:ok, vectors} =
        Corpus.build({:vector, 1}, [{[0.5], [1]}],
          into: Path.join(dir, "v"),
          heads: [go: {:bernoulli, 1}]
        )

      {:ok, states} = Corpus.states(corpus, 0, 0)
      still = fn _frame -> Sconce.Compat.Melee.neutral() end
      {:ok, met} = Sconce.Dagger.append(Path.join(dir, "met"), [states], still)
      assert {:error, %Error{kind: :mismatch} = error} = Report.of_corpus(met, 0)
      assert Exception.message(error) =~ "relabelled"
      assert {:error, %Error{kind: :mismatch}} = Report.of_corpus(vectors, 0)
      assert {:error, %Error{kind: :mismatch}} = Report.games(vectors)

      assert_raise ArgumentError, ~r/game: expected 0 or more/, fn ->
        Report.of_corpus(corpus, -1)
      end
    end

    test "whose file is cut is an error that names the file", %{corpus: corpus} do
      {:ok, [entry]} = Corpus.games(corpus)
      path = Path.join(corpus.dir, entry.file)
      File.write!(path, binary_part(File.read!(path), 0, 1000))
      assert {:error, %Error{kind: kind} = error} = Report.of_corpus(corpus, 0)
      assert kind in [:corrupt, :not_found]
      assert Exception.message(error) =~ Path.basename(path)
    end
  end
end
