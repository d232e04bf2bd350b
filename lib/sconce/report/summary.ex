defmodule Sconce.Report.Summary do
  alias Sconce.{Corpus, Figures}
  alias Sconce.Report.Game

  @moduledoc """
  The figures of many games, made by `Sconce.Report.sum/2`.

  `games` is the count of games, `by` is `:name` or `:character`, and `rows` has a map for each player or character, the
  one with the most games first:

  | key | content |
  |---|---|
  | `key` | the name, or the internal id of the character; nil for games without frames |
  | `games` | games of this player; a game of a character against itself counts twice |
  | `wins` | games in which the opponent lost the last stock, and this player did not |
  | `openings`, `neutral_wins`, `counter_attacks`, `trades`, `kills`, `damage`, `damage_taken`, `stocks_lost`, `self_destructs` | sums over these games |
  | `openings_per_game`, `kills_per_game`, `self_destructs_per_game` | means |
  | `damage_per_opening`, `openings_per_kill`, `neutral_win_ratio` | ratios of the sums, not means of the games' ratios; nil as in `Sconce.Report.Game` |
  """

  @enforce_keys [:games, :by, :rows]
  defstruct @enforce_keys

  @type t :: %__MODULE__{games: non_neg_integer, by: :name | :character, rows: [map]}

  @summed [:openings, :neutral_wins, :counter_attacks, :trades, :kills] ++
            [:damage, :damage_taken, :stocks_lost, :self_destructs]

  @doc false
  def of(games, by) do
    rows =
      for(%Game{players: [a, b]} <- games, pair <- [{a, b}, {b, a}], do: pair)
      |> Enum.group_by(fn {player, _other} -> Map.get(player, by) end)
      |> Enum.map(&row/1)
      |> Enum.sort_by(&{-&1.games, &1.key})

    %__MODULE__{games: length(games), by: by, rows: rows}
  end

  defp row({key, pairs}) do
    count = length(pairs)
    sums = Map.new(@summed, fn figure -> {figure, sum(pairs, figure)} end)
    against = pairs |> Enum.map(fn {_player, other} -> other.neutral_wins end) |> Enum.sum()

    Map.merge(sums, %{
      key: key,
      games: count,
      wins: Enum.count(pairs, &won?/1),
      openings_per_game: sums.openings / count,
      kills_per_game: sums.kills / count,
      self_destructs_per_game: sums.self_destructs / count,
      damage_per_opening: Game.ratio(sums.damage, sums.openings),
      openings_per_kill: Game.ratio(sums.openings, sums.kills),
      neutral_win_ratio: Game.ratio(sums.neutral_wins, sums.neutral_wins + against)
    })
  end

  defp sum(pairs, figure),
    do: pairs |> Enum.map(fn {player, _other} -> Map.fetch!(player, figure) end) |> Enum.sum()

  defp won?({%{stocks_left: own}, %{stocks_left: 0}}) when own != 0, do: true
  defp won?(_pair), do: false

  @doc false
  # The key of a row as text.
  def label(%__MODULE__{by: :character}, %{key: id}) when is_integer(id) and id >= 0,
    do: Corpus.character(id)

  def label(_summary, %{key: key}), do: to_string(key)

  defimpl Inspect do
    alias Sconce.Report.Summary
    alias Sconce.Text

    @shown 3

    def inspect(%{games: games, rows: rows} = summary, _opts) when is_list(rows) do
      {shown, rest} = Enum.split(rows, @shown)
      names = Enum.map_join(shown, ", ", &Text.printable(Summary.label(summary, &1)))
      more = if rest == [], do: "", else: " …"
      parts = Enum.reject([Figures.counted(games, "game"), names <> more], &(&1 == ""))
      "#Sconce.Report.Summary<#{Enum.join(parts, " · ")}>"
    end

    def inspect(_built_by_hand, _opts), do: "#Sconce.Report.Summary<no rows>"
  end
end
