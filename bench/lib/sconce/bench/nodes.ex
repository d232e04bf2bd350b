defmodule Sconce.Bench.Nodes do
  @moduledoc false
  # This VM as a node, for benchmarks that start others on this machine.

  @host "127.0.0.1"

  @doc "Makes this VM a node, unless it is one."
  @spec start!(String.t()) :: :ok
  def start!(name) do
    unless Node.alive?() do
      {_output, 0} = System.cmd(epmd(), ["-daemon"])
      {:ok, _pid} = Node.start(:"#{name}-#{System.pid()}@#{@host}", :longnames)
    end

    :ok
  end

  # Not every installation has epmd on the path.
  defp epmd do
    erts = "erts-#{:erlang.system_info(:version)}"
    System.find_executable("epmd") || Path.join([:code.root_dir(), erts, "bin", "epmd"])
  end

  @doc "Host of every node."
  @spec host :: String.t()
  def host, do: @host

  @doc "Arguments with which another node finds this node's modules."
  @spec paths :: [charlist]
  def paths do
    for path <- :code.get_path(), path != ~c".", arg <- [~c"-pa", path], do: arg
  end
end
