defmodule Sconce.Monitor.View.Columns do
  @moduledoc false
  # The width of texts in a terminal. A character of Chinese, Japanese or Korean and most pictures take two columns, a
  # mark on another character none.

  # First code points of such characters, as Unicode's East Asian Width has them (W and F), without rare ones.
  @wide [0x1100..0x115F, 0x2E80..0x303E, 0x3041..0x33FF, 0x3400..0x4DBF, 0x4E00..0xA4CF] ++
          [0xA960..0xA97F, 0xAC00..0xD7A3, 0xF900..0xFAFF, 0xFE30..0xFE6F, 0xFF01..0xFF60] ++
          [0xFFE0..0xFFE6, 0x1F300..0x1F64F, 0x1F680..0x1F6FF, 0x1F900..0x1F9FF, 0x20000..0x3FFFD]

  @doc """
  Returns the columns of a text.

      iex> Sconce.Monitor.View.Columns.width("run")
      3
      iex> Sconce.Monitor.View.Columns.width("狐の run")
      8
  """
  @spec width(String.t()) :: non_neg_integer
  def width(text) do
    if ascii?(text),
      do: byte_size(text),
      else: text |> String.graphemes() |> Enum.map(&columns/1) |> Enum.sum()
  end

  defp ascii?(text), do: for(<<byte <- text>>, byte > 127, do: byte) == []

  defp columns(<<first::utf8, _marks::binary>>) do
    cond do
      Enum.any?(@wide, &(first in &1)) -> 2
      # A mark without a character.
      first in 0x300..0x36F -> 0
      true -> 1
    end
  end

  @doc """
  Cuts a text to a width.

      iex> Sconce.Monitor.View.Columns.cut("狐の run", 5)
      "狐の "
      iex> Sconce.Monitor.View.Columns.cut("狐の run", 3)
      "狐"
  """
  @spec cut(String.t(), integer) :: String.t()
  def cut(text, most) do
    if ascii?(text),
      do: binary_part(text, 0, min(byte_size(text), max(most, 0))),
      else: kept(text, most)
  end

  defp kept(text, most) do
    text
    |> String.graphemes()
    |> Enum.reduce_while({[], most}, fn character, {kept, left} ->
      left = left - columns(character)
      if left < 0, do: {:halt, {kept, left}}, else: {:cont, {[character | kept], left}}
    end)
    |> then(fn {kept, _left} -> kept |> Enum.reverse() |> Enum.join() end)
  end

  @doc """
  Cuts and fills a text to a width, with a blank at its end.

      iex> Sconce.Monitor.View.Columns.filled("狐の", 4)
      "狐  "
  """
  @spec filled(String.t(), integer) :: String.t()
  def filled(text, columns) when columns > 1 do
    text = cut(text, columns - 1)
    text <> String.duplicate(" ", columns - width(text))
  end

  def filled(_text, _columns), do: ""
end
