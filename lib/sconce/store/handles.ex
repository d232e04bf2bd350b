defmodule Sconce.Store.Handles do
  @moduledoc false
  # The stores that are open in this VM, for the monitor. A store that nothing refers to is closed, so the table must not
  # refer to it: it holds the external form of the handle, from which a handle is made again as long as the store lives.

  alias Sconce.Native

  @doc "Makes the table. The calling process owns it."
  @spec new() :: :ok
  def new do
    :ets.new(__MODULE__, [:named_table, :public, :ordered_set])
    :ok
  end

  @doc "Adds a store. Without a table, as the application has not started, nothing happens."
  @spec add(reference, Path.t()) :: :ok
  def add(ref, path) do
    number = System.unique_integer([:positive, :monotonic])
    :ets.insert(__MODULE__, {number, :erlang.term_to_binary(ref), path})
    :ok
  rescue
    ArgumentError -> :ok
  end

  @doc "The statistics of each open store, in the order of their opening."
  @spec stats() :: [{pos_integer, Path.t(), map}]
  def stats do
    case :ets.tab2list(__MODULE__) do
      [] -> []
      rows -> read(rows)
    end
  rescue
    ArgumentError -> []
  end

  # In a process of its own: a handle that is garbage of the caller would keep its store open.
  defp read(rows) do
    {pid, ref} = spawn_monitor(fn -> exit({:stats, Enum.flat_map(rows, &stats/1)}) end)

    receive do
      {:DOWN, ^ref, :process, ^pid, {:stats, found}} -> found
      {:DOWN, ^ref, :process, ^pid, _killed} -> []
    end
  end

  defp stats({number, handle, path}) do
    case Native.store_stats(:erlang.binary_to_term(handle)) do
      {:ok, stats} -> [{number, path, stats}]
      {:error, _closed} -> gone(number)
    end
  rescue
    # The handle of a store that is gone is a plain reference.
    ArgumentError -> gone(number)
  end

  defp gone(number) do
    :ets.delete(__MODULE__, number)
    []
  end
end
