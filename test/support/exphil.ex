defmodule Sconce.Test.Exphil do
  @moduledoc "Writes corpora in ExPhil's format."

  @doc """
  Writes a corpus of games, each `{path, port, rows}` with rows of `{numbers, label}`; a label is the bit mask of the
  buttons and five classes.
  """
  def write!(dir, games) do
    File.mkdir_p!(dir)
    rows = Enum.flat_map(games, fn {_path, _port, rows} -> rows end)
    {numbers, labels} = Enum.unzip(rows)
    [first | _] = numbers

    x = for row <- numbers, number <- row, into: <<>>, do: <<number::float-32-little>>
    header = <<"EMBD", 1::32-little, length(rows)::64-little, length(first)::64-little>>
    File.write!(Path.join(dir, "embeddings.bin"), [header, <<1::32-little, 0::32>>, x])

    header = <<"LBLS", 1::32-little, length(rows)::64-little, 6::32-little, 0::32>>
    File.write!(Path.join(dir, "labels.bin"), [header, Enum.map(labels, &:binary.list_to_bin/1)])
    File.write!(Path.join(dir, "manifest.jsonl"), manifest(games))
    dir
  end

  defp manifest(games) do
    {lines, _end} =
      Enum.map_reduce(games, 0, fn {path, port, rows}, start ->
        n = length(rows)
        {~s({"path":"#{path}","start":#{start},"frames":#{n},"port":#{port}}\n), start + n}
      end)

    lines
  end
end
