defmodule Sconce.Test.FiguresFile do
  @moduledoc "Encodes files of figures as their writer in the native library does, for tests of their readers."

  @header 512
  @slot 32
  @meta %{
    "kind" => "imitation",
    "id" => "0a1b2c3d",
    "out" => "/tmp/run",
    "command" => "mix sconce.train"
  }

  @doc """
  Returns the bytes of a file. Figures are `{kind, name, value}` or `{kind, name, value, unit, help}`; the values are an
  integer (`:counter`), a float or nil (`:gauge`), `{sum, counts}` (`:histogram`), a list of points (`:series`) and text
  (`:text`). Other options replace words of the header.
  """
  def encode(figures, opts \\ []) do
    now = System.os_time(:millisecond)
    capacity = Keyword.get(opts, :capacity, length(figures) + 2)
    first = @header + capacity * @slot

    {slots, {data, words}} =
      Enum.map_reduce(figures, {[], first}, fn figure, {data, at} ->
        {kind, name, value, unit, help} = whole(figure)
        bytes = data(kind, value)
        size = div(byte_size(bytes), 8)
        {slot(kind, at, size, name, unit, help), {[data, bytes], at + size}}
      end)

    meta = opts |> Keyword.get(:meta, @meta) |> meta()

    numbers = [
      Keyword.get(opts, :version, 1),
      Keyword.get(opts, :words, words),
      Keyword.get(opts, :os_pid, os_pid()),
      Keyword.get(opts, :started_ms, now - 60_000),
      Keyword.get(opts, :ticks, 0),
      capacity,
      Keyword.get(opts, :used, length(figures)),
      Keyword.get(opts, :heartbeat_ms, now),
      Keyword.get(opts, :state, 0),
      Keyword.get(opts, :meta_size, byte_size(meta))
    ]

    table = padded(IO.iodata_to_binary(slots), 8 * @slot * capacity)
    head = "SCONWTCH" <> for(n <- numbers, into: "", do: <<n::little-64>>)
    header = padded(padded(head, 128) <> meta, 8 * @header)
    IO.iodata_to_binary([header, table, data])
  end

  @doc "Writes a file of a run, `ID.run`, or of a VM, `PID.vm`, and returns its path."
  def write!(dir, name, figures, opts \\ []) do
    path = Path.join(dir, name)
    File.write!(path, encode(figures, opts))
    path
  end

  @doc "Replaces a word of the bytes."
  def put(bytes, at, word) do
    <<before::binary-size(at)-unit(64), _::64, rest::binary>> = bytes
    <<before::binary, word::little-64, rest::binary>>
  end

  @doc "Returns the id of this OS process."
  def os_pid, do: String.to_integer(System.pid())

  defp whole({kind, name, value}), do: {kind, name, value, "", ""}
  defp whole(figure), do: figure

  defp meta(%{} = map),
    do: map |> Map.to_list() |> then(&IO.iodata_to_binary(Sconce.Monitor.Json.encode({&1})))

  defp meta(text), do: text

  defp slot(kind, at, size, name, unit, help) do
    number = %{free: 0, counter: 1, gauge: 2, histogram: 3, series: 4, text: 5}[kind]

    lengths =
      <<byte_size(name)::little-16, byte_size(unit)::little-16, byte_size(help)::little-16,
        0::16>>

    head = <<number::little-64, at::little-64, size::little-64>> <> lengths
    padded(head <> name <> unit <> help, 8 * @slot)
  end

  defp data(:counter, value), do: <<value::little-64>>
  defp data(:gauge, value), do: float(value)

  defp data(:histogram, {sum, counts}) do
    most = counts |> Enum.map(&elem(&1, 0)) |> Enum.max(fn -> 0 end)
    counts = Map.new(counts)
    <<sum::little-64>> <> for(i <- 0..most, into: "", do: <<Map.get(counts, i, 0)::little-64>>)
  end

  defp data(:series, points) do
    <<2::little-64, length(points)::little-64, 1::little-64>> <>
      for {x, y} <- points, into: "", do: float(x) <> float(y)
  end

  defp data(:text, text) do
    whole = <<2::little-64, byte_size(text)::little-64, text::binary>>
    padded(whole, 8 * ceil(byte_size(whole) / 8))
  end

  defp float(nil), do: <<0x7FF8_0000_0000_0000::little-64>>
  defp float(value), do: <<value::float-little-64>>

  defp padded(bytes, size), do: bytes <> :binary.copy(<<0>>, size - byte_size(bytes))
end
