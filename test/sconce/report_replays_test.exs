defmodule Sconce.ReportReplaysTest do
  # Two real games, read by hand: the raw columns (action state, percent, stocks of each frame) were printed, and the
  # openings, ends, deaths and self-destructs below were decided from them, without a report.
  use ExUnit.Case, async: true

  import Sconce.Test.{Melee, Scratch}

  alias Sconce.{Corpus, Report}
  alias Sconce.Report.Reading

  @moduletag :replays
  @moduletag timeout: 600_000

  # Percents were printed with one decimal, so that a difference of two is exact to 0.1.
  @decimal 0.11

  # {player, start, end, opening, first move, percent before, damage, kill}
  @by_hand %{
    "validation/mewtwo_recovery_mix.slp" => %{
      conversions: [
        {1, 1224, 1473, :neutral_win, "up tilt", 3.0, 17.5, false},
        {1, 1579, 1735, :neutral_win, "down air", 20.5, 4.7, false},
        {1, 1766, 1875, :neutral_win, "neutral air", 25.2, 13.0, false},
        {1, 2131, 2408, :neutral_win, "down air", 38.2, 20.9, false},
        {1, 2447, 3420, :neutral_win, "jab", 59.1, 29.4, false},
        {1, 3702, 3778, :neutral_win, "forward smash", 88.5, 14.0, true},
        # The victim of a throw is thrown, not held: the 4.0 percent of its hit do not count.
        {1, 4774, 4988, :neutral_win, "jab", 0.0, 6.7, false},
        # Held by a special move, without damage while held.
        {0, 5101, 5184, :neutral_win, "special", 0.0, 0.0, false},
        {1, 5171, 5434, :counter_attack, "jab", 10.7, 17.0, false},
        {0, 5424, 5897, :counter_attack, "neutral air", 10.0, 47.5, false},
        {1, 6083, 6277, :neutral_win, "special", 27.7, 10.8, false},
        {0, 7410, 7548, :trade, "neutral air", 57.5, 3.8, false},
        {1, 7410, 7671, :trade, "down air", 38.5, 2.0, false},
        {0, 7592, 7850, :counter_attack, "neutral air", 61.3, 7.3, false},
        {1, 7873, 7941, :neutral_win, "down air", 40.5, 4.4, false},
        {0, 8499, 8814, :neutral_win, "neutral air", 68.6, 12.4, false},
        # Five hits of a throw do not count either.
        {1, 8879, 9254, :neutral_win, "down air", 0.0, 9.3, true}
      ],
      # {player, stocks at the start, start, end, percent at the end, cause}
      stocks: [
        {0, 4, -40, 3778, 102.5, :kill},
        {0, 3, 3838, 8157, 44.9, :self_destruct},
        {0, 2, 8217, 9254, 14.1, :kill},
        {0, 1, 9314, 10_178, 0.0, :self_destruct},
        {1, 4, -40, nil, 81.0, nil}
      ],
      # {openings, neutral wins, counter-attacks, trades, kills, self-destructs}
      players: [{5, 2, 2, 1, 0, 2}, {12, 10, 1, 1, 2, 0}]
    },
    "train/rollback_frames.slp" => %{
      conversions: [
        {1, 132, 568, :neutral_win, "neutral air", 0.0, 51.5, false},
        {0, 608, 868, :neutral_win, "neutral air", 0.0, 20.8, false},
        {1, 986, 1135, :neutral_win, "grab", 51.5, 3.4, false},
        {1, 1221, 1318, :neutral_win, "back air", 54.9, 10.0, false},
        {0, 1357, 1475, :neutral_win, "jab", 20.8, 15.3, false},
        {0, 1488, 1573, :neutral_win, "neutral air", 36.1, 7.7, false},
        {1, 1534, 1858, :counter_attack, "grab", 64.9, 26.9, false},
        # A laser hits the victim in a fall, for 1.0 percent: no hitstun, no damage of the conversion.
        {0, 1796, 2675, :counter_attack, "back air", 43.8, 65.7, false},
        {0, 2696, 2857, :neutral_win, "jab", 110.5, 7.9, false},
        {1, 2795, 3018, :counter_attack, "forward air", 91.8, 13.0, false},
        {1, 3141, 3521, :neutral_win, "back air", 104.8, 21.4, false},
        {0, 3436, 3495, :counter_attack, "special", 118.4, 5.0, true},
        {1, 3930, 4250, :neutral_win, "grab", 126.2, 26.0, true},
        {0, 4455, 4553, :neutral_win, "back air", 0.0, 15.0, false},
        {0, 4809, 5070, :neutral_win, "grab", 18.0, 24.3, false},
        {0, 5198, 5324, :neutral_win, "neutral air", 42.3, 9.0, false},
        {1, 5265, 5509, :counter_attack, "forward air", 0.0, 17.0, false},
        {0, 5588, 5669, :neutral_win, "special", 56.7, 5.0, false},
        {1, 5677, 5987, :neutral_win, "grab", 17.0, 28.4, false},
        {0, 6041, 6245, :neutral_win, "neutral air", 61.7, 15.9, true},
        {0, 6521, 6655, :neutral_win, "up tilt", 0.0, 24.5, false},
        {0, 6689, 6743, :neutral_win, "neutral air", 24.5, 8.3, false},
        {1, 6718, 6773, :counter_attack, "down tilt", 45.4, 9.0, false},
        {0, 6844, 7069, :neutral_win, "neutral air", 32.8, 20.2, false},
        {1, 7109, 7381, :neutral_win, "down tilt", 54.4, 15.2, false},
        {0, 7338, 7684, :counter_attack, "special", 55.9, 24.5, false},
        {1, 7620, 7876, :counter_attack, "forward air", 69.6, 32.1, false},
        {0, 7964, 8100, :neutral_win, "neutral air", 80.4, 7.6, false},
        {1, 8112, 8343, :neutral_win, "back air", 101.7, 10.0, true},
        {0, 8525, 8677, :neutral_win, "back air", 88.0, 9.0, false},
        {0, 8690, 8932, :neutral_win, "back air", 97.0, 13.6, false},
        {0, 8954, 9153, :neutral_win, "up smash", 110.6, 18.0, true}
      ],
      stocks: [
        {0, 4, -40, 4250, 152.2, :kill},
        {0, 3, 4310, 8343, 111.7, :kill},
        {0, 2, 8403, nil, 0.0, nil},
        {1, 4, -40, 3495, 123.4, :kill},
        {1, 3, 3555, 4181, 0.0, :self_destruct},
        {1, 2, 4241, 6245, 77.6, :kill},
        {1, 1, 6305, 9153, 128.6, :kill}
      ],
      players: [{19, 16, 3, 0, 3, 0}, {13, 8, 5, 0, 2, 1}]
    }
  }

  defp corpus(replays) do
    root = System.fetch_env!("SCONCE_REPLAYS")
    paths = for replay <- replays, do: Path.join(root, replay)
    {:ok, corpus} = Corpus.import(paths, into: tmp_dir!("report"), progress: false)
    corpus
  end

  for {replay, by_hand} <- @by_hand do
    test "#{replay} has the report that was made by hand" do
      {:ok, game} = Report.of_corpus(corpus([unquote(replay)]), 0)
      by_hand = unquote(Macro.escape(by_hand))

      assert length(game.conversions) == length(by_hand.conversions)
      for pair <- Enum.zip(game.conversions, by_hand.conversions), do: conversion(pair)

      stocks =
        for {player, i} <- Enum.with_index(game.players), stock <- player.stocks, do: {i, stock}

      assert length(stocks) == length(by_hand.stocks)
      for pair <- Enum.zip(stocks, by_hand.stocks), do: stock(pair)

      counts = [:openings, :neutral_wins, :counter_attacks, :trades, :kills, :self_destructs]

      found =
        for player <- game.players,
            do: counts |> Enum.map(&Map.fetch!(player, &1)) |> List.to_tuple()

      assert found == by_hand.players

      for {player, i} <- Enum.with_index(game.players) do
        damages = for {^i, _, _, _, _, _, damage, _} <- by_hand.conversions, do: damage
        mean = Enum.sum(damages) / length(damages)
        assert_in_delta player.damage_per_opening, mean, @decimal
      end
    end
  end

  defp conversion({found, {player, start, stop, opening, opener, percent, damage, kill}}) do
    assert {found.player, found.start, found.end, found.opening, found.opener, found.kill} ==
             {player, start, stop, opening, opener, kill}

    assert_in_delta found.start_percent, percent, @decimal
    assert_in_delta found.damage, damage, @decimal
  end

  defp stock({{player, found}, {by_hand, count, start, stop, percent, lost}}) do
    assert {player, found.count, found.start, found.end, found.lost} ==
             {by_hand, count, start, stop, lost}

    assert_in_delta found.end_percent, percent, @decimal
  end

  test "each game has one report as a corpus and as a played game, with a countdown and rollbacks" do
    corpus = corpus(["train", "validation"])
    {:ok, entries} = Corpus.games(corpus)
    {:ok, games} = Report.games(corpus)
    assert games != [] and length(games) == length(entries)

    for {{entry, game}, index} <- entries |> Enum.zip(games) |> Enum.with_index() do
      {:ok, moments} = Reading.moments(corpus, index, 0)
      frames = for {frame, stage, {own, other}} <- moments, do: frame(frame, stage, own, other)
      [first | _] = frames
      countdown = for number <- -123..-41, do: %{first | frame: number}
      report = Report.new(players: Reading.names(entry, 0), title: Reading.title(entry))
      played = report |> added(countdown) |> added(rolled_back(frames)) |> Report.finish()
      assert played == game
    end
  end

  # Every hundredth frame is preceded by seven guesses that a rollback corrects.
  defp rolled_back(frames) do
    frames
    |> Enum.chunk_every(100)
    |> Enum.flat_map(fn [first | _] = chunk ->
      wrong = %{first.own | action: 75, percent: first.own.percent + 5, stock: 1}
      guesses = for i <- 0..6, do: %{first | frame: first.frame + i, own: wrong}
      guesses ++ chunk
    end)
  end

  defp frame(frame, stage, own, opponent),
    do: %{own: player(own), opponent: player(opponent), stage: stage, frame: frame}

  defp player({percent, action, age, stocks, character}) do
    %{
      percent: percent,
      action: action,
      action_frame: age,
      stock: stocks,
      character: character,
      facing: 1,
      x: 0.0,
      y: 0.0,
      on_ground: true
    }
  end
end
