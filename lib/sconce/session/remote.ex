defmodule Sconce.Session.Remote do
  @moduledoc false
  # A session whose memory is on another node, as its caller has it. Requests are messages to the process
  # that owns the session there (`Sconce.Session.Proxy`) and are done in their order; answers come to an
  # alias, so that none comes after the caller has given up or the node is lost.

  alias Sconce.{Error, Session}
  alias Sconce.Session.Watch

  # `marks`: the id of the request that was given up last, and whether the session was closed.
  @enforce_keys [:pid, :watch, :marks]
  defstruct @enforce_keys

  @type t :: %__MODULE__{pid: pid, watch: pid, marks: :atomics.atomics_ref()}

  @typedoc "A request that was sent."
  @opaque request :: {t, reference, pos_integer, atom}

  @given_up 1
  @closed 2

  @spec new(pid) :: t
  def new(pid),
    do: %__MODULE__{pid: pid, watch: Watch.start(pid), marks: :atomics.new(2, [])}

  @doc "Asks and waits; without a deadline the answer comes from the process or from its monitor."
  @spec call(t, atom, list) :: term
  def call(remote, op, args) do
    with {:ok, request} <- ask(remote, op, args, nil),
         do: await(request, nil, System.monotonic_time())
  end

  @doc """
  Sends a request. Who has a deadline does not wait for a connection that takes no more: it is `:busy`.
  """
  @spec ask(t, atom, list, non_neg_integer | nil) :: {:ok, request} | {:error, Error.t()}
  def ask(%__MODULE__{watch: watch, marks: marks} = remote, op, args, deadline_ms) do
    ref = :erlang.monitor(:process, watch, alias: :reply_demonitor)
    id = System.unique_integer([:positive])
    from = {ref, self(), id, :atomics.get(marks, @given_up)}

    case send_to(remote, {:sconce, from, op, args, deadline_ms}, how(deadline_ms)) do
      :ok ->
        {:ok, {remote, ref, id, op}}

      refused ->
        Process.demonitor(ref, [:flush])
        refused(refused, remote, op)
    end
  end

  defp send_to(%{watch: watch, pid: pid}, request, how) do
    cond do
      not Process.alive?(watch) -> :lost
      :erlang.send(pid, request, how) == :ok -> :ok
      # So is a connection that has just ended.
      node(pid) not in Node.list() -> :lost
      true -> :full
    end
  end

  defp refused(:lost, remote, op), do: gone(remote, op, :noproc)

  defp refused(:full, %{pid: pid}, op) do
    details = %{what: "connection to #{node(pid)}", node: node(pid)}
    {:error, %Error{kind: :busy, op: op, details: details}}
  end

  defp how(nil), do: []
  defp how(_deadline_ms), do: [:nosuspend]

  @doc "The answer to a request of `start`, a `System.monotonic_time/0`, or by the deadline that there is none."
  @spec await(request, non_neg_integer | nil, integer) :: term
  def await({remote, ref, id, op}, deadline_ms, start) do
    receive do
      {:sconce, ^ref, answer} -> answer
      {:DOWN, ^ref, :process, _pid, reason} -> gone(remote, op, reason)
    after
      Session.left(deadline_ms, start) ->
        Process.demonitor(ref, [:flush])

        # It may have come meanwhile; later it cannot.
        receive do
          {:sconce, ^ref, answer} -> answer
        after
          0 ->
            :atomics.put(remote.marks, @given_up, id)
            {:error, Error.late(op, deadline_ms, start)}
        end
    end
  end

  @doc "To a living process of the caller's node."
  @spec transfer(t, pid) :: :ok | {:error, Error.t()}
  def transfer(remote, pid) do
    if Process.alive?(pid),
      do: call(remote, :transfer, [pid]),
      else: {:error, %Error{kind: :not_found, op: :transfer, details: %{what: "process"}}}
  end

  @doc "Closing again is `:ok`, other calls find no session."
  @spec close(t) :: :ok | {:error, Error.t()}
  def close(%__MODULE__{marks: marks} = remote) do
    with :open <- state(marks), :ok <- call(remote, :close, []) do
      :atomics.put(marks, @closed, 1)
    else
      :closed -> :ok
      error -> error
    end
  end

  defp state(marks), do: if(:atomics.get(marks, @closed) == 0, do: :open, else: :closed)

  defp gone(%{marks: marks, pid: pid}, op, reason) do
    case state(marks) do
      :closed ->
        {:error, %Error{kind: :not_found, op: op, details: %{what: "session (closed)"}}}

      :open ->
        details = %{what: "session on #{node(pid)}", reason: why(reason), node: node(pid)}
        {:error, %Error{kind: :unavailable, op: op, details: details}}
    end
  end

  defp why({:shutdown, :noconnection}), do: "the node is not connected"
  defp why(:noproc), do: "the node was lost"
  defp why(reason), do: "its process ended by #{inspect(reason)}"
end
