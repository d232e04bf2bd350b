defmodule Sconce.Bench.Attack.Servings do
  @moduledoc false
  # Items 9 and 10: unknown messages to servings, handles of another VM, and a policy too large for a lane.

  import Sconce.Bench.Attack, only: [answer: 1]
  import Sconce.Bench.Attack.Fixtures

  alias Sconce.Bench.{Attack, Stress.Stray}
  alias Sconce.{Policy, Serving, Session}

  def rows do
    [
      %Attack{
        item: 9,
        name: "unknown calls, casts and messages to a serving",
        attack: &stray/1,
        accept: :answered,
        seconds: nil
      },
      %Attack{
        item: 9,
        name: "a policy, a session and a serving of another VM",
        make: &other_vm/1,
        attack: &foreign/1
      },
      inline("Serving.start_link", &serving/1),
      inline("Session.open", &session/1)
    ]
  end

  defp stray(_dir) do
    Process.flag(:trap_exit, true)
    {:ok, serving} = Serving.start_link(policy: policy!())
    {:ok, session} = Serving.open(serving)
    Stray.send_all(serving)
    # Once the serving answers, it has read all earlier messages.
    acted = answer(fn -> Session.act(session, [0.0, 1.0], deadline_ms: 5_000) end)
    swapped = answer(fn -> Serving.swap(serving, policy!()) end)
    Session.close(session)
    Serving.stop(serving)
    for {label, answer} <- [act: acted, swap: swapped], do: {label, lives(answer)}
  end

  defp lives({:value, text}), do: {:value, text}
  defp lives(other), do: {:raw, "the serving has ended: #{inspect(other)}"}

  # The child VM does not know references of the VM that made the files.
  defp other_vm(dir) do
    policy = policy!()
    {:ok, session} = Session.open(policy)
    {:ok, serving} = Serving.start_link(policy: policy)
    {:ok, info} = Serving.info(serving)
    bytes = :erlang.term_to_binary({policy, session, info})
    Session.close(session)
    Serving.stop(serving)
    File.write!(Path.join(dir, "handles.etf"), bytes)
  end

  defp foreign(dir) do
    {policy, session, serving} =
      dir |> Path.join("handles.etf") |> File.read!() |> :erlang.binary_to_term()

    frame = [0.0, 1.0]

    for {name, call} <- [
          info: fn -> Policy.info(policy) end,
          weights: fn -> Policy.weights(policy) end,
          weight: fn -> Policy.weight(policy, "w") end,
          save: fn -> Policy.save(policy, Path.join(dir, "saved")) end,
          forward: fn -> Policy.forward(policy, [[frame]]) end,
          open: fn -> Session.open(policy) end,
          start_link: fn -> started(policy) end,
          act: fn -> Session.act(session, frame, deadline_ms: 100) end,
          act_many: fn -> [{session, frame}] |> Session.act_many() |> hd() end,
          reset: fn -> Session.reset(session) end,
          snapshot: fn -> Session.snapshot(session) end,
          close: fn -> Session.close(session) end,
          served: fn -> Serving.open(serving) end,
          served_forward: fn -> Serving.forward(serving, [[frame]]) end,
          stats: fn -> Serving.stats(serving) end
        ],
        do: {name, answer(call)}
  end

  defp started(policy) do
    Process.flag(:trap_exit, true)
    Serving.start_link(policy: policy)
  end

  # 10. A policy of 30 million weights needs several milliseconds per decision.

  defp inline(name, open) do
    %Attack{
      item: 10,
      name: "lane: :inline for a policy of 30 million weights, #{name}",
      attack: fn _dir -> [{name, warned(open)}] end,
      accept: :answered,
      seconds: nil,
      mb: nil
    }
  end

  defp warned(open) do
    :ok = :logger.add_handler(__MODULE__, __MODULE__, %{config: %{pid: self()}})
    policy = policy!(hidden_sizes: [5_000, 5_000])
    answer = answer(fn -> open.(policy) end)

    receive do
      {:logged, text} -> {:refused, "warned: #{text}"}
    after
      200 ->
        if match?({:value, _}, answer),
          do: {:raw, "accepted without a warning: #{elem(answer, 1)}"},
          else: answer
    end
  end

  @doc false
  # Callback of a `:logger` handler.
  def log(%{level: level, msg: message}, %{config: %{pid: pid}}) when level in [:warning, :error],
    do: send(pid, {:logged, inspect(message)})

  def log(_event, _config), do: :ok

  defp serving(policy) do
    Process.flag(:trap_exit, true)

    with {:ok, serving} <- Serving.start_link(policy: policy, lane: :inline),
         do: Serving.stop(serving)
  end

  defp session(policy) do
    with {:ok, session} <- Session.open(policy, lane: :inline) do
      # The cost is known after the first decisions.
      acted = for _ <- 1..5, do: Session.act(session, [0.0, 1.0])
      Session.close(session)
      List.last(acted)
    end
  end
end
