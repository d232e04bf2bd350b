defmodule Sconce.Env.Drawing.Live do
  @moduledoc false
  # Shows a trace as text: in a terminal as a film that the key q ends, elsewhere as a few pictures.

  alias Sconce.Env.{Drawing, Hosting}
  alias Sconce.Env.Drawing.Terminal
  alias Sconce.Figures

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
    if terminal, do: raw(fn keys -> film(trace, frames, keys) end), else: few(trace, frames)
  end

  defp few(trace, frames) do
    last = tuple_size(frames) - 1
    for i <- 0..(@few - 1), do: IO.write([picture(trace, frames, div(i * last, @few - 1)), "\n"])
    :ok
  end

  defp film(trace, frames, keys) do
    {_view, pace_ms} = Drawing.view(trace)
    start = System.monotonic_time(:millisecond)
    IO.write("\e[?25l")
    reel(trace, frames, keys, {start, pace_ms, nil})
    # A key that ended the film may have been echoed.
    IO.write("\r\e[K\e[?25h")
  end

  defp reel(trace, frames, keys, {start, pace_ms, before}) do
    last = tuple_size(frames) - 1
    at = min(div(System.monotonic_time(:millisecond) - start, pace_ms), last)
    picture = picture(trace, frames, at)
    # The cursor returns to the first line of the picture before.
    IO.write([if(before, do: "\e[#{before}A", else: ""), String.replace(picture, "\n", "\e[K\n")])
    lines = picture |> String.split("\n") |> length() |> Kernel.-(1)

    if at < last and not quit?(keys),
      do: reel(trace, frames, keys, {start, pace_ms, lines}),
      else: :ok
  end

  # Waits for the time of a picture, or for a key.
  defp quit?(keys) do
    receive do
      {^keys, key} when key in ["q", "Q"] -> true
      {^keys, _key} -> false
    after
      @frame_ms -> false
    end
  end

  @doc "Returns picture number `at` of a trace and a line of figures."
  @spec picture(map, tuple, non_neg_integer) :: String.t()
  def picture(trace, frames, at) do
    {view, _pace_ms} = Drawing.view(trace)
    sum = trace.rewards |> Enum.take(at) |> Enum.sum()
    lines = frames |> elem(at) |> Terminal.picture(view, @columns, @rows)

    figures =
      "#{Hosting.label(trace.env)} · step #{Figures.grouped(at)} · return #{Float.round(sum / 1, 1)}"

    Enum.map_join(lines ++ [figures], &(&1 <> "\n"))
  end

  # Runs `work` while each key arrives at once, as `{keys, key}`, without an echo. If the terminal cannot be set, a key
  # arrives with the end of its line.
  defp raw(work) do
    before = stty("-g")
    if before, do: stty("-icanon -echo min 1")
    {me, keys} = {self(), make_ref()}
    reader = spawn(fn -> read(me, keys) end)

    try do
      work.(keys)
    after
      Process.exit(reader, :kill)
      if before, do: stty(before)
    end

    :ok
  end

  defp read(receiver, keys) do
    case IO.getn("", 1) do
      key when is_binary(key) ->
        send(receiver, {keys, key})
        read(receiver, keys)

      _end_of_input ->
        :ok
    end
  end

  defp stty(args) do
    case System.cmd("sh", ["-c", "stty #{args} < /dev/tty"], stderr_to_stdout: true) do
      {output, 0} -> String.trim(output)
      _no_terminal -> nil
    end
  end
end
