defmodule Sconce.Lock do
  @moduledoc false
  # One process of this VM at a time holds the lock of a key. The others wait in order, and the next one goes on at once:
  # `:global.trans/3` sleeps for up to seconds between two tries. A crash of this
  # process ends all locks.

  use Sconce.Server

  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc """
  Calls a function while this process holds the lock of the key. A process that holds it already does not wait.

  While the application is not started the lock is that of `:global`.
  """
  @spec hold(term, (() -> answer)) :: answer when answer: term
  def hold(key, work) do
    case GenServer.whereis(__MODULE__) do
      nil -> :global.trans({{__MODULE__, key}, self()}, work, [node()])
      server -> held(server, key, work, taken(server, key))
    end
  end

  defp held(_server, key, work, :ended), do: hold(key, work)

  defp held(server, key, work, monitor) do
    work.()
  after
    monitor && GenServer.cast(server, {:give, key, monitor})
  end

  defp taken(server, key) do
    GenServer.call(server, {:take, key}, :infinity)
  catch
    # The supervisor starts another server.
    :exit, _reason -> :ended
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
