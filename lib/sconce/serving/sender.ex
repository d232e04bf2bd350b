defmodule Sconce.Serving.Sender do
  @moduledoc false
  # The process that sends the answers of a serving, which its native threads leave to it: a message from a
  # process costs the VM a tenth of one from a thread that it does not know. It is told `:deliver`, goes before
  # others, and ends with the serving.

  alias Sconce.Native

  @doc "For the calling process, which is a serving."
  @spec start_link() :: pid
  def start_link do
    serving = self()
    :erlang.spawn_opt(fn -> begin(Process.monitor(serving)) end, [:link, priority: :high])
  end

  @doc "Whose answers it sends."
  @spec send_of(pid, reference) :: :ok
  def send_of(sender, serving) do
    send(sender, {:serving, serving})
    :ok
  end

  # What it is told before waits in its mailbox.
  defp begin(monitor) do
    receive do
      {:serving, serving} -> loop(serving, monitor)
      {:DOWN, ^monitor, _, _, _} -> :ok
    end
  end

  defp loop(serving, monitor) do
    receive do
      :deliver ->
        deliver(serving)
        loop(serving, monitor)

      # What is left is sent by the native side.
      {:DOWN, ^monitor, _, _, _} ->
        :ok

      # Not for it: left in the mailbox, it would slow down every receive.
      _other ->
        loop(serving, monitor)
    end
  end

  defp deliver(serving), do: if(Native.serving_deliver(serving), do: deliver(serving), else: :ok)
end
