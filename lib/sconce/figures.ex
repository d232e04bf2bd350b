defmodule Sconce.Figures do
  @moduledoc false
  # Formats counts, sizes and times.

  @doc "An integer with separators: 12345 becomes `12,345`."
  @spec grouped(integer) :: String.t()
  def grouped(n), do: n |> Integer.to_string() |> String.replace(~r/\B(?=(\d{3})+$)/, ",")

  @doc "A count with its noun: `1 window`, `12 windows`."
  @spec counted(integer, String.t()) :: String.t()
  def counted(1, noun), do: "1 #{noun}"
  def counted(n, noun), do: "#{grouped(n)} #{noun}s"

  @doc "Bytes with a unit, as in `37.6 MB`."
  @spec size(number) :: String.t()
  def size(bytes) when bytes < 1000, do: "#{round(bytes)} B"
  def size(bytes) when bytes < 1_000_000, do: "#{Float.round(bytes / 1.0e3, 1)} KB"
  def size(bytes) when bytes < 1_000_000_000, do: "#{Float.round(bytes / 1.0e6, 1)} MB"
  def size(bytes), do: "#{Float.round(bytes / 1.0e9, 1)} GB"

  @doc "A number with about three significant digits."
  @spec decimal(number) :: String.t()
  def decimal(value) when value >= 100, do: value |> round() |> grouped()
  def decimal(value) when value >= 10, do: :erlang.float_to_binary(value / 1, decimals: 1)
  def decimal(value) when value >= 1, do: :erlang.float_to_binary(value / 1, decimals: 2)
  def decimal(value), do: :erlang.float_to_binary(value / 1, decimals: 3)

  @doc """
  Returns a percentile of a list of numbers, by the nearest rank.

      iex> Sconce.Figures.percentile([3.0, 1.0, 2.0], 50)
      2.0
  """
  @spec percentile([number], number) :: number
  def percentile(values, percent) do
    rank = ceil(length(values) * percent / 100)
    values |> Enum.sort() |> Enum.at(max(rank, 1) - 1)
  end
end
