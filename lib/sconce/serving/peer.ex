defmodule Sconce.Serving.Peer do
  @moduledoc false
  # Calls `Sconce.Serving` on another node. A separate process makes each call by `:erpc`: a congested connection blocks
  # that process, and not a caller with a deadline.

  alias Sconce.{Deadline, Error, Serving}

  @doc """
  Calls the function on the node and returns its answer. The error is `:deadline` when `deadline_ms` have passed since
  `start`, and `:unavailable` when the node is lost.
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

  @doc "The least loaded of the servings that answer in time, or nil."
  @spec least_loaded([pid], non_neg_integer) :: pid | nil
  def least_loaded(pids, patience_ms) do
    start = System.monotonic_time()
    asked = for pid <- pids, do: {ask(node(pid), :load, [pid]), pid}

    loads =
      for {asked, pid} <- asked, {:answer, {:ok, load}} <- [await(asked, patience_ms, start)] do
        {load, pid}
      end

    # On a tie the first one wins.
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
  defp why(:undef), do: "Sconce does not run there"
  defp why(reason), do: "the call ended with #{inspect(reason)}"
end
