defmodule Sconce.Report.Game do
  alias Sconce.{Corpus, Figures}
  alias Sconce.Report.{Fold, States}

  @moduledoc """
  The report of one game, made by `Sconce.Report.finish/1` and `Sconce.Report.of_corpus/3`.

  | key | content |
  |---|---|
  | `title` | name of the game, or nil |
  | `stage` | stage id of the game, or nil without frames |
  | `first`, `last`, `frames` | numbers of the first and the last frame, and how many frames lie between them, both included |
  | `players` | a map for each of the two players, see below |
  | `conversions` | a map for each conversion, the earliest first, see below |

  ## Players

  | key | content |
  |---|---|
  | `name`, `character` | name, and internal id of the character, as in `Sconce.Corpus.character/1` |
  | `openings` | count of openings: `neutral_wins`, `counter_attacks` and `trades` together |
  | `kills` | stocks of the opponent that were lost during a conversion of this player |
  | `damage` | damage of the player's conversions, in percent |
  | `damage_per_opening`, `openings_per_kill` | ratios; nil without an opening, or without a kill |
  | `neutral_win_ratio` | share of this player in all neutral wins; nil without one |
  | `damage_taken` | sum of the increases of the player's percent, from any source |
  | `stocks_left`, `stocks_lost`, `self_destructs` | counts of the player's stocks |
  | `stocks` | a map for each stock, the first one first: `count` (stocks at its start), `start`, `end` (frames), `start_percent`, `end_percent` and `lost` (`:kill`, `:self_destruct`, or nil with a nil `end`) |
  | `line` | the percent over time: `{frame, percent}` for the first frame and each change |

  ## Conversions

  | key | content |
  |---|---|
  | `player` | index of the attacker in `players` |
  | `opening` | `:neutral_win`, `:counter_attack` or `:trade` |
  | `opener` | name of the attacker's move at the start |
  | `start`, `end` | frames; `end` is nil if the conversion runs at the last frame |
  | `start_percent`, `end_percent` | percent of the opponent before the first hit and before the end |
  | `damage` | damage of all moves |
  | `moves` | a map for each move that did damage: `move`, `frame`, `hits`, `damage` |
  | `kill` | whether the opponent lost the stock |
  """

  @enforce_keys [:title, :stage, :first, :last, :frames, :players, :conversions]
  defstruct @enforce_keys

  @type t :: %__MODULE__{
          title: String.t() | nil,
          stage: integer | nil,
          first: integer | nil,
          last: integer | nil,
          frames: non_neg_integer,
          players: [map],
          conversions: [map]
        }

  @doc false
  def of(%{sides: {own, opponent}, names: {name, other}} = report) do
    # The conversions over a player are those of the other one.
    conversions = of_player(opponent, 0) ++ of_player(own, 1)
    first = first(own)

    %__MODULE__{
      title: report.title,
      stage: report.stage,
      first: first,
      last: report.frame,
      frames: if(first, do: report.frame - first + 1, else: 0),
      players: [player(name, own, 0, conversions), player(other, opponent, 1, conversions)],
      conversions: Enum.sort_by(conversions, &{&1.start, &1.player})
    }
  end

  defp of_player(victim, player),
    do: for(conversion <- Fold.conversions(victim), do: Map.put(conversion, :player, player))

  defp first(%{line: []}), do: nil
  defp first(%{line: line}), do: line |> List.last() |> elem(0)

  defp player(name, side, index, conversions) do
    {own, others} = Enum.split_with(conversions, &(&1.player == index))
    lost = Enum.filter(Fold.stocks(side), & &1.lost)
    wins = count(own, :neutral_win)

    Map.merge(attack(own), %{
      name: name,
      character: side.character,
      neutral_win_ratio: ratio(wins, wins + count(others, :neutral_win)),
      damage_taken: side.damage_taken,
      stocks_left: side.now && elem(side.now, 3),
      stocks_lost: length(lost),
      self_destructs: Enum.count(lost, &(&1.lost == :self_destruct)),
      stocks: Fold.stocks(side),
      line: Enum.reverse(side.line)
    })
  end

  defp attack(own) do
    openings = length(own)
    kills = Enum.count(own, & &1.kill)
    damage = own |> Enum.map(& &1.damage) |> Enum.sum() |> Kernel./(1)

    %{
      openings: openings,
      neutral_wins: count(own, :neutral_win),
      counter_attacks: count(own, :counter_attack),
      trades: count(own, :trade),
      kills: kills,
      damage: damage,
      damage_per_opening: ratio(damage, openings),
      openings_per_kill: ratio(openings, kills)
    }
  end

  defp count(conversions, opening), do: Enum.count(conversions, &(&1.opening == opening))

  @doc false
  @spec ratio(number, number) :: float | nil
  def ratio(_part, whole) when whole == 0, do: nil
  def ratio(part, whole), do: part / whole

  @doc false
  # The move that began most conversions of a player, with its count, or nil.
  def usual_opener(%__MODULE__{conversions: conversions}, player) do
    conversions
    |> Enum.filter(&(&1.player == player and &1.opener != States.other()))
    |> Enum.frequencies_by(& &1.opener)
    |> Enum.min_by(fn {move, count} -> {-count, move} end, fn -> nil end)
  end

  @doc false
  # The conversion of a player with the most damage, or nil.
  def best(%__MODULE__{conversions: conversions}, player) do
    conversions
    |> Enum.filter(&(&1.player == player))
    |> Enum.max_by(& &1.damage, fn -> nil end)
  end

  @doc false
  # The name of a character; a report without frames has none.
  def character(%{character: id}) when is_integer(id) and id >= 0, do: Corpus.character(id)
  def character(_none), do: ""

  defimpl Inspect do
    alias Sconce.Report.Game
    alias Sconce.Text

    def inspect(%{players: [_, _] = players, frames: frames}, _opts) do
      shown = Enum.map_join(players, " · ", &player/1)
      "#Sconce.Report.Game<#{shown} · #{Figures.counted(frames, "frame")}>"
    end

    def inspect(_built_by_hand, _opts), do: "#Sconce.Report.Game<no players>"

    defp player(player) do
      name =
        Enum.join(
          Enum.reject([Text.printable(player.name), Game.character(player)], &(&1 == "")),
          " "
        )

      openings = Figures.counted(player.openings, "opening")
      "#{name} #{openings}, #{Figures.counted(player.kills, "kill")}"
    end
  end
end
