defmodule Sconce.Env.Billiards.Picture do
  @moduledoc false
  # Draws the table, and a shot as the text of an SVG file. Shapes are those of `Sconce.Env.Drawing`.

  alias Sconce.Figures

  # Half of the table, and the radii of a pocket, the cue ball and the others, in metres.
  @half_x 1.27
  @half_y 0.635
  @pocket 0.05
  @cue_radius 0.028
  @radius 0.026

  # Pixels of a metre, and of the space around the table.
  @scale 300
  @margin 40
  @title_height 30
  @colors ~w(#f8fafc #facc15 #2563eb #dc2626 #7c3aed #ea580c #15803d #7f1d1d)

  @doc "Returns the four cushions as shapes."
  def edges(color) do
    for {x, y, to_x, to_y} <- [{-1, -1, 1, -1}, {1, -1, 1, 1}, {1, 1, -1, 1}, {-1, 1, -1, -1}],
        do: {:line, [x * @half_x, y * @half_y, to_x * @half_x, to_y * @half_y], color}
  end

  @doc "Returns the six pockets as shapes."
  def pockets(color) do
    for x <- [-1, 0, 1], y <- [-1, 1], do: {:disc, [x * @half_x, y * @half_y, @pocket], color}
  end

  @doc "Returns the radius of a ball in metres."
  def radius(0), do: @cue_radius
  def radius(_ball), do: @radius

  @doc "Returns the picture of a shot."
  def svg(shot) do
    width = round(2 * @half_x * @scale) + 2 * @margin
    height = round(2 * @half_y * @scale) + 2 * @margin + @title_height
    tracks = shot.frames |> Enum.map(& &1.balls) |> Enum.zip_with(& &1) |> Enum.with_index()

    """
    <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 #{width} #{height}" width="#{width}" height="#{height}" font-family="system-ui, sans-serif">
    <rect width="100%" height="100%" fill="#ffffff"/>
    <text x="#{@margin}" y="26" font-size="15" fill="#334155">#{title(shot)}</text>
    #{table()}
    #{Enum.map_join(tracks, &path/1)}#{Enum.map_join(tracks, &before/1)}#{Enum.map_join(tracks, &rest/1)}</svg>
    """
  end

  defp title(shot) do
    reward = Float.round(Enum.sum(Map.values(shot.terms)) / 1, 1)
    fell = for %{kind: :pocket, ball: ball} <- shot.events, do: name(ball)
    fell = if fell == [], do: "nothing fell", else: "fell: #{Enum.join(fell, ", ")}"
    seconds = Float.round(List.last(shot.frames).time / 1, 1)
    "#{seconds} s · #{Figures.counted(length(shot.events), "event")} · #{fell} · reward #{reward}"
  end

  defp name(0), do: "cue ball"
  defp name(ball), do: "#{ball}"

  defp table do
    cloth =
      ~s(<rect x="#{across(-@half_x)}" y="#{down(@half_y)}" width="#{px(2 * @half_x * @scale)}" ) <>
        ~s(height="#{px(2 * @half_y * @scale)}" fill="#2f7d5b" stroke="#5b3a1e" stroke-width="14"/>)

    Enum.join([cloth | for({:disc, disc, color} <- pockets("#0f172a"), do: disc(disc, color))])
  end

  defp disc([x, y, radius], color, more \\ ""),
    do:
      ~s(<circle cx="#{across(x)}" cy="#{down(y)}" r="#{px(radius * @scale)}" fill="#{color}"#{more}/>)

  # The frames of a ball up to its fall.
  defp path({places, ball}) do
    case Enum.take_while(places, & &1) |> Enum.dedup() do
      [_, _ | _] = way ->
        points = Enum.map_join(way, " ", fn {x, y} -> "#{across(x)},#{down(y)}" end)
        color = Enum.at(@colors, ball)

        ~s(<polyline points="#{points}" fill="none" stroke="#{color}" stroke-width="2" opacity="0.8"/>\n)

      _still ->
        ""
    end
  end

  defp before({[nil | _], _ball}), do: ""

  defp before({[{x, y} | _], ball}) do
    more = ~s( stroke="#{Enum.at(@colors, ball)}" stroke-width="1.5" stroke-dasharray="3 2")
    disc([x, y, radius(ball)], "none", more) <> "\n"
  end

  defp rest({places, ball}) do
    case List.last(places) do
      nil ->
        ""

      {x, y} ->
        label =
          if ball == 0,
            do: "",
            else:
              ~s(<text x="#{across(x)}" y="#{px(@title_height + @margin + (@half_y - y) * @scale + 4)}" ) <>
                ~s(font-size="11" text-anchor="middle" fill="#ffffff">#{ball}</text>)

        disc([x, y, radius(ball)], Enum.at(@colors, ball), ~s( stroke="#0f172a")) <> label <> "\n"
    end
  end

  defp across(x), do: px(@margin + (x + @half_x) * @scale)
  defp down(y), do: px(@title_height + @margin + (@half_y - y) * @scale)
  defp px(number), do: :erlang.float_to_binary(number / 1, [:compact, decimals: 1])
end
