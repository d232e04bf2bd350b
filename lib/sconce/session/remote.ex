defmodule Sconce.Session.Remote do
  @moduledoc false
  # The caller's side of a session on another node. Requests are messages to the process that owns the session there
  # (`Sconce.Session.Proxy`), which processes them in order. Answers are sent to an alias, so that no answer arrives
  # after the caller has given up or the node is lost.

  alias Sconce.{Deadline, Error}
  alias Sconce.Session.Watch

  # `closed` is 1 after the session was closed.
  @enforce_keys [:pid, :watch, :closed]
  defstruct @enforce_keys

  @type t :: %__MODULE__{pid: pid, watch: pid, closed: :atomics.atomics_ref()}

  @typedoc "A request that was sent."
  @opaque request :: {t, reference, pos_integer, atom}

  @spec new(pid) :: t
  def new(pid),
    do: %__MODULE__{pid: pid, watch: Watch.start(pid), closed: :atomics.new(1, [])}

  @doc "Sends a request and waits without a deadline, until the process answers or its monitor reports its end."
  @spec call(t, atom, list) :: term
  def call(remote, op, args) do
    with {:ok, request} <- ask(remote, op, args, nil),
         do: await(request, nil, System.monotonic_time())
  end

  @doc """
  Sends a request. With a deadline, a congested connection is an error of kind `:busy` instead of a wait.
  """
  @spec ask(t, atom, list, non_neg_integer | nil) :: {:ok, request} | {:error, Error.t()}
  def ask(%__MODULE__{watch: watch}, op, _args, _deadline_ms) when node(watch) != node() do
    details = %{what: "session of #{node(watch)}", node: node(watch)}
    {:error, %Error{kind: :busy, op: op, details: details}}
  end

  def ask(%__MODULE__{watch: watch} = remote, op, args, deadline_ms) do
    ref = :erlang.monitor(:process, watch, alias: :reply_demonitor)
    id = System.unique_integer([:positive])
    from = {ref, self(), id, Process.get(given_up(remote))}

    case send_to(remote, {:sconce, from, op, args, deadline_ms}, how(deadline_ms)) do
      :ok ->
        Process.delete(given_up(remote))
        {:ok, {remote, ref, id, op}}

      refused ->
        Process.demonitor(ref, [:flush])
        refused(refused, remote, op)
    end
  end

  # The process dictionary key of the request that this process gave up and has not yet reported. Each process has its
  # own dictionary, so other processes do not affect the requests of the owner.
  defp given_up(%{watch: watch}), do: {__MODULE__, watch}

  defp send_to(%{watch: watch, pid: pid}, request, how) do
    if Process.alive?(watch), do: sent(:erlang.send(pid, request, how), node(pid)), else: :lost
  end

  defp sent(:ok, _node), do: :ok
  defp sent(:noconnect, _node), do: :lost
  # `:nosuspend` is also the answer for a connection that has just ended.
  defp sent(:nosuspend, node), do: if(node in Node.list(:connected), do: :full, else: :lost)

  defp refused(:lost, remote, op), do: gone(remote, op, :noproc)

  defp refused(:full, %{pid: pid}, op) do
    details = %{what: "connection to #{node(pid)}", node: node(pid)}
    {:error, %Error{kind: :busy, op: op, details: details}}
  end

  # A lost connection is not set up again: that takes time, and the session ended with the connection.
  defp how(nil), do: [:noconnect]
  defp how(_deadline_ms), do: [:nosuspend, :noconnect]

  @doc "Waits for the answer to a request sent at `start`, a `System.monotonic_time/0`, until the deadline."
  @spec await(request, non_neg_integer | nil, integer) :: term
  def await({remote, ref, id, op}, deadline_ms, start) do
    receive do
      {:sconce, ^ref, answer} -> answer
      {:DOWN, ^ref, :process, _pid, reason} -> gone(remote, op, reason)
    after
      Deadline.timeout(deadline_ms, start) ->
        Process.demonitor(ref, [:flush])

        # The answer may have arrived in the meantime. After the demonitor no answer can arrive.
        receive do
          {:sconce, ^ref, answer} -> answer
        after
          0 ->
            Process.put(given_up(remote), id)
            {:error, Error.late(op, deadline_ms, start)}
        end
    end
  end

  @doc "Transfers the session to a living process of the caller's node."
  @spec transfer(t, pid) :: :ok | {:error, Error.t()}
  def transfer(remote, pid) do
    if Process.alive?(pid),
      do: call(remote, :transfer, [pid]),
      else: {:error, %Error{kind: :not_found, op: :transfer, details: %{what: "process"}}}
  end

  @doc "Closes the session. Closing it again is `:ok`; other calls then return `:not_found`."
  @spec close(t) :: :ok | {:error, Error.t()}
  def close(%__MODULE__{closed: closed} = remote) do
    case call(remote, :close, []) do
      :ok -> :atomics.put(closed, 1, 1)
      {:error, %Error{kind: :not_found}} -> :ok
      error -> error
    end
  end

  defp gone(%{closed: closed, pid: pid}, op, reason) do
    if :atomics.get(closed, 1) == 1 do
      {:error, %Error{kind: :not_found, op: op, details: %{what: "session (closed)"}}}
    else
      details = %{what: "session on #{node(pid)}", reason: why(reason), node: node(pid)}
      {:error, %Error{kind: :unavailable, op: op, details: details}}
    end
  end

  defp why({:shutdown, :noconnection}), do: "the node is not connected"
  defp why(:noproc), do: "the node was lost"
  defp why(reason), do: "its process ended with #{inspect(reason)}"
end
