defmodule Sconce.Tuner.Turn do
  @moduledoc false
  # Callers of one key measure it one after the other, so that the second finds the entry of the first.

  use Sconce.Server

  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc "Calls a function while no other process measures the key; at once while the application is not started."
  @spec take(String.t(), (() -> answer)) :: answer when answer: term
  def take(key, work) do
    case GenServer.whereis(__MODULE__) do
      nil -> work.()
      server -> held(server, key, work)
    end
  end

  defp held(server, key, work) do
    monitor = GenServer.call(server, {:take, key}, :infinity)

    try do
      work.()
    after
      monitor && GenServer.cast(server, {:give, key, monitor})
    end
  end

  @impl true
  def init(_opts), do: {:ok, %{}}

  # The state has a queue for each key. Its first caller holds the key; nil as an answer means that the caller does already.
  @impl true
  def handle_call({:take, key}, {pid, _tag} = from, queues) do
    case queues do
      %{^key => [{^pid, _monitor, _from} | _]} ->
        {:reply, nil, queues}

      %{^key => queue} ->
        {:noreply, %{queues | key => queue ++ [{pid, Process.monitor(pid), from}]}}

      _free ->
        monitor = Process.monitor(pid)
        {:reply, monitor, Map.put(queues, key, [{pid, monitor, from}])}
    end
  end

  @impl true
  def handle_cast({:give, key, monitor}, queues) do
    Process.demonitor(monitor, [:flush])
    {:noreply, without(queues, key, monitor)}
  end

  @impl true
  def handle_info({:DOWN, monitor, :process, _pid, _reason}, queues),
    do: {:noreply, Enum.reduce(Map.keys(queues), queues, &without(&2, &1, monitor))}

  defp without(queues, key, monitor) do
    queue = Map.get(queues, key, [])

    case Enum.reject(queue, &(elem(&1, 1) == monitor)) do
      [] ->
        Map.delete(queues, key)

      [{_pid, next, from} | _] = left ->
        if elem(hd(queue), 1) == monitor, do: GenServer.reply(from, next)
        Map.put(queues, key, left)
    end
  end
end
