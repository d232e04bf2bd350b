# A large archive saved again and again while a hundredth of its cells change: as a file, and in a `Sconce.Store`. Then
# saves into a store by VMs that are killed at random moments.
#
#     cd bench && mix run archive.exs | tee archive.txt
#     CELLS=20000 SIZE=722 KILLS=5 mix run archive.exs
#
# CPU seconds are those of all threads of the process, and say more than the time on a busy machine. Bytes are those of its write
# calls (`wchar` of /proc/self/io), with headers and indices.

alias Sconce.Bench.{Child, Machine, Output}
alias Sconce.Evolve.{Archive, Population}
alias Sconce.{Figures, Store}

defmodule Stores do
  @sides 100

  def archive(cells, size) do
    opts = [cells: {:grid, [div(cells, @sides), @sides]}, ranges: [{0, 1}, {0, 1}]]
    {:ok, archive} = Archive.new(opts ++ [solution_size: size, as: :binaries])
    archive
  end

  # Elites of cells, with random normal numbers as those of policies.
  def offer(archive, cells, objective, seed) do
    %{solution_size: size, cells: all} = archive
    spec = Population.spec(:cart_pole, hidden_sizes: [64])
    count = div(length(cells) * size, 450) + 1
    {:ok, numbers} = Population.new(spec, count: count, seed: seed, as: :binaries)
    {:ok, %{data: data}} = Population.read(numbers)
    count = length(cells)
    side = div(all, @sides)

    measures =
      for cell <- cells, into: <<>> do
        <<(div(cell, @sides) + 0.5) / side::float-64-little,
          (rem(cell, @sides) + 0.5) / @sides::float-64-little>>
      end

    {:ok, %{status: %{data: status}}} =
      Archive.add(
        archive,
        %{data: binary_part(data, 0, 4 * size * count), shape: {count, size}, type: {:f, 32}},
        %{
          data: :binary.copy(<<objective::float-64-little>>, count),
          shape: {count},
          type: {:f, 64}
        },
        %{data: measures, shape: {count, 2}, type: {:f, 64}}
      )

    false = :binary.match(status, <<0>>) != :nomatch
  end

  def fill(archive) do
    for {part, at} <- Enum.with_index(Enum.chunk_every(0..(archive.cells - 1), 5000)),
        do: offer(archive, part, 0.0, at)
  end

  # Round number `round`: one cell of a hundred, the same ones in each VM.
  def change(archive, round) do
    rng = :rand.seed_s(:exsss, round)

    {cells, _rng} =
      Enum.map_reduce(1..div(archive.cells, 100), rng, fn _n, rng ->
        :rand.uniform_s(archive.cells, rng)
      end)

    offer(archive, cells |> Enum.map(&(&1 - 1)) |> Enum.uniq(), round / 1, 1_000_000 + round)
  end

  def measured(work) do
    :erlang.garbage_collect()
    {wrote, cpu} = {wchar(), cpu()}
    start = System.monotonic_time(:microsecond)
    result = work.()
    seconds = (System.monotonic_time(:microsecond) - start) / 1.0e6
    {result, %{seconds: seconds, cpu: cpu() - cpu, bytes: wchar() - wrote}}
  end

  defp wchar do
    [_all, bytes] = Regex.run(~r/wchar: (\d+)/, File.read!("/proc/self/io"))
    String.to_integer(bytes)
  end

  # Seconds of all threads, in ticks of 10 ms.
  defp cpu do
    fields =
      "/proc/self/stat" |> File.read!() |> String.split(") ") |> List.last() |> String.split()

    (fields |> Enum.slice(11, 2) |> Enum.map(&String.to_integer/1) |> Enum.sum()) / 100
  end

  def row(title, %{seconds: seconds, cpu: cpu, bytes: bytes}) do
    IO.puts(
      String.pad_trailing(title, 34) <>
        String.pad_leading("#{Float.round(seconds, 2)} s", 9) <>
        String.pad_leading("#{Float.round(cpu, 2)} s", 9) <>
        String.pad_leading(Figures.size(bytes), 11)
    )
  end

  # A VM that changes and saves the archive, and notes each save that was acknowledged.
  def saver(folder, note) do
    {:ok, store} = Store.open(folder)
    {:ok, archive} = Archive.load({store, "elites"}, as: :binaries)
    {:ok, %{best: best}} = Archive.stats(archive)

    for round <- Stream.iterate(trunc(best) + 1, &(&1 + 1)) do
      change(archive, round)
      :ok = Archive.save(archive, {store, "elites"})
      File.write!(note, "#{round}")
    end
    |> Stream.run()
  end
