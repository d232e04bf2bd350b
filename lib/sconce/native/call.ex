defmodule Sconce.Native.Call do
  @moduledoc false
  # Work of a native thread that the caller waits for: started for a reference, told in events,
  # answered once.

  alias Sconce.{Error, Native}

  @type start :: (reference -> :ok | {:ok, reference} | {:error, Error.t()})

  @doc """
  Starts work, passes its events to `tell`, and returns its answer or the error of the start.

  Work that gave a task is stopped where `tell` raises, throws or exits; what it had still to say is
  taken out of the mailbox first.
  """
  @spec run(start, (term -> term)) :: {:ok, term} | {:error, Error.t()}
  def run(start, tell \\ &Function.identity/1) do
    ref = make_ref()

    case start.(ref) do
      :ok -> await(ref, tell)
      {:ok, task} -> hold(task, ref, tell)
      {:error, _error} = refused -> refused
    end
  end

  # A task ends with its last reference, which the stop holds until the answer is there.
  defp hold(task, ref, tell) do
    answer = await(ref, tell)
    Native.train_stop(task)
    answer
  catch
    kind, reason ->
      Native.train_stop(task)
      await(ref, &Function.identity/1)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  defp await(ref, tell) do
    receive do
      {:sconce, ^ref, {:event, event}} ->
        tell.(event)
        await(ref, tell)

      {:sconce, ^ref, answer} ->
        answer
    end
  end
end
