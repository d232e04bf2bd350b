defmodule Sconce.Monitor.Sample do
  @moduledoc false
  # Values that nothing counts: CPU, memory, cards, servings; nil for one that the machine does not tell.

  alias Sconce.{GPU, Memory, Serving}
  alias Sconce.Monitor.{Catalogue, Prometheus}
  alias Sconce.Run.Keeper

  @enforce_keys [:cards]
  defstruct [:cards, :cpu, :machine]

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

    sampled = %{
      "sconce_cpu_ratio" => share(before.cpu, now.cpu),
      "sconce_machine_cpu_ratio" => share(before.machine, now.machine),
      "sconce_memory_resident_bytes" => resident(),
      "sconce_memory_beam_bytes" => :erlang.memory(:total),
      "sconce_memory_available_bytes" => Memory.free(),
      "sconce_run_queue" => :erlang.statistics(:total_run_queue_lengths),
      "sconce_runs" => Keeper.count(),
      "sconce_servings" => length(pids())
    }

    {valued(Catalogue.sampled(), sampled, "") ++ Enum.flat_map(now.cards, &card/1), now}
  end

  defp valued(catalogue, values, labels) do
    for %{name: name, kind: kind, unit: unit, doc: doc} <- catalogue,
        do: {kind, name <> labels, unit, doc, values[name]}
  end

  # A busy time and a whole time, in clock ticks of all cores.
  defp cpu do
    with {:ok, stat} <- File.read("/proc/self/stat"),
         [_pid_and_name, rest] <- String.split(stat, ") ", parts: 2),
         fields = String.split(rest),
         {:ok, user} <- Enum.fetch(fields, 11),
         {:ok, system} <- Enum.fetch(fields, 12),
         {_busy, whole} <- machine() do
      {String.to_integer(user) + String.to_integer(system), whole}
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

  defp resident do
    with {:ok, status} <- File.read("/proc/self/status"),
         [_, kilobytes] <- Regex.run(~r/^VmRSS:\s+(\d+) kB/m, status) do
      1024 * String.to_integer(kilobytes)
    else
      _unknown -> nil
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

    values = %{
      "sconce_device_memory_used_bytes" => told.(memory, &(&1.used_mb * 1_048_576)),
      "sconce_device_memory_total_bytes" => told.(memory, &(&1.total_mb * 1_048_576)),
      "sconce_device_utilisation_ratio" => told.(use, & &1.gpu/100),
      "sconce_device_bandwidth_ratio" => told.(use, & &1.memory/100),
      "sconce_device_temperature_celsius" => told.(GPU.temperature(index), & &1),
      "sconce_device_power_watts" => told.(GPU.power(index), & &1.draw_watts),
      "sconce_device_clock_hertz" => told.(GPU.clocks(index), &clock/1)
    }

    valued(Catalogue.device(), values, ~s({device="cuda:#{index}"}))
  end

  defp clock(clocks), do: clocks.sm_mhz && clocks.sm_mhz * 1_000_000

  @doc "The values of each serving of this VM, by its process."
  @spec servings() :: [{pid, [value]}]
  def servings do
    found = for pid <- pids(), {:ok, stats} <- [Serving.stats(pid)], do: {pid, name(pid), stats}
    names = Enum.frequencies(for {_pid, name, _stats} <- found, do: name)

    for {pid, name, stats} <- found do
      # Two long names may begin alike.
      name = if names[name] > 1, do: "#{name} #{text(pid)}", else: name

      values = %{
        "sconce_serving_waiting" => stats.waiting,
        "sconce_serving_requests_total" => stats.requests,
        "sconce_serving_answered_total" => stats.answered,
        "sconce_serving_late_total" => stats.late,
        "sconce_serving_busy_total" => stats.busy,
        "sconce_serving_latency_p50_seconds" => seconds(stats.latency_us.p50),
        "sconce_serving_latency_p99_seconds" => seconds(stats.latency_us.p99)
      }

      {pid, valued(Catalogue.serving(), values, Prometheus.labels!(serving: name))}
    end
  end

  defp pids,
    do: Registry.select(Serving.Registry, [{{:_, :"$1", :_}, [], [:"$1"]}]) |> Enum.uniq()

  defp name(pid) do
    case Process.info(pid, :registered_name) do
      {:registered_name, name} -> name |> inspect() |> Sconce.Text.printable(60)
      _none -> text(pid)
    end
  end

  defp text(pid), do: pid |> :erlang.pid_to_list() |> List.to_string()

  defp seconds(nil), do: nil
  defp seconds(us), do: us / 1.0e6
end
