defmodule Sconce.Bench.Store do
  @moduledoc false
  # 256 blocks of 1 MB of weights in bf16, read in five orders with 64 MB of RAM: `Sconce.Store` beside lmdb, lmdb with blosc
  # and zarr (bench/peers/store.py).
  #
  # Each program runs in a process of its own, which writes its data and then enters a memory cgroup: its reads, with the
  # pages that the kernel keeps of its files, have 64 MB and a little for the program itself. The programs take turns.

  alias Sconce.Bench.{Child, Onnx, Output}
  alias Sconce.{Figures, Store}

  @blocks 256
  @bytes 2 ** 20
  @script Path.expand("../../../peers/store.py", __DIR__)
  @groups "/sys/fs/cgroup/memory"
  # 64 MB for blocks, and what a program allocates beside them while it reads.
  @limit 96 * 2 ** 20
  @options [ram: 48 * 2 ** 20, compressed: 0]
  @turns 3

  @columns [
    {"order", 12, :left},
    {"sconce GB/s", 11, :right},
    {"lmdb", 8, :right},
    {"lmdb+blosc", 10, :right},
    {"zarr", 8, :right},
    {"ours/best", 9, :right},
    {"p50_us", 8, :right},
    {"p99_us", 8, :right},
    {"hits", 6, :right},
    {"precision", 9, :right},
    {"recall", 6, :right},
    {"late", 6, :right}
  ]

  @peers ["lmdb", "lmdb+blosc", "zarr"]
  @orders ["sequential", "strided 3", "periodic", "zipf 1.05", "random"]

  @doc "Measures the five orders for `budget` seconds each, in turns, and calls `say` with each line of the table."
  @spec run(keyword, (String.t() -> term)) :: [map]
  def run(opts, say) do
    folder =
      Path.join(System.tmp_dir!(), "sconce-bench-store-#{System.unique_integer([:positive])}")

    File.mkdir_p!(folder)

    try do
      write_weights(Path.join(folder, "weights.bin"))
      orders = Path.join(folder, "orders.json")
      File.write!(orders, Output.json(orders()))
      peers = if opts[:peers], do: @peers, else: []
      names = Enum.flat_map(1..@turns, fn _turn -> ["sconce" | peers] end)
      runs = for name <- names, do: {name, run_one(name, folder, orders, opts[:budget])}
      rows = for order <- @orders, do: row(order, runs, peers)
      say.(Output.line(@columns, for({title, _width, _side} <- @columns, do: title)))
      Enum.each(rows, &say.(line(&1)))
      rows ++ small(folder, opts[:peers], say)
    after
      File.rm_rf!(folder)
    end
  end

  # 100,000 tensors of 2 KB, 1,000 in each commit, then 20,000 of them in a random order, all in one process.
  defp small(folder, peers?, say) do
    script = "Sconce.Bench.Store.small_child(#{inspect(folder)})"
    %{status: 0, output: output} = Child.await(Child.elixir(script), 600_000)
    own = parse(output)["small"]

    peer =
      if peers? do
        {output, 0} = System.cmd(Onnx.python(), ["-B", @script, folder, "small"])
        parse(output)["small"]
      end

    say.("\n100,000 tensors of 2 KB  put_s  p50_us  p99_us  files     MB")
    for {name, row} <- [{"sconce", own}, {"lmdb", peer}], row, do: say.(small_line(name, row))
    [%{name: "small", ok: true, sconce: own, lmdb: peer}]
  end

  defp small_line(name, row) do
    cells = [row["put_s"], row["p50_us"], row["p99_us"], row["files"], row["mb"]]
    numbers = Enum.map_join(cells, " ", &String.pad_leading(Figures.decimal(&1 / 1), 7))
    String.pad_trailing(name, 22) <> numbers
  end

  @doc "The measured program of small tensors."
  @spec small_child(Path.t()) :: :ok
  def small_child(folder) do
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    path = Path.join(folder, "small")
    {:ok, store} = Store.open(path, ram: 64 * 2 ** 20, compressed: 0)
    content = &String.duplicate(String.pad_leading("#{&1}", 8, "0"), 256)
    tensor = &%{data: content.(&1), shape: {512}, type: {:f, 32}}
    name = &("t" <> String.pad_leading("#{&1}", 6, "0"))
    began = System.monotonic_time(:nanosecond)

    for batch <- 0..99 do
      :ok =
        Store.put_all(store, for(at <- 0..999, n = batch * 1000 + at, do: {name.(n), tensor.(n)}))
    end

    put_s = (System.monotonic_time(:nanosecond) - began) / 1.0e9
    :rand.seed(:exsss, {7, 8, 9})

    times =
      for _n <- 1..20_000 do
        number = :rand.uniform(100_000) - 1
        want = content.(number)
        start = System.monotonic_time(:nanosecond)
        {:ok, %{data: ^want}} = Store.get(store, name.(number))
        (System.monotonic_time(:nanosecond) - start) / 1.0e3
      end

    files = Path.wildcard(Path.join(path, "**/*")) |> Enum.reject(&File.dir?/1)
    bytes = files |> Enum.map(&File.stat!(&1).size) |> Enum.sum()

    row = %{
      name: "small",
      put_s: put_s,
      p50_us: Figures.percentile(times, 50),
      p99_us: Figures.percentile(times, 99),
      files: length(files),
      mb: bytes / 1.0e6
    }

    IO.puts(Output.json(row))
  end

  # Normal numbers; each block is the first one, rotated.
  defp write_weights(path) do
    :rand.seed(:exsss, {4, 5, 6})

    base =
      for _n <- 1..div(@bytes, 2), into: <<>> do
        <<_low::binary-2, high::binary-2>> = <<0.05 * :rand.normal()::float-32-little>>
        high
      end

    blocks =
      for at <- 0..(@blocks - 1) do
        cut = 2 * 1021 * at
        [binary_part(base, cut, @bytes - cut), binary_part(base, 0, cut)]
      end

    File.write!(path, blocks)
  end

  @doc "The blocks in the order of each trace."
  @spec orders() :: %{String.t() => [non_neg_integer]}
  def orders do
    :rand.seed(:exsss, {1, 2, 3})
    loop = Enum.shuffle(0..(@blocks - 1)) |> Enum.take(96)
    masses = Enum.scan(for(n <- 1..@blocks, do: :math.pow(n, -1.05)), &(&1 + &2))
    places = Enum.shuffle(0..(@blocks - 1)) |> List.to_tuple()

    rank = fn ->
      at = :rand.uniform() * List.last(masses)
      Enum.find_index(masses, &(&1 >= at))
    end

    %{
      "sequential" => Enum.to_list(0..(@blocks - 1)),
      "strided 3" => for(n <- 0..(@blocks - 1), do: rem(3 * n, @blocks)),
      "periodic" => loop,
      "zipf 1.05" => for(_n <- 1..4096, do: elem(places, rank.())),
      "random" => for(_n <- 1..4096, do: :rand.uniform(@blocks) - 1)
    }
  end

  defp run_one("sconce", folder, _orders, seconds) do
    script = """
    Sconce.Bench.Store.child(#{inspect(folder)}, #{inspect(group("sconce"))}, #{seconds / 1})
    """

    %{status: 0, output: output} = Child.await(Child.elixir(script), 600_000)
    parse(output)
  end

  defp run_one(peer, folder, orders, seconds) do
    own = Path.join(folder, "peer-#{System.unique_integer([:positive])}")
    File.mkdir_p!(own)
    File.ln!(Path.join(folder, "weights.bin"), Path.join(own, "weights.bin"))
    args = ["-B", @script, own, peer, orders, group(peer), "#{seconds / 1}"]
    {output, 0} = System.cmd(Onnx.python(), args)
    File.rm_rf!(own)
    parse(output)
  end

  # A new group for each run, because pages that were charged to a group stay there.
  defp group(name) do
    name = String.replace(name, "+", "-")
    path = Path.join(@groups, "sconce-bench-#{name}-#{System.unique_integer([:positive])}")

    with :ok <- File.mkdir_p(path),
         :ok <- File.write(Path.join(path, "memory.limit_in_bytes"), "#{@limit}") do
      path
    else
      {:error, _reason} -> "-"
    end
  end

  defp parse(output) do
    for "{" <> _ = line <- String.split(output, "\n"), into: %{} do
      row = Sconce.Bench.Peers.parse(line)
      {row["name"], row}
    end
  end

  @doc "The measured program: writes the blocks, enters the group, and prints a line of JSON per order."
  @spec child(Path.t(), Path.t(), float) :: :ok
  def child(folder, group, seconds) do
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    path = Path.join(folder, "store-#{System.unique_integer([:positive])}-#{System.pid()}")
    {:ok, store} = Store.open(path, @options)
    data = File.stream!(Path.join(folder, "weights.bin"), [], @bytes)

    for {block, at} <- Enum.with_index(data) do
      tensor = %{data: block, shape: {div(@bytes, 2)}, type: {:bf, 16}}
      :ok = Store.put(store, name(at), tensor, commit: false)
    end

    :ok = Store.close(store)
    {:ok, store} = Store.open(path, @options)
    for at <- [0, 100, 255], do: check!(store, folder, at)
    :ok = Store.close(store)
    enter(group)
    System.cmd("sync", [])
    File.write("/proc/sys/vm/drop_caches", "1")
    orders = orders()

    for name <- @orders do
      {:ok, store} = Store.open(path, @options)
      IO.puts(Output.json(timed(store, name, List.to_tuple(orders[name]), seconds)))
      :ok = Store.close(store)
    end

    File.rm_rf!(path)
    :ok
  end

  defp enter("-"), do: :ok

  defp enter(group) do
    for task <- File.ls!("/proc/self/task"),
        do: File.write(Path.join(group, "tasks"), task)

    :ok
  end

  defp check!(store, folder, at) do
    {:ok, file} = :file.open(Path.join(folder, "weights.bin"), [:raw, :binary, :read])
    {:ok, want} = :file.pread(file, at * @bytes, @bytes)
    {:ok, %{data: ^want}} = Store.get(store, name(at))
    :file.close(file)
  end

  defp timed(store, name, order, seconds) do
    until = System.monotonic_time(:nanosecond) + round(seconds * 1.0e9)
    began = System.monotonic_time(:nanosecond)
    times = reads(store, order, 0, until, [])
    took = (System.monotonic_time(:nanosecond) - began) / 1.0e9
    {:ok, stats} = Store.stats(store)
    reads = length(times)

    %{
      name: name,
      gb_s: reads * @bytes / took / 1.0e9,
      p50_us: Figures.percentile(times, 50),
      p99_us: Figures.percentile(times, 99),
      reads: reads,
      hits: stats.in_ram / stats.requests,
      precision: stats.prefetched_used / max(1, stats.prefetched),
      recall: stats.prefetched_used / stats.requests,
      late: stats.prefetched_late / max(1, stats.prefetched_used)
    }
  end

  defp reads(store, order, done, until, times) do
    start = System.monotonic_time(:nanosecond)

    if start >= until do
      times
    else
      {:ok, _tensor} = Store.get(store, name(elem(order, rem(done, tuple_size(order)))))
      stop = System.monotonic_time(:nanosecond)
      reads(store, order, done + 1, until, [(stop - start) / 1.0e3 | times])
    end
  end

  defp name(at), do: String.pad_leading("#{at}", 3, "0")

  defp row(order, runs, peers) do
    all = fn program, key -> for {^program, rows} <- runs, do: rows[order][key] end
    median = fn program, key -> Figures.percentile(all.(program, key), 50) end
    theirs = Map.new(peers, &{&1, median.(&1, "gb_s")})
    own = median.("sconce", "gb_s")
    best = theirs |> Map.values() |> Enum.max(fn -> nil end)

    %{
      name: order,
      ok: true,
      gb_s: own,
      peers: theirs,
      ratio: best && own / best,
      p50_us: median.("sconce", "p50_us"),
      p99_us: median.("sconce", "p99_us"),
      hits: median.("sconce", "hits"),
      precision: median.("sconce", "precision"),
      recall: median.("sconce", "recall"),
      late: median.("sconce", "late")
    }
  end

  defp line(row) do
    peer = &if(row.peers[&1], do: decimal(row.peers[&1]), else: "")

    Output.line(@columns, [
      row.name,
      decimal(row.gb_s),
      peer.("lmdb"),
      peer.("lmdb+blosc"),
      peer.("zarr"),
      if(row.ratio, do: decimal(row.ratio), else: ""),
      Figures.decimal(row.p50_us),
      Figures.decimal(row.p99_us),
      decimal(row.hits),
      decimal(row.precision),
      decimal(row.recall),
      decimal(row.late)
    ])
  end

  defp decimal(value), do: :erlang.float_to_binary(value / 1, decimals: 2)
end
