defmodule Sconce.Dagger.Expert do
  @moduledoc false
  # Asks an expert about the frames of a game: a policy by a session, or a function or a module of the app.

  alias Sconce.Dagger.Row
  alias Sconce.{Error, Game, Options, Policy, Session}
  alias Sconce.Policy.Spec

  @expected "a Sconce.Policy, a function of one or two arguments, or a module with answer/2"

  @type t :: %{session: Session.t(), depth: pos_integer, delay: non_neg_integer} | function

  @doc "The game of a policy, and Melee for other experts."
  @spec game!(term) :: term
  def game!(%Policy{spec: %Spec{} = spec}) do
    game(spec) ||
      raise ArgumentError, "expert: expected a policy of Melee or of a Sconce.Game, got vectors"
  end

  def game!(_other), do: :melee

  defp game(%Spec{embedding: {:melee, _options}}), do: :melee
  defp game(%Spec{embedding: {%Game{} = game, _options}}), do: game
  defp game(_vectors), do: nil

  @spec open(term, keyword) :: {:ok, t} | {:error, Error.t()}
  def open(%Policy{} = policy, opts) do
    with {:ok, session} <- Session.open(policy, opts), {:ok, info} <- Session.info(session) do
      {_name, options} = session.spec.embedding
      {:ok, %{session: session, depth: options[:queue_depth] || 1, delay: info.frame_delay || 0}}
    end
  end

  def open(expert, _opts) when is_function(expert, 1),
    do: {:ok, fn frame, memory -> {expert.(frame), memory} end}

  def open(expert, _opts) when is_function(expert, 2), do: {:ok, expert}

  def open(expert, _opts) when is_atom(expert) and expert not in [nil, true, false] do
    (Code.ensure_loaded?(expert) and function_exported?(expert, :answer, 2)) ||
      Options.argument!("expert", expert, @expected)

    {:ok, &expert.answer/2}
  end

  def open(other, _opts), do: Options.argument!("expert", other, @expected)

  @spec close(t) :: :ok
  def close(%{session: session}), do: Session.close(session)
  def close(_function), do: :ok

  @doc "The answers to the packed rows of a game, in order."
  @spec answers(t, Row.game(), [binary], String.t()) :: {:ok, [term]} | {:error, Error.t()}
  def answers(%{session: session} = expert, game, rows, at) do
    with :ok <- fits(session.spec, game), :ok <- Session.reset(session) do
      rows
      |> Enum.zip(queues(expert, game, rows))
      |> each(at, nil, fn {row, queue}, nil ->
        with {:ok, action} <- Session.act(session, row, queue), do: {:ok, action, nil}
      end)
    end
  end

  def answers(expert, game, rows, at) do
    each(rows, at, nil, fn row, memory ->
      with {:ok, frame} <- Row.unpack(game, row), do: said(expert.(frame, memory))
    end)
  end

  defp said({answer, memory}), do: {:ok, answer, memory}

  defp said(other) do
    details = %{what: "answer", expected: "{answer, memory}", got: inspect(other, limit: 5)}
    {:error, %Error{kind: :mismatch, op: :relabel, details: details}}
  end

  defp each(frames, at, memory, ask) do
    frames
    |> Stream.with_index()
    |> Enum.reduce_while({[], memory}, fn {frame, t}, {before, memory} ->
      case ask.(frame, memory) do
        {:ok, answer, memory} -> {:cont, {[answer | before], memory}}
        {:error, error} -> {:halt, {:error, Row.located(error, "#{at}frame #{t}, ")}}
      end
    end)
    |> case do
      {:error, _error} = refused -> refused
      {answers, _memory} -> {:ok, Enum.reverse(answers)}
    end
  end

  defp fits(spec, game) do
    if game(spec) == game and Spec.reads_inputs?(spec) do
      :ok
    else
      details = %{what: "expert", expected: "a policy of this game and its input", got: "another"}
      {:error, %Error{kind: :mismatch, op: :relabel, details: details}}
    end
  end

  # The options of each decision: with a queue the inputs that were played, newest first. The newest ones are shown by
  # later frames.
  defp queues(%{depth: 1}, _game, rows), do: Enum.map(rows, fn _row -> [] end)

  defp queues(%{session: session, depth: depth, delay: delay}, game, rows) do
    played = rows |> Enum.map(&Row.previous(game, &1, session.spec.heads)) |> List.to_tuple()
    at = fn t -> if t in 0..(tuple_size(played) - 1)//1, do: elem(played, t) end

    for t <- 0..(tuple_size(played) - 1)//1,
        do: [queue: for(k <- 0..(depth - 1), do: at.(t + delay - k))]
  end
end
