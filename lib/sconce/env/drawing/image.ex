defmodule Sconce.Env.Drawing.Image do
  @moduledoc false
  # Draws an observation as a grey PNG.

  # Points of the picture for each number, and between two channels.
  @scale 4

  @doc "Returns the channels side by side, 0 black and 1 white."
  @spec png(binary, [pos_integer]) :: binary
  def png(observation, [channels, height, width]) do
    numbers = for <<number::float-32-little <- observation>>, do: grey(number)
    gap = :binary.copy(<<128>>, @scale)

    lines =
      for row <- zipped(numbers, channels, height, width) do
        line = row |> Enum.map(&wide/1) |> Enum.intersperse(gap) |> IO.iodata_to_binary()
        # Each line begins with the number of its filter: none.
        List.duplicate([0, line], @scale)
      end

    wide = @scale * (channels * width + channels - 1)
    header = <<wide::32, @scale * height::32, 8, 0, 0, 0, 0>>

    IO.iodata_to_binary([
      <<137, "PNG", 13, 10, 26, 10>>,
      chunk("IHDR", header),
      chunk("IDAT", :zlib.compress(lines)),
      chunk("IEND", "")
    ])
  end

  # For each row of pixels that row of each channel.
  defp zipped(numbers, channels, height, width) do
    rows = Enum.chunk_every(numbers, width)
    planes = Enum.chunk_every(rows, height)
    ^channels = length(planes)
    Enum.zip_with(planes, & &1)
  end

  defp wide(row), do: for(grey <- row, do: :binary.copy(<<grey>>, @scale))

  defp grey(number), do: number |> max(0.0) |> min(1.0) |> Kernel.*(255) |> round()

  defp chunk(kind, data),
    do: [<<byte_size(data)::32>>, kind, data, <<:erlang.crc32([kind, data])::32>>]
end
