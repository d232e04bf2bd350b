defmodule Sconce.Monitor.Subjects do
  @moduledoc false
  # The values of members of `Sconce.Leader`, of stores and of bots. Leaders and bots publish theirs in atomics, so that no
  # process is asked.

  alias Sconce.Bot.Totals
  alias Sconce.Leader.Server
  alias Sconce.Monitor.{Catalogue, Prometheus, Sample}
  alias Sconce.Store.Handles
  alias Sconce.Text

  @registry Sconce.Serving.Registry

  # The most of each kind that are shown.
  @most 24

  @doc "The values of each subject."
  @spec values() :: [{term, [Sample.value()]}]
  def values, do: leaders() ++ stores() ++ bots()

  defp leaders do
    found =
      Registry.select(@registry, [{{{Sconce.Leader, :"$1"}, :"$2", :_}, [], [{{:"$1", :"$2"}}]}])

    found = found |> Enum.sort() |> Enum.take(@most)
    names = Sample.apart(for {name, pid} <- found, do: {pid, Sample.short(inspect(name), 60)})

    for {name, pid} <- found, seen = Server.glance(name) do
      leads = if seen.leader, do: to_string(seen.leader), else: "none"
      labels = Prometheus.labels!(leader: names[pid], leads: Sample.short(leads, 60))

      values = %{
        "sconce_leader_leading" => if(seen.left_us, do: 1, else: 0),
        "sconce_leader_term" => seen.term,
        "sconce_leader_members" => seen.members,
        "sconce_leader_granted" => seen.granted,
        "sconce_leader_lease_seconds" => seen.left_us && seen.left_us / 1.0e6
      }

      {{:leader, name, leads}, Sample.valued(Catalogue.leader(), values, labels)}
    end
  end

  defp stores do
    found = Enum.take(Handles.stats(), @most)
    found = for {number, path, stats} <- found, do: {number, ending(path), stats}
    endings = Enum.frequencies(for {_number, ending, _stats} <- found, do: ending)

    for {number, ending, stats} <- found do
      # A store may be open for writing and for reading, and two long paths may end alike.
      label = if endings[ending] > 1, do: "#{ending} (#{number})", else: ending

      values = %{
        "sconce_store_ram_bytes" => stats.ram_bytes,
        "sconce_store_compressed_bytes" => stats.compressed_bytes,
        "sconce_store_disk_bytes" => stats.disk_bytes,
        "sconce_store_requests_total" => stats.requests,
        "sconce_store_hit_ratio" => share(stats.in_ram + stats.in_compressed, stats.requests),
        "sconce_store_prefetch_ratio" => share(stats.prefetched_used, stats.prefetched),
        "sconce_store_damaged_total" => stats.damaged
      }

      {{:store, number},
       Sample.valued(Catalogue.store(), values, Prometheus.labels!(store: label))}
    end
  end

  # The end of a path says most.
  defp ending(path) do
    text = Text.printable(path, 1_000)
    length = String.length(text)
    kept = if length > 50, do: "…" <> String.slice(text, length - 49, 49), else: text
    Sample.short(kept, 60)
  end

  defp bots do
    found =
      Registry.select(@registry, [{{{Sconce.Bot, :"$1"}, :_, :"$2"}, [], [{{:"$1", :"$2"}}]}])

    found = found |> Enum.sort() |> Enum.take(@most)
    names = Sample.apart(for {pid, _totals} <- found, do: {pid, Sample.name(pid)})

    for {pid, totals} <- found do
      read = Totals.read(totals)

      values = %{
        "sconce_bot_frames_total" => read.frames,
        "sconce_bot_late_total" => read.late,
        "sconce_bot_neutral_total" => read.neutral,
        "sconce_bot_latency_p50_seconds" => read.p50_us && read.p50_us / 1.0e6,
        "sconce_bot_latency_p99_seconds" => read.p99_us && read.p99_us / 1.0e6
      }

      labels = Prometheus.labels!(bot: names[pid])
      {{:bot, pid}, Sample.valued(Catalogue.bot(), values, labels)}
    end
  end

  defp share(_part, 0), do: nil
  defp share(part, whole), do: part / whole
end
