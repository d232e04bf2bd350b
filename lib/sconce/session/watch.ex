defmodule Sconce.Session.Watch do
  @moduledoc false
  # A local process that lives as long as a process on another node, as far as this node knows, and exits with the same
  # reason. Local processes monitor the watch, or link to it, instead of the remote process: a remote monitor sends a
  # message to the other node and may block.

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
