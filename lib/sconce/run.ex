defmodule Sconce.Run do
  @moduledoc false
  # The process of native work that takes long: starts its thread, forwards its events, keeps its result, and stops it
  # with its state saved when this process ends. `Sconce.Trainer` and `Sconce.PPO` are the nouns that users start.

  use Sconce.Server, restart: :temporary

  require Logger

  alias Sconce.{Device, Error, Events, Native, Options, Text}
  alias Sconce.Monitor.RunFile
  alias Sconce.Native.Call
  alias Sconce.Run.{Again, Callback, Keeper}

  # Milliseconds for which a terminating process waits for the native thread to save its state.
  @farewell_ms 20_000
  # Milliseconds for which a supervisor waits for a run to end, more than `@farewell_ms`.
  @shutdown_ms 30_000
  # Milliseconds between signs of life in the file of the run.
  @beat_ms 1_000
  # Milliseconds for which a call waits for a run that is busy in its progress function.
  @call_ms 5_000

  @enforce_keys [:settings, :kind, :tag, :start, :named, :complete]
  defstruct @enforce_keys ++
              [early: [], shown: [], telemetry?: false, begin: nil, pressure: nil, again: nil]

  @typedoc """
  The description of a run.

  | key | content |
  |---|---|
  | `settings` | a struct or a map with `out` and `progress`, and perhaps `callback` |
  | `kind` | the kind of the run, for people that watch it |
  | `tag` | the tag of messages |
  | `start` | starts the native work, given a reference; returns its task and a function that runs once it is over |
  | `named` | gives an event its name as an atom |
  | `complete` | makes the report of a native report |
  | `early` | names of the events that late subscribers receive |
  | `shown` | names of the events whose latest one `info/1` returns |
  | `begin` | runs once in the new process |
  | `pressure` | a `Sconce.Pressure`, or nil for a run that never starts again |
  | `again` | gives another `start`, from the last saved state if the first argument is true, on the device of the second one if it is not nil |
  """
  @type t :: %__MODULE__{}

  @doc "Returns the specification of a child of a supervisor; `noun` is the module that users start."
  @spec child_spec(module, keyword) :: Supervisor.child_spec()
  def child_spec(noun, opts) do
    start = {noun, :start_link, [opts]}
    %{id: noun, start: start, restart: :temporary, shutdown: @shutdown_ms}
  end

  @doc "Starts the process of a run; `opts` are those of `GenServer`."
  @spec start_link(t, keyword) :: GenServer.on_start()
  def start_link(%__MODULE__{} = run, opts) do
    # The result is ignored: if the native library is missing, `await/2` returns the error.
    _ = Call.give_way()
    GenServer.start_link(__MODULE__, run, opts)
  end

  @doc "Waits for the result of a run. Errors of this and the next functions have the operation `op`."
  def await(run, timeout, op) do
    id = make_ref()
    answer = call(run, {:await, id}, op, Options.timeout!(timeout))

    # Drops the request, which the run would keep until its end: a caller may poll every few milliseconds.
    with {:error, %Error{kind: :deadline}} <- answer, do: GenServer.cast(run, {:given_up, id})
    answer
  end

  @doc "Sends the events of a run to the caller."
  def subscribe(run, op), do: call(run, {:subscribe, self()}, op)

  @doc "Stops a run."
  def stop(run, op), do: call(run, :stop, op)

  @doc "Returns the status of a run, its folder and its latest events."
  def info(run, op), do: call(run, :info, op)

  defp call(run, request, op, timeout \\ @call_ms) do
    Options.server?(run) || Options.argument!("run", run, "the pid or the name of a run")
    GenServer.call(run, request, timeout)
  catch
    :exit, {:timeout, _call} ->
      details = %{what: "the answer of the run", deadline_ms: timeout}
      {:error, %Error{kind: :deadline, op: op, details: details}}

    :exit, _gone ->
      {:error, %Error{kind: :cancelled, op: op}}
  end

  @impl true
  def init(run) do
    # Traps exits, so that `terminate/2` runs when the caller ends.
    Process.flag(:trap_exit, true)
    Keeper.keep(self())
    if run.begin, do: run.begin.()

    state = %{
      run: run,
      settings: run.settings,
      ref: make_ref(),
      telemetry?: run.telemetry? and Events.telemetry?(),
      task: nil,
      over: nil,
      file: RunFile.open(run.kind, run.settings.out),
      seen: %{},
      subscribers: %{},
      waiting: %{},
      asked: nil,
      pressure: run.pressure,
      begun?: false,
      stopping?: false,
      retry: nil,
      result: nil
    }

    Process.send_after(self(), :beat, @beat_ms)
    {:ok, state, {:continue, :start}}
  end

  @impl true
  def handle_continue(:start, %{run: run} = state), do: {:noreply, start(state, run.start)}

  defp start(%{ref: ref} = state, start) do
    case start.(ref) do
      {:ok, task} -> %{state | task: task}
      {:ok, task, over} -> %{state | task: task, over: over}
      {:error, error} -> ended(state, {:error, error})
    end
  end

  @impl true
  def handle_call({:await, id}, {pid, _tag} = from, %{result: nil} = state) do
    waiting = Map.put(state.waiting, id, {from, Process.monitor(pid)})
    {:noreply, %{state | waiting: waiting}}
  end

  def handle_call({:await, _id}, _from, state), do: {:reply, state.result, state}
  def handle_call(:info, _from, state), do: {:reply, summary(state), state}

  def handle_call(:stop, _from, state), do: {:reply, :ok, stopped(state)}

  def handle_call({:subscribe, pid}, _from, state) when is_pid(pid) do
    for name <- state.run.early, told = state.seen[name], do: tell(state, pid, told)
    if state.result, do: tell(state, pid, %{event: :done, result: state.result})
    monitor = state.subscribers[pid] || Process.monitor(pid)
    {:reply, :ok, put_in(state.subscribers[pid], monitor)}
  end

  @impl true
  def handle_cast({:given_up, id}, state) do
    {given_up, waiting} = Map.pop(state.waiting, id)
    with {_from, monitor} <- given_up, do: Process.demonitor(monitor, [:flush])
    {:noreply, %{state | waiting: waiting}}
  end

  @impl true
  def handle_info({:sconce, ref, {:event, %{event: "asking"} = asked}}, %{ref: ref} = state) do
    if state.task, do: Call.heard(state.task)
    {:noreply, ask(state, asked.number)}
  end

  def handle_info({:sconce, ref, {:event, event}}, %{ref: ref} = state) do
    event = state.run.named.(event)

    state =
      if event.event == :callback_late,
        do: %{state | asked: Callback.drop(state.asked)},
        else: state

    decided = Again.native(state.pressure, event)
    state = %{told(state, event) | begun?: true}
    state = if decided, do: told(state, decided), else: state
    if state.task, do: Call.heard(state.task)
    {:noreply, state}
  end

  def handle_info({:sconce, ref, answer}, %{ref: ref} = state),
    do: {:noreply, ended(state, reported(answer, state))}

  def handle_info({:again, ref}, %{retry: {_error, again, _timer}, ref: ref} = state),
    do: {:noreply, start(%{state | retry: nil}, again.())}

  def handle_info(:beat, %{result: nil} = state) do
    {asked, file} = RunFile.beat(state.file)
    state = if asked == :stop, do: stopped(state), else: state
    Process.send_after(self(), :beat, @beat_ms)
    {:noreply, %{state | file: file}}
  end

  def handle_info(:beat, state), do: {:noreply, state}

  def handle_info({:verdict, number, verdict}, state),
    do: {:noreply, answer(state, number, verdict)}

  def handle_info({:DOWN, monitor, :process, _, reason}, %{asked: {_, monitor, number}} = state) do
    state = if reason == :normal, do: state, else: give_up(state, number, reason)
    {:noreply, %{state | asked: nil}}
  end

  def handle_info({:DOWN, monitor, :process, pid, _reason}, state) do
    waiting =
      for {id, {_from, of} = one} <- state.waiting, of != monitor, into: %{}, do: {id, one}

    {:noreply, %{state | waiting: waiting, subscribers: Map.delete(state.subscribers, pid)}}
  end

  @impl true
  def terminate(_reason, %{result: nil, task: task, ref: ref} = state) when task != nil do
    Native.train_stop(task)

    receive do
      {:sconce, ^ref, {kind, _answer}} when kind in [:ok, :error] -> :ok
    after
      @farewell_ms -> :ok
    end

    if state.over, do: state.over.()
    RunFile.stopped(state.file)
  end

  def terminate(_reason, %{retry: {_error, _again, _timer}} = state),
    do: RunFile.stopped(state.file)

  def terminate(_reason, _state), do: :ok

  # Shortens the state in crash reports and `:sys.get_status/1`. Only later versions of Elixir have this callback.
  if {:format_status, 1} in GenServer.behaviour_info(:callbacks), do: @impl(true)
  @doc false
  def format_status(status), do: Map.replace_lazy(status, :state, &shown/1)

  defp shown(state),
    do:
      state |> summary() |> Map.take([:status, :out]) |> Map.put(:step, state.seen[:step][:step])

  # A run between two attempts ends with the error of the first one.
  defp stopped(%{retry: {error, _again, timer}} = state) do
    Process.cancel_timer(timer)
    finish(%{state | retry: nil}, {:error, error})
  end

  defp stopped(state) do
    if state.task, do: Native.train_stop(state.task)
    %{state | stopping?: true}
  end

  # The table of `Sconce.Pressure` decides whether an error is the end.
  defp ended(%{stopping?: false} = state, {:error, %Error{} = error}) do
    case Again.decide(state.pressure, error, state.seen, state.begun?) do
      {:over, event, pressure} ->
        state = %{state | pressure: pressure}
        finish(if(event, do: told(state, event), else: state), {:error, error})

      {:again, wait_ms, saved?, device, event, pressure} ->
        state = told(%{state | pressure: pressure}, event)
        if state.over, do: state.over.()
        # Messages of the attempt that has failed carry the old reference.
        ref = make_ref()
        timer = Process.send_after(self(), {:again, ref}, wait_ms)
        again = fn -> state.run.again.(saved?, device) end
        retry = {error, again, timer}
        # A question of that attempt has no answer any more.
        asked = Callback.drop(state.asked)
        %{state | ref: ref, task: nil, over: nil, asked: asked, begun?: false, retry: retry}
    end
  end

  defp ended(state, result), do: finish(state, result)

  defp told(state, event) do
    state = %{state | file: RunFile.event(state.file, event)}
    publish(put_in(state.seen[event.event], event), event)
  end

  defp finish(state, result) do
    result = with {:error, error} <- result, do: {:error, Device.elsewhere(error)}
    if state.over, do: state.over.()
    done = %{event: :done, result: result}
    # Before the answers: a script may end with one.
    state = %{state | file: RunFile.event(state.file, done)}

    for {_id, {from, monitor}} <- state.waiting do
      Process.demonitor(monitor, [:flush])
      GenServer.reply(from, result)
    end

    state = publish(%{state | asked: Callback.drop(state.asked)}, done)
    # Without the handle `task`, the native side frees its memory.
    %{state | result: result, waiting: %{}, task: nil}
  end

  defp reported({:ok, report}, state), do: {:ok, state.run.complete.(report)}

  # If no state could be saved, the error carries the report.
  defp reported({:error, %Error{details: %{report: report}} = error}, state),
    do: {:error, put_in(error.details.report, state.run.complete.(report))}

  defp reported(error, _state), do: error

  defp publish(state, event) do
    for {pid, _monitor} <- state.subscribers, do: tell(state, pid, event)
    # Decisions have telemetry in every kind of run.
    telemetry? = state.telemetry? or event.event == :pressure
    if telemetry?, do: Events.execute(event, %{run: self(), out: state.settings.out})
    show(state, state.settings.progress, event)
  end

  defp tell(state, pid, event), do: send(pid, {state.run.tag, self(), event})

  defp show(state, nil, _event), do: state

  # A progress function that crashes is dropped, and the run continues.
  defp show(state, progress, event) do
    progress.(event)
    state
  catch
    kind, reason ->
      what = Exception.format_banner(kind, reason, __STACKTRACE__)
      Logger.warning("progress function dropped: #{Text.lines(what)}")
      put_in(state.settings.progress, nil)
  end

  # Without a callback, answers the run with no change.
  defp ask(%{settings: %{callback: callback}} = state, number) when callback != nil,
    do: %{state | asked: Callback.ask(callback, number, state.seen)}

  defp ask(state, number), do: answer(state, number, %{})

  defp answer(%{task: nil} = state, _number, _verdict), do: state

  defp answer(state, number, verdict) do
    Native.train_answer(state.task, number, verdict)
    state
  end

  # A callback that crashes is dropped, and the run continues.
  defp give_up(state, number, reason) do
    Logger.warning("callback dropped: #{Text.lines(Exception.format_exit(reason))}")
    put_in(answer(state, number, %{}).settings.callback, nil)
  end

  defp summary(%{result: result, settings: settings, seen: seen, run: run}) do
    status =
      case result do
        nil -> :running
        {:ok, _report} -> :done
        {:error, _error} -> :failed
      end

    for name <- run.shown, into: %{status: status, out: settings.out}, do: {name, seen[name]}
  end
end
