defmodule Sconce.Serving.Process do
  @moduledoc false
  # The process of a `Sconce.Serving`: starts the native threads, swaps weights, drains, reports statistics, and ends the
  # threads with itself. Requests do not pass through it.

  use Sconce.Server

  alias Sconce.{Device, Error, Events, Native, Policy, Serving, Session}
  alias Sconce.Native.Call
  alias Sconce.Serving.Events, as: Told
  alias Sconce.Serving.{Group, Lookup, Objective, Sender}
  alias Sconce.Session.Formats

  @rejoin_ms 20

  @impl true
  def init(options) do
    sender = Sender.start_link()

    with {:ok, policy} <-
           Policy.Placement.to(options[:policy], options[:device], options[:pressure]),
         {:ok, weights} <- Formats.fastest(policy, options[:weights], options[:tuner]),
         fixed = [policy: policy, device: policy.device, weights: weights],
         options = Keyword.merge(options, fixed),
         native = to_native(options),
         {:ok, ref} <- Call.run(&Native.serving_start(&1, policy.ref, native, sender)),
         :ok <- Sender.send_of(sender, ref),
         {:ok, info} <- Native.serving_info(ref) do
      objective = Objective.new(ref, options)
      options = Keyword.put(options, :gate, objective && objective.gate)
      serving = new(ref, options, info)
      Lookup.register(serving)
      scope = Group.join(serving.group, self())
      state = %{serving: serving, options: options, scope: scope, drain: nil, drains: %{}}
      {:ok, Map.put(state, :objective, Objective.later(objective)), {:continue, :telemetry}}
    else
      {:error, error} -> {:stop, error}
    end
  end

  defp to_native(options) do
    options
    |> Keyword.take([:max_batch, :max_queue, :workers, :weights, :lane])
    |> Keyword.update!(:weights, &Session.format/1)
    |> Keyword.update!(:lane, &if(&1 != :auto, do: &1))
    |> Map.new()
  end

  defp new(ref, options, info) do
    %Serving{
      pid: self(),
      name: options[:name],
      group: options[:group],
      ref: ref,
      policy: options[:policy],
      max_batch: options[:max_batch],
      max_queue: options[:max_queue],
      workers: options[:workers],
      weights: Session.kept(info.encoding),
      lane: if(info.lane == "inline", do: :inline, else: :worker),
      path: if(info.packed, do: :packed, else: :core),
      step_us: info.step_us,
      device: options[:device],
      gate: options[:gate]
    }
  end

  # Frees the previous weights, which may be on a card. Otherwise the weights stay until the next garbage
  # collection.
  @impl true
  def handle_continue(:forget, state) do
    :erlang.garbage_collect()
    {:noreply, state}
  end

  def handle_continue(:telemetry, state) do
    telemetry? = Events.telemetry?()
    if telemetry?, do: later(state)
    {:noreply, Map.put(state, :telemetry?, telemetry?)}
  end

  # The message carries the handle, so that a message from another sender does not start a second timer.
  defp later(%{serving: %{ref: ref}} = state),
    do: Process.send_after(self(), {:statistics, ref}, state.options[:telemetry_ms])

  @impl true
  def handle_call(
        {:swap, %Policy{device: %Device{}} = policy},
        _from,
        %{serving: serving} = state
      ) do
    # The new weights may not be packable although the previous ones were.
    with {:ok, policy} <- Policy.to(policy, serving.device),
         {:ok, true} <- Call.run(&Native.serving_swap(serving.ref, &1, policy.ref)),
         {:ok, info} <- Native.serving_info(serving.ref) do
      options = Keyword.replace!(state.options, :policy, policy)
      serving = new(serving.ref, options, info)
      Lookup.update(serving)
      tell(state, :swap, %{})
      {:reply, :ok, %{state | serving: serving, options: options}, {:continue, :forget}}
    else
      error -> {:reply, error, state}
    end
  end

  def handle_call({:drain, timeout}, from, state)
      when timeout == :infinity or (is_integer(timeout) and timeout >= 0) do
    Group.leave(state.serving.group, self())
    state = drain_once(state)
    ref = make_ref()
    start = System.monotonic_time()
    if timeout != :infinity, do: Process.send_after(self(), {:late, ref}, timeout)
    {:noreply, put_in(%{state | scope: nil}, [:drains, ref], {from, timeout, start})}
  end

  def handle_call({:limit, max_batch}, _from, %{serving: serving} = state)
      when is_integer(max_batch) and max_batch > 0 do
    case Native.serving_limit(serving.ref, max_batch) do
      {:ok, true} ->
        {:reply, :ok, Map.update!(state, :objective, &Objective.most(&1, max_batch))}

      error ->
        {:reply, error, state}
    end
  end

  @impl true
  def handle_info({:sconce, ref, {:ok, true}}, %{drain: ref} = state) do
    callers = Map.keys(state.drains)
    {:noreply, Enum.reduce(callers, %{state | drain: nil}, &drained(&2, &1, :ok))}
  end

  def handle_info({:late, ref}, state), do: {:noreply, drained(state, ref, :late)}

  def handle_info({:statistics, ref}, %{serving: %{ref: ref} = serving} = state) do
    with {:ok, news} <- Native.serving_stats(serving.ref, true) do
      tell(state, :statistics, Told.flat(news))
    end

    later(state)
    {:noreply, state}
  end

  def handle_info({:objective, ref}, %{objective: %Objective{gate: %{serving: ref}}} = state),
    do: {:noreply, Map.update!(state, :objective, &(&1 |> Objective.look() |> Objective.later()))}

  # The scope of the groups has crashed and lost its members. Joining is retried until the scope runs again.
  def handle_info({:DOWN, scope, :process, _scope, _reason}, %{scope: scope} = state) do
    Process.send_after(self(), {:join, scope}, @rejoin_ms)
    {:noreply, state}
  end

  def handle_info({:join, scope}, %{scope: scope, serving: serving} = state) when scope != nil,
    do: {:noreply, %{state | scope: Group.join(serving.group, self())}}

  # The native side drains once, for any number of waiting callers.
  defp drain_once(%{drain: nil} = state) do
    ref = make_ref()
    :ok = Native.serving_drain(state.serving.ref, ref)
    %{state | drain: ref}
  end

  defp drain_once(state), do: state

  # Answers the caller of a drain once, with `:ok` or with a late error, whichever comes first.
  defp drained(state, ref, how) do
    case pop_in(state.drains[ref]) do
      {nil, state} ->
        state

      {{from, timeout, start}, state} ->
        if how == :ok, do: tell(state, :drained, %{seconds: seconds_since(start)})
        answer = if how == :ok, do: :ok, else: {:error, Error.late(:drain, timeout, start)}
        GenServer.reply(from, answer)
        state
    end
  end

  defp seconds_since(start) do
    System.convert_time_unit(System.monotonic_time() - start, :native, :microsecond) / 1.0e6
  end

  @impl true
  def terminate(_reason, state) do
    # Otherwise a caller of `stop/1` could still find the serving in its group.
    if state.serving.group != nil, do: Group.leave(state.serving.group, self())
    Native.serving_stop(state.serving.ref)
    tell(state, :stop, %{})
  end

  defp tell(%{telemetry?: true, serving: serving}, name, measurements),
    do: Told.execute(name, measurements, %{serving: serving.pid, name: serving.name})

  defp tell(_state, _name, _measurements), do: :ok
end
