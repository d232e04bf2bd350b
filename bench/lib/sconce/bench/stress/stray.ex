defmodule Sconce.Bench.Stress.Stray do
  @moduledoc false
  # Calls, casts and messages that are unknown to a process of Sconce.

  # Timeout in milliseconds of a call that gets no answer.
  @wait_ms 50
  @requests [
              :odd,
              {:odd, 5},
              [:odd | :list],
              nil,
              "odd",
              {:stop, :odd},
              {:swap, 5},
              {:drain, :odd}
            ] ++
              [:statistics, :join]

  @doc "Sends all unknown calls, casts and messages to a process. Returns when no call is pending."
  @spec send_all(pid) :: :ok
  def send_all(pid) do
    calls = for request <- @requests, do: spawn_monitor(fn -> call(pid, request) end)
    for request <- @requests, do: GenServer.cast(pid, request)
    for message <- @requests ++ messages(), do: send(pid, message)
    for {_caller, monitor} <- calls, do: receive(do: ({:DOWN, ^monitor, _, _, _} -> :ok))
    :ok
  end

  defp call(pid, request) do
    GenServer.call(pid, request, @wait_ms)
  catch
    :exit, _reason -> :ok
  end

  # Messages of kinds that such a process expects, but with unknown references.
  defp messages do
    ref = make_ref()

    [
      {:sconce, ref, {:ok, true}},
      {:sconce, ref, {:error, :odd}},
      {:sconce, ref, {:event, %{event: "step"}}},
      {:late, ref},
      {:DOWN, ref, :process, self(), :odd},
      {ref, :odd}
    ]
  end
end
