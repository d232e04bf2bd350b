# A loader that reads a corpus of four times its memory, plain and compressed.
#
#     cd bench && SCONCE_REPLAYS=DIR mix run larger.exs | tee larger.txt
#     FOLDER=DIR2 SCONCE_REPLAYS=DIR mix run larger.exs    # keeps the corpora in DIR2, or takes those that are there
#
# The games are copies of those in DIR/train whose time of recording differs. Each run is a process of its own in a memory
# cgroup, whose limit, with the pages of files that the kernel keeps for it, is a quarter of the plain corpus. It opens the
# corpus, takes batches of 64 random windows of 80 frames as fast as it can, and then one each PACE_MS milliseconds. Needs
# cgroups of version 1 and permission to make one.

alias Sconce.Bench.{Child, Machine, Output}
alias Sconce.{Corpus, Figures}

copies = String.to_integer(System.get_env("COPIES", "64"))
steps = String.to_integer(System.get_env("STEPS", "100"))
# A consumer of a batch each 300 ms takes 17,000 frames a second.
pace = String.to_integer(System.get_env("PACE_MS", "300"))
replays = System.get_env("SCONCE_REPLAYS") || raise "SCONCE_REPLAYS names no folder"
kept = System.get_env("FOLDER")
folder = kept || Path.join(System.tmp_dir!(), "sconce-larger-#{System.pid()}")
groups = "/sys/fs/cgroup/memory"

# The seconds and minutes of the time of recording tell the copies apart.
copy = fn file, number ->
  bytes = File.read!(file)
  {at, length} = :binary.match(bytes, "startAtSU")
  # A letter of length, the date, `T` and the hours.
  time = at + length + 1 + 14
  <<head::binary-size(time), _minutes_and_seconds::binary-size(5), rest::binary>> = bytes
  digits = &String.pad_leading("#{&1}", 2, "0")
  [head, digits.(div(number, 60)), ":", digits.(rem(number, 60)), rest]
end

import_all = fn name, compress ->
  for number <- 0..(copies - 1), reduce: 0.0 do
    seconds ->
      batch = Path.join(folder, "replays")
      File.mkdir_p!(batch)

      for file <- Path.wildcard(Path.join(replays, "train/*.slp")),
          do: File.write!(Path.join(batch, Path.basename(file)), copy.(file, number))

      options = [into: Path.join(folder, name), compress: compress, progress: false]
      {:ok, corpus} = Corpus.import(batch, options)
      File.rm_rf!(batch)
      seconds + corpus.report.seconds
  end
end

IO.puts(Output.header(Machine.describe()))
kinds = [{"plain", false}, {"compressed", true}]

made =
  for {name, compress} <- kinds, into: %{} do
    there =
      match?({:ok, %{info: %{games: games}}} when games > 0, Corpus.open(Path.join(folder, name)))

    seconds = if there, do: 0.0, else: import_all.(name, compress)
    {:ok, corpus} = Corpus.open(Path.join(folder, name))
    {name, %{info: corpus.info, seconds: seconds}}
  end

plain = made["plain"].info
limit = div(plain.bytes, 4)

IO.puts(
  "#{plain.games} games, #{Figures.grouped(plain.frames)} frames; memory of a run #{Figures.size(limit)}\n"
)

IO.puts(
  "corpus          size  imported_s    open_s    frames/s (first 50 batches, next 50)   waits % at a pace"
)

child = fn name, group ->
  """
  {:ok, _apps} = Application.ensure_all_started(:sconce)
  File.write!(#{inspect(Path.join(group, "cgroup.procs"))}, System.pid())
  File.write("/proc/sys/vm/drop_caches", "1")
  path = #{inspect(Path.join(folder, name))}
  now = fn -> System.monotonic_time(:microsecond) / 1.0e6 end
  began = now.()
  {:ok, corpus} = Sconce.Corpus.open(path)
  load = [batch_size: 64, window_size: 80, as: :binaries]
  [_first] = corpus |> Sconce.Loader.stream(load) |> Enum.take(1)
  opened = now.() - began
  flows = corpus |> Sconce.Loader.stream([seed: 7] ++ load) |> Stream.map(&{&1.step, &1.flow.rows, now.()}) |> Enum.take(101)
  rate = fn from, to ->
    {{_, a, t0}, {_, b, t1}} = {Enum.at(flows, from), Enum.at(flows, to)}
    round((b - a) / (t1 - t0))
  end
  # A consumer at this pace: what it waits for.
  paced = corpus |> Sconce.Loader.stream([seed: 8] ++ load) |> Enum.reduce_while(nil, fn batch, _flow ->
    Process.sleep(#{pace})
    if batch.step == #{steps}, do: {:halt, batch.flow}, else: {:cont, nil}
  end)
  IO.puts(Enum.join([opened, rate.(0, 50), rate.(50, 100), 100 * paced.data_wait_seconds / paced.seconds], " "))
  """
end

for {name, _compress} <- kinds do
  group = Path.join(groups, "sconce-bench-larger-#{name}-#{System.pid()}")
  File.mkdir_p!(group)
  File.write!(Path.join(group, "memory.limit_in_bytes"), "#{limit}")
  ended = Child.await(Child.elixir(child.(name, group)), 1_800_000)
  File.rmdir(group)
  line = ended.output |> String.split("\n", trim: true) |> List.last("")

  if ended.status == 0 do
    [opened, first, next, waits] = String.split(line)

    IO.puts(
      String.pad_trailing(name, 12) <>
        String.pad_leading(Figures.size(made[name].info.bytes), 8) <>
        String.pad_leading(Figures.decimal(made[name].seconds), 12) <>
        String.pad_leading(Figures.decimal(String.to_float(opened)), 10) <>
        String.pad_leading("#{first}, #{next}", 33) <>
        String.pad_leading(Figures.decimal(String.to_float(waits)), 20)
    )
  else
    IO.puts("#{name}: #{ended.status} #{String.slice(ended.output, -400, 400)}")
  end
end

kept || File.rm_rf!(folder)
