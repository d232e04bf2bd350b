defmodule Sconce.Report.States do
  @moduledoc false
  # The action states of Melee that a report tells apart, and the moves they belong to.

  # {class, what the class means, the action states}. The ranges are those of Slippi's statistics.
  @classes [
    {:dying, "between a death and the next stock", [0..10]},
    {:control, "on the ground and able to act", [14..24, 39..41, 45..64, 212..212]},
    {:hit, "hitstun, tumble, or hit while lying", [38..38, 75..91, 185..185, 193..193]},
    {:grabbed, "held by a grab", [223..232]},
    {:captured, "held by a special move, or buried, asleep or frozen",
     [266..292, 294..304, 327..338]}
  ]

  # {move, the action states of the attacker}
  @moves [
    {"jab", [44..49]},
    {"dash attack", [50..50]},
    {"forward tilt", [51..55]},
    {"up tilt", [56..56]},
    {"down tilt", [57..57]},
    {"forward smash", [58..62]},
    {"up smash", [63..63]},
    {"down smash", [64..64]},
    {"neutral air", [65..65]},
    {"forward air", [66..66]},
    {"back air", [67..67]},
    {"up air", [68..68]},
    {"down air", [69..69]},
    {"getup attack", [187..187, 195..195]},
    {"grab", [212..216, 218..218]},
    {"pummel", [217..217]},
    {"forward throw", [219..219]},
    {"back throw", [220..220]},
    {"up throw", [221..221]},
    {"down throw", [222..222]},
    {"ledge attack", [256..257]},
    {"special", [341..398]}
  ]

  # Characters whose common attacks have action states of their own: {internal id, moves}.
  @own_moves [
    {9, [{"forward smash", [349..351]}]},
    {24,
     [
       {"jab", [341..343]},
       {"down tilt", [345..345]},
       {"forward smash", [346..346]},
       {"neutral air", [347..347]},
       {"back air", [348..348]},
       {"up air", [349..349]}
     ]}
  ]
  @other "other"
  @highest 398

  spread = fn table ->
    for {name, ranges} <- table, range <- ranges, id <- range, into: %{}, do: {id, name}
  end

  tuple = fn map, other -> List.to_tuple(for id <- 0..398, do: Map.get(map, id, other)) end

  @class_of tuple.(spread.(for {class, _, ranges} <- @classes, do: {class, ranges}), :other)
  @move_of tuple.(spread.(@moves), @other)
  @own_move_of Map.new(@own_moves, fn {id, moves} ->
                 {id, tuple.(Map.merge(spread.(@moves), spread.(moves)), @other)}
               end)

  @doc "Returns the class of an action state; `:other` has no class of its own."
  @spec class(integer) :: :dying | :control | :hit | :grabbed | :captured | :other
  def class(action) when action in 0..@highest, do: elem(@class_of, action)
  def class(_unknown), do: :other

  @doc "Returns the move that a character performs in an action state, or `#{@other}`."
  @spec move(integer, integer) :: String.t()
  def move(action, character) when action in 0..@highest,
    do: @own_move_of |> Map.get(character, @move_of) |> elem(action)

  def move(_unknown, _character), do: @other

  @doc "Returns the name of a hit by something that is no move of the table, such as a projectile."
  def other, do: @other

  @doc "Returns the classes as rows of a Markdown table."
  @spec docs() :: String.t()
  def docs do
    Enum.map_join(@classes, "\n", fn {class, meaning, ranges} ->
      "| `#{class}` | #{meaning} | #{Enum.map_join(ranges, ", ", &text/1)} |"
    end)
  end

  defp text(%{first: id, last: id}), do: "#{id}"
  defp text(%{first: first, last: last}), do: "#{first} to #{last}"
end
