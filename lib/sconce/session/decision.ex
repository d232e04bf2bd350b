defmodule Sconce.Session.Decision do
  @moduledoc false
  # Decisions of sessions, on this node or another: packed as a request, submitted, and waited for until a deadline.

  alias Sconce.{Action, Deadline, Embedding, Error, Native, Options, Projection, Session}
  alias Sconce.Session.{Catalogue, Remote}

  # Games in one native call.
  @games 64

  @typedoc "A decision to make, as the native side reads it; the session comes first."
  @type request :: {reference | Remote.t(), binary, boolean, map | nil, term}

  @typedoc "A decision that was made, for `Sconce.Action`."
  @type t :: tuple

  @doc "The request for a decision on `frame`, with the options of `Sconce.Session.act/3`."
  @spec pack(Session.t(), term, keyword) :: {:ok, request} | {:error, Error.t()}
  def pack(session, frame, opts) do
    {logits, project_out, actions, overrides} = options(opts, session.logits)

    with {:ok, row} <- Embedding.pack(session.spec.embedding, frame),
         {:ok, overrides} <- with_actions(overrides, actions, session.spec),
         {:ok, project_out} <- Projection.pack(project_out),
         do: {:ok, {session.ref, row, logits, overrides, project_out}}
  end

  # Whether logits are wanted, directions to project out, the actions that were given, and other overrides.
  defp options([], logits), do: {logits, nil, [], nil}

  defp options(opts, logits) do
    {call, rest} =
      opts
      |> Options.validate!(Catalogue.schema(:act))
      |> Keyword.split([:logits, :deadline_ms, :project_out])

    {actions, overrides} = Keyword.split(rest, [:previous, :queue, :choices])
    overrides = if overrides != [], do: Map.new(overrides)
    {Keyword.get(call, :logits, logits), call[:project_out], actions, overrides}
  end

  # The native side takes actions as labels.
  defp with_actions(overrides, [], _spec), do: {:ok, overrides}

  # As before the first action of a game.
  defp with_actions(overrides, [{:previous, nil} | rest], spec),
    do: with_actions(overrides, rest, spec)

  defp with_actions(overrides, [{name, given} | rest], spec) do
    with {:ok, labels} <- labels(spec, name, given) do
      (overrides || %{}) |> Map.put(name, labels) |> with_actions(rest, spec)
    end
  end

  defp labels(spec, :queue, actions) do
    Enum.reduce_while(actions, {:ok, []}, fn action, {:ok, before} ->
      case input(spec, action) do
        {:ok, labels} -> {:cont, {:ok, before ++ labels}}
        error -> {:halt, error}
      end
    end)
  end

  defp labels(spec, name, action), do: Action.labels(spec, name, action)

  defp input(spec, nil), do: {:ok, Action.no_labels(spec)}
  defp input(spec, action), do: Action.labels(spec, :queue, action)

  @doc "Makes one decision. `Sconce.Session.Proxy` makes those of callers on other nodes by it."
  @spec make(request, non_neg_integer | nil) :: {:ok, t} | {:error, Error.t()}
  def make(request, deadline_ms) do
    case submit(request, deadline_ms) do
      {:queued, _ref} = queued ->
        finish(queued, [elem(request, 0)], deadline_ms, System.monotonic_time())

      decided ->
        decided
    end
  end

  @doc """
  Makes decisions of many sessions in a call that began at `start`: `{session, what pack/3 answered}` of each, and
  its answer in the same order.
  """
  @spec make_all(
          [{Session.t(), {:ok, request} | {:error, Error.t()}}],
          non_neg_integer | nil,
          integer
        ) :: [{:ok, t} | {:error, Error.t()}]
  def make_all(asked, deadline_ms, start) do
    # A serving batches the decisions of its sessions with those of its other callers.
    {served, own} =
      for({{session, {:ok, request}}, i} <- Enum.with_index(asked), do: {i, session, request})
      |> Enum.split_with(fn {_i, session, _request} -> session.lane == :serving end)

    firsts = for {i, session, _} <- Enum.reverse(served), into: %{}, do: {session.ref, i}

    submitted =
      for {i, session, request} <- served do
        if firsts[session.ref] == i,
          do: {i, request, submit(request, Deadline.left(deadline_ms, start))},
          else: {i, request, twice()}
      end

    decided = own |> make_own(deadline_ms, start) |> Map.new()

    decided =
      for {i, request, answer} <- submitted, into: decided do
        {i, finish(answer, [elem(request, 0)], deadline_ms, start)}
      end

    for {{_session, packed}, i} <- Enum.with_index(asked),
        do: with({:ok, _request} <- packed, do: Map.fetch!(decided, i))
  end

  defp twice, do: {:error, %Error{kind: :busy, op: :act, details: %{what: "session"}}}

  # Answers by their places. A call has no more games than a scheduler reads in a moment.
  defp make_own(asked, deadline_ms, start) do
    calls =
      for some <- Enum.chunk_every(asked, @games),
          do: {some, submit_many(some, Deadline.left(deadline_ms, start))}

    Enum.flat_map(calls, fn {some, submitted} ->
      {places, sessions} =
        some |> Enum.map(fn {i, session, _} -> {i, session.ref} end) |> Enum.unzip()

      case finish(submitted, sessions, deadline_ms, start) do
        {:ok, answers} ->
          Enum.zip(places, Enum.map(answers, &Deadline.of_call(&1, deadline_ms, start)))

        error ->
          for i <- places, do: {i, error}
      end
    end)
  end

  defp submit_many(some, deadline_ms) do
    ref = make_ref()
    requests = for {_i, _session, request} <- some, do: request
    with :queued <- Native.session_act_many(ref, requests, deadline_ms), do: {:queued, ref}
  end

  defp submit({%Remote{} = remote, row, logits, overrides, project_out}, deadline_ms) do
    asked = {nil, row, logits, overrides, project_out}
    with {:ok, request} <- Remote.ask(remote, :act, [asked], deadline_ms), do: {:queued, request}
  end

  defp submit({session, row, logits, overrides, project_out}, deadline_ms) do
    ref = make_ref()

    case Native.session_act(session, ref, row, {logits, deadline_ms}, overrides, project_out) do
      :queued -> {:queued, ref}
      decided -> decided
    end
  end

  # The answer to a call that began at `start`, in which these sessions are.
  defp finish(submitted, sessions, deadline_ms, start),
    do: submitted |> wait(sessions, deadline_ms, start) |> Deadline.of_call(deadline_ms, start)

  defp wait({:queued, request}, [%Remote{} | _], deadline_ms, start),
    do: Remote.await(request, deadline_ms, start)

  defp wait({:queued, ref}, _sessions, nil, _start), do: answer(ref)

  defp wait({:queued, ref}, sessions, deadline_ms, start) do
    receive do
      {:sconce, ^ref, answer} -> answer
    after
      Deadline.timeout(deadline_ms, start) ->
        # Either no decision will be made, or the answer is on the way. Sessions that refused have no say.
        if Enum.any?(sessions, &Native.session_abandon/1),
          do: {:error, Error.late(:act, deadline_ms, start)},
          else: answer(ref)
    end
  end

  defp wait(decided, _sessions, _deadline_ms, _start), do: decided

  # The native side answers exactly once, also for work that was dropped.
  defp answer(ref) do
    receive do
      {:sconce, ^ref, answer} -> answer
    end
  end
end
