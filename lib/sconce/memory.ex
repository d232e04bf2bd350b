defmodule Sconce.Memory do
  @moduledoc false
  # The memory of this machine, as far as this process may have it.

  @limit "/sys/fs/cgroup/memory.max"
  @used "/sys/fs/cgroup/memory.current"

  @doc "Bytes of the machine, or nil where the system does not say."
  @spec total() :: pos_integer | nil
  def total, do: meminfo("MemTotal")

  @doc "Bytes that can be had without taking them from others, or nil where the system does not say."
  @spec free() :: non_neg_integer | nil
  def free do
    case meminfo("MemAvailable") do
      nil -> nil
      available -> within(available, number(@limit), number(@used))
    end
  end

  # A container may have less than its machine.
  defp within(available, limit, used) when is_integer(limit) and is_integer(used),
    do: available |> min(limit - used) |> max(0)

  defp within(available, _limit, _used), do: available

  defp number(path) do
    with {:ok, text} <- File.read(path), {number, "\n"} <- Integer.parse(text) do
      number
    else
      _ -> nil
    end
  end

  defp meminfo(name) do
    with {:ok, text} <- File.read("/proc/meminfo"),
         [_, kilobytes] <- Regex.run(~r/^#{name}: +(\d+) kB/m, text) do
      1024 * String.to_integer(kilobytes)
    else
      _ -> nil
    end
  end
end
