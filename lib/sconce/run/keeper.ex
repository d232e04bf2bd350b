defmodule Sconce.Run.Keeper do
  @moduledoc false
  # Stops the runs of this VM when this application stops, so that each run saves its state. The VM kills other
  # processes only after its applications have stopped.

  use Sconce.Server, shutdown: 60_000

  alias Sconce.Run

  # Milliseconds for all runs together to stop, less than the shutdown timeout of this process.
  @farewell_ms 50_000

  def start_link(_opts), do: GenServer.start_link(__MODULE__, [], name: __MODULE__)

  @doc "Registers a run to be stopped with this VM; a no-op while the application is not started."
  def keep(run), do: GenServer.cast(__MODULE__, {:keep, run})

  @doc "Returns the number of registered runs."
  def count, do: GenServer.call(__MODULE__, :count)

  @impl true
  def init(_opts) do
    Process.flag(:trap_exit, true)
    {:ok, MapSet.new()}
  end

  @impl true
  def handle_cast({:keep, run}, runs) when is_pid(run) do
    Process.monitor(run)
    {:noreply, MapSet.put(runs, run)}
  end

  @impl true
  def handle_call(:count, _from, runs), do: {:reply, MapSet.size(runs), runs}

  @impl true
  def handle_info({:DOWN, _monitor, :process, run, _reason}, runs),
    do: {:noreply, MapSet.delete(runs, run)}

  @impl true
  def terminate(_reason, runs) do
    Enum.each(runs, &Run.stop(&1, :stop))
    deadline = System.monotonic_time(:millisecond) + @farewell_ms
    left = fn -> max(deadline - System.monotonic_time(:millisecond), 0) end
    Enum.each(runs, &Run.await(&1, left.(), :stop))
  end
end
