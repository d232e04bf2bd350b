defmodule Sconce.Monitor.Snapshot.Layout do
  @moduledoc false
  # Decodes the bytes of a file of figures: a header of 512 words, a table of slots, and their data. A word is a u64,
  # little-endian. The writer of the file may be killed at any moment, and others may have written the file: every offset
  # and length is checked before its use, and slots cannot share data, so that the cost is bounded by the file's size.

  alias Sconce.Monitor.Json
  alias Sconce.Monitor.Snapshot.{Histogram, Slot}

  @magic "SCONWTCH"
  @version 1
  # Words of the header, and of a slot in the table.
  @header 512
  @slot 32
  # The first word and the most bytes of the meta text.
  @meta 16
  @most_meta 8 * (@header - @meta)
  # The most bytes of a slot's name, unit and help.
  @most_names 8 * (@slot - 4)
  @states {:running, :done, :failed, :stopped}
  @kinds {:free, :counter, :gauge, :histogram, :series, :text}
  # The fewest data words of each kind.
  @fewest %{counter: 1, gauge: 1, histogram: 1, series: 3, text: 2}

  @doc "Decodes a file. Returns its header as a map with the slots, or what is wrong."
  @spec decode(binary) :: {:ok, map} | {:error, String.t()}
  def decode(bytes) when is_binary(bytes) do
    header = header(bytes)
    {:ok, Map.put(header, :slots, slots(bytes, header))}
  catch
    {:corrupt, reason} -> {:error, reason}
  end

  @spec fail(String.t()) :: no_return
  defp fail(reason), do: throw({:corrupt, reason})

  defp header(bytes) do
    head = binary_part(bytes, 0, min(byte_size(bytes), 8))
    # An empty file is one that its writer has not begun.
    if not String.starts_with?(@magic, head), do: fail("the file is no file of figures")
    size = byte_size(bytes)
    if size < 8 * @header, do: fail("the file is cut at #{size} bytes, within its header")

    version = word(bytes, 1)
    if version != @version, do: fail("the file has version #{version}, expected #{@version}")
    words = word(bytes, 2)

    if words > div(size, 8),
      do: fail("the file is cut at #{size} bytes, expected #{8 * words}")

    capacity = word(bytes, 6)

    if @header + capacity * @slot > words,
      do: fail("the table of #{capacity} slots is outside the file of #{words} words")

    used = word(bytes, 7)
    if used > capacity, do: fail("#{used} slots are in use, of #{capacity}")
    state = word(bytes, 9)
    if state >= tuple_size(@states), do: fail("the state #{state} is unknown")

    %{
      os_pid: word(bytes, 3),
      started_ms: word(bytes, 4),
      ticks: word(bytes, 5),
      used: used,
      words: words,
      heartbeat_ms: word(bytes, 8),
      state: elem(@states, state),
      meta: meta(bytes, word(bytes, 10))
    }
  end

  defp meta(_bytes, size) when size > @most_meta,
    do: fail("the meta text has #{size} bytes, of at most #{@most_meta}")

  defp meta(bytes, size) do
    text = binary_part(bytes, 8 * @meta, size)
    if not String.valid?(text), do: fail("the meta text is not UTF-8")

    case Json.decode(text) do
      {:ok, %{} = meta} -> meta
      {:ok, _other} -> fail("the meta text is no JSON object")
      {:error, reason} -> fail("the meta text is no JSON: #{reason}")
    end
  end

  defp slots(_bytes, %{used: 0}), do: []

  defp slots(bytes, %{used: used, words: words}) do
    {slots, _taken} =
      Enum.flat_map_reduce(0..(used - 1), 0, fn index, taken ->
        case slot(bytes, index, words) do
          nil -> {[], taken}
          {slot, _data, size} when taken + size <= words -> {[slot], taken + size}
          _shared -> fail("slot #{index} shares its data with another")
        end
      end)

    slots
  end

  defp slot(bytes, index, words) do
    at = @header + index * @slot
    kind = word(bytes, at)
    if kind >= tuple_size(@kinds), do: fail("slot #{index} has the unknown kind #{kind}")

    with kind when kind != :free <- elem(@kinds, kind) do
      {offset, size} = {word(bytes, at + 1), word(bytes, at + 2)}

      if offset < @header or offset > words or size > words - offset,
        do: fail("the data of slot #{index} are outside the file: #{size} words from #{offset}")

      if size < @fewest[kind], do: fail("slot #{index} has #{size} words, too few for a #{kind}")
      data = binary_part(bytes, 8 * offset, 8 * size)
      [name, unit, help] = names(bytes, at, index)
      sequence = if kind in [:series, :text], do: {offset, word(data, 0)}
      slot = %Slot{name: name, kind: kind, unit: unit, help: help, sequence: sequence}
      {%{slot | value: value(kind, data, index)}, data, size}
    else
      :free -> nil
    end
  end

  defp names(bytes, at, index) do
    <<name::little-16, unit::little-16, help::little-16, _rest::16>> =
      binary_part(bytes, 8 * (at + 3), 8)

    all = name + unit + help
    if all > @most_names, do: fail("the names of slot #{index} have #{all} bytes")
    if name == 0, do: fail("slot #{index} has no name")
    start = 8 * (at + 4)

    for {from, size} <- [{0, name}, {name, unit}, {name + unit, help}] do
      text = binary_part(bytes, start + from, size)
      if String.valid?(text), do: text, else: fail("a name of slot #{index} is not UTF-8")
    end
  end

  defp value(:counter, data, _index), do: word(data, 0)
  defp value(:gauge, data, _index), do: float(data, 0)

  defp value(:histogram, data, index) do
    <<sum::little-64, counts::binary>> = data
    if byte_size(counts) > 8 * Histogram.buckets(), do: fail("slot #{index} has too many buckets")
    %Histogram{sum: sum, counts: counts(counts, 0, [])}
  end

  # Odd: its writer has not finished.
  defp value(_kind, <<sequence::little-64, _rest::binary>>, _index) when rem(sequence, 2) == 1,
    do: nil

  defp value(:series, data, index) do
    {n, stride, room} = {word(data, 1), word(data, 2), div(byte_size(data) - 24, 16)}
    if n > room, do: fail("the series of slot #{index} has #{n} points, in room for #{room}")

    points =
      for i <- 0..(n - 1)//1,
          x = float(data, 3 + 2 * i),
          y = float(data, 4 + 2 * i),
          do: {x, y}

    %{stride: stride, points: points}
  end

  defp value(:text, data, index) do
    {size, room} = {word(data, 1), byte_size(data) - 16}
    if size > room, do: fail("the text of slot #{index} has #{size} bytes, in room for #{room}")
    # Whatever a path or an error contains: a view escapes it.
    binary_part(data, 16, size)
  end

  defp counts(<<0::64, rest::binary>>, at, counts), do: counts(rest, at + 1, counts)

  defp counts(<<n::little-64, rest::binary>>, at, counts),
    do: counts(rest, at + 1, [{at, n} | counts])

  defp counts(<<>>, _at, counts), do: Enum.reverse(counts)

  defp word(bytes, at) do
    <<word::little-64>> = binary_part(bytes, 8 * at, 8)
    word
  end

  # NaN and infinity are unknown.
  defp float(bytes, at) do
    case binary_part(bytes, 8 * at, 8) do
      <<float::float-little-64>> -> float
      _unknown -> nil
    end
  end
end
