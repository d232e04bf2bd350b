defmodule Mix.Tasks.Bench do
  alias Sconce.Bench.{Backbones, Case, Cases, Evolve, Machine, Output, Peers, Play, Store, Zoo}
  alias Sconce.{Files, Switches}

  @schema [
    only: [type: :string, doc: "A regular expression: cases whose name and text match."],
    threads: [
      type: :pos_integer,
      doc: "Threads compared with one thread; all processors by default."
    ],
    budget: [type: :float, min: 0, default: 2.0, doc: "Seconds of measurement per case."],
    json: [type: :path, doc: "A file for the rows as JSON, one object per line."],
    steps: [
      type: :pos_integer,
      default: 300,
      doc: "Training steps on real games, for each of the `backbones`."
    ],
    peers: [type: :path, doc: "A file of rows by `bench/peers/run.py` to compare with."],
    with_peers: [
      type: :boolean,
      doc: "Measures the peers in this run, before and after Sconce. Needs `SCONCE_PEERS`."
    ]
  ]

  @shortdoc "Measures Sconce on this machine, beside the machine's limits"

  @moduledoc """
  Measures native calls, frames, decisions, training steps and imports, and prints a line for each result.

      $ mix bench
      $ mix bench --only "act gru" --budget 5 --json bench/results.json
      $ mix bench --only "^train" --with-peers

  #{Switches.docs(@schema)}

  | column | meaning |
  |---|---|
  | `name`, `case` | the measured work |
  | `batch`, `threads` | windows, frames or calls in one batch; computing threads |
  | `median_us`, `p95_us`, `n` | median and 95th percentile of n samples; calls below 20 us are timed in groups |
  | `limit_us`, `limit` | the best possible time, and its reason: bytes over the measured bandwidth, products and exponentials over their measured peak rates, or a no-op call |

  With peers a second table follows. For each row that a peer also has, the table shows the fastest peer, the
  peer's median (the lower one if the peer was measured before and after Sconce), Sconce's median as a
  fraction of the peer's, and the peak memory of both if known. `bench/peers/README.md` describes the peers.

  ## Backbones

      $ SCONCE_REPLAYS=replays mix bench backbones --steps 300 --only "gru|mamba"

  Prints one row for each backbone with its default options. Columns are the result of `--steps` training steps on
  the games in `train` (plain NLL in nats per frame on one frame in five of the games in `validation`, after
  the last step), the time of a decision, the memory of a session, and the time and peak memory of training
  steps on 32 windows of 60 frames. Without `SCONCE_REPLAYS` there is no training.

  ## Play

      $ mix bench play --only "^env (cart_pole|mountain_car|pendulum), |^ppo" --with-peers

  Measures a step of 1, 64 and 4,096 environments of each world: in a native loop, by `Sconce.Env.advance/1`, and by
  `Sconce.Env.step/2` with fresh binaries. The rows of `ppo` are an update of 2,048 steps, and the time from
  `Sconce.PPO.start_link/1` to a mean return of 475 in CartPole, as a median of seeds.

  ## Evolution

      $ mix bench evolve

  Measures forward passes, variation and episodes of populations, additions to archives, a generation of a search,
  holographic vectors, and billiards.

  ## Zoo

      $ mix bench zoo --with-peers --json zoo.json

  Measures the networks of `Sconce.Zoo` at batch 1 on one thread, through `Sconce.Net.run/2`: parameters, bytes of packed
  weights and of the arena, the time from a file to the first output, median and p99, and the time of its operations at
  the measured peak of a core. With peers ONNX Runtime runs the same networks in turns; `PEERS_DIR` must hold its
  environment. `apart` is the largest difference of both outputs.

  A second table has the same networks in 8 bits, beside 32 bits and beside ONNX Runtime's static quantisation: `vnni` says whether
  the CPU has `avx512_vnni`, and `apart` and `ort_apart` are the differences from the own output in 32 bits, relative to its
  largest number.

  ## Store

      $ mix bench store --with-peers

  Reads 256 blocks of 1 MB of weights in bf16 in five orders, with 64 MB of RAM, one block after the other without a pause:
  bytes that arrived per second, by `Sconce.Store.get/3`, lmdb, lmdb with blosc and zarr, as medians of turns. Each program
  runs in a memory cgroup of its own of 96 MB, which counts the kernel's pages of its files; without the right to make
  one it is not limited. `PEERS_DIR` must hold an environment with lmdb, numcodecs and zarr.

  `mix bench quantise` is `mix bench.quantise`: the effect of weights in fewer bits on decisions.

  Every case and every backbone checks its output. A failed one says FAILED, the others are still measured,
  and the exit status is 1. If `SCONCE_REPLAYS` is set, the games of that folder are imported too.

  Other work on the machine affects the times. On a shared machine, only ratios between rows of one run are
  meaningful.
  """

  use Mix.Task

  @usage "usage: mix bench [backbones | play | evolve | zoo | store | quantise] [--only REGEX] [--threads N] [--budget SECONDS] [--json FILE] " <>
           "[--peers FILE | --with-peers]"
  @no_games "SCONCE_REPLAYS is not set: no real games were imported."

  @impl true
  def run(["quantise" | args]), do: Mix.Task.run("bench.quantise", args)
  def run(args), do: Switches.help?(args, __MODULE__) || bench(args)

  defp bench(args) do
    {opts, what} = parse!(args)
    Mix.Task.run("app.config")
    with {:error, reason} <- Sconce.Native.status(), do: Mix.raise("no native library: #{reason}")
    with {:error, error} <- Sconce.Native.bench_noop(), do: Mix.raise(Exception.message(error))
    measure(what, opts)
  end

  defp measure(["backbones" = what], opts) do
    for name <- [:peers, :with_peers], opts[name] do
      Mix.raise("#{Switches.switch(name)} cannot be combined with #{what}")
    end

    backbones(opts)
  end

  defp measure(["zoo"], opts), do: zoo(opts)
  defp measure(["store"], opts), do: store(opts)
  defp measure(["play"], opts), do: cases(opts, &Play.all/1, nil)
  defp measure(["evolve"], opts), do: cases(opts, &Evolve.all/1, nil)

  defp measure([], opts),
    do: cases(opts, &Cases.all/1, unless(System.get_env("SCONCE_REPLAYS"), do: @no_games))

  defp backbones(opts) do
    names = opts |> regex!() |> Backbones.named()
    names != [] || Mix.raise("no backbone matches #{opts[:only]}")
    writable!(opts[:json])
    machine = Machine.describe()
    say = &Mix.shell().info/1
    say.(Output.header(machine))
    replays = System.get_env("SCONCE_REPLAYS")

    opts =
      opts |> Keyword.put_new_lazy(:threads, &Machine.cores/0) |> Keyword.put(:replays, replays)

    rows =
      case Backbones.run(names, opts, say) do
        {:ok, rows} -> rows
        {:error, error} -> Mix.raise(Exception.message(error))
      end

    write(for(row <- rows, do: %{extra: row}), machine, opts[:json])
    finish(Enum.reject(rows, & &1.ok), length(rows))
  end

  defp zoo(opts) do
    if opts[:peers], do: Mix.raise("--peers cannot be combined with zoo")

    names =
      for name <- Sconce.Zoo.names(), !regex!(opts) or to_string(name) =~ regex!(opts), do: name

    names != [] || Mix.raise("no network matches #{opts[:only]}")
    writable!(opts[:json])
    machine = Machine.describe()
    say = &Mix.shell().info/1
    say.(Output.header(machine))
    rows = Zoo.run(names, [budget: opts[:budget], peers: opts[:with_peers]], say)
    write(for(row <- rows, do: %{extra: row}), machine, opts[:json])
    finish(Enum.reject(rows, & &1.ok), length(rows))
  end

  defp store(opts) do
    for name <- [:peers, :only], opts[name] do
      Mix.raise("#{Switches.switch(name)} cannot be combined with store")
    end

    writable!(opts[:json])
    machine = Machine.describe()
    say = &Mix.shell().info/1
    say.(Output.header(machine))
    rows = Store.run([budget: opts[:budget], peers: opts[:with_peers]], say)
    write(for(row <- rows, do: %{extra: row}), machine, opts[:json])
    finish(Enum.reject(rows, & &1.ok), length(rows))
  end

  # `all` makes the cases, and `note` is a line below their rows, or nil.
  defp cases(opts, all, note) do
    cases = opts |> Keyword.get_lazy(:threads, &Machine.cores/0) |> all.() |> only!(opts)
    writable!(opts[:json])
    peers = peers!(cases, opts)
    machine = Machine.describe()
    say = &Mix.shell().info/1
    rows = rows(cases, machine, opts)
    rows = beside(rows, peers ++ again(cases, opts))
    if note, do: say.("\n" <> note)
    if table = Peers.table(rows), do: say.("\nBeside the fastest peer\n\n" <> table)
    write(rows, machine, opts[:json])
    finish(Enum.reject(rows, & &1.ok), length(rows))
  end

  # Measures and prints the rows of cases.
  defp rows(cases, machine, opts) do
    say = &Mix.shell().info/1
    say.(Output.header(machine))
    say.(Output.titles())
    for bench <- cases, do: bench |> Case.row(opts[:budget]) |> tap(&say.(Output.row(&1)))
  end

  defp parse!(args) do
    case Switches.parse!(args, @schema) do
      {opts, rest} when rest in [[], ["backbones"], ["play"], ["evolve"], ["zoo"], ["store"]] ->
        defaults = for name <- [:budget, :steps], do: {name, @schema[name][:default]}
        {Keyword.merge(defaults, opts), rest}

      {_opts, [argument | _]} ->
        raise ArgumentError, "unknown argument #{argument}"
    end
  rescue
    error in ArgumentError -> Mix.raise("#{Exception.message(error)}\n#{@usage}")
  end

  # Checks the output file first, so that minutes of measurements are not lost at the end.
  defp writable!(nil), do: :ok

  defp writable!(path) do
    with {:error, reason} <- Files.check(path),
         do: Mix.raise("--json: #{path}: #{:file.format_error(reason)}")
  end

  # A run that measures nothing is an error.
  defp only!(cases, opts) do
    with %Regex{} = regex <- regex!(opts),
         [] <- Enum.filter(cases, &(Case.title(&1) =~ regex)) do
      titles = Enum.map_join(cases, "\n  ", &Case.title/1)
      Mix.raise("no case matches #{opts[:only]}; the cases are\n  " <> titles)
    else
      nil -> cases
      [_ | _] = matching -> matching
    end
  end

  defp regex!(opts) do
    with source when is_binary(source) <- opts[:only],
         {:error, {reason, at}} <- Regex.compile(source) do
      Mix.raise("--only: #{reason} at #{at}")
    else
      nil -> nil
      {:ok, regex} -> regex
    end
  end

  defp peers!(cases, opts) do
    cond do
      opts[:with_peers] && opts[:peers] ->
        Mix.raise("--peers and --with-peers exclude each other")

      opts[:with_peers] ->
        measured!(cases, opts)

      path = opts[:peers] ->
        path |> Peers.read() |> rows!("--peers")

      true ->
        []
    end
  end

  # Measures the peers again, because the machine's speed may have changed. If this fails, Sconce's rows are kept.
  defp again(cases, opts) do
    case opts[:with_peers] && Peers.measure(cases, opts[:budget]) do
      nil ->
        []

      {:ok, rows} ->
        rows

      {:error, reason} ->
        Mix.shell().error("--with-peers, after Sconce: #{reason}")
        []
    end
  end

  defp measured!(cases, opts),
    do: cases |> Peers.measure(opts[:budget]) |> rows!("--with-peers")

  defp rows!({:ok, rows}, _switch), do: rows
  defp rows!({:error, reason}, switch), do: Mix.raise("#{switch}: #{reason}")

  defp beside(rows, peers),
    do: for(row <- rows, do: %{row | extra: Map.merge(row.extra, Peers.beside(row, peers))})

  defp write(_rows, _machine, nil), do: :ok

  defp write(rows, machine, path) do
    lines = Enum.map(rows, &[Output.json_line(&1, machine), ?\n])

    with {:error, error} <- Files.write(path, lines, :bench),
         do: Mix.raise("--json: " <> Exception.message(error))
  end

  defp finish([], _count), do: :ok

  defp finish(failed, count) do
    Mix.shell().error("#{length(failed)} of #{count} cases FAILED")
    exit({:shutdown, 1})
  end
end
