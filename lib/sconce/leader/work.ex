defmodule Sconce.Leader.Work do
  @moduledoc false
  # Runs the child of a leader while it leads. It is a process of its own, so that a child that starts slowly does not
  # delay the renewals of the lease. The child is linked to it.
  #
  # A member that has crashed may be elected again while the child of the process before it is still dying. So each of
  # these processes is in a group of its node, and waits for the earlier ones.
  #
  # The leader gets `{:work, pid, {:started, child}}`, and `{:work, pid, {:failed, reason}}` after the last restart.

  alias Sconce.Serving.Group

  @enforce_keys [:leader, :start, :restart, :restarts]
  defstruct @enforce_keys ++ [child: nil]

  @doc "Starts the child of a specification; the caller is the leader of the group `name`."
  @spec start_link(Supervisor.child_spec(), non_neg_integer, atom) :: pid
  def start_link(%{start: start} = spec, restarts, name) do
    restart = Map.get(spec, :restart, :permanent)
    work = %__MODULE__{leader: self(), start: start, restart: restart, restarts: restarts}

    spawn_link(fn ->
      Process.flag(:trap_exit, true)
      alone(name)
      work |> begin() |> loop()
    end)
  end

  defp alone(name) do
    group = {__MODULE__, name}

    for earlier <- Group.members(group), node(earlier) == node() do
      ref = Process.monitor(earlier)
      receive do: ({:DOWN, ^ref, :process, ^earlier, _reason} -> :ok)
    end

    Group.join(group, self())
  end

  @doc "Asks the child to end; the process ends after it."
  @spec stop(pid) :: :ok
  def stop(pid) do
    send(pid, :stop)
    :ok
  end

  @doc "Kills the child, also one that still starts, and the process. Returns monitors of all but the process."
  @spec kill(pid) :: [reference]
  def kill(pid) do
    linked =
      case Process.info(pid, :links) do
        {:links, linked} -> for other <- linked, is_pid(other), other != self(), do: other
        nil -> []
      end

    monitors = for other <- linked, do: Process.monitor(other)
    for other <- [pid | linked], do: Process.exit(other, :kill)
    monitors
  end

  defp begin(%{start: {module, function, args}} = work) do
    case apply(module, function, args) do
      {:ok, child} -> started(work, child)
      {:ok, child, _info} -> started(work, child)
      :ignore -> started(work, nil)
      {:error, reason} -> again(work, reason)
    end
  catch
    kind, reason -> again(work, {kind, reason})
  end

  defp started(work, child) do
    send(work.leader, {:work, self(), {:started, child}})
    %{work | child: child}
  end

  defp again(%{restarts: 0} = work, reason) do
    send(work.leader, {:work, self(), {:failed, reason}})
    %{work | child: nil}
  end

  defp again(work, _reason), do: begin(%{work | restarts: work.restarts - 1})

  defp loop(%{leader: leader, child: child} = work) do
    receive do
      :stop when child == nil ->
        :ok

      :stop ->
        Process.exit(child, :shutdown)
        receive do: ({:EXIT, ^child, _reason} -> :ok)

      # Its lease cannot be known any more.
      {:EXIT, ^leader, _reason} when child == nil ->
        :ok

      {:EXIT, ^leader, _reason} ->
        Process.exit(child, :kill)
        receive do: ({:EXIT, ^child, _killed} -> :ok)

      {:EXIT, ^child, reason} ->
        work |> exited(reason) |> loop()

      _other ->
        loop(work)
    end
  end

  defp exited(work, reason) do
    normal? = reason in [:normal, :shutdown] or match?({:shutdown, _}, reason)

    if work.restart == :temporary or (work.restart == :transient and normal?),
      do: started(work, nil),
      else: again(%{work | child: nil}, reason)
  end
end
