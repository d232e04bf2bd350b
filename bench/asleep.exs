# 50,000 idle games of a GRU 256 x 2, whose memory lies in a `Sconce.Store` with 64 MB of RAM: how long until a game is awake.
#
#     cd bench && mix run asleep.exs | tee asleep.txt
#     GAMES=12000 RAM_MB=15 mix run asleep.exs      # the same shares with fewer games
#
# Each game has a session of its own for some frames, then its snapshot is put into the store. A game wakes up when its
# snapshot has been read and restored in a session; the decision after it is measured alone. The control is the same wake-up
# from a map in the VM's memory.

alias Sconce.Bench.{Machine, Output}
alias Sconce.{Figures, Policy, Session, Store}

games = String.to_integer(System.get_env("GAMES", "50000"))
ram = String.to_integer(System.get_env("RAM_MB", "64")) * 2 ** 20
wakes = 20_000

{:ok, policy} =
  Policy.init(
    [
      embedding: {:vector, 32},
      backbone: :gru,
      hidden_size: 256,
      num_layers: 2,
      heads: [move: {:categorical, 8}]
    ],
    seed: 1
  )

IO.puts(Output.header(Machine.describe()))
folder = Path.join(System.tmp_dir!(), "sconce-asleep-#{System.pid()}")
{:ok, store} = Store.open(folder, ram: div(3 * ram, 4), compressed: div(ram, 4))
{:ok, session} = Session.open(policy, seed: 1)
us = fn -> System.monotonic_time(:nanosecond) / 1.0e3 end
frame = fn seed -> for n <- 1..32, do: :math.sin(seed * n / 7) end
name = &"game #{&1}"

# The first decision of a game reads a window of copies of its first frame, which takes milliseconds: all games begin with one.
{:ok, _action} = Session.act(session, frame.(0))
{:ok, begun} = Session.snapshot(session)

# Snapshots of games with a memory of their own.
began = us.()

kept =
  for game <- 1..games, into: %{} do
    :ok = Session.restore(session, begun)
    {:ok, _action} = Session.act(session, frame.(game))
    {:ok, snapshot} = Session.snapshot(session)
    {game, snapshot}
  end

made_s = (us.() - began) / 1.0e6
began = us.()

for part <- Enum.chunk_every(1..games, 500) do
  tensors =
    for game <- part do
      snapshot = kept[game]
      {name.(game), %{data: snapshot, shape: {byte_size(snapshot)}, type: {:u, 8}}}
    end

  :ok = Store.put_all(store, tensors, commit: false)
end

:ok = Store.commit(store)
put_s = (us.() - began) / 1.0e6
{:ok, stats} = Store.stats(store)
File.write("/proc/sys/vm/drop_caches", "1")

IO.puts(
  "#{games} games, #{byte_size(begun)} bytes each; made in #{Float.round(made_s, 1)} s, put in #{Float.round(put_s, 2)} s\n" <>
    "#{inspect(store)}\n"
)

measure = fn draw, read ->
  for _n <- 1..wakes do
    game = draw.()
    start = us.()
    snapshot = read.(game)
    :ok = Session.restore(session, snapshot)
    awake = us.()
    {:ok, _action} = Session.act(session, frame.(game + 1))
    {awake - start, us.() - awake}
  end
end

from_store = fn game ->
  {:ok, %{data: data}} = Store.get(store, name.(game), stream: game)
  data
end

uniform = fn -> :rand.uniform(games) end
# Every hundredth game wakes up half of the time.
skewed = fn ->
  if :rand.uniform() < 0.5, do: 100 * :rand.uniform(div(games, 100)), else: :rand.uniform(games)
end

:rand.seed(:exsss, {1, 2, 3})
IO.puts("                          awake_us     p50      p99    max   decision p50")

for {title, draw, read} <- [
      {"uniform, from the store", uniform, from_store},
      {"uniform, from a map", uniform, &kept[&1]},
      {"skewed, from the store", skewed, from_store},
      {"skewed, from a map", skewed, &kept[&1]}
    ] do
  {awake, decision} = Enum.unzip(measure.(draw, read))

  cells = [
    Figures.percentile(awake, 50),
    Figures.percentile(awake, 99),
    Enum.max(awake),
    Figures.percentile(decision, 50)
  ]

  IO.puts(
    String.pad_trailing(title, 34) <>
      Enum.map_join(cells, " ", &String.pad_leading(Figures.decimal(&1), 7))
  )
end

{:ok, after_it} = Store.stats(store)
asked = after_it.requests - stats.requests

IO.puts(
  "\nof #{asked} reads: #{after_it.in_ram - stats.in_ram} in RAM, #{after_it.in_compressed - stats.in_compressed} compressed"
)

IO.puts(
  "bytes: #{after_it.ram_bytes} in RAM, #{after_it.compressed_bytes} compressed, #{after_it.disk_bytes} on disk"
)

:ok = Store.close(store)
File.rm_rf!(folder)
