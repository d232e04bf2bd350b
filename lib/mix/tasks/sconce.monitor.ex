defmodule Mix.Tasks.Sconce.Monitor do
  alias Sconce.Monitor.{Folder, Record, Snapshot, View, Watch}
  alias Sconce.Terminal
  alias Sconce.Switches

  @schema [
    latest: [type: :boolean, default: false, doc: "Shows the run that began last."],
    vm: [type: :pos_integer, doc: "Shows the VM with this process id of the system."],
    dir: [type: :path, doc: "Folder of the files, see `Sconce.Monitor`."],
    interval: [
      type: :float,
      default: 1.0,
      min: 0.1,
      max: 3600,
      doc: "Seconds between two readings."
    ],
    once: [type: :boolean, default: false, doc: "Prints one picture, and ends."],
    plain: [type: :boolean, default: false, doc: "Uses no colour."],
    ascii: [type: :boolean, default: false, doc: "Uses no characters beyond ASCII."],
    columns: [type: {:in, 20..1000}, doc: "Width, by default that of the terminal, or 80."],
    rows: [type: {:in, 5..1000}, doc: "Height, by default that of the terminal, or 24."],
    record: [
      type: :path,
      doc:
        "Writes all figures at each interval to this file, `.csv` or `.jsonl`, and draws nothing."
    ]
  ]

  @shortdoc "Watches runs and VMs in a terminal"

  @moduledoc """
  Draws what runs and VMs with Sconce are doing.

      $ mix sconce.monitor              # all of them
      $ mix sconce.monitor --latest     # the run that began last
      $ mix sconce.monitor 3f2a91c0     # the run with this id
      $ mix sconce.monitor runs/first   # the run of this folder
      $ mix sconce.monitor --vm 4711    # the VM with this process id

  It reads only the files that they write (`Sconce.Monitor`), so it can be started
  and killed at any time, over ssh too, and needs no native library. It says when
  what it watches has ended or was killed, with the last figures. In a terminal the
  keys are `q` (end), `1` to `9` (the run or VM of that row) and `0` (all).
  Without a terminal it prints a picture at each interval.

  `--record FILE` writes a line for each file and each interval: in `.jsonl` an
  object with all figures, in `.csv` a row of the figures that the first reading
  had. Histograms are written as their number of values, `p50` and `p99`.

  #{Switches.docs(@schema)}
  """

  use Mix.Task

  @requirements ["app.config"]

  # Seconds between the two readings of `--once`, which rates need.
  @once_s 0.5

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || args |> parse!() |> watch()

  defp parse!(args) do
    {given, rest} = Switches.parse!(args, @schema)
    defaults = for {name, spec} <- @schema, {:default, value} <- spec, do: {name, value}
    opts = Keyword.merge(defaults, given)

    case {rest, opts[:latest], opts[:vm]} do
      {[], _latest, _vm} -> {opts, nil}
      {[one], false, nil} -> {opts, one}
      _several -> Mix.raise("expected one run: an id, a folder, --latest or --vm")
    end
  rescue
    error in ArgumentError -> Mix.raise(Exception.message(error))
  end

  defp watch({opts, target}) do
    dir = opts[:dir] || Folder.path()
    path = found(dir, target, opts)
    watch = dir |> Watch.new(path) |> Watch.read()
    if path && watch.files[path] == nil, do: Mix.raise(watch.error || "#{path} is not readable")

    live? = not opts[:once] and opts[:record] == nil and Terminal.interactive?()
    opts = Keyword.put(opts, :live, live?)

    cond do
      opts[:record] -> record(watch, opts)
      opts[:once] -> once(watch, path, opts)
      live? -> Terminal.live(fn -> live(watch, path, opts) end)
      true -> printed(watch, path, opts)
    end
  end

  # The file of what is asked for; nil is everything.
  defp found(dir, nil, opts) do
    cond do
      opts[:latest] -> latest(dir)
      opts[:vm] -> Folder.vm(dir, opts[:vm]) || Mix.raise("no VM #{opts[:vm]} in #{dir}")
      true -> nil
    end
  end

  defp found(dir, target, _opts) do
    by_id = Path.join(dir, target <> ".run")

    cond do
      target =~ ~r/\A[0-9a-f]{8}\z/ and File.regular?(by_id) -> by_id
      String.ends_with?(target, [".run", ".vm"]) and File.regular?(target) -> target
      path = of_folder(dir, Path.expand(target)) -> path
      true -> Mix.raise("no run #{target} in #{dir}; mix sconce.runs lists them")
    end
  end

  defp latest(dir) do
    case dir |> snapshots() |> Enum.max_by(& &1.started_ms, fn -> nil end) do
      nil -> Mix.raise("no run in #{dir}; one appears when mix sconce.train starts")
      run -> run.path
    end
  end

  defp of_folder(dir, out) do
    same = dir |> snapshots() |> Enum.filter(&(&1.meta["out"] == out))
    with %{path: path} <- Enum.max_by(same, & &1.started_ms, fn -> nil end), do: path
  end

  defp snapshots(dir) do
    case Snapshot.list(dir) do
      {:ok, snapshots} -> Enum.filter(snapshots, &(&1.kind == :run))
      {:error, error} -> Mix.raise(Exception.message(error))
    end
  end

  defp once(watch, path, opts) do
    Process.sleep(round(@once_s * 1000))
    watch |> Watch.read() |> picture(path, size(opts), opts) |> print()
  end

  # Without a terminal.
  defp printed(watch, path, opts) do
    print(picture(watch, path, size(opts), opts))
    Process.sleep(round(opts[:interval] * 1000))
    watch |> Watch.read() |> printed(path, opts)
  end

  defp print(lines) do
    text = lines |> Enum.map(&[&1, "\n"]) |> IO.iodata_to_binary()
    Mix.shell().info(String.trim_trailing(text))
  end

  defp live(watch, path, opts) do
    drawn = Terminal.draw(picture(watch, path, size(opts), opts))

    case drawn == :ok && wait(round(opts[:interval] * 1000)) do
      closed when closed in [false, :quit] -> :ok
      :read -> watch |> Watch.read() |> live(path, opts)
      {:show, 0} -> watch |> all() |> live(nil, opts)
      {:show, n} -> live(watch, shown(watch, n, opts) || path, opts)
    end
  end

  # The view of one file goes back to all files of the folder.
  defp all(%Watch{only: nil} = watch), do: watch
  defp all(watch), do: Watch.read(%{watch | only: nil})

  defp shown(watch, n, opts) do
    {_columns, rows} = size(opts)
    {runs, vms} = View.listed(watch, rows)
    Enum.at(runs ++ vms, n - 1)
  end

  defp wait(ms) do
    receive do
      {:key, key} when key in ["q", "Q", <<3>>, <<4>>] -> :quit
      {:key, <<n>>} when n in ?0..?9 -> {:show, n - ?0}
      {:key, :closed} -> :quit
      {:key, _other} -> wait(ms)
    after
      ms -> :read
    end
  end

  defp picture(watch, path, {columns, rows}, opts) do
    View.lines(watch, path, %View{
      columns: columns,
      rows: rows,
      now_ms: System.os_time(:millisecond),
      colour: opts[:live] and not opts[:plain] and System.get_env("NO_COLOR", "") == "",
      ascii: opts[:ascii] or not Terminal.unicode?()
    })
  end

  defp size(opts) do
    {columns, rows} = (opts[:live] && Terminal.size()) || {80, 24}
    {opts[:columns] || columns, opts[:rows] || rows}
  end

  defp record(watch, opts) do
    with {:error, error} <- Record.run(watch, opts[:record], round(opts[:interval] * 1000)),
         do: Switches.fail!(error, @schema)
  end
end
