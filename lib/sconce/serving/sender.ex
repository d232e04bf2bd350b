defmodule Sconce.Serving.Sender do
  @moduledoc false
  # The process that sends the answers of a serving for its native threads. A message from a process costs a tenth of a
  # message from a foreign thread. Native threads send `:deliver` to the sender. The sender has high priority and exits
  # with the serving.

  alias Sconce.Native

  @doc "Starts a sender, linked to the caller, which is a serving."
  @spec start_link() :: pid
  def start_link do
    serving = self()
    :erlang.spawn_opt(fn -> begin(Process.monitor(serving)) end, [:link, priority: :high])
  end

  @doc "Sets the native serving whose answers the sender delivers."
  @spec send_of(pid, reference) :: :ok
  def send_of(sender, serving) do
    send(sender, {:serving, serving})
    :ok
  end

  # Messages that arrive before the serving is set wait in the mailbox.
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

      # The native side sends the remaining answers.
      {:DOWN, ^monitor, _, _, _} ->
        :ok

      # An unknown message is dropped: left in the mailbox, it would slow down every receive.
      _other ->
        loop(serving, monitor)
    end
  end

  defp deliver(serving), do: if(Native.serving_deliver(serving), do: deliver(serving), else: :ok)
end
