defmodule Sconce.Bench.Stress.Far do
  @moduledoc false
  # Another node on this machine that serves, is killed outright at random, and starts again.

  alias Sconce.Bench.Machine
  alias Sconce.{Policy, Serving}

  @host "127.0.0.1"
  # The longest that one lives.
  @life_ms 5_000
  @pause_ms 500

  @doc "Makes this VM a node, and says what the other will be called."
  @spec start!() :: node
  def start! do
    unless Node.alive?() do
      {_output, 0} = System.cmd(epmd(), ["-daemon"])
      {:ok, _pid} = Node.start(:"sconce-stress-#{System.pid()}@#{@host}", :longnames)
    end

    :"#{name()}@#{@host}"
  end

  defp name, do: "sconce-far-#{System.pid()}"

  # Not every installation has it on the path.
  defp epmd do
    erts = "erts-#{:erlang.system_info(:version)}"
    System.find_executable("epmd") || Path.join([:code.root_dir(), erts, "bin", "epmd"])
  end

  @doc "Starts it and kills it until told to stop."
  def keep(stress, checkpoint, opts) do
    :rand.seed(:exsss)
    if :atomics.get(stress.stop, 1) == 0, do: live(stress, checkpoint, opts)
  end

  defp live(stress, checkpoint, opts) do
    paths = for path <- :code.get_path(), path != ~c".", arg <- [~c"-pa", path], do: arg

    args = [
      ~c"-connect_all",
      ~c"false",
      ~c"-setcookie",
      Atom.to_charlist(Node.get_cookie()) | paths
    ]

    wanted = %{name: String.to_atom(name()), host: String.to_charlist(@host), args: args}

    with {:ok, _peer, node} <- :peer.start(wanted) do
      os_pid = :erpc.call(node, System, :pid, [])
      {:ok, _apps} = :erpc.call(node, Application, :ensure_all_started, [:sconce])
      :ok = :erpc.call(node, __MODULE__, :serve, [checkpoint, opts])
      wait(stress, :rand.uniform(@life_ms))
      {_output, 0} = System.cmd("kill", ["-KILL", os_pid])
      :counters.add(stress.kills, 1, 1)
      wait(stress, :rand.uniform(@pause_ms))
    end

    keep(stress, checkpoint, opts)
  end

  @doc "On the other node: serves until that ends."
  def serve(checkpoint, opts) do
    policy = Machine.value!(Policy.load(checkpoint))
    {:ok, _pid} = Supervisor.start_child(Sconce.Supervisor, {Serving, [policy: policy] ++ opts})
    :ok
  end

  defp wait(_stress, ms) when ms <= 0, do: :ok

  defp wait(stress, ms) do
    if :atomics.get(stress.stop, 1) == 0 do
      Process.sleep(min(ms, 50))
      wait(stress, ms - 50)
    end
  end
end
