defmodule Sconce.Monitor.Endpoint.Reading do
  @moduledoc false
  # The values of this VM and the runs of a folder, as JSON for the live page. They are read at most about once a second,
  # however many pages ask; between two readings all pages get the same text.

  import Sconce.Monitor.View.Words

  alias Sconce.Error
  alias Sconce.Monitor.{Catalogue, Json, Snapshot, Summary, Vm, Watch}
  alias Sconce.Monitor.Snapshot.{Histogram, Slot}

  # Milliseconds: a page asks once a second, and a timer may be early. Rates over a longer time say nothing about now.
  @every_ms 900
  @longest_ms 10_000
  # Runs, VMs, and curves of a run in the text; points of a curve.
  @runs 24
  @vms 8
  @curves 8
  @points 120

  @enforce_keys [:watch]
  defstruct [:watch, :vm, :at_ms, :text, ended: %{}]

  @type t :: %__MODULE__{}

  @doc "A reading of a folder that has not read yet. `monotonic_ms` below is the time of the VM's clock."
  @spec new(Path.t()) :: t
  def new(dir), do: %__MODULE__{watch: Watch.new(dir)}

  @doc "Returns the text of JSON. An error if this VM has no metrics, without the native library."
  @spec json(t, integer) :: {:ok, binary, t} | {:error, Error.t()}
  def json(%__MODULE__{text: text, at_ms: at} = reading, monotonic_ms)
      when text != nil and monotonic_ms - at < @every_ms,
      do: {:ok, text, reading}

  def json(%__MODULE__{} = reading, monotonic_ms) do
    with {:ok, now} <- Vm.snapshot() do
      latest? = reading.at_ms != nil and monotonic_ms - reading.at_ms < @longest_ms
      before = if latest?, do: reading.vm.now
      life = Snapshot.life(now)
      vm = %{now: now, before: before, life: life, lost: nil, course: %{}}
      watch = Watch.read(reading.watch)
      {files, vms} = watch |> files() |> Enum.split_with(&(&1.now.kind == :run))
      runs = for file <- Enum.take(files, @runs), do: {file, encoded(file, reading.ended)}
      # This VM is the first of the page and needs no row.
      vms = Enum.reject(vms, &(Path.basename(&1.now.path) == Path.basename(now.path)))
      hidden = max(length(files) - @runs, 0) + max(length(vms) - @vms, 0)
      text = document(vm, watch, Enum.map(runs, &elem(&1, 1)), Enum.take(vms, @vms), hidden)
      reading = %{reading | vm: vm, watch: watch, at_ms: monotonic_ms, ended: ended(runs)}
      {:ok, text, %{reading | text: text}}
    end
  end

  defp files(watch), do: for(path <- watch.order, do: watch.files[path])

  # A run that has ended is encoded once, until its file changes.
  defp encoded(%{now: %{path: path}, stamp: stamp} = run, ended) do
    case ended do
      %{^path => {^stamp, life, row}} when life == run.life -> row
      _changed -> {:encoded, run |> run() |> Json.encode() |> IO.iodata_to_binary()}
    end
  end

  defp ended(runs) do
    for {%{life: life} = run, row} <- runs,
        life not in [:running, :silent],
        into: %{},
        do: {run.now.path, {run.stamp, life, row}}
  end

  defp document(vm, watch, runs, vms, hidden) do
    {[
       {"time", System.os_time(:millisecond)},
       {"vm", vm(vm)},
       {"metrics", Enum.map(vm.now.slots, &metric(&1, vm))},
       {"runs", runs},
       {"vms", Enum.map(vms, &vm/1)},
       {"hidden", hidden},
       {"folder", text(watch.dir)},
       {"error", watch.error && text(watch.error)}
     ]}
    |> Json.encode()
    |> IO.iodata_to_binary()
  end

  # The fields that a run and a VM have in common.
  defp writer(%{now: now} = file) do
    present = if file.life == :running, do: System.os_time(:millisecond), else: now.heartbeat_ms

    [
      {"id", now.id},
      {"state", state(file)},
      {"meaning", file |> meaning() |> to_string()},
      {"host", said(now.meta["host"])},
      {"command", said(now.meta["command"])},
      {"pid", now.os_pid},
      {"heartbeat", now.heartbeat_ms},
      {"seconds", max(present - now.started_ms, 0) / 1000}
    ]
  end

  defp vm(%{now: now} = vm) do
    {writer(vm) ++
       [
         {"name", said(now.meta["name"])},
         {"cpu", gauge(vm, "sconce_cpu_ratio")},
         {"memory", gauge(vm, "sconce_memory_resident_bytes")},
         {"decisions", Watch.rate(vm, "sconce_decisions_total")}
       ]}
  end

  defp run(%{now: now} = run) do
    {done, all} = Summary.progress(run)
    share = Summary.share(run)

    {writer(run) ++
       [
         {"kind", said(now.meta["kind"])},
         {"out", said(now.meta["out"])},
         {"step", done},
         {"steps", all},
         {"share", share},
         {"left", Summary.left(run, share)},
         {"loss", Summary.main(run)},
         {"curves", run |> Summary.curves() |> Enum.take(@curves) |> Enum.map(&curve/1)},
         {"figures", run |> Summary.gauges() |> Enum.map(&figure/1)},
         {"note", said(Snapshot.value(now, "note"))},
         {"error", said(Snapshot.value(now, "error"))}
       ]}
  end

  # A curve has the unit of the figure whose name it has.
  defp curve({name, %{unit: unit, value: %{points: points}}}) do
    points = for {x, y} <- thinned(points), do: [x, y]
    unit = unit(%{unit: unit, name: name})
    {[{"name", text(name)}, {"unit", text(unit)}, {"points", points}]}
  end

  # Points at equal distances, and the last one.
  defp thinned(points) do
    every = ceil(length(points) / @points)
    kept = Enum.take_every(points, every)
    last = List.last(points)
    if List.last(kept) == last, do: kept, else: kept ++ [last]
  end

  defp figure(slot),
    do: {[{"name", text(slot.name)}, {"unit", text(unit(slot))}, {"value", slot.value}]}

  defp metric(%{kind: kind} = slot, vm) do
    {base, labels} = Slot.split(slot.name)
    {unit, scale} = if slot.unit == "ns", do: {"s", 1.0e9}, else: {unit(slot), 1}

    {[
       {"name", text(slot.name)},
       {"base", text(base)},
       {"labels", {for({key, value} <- labels, do: {text(key), text(value)})}},
       {"app", base not in names()},
       {"kind", to_string(kind)},
       {"unit", text(unit)},
       {"doc", text(slot.help)},
       {"value", value(slot.value, scale)}
     ] ++ recent(kind, slot.name, vm, scale)}
  end

  defp names, do: Enum.map(Catalogue.all(), & &1.name)

  # The rate and the times between the two latest readings.
  defp recent(:counter, name, vm, _scale), do: [{"rate", Watch.rate(vm, name)}]

  defp recent(:histogram, name, vm, scale),
    do: [{"rate", Watch.rate(vm, name)}, {"latest", value(Watch.latest(vm, name), scale)}]

  defp recent(_kind, _name, _vm, _scale), do: []

  defp value(%Histogram{} = histogram, scale) do
    at = fn share -> scaled(Histogram.quantile(histogram, share), scale) end

    {[
       {"count", Histogram.count(histogram)},
       {"mean", scaled(Histogram.mean(histogram), scale)},
       {"p50", at.(0.5)},
       {"p95", at.(0.95)},
       {"p99", at.(0.99)},
       {"p999", at.(0.999)}
     ]}
  end

  defp value(number, scale) when is_number(number), do: scaled(number, scale)
  defp value(_unknown, _scale), do: nil

  defp scaled(nil, _scale), do: nil
  defp scaled(number, 1), do: number
  defp scaled(number, scale), do: number / scale

  # Text that a writer gave: control characters are escaped, and a long one is cut.
  defp said(nil), do: nil
  defp said(other), do: text(other)
end
