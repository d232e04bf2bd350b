defmodule Sconce.Test.Melee do
  @moduledoc "Small games of Melee, for reports."

  @player %{
    percent: 0.0,
    facing: 1,
    x: 0.0,
    y: 0.0,
    action: 14,
    character: 1,
    on_ground: true,
    stock: 4,
    action_frame: 1.0
  }

  @doc """
  Returns the frames of a game. A segment is `{count, own, opponent}`: for `count` frames the players keep these fields,
  and those of the segments before.
  """
  def frames(segments, first \\ 0) do
    {frames, _last} =
      Enum.flat_map_reduce(segments, {first, @player, %{@player | character: 18}}, &segment/2)

    frames
  end

  defp segment({count, own, opponent}, {first, own_before, opponent_before}) do
    own = Map.merge(own_before, Map.new(own))
    opponent = Map.merge(opponent_before, Map.new(opponent))

    frames =
      for frame <- first..(first + count - 1)//1,
          do: %{own: own, opponent: opponent, stage: 31, frame: frame}

    {frames, {first + count, own, opponent}}
  end

  @doc "Adds frames to a report."
  def added(report, frames) do
    Enum.reduce(frames, report, fn frame, report ->
      {:ok, report} = Sconce.Report.add(report, frame)
      report
    end)
  end

  @doc "Returns the report of frames."
  def game(frames), do: Sconce.Report.new() |> added(frames) |> Sconce.Report.finish()

  @doc "Returns the same frames as the other player sees them."
  def swapped(frames),
    do: for(frame <- frames, do: %{frame | own: frame.opponent, opponent: frame.own})
end
