defmodule Sconce.Bench.Footprint do
  @moduledoc false
  # Resources of this VM: processes, sessions, threads, file descriptors, atoms and memory. A field is nil
  # if the system does not report it.

  alias Sconce.Native

  @fields ~w(processes sessions threads descriptors atoms resident_bytes vm_bytes)a
  @bytes ~w(resident_bytes vm_bytes)a
  # Allowed growth: memory that an allocator keeps, atoms of code that is loaded late, and one short-lived
  # thread that frees large memory.
  @spare %{resident_bytes: 32_000_000, vm_bytes: 32_000_000, atoms: 1_000, threads: 1}

  @type t :: %{optional(atom) => non_neg_integer | nil}

  def fields, do: @fields

  @doc "Whether a field counts bytes."
  @spec bytes?(atom) :: boolean
  def bytes?(field), do: field in @bytes

  @doc "The resources now, after a garbage collection of all processes."
  @spec take() :: t
  def take do
    for pid <- Process.list(), do: :erlang.garbage_collect(pid)

    %{
      processes: length(Process.list()),
      sessions: Native.session_count(),
      threads: status("Threads"),
      descriptors: descriptors(),
      atoms: :erlang.system_info(:atom_count),
      resident_bytes: kilobytes("VmRSS"),
      vm_bytes: :erlang.memory(:total)
    }
  end

  @doc "The resources once none exceeds `before`, or after `ms`, because processes take time to end."
  @spec settle(t, non_neg_integer) :: t
  def settle(before, ms) do
    now = take()

    if ms <= 0 or left(before, now) == [] do
      now
    else
      Process.sleep(100)
      settle(before, ms - 100)
    end
  end

  @doc "The fields that have grown beyond the allowance."
  @spec left(t, t) :: [atom]
  def left(before, now) do
    for field <- @fields,
        from = before[field],
        to = now[field],
        to > from + Map.get(@spare, field, 0),
        do: field
  end

  @doc "Peak resident bytes since `forget_peak/0`, or nil."
  @spec peak() :: non_neg_integer | nil
  def peak, do: kilobytes("VmHWM")

  @doc "Resets the peak to the resident bytes now."
  @spec forget_peak() :: :ok | {:error, atom}
  def forget_peak, do: File.write("/proc/self/clear_refs", "5")

  defp kilobytes(field), do: with(kb when is_integer(kb) <- status(field), do: 1024 * kb)

  defp descriptors do
    case File.ls("/proc/self/fd") do
      {:ok, files} -> length(files)
      {:error, _reason} -> nil
    end
  end

  defp status(field) do
    with {:ok, text} <- File.read("/proc/self/status"),
         [_, number] <- Regex.run(~r/#{field}:\s+(\d+)/, text) do
      String.to_integer(number)
    else
      _ -> nil
    end
  end
end
