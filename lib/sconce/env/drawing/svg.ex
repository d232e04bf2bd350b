defmodule Sconce.Env.Drawing.Svg do
  @moduledoc false
  # Draws a trace as an animated SVG: each number of a shape that changes is animated by SMIL, without scripts.

  alias Sconce.Env.{Drawing, Hosting}
  alias Sconce.{Error, Files, Figures, Text}
  alias Sconce.Trainer.Curve.Page

  @width 640
  @margin 12
  @title_height 26
  # More frames would make the file large without a visible effect.
  @most_frames 600
  # Milliseconds for which the last frame stays.
  @rest_ms 1000
  @names %{line: ~w(x1 y1 x2 y2), disc: ~w(cx cy r), box: ~w(x y width height)}
  @tags %{line: "line", disc: "circle", box: "rect"}

  @doc "Returns an animated picture of a trace."
  @spec text(map) :: String.t()
  def text(trace) do
    {{left, bottom, right, top} = view, pace_ms} = Drawing.view(trace)
    scale = (@width - 2 * @margin) / (right - left)
    height = round((top - bottom) * scale) + 2 * @margin + @title_height
    frames = trace |> Drawing.frames() |> thinned()
    duration_ms = length(trace.states) * pace_ms + @rest_ms
    rest = round(@rest_ms / (duration_ms - @rest_ms) * length(frames))
    frames = frames ++ List.duplicate(List.last(frames), max(rest, 1))

    shapes =
      frames |> Enum.zip_with(& &1) |> Enum.map_join("\n", &shape(&1, view, scale, duration_ms))

    """
    <svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 #{@width} #{height}" width="#{@width}" height="#{height}" font-family="system-ui, sans-serif" stroke-linecap="round">
    <rect width="100%" height="100%" fill="#ffffff"/>
    <text x="#{@margin}" y="20" font-size="14" fill="#334155">#{title(trace)}</text>
    #{shapes}
    </svg>
    """
  end

  @doc "Writes `text/1` to a file whose name ends in `.svg`."
  @spec write(map, Path.t()) :: :ok | {:error, Error.t()}
  def write(trace, path) do
    with :ok <- Page.check(path, :write_svg), do: Files.write(path, text(trace), :write_svg)
  end

  defp title(trace) do
    steps = Figures.counted(length(trace.rewards), "step")

    Text.printable(
      "#{Hosting.label(trace.env)} · #{steps} · return #{Float.round(Enum.sum(trace.rewards) / 1, 1)}"
    )
  end

  # At most `@most_frames` frames, the first and the last among them.
  defp thinned(frames) when length(frames) <= @most_frames, do: frames

  defp thinned(frames) do
    all = List.to_tuple(frames)
    last = tuple_size(all) - 1
    for i <- 0..(@most_frames - 1), do: elem(all, div(i * last, @most_frames - 1))
  end

  # One shape in all frames.
  defp shape([{kind, _numbers, color} | _] = frames, view, scale, duration_ms) do
    values = frames |> Enum.map(&placed(&1, view, scale)) |> Enum.zip_with(& &1)
    named = Enum.zip(@names[kind], values)
    first = Enum.map_join(named, " ", fn {name, [value | _]} -> ~s(#{name}="#{value}") end)

    animated =
      for {name, values} <- named, animated = animate(name, values, duration_ms), do: animated

    "<#{@tags[kind]} #{first} #{style(kind, color)}>#{animated}</#{@tags[kind]}>"
  end

  defp animate(name, values, duration_ms) do
    if length(Enum.uniq(values)) > 1 do
      ~s(<animate attributeName="#{name}" dur="#{duration_ms}ms" repeatCount="indefinite" values="#{Enum.join(values, ";")}"/>)
    end
  end

  defp style(:line, color), do: ~s(stroke="#{color}" stroke-width="4")
  defp style(_filled, color), do: ~s(fill="#{color}")

  defp placed({:line, [x, y, to_x, to_y], _}, view, scale),
    do: [
      across(x, view, scale),
      down(y, view, scale),
      across(to_x, view, scale),
      down(to_y, view, scale)
    ]

  defp placed({:disc, [x, y, r], _}, view, scale),
    do: [across(x, view, scale), down(y, view, scale), short(r * scale)]

  defp placed({:box, [x, y, width, height], _}, view, scale) do
    corner = [across(x, view, scale), down(y + height, view, scale)]
    corner ++ [short(width * scale), short(height * scale)]
  end

  defp across(x, {left, _, _, _}, scale), do: short(@margin + (x - left) * scale)
  defp down(y, {_, _, _, top}, scale), do: short(@title_height + @margin + (top - y) * scale)

  defp short(number), do: :erlang.float_to_binary(number / 1, [:compact, decimals: 1])
end
