defmodule Sconce.Run.Callback do
  @moduledoc false
  # Calls the user's function between two steps, in a process of its own, so that the function may block, call the run
  # or crash.

  @typedoc "A callback in flight: its process, its monitor, and its number."
  @type asked :: {pid, reference, pos_integer} | nil

  @doc """
  Calls the callback in a new process. The caller receives `{:verdict, number, verdict}`, and `:DOWN` when the process
  ends. The next callback starts only after this one has answered, or was late and has been killed.
  """
  @spec ask((map -> term), pos_integer, map) :: asked
  def ask(callback, number, seen) do
    run = self()
    seen = %{step: seen[:step], validation: seen[:validation]}

    {pid, monitor} =
      spawn_monitor(fn -> send(run, {:verdict, number, verdict!(callback.(seen))}) end)

    {pid, monitor, number}
  end

  @doc "Kills a call whose answer is no longer wanted."
  @spec drop(asked) :: nil
  def drop(nil), do: nil

  def drop({pid, monitor, _number}) do
    Process.demonitor(monitor, [:flush])
    Process.exit(pid, :kill)
    nil
  end

  defp verdict!(:ok), do: %{}
  defp verdict!(:stop), do: %{stop: true}

  defp verdict!({:learning_rate, rate}) when is_number(rate) and rate >= 0 and rate <= 1000,
    do: %{learning_rate: rate * 1.0}

  defp verdict!(other) do
    raise ArgumentError,
          "callback: expected :ok, :stop or {:learning_rate, 0..1000}, got: #{inspect(other)}"
  end
end
