defmodule Sconce.LockTest do
  use ExUnit.Case, async: true

  alias Sconce.Lock

  # A process that holds the lock until it gets `:give`.
  defp holder(key) do
    test = self()

    task =
      Task.async(fn ->
        Lock.hold(key, fn ->
          send(test, {:held, self()})
          receive do: (:give -> :given)
        end)
      end)

    assert_receive {:held, _pid}
    task
  end

  # A process that waits for the lock, and is in the queue.
  defp waiting(key, number) do
    test = self()
    task = Task.async(fn -> Lock.hold(key, fn -> send(test, {:turn, number}) end) end)
    queued(key, task.pid)
    task
  end

  defp queued(key, pid) do
    queue = :sys.get_state(Lock) |> Map.get(key, []) |> Enum.map(&elem(&1, 0))
    pid in queue || (Process.sleep(1) && queued(key, pid))
  end

  test "those who wait for a lock get it in order, and the holder of another does not wait" do
    first = holder({__MODULE__, 1})
    tasks = for number <- 1..8, do: waiting({__MODULE__, 1}, number)
    assert Lock.hold({__MODULE__, 2}, fn -> :other end) == :other
    refute_received {:turn, _number}
    send(first.pid, :give)
    Task.await_many([first | tasks])

    order = for _ <- 1..8, do: receive(do: ({:turn, number} -> number))
    assert order == Enum.to_list(1..8)
    refute is_map_key(:sys.get_state(Lock), {__MODULE__, 1})
  end

  test "a process that holds a lock may take it again, and keeps it until the first call ends" do
    key = {__MODULE__, 3}

    waiting =
      Lock.hold(key, fn ->
        assert Lock.hold(key, fn -> :inner end) == :inner
        waiting = waiting(key, :next)
        refute_received {:turn, :next}
        waiting
      end)

    Task.await(waiting)
    assert_received {:turn, :next}
  end

  test "the lock of a holder that raises or dies goes to the next process" do
    key = {__MODULE__, 4}
    assert_raise RuntimeError, fn -> Lock.hold(key, fn -> raise "no" end) end
    Process.flag(:trap_exit, true)
    dying = holder(key)
    gone = waiting(key, :gone)
    next = waiting(key, :next)
    Process.exit(gone.pid, :kill)
    Process.exit(dying.pid, :kill)
    Task.await(next)
    assert_received {:turn, :next}
    refute_received {:turn, :gone}
  end
end
