defmodule Sconce.Bot.Reader do
  @moduledoc false
  # The process of a bridge: it reads an event, waits for the bot's answer, sends it, and reads the next one. So a library
  # that blocks does not block the bot, and messages to a bridge do not mix with those to the bot.
  #
  # The reader ends with the reason for which its bridge closed. It ends when the bot does.

  # Longest wait for an event before the reader looks for a request to stop.
  @wait_ms 20

  @doc "Starts a reader for the calling bot, which gets `{:reader, pid, {event, came, took_us}}` and answers by `reply/2`."
  @spec start_link(module, keyword, keyword) :: pid
  def start_link(module, opts, of_bot) do
    bot = self()
    spawn_link(fn -> connect(bot, module, opts, of_bot) end)
  end

  @doc "Gives the answer to the event: what `Sconce.Bot.Turn.event/3` returned."
  @spec reply(pid, term) :: term
  def reply(reader, reply), do: send(reader, {:sconce_reply, reply})

  @doc "Stops a reader, which sends `last` before, if it is not nil. A reader that does not stop in time is killed."
  @spec stop(pid, term, timeout) :: :ok
  def stop(reader, last, timeout_ms) do
    monitor = Process.monitor(reader)
    send(reader, {:sconce_stop, last})

    receive do
      {:DOWN, ^monitor, :process, ^reader, _reason} -> :ok
    after
      timeout_ms ->
        Process.unlink(reader)
        Process.exit(reader, :kill)
        :ok
    end
  end

  defp connect(bot, module, opts, of_bot) do
    case guarded(fn -> module.connect(options(module, opts, of_bot)) end) do
      {:ok, {:ok, bridge}} ->
        send(bot, {:reader, self(), :connected})
        loop(%{bot: bot, module: module, bridge: bridge, took: nil})

      {:ok, {:error, reason}} ->
        exit({:closed, reason})

      {:ok, other} ->
        exit({:closed, {:bad_return, other}})

      {:error, reason} ->
        exit({:closed, reason})
    end
  end

  defp options(module, opts, of_bot) do
    if function_exported?(module, :options, 2), do: module.options(opts, of_bot), else: opts
  end

  defp loop(%{module: module, bridge: bridge} = state) do
    stopped(state, 0)

    case guarded(fn -> module.next(bridge, @wait_ms) end) do
      {:ok, {:none, bridge}} ->
        loop(%{state | bridge: bridge})

      {:ok, {{kind, _} = event, bridge}} when kind in [:frame, :menu, :over] ->
        came = System.monotonic_time()
        send(state.bot, {:reader, self(), {event, came, state.took}})
        answered(%{state | bridge: bridge, took: nil}, came)

      {:ok, {{:closed, reason}, bridge}} ->
        closed(%{state | bridge: bridge}, reason)

      {:ok, other} ->
        closed(state, {:bad_return, other})

      {:error, reason} ->
        closed(state, reason)
    end
  end

  defp answered(state, came) do
    receive do
      {:sconce_reply, :none} ->
        loop(state)

      {:sconce_reply, {kind, input}} ->
        state = put(state, input)
        past = System.convert_time_unit(System.monotonic_time() - came, :native, :microsecond)
        loop(%{state | took: if(kind == :input, do: past)})

      {:sconce_stop, last} ->
        stopping(state, last)
    end
  end

  defp stopped(state, timeout_ms) do
    receive do
      {:sconce_stop, last} -> stopping(state, last)
    after
      timeout_ms -> :ok
    end
  end

  @spec stopping(map, term) :: no_return
  defp stopping(state, last) do
    if last, do: guarded(fn -> state.module.put(state.bridge, last) end)
    disconnect(state)
    exit(:normal)
  end

  defp put(%{module: module, bridge: bridge} = state, input) do
    case guarded(fn -> module.put(bridge, input) end) do
      {:ok, {:ok, bridge}} -> %{state | bridge: bridge}
      {:ok, {:error, reason}} -> closed(state, reason)
      {:ok, other} -> closed(state, {:bad_return, other})
      {:error, reason} -> closed(state, reason)
    end
  end

  @spec closed(map, term) :: no_return
  defp closed(state, reason) do
    disconnect(state)
    exit({:closed, reason})
  end

  defp disconnect(%{module: module, bridge: bridge}),
    do: guarded(fn -> module.disconnect(bridge) end)

  @doc "The result of a function of the app, or why it has none."
  @spec guarded((() -> result)) :: {:ok, result} | {:error, term} when result: term
  def guarded(fun) do
    {:ok, fun.()}
  rescue
    error -> {:error, {error.__struct__, Exception.message(error)}}
  catch
    kind, reason -> {:error, {kind, reason}}
  end
end
