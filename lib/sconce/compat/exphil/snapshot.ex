defmodule Sconce.Compat.ExPhil.Snapshot do
  @moduledoc false
  # The memory of a play as one binary: the snapshot of its session, and what the player remembers beside it.
  #
  # The binary is checked as a whole before any part of the play changes.

  alias Sconce.{Action, Error, Session}
  alias Sconce.Compat.ExPhil.Play

  @magic "sconce.agent.1"
  @parts [:overall, :buttons, :main, :c, :shoulder]

  @doc "The binary of a play that has a policy."
  @spec take(Play.t()) :: {:ok, binary} | {:error, Error.t()}
  def take(%Play{player: player} = play) do
    with {:ok, session} <- Session.snapshot(player.session) do
      body =
        :erlang.term_to_binary(
          {session, {player.last, player.cooldown, player.airborne?, player.held},
           {play.frame, play.decided, play.ring}, pack(play.action), pack_sent(player.sent)}
        )

      {:ok, <<@magic, :erlang.crc32(body)::32, body::binary>>}
    end
  end

  defp pack(nil), do: nil
  defp pack(%Action{} = a), do: {a.choices, a.confidence, a.logits, a.frame}

  defp pack_sent(nil), do: nil
  defp pack_sent({_choices, action}), do: pack(action)

  @doc "The play with the memory of a binary. On an error the session is unchanged."
  @spec restore(Play.t(), binary) :: {:ok, Play.t()} | {:error, Error.t()}
  def restore(%Play{player: player} = play, blob) do
    with {:ok, {session, own, {frame, decided, ring}, action, sent}} <- read(blob),
         {:ok, action} <- unpack(play, action),
         {:ok, sent} <- unpack(play, sent),
         {:ok, player} <- player(player, own, sent),
         :ok <- counted(play, frame, decided, ring),
         :ok <- Session.restore(player.session, session) do
      {:ok, %{play | player: player, frame: frame, decided: decided, ring: ring, action: action}}
    end
  end

  defp read(<<@magic, sum::32, body::binary>>) do
    with true <- :erlang.crc32(body) == sum,
         {session, {_, _, _, _}, {_, _, _}, _action, _sent} = parts when is_binary(session) <-
           term(body) do
      {:ok, parts}
    else
      _other -> corrupt("its bytes were changed or cut off")
    end
  end

  defp read(_other), do: corrupt("not a snapshot of Sconce.Compat.ExPhil.Agent")

  defp term(body) do
    :erlang.binary_to_term(body, [:safe])
  rescue
    ArgumentError -> :error
  end

  defp player(player, {last, cooldown, airborne?, held}, sent)
       when (is_nil(last) or (is_integer(last) and abs(last) < 0x1000_0000_0000)) and
              cooldown in 0..600 and airborne? in [nil, true, false] and held in 0..600 do
    sent = if sent, do: {sent.choices, sent}

    if held == 0 or sent != nil,
      do:
        {:ok,
         %{player | last: last, cooldown: cooldown, airborne?: airborne?, held: held, sent: sent}},
      else: corrupt("a held action is missing")
  end

  defp player(_player, _own, _sent), do: corrupt("its counters")

  defp counted(play, frame, decided, ring)
       when (is_nil(frame) or is_integer(frame)) and is_integer(decided) and decided >= 0 and
              length(ring) >= 0 do
    spec = play.source.policy.spec
    known? = Enum.all?(ring, &match?({:ok, _labels}, labels(spec, &1)))
    if known? and length(ring) <= play.source.queue_depth, do: :ok, else: corrupt("its inputs")
  end

  defp counted(_play, _frame, _decided, _ring), do: corrupt("its counters")

  # The action is made anew of its labels, so that its parts fit each other.
  defp unpack(_play, nil), do: {:ok, nil}

  defp unpack(play, {choices, %{} = confidence, %{} = logits, frame})
       when is_map(choices) and is_integer(frame) do
    spec = play.source.policy.spec

    with {:ok, labels} <- labels(spec, choices),
         true <- Enum.all?(@parts, &is_float(confidence[&1])) and map_size(confidence) == 5,
         true <- logits?(spec, logits) do
      action = Action.new(spec, true, {labels, List.duplicate(0.0, 6), nil, frame})
      {:ok, %{action | confidence: confidence, logits: logits}}
    else
      _misfit -> corrupt("its action")
    end
  end

  defp unpack(_play, _other), do: corrupt("its action")

  defp labels(spec, choices) do
    with {:ok, labels} <- Action.labels(spec, :snapshot, choices),
         true <- fit?(spec.heads, labels),
         do: {:ok, labels},
         else: (_misfit -> :error)
  end

  defp fit?(heads, labels) do
    bounds = Enum.flat_map(heads, &bounds(&1.kind))

    length(bounds) == length(labels) and
      bounds |> Enum.zip(labels) |> Enum.all?(fn {most, label} -> label in 0..most end)
  end

  defp bounds({:bernoulli, bits}), do: List.duplicate(1, bits)
  defp bounds({:categorical, classes}), do: [classes - 1]

  defp logits?(spec, logits) do
    Enum.all?(spec.heads, fn %{name: name, kind: {_kind, count}} ->
      floats?(logits[name], count)
    end)
  end

  # `length/1` raises for other terms than proper lists, so that the guard fails.
  defp floats?(values, count) when length(values) == count, do: Enum.all?(values, &is_float/1)
  defp floats?(_values, _count), do: false

  defp corrupt(reason) do
    details = %{what: "snapshot", reason: reason}
    {:error, %Error{kind: :corrupt, op: :restore_state, details: details}}
  end
end
