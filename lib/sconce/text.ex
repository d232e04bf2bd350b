defmodule Sconce.Text do
  @moduledoc false
  # Makes text from a file, a name or a path safe for a terminal, a log or an SVG. Paths, sources, tags and reasons may
  # contain anything: an escape sequence clears the reader's screen or renames the window, and a bidirectional override
  # displays a different text.

  # The most characters of one text.
  @most 4_000

  # Characters that are invisible or change the text around them: direction marks, embeddings, overrides and isolates,
  # line and paragraph separators, zero-width characters, the byte order mark, interlinear annotation, tags.
  defguardp hidden(c)
            when c == 0x00AD or c == 0x061C or c == 0x180E or c in 0x200B..0x200F or
                   c in 0x2028..0x202E or c in 0x2060..0x206F or c == 0xFEFF or
                   c in 0xFFF9..0xFFFB or c in 0xE0000..0xE0FFF

  # The control characters C0, DEL and C1.
  defguardp control(c) when c < 0x20 or c in 0x7F..0x9F

  @doc """
  Escapes every character that does not print, as in `\\e` and `\\x9B`, and omits the middle of a text longer than
  `most` characters.

      iex> Sconce.Text.printable("a\\e]0;title\\ab")
      ~S(a\\e]0;title\\ab)
      iex> Sconce.Text.printable(<<"caf", 0xE9>>)
      ~S(caf\\xE9)
      iex> Sconce.Text.printable("0123456789", 6)
      "012 … 789"
  """
  @spec printable(String.Chars.t(), pos_integer) :: String.t()
  def printable(text, most \\ @most)

  def printable(text, most) when is_binary(text),
    do: text |> bounded(most) |> escaped("")

  def printable(other, most), do: other |> to_string() |> printable(most)

  @doc "Applies `printable/1` to each line of a text; newlines stay."
  @spec lines(String.t()) :: String.t()
  def lines(text), do: text |> String.split("\n") |> Enum.map_join("\n", &printable/1)

  # Shortens a text. Reads only four bytes for each kept character, so a text of a gigabyte takes no longer.
  defp bounded(text, most) when byte_size(text) <= most, do: text

  defp bounded(text, most) do
    half = div(most, 2)
    size = byte_size(text)
    near = binary_part(text, 0, min(size, 4 * most))
    far = binary_part(text, size - min(size, 4 * most), min(size, 4 * most))

    if byte_size(near) == size and String.length(text) <= most,
      do: text,
      else: String.slice(near, 0, half) <> " … " <> String.slice(far, -half, half)
  end

  defp escaped(<<c::utf8, rest::binary>>, done) when control(c) or hidden(c),
    do: escaped(rest, done <> escape(c))

  defp escaped(<<c::utf8, rest::binary>>, done), do: escaped(rest, <<done::binary, c::utf8>>)
  defp escaped(<<byte, rest::binary>>, done), do: escaped(rest, done <> "\\x" <> hex(byte, 2))
  defp escaped(<<>>, done), do: done

  for {c, letter} <- [{?\a, "a"}, {?\b, "b"}, {?\t, "t"}, {?\n, "n"}, {?\r, "r"}, {?\e, "e"}] do
    defp escape(unquote(c)), do: unquote("\\" <> letter)
  end

  defp escape(c) when c < 0x100, do: "\\x" <> hex(c, 2)
  defp escape(c), do: "\\u{#{hex(c, 4)}}"

  defp hex(number, width), do: number |> Integer.to_string(16) |> String.pad_leading(width, "0")
end
