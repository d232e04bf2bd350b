defmodule Sconce.Trainer.Callback do
  @moduledoc false
  # The function that a run calls between two steps, in a process of its own: it may take its time, ask the run, and
  # fail.

  @typedoc "The process that is asked, its monitor, and the number of the question."
  @type asked :: {pid, reference, pos_integer} | nil

  @doc """
  Asks the callback what a run is to do. The calling process gets `{:verdict, number, verdict}`, and word
  of its end. A question follows the one before it when that is answered, or was late and is ended.
  """
  @spec ask((map -> term), pos_integer, map) :: asked
  def ask(callback, number, seen) do
    run = self()
    seen = %{step: seen[:step], validation: seen[:validation]}

    {pid, monitor} =
      spawn_monitor(fn -> send(run, {:verdict, number, verdict!(callback.(seen))}) end)

    {pid, monitor, number}
  end

  @doc "Ends one that is not waited for any more."
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
          "expected :ok, :stop or {:learning_rate, 0..1000} of the callback, got: #{inspect(other)}"
  end
end
