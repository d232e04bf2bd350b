# What once ended, froze or hurt a VM, tried again (`Sconce.Bench.Attack`):
#
#     mix run attack.exs | tee attack.txt
#     mix run attack.exs --only FIFO
#     mix run attack.exs --item 3
#
# Each row is tried in a VM of its own, so that one that dies is a row and not the end; what needs no VM (the
# Mix tasks, the source) is tried from this one. A row is held where no call came back raw (an exception that is
# neither a `Sconce.Error` nor an `ArgumentError` in words, or a `:panic`), where an input took no longer than 2 s and
# no more than 200 MB beyond what was resident before, and where processes, sessions, threads, descriptors, atoms and
# memory are back to the start; the columns have before and after. What a row cannot do here (a small
# disk wants root) is skipped by name. Status 1 where one failed. Times are those of this machine at its load.

defmodule AttackScript do
  alias Sconce.Bench.{Attack, Machine, Output}

  @switches [only: :string, item: :integer]
  @columns [
    {"item", 4, :right},
    {"verdict", 7, :left},
    {"seconds", 8, :right},
    {"MB more", 7, :right},
    {"threads", 9, :left},
    {"files", 7, :left},
    {"atoms", 5, :right},
    {"what was tried: what came back", 0, :left}
  ]

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    dir = Path.join(System.tmp_dir!(), "sconce-attack-#{System.pid()}")
    IO.puts(Output.header(Machine.describe()))
    IO.puts(Output.line(@columns, for({title, _width, _side} <- @columns, do: title)))

    try do
      rows = Enum.filter(Attack.rows(), &wanted?(&1, opts))
      verdicts = for {row, n} <- Enum.with_index(rows), do: tried(row, Path.join(dir, "#{n}"))
      counts = Enum.frequencies(verdicts)
      IO.puts("\n" <> Enum.map_join(counts, ", ", fn {verdict, n} -> "#{n} #{verdict}" end))
      if counts[:failed], do: System.halt(1)
    after
      File.rm_rf!(dir)
    end
  end

  defp wanted?(row, opts) do
    (opts[:item] || row.item) == row.item and row.name =~ Regex.compile!(opts[:only] || "", "i")
  end

  defp tried(row, dir) do
    told = Attack.run(row, dir)
    File.rm_rf!(dir)
    [from, to] = for there <- [:before, :after], do: Map.get(told, there, %{})
    mb = with n when is_integer(n) <- Attack.grown(told), do: n / 1.0e6

    cells = [
      "#{row.item}",
      "#{told.verdict}",
      decimal(told[:seconds]),
      decimal(mb),
      change(from[:threads], to[:threads]),
      change(from[:descriptors], to[:descriptors]),
      if(to[:atoms], do: "+#{to.atoms - from.atoms}", else: "-"),
      "#{row.name}: #{told.text}"
    ]

    IO.puts(Output.line(@columns, cells))
    told.verdict
  end

  defp decimal(nil), do: "-"
  defp decimal(number), do: :erlang.float_to_binary(number / 1, decimals: 2)

  defp change(nil, _to), do: "-"
  defp change(from, to), do: "#{from} #{to}"
end

AttackScript.main(System.argv())
