defmodule Sconce.Session.Decision do
  @moduledoc false
  # Decisions of sessions, on this node or another: packs a request, submits it, and waits until the deadline.

  alias Sconce.{
    Action,
    Deadline,
    Embedding,
    Error,
    Mask,
    Native,
    Options,
    Projection,
    Session,
    Tensor
  }

  alias Sconce.Serving.Gate
  alias Sconce.Session.{Catalogue, Remote}

  # Maximum games of one native call.
  @games 64

  @typedoc "A request for a decision, in the form of the native side; the session comes first."
  @type request :: {reference | Remote.t(), binary, boolean, map | nil, term}

  @typedoc "A decision, as `Sconce.Action` reads it."
  @type t :: tuple

  @doc "Packs the request for a decision on `frame`, with the options of `Sconce.Session.act/3`."
  @spec pack(Session.t(), term, keyword) :: {:ok, request} | {:error, Error.t()}
  def pack(session, frame, opts) do
    {logits, project_out, actions, overrides} = options(opts, session.logits)

    with {:ok, row} <- Embedding.pack(session.spec.embedding, frame),
         {:ok, overrides} <- with_actions(overrides, actions, session.spec),
         {:ok, project_out} <- Projection.pack(project_out),
         do: {:ok, {session.ref, row, logits, overrides, project_out}}
  end

  @doc "The rows of a tensor with one frame for each of `n` sessions."
  @spec rows(struct, non_neg_integer) :: {:ok, [binary]} | {:error, Error.t()}
  def rows(tensor, n) do
    with {:ok, %{data: data, shape: shape}} <- Tensor.read(tensor, "frames", :act_many, [:floats]) do
      case shape do
        {^n, width} ->
          bytes = 4 * width
          {:ok, for(<<row::binary-size(bytes) <- data>>, do: row)}

        _other ->
          expected = "the shape {#{n}, raw_width}"
          {:error, Tensor.misfit("frames", expected, inspect(shape), :act_many)}
      end
    end
  end

  # Returns whether logits are requested, directions to project out, the given actions, and other overrides.
  defp options([], logits), do: {logits, nil, [], nil}

  defp options(opts, logits) do
    {call, rest} =
      opts
      |> Options.validate!(Catalogue.schema(:act))
      |> Keyword.split([:logits, :deadline_ms, :project_out, :as])

    if call[:as] == :nx, do: Tensor.nx!("option :as")

    {actions, overrides} = Keyword.split(rest, [:previous, :queue, :choices, :mask])
    overrides = if overrides != [], do: Map.new(overrides)
    {Keyword.get(call, :logits, logits), call[:project_out], actions, overrides}
  end

  # The native side takes actions as labels, and a mask as entries.
  defp with_actions(overrides, [], _spec), do: {:ok, overrides}

  # Nil means that none was given.
  defp with_actions(overrides, [{name, nil} | rest], spec) when name in [:previous, :mask],
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

  defp labels(spec, :mask, mask) do
    with {:error, details} <- spec |> Mask.of_heads() |> Mask.pack(mask),
         do: {:error, %Error{kind: :mismatch, op: :act, details: details}}
  end

  defp labels(spec, name, action), do: Action.labels(spec, name, action)

  defp input(spec, nil), do: {:ok, Action.no_labels(spec)}
  defp input(spec, action), do: Action.labels(spec, :queue, action)

  @doc "Makes one decision, if the gate of its serving admits it. `Sconce.Session.Proxy` calls it for callers on other nodes."
  @spec make(request, non_neg_integer | nil, Gate.t() | nil) :: {:ok, t} | {:error, Error.t()}
  def make(request, deadline_ms, gate),
    do: Gate.pass(gate, :act, fn -> make(request, deadline_ms) end)

  defp make(request, deadline_ms) do
    case submit(request, deadline_ms) do
      {:queued, _ref} = queued ->
        finish(queued, [elem(request, 0)], deadline_ms, System.monotonic_time())

      decided ->
        decided
    end
  end

  @doc """
  Makes decisions of many sessions in a call that began at `start`. Each entry is a session with the result of `pack/3`.
  Returns the answers in the same order.
  """
  @spec make_all(
          [{Session.t(), {:ok, request} | {:error, Error.t()}}],
          non_neg_integer | nil,
          integer
        ) :: [{:ok, t} | {:error, Error.t()}]
  def make_all(asked, deadline_ms, start) do
    # A serving batches decisions of its sessions with those of other callers, so each one is submitted by itself.
    {served, own} =
      for({{session, {:ok, request}}, i} <- Enum.with_index(asked), do: {i, session, request})
      |> Enum.split_with(fn {_i, session, _request} -> session.lane == :serving end)

    firsts = for {i, session, _} <- Enum.reverse(served), into: %{}, do: {session.ref, i}

    submitted =
      for {i, session, request} <- served do
        if firsts[session.ref] == i,
          do: {i, request, admit(session, request, Deadline.left(deadline_ms, start))},
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

  defp admit(session, request, deadline_ms),
    do: with(:ok <- Gate.admit(session.gate, :act), do: submit(request, deadline_ms))

  defp twice, do: {:error, %Error{kind: :busy, op: :act, details: %{what: "session"}}}

  # Returns answers with their positions. Each native call has a limited number of games, so that the call does
  # not block the scheduler for long.
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

  # Waits for the answer to a call with these sessions that began at `start`.
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
        # Either the decision was abandoned in time, or the answer is already on its way. One session that was
        # abandoned is enough: sessions that refused the request cannot be abandoned.
        if Enum.any?(sessions, &Native.session_abandon/1),
          do: {:error, Error.late(:act, deadline_ms, start)},
          else: answer(ref)
    end
  end

  defp wait(decided, _sessions, _deadline_ms, _start), do: decided

  # The native side answers exactly once, even for dropped work.
  defp answer(ref) do
    receive do
      {:sconce, ^ref, answer} -> answer
    end
  end
end
