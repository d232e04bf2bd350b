defmodule Sconce.Leader.Post do
  @moduledoc false
  # Sends the messages of a member to one other member. It is a process of its own: connecting to a node that is cut off,
  # and sending through a connection that is full, block this process and not the one that holds the lease.

  @spec start_link(node, atom) :: pid
  def start_link(node, name) do
    server = self()
    # A link alone would leave the process behind when the server ends normally.
    spawn_link(fn -> loop(node, name, Process.monitor(server)) end)
  end

  @spec post(pid, tuple) :: :ok
  def post(pid, message) do
    send(pid, {:post, message})
    :ok
  end

  defp loop(node, name, server) do
    receive do
      {:DOWN, ^server, :process, _pid, _reason} ->
        exit(:normal)

      {:post, message} ->
        # Messages that have waited for a connection in vain are of no use.
        if Node.connect(node) == true, do: send({name, node}, message), else: drop()
    end

    loop(node, name, server)
  end

  defp drop do
    receive do
      {:post, _message} -> drop()
    after
      0 -> :ok
    end
  end
end
