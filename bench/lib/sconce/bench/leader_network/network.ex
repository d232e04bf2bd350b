defmodule Sconce.Bench.LeaderNetwork.Network do
  @moduledoc false
  # Network namespaces with delayed links, by `leader_network.py`.

  @script Path.expand("../../../../leader_network.py", __DIR__)

  @spec open(pos_integer) :: map
  def open(count) do
    python = System.find_executable("python3")
    options = [:binary, :exit_status, line: 1000, args: [@script, to_string(count)]]
    port = Port.open({:spawn_executable, python}, options)
    "ready " <> prefix = answer(port)
    %{port: port, prefix: prefix}
  end

  # The script ends with its input.
  @spec close(map) :: true
  def close(%{port: port}), do: Port.close(port)

  @spec command(map, String.t()) :: :ok
  def command(%{port: port}, line) do
    Port.command(port, line <> "\n")
    "ok" = answer(port)
    :ok
  end

  defp answer(port) do
    receive do
      {^port, {:data, {:eol, line}}} -> line
      {^port, {:exit_status, status}} -> raise "leader_network.py ended with status #{status}"
    end
  end

  @spec ip() :: charlist
  def ip, do: "ip" |> System.find_executable() |> String.to_charlist()

  @spec host(pos_integer) :: String.t()
  def host(n), do: "10.77.0.#{n}"

  @spec namespace(map, pos_integer) :: charlist
  def namespace(network, n), do: String.to_charlist(network.prefix <> to_string(n))

  @doc "Takes the interface of a member up or down."
  @spec interface(map, pos_integer, String.t()) :: :ok
  def interface(network, n, state) do
    args = ["-n", network.prefix <> to_string(n), "link", "set", "net0", state]
    {_output, 0} = System.cmd("ip", args)
    :ok
  end
end
