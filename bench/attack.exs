# Retries everything that once crashed, froze or harmed a VM (`Sconce.Bench.Attack`):
#
#     mix run attack.exs | tee attack.txt
#     mix run attack.exs --only FIFO
#     mix run attack.exs --item 3
#
# Each row runs in its own VM, so that a crash ends only the row. Rows that need no VM (the Mix tasks, the
# source) run in this one. A row holds if three conditions are met. No call returns a raw error (an
# exception other than `Sconce.Error` or a plain `ArgumentError`, or a `:panic`). An input takes at most 2
# s, and at most 200 MB beyond the resident memory before. Processes, sessions, threads, descriptors, atoms
# and memory return to their initial values; the columns show before and after. A row that cannot run here
# (a small disk needs root) is skipped by name. The status is 1 if a row fails. Times depend on this machine
# and its load.

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
