defmodule Sconce.Test.Cluster do
  @moduledoc "Other nodes on this machine, each a VM of its own that runs Sconce."

  import ExUnit.Callbacks, only: [on_exit: 1]

  alias Sconce.{Native, Policy, Serving}

  @host "127.0.0.1"

  @doc "Makes this VM a node until the end of the module, unless it is one."
  def start! do
    unless Node.alive?() do
      {_output, 0} = System.cmd(epmd(), ["-daemon"])
      until_named()
      {:ok, _pid} = Node.start(:"#{name()}@#{@host}", :longnames)
      on_exit(&stop/0)
    end

    :ok
  end

  # The daemon listens a moment after its command has returned.
  defp until_named do
    with {:error, :address} <- :erl_epmd.names() do
      Process.sleep(1)
      until_named()
    end
  end

  # The VM may still be a node for a moment after its network has stopped, which would mislead the next module.
  defp stop do
    Node.stop()
    until_alone()
  end

  defp until_alone, do: Node.alive?() && Process.sleep(1) && until_alone()

  # Some installations do not have epmd on the path.
  defp epmd do
    erts = "erts-#{:erlang.system_info(:version)}"
    System.find_executable("epmd") || Path.join([:code.root_dir(), erts, "bin", "epmd"])
  end

  @doc "Starts another node, which ends with the test or, in `setup_all`, with its module."
  def node! do
    paths = for path <- :code.get_path(), path != ~c".", arg <- [~c"-pa", path], do: arg
    cookie = Atom.to_charlist(Node.get_cookie())
    # Without full connections a suspended or lost node does not affect the others.
    args = [~c"-connect_all", ~c"false", ~c"-setcookie", cookie | paths]
    host = String.to_charlist(@host)
    # A machine under load may be slow.
    options = %{name: name(), host: host, args: args, wait_boot: 120_000}
    {:ok, _peer, node} = :peer.start(options)
    os_pid = :erpc.call(node, System, :pid, [])
    on_exit(fn -> kill(os_pid) end)
    {:ok, _apps} = :erpc.call(node, Application, :ensure_all_started, [:sconce])
    {node, os_pid}
  end

  defp name, do: String.to_atom("sconce-#{System.pid()}-#{System.unique_integer([:positive])}")

  @doc "Serves a checkpoint on a node until `Sconce.Serving.stop/1` or the node's end; returns the pid."
  def serve!(node, path, opts), do: :erpc.call(node, __MODULE__, :serve_here!, [path, opts])

  def serve_here!(path, opts) do
    {:ok, policy} = Policy.load(path)
    spec = %{Serving.child_spec([policy: policy] ++ opts) | id: make_ref()}
    {:ok, pid} = Supervisor.start_child(Sconce.Supervisor, Map.put(spec, :restart, :temporary))
    pid
  end

  @doc "Makes an atom on a node only."
  def atom(node, name), do: :erpc.call(node, __MODULE__, :atom_here, [name])

  def atom_here(name), do: {:ok, name |> String.to_atom() |> Atom.to_string()}

  @doc "Holds the next batch of a serving on its node until the returned process gets `:release`."
  def hold!(serving) do
    me = self()
    holder = Node.spawn(node(serving), __MODULE__, :hold_here!, [serving, me])
    receive do: (:held -> holder)
  end

  def hold_here!(serving, caller) do
    {:ok, %{ref: ref}} = Serving.info(serving)
    {:ok, gate} = Native.probe_hold(ref)
    send(caller, :held)
    receive do: (:release -> Native.probe_open(gate))
  end

  @doc "Suspends a VM, as if the network failed, until `resume/1` or the end of the test."
  def suspend(os_pid) do
    on_exit(fn -> resume(os_pid) end)
    signal("STOP", os_pid)
    until_stopped(os_pid)
  end

  def resume(os_pid), do: signal("CONT", os_pid)

  def kill(os_pid), do: signal("KILL", os_pid)

  defp signal(signal, os_pid),
    do: System.cmd("kill", ["-#{signal}", os_pid], stderr_to_stdout: true)

  # A machine under load may be slow.
  defp until_stopped(os_pid) do
    {state, 0} = System.cmd("ps", ["-o", "state=", "-p", os_pid])
    unless state =~ "T", do: until_stopped(os_pid)
  end
end
