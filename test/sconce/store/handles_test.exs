defmodule Sconce.Store.HandlesTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch, only: [tmp_dir!: 1, run: 4]

  # In a VM of its own, as the name of its node changes and its processes are killed.
  defp script(text) do
    args = ["-pa", Application.app_dir(:sconce, "ebin"), "-e", text, tmp_dir!("handles")]
    assert {output, 0} = run("elixir", args, System.tmp_dir!(), [])
    output
  end

  @opened """
  spawn(fn -> Process.sleep(50_000) && System.halt(1) end)
  {:ok, _apps} = Application.ensure_all_started(:sconce)
  [dir] = System.argv()
  alias Sconce.Store
  open = fn -> for {_number, path, _stats} <- Store.Handles.stats(), do: Path.basename(path) end
  {:ok, kept} = Store.open(Path.join(dir, "kept"))
  """

  test "a store is found before, while and after its VM is a node, and collected in each" do
    text =
      @opened <>
        """
        until = fn until, check -> check.() || (Process.sleep(1) && until.(until, check)) end

        # A store of a process that ends is closed, and can be opened again.
        dropped = fn name ->
          path = Path.join(dir, name)

          Task.await(Task.async(fn ->
            {:ok, _store} = Store.open(path)
            ^name = List.last(open.())
          end))

          until.(until, fn -> open.() == ["kept"] end)
          until.(until, fn -> match?({:ok, _store}, Store.open(path)) end)
        end

        Task.await(Task.async(fn -> dropped.("alone") end), :infinity)
        until.(until, fn -> open.() == ["kept"] end)
        {:ok, later} = Store.open(Path.join(dir, "later"))
        options = %{dist_listen: false, name_domain: :longnames}
        {:ok, _pid} = :net_kernel.start(:"sconce@127.0.0.1", options)
        IO.inspect({node(), open.()})
        :ok = Store.close(later)
        until.(until, fn -> open.() == ["kept"] end)
        Task.await(Task.async(fn -> dropped.("node") end), :infinity)
        until.(until, fn -> open.() == ["kept"] end)
        :ok = :net_kernel.stop()
        IO.inspect({node(), open.()})
        :ok = Store.close(kept)
        IO.inspect(open.())
        """

    assert script(text) == """
           {:"sconce@127.0.0.1", ["kept", "later"]}
           {:nonode@nohost, ["kept"]}
           []
           """
  end

  test "an open store is found after the monitor's process was killed" do
    text =
      @opened <>
        """
        monitored = Process.whereis(Sconce.Monitor.Vm)
        ended = Process.monitor(monitored)
        Process.exit(monitored, :kill)
        receive do: ({:DOWN, ^ended, :process, _pid, _reason} -> :ok)
        IO.inspect(open.())
        {:ok, _later} = Store.open(Path.join(dir, "later"))
        IO.inspect(open.())
        IO.inspect(Store.Handles.new())
        :ok = Store.close(kept)
        IO.inspect(open.())
        """

    assert script(text) == """
           ["kept"]
           ["kept", "later"]
           :ok
           ["later"]
           """
  end
end
