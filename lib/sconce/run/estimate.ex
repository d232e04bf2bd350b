defmodule Sconce.Run.Estimate do
  @moduledoc false
  # The text of measurements before a run: of its plan, and of the search for a size.

  alias Sconce.Figures
  alias Sconce.Trainer.Curve.Scale

  @reasons %{"memory" => :memory, "throughput" => :throughput, "max" => :max}

  @doc "Returns the owners of memory, pairs of a name and a text, as the rows of a Markdown table."
  @spec owner_docs(keyword) :: String.t()
  def owner_docs(owners),
    do: Enum.map_join(owners, fn {name, doc} -> "| `#{name}` | #{doc} |\n" end)

  @doc "Returns a line for each owner with bytes, and one for the peak. `plan` has `owners`, `bytes`, `free` and perhaps `memory_limit`."
  @spec memory(map, keyword) :: [String.t()]
  def memory(plan, docs) do
    owners =
      for {name, doc} <- docs, bytes = plan.owners[name], bytes > 0, do: size(name, bytes, doc)

    owners ++ [size("at the peak", plan.bytes, room(plan))]
  end

  defp room(%{memory_limit: limit}) when limit != nil, do: "of #{Figures.size(limit)} allowed"
  defp room(%{free: nil}), do: ""
  defp room(%{free: free}), do: "of #{Figures.size(free)} free"

  @doc "Returns a line with bytes."
  @spec size(atom | String.t(), non_neg_integer, String.t()) :: String.t()
  def size(name, bytes, doc), do: line(name, Figures.size(bytes), doc)

  @doc "Returns a line with a name, a figure and a remark."
  @spec line(atom | String.t(), String.t(), String.t()) :: String.t()
  def line(name, figure, doc),
    do: String.pad_trailing("#{name}", 12) <> String.pad_leading(figure, 10) <> "   " <> doc

  @doc "Returns seconds as a text: `8.5 ms`, or `1:05` from 10 seconds on."
  @spec duration(number) :: String.t()
  def duration(seconds) when seconds < 10, do: "#{Scale.number(1000 * seconds, 1)} ms"
  def duration(seconds), do: Scale.clock(seconds)

  @doc "Returns a number of threads as a text."
  @spec threads(pos_integer) :: String.t()
  # A run on a GPU uses these CPU threads too.
  def threads(threads), do: "#{Figures.counted(threads, "thread")} of the CPU"

  @doc "Returns lines as one text, without blanks at their ends."
  @spec text([iodata]) :: String.t()
  def text(lines) do
    lines |> List.flatten() |> Enum.map_join("\n", &String.trim_trailing/1)
  end

  @doc "Returns the reason why a search ended, by its native name."
  @spec reason!(String.t()) :: :memory | :throughput | :max
  def reason!(name), do: Map.fetch!(@reasons, name)

  @doc "Returns the end of a title: whether the sizes were measured by an earlier call."
  @spec from(:measured | :cache) :: String.t()
  def from(:measured), do: ""
  def from(:cache), do: " · measured before"

  @doc "Returns the table of a search: a row has its size, seconds, speed and bytes."
  @spec table([String.t()], [{pos_integer, float, float, pos_integer}], pos_integer) :: [iodata]
  def table([first | _] = head, rows, best) do
    width = max(String.length(first), 10)
    [_, seconds, speed, bytes] = head

    title =
      [String.pad_leading(first, width)] ++
        for name <- [seconds, speed, bytes], do: String.pad_leading(name, 12)

    [Enum.join(title)] ++
      for {size, seconds, speed, bytes} <- rows do
        Enum.join([
          String.pad_leading(Figures.grouped(size), width),
          String.pad_leading(duration(seconds), 12),
          String.pad_leading(Figures.grouped(round(speed)), 12),
          String.pad_leading(Figures.size(bytes), 12),
          if(size == best, do: "  best", else: "")
        ])
      end
  end

  @doc "Returns the reason why a search for the size of `noun` ended as a line."
  @spec why(atom, String.t(), pos_integer | nil) :: String.t()
  def why(:memory, noun, limit),
    do: "stopped: a larger #{noun} would not fit into #{Figures.size(limit)}"

  def why(:throughput, noun, _limit), do: "stopped: the last #{noun} was not faster"
  def why(:max, noun, _limit), do: "stopped: the largest #{noun} was reached"
end
