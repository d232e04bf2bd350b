defmodule Sconce.Serving.Group do
  @moduledoc false
  # Groups of servings that can replace each other, on all connected nodes: a scope of `:pg`.

  alias Sconce.{Deadline, Error, Serving}
  alias Sconce.Serving.Peer

  # Time limit for the answers of one round of members. A healthy node answers within one network round trip.
  @patience_ms 250

  def child_spec(_opts), do: %{id: __MODULE__, start: {:pg, :start_link, [__MODULE__]}}

  @doc "Joins a group and returns a monitor of the scope. When the scope ends, the membership ends too."
  @spec join(term, pid) :: reference | nil
  def join(nil, _pid), do: nil

  def join(group, pid) do
    scope = Process.monitor(__MODULE__)
    in_scope(fn -> :pg.join(__MODULE__, group, pid) end)
    scope
  end

  @spec leave(term, pid) :: :ok
  def leave(group, pid), do: in_scope(fn -> :pg.leave(__MODULE__, group, pid) end)

  # The scope may just have ended.
  defp in_scope(call) do
    call.()
    :ok
  catch
    :exit, _reason -> :ok
  end

  @spec members(term) :: [pid]
  def members(group), do: :pg.get_members(__MODULE__, group)

  @doc """
  Picks the least loaded member on this node, or else the less loaded of two random members, or else the least loaded
  of the remaining ones. Members that do not answer are skipped.
  """
  @spec pick(term, atom, non_neg_integer | nil, integer | nil) :: {:ok, pid} | {:error, Error.t()}
  def pick(group, op, deadline_ms, start) do
    {near, far} = group |> members() |> Enum.shuffle() |> Enum.split_with(&(node(&1) == node()))
    {two, others} = Enum.split(far, 2)
    pick = fn pids -> Peer.least_loaded(pids, patience_ms(deadline_ms, start)) end

    case least_loaded(near) || pick.(two) || pick.(others) do
      pid when is_pid(pid) -> {:ok, pid}
      nil when far == [] -> {:error, none(group, op)}
      nil -> {:error, silent(group, op, deadline_ms, start)}
    end
  end

  # A serving that has just ended may still be a member.
  defp least_loaded(near) do
    loads = for pid <- near, {:ok, load} <- [Serving.load(pid)], do: {load, pid}
    with {_load, pid} <- Enum.min_by(loads, &elem(&1, 0), fn -> nil end), do: pid
  end

  # Without a deadline the timeout is `:infinity`, and an integer is less than any atom.
  defp patience_ms(deadline_ms, start),
    do: min(@patience_ms, Deadline.timeout(deadline_ms, start))

  defp silent(group, op, deadline_ms, start) do
    if Deadline.timeout(deadline_ms, start) == 0,
      do: Error.late(op, deadline_ms, start),
      else: none(group, op)
  end

  defp none(group, op) do
    details = %{
      what: "group #{inspect(group)}",
      reason: "no serving of the group answers",
      group: group
    }

    %Error{kind: :unavailable, op: op, details: details}
  end
end
