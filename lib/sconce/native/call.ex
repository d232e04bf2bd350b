defmodule Sconce.Native.Call do
  @moduledoc false
  # Runs work on a native thread and waits for it. The native side sends messages with the reference of the call:
  # any number of events, then one answer.

  alias Sconce.{Config, Error, Native}

  @type start :: (reference -> :ok | {:ok, reference} | {:error, Error.t()})

  @type tell :: (term -> term) | (term, (() -> term) -> term)

  @doc """
  Starts work, passes its events to `tell`, and returns its answer, or the error of the start. A `tell` of two arguments
  also gets a function that stops the task.

  If `tell` raises, throws or exits, the task is stopped, and its remaining messages are removed from the mailbox.
  """
  @spec run(start, tell) :: {:ok, term} | {:error, Error.t()}
  def run(start, tell \\ &Function.identity/1) do
    ref = make_ref()

    case start.(ref) do
      :ok -> await(ref)
      {:ok, task} -> hold(task, ref, tell)
      {:error, _error} = refused -> refused
    end
  end

  @doc """
  Returns the answer of work that ran on this scheduler, or waits for that of work that `start` has `:queued`.
  """
  @spec either((reference -> :queued | answer)) :: answer when answer: term
  def either(start) do
    ref = make_ref()

    case start.(ref) do
      :queued -> await(ref)
      answer -> answer
    end
  end

  @doc "Like `run/2`, on background threads: see `give_way/0`."
  @spec in_background(start, tell) :: {:ok, term} | {:error, Error.t()}
  def in_background(start, tell \\ &Function.identity/1) do
    with :ok <- give_way(), do: run(start, tell)
  end

  @doc """
  Sets the priority of background threads that start from now on, by the setting `:background`. Raises
  `ArgumentError` if the setting is invalid.
  """
  @spec give_way() :: :ok | {:error, Error.t()}
  def give_way, do: Native.background_set(Config.get(:background))

  @doc """
  Like `either/1` for work that may also be a task of its own, on a background thread.
  """
  @spec anywhere((reference -> :queued | {:ok, reference} | answer)) :: answer when answer: term
  def anywhere(start) do
    ref = make_ref()

    with :ok <- give_way() do
      case start.(ref) do
        :queued -> await(ref)
        {:ok, task} when is_reference(task) -> hold(task, ref, &Function.identity/1)
        answer -> answer
      end
    end
  end

  @doc """
  Tells the native side that an event of a task was handled. The native side holds back progress events from a
  process that handles events more slowly than they are produced.
  """
  @spec heard(reference) :: :ok
  def heard(task), do: Native.task_heard(task)

  # The native side drops a task with its last reference. The call of `train_stop` keeps a reference until the answer
  # has arrived.
  defp hold(task, ref, tell) do
    answer = await(task, ref, tell)
    Native.train_stop(task)
    answer
  catch
    kind, reason ->
      Native.train_stop(task)
      await(task, ref, &Function.identity/1)
      :erlang.raise(kind, reason, __STACKTRACE__)
  end

  defp await(task, ref, tell) do
    receive do
      {:sconce, ^ref, {:event, event}} ->
        told(tell, event, task)
        heard(task)
        await(task, ref, tell)

      {:sconce, ^ref, answer} ->
        answer
    end
  end

  defp told(tell, event, _task) when is_function(tell, 1), do: tell.(event)
  defp told(tell, event, task), do: tell.(event, fn -> Native.train_stop(task) end)

  # Work without a task sends no events.
  defp await(ref) do
    receive do
      {:sconce, ^ref, answer} -> answer
    end
  end
end
