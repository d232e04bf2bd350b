defmodule Sconce.Bench.Stress.Far do
  @moduledoc false
  # Another node on this machine, which serves, is suspended at random to simulate a cut network, is killed,
  # and starts again.

  alias Sconce.Bench.{Machine, Nodes}
  alias Sconce.{Native, Policy, Serving}

  # Maximum lifetime of one node.
  @life_ms 5_000
  @pause_ms 500
  # `net_ticktime` in seconds. A node that is suspended for more than 1.25 times this time is disconnected.
  @ticktime 4
  # Durations of a suspension, shorter and longer than the time until a disconnection.
  @still_ms [500, 2_000, 1_500 * @ticktime]
  @settle_ms 10_000
  # Time that a busy machine may take to start the node.
  @boot_ms 60_000

  @doc "Makes this VM a node, and returns the name of the other node."
  @spec start!() :: node
  def start! do
    Nodes.start!("sconce-stress")
    :net_kernel.set_net_ticktime(@ticktime, 0)

    :"#{name()}@#{Nodes.host()}"
  end

  defp name, do: "sconce-far-#{System.pid()}"

  @doc "Starts and kills the node repeatedly, until `stress.stop` is set."
  def keep(stress, checkpoint, opts) do
    :rand.seed(:exsss)
    if :atomics.get(stress.stop, 1) == 0, do: live(stress, checkpoint, opts)
  end

  defp live(stress, checkpoint, opts) do
    args = [
      ~c"-connect_all",
      ~c"false",
      ~c"-kernel",
      ~c"net_ticktime",
      Integer.to_charlist(@ticktime),
      ~c"-setcookie",
      Atom.to_charlist(Node.get_cookie()) | Nodes.paths()
    ]

    host = String.to_charlist(Nodes.host())
    wanted = %{name: String.to_atom(name()), host: host, args: args, wait_boot: @boot_ms}

    # The node is controlled by standard input, so that it survives a cut connection and can be set up before
    # it is connected. Connecting may fail right after a node of the same name was killed.
    with {:ok, peer, node} <- :peer.start(Map.put(wanted, :connection, :standard_io)) do
      os_pid = :peer.call(peer, System, :pid, [], @boot_ms)
      {:ok, _apps} = :peer.call(peer, Application, :ensure_all_started, [:sconce], @boot_ms)
      :ok = :peer.call(peer, __MODULE__, :serve, [checkpoint, opts], @boot_ms)
      :atomics.put(stress.far_serves, 1, 1)
      wait(stress, :rand.uniform(div(@life_ms, 4)))
      stand_still(stress, os_pid)
      wait(stress, :rand.uniform(@life_ms))
      look(stress, node)
      signal("KILL", os_pid)
      :counters.add(stress.kills, 1, 1)
      wait(stress, :rand.uniform(@pause_ms))
    end

    keep(stress, checkpoint, opts)
  end

  # Suspends and resumes the node, to simulate a network that is cut silently and comes back.
  defp stand_still(stress, os_pid) do
    if :atomics.get(stress.stop, 1) == 0 do
      signal("STOP", os_pid)
      :counters.add(stress.stills, 1, 1)
      wait(stress, Enum.random(@still_ms))
      signal("CONT", os_pid)
    end
  end

  # At the end no call is in flight. Sessions of killed or disconnected callers must be gone.
  defp look(stress, node) do
    if :atomics.get(stress.stop, 1) == 1 do
      left = left(node, System.monotonic_time(:millisecond) + @settle_ms)
      :atomics.put(stress.far_left, 1, left)
    end
  end

  defp left(node, until) do
    left = sessions(node)

    if left != 0 and System.monotonic_time(:millisecond) < until do
      Process.sleep(100)
      left(node, until)
    else
      left
    end
  end

  # Sessions of the node; -1 while the connection is not restored.
  defp sessions(node) do
    :erpc.call(node, Native, :session_count, [])
  rescue
    ErlangError -> -1
  end

  defp signal(name, os_pid),
    do: {_output, 0} = System.cmd("kill", ["-#{name}", os_pid], stderr_to_stdout: true)

  @doc "Runs on the other node: serves until the node ends."
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
