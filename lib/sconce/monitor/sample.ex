defmodule Sconce.Monitor.Sample do
  @moduledoc false
  # Values that nothing counts: CPU, memory, cards, servings; nil for one that the machine does not tell.

  alias Sconce.{GPU, Memory, Native, Serving, Text}
  alias Sconce.Monitor.{Catalogue, Events, Prometheus}
  alias Sconce.Run.Keeper

  # Bytes of a serving's name, beside which its process id has room in a label.
  @name_bytes 65

  @enforce_keys [:cards]
  defstruct [:cards, :cpu, :machine, throttled: %{}]

  @type t :: %__MODULE__{}
  @type value :: {atom, String.t(), String.t(), String.t(), number | nil}

  @doc "A first sample. Cards are looked for once."
  @spec new() :: t
  def new do
    cards =
      case GPU.device_count() do
        {:ok, count} when count > 0 -> Enum.to_list(0..(count - 1))
        _none -> []
      end

    %__MODULE__{cards: cards, cpu: cpu(), machine: machine()}
  end

  @doc "The values since the sample before."
  @spec take(t) :: {[value], t}
  def take(%__MODULE__{} = before) do
    now = %{before | cpu: cpu(), machine: machine()}
    status = status()
    alive = alive()
    beam = :erlang.memory(:total)

    sampled = %{
      "sconce_cpu_ratio" => share(before.cpu, now.cpu),
      "sconce_machine_cpu_ratio" => share(before.machine, now.machine),
      "sconce_memory_resident_bytes" => status["VmRSS"],
      "sconce_memory_mapped_bytes" => status["RssFile"],
      "sconce_memory_beam_bytes" => beam,
      "sconce_memory_native_bytes" => status["RssAnon"] && max(status["RssAnon"] - beam, 0),
      "sconce_memory_processes_bytes" => :erlang.memory(:processes),
      "sconce_memory_binaries_bytes" => :erlang.memory(:binary),
      "sconce_page_faults_total" => faults(),
      "sconce_memory_available_bytes" => Memory.free(),
      "sconce_run_queue" => :erlang.statistics(:total_run_queue_lengths),
      "sconce_sessions" => alive[:sessions],
      "sconce_loader_threads" => alive[:loader_threads],
      "sconce_jobs_waiting" => alive[:jobs_waiting],
      "sconce_runs" => Keeper.count(),
      "sconce_servings" => length(pids())
    }

    cards = Map.new(now.cards, &{"cuda:#{&1}", card(&1)})
    throttled = Map.new(cards, fn {device, {_values, held}} -> {device, held} end)
    now = %{now | throttled: Events.throttled(throttled, before.throttled)}
    of_cards = Enum.flat_map(cards, fn {_device, {values, _held}} -> values end)
    {valued(Catalogue.sampled(), sampled, "") ++ of_cards, now}
  end

  @doc "The values of a catalogue with labels."
  @spec valued([Catalogue.metric()], map, String.t()) :: [value]
  def valued(catalogue, values, labels) do
    # An unknown gauge is shown as unknown; an unknown counter is left out.
    for %{name: name, kind: kind, unit: unit, doc: doc} <- catalogue,
        kind == :gauge or values[name] != nil,
        do: {kind, name <> labels, unit, doc, values[name]}
  end

  # A busy time and a whole time, in clock ticks of all cores.
  defp cpu do
    with [user, system] <- of_stat([11, 12]), {_busy, whole} <- machine() do
      {user + system, whole}
    else
      _unknown -> nil
    end
  end

  defp faults do
    with [faults] <- of_stat([9]), do: faults
  end

  # Fields of this process' line in /proc, behind the name of the program.
  defp of_stat(fields) do
    with {:ok, stat} <- File.read("/proc/self/stat"),
         [_pid_and_name, rest] <- String.split(stat, ") ", parts: 2) do
      all = String.split(rest)
      for field <- fields, do: all |> Enum.at(field) |> String.to_integer()
    else
      _unknown -> nil
    end
  end

  defp machine do
    with {:ok, stat} <- File.read("/proc/stat"),
         ["cpu " <> line | _cores] <- String.split(stat, "\n", parts: 2) do
      # The fields after the eighth are parts of the first two.
      ticks = line |> String.split() |> Enum.take(8) |> Enum.map(&String.to_integer/1)
      whole = Enum.sum(ticks)
      {whole - Enum.at(ticks, 3, 0) - Enum.at(ticks, 4, 0), whole}
    else
      _unknown -> nil
    end
  end

  defp share({busy_before, whole_before}, {busy, whole}) when whole > whole_before,
    do: max(busy - busy_before, 0) / (whole - whole_before)

  defp share(_before, _now), do: nil

  defp alive do
    case Native.monitor_alive() do
      {:ok, alive} -> alive
      {:error, _error} -> %{}
    end
  end

  # The lines with bytes of this process' status.
  defp status do
    with {:ok, status} <- File.read("/proc/self/status") do
      for [_, name, kilobytes] <- Regex.scan(~r/^(\w+):\s+(\d+) kB/m, status),
          into: %{},
          do: {name, 1024 * String.to_integer(kilobytes)}
    else
      _unknown -> %{}
    end
  end

  defp card(index) do
    told = fn answer, value ->
      case answer do
        {:ok, told} -> value.(told)
        {:error, _error} -> nil
      end
    end

    memory = GPU.memory_status(index)
    use = GPU.utilization(index)
    held = held(index)

    values = %{
      "sconce_device_memory_used_bytes" => told.(memory, &(&1.used_mb * 1_048_576)),
      "sconce_device_memory_total_bytes" => told.(memory, &(&1.total_mb * 1_048_576)),
      "sconce_device_utilisation_ratio" => told.(use, & &1.gpu/100),
      "sconce_device_bandwidth_ratio" => told.(use, & &1.memory/100),
      "sconce_device_temperature_celsius" => told.(GPU.temperature(index), & &1),
      "sconce_device_power_watts" => told.(GPU.power(index), & &1.draw_watts),
      "sconce_device_clock_hertz" => told.(GPU.clocks(index), &clock/1),
      "sconce_device_throttled" => held && min(length(held), 1)
    }

    load = told.(use, & &1.gpu)
    {valued(Catalogue.device(), values, ~s({device="cuda:#{index}"})), {held || [], load}}
  end

  # Why the card runs slower than it could; a clock that someone has set is as it should be.
  defp held(index) do
    with {:ok, reasons} <- GPU.throttling(index) do
      reasons -- [:setting]
    else
      {:error, _error} -> nil
    end
  end

  defp clock(clocks), do: clocks.sm_mhz && clocks.sm_mhz * 1_000_000

  @doc "The values of each serving of this VM, by its process."
  @spec servings() :: [{pid, [value]}]
  def servings do
    found = for pid <- pids(), {:ok, stats} <- [Serving.stats(pid)], do: {pid, stats}
    names = apart(for {pid, _stats} <- found, do: {pid, name(pid)})

    for {pid, stats} <- found do
      values = %{
        "sconce_serving_waiting" => stats.waiting,
        "sconce_serving_requests_total" => stats.requests,
        "sconce_serving_answered_total" => stats.answered,
        "sconce_serving_late_total" => stats.late,
        "sconce_serving_busy_total" => stats.busy,
        "sconce_serving_latency_p50_seconds" => seconds(stats.latency_us.p50),
        "sconce_serving_latency_p99_seconds" => seconds(stats.latency_us.p99)
      }

      {pid, valued(Catalogue.serving(), values, Prometheus.labels!(serving: names[pid]))}
    end
  end

  # The most sessions that are shown.
  @sessions 24

  @doc """
  The values of the busiest sessions of this VM, by their numbers, since the sample before, which is their sums and the
  time; an empty map at first.
  """
  @spec sessions(map) :: {[{pos_integer, [value]}], map}
  def sessions(before) do
    now = System.monotonic_time(:microsecond)
    seconds = (now - Map.get(before, :at, now)) / 1.0e6

    rows =
      case Native.monitor_sessions(@sessions) do
        {:ok, rows} -> rows
        {:error, _error} -> []
      end

    shown =
      for {number, _, _, _, _, _, _} = row <- rows,
          do: {number, session(row, before[number], seconds)}

    sums =
      Map.new(rows, fn {number, _, _, decisions, _, timed, nanos} ->
        {number, {decisions, timed, nanos}}
      end)

    {shown, Map.put(sums, :at, now)}
  end

  defp session({number, policy, owner, decisions, late, timed, nanos}, before, seconds) do
    {rate, time} =
      case before do
        {decided, calls, sum} when seconds > 0 ->
          {(decisions - decided) / seconds,
           if(timed > calls, do: (nanos - sum) / (timed - calls) / 1.0e9)}

        _first ->
          {nil, nil}
      end

    values = %{
      "sconce_session_decisions_total" => decisions,
      "sconce_session_rate" => rate,
      "sconce_session_time_seconds" => time,
      "sconce_session_late_total" => late
    }

    labels = Prometheus.labels!(session: number, owner: text(owner), policy: policy)
    valued(Catalogue.session(), values, labels)
  end

  defp pids,
    do: Registry.select(Serving.Registry, [{{:"$1", :"$1", :_}, [], [:"$1"]}])

  @doc "The name of a process as a label: its registered one, or its id."
  @spec name(pid) :: String.t()
  def name(pid) do
    case Process.info(pid, :registered_name) do
      {:registered_name, name} -> name |> inspect() |> short(60)
      _none -> text(pid)
    end
  end

  @doc "The labels of processes with names: one that others have too, as long names may begin alike, gets its id."
  @spec apart([{pid, String.t()}]) :: %{pid => String.t()}
  def apart(named) do
    shared = Enum.frequencies(for {_pid, name} <- named, do: name)

    for {pid, name} <- named,
        into: %{},
        do: {pid, if(shared[name] > 1, do: "#{name} #{text(pid)}", else: name)}
  end

  @doc "A text of at most this many characters, for a label: it has at most 100 bytes."
  @spec short(String.t(), pos_integer) :: String.t()
  def short(name, most) do
    text = Text.printable(name, most)
    if byte_size(text) <= @name_bytes, do: text, else: short(name, most - 10)
  end

  defp text(pid), do: pid |> :erlang.pid_to_list() |> List.to_string()

  defp seconds(nil), do: nil
  defp seconds(us), do: us / 1.0e6
end
