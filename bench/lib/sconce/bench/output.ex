defmodule Sconce.Bench.Output do
  @moduledoc false
  # Rows as a table for readers and as JSON for programs.

  alias Sconce.Figures

  # {column, width, alignment}. The last column, the reason of the limit, has any length.
  @columns [
    {"name", 7, :left},
    {"case", 50, :left},
    {"batch", 5, :right},
    {"threads", 7, :right},
    {"median_us", 10, :right},
    {"p95_us", 10, :right},
    {"p99_us", 10, :right},
    {"n", 6, :right},
    {"limit_us", 9, :right},
    {"limit", 0, :left}
  ]

  @doc "The machine and versions of a benchmark run, in two lines."
  @spec header(map) :: String.t()
  def header(machine) do
    """
    #{machine.cpu}, #{machine.cores} cores (#{machine.simd}), load #{machine.load || "unknown"}
    Elixir #{machine.elixir}, OTP #{machine.otp}, rustc #{machine.rustc} (#{machine.profile}), #{machine.date}
    """
  end

  @doc "The names of the columns."
  @spec titles() :: String.t()
  def titles, do: line(@columns, for({title, _width, _side} <- @columns, do: title))

  @doc "A row of the table."
  @spec row(map) :: String.t()
  def row(row) do
    line(@columns, [
      row.name,
      row.case,
      to_string(row.batch),
      to_string(row.threads),
      number(row.median_us),
      number(row.p95_us),
      number(row.p99_us),
      to_string(row.n),
      number(row.limit_us),
      row.limit <> rates(row.extra)
    ])
  end

  defp rates(%{rates: rates}), do: "; #{rates}"
  defp rates(_extra), do: ""

  defp number(nil), do: "-"
  defp number(us), do: Figures.decimal(us)

  @doc "Cells in columns, each column given as `{title, width, side}`."
  @spec line([{String.t(), non_neg_integer, :left | :right}], [String.t()]) :: String.t()
  def line(columns, cells) do
    columns
    |> Enum.zip(cells)
    |> Enum.map_join("  ", fn
      {{_title, width, :left}, cell} -> String.pad_trailing(cell, width)
      {{_title, width, :right}, cell} -> String.pad_leading(cell, width)
    end)
    |> String.trim_trailing()
  end

  @doc "A row with its machine as one JSON object."
  @spec json_line(map, map) :: String.t()
  def json_line(row, machine) do
    {extra, row} = Map.pop!(row, :extra)
    row |> Map.merge(extra) |> Map.merge(machine) |> json()
  end

  @doc """
  Encodes maps, lists, numbers, strings, booleans and nil as JSON.

      iex> Sconce.Bench.Output.json(%{case: "a \\"b\\"", us: [1, 2.5], ok: true, why: nil})
      ~S({"case":"a \\"b\\"","ok":true,"us":[1,2.5],"why":null})
  """
  @spec json(term) :: String.t()
  def json(nil), do: "null"
  def json(value) when is_boolean(value) or is_number(value), do: to_string(value)
  def json(value) when is_atom(value), do: value |> Atom.to_string() |> json()
  def json(value) when is_list(value), do: "[#{Enum.map_join(value, ",", &json/1)}]"

  def json(value) when is_map(value) do
    fields = value |> Enum.sort() |> Enum.map_join(",", fn {k, v} -> "#{json(k)}:#{json(v)}" end)
    "{#{fields}}"
  end

  def json(value) when is_binary(value) do
    escaped = for <<char::utf8 <- value>>, into: "", do: escape(char)
    ~s("#{escaped}")
  end

  defp escape(?"), do: ~S(\")
  defp escape(?\\), do: ~S(\\)

  defp escape(char) when char < 0x20,
    do: "\\u" <> (char |> Integer.to_string(16) |> String.pad_leading(4, "0"))

  defp escape(char), do: <<char::utf8>>
end
