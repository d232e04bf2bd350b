defmodule Sconce.Memory do
  @moduledoc false
  # The memory of this machine, as far as this process may have it.

  alias Sconce.Native

  @bounds %{
    "machine" => "free memory of the machine",
    "cgroup" => "limit of the cgroup",
    "address_space" => "limit of address space (ulimit -v)"
  }

  @doc "Bytes of the machine, or nil where the system does not say."
  @spec total() :: pos_integer | nil
  def total do
    with {:ok, text} <- File.read("/proc/meminfo"),
         [_, kilobytes] <- Regex.run(~r/^MemTotal: +(\d+) kB/m, text) do
      1024 * String.to_integer(kilobytes)
    else
      _ -> nil
    end
  end

  @doc "Bytes that this process can still take, or nil where the system does not say."
  @spec free() :: non_neg_integer | nil
  def free do
    with %{bytes: bytes} <- available(), do: bytes
  end

  @doc "What can still be taken, and what bounds it, or nil where the system does not say."
  @spec available() :: %{bytes: non_neg_integer, bound: String.t()} | nil
  def available do
    case Native.memory_available() do
      {:ok, available} -> available
      {:error, _error} -> nil
    end
  end

  @doc "A bound in words."
  @spec bound(String.t()) :: String.t()
  def bound(name), do: Map.get(@bounds, name, name)
end
