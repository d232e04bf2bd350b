defmodule Sconce.Test.Chromium do
  @moduledoc "A Chromium without a window, for tests of pages."

  @names ~w(chromium chromium-browser google-chrome)

  @doc "Returns the path of the program, nil if this machine has none."
  def path, do: Enum.find_value(@names, &System.find_executable/1)

  @doc "Opens a page, lets five seconds of its timers pass, and returns its elements as HTML. `dir` gets a profile."
  def elements(url, dir), do: run(["--dump-dom", url], dir)

  @doc "Writes a picture of a page to a PNG file."
  def screenshot(url, file, {width, height}, dir),
    do: run(["--screenshot=#{file}", "--window-size=#{width},#{height}", url], dir)

  # The sandbox refuses to run as root, as tests in a container do.
  defp run(args, dir) do
    fixed =
      ~w(--headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=5000) ++
        ["--user-data-dir=#{Path.join(dir, "profile")}"]

    {output, 0} = System.cmd("sh", ["-c", ~S(exec "$0" "$@" 2>/dev/null), path() | fixed ++ args])
    output
  end
end
