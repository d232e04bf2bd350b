defmodule Sconce.Memory do
  @moduledoc false
  # Measures how much of this machine's memory this process may use.

  alias Sconce.Native

  @bounds %{
    "machine" => "free memory of the machine",
    "cgroup" => "limit of the cgroup",
    "address_space" => "limit of address space (ulimit -v)"
  }

  @doc "Total bytes of the machine, nil if unknown."
  @spec total() :: pos_integer | nil
  def total do
    with {:ok, text} <- File.read("/proc/meminfo"),
         [_, kilobytes] <- Regex.run(~r/^MemTotal: +(\d+) kB/m, text) do
      1024 * String.to_integer(kilobytes)
    else
      _ -> nil
    end
  end

  @doc "Bytes that this process can still allocate, nil if unknown."
  @spec free() :: non_neg_integer | nil
  def free do
    with %{bytes: bytes} <- available(), do: bytes
  end

  @doc "Bytes that this process can still allocate and the bound behind them, nil if unknown."
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
