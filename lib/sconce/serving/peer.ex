defmodule Sconce.Serving.Peer do
  @moduledoc false
  # `Sconce.Serving` on another node. What is called there is called by a process of its own, by `:erpc`: a
  # caller with a deadline can wait for it, but not for a connection that takes no more.

  alias Sconce.{Deadline, Error, Serving}

  @doc """
  What the function answers there: `:deadline` when `deadline_ms` have passed since `start`, `:unavailable` when the
  node is lost.
  """
  @spec call(node, atom, atom, list, non_neg_integer | nil, integer) :: term
  def call(node, op, function, args, deadline_ms \\ nil, start \\ System.monotonic_time()) do
    case node |> ask(function, args) |> await(deadline_ms, start) do
      {:answer, answer} -> answer
      {:raised, kind, reason} -> :erlang.raise(kind, reason, [])
      :late -> {:error, Error.late(op, deadline_ms, start)}
      reason -> {:error, lost(node, op, reason)}
    end
  end

  @doc "The least loaded of these servings, of those that answer in time."
  @spec least_loaded([pid], non_neg_integer) :: pid | nil
  def least_loaded(pids, patience_ms) do
    start = System.monotonic_time()
    asked = for pid <- pids, do: {ask(node(pid), :load, [pid]), pid}

    loads =
      for {asked, pid} <- asked, {:answer, {:ok, load}} <- [await(asked, patience_ms, start)] do
        {load, pid}
      end

    # Of equals the first.
    with {_load, pid} <- Enum.min_by(loads, &elem(&1, 0), fn -> nil end), do: pid
  end

  defp ask(node, function, args),
    do: spawn_monitor(fn -> exit(run(node, function, args)) end)

  defp run(node, function, args) do
    {:answer, :erpc.call(node, Serving, function, args)}
  catch
    :error, {:erpc, reason} -> reason
    :exit, {:signal, reason} -> reason
    :error, {:exception, :undef, [{Serving, ^function, _, _} | _]} -> :undef
    :error, {:exception, reason, _stack} -> {:raised, :error, reason}
  end

  defp await({pid, ref}, deadline_ms, start) do
    receive do
      {:DOWN, ^ref, :process, _pid, answer} -> answer
    after
      Deadline.timeout(deadline_ms, start) ->
        Process.demonitor(ref, [:flush])
        Process.exit(pid, :kill)
        :late
    end
  end

  defp lost(node, op, reason) do
    details = %{what: "serving on #{node}", reason: why(reason), node: node}
    %Error{kind: :unavailable, op: op, details: details}
  end

  defp why(:noconnection), do: "the node is not connected"
  defp why(:undef), do: "no Sconce is there"
  defp why(reason), do: "the call ended by #{inspect(reason)}"
end
