defmodule Sconce.Session.Watch do
  @moduledoc false
  # Lives as long as a process on another node, as far as this node knows, and ends with its reason. Whoever waits for
  # that process monitors this one, or is linked to it: a monitor on another node is a message to it, for which one may
  # have to wait.

  use Sconce.Server, restart: :temporary

  @spec start(pid) :: pid
  def start(watched) do
    {:ok, pid} = DynamicSupervisor.start_child(Sconce.Session.Proxies, {__MODULE__, watched})
    pid
  end

  def start_link(watched), do: GenServer.start_link(__MODULE__, watched)

  @impl true
  def init(watched), do: {:ok, watched, {:continue, :monitor}}

  @impl true
  def handle_continue(:monitor, watched), do: {:noreply, Process.monitor(watched)}

  @impl true
  def handle_info({:DOWN, ref, :process, _pid, reason}, ref),
    do: {:stop, {:shutdown, reason}, ref}
end
