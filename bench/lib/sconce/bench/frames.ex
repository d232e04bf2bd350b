defmodule Sconce.Bench.Frames do
  @moduledoc false
  # Frames for measuring policies: those of a real game if there is one.

  alias Sconce.{Corpus, Frame, Native}
  alias Sconce.Bench.Machine
  alias Sconce.Frame.Player

  # Ten seconds of play, so that consecutive frames differ and all of them stay in a cache.
  @sequence 600
  @broken ~w(too_short not_two_players truncated corrupt)
  @buttons ~w(a b x y z l r d_up)a

  @doc """
  Consecutive frames of one game, and their origin: `:real` for the longest game in `SCONCE_REPLAYS`, else
  `:made`.
  """
  @spec sequence() :: {tuple, :real | :made}
  def sequence do
    dir = System.get_env("SCONCE_REPLAYS")
    key = {__MODULE__, dir}

    # Frames are stored as literals, because garbage collection would copy frames on the heap while measuring.
    with nil <- :persistent_term.get(key, nil) do
      sequence = if dir, do: {real(dir), :real}, else: {made(), :made}
      :persistent_term.put(key, sequence)
      :persistent_term.get(key)
    end
  end

  defp made, do: 1..@sequence |> Enum.map(&made/1) |> List.to_tuple()

  defp real(dir) do
    scratched(fn scratch ->
      paths = replays(dir)
      paths != [] || raise "no games in #{dir}"
      into = Path.join(scratch, "corpus")
      corpus = Machine.value!(Corpus.import(paths, into: into, progress: false))
      rows = corpus |> longest() |> then(&Machine.value!(Corpus.recording(corpus, &1)))
      # Takes the middle of the game, where both players are active.
      middle = Enum.slice(rows, div(length(rows), 2), @sequence)
      middle |> Enum.map(fn {row, _labels} -> unpack(row) end) |> List.to_tuple()
    end)
  end

  defp longest(corpus) do
    games = corpus |> Corpus.games() |> Machine.value!() |> Enum.with_index()
    {_game, index} = Enum.max_by(games, fn {game, _index} -> game.frames end)
    index
  end

  @doc "The frame of a packed row, as game code would build it."
  @spec unpack(binary) :: Frame.t()
  def unpack(row) do
    numbers = for <<number::float-32-little <- row>>, do: whole(number)
    at = Frame.columns() |> Enum.zip(numbers) |> Map.new()

    %Frame{
      own: player(at, "own"),
      opponent: player(at, "opponent"),
      stage: at["stage"],
      frame: at["frame"],
      distance: at["distance"],
      name_id: at["name_id"],
      previous_action: if(at["prev_exists"] == 1, do: action(at)),
      # A row holds at most five projectiles, but counts all of them.
      projectiles: for(i <- 0..(at["projectile_count"] - 1)//1, do: projectile(at, min(i, 4)))
    }
  end

  defp whole(number), do: if(trunc(number) == number, do: trunc(number), else: number)

  defp player(at, side),
    do:
      struct!(Player, for({name, _default} <- Player.fields(), do: {name, at["#{side}.#{name}"]}))

  defp action(at) do
    %{
      buttons: Map.new(@buttons, &{&1, at["prev_buttons.#{&1}"] == 1}),
      main_stick: %{x: at["prev_main_x"], y: at["prev_main_y"]},
      c_stick: %{x: at["prev_c_x"], y: at["prev_c_y"]},
      shoulder: at["prev_shoulder"]
    }
  end

  defp projectile(at, i) do
    for name <- ~w(owner type x y speed_x speed_y)a,
        into: %{},
        do: {name, at["projectile_#{i}.#{name}"]}
  end

  @doc "Frame `i` of an endless synthetic game."
  @spec made(integer) :: Frame.t()
  def made(i) do
    %Frame{
      own: made_player(i, -20.0),
      opponent: made_player(i + 7, 20.0),
      stage: 31,
      frame: i,
      projectiles: [%{owner: :own, type: 54, x: 1.0 * i, y: 5.0, speed_x: 2.0, speed_y: 0.0}]
    }
  end

  defp made_player(i, x) do
    %Player{
      percent: rem(i, 120) / 1,
      facing: 1,
      x: x + rem(i, 10),
      y: rem(i, 30) / 1,
      action: rem(i * 13, 399),
      character: rem(i, 26),
      on_ground: rem(i, 2) == 0,
      stock: 4
    }
  end

  @doc "The replays in a folder."
  @spec replays(Path.t()) :: [Path.t()]
  def replays(dir), do: dir |> Path.join("**/*.slp") |> Path.wildcard() |> Enum.sort()

  @doc "Writes synthetic replays to a folder."
  @spec make_games(Path.t()) :: [Path.t()]
  def make_games(dir) do
    :ok = Native.corpus_fixtures(dir)
    for name <- @broken, do: File.rm!(Path.join(dir, name <> ".slp"))
    replays(dir)
  end

  @doc "Calls `fun` with a temporary folder, which is removed afterwards."
  @spec scratched((Path.t() -> result)) :: result when result: term
  def scratched(fun) do
    name = "sconce-bench-#{System.pid()}-#{System.unique_integer([:positive])}"
    dir = Path.join(System.tmp_dir!(), name)
    File.mkdir_p!(dir)

    try do
      fun.(dir)
    after
      File.rm_rf!(dir)
    end
  end
end