end

if match?(["saver" | _], System.argv()) do
  ["saver", folder, note] = System.argv()
  Code.ensure_loaded(Archive)
  Stores.saver(folder, note)
end

cells = String.to_integer(System.get_env("CELLS", "100000"))
size = String.to_integer(System.get_env("SIZE", "722"))
kills = String.to_integer(System.get_env("KILLS", "20"))
IO.puts(Output.header(Machine.describe()))
folder = Path.join(System.tmp_dir!(), "sconce-archive-#{System.pid()}")
File.mkdir_p!(folder)
file = Path.join(folder, "archive.safetensors")
{:ok, store} = Store.open(Path.join(folder, "store"))
archive = Stores.archive(cells, size)
Stores.fill(archive)
IO.puts("#{cells} elites of #{size} numbers, #{Figures.size(cells * (4 * size + 24))}\n")
IO.puts(String.duplicate(" ", 36) <> "   time      CPU      bytes")

{:ok, first} = Stores.measured(fn -> Archive.save(archive, file) end)
Stores.row("first save, file", first)
{:ok, first} = Stores.measured(fn -> Archive.save(archive, {store, "elites"}) end)
Stores.row("first save, store", first)

for round <- 1..3 do
  Stores.change(archive, round)
  {:ok, own} = Stores.measured(fn -> Archive.save(archive, file) end)
  Stores.row("1 % changed, file", own)
  {:ok, own} = Stores.measured(fn -> Archive.save(archive, {store, "elites"}) end)
  Stores.row("1 % changed, store", own)
end

{:ok, own} = Stores.measured(fn -> Archive.save(archive, {store, "elites"}) end)
Stores.row("nothing changed, store", own)
{:ok, stats} = Store.stats(store)
:ok = Store.commit(store)
{{:ok, freed}, own} = Stores.measured(fn -> Store.compact(store) end)
Stores.row("compact, #{Figures.size(stats.disk_bytes)} before", own)
IO.puts("  of which #{Figures.size(freed)} came back; #{stats.tensors} tensors")
{{:ok, of_file}, own} = Stores.measured(fn -> Archive.load(file, as: :binaries) end)
Stores.row("load, file", own)
{{:ok, of_store}, own} = Stores.measured(fn -> Archive.load({store, "elites"}, as: :binaries) end)
Stores.row("load, store", own)
true = Archive.elites(of_file) == Archive.elites(archive)
true = Archive.elites(of_store) == Archive.elites(archive)
IO.puts("both have the elites of the archive to the last bit")
:ok = Store.close(store)

# Kills, with a smaller archive.
killed = Path.join(folder, "killed")
note = Path.join(folder, "note")
small = Stores.archive(10_000, 100)
Stores.fill(small)
{:ok, store} = Store.open(killed)
:ok = Archive.save(small, {store, "elites"})
:ok = Store.close(store)
File.write!(note, "0")
:rand.seed(:exsss, 1)

{_archive, _round, rounds} =
  Enum.reduce(1..kills//1, {small, 0, []}, fn _kill, {expected, at, rounds} ->
    child = Child.script(Path.expand(__ENV__.file), ["saver", killed, note])
    # The VM needs a while before its first save.
    Process.sleep(1500 + :rand.uniform(2500))
    %{status: 137} = Child.kill(child)
    {:ok, store} = Store.open(killed)
    {:ok, []} = Store.verify(store)
    {:ok, loaded} = Archive.load({store, "elites"}, as: :binaries)
    :ok = Store.close(store)
    {:ok, %{best: best}} = Archive.stats(loaded)
    {found, noted} = {trunc(best), String.to_integer(File.read!(note))}
    true = found in [noted, noted + 1]
    for round <- (at + 1)..found//1, do: Stores.change(expected, round)
    true = Archive.elites(loaded) == Archive.elites(expected)
    {expected, found, [found - at | rounds]}
  end)

IO.puts(
  "\n#{kills} kills of a VM that saves 10,000 elites of 100 numbers into a store, after #{Enum.join(Enum.reverse(rounds), ", ")} saves: each\n" <>
    "time the store verified and had the archive of the last save, to the last bit"
)

File.rm_rf!(folder)
