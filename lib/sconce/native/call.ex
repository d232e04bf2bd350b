defmodule Sconce.Native.Call do
  @moduledoc false
  # Work of a native thread that the caller waits for: started for a reference, told in events,
  # answered once.

  alias Sconce.{Config, Error, Native}

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
      :ok -> await(ref)
      {:ok, task} -> hold(task, ref, tell)
      {:error, _error} = refused -> refused
    end
  end

  @doc "`run/2` of work whose threads give way, see `give_way/0`."
  @spec in_background(start, (term -> term)) :: {:ok, term} | {:error, Error.t()}
  def in_background(start, tell \\ &Function.identity/1) do
    with :ok <- give_way(), do: run(start, tell)
  end

  @doc """
  Has background threads that start from now on give way as the setting `:background` says. Raises `ArgumentError`
  for one that cannot be.
  """
  @spec give_way() :: :ok | {:error, Error.t()}
  def give_way, do: Native.background_set(Config.get(:background))

  @doc """
  An event of a task has been handled. The native side holds progress back from a process that handles it more slowly
  than it comes.
  """
  @spec heard(reference) :: :ok
  def heard(task), do: Native.task_heard(task)

  # A task ends with its last reference, which the stop holds until the answer is there.
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
        tell.(event)
        heard(task)
        await(task, ref, tell)

      {:sconce, ^ref, answer} ->
        answer
    end
  end

  # Work without a task tells of no events.
  defp await(ref) do
    receive do
      {:sconce, ^ref, answer} -> answer
    end
  end
end
