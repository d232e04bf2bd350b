defmodule Sconce.Bench.FramesTest do
  use ExUnit.Case, async: false

  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Frame}
  alias Sconce.Bench.{Case, Frames}

  setup do
    before = System.get_env("SCONCE_REPLAYS")

    on_exit(fn ->
      if before,
        do: System.put_env("SCONCE_REPLAYS", before),
        else: System.delete_env("SCONCE_REPLAYS")
    end)
  end

  test "a packed row becomes the frame that packs to it" do
    dir = tmp_dir!("games")
    Frames.make_games(dir)
    {:ok, corpus} = Corpus.import(dir, into: Path.join(dir, "corpus"), progress: false)
    {:ok, games} = Corpus.games(corpus)

    for game <- 0..(length(games) - 1), player <- 0..1 do
      {:ok, recording} = Corpus.recording(corpus, game, player)

      for {row, _labels} <- recording,
          do: assert({:ok, ^row} = row |> Frames.unpack() |> Frame.pack())
    end

    {:ok, row} = Frame.pack(Frames.made(7))
    assert {:ok, ^row} = row |> Frames.unpack() |> Frame.pack()
  end

  test "the sequence is from a real game if there is one, and synthetic otherwise" do
    System.delete_env("SCONCE_REPLAYS")
    assert {frames, :made} = Frames.sequence()
    assert elem(frames, 0) == Frames.made(1)

    dir = tmp_dir!("games")
    System.put_env("SCONCE_REPLAYS", dir)
    assert_raise RuntimeError, "no games in #{dir}", &Frames.sequence/0
    Frames.make_games(dir)
    assert {frames, :real} = Frames.sequence()
    assert %Frame{own: %Frame.Player{}, previous_action: %{buttons: %{a: _}}} = elem(frames, 0)
  end

  test "each input is timed alone, in turn, until there are enough samples" do
    counter = :counters.new(3, [])
    count = fn i -> {:ok, :counters.add(counter, i, 1)} end
    assert {us, {:ok, :ok}} = Case.time_each({1, 2, 3}, count, 0.0, 12)
    assert length(us) == 12 and Enum.all?(us, &(&1 >= 0))
    # Each input was also called in a trial before.
    for i <- 1..3, do: assert(:counters.get(counter, i) == 8)
    wrong = fn _input -> {:error, :wrong} end
    assert_raise MatchError, fn -> Case.time_each({1}, wrong, 0.0, 1) end
  end
end
