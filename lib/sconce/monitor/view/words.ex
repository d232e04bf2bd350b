defmodule Sconce.Monitor.View.Words do
  @moduledoc false
  # Short texts about a file and its figures.

  alias Sconce.{Figures, Text}
  alias Sconce.Monitor.{Graph, Snapshot, Watch}
  alias Sconce.Monitor.Snapshot.{Histogram, Slot}

  def state(%{life: :dead}), do: "DEAD"
  def state(%{life: :silent}), do: "SILENT"
  def state(%{life: life}), do: to_string(life)

  # Explains the silence of a watched process.
  def lately(%{life: life, now: now} = file, view) do
    seconds = max(view.now_ms - now.heartbeat_ms, 0) / 1000
    seen = "last figures at #{clock(now.heartbeat_ms)}, #{duration(seconds)} ago"

    cond do
      life == :dead -> "process gone (killed?), #{seen}"
      life == :silent -> seen
      file.lost && life == :running -> "file gone, #{seen}"
      true -> ""
    end
  end

  def meaning(%{life: :running}), do: :good
  def meaning(%{life: life}) when life in [:failed, :dead], do: :bad
  def meaning(%{life: :silent}), do: :warn
  def meaning(_ended), do: :dim

  # The age of what has ended or is gone is that of its last sign.
  def age(%{life: life, now: %{started_ms: start, heartbeat_ms: beat}}, %{now_ms: now}) do
    last = if life in [:running, :silent], do: max(now, beat), else: beat
    duration(max(last - start, 0) / 1000)
  end

  def duration(seconds) when seconds < 60, do: "#{trunc(seconds)} s"
  def duration(seconds) when seconds < 3600, do: "#{div(trunc(seconds), 60)} min"

  def duration(seconds) when seconds < 360_000 do
    minutes = div(trunc(seconds), 60)
    "#{div(minutes, 60)} h #{rem(minutes, 60)} min"
  end

  def duration(seconds), do: "#{Figures.grouped(div(trunc(min(seconds, 1.0e12)), 86_400))} days"

  # Any number may stand in the header of a file.
  def clock(ms) when ms in 0..4_000_000_000_000 do
    {_date, {hour, minute, second}} =
      ms |> div(1000) |> :calendar.system_time_to_local_time(:second)

    Enum.map_join([hour, minute, second], ":", &String.pad_leading("#{&1}", 2, "0"))
  end

  def clock(_ms), do: "-"

  def short(nil), do: "-"
  def short(n) when is_float(n) and abs(n) < 1.0e15, do: n |> round() |> short()
  def short(n) when is_integer(n), do: Figures.grouped(n)
  def short(n), do: Graph.number(n)

  def text(nil), do: "-"
  def text(text) when is_binary(text), do: Text.printable(text, 300)
  def text(other), do: other |> inspect() |> Text.printable(300)

  def short_name(name) do
    name
    |> text()
    |> String.replace_prefix("sconce_", "")
    |> String.replace_suffix("_seconds", "")
    |> String.replace_suffix("_total", "")
  end

  def unit(%{unit: "", name: name}),
    do: if(String.contains?(name, "_ratio"), do: "ratio", else: "")

  def unit(%{unit: unit}), do: unit

  def gauge(%{now: now}, name) do
    case Snapshot.value(now, name) do
      value when is_number(value) -> value
      _other -> nil
    end
  end

  def count(file, name) do
    case Watch.latest(file, name) do
      nil -> 0
      histogram -> Histogram.count(histogram)
    end
  end

  @subjects ~w(session serving leader store bot device)

  # Labels, those of Sconce's own subjects first.
  def labels(slot) do
    {_base, labels} = Slot.split(slot.name)
    Enum.sort_by(labels, fn {name, _value} -> name not in @subjects end)
  end

  def base(slot), do: slot.name |> Slot.split() |> elem(0)
end
