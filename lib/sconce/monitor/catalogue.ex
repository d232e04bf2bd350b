defmodule Sconce.Monitor.Catalogue do
  @moduledoc false
  # All metrics of Sconce: those that native code counts, in native/tensor/metrics.exs, and those that are sampled once a
  # second, below.

  @path Path.expand("../../../native/tensor/metrics.exs", __DIR__)
  @external_resource @path

  {:metrics!, _meta, [rows]} = @path |> File.read!() |> Code.string_to_quoted!()
  @native for {_id, row} <- rows, do: Map.new(row)

  @sampled [
    {"sconce_cpu_ratio", :gauge, "", "CPU time of this process, as a share of all cores."},
    {"sconce_machine_cpu_ratio", :gauge, "", "CPU time of the machine, as a share of all cores."},
    {"sconce_memory_resident_bytes", :gauge, "bytes", "Memory of this process."},
    {"sconce_memory_beam_bytes", :gauge, "bytes", "Part of it that the BEAM allocated."},
    {"sconce_memory_available_bytes", :gauge, "bytes",
     "Memory that this process can still take."},
    {"sconce_memory_processes_bytes", :gauge, "bytes",
     "Part of the BEAM's memory that its processes have."},
    {"sconce_memory_binaries_bytes", :gauge, "bytes", "Part of it that binaries have."},
    {"sconce_memory_mapped_bytes", :gauge, "bytes",
     "Pages of files in the process' memory, such as corpora and packed weights."},
    {"sconce_memory_native_bytes", :gauge, "bytes",
     "Memory that neither the BEAM nor mapped files have: native code."},
    {"sconce_page_faults_total", :counter, "faults",
     "Pages of this process that had to be read from a disk."},
    {"sconce_run_queue", :gauge, "processes", "Processes of the BEAM that wait for a scheduler."},
    {"sconce_sessions", :gauge, "sessions", "Sessions that are open."},
    {"sconce_loader_threads", :gauge, "threads", "Threads that make batches."},
    {"sconce_jobs_waiting", :gauge, "jobs", "Calls that wait for a native thread."},
    {"sconce_runs", :gauge, "runs", "Runs of this VM."},
    {"sconce_servings", :gauge, "servings", "Servings of this VM."}
  ]

  @serving [
    {"sconce_serving_waiting", :gauge, "requests", "Requests in the queue."},
    {"sconce_serving_requests_total", :counter, "requests", "Requests that were admitted."},
    {"sconce_serving_answered_total", :counter, "requests", "Requests with an answer."},
    {"sconce_serving_late_total", :counter, "requests", "Requests that missed their deadline."},
    {"sconce_serving_busy_total", :counter, "requests", "Requests that a full queue refused."},
    {"sconce_serving_latency_p50_seconds", :gauge, "s", "Median time to an answer."},
    {"sconce_serving_latency_p99_seconds", :gauge, "s",
     "99th percentile of the time to an answer."}
  ]

  @leader [
    {"sconce_leader_leading", :gauge, "", "1 while this member leads, otherwise 0."},
    {"sconce_leader_term", :gauge, "", "Term of the leader that this member knows."},
    {"sconce_leader_members", :gauge, "members", "Members of the group."},
    {"sconce_leader_granted", :gauge, "members",
     "Members that have granted their votes; unknown unless this member leads."},
    {"sconce_leader_lease_seconds", :gauge, "s",
     "Time that is left of the lease; unknown unless this member leads."}
  ]

  @store [
    {"sconce_store_ram_bytes", :gauge, "bytes", "Bytes of blocks in RAM."},
    {"sconce_store_compressed_bytes", :gauge, "bytes", "Bytes of compressed blocks in RAM."},
    {"sconce_store_disk_bytes", :gauge, "bytes", "Bytes on disk."},
    {"sconce_store_requests_total", :counter, "blocks", "Blocks that were asked for."},
    {"sconce_store_hit_ratio", :gauge, "", "Share of them that a tier in RAM had."},
    {"sconce_store_prefetch_ratio", :gauge, "",
     "Share of prefetched blocks that were then asked for."},
    {"sconce_store_damaged_total", :counter, "blocks", "Blocks that a check found damaged."}
  ]

  @bot [
    {"sconce_bot_frames_total", :counter, "frames", "Frames of its games."},
    {"sconce_bot_late_total", :counter, "frames", "Frames whose deadline passed."},
    {"sconce_bot_neutral_total", :counter, "frames",
     "Frames that the neutral input answered, late ones and errors."},
    {"sconce_bot_latency_p50_seconds", :gauge, "s", "Median time from a frame to its input."},
    {"sconce_bot_latency_p99_seconds", :gauge, "s",
     "99th percentile of the time from a frame to its input."}
  ]

  @session [
    {"sconce_session_decisions_total", :counter, "decisions", "Decisions of the session."},
    {"sconce_session_rate", :gauge, "decisions/s", "Decisions a second, in the last one."},
    {"sconce_session_time_seconds", :gauge, "s",
     "Mean time of its calls in the last second; unknown in a serving."},
    {"sconce_session_late_total", :counter, "decisions", "Decisions whose deadline passed."}
  ]

  @device [
    {"sconce_device_memory_used_bytes", :gauge, "bytes", "Memory of the card in use."},
    {"sconce_device_memory_total_bytes", :gauge, "bytes", "Memory of the card."},
    {"sconce_device_utilisation_ratio", :gauge, "", "Share of the time in which a kernel ran."},
    {"sconce_device_bandwidth_ratio", :gauge, "",
     "Share of the time in which memory was read or written."},
    {"sconce_device_temperature_celsius", :gauge, "C", "Temperature of the card."},
    {"sconce_device_power_watts", :gauge, "W", "Power that the card draws."},
    {"sconce_device_clock_hertz", :gauge, "Hz", "Clock of the card's multiprocessors."},
    {"sconce_device_throttled", :gauge, "",
     "1 while heat, power or another card holds the clocks down, otherwise 0."}
  ]

  @sessions Enum.map(@session, &elem(&1, 0))
  @subjects Enum.map(@serving ++ @leader ++ @store ++ @bot ++ @session, &elem(&1, 0))

  @type metric :: %{name: String.t(), kind: atom, unit: String.t(), doc: String.t()}

  @doc "Metrics that native code counts."
  @spec native() :: [metric]
  def native, do: @native

  @doc "Metrics of the VM that are sampled."
  @spec sampled() :: [metric]
  def sampled, do: Enum.map(@sampled, &metric/1)

  @doc "Metrics of each serving, with the label `serving`."
  @spec serving() :: [metric]
  def serving, do: Enum.map(@serving, &metric/1)

  @doc "Metrics of each member of a group of `Sconce.Leader`, with the labels `leader` (its name) and `leads` (a node)."
  @spec leader() :: [metric]
  def leader, do: Enum.map(@leader, &metric/1)

  @doc "Metrics of each open store, with the label `store`, its folder."
  @spec store() :: [metric]
  def store, do: Enum.map(@store, &metric/1)

  @doc "Metrics of each bot, with the label `bot`."
  @spec bot() :: [metric]
  def bot, do: Enum.map(@bot, &metric/1)

  @doc """
  Metrics of the busiest sessions, with the labels `session`, `owner` and `policy`. Prometheus and telemetry do not get
  them, because each game would begin new series there.
  """
  @spec session() :: [metric]
  def session, do: Enum.map(@session, &metric/1)

  @doc "Whether a name, with or without labels, is that of a metric of sessions."
  @spec session?(String.t()) :: boolean
  def session?(name), do: base(name) in @sessions

  @doc "Whether a name, with or without labels, is that of a metric of one serving, session, leader, store or bot."
  @spec subject?(String.t()) :: boolean
  def subject?(name), do: base(name) in @subjects

  defp base(name), do: hd(String.split(name, "{", parts: 2))

  @doc "Metrics of each NVIDIA card, with the label `device`."
  @spec device() :: [metric]
  def device, do: Enum.map(@device, &metric/1)

  @doc "All metrics."
  @spec all() :: [metric]
  def all,
    do:
      native() ++
        sampled() ++ serving() ++ leader() ++ store() ++ bot() ++ session() ++ device()

  defp metric({name, kind, unit, doc}), do: %{name: name, kind: kind, unit: unit, doc: doc}
end
