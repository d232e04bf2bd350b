defmodule Sconce.Doctor.Running do
  @moduledoc false
  # The VMs that run on this machine, with their leaders, stores and bots, from the files of `Sconce.Monitor`.

  alias Sconce.{Figures, Text}
  alias Sconce.Monitor.{Graph, Snapshot}
  alias Sconce.Monitor.Snapshot.Slot

  @doc "Pairs of a name and what is known of it, for each VM of a folder that runs."
  @spec rows(Path.t() | nil) :: [{String.t(), String.t()}]
  def rows(dir \\ nil) do
    with {:ok, snapshots} <- Snapshot.list(dir),
         running = for(%{kind: :vm} = vm <- snapshots, Snapshot.life(vm) == :running, do: vm),
         [_one | _more] <- running do
      Enum.flat_map(running, &vm/1)
    else
      [] -> [{"nothing", "no VM with Sconce has a file of figures"}]
      {:error, error} -> [{"unknown", Exception.message(error)}]
    end
  end

  defp vm(vm) do
    counts =
      for {name, noun} <- [{"sconce_servings", "serving"}, {"sconce_sessions", "session"}],
          count = Snapshot.value(vm, name),
          is_number(count),
          do: Figures.counted(round(count), noun)

    name = Text.printable(to_string(vm.meta["name"]), 60)
    [{"VM #{vm.os_pid}", Enum.join([name | counts], ", ")} | subjects(vm)]
  end

  # The slots of each leader, store and bot, by the last part of their names.
  defp subjects(vm) do
    vm.slots
    |> Enum.flat_map(&subject/1)
    |> Enum.group_by(&elem(&1, 0), &elem(&1, 1))
    |> Enum.sort()
    |> Enum.map(fn {{kind, labels}, slots} -> row(kind, labels, Map.new(slots)) end)
  end

  defp subject(slot) do
    with {"sconce_" <> rest, [_label | _more] = labels} <- Slot.split(slot.name),
         [kind, name] when kind in ["leader", "store", "bot"] <-
           String.split(rest, "_", parts: 2) do
      [{{kind, Map.new(labels)}, {name, slot.value}}]
    else
      _other -> []
    end
  end

  defp row("leader", %{"leader" => name, "leads" => leads}, values) do
    role =
      if values["leading"] == 1,
        do:
          "leads by #{count(values["granted"])} of #{count(values["members"])} votes, " <>
            "#{measure(values["lease_seconds"], "s")} left",
        else: "follows #{leads}"

    {"  leader", "#{text(name)}: #{text(role)}, term #{count(values["term"])}"}
  end

  defp row("store", %{"store" => path}, values) do
    tiers =
      for {name, noun} <- [
            {"ram_bytes", "in RAM"},
            {"compressed_bytes", "compressed"},
            {"disk_bytes", "on disk"}
          ],
          do: "#{measure(values[name], "bytes")} #{noun}"

    shares =
      for {name, noun} <- [{"hit_ratio", "hits"}, {"prefetch_ratio", "of prefetches used"}],
          is_number(values[name]),
          do: "#{measure(values[name], "ratio")} #{noun}"

    damage =
      if (values["damaged_total"] || 0) > 0, do: ["#{count(values["damaged_total"])} damaged"]

    {"  store", "#{text(path)}: #{Enum.join(tiers ++ shares ++ (damage || []), ", ")}"}
  end

  defp row("bot", %{"bot" => name}, values) do
    {"  bot",
     "#{text(name)}: #{count(values["frames_total"])} frames, #{count(values["late_total"])} late, " <>
       "#{count(values["neutral_total"])} neutral, p50 #{measure(values["latency_p50_seconds"], "s")}, " <>
       "p99 #{measure(values["latency_p99_seconds"], "s")}"}
  end

  defp row(kind, labels, _values), do: {"  " <> kind, text(inspect(labels))}

  defp count(number) when is_number(number), do: Figures.grouped(round(number))
  defp count(_unknown), do: "-"

  defp measure(value, unit), do: Graph.measure(value, unit)
  defp text(text), do: Text.printable(text, 200)
end
