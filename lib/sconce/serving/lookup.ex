defmodule Sconce.Serving.Lookup do
  @moduledoc false
  # Finds a serving by its struct, its pid, its name or its group.

  alias Sconce.{Error, Options, Policy, Serving}
  alias Sconce.Serving.{Group, Peer}

  @registry Sconce.Serving.Registry

  @doc "Registers a serving. The caller is the process of the serving."
  @spec register(Serving.t()) :: :ok
  def register(serving) do
    {:ok, _registry} = Registry.register(@registry, self(), serving)
    :ok
  end

  @doc "Replaces the registered struct of a serving. The caller is the process of the serving."
  @spec update(Serving.t()) :: :ok
  def update(serving) do
    Registry.update_value(@registry, self(), fn _before -> serving end)
    :ok
  end

  @doc "Applies `here` to a serving of this node, or calls `op` of `Sconce.Serving` on the serving's node."
  @spec at(Serving.serving(), atom, list, non_neg_integer | nil, (Serving.t() -> answer)) ::
          answer
        when answer: term
  def at(serving, op, args, deadline_ms \\ nil, here) do
    case find(serving, op) do
      {:here, serving} -> here.(serving)
      {:there, node, there} -> Peer.call(node, op, op, [there | args], deadline_ms)
      error -> error
    end
  end

  @doc "Calls the process of a serving of this node."
  @spec ask(Serving.t(), atom, term) :: term
  def ask(%{pid: pid}, op, message) do
    GenServer.call(pid, message, :infinity)
  catch
    :exit, {:noproc, _call} ->
      {:error,
       %Error{kind: :unavailable, op: op, details: %{what: "serving", reason: "has ended"}}}

    :exit, _reason ->
      {:error, %Error{kind: :cancelled, op: op}}
  end

  @doc """
  Returns `{:here, serving}`, or `{:there, node, server}` with the pid or name of the serving on that node.

  The deadline of the call, which began at `start`, limits the choice of a group member.
  """
  @spec find(Serving.serving(), atom, non_neg_integer | nil, integer | nil) ::
          {:here, Serving.t()} | {:there, node, pid | atom} | {:error, Error.t()}
  def find(serving, op, deadline_ms \\ nil, start \\ nil)

  def find({:group, group}, op, deadline_ms, start),
    do: with({:ok, pid} <- Group.pick(group, op, deadline_ms, start), do: find(pid, op))

  def find(%Serving{pid: pid, policy: %Policy{}} = serving, _op, _ms, _start)
      when is_pid(pid) and node(pid) == node(),
      do: {:here, serving}

  def find(%Serving{pid: pid}, _op, _ms, _start) when is_pid(pid),
    do: {:there, node(pid), pid}

  def find(serving, op, _ms, _start) do
    (Options.server?(serving) and not match?({:ok, _}, serving)) ||
      Options.argument!("serving", serving, "a pid, a name or the struct of info/1")

    case GenServer.whereis(serving) do
      {name, node} -> {:there, node, name}
      pid when is_pid(pid) and node(pid) != node() -> {:there, node(pid), pid}
      pid -> registered(pid, serving, op)
    end
  end

  defp registered(pid, serving, op) do
    # The registry may still have an entry of a process that has just ended.
    with true <- is_pid(pid) and Process.alive?(pid),
         [{^pid, serving}] <- Registry.lookup(@registry, pid) do
      {:here, serving}
    else
      _none ->
        details = %{what: "serving #{inspect(serving)}"}
        {:error, %Error{kind: :not_found, op: op, details: details}}
    end
  end
end
