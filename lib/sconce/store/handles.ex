defmodule Sconce.Store.Handles do
  @moduledoc false
  # The stores that are open in this VM, for the monitor. A store that nothing refers to is closed, so the table must not
  # refer to it: it holds the end of the handle's external form, its number, from which a handle is made again as long as
  # the store lives. The start names this node, and that name changes when the VM becomes a node or ceases to be one.

  alias Sconce.Native

  @doc "Makes the table, unless there is one. The calling process owns it."
  @spec new() :: :ok
  def new do
    if :ets.whereis(__MODULE__) == :undefined,
      do: :ets.new(__MODULE__, [:named_table, :public, :ordered_set])

    :ok
  end

  @doc "Adds a store. Without a table, as the application has not started, nothing happens."
  @spec add(reference, Path.t()) :: :ok
  def add(ref, path) do
    number = System.unique_integer([:positive, :monotonic])
    {_node, words} = parts(ref)
    :ets.insert(__MODULE__, {number, words, path})
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

  defp stats({number, {count, words}, path}) do
    node = this_node()

    case read_one(<<131, 90, count::16, node::binary, words::binary>>) do
      {:ok, stats} -> [{number, path, stats}]
      # The name of the node has just changed; the next reading finds the store.
      :gone -> if this_node() == node, do: gone(number), else: []
    end
  end

  defp read_one(handle) do
    case Native.store_stats(:erlang.binary_to_term(handle)) do
      {:ok, stats} -> {:ok, stats}
      {:error, _closed} -> :gone
    end
  rescue
    # The handle of a store that is gone is a plain reference.
    ArgumentError -> :gone
  end

  defp gone(number) do
    :ets.delete(__MODULE__, number)
    []
  end

  # This node and its creation, as in each reference of this VM.
  defp this_node do
    {node, _words} = parts(make_ref())
    node
  end

  # NEWER_REFERENCE_EXT: 131, 90, a count of words, the node with its creation, the words. The count stays with the words.
  defp parts(ref) do
    <<131, 90, count::16, rest::binary>> = :erlang.term_to_binary(ref)
    length = byte_size(rest) - 4 * count
    <<node::binary-size(length), words::binary>> = rest
    {node, {count, words}}
  end
end
