defmodule Sconce.Session.Proxy do
  @moduledoc false
  # The process that owns a session for a caller on another node, and ends with that caller.
  #
  # 1. The proxy processes requests one by one, in order, and only requests of the owner.
  # 2. The proxy ends when the owner ends, when the connection to the owner is lost, and when the session is closed. A
  #    link to the `Sconce.Session.Watch` of the owner ends the proxy even during a decision, which then leaves
  #    the queue.
  # 3. A request names the last request that its caller gave up. The proxy skips a given-up request that is still
  #    queued, and takes back a decision already made. After a `:deadline` the session is therefore unchanged.

  use Sconce.Server, restart: :temporary

  alias Sconce.{Error, Native, Serving, Session}
  alias Sconce.Policy.Spec
  alias Sconce.Session.{Decision, Watch}

  @supervisor Sconce.Session.Proxies
  @ops [:act, :reset, :rollback, :snapshot, :restore, :info, :transfer, :close]

  @doc "Opens a session for `owner`, as `Sconce.Session.Opening.begin/3` does, over a serving of this node."
  @spec open(pid, Serving.t(), tuple) :: {:ok, pid, Spec.t(), map} | {:error, Error.t()}
  def open(owner, serving, wanted) do
    {:ok, pid} = DynamicSupervisor.start_child(@supervisor, {__MODULE__, owner})
    GenServer.call(pid, {:open, serving, wanted}, :infinity)
  catch
    # The owner has ended, or this node is shutting down.
    :exit, _reason -> {:error, %Error{kind: :cancelled, op: :open}}
  end

  def start_link(owner), do: GenServer.start_link(__MODULE__, owner)

  @impl true
  def init(owner) do
    {:ok, owned_by(%{session: nil, gate: nil, rollback: 0, frames: 0, last: nil}, owner)}
  end

  defp owned_by(state, owner) do
    {:ok, watch} = Watch.start_link(owner)
    Map.merge(state, %{owner: owner, watch: watch})
  end

  @impl true
  def handle_call(
        {:open, %Serving{} = serving, {%{} = options, project_out, snapshot}},
        _from,
        state
      ) do
    # Keeps one more state than requested: the state before a decision that is taken back.
    roomy = Map.update!(options, :rollback, &(&1 + 1))

    case Serving.begin(serving, {roomy, project_out, snapshot}) do
      {:ok, session, spec, info} ->
        state = %{state | session: session, rollback: options.rollback, frames: info.frames}
        state = %{state | gate: serving.gate}
        {:reply, {:ok, self(), Spec.portable(spec), own(info, state)}, state}

      error ->
        {:stop, :shutdown, error, state}
    end
  end

  @impl true
  def handle_info({:sconce, {_, owner, _, _}, op, _, _} = request, %{owner: owner} = state)
      when op in @ops and state.session != nil do
    {:sconce, {_, _, _, given_up}, _, _, _} = request

    # Only the first queued request can refer to a request that was already decided. Later ones refer to queued
    # requests.
    state = take_back(state, given_up)
    {:sconce, {ref, ^owner, id, _}, op, args, deadline_ms} = newest(request)
    {answer, state} = perform(op, args, deadline_ms, %{state | last: nil}, id)
    reply(ref, answer)
    if state.session, do: {:noreply, state}, else: {:stop, :shutdown, state}
  end

  def handle_info({:sconce, {ref, owner, _, _}, op, _args, _ms}, %{owner: owner} = state)
      when is_reference(ref) do
    reply(ref, Sconce.Server.unknown(__MODULE__, op))
    {:noreply, state}
  end

  def handle_info({:sconce, {ref, _other, _id, _given_up}, op, _args, _ms}, state)
      when is_reference(ref) do
    details = %{what: "session (owned by another process)"}
    reply(ref, {:error, %Error{kind: :busy, op: op, details: details}})
    {:noreply, state}
  end

  # Skips requests that were given up before they began.
  defp newest({:sconce, {_, owner, id, _}, _, _, _} = request) do
    receive do
      {:sconce, {_, ^owner, _, ^id}, _, _, _} = next -> newest(next)
    after
      0 -> request
    end
  end

  defp take_back(%{last: {id, frames}, session: session} = state, id) do
    Native.session_back_to(session, frames)
    %{state | frames: frames}
  end

  defp take_back(state, _given_up), do: state

  defp perform(:act, [asked], deadline_ms, %{frames: frames} = state, id) do
    request = put_elem(asked, 0, state.session)
    answer = Decision.make(request, deadline_ms, state.gate)

    case answer do
      # A repeated decision has an earlier number, so the count must not decrease.
      {:ok, decision} ->
        {answer, %{state | last: {id, frames}, frames: max(frames, elem(decision, 3))}}

      error ->
        {error, state}
    end
  end

  defp perform(:transfer, [pid], _deadline_ms, %{watch: watch} = state, _id) do
    Process.unlink(watch)
    Process.exit(watch, :shutdown)
    {:ok, owned_by(state, pid)}
  end

  defp perform(:close, [], _deadline_ms, state, _id),
    do: {Session.native(state.session, :close, []), %{state | session: nil}}

  defp perform(:info, [], _deadline_ms, state, _id) do
    answer = Session.native(state.session, :info, [])
    answer = with {:ok, info} <- answer, do: {:ok, own(info, state)}
    {answer, state}
  end

  defp perform(:snapshot, [], _deadline_ms, state, _id),
    do: {Session.native(state.session, :snapshot, []), state}

  # The remaining operations are `reset`, `restore` and `rollback`.
  defp perform(op, args, _deadline_ms, %{session: session} = state, _id) do
    answer = Session.native(session, op, args)

    case Native.session_info(session) do
      {:ok, %{frames: frames}} -> {answer, %{state | frames: frames}}
      _busy -> {answer, state}
    end
  end

  defp own(info, state), do: %{info | rollback: state.rollback}

  defp reply(ref, answer), do: send(ref, {:sconce, ref, answer})
end
