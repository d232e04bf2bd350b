defmodule Sconce.Env.Drawing.Live do
  @moduledoc false
  # Shows a trace as text: in a terminal as a film that the key q ends, elsewhere as a few pictures.

  alias Sconce.Env.{Drawing, Hosting}
  alias Sconce.{Figures, Terminal}

  @columns 72
  @rows 18
  # Milliseconds between two pictures: 30 a second.
  @frame_ms 33
  # Pictures without a terminal.
  @few 4

  @doc "Shows a trace. `terminal` says whether the output is a terminal; nil detects it."
  @spec show(map, boolean | nil) :: :ok
  def show(trace, terminal \\ nil) do
    terminal = if terminal == nil, do: IO.ANSI.enabled?(), else: terminal
    frames = trace |> Drawing.frames() |> List.to_tuple()
    if terminal, do: Terminal.keys(fn -> film(trace, frames) end), else: few(trace, frames)
    :ok
  end

  defp few(trace, frames) do
    last = tuple_size(frames) - 1
    for i <- 0..(@few - 1), do: IO.write([picture(trace, frames, div(i * last, @few - 1)), "\n"])
    :ok
  end

  defp film(trace, frames) do
    {_view, pace_ms} = Drawing.view(trace)
    start = System.monotonic_time(:millisecond)
    IO.write("\e[?25l")
    reel(trace, frames, {start, pace_ms, nil})
    # A key that ended the film may have been echoed.
    IO.write("\r\e[K\e[?25h")
  end

  defp reel(trace, frames, {start, pace_ms, before}) do
    last = tuple_size(frames) - 1
    at = min(div(System.monotonic_time(:millisecond) - start, pace_ms), last)
    picture = picture(trace, frames, at)
    # The cursor returns to the first line of the picture before.
    IO.write([if(before, do: "\e[#{before}A", else: ""), String.replace(picture, "\n", "\e[K\n")])
    lines = picture |> String.split("\n") |> length() |> Kernel.-(1)

    if at < last and not quit?(),
      do: reel(trace, frames, {start, pace_ms, lines}),
      else: :ok
  end

  # Waits for the time of a picture, or for a key.
  defp quit? do
    receive do
      {:key, key} when key in ["q", "Q"] -> true
      {:key, :closed} -> quit?()
      {:key, _key} -> false
    after
      @frame_ms -> false
    end
  end

  @doc "Returns picture number `at` of a trace and a line of figures."
  @spec picture(map, tuple, non_neg_integer) :: String.t()
  def picture(trace, frames, at) do
    {view, _pace_ms} = Drawing.view(trace)
    sum = trace.rewards |> Enum.take(at) |> Enum.sum()
    lines = frames |> elem(at) |> Drawing.Terminal.picture(view, @columns, @rows)

    figures =
      "#{Hosting.label(trace.env)} · step #{Figures.grouped(at)} · return #{Float.round(sum / 1, 1)}"

    Enum.map_join(lines ++ [figures], &(&1 <> "\n"))
  end
end
