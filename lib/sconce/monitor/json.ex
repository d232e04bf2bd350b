defmodule Sconce.Monitor.Json do
  @moduledoc false
  # Reads and writes JSON in plain Elixir: a reader of figures loads no native library, and OTP before 27 has no JSON.
  # Objects become maps with text as keys, so a file makes no atom.

  # The most levels of arrays and objects.
  @deepest 32
  # The most bytes of a number: a longer one costs more time than its digits.
  @longest 400

  @doc """
  Decodes a text.

      iex> Sconce.Monitor.Json.decode(~S({"kind": "play", "started": 12, "tags": [true, null, -1.5e2, "\\u00e9"]}))
      {:ok, %{"kind" => "play", "started" => 12, "tags" => [true, nil, -150.0, "é"]}}
      iex> Sconce.Monitor.Json.decode(~S({"kind": ))
      {:error, "byte 9: expected a value"}
  """
  @spec decode(binary) :: {:ok, term} | {:error, String.t()}
  def decode(text) when is_binary(text) do
    {value, rest} = value(blank(text), 0)
    if blank(rest) == "", do: {:ok, value}, else: fail(blank(rest), "expected the end")
  catch
    {:json, rest, reason} ->
      {:error, "byte #{byte_size(text) - byte_size(rest)}: #{reason}"}
  end

  @spec fail(binary, String.t()) :: no_return
  defp fail(rest, reason), do: throw({:json, rest, reason})

  defp blank(<<c, rest::binary>>) when c in [?\s, ?\t, ?\n, ?\r], do: blank(rest)
  defp blank(rest), do: rest

  defp value(rest, depth) when depth > @deepest, do: fail(rest, "more than #{@deepest} levels")
  defp value("{" <> rest, depth), do: rest |> blank() |> object(%{}, depth)
  defp value("[" <> rest, depth), do: rest |> blank() |> array([], depth)
  defp value("\"" <> rest, _depth), do: string(rest, [])
  defp value("true" <> rest, _depth), do: {true, rest}
  defp value("false" <> rest, _depth), do: {false, rest}
  defp value("null" <> rest, _depth), do: {nil, rest}
  defp value(rest, _depth), do: number(rest)

  defp object("}" <> rest, empty, _depth) when empty == %{}, do: {empty, rest}

  defp object("\"" <> rest, map, depth) do
    {key, rest} = string(rest, [])

    rest =
      with rest = blank(rest),
           ":" <> rest <- rest,
           do: blank(rest),
           else: (_ -> fail(rest, "expected :"))

    {value, rest} = value(rest, depth + 1)
    map = Map.put(map, key, value)

    case blank(rest) do
      "," <> rest -> rest |> blank() |> object_key(map, depth)
      "}" <> rest -> {map, rest}
      rest -> fail(rest, "expected , or }")
    end
  end

  defp object(rest, _map, _depth), do: fail(rest, "expected a key")

  defp object_key("\"" <> _ = rest, map, depth), do: object(rest, map, depth)
  defp object_key(rest, _map, _depth), do: fail(rest, "expected a key")

  defp array("]" <> rest, [], _depth), do: {[], rest}

  defp array(rest, values, depth) do
    {value, rest} = value(rest, depth + 1)

    case blank(rest) do
      "," <> rest -> rest |> blank() |> array([value | values], depth)
      "]" <> rest -> {Enum.reverse([value | values]), rest}
      rest -> fail(rest, "expected , or ]")
    end
  end

  defp string("\"" <> rest, parts), do: {parts |> Enum.reverse() |> IO.iodata_to_binary(), rest}

  defp string("\\u" <> rest, parts) do
    {code, rest} = unit(rest)

    case {code, rest} do
      {high, "\\u" <> low} when high in 0xD800..0xDBFF ->
        {low, rest} = unit(low)
        low in 0xDC00..0xDFFF || fail(rest, "half a surrogate pair")
        string(rest, [<<0x10000 + (high - 0xD800) * 0x400 + (low - 0xDC00)::utf8>> | parts])

      {half, rest} when half in 0xD800..0xDFFF ->
        fail(rest, "half a surrogate pair")

      {code, rest} ->
        string(rest, [<<code::utf8>> | parts])
    end
  end

  for {letter, byte} <-
        [{?", ?"}, {?\\, ?\\}, {?/, ?/}, {?b, ?\b}, {?f, ?\f}] ++
          [{?n, ?\n}, {?r, ?\r}, {?t, ?\t}] do
    defp string(<<?\\, unquote(letter), rest::binary>>, parts),
      do: string(rest, [unquote(byte) | parts])
  end

  defp string(<<c::utf8, rest::binary>>, parts) when c >= 0x20 and c != ?\\,
    do: string(rest, [<<c::utf8>> | parts])

  defp string("", _parts), do: fail("", "a string has no end")
  defp string(rest, _parts), do: fail(rest, "a string cannot have this character")

  defp unit(<<digits::binary-4, rest::binary>> = all) do
    if digits =~ ~r/\A[0-9a-fA-F]{4}\z/,
      do: {String.to_integer(digits, 16), rest},
      else: fail(all, "expected four hexadecimal digits")
  end

  defp unit(rest), do: fail(rest, "expected four hexadecimal digits")

  defp number(rest) do
    head = binary_part(rest, 0, min(byte_size(rest), @longest))

    case Regex.run(~r/\A(-?(?:0|[1-9]\d*))(\.\d+)?([eE][+-]?\d+)?/, head) do
      nil -> fail(rest, "expected a value")
      [all | _] when byte_size(all) == @longest -> fail(rest, "a number is too long")
      [all, whole] when all == whole -> {String.to_integer(whole), after_(rest, all)}
      [all, whole, part] -> {float(rest, whole <> part), after_(rest, all)}
      [all, whole, "", power] -> {float(rest, whole <> ".0" <> power), after_(rest, all)}
      [all | _] -> {float(rest, all), after_(rest, all)}
    end
  end

  defp after_(rest, taken),
    do: binary_part(rest, byte_size(taken), byte_size(rest) - byte_size(taken))

  defp float(rest, text) do
    String.to_float(text)
  rescue
    ArgumentError -> fail(rest, "a number is out of range")
  end

  @doc """
  Encodes text, numbers, nil, booleans, lists, pairs of an object in their order, and what is `{:encoded, json}` already.

      iex> IO.iodata_to_binary(Sconce.Monitor.Json.encode({[{"a b", 1}, {"c", [nil, 0.5, "\\n"]}]}))
      ~S({"a b":1,"c":[null,0.5,"\\u000A"]})
  """
  @spec encode(term) :: iodata
  def encode(nil), do: "null"
  def encode(value) when is_boolean(value) or is_number(value), do: to_string(value)
  def encode(text) when is_binary(text), do: [?", for(<<c::utf8 <- text>>, do: escaped(c)), ?"]

  def encode(list) when is_list(list),
    do: [?[, list |> Enum.map(&encode/1) |> Enum.intersperse(?,), ?]]

  def encode({:encoded, json}), do: json

  def encode({pairs}) do
    inner = for {key, value} <- pairs, do: [encode(key), ?:, encode(value)]
    [?{, Enum.intersperse(inner, ?,), ?}]
  end

  defp escaped(c) when c in [?", ?\\], do: [?\\, c]

  defp escaped(c) when c < 0x20,
    do: ["\\u", c |> Integer.to_string(16) |> String.pad_leading(4, "0")]

  defp escaped(c), do: <<c::utf8>>
end
