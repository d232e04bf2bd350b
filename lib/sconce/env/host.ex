defmodule Sconce.Env.Host do
  @moduledoc false
  # A process that steps some environments of a module for native threads. A thread sends
  # `{:sconce_host, number, request}`, and waits for `Sconce.Native.host_answer/3`. The process ends with its owner.

  use Sconce.Server, restart: :temporary

  alias Sconce.Env.Each
  alias Sconce.{Native, Text}

  require Logger

  # Characters of an error that a run shows.
  @most 1_500

  @doc "Starts a process for `owner`; `masks?` is whether there are masks. It waits for the handle, `{:host, handle}`."
  @spec start(module, term, boolean, pid) :: {:ok, pid}
  def start(module, options, masks?, owner) do
    with {:ok, host} <- GenServer.start(__MODULE__, {module, options, masks?}) do
      spawn(fn -> guard(host, owner) end)
      {:ok, host}
    end
  end

  # Ends the process with its owner, also while a world hangs.
  defp guard(host, owner) do
    {ending, over} = {Process.monitor(owner), Process.monitor(host)}

    receive do
      {:DOWN, ^ending, _, _, _} -> Process.exit(host, :kill)
      {:DOWN, ^over, _, _, _} -> :ok
    end
  end

  @impl true
  def init({module, options, masks?}) do
    {module, options} =
      if function_exported?(module, :step, 3),
        do: {module, options},
        else: {Each, {module, options}}

    {:ok,
     %{
       module: module,
       options: options,
       masks?: masks?,
       handle: nil,
       groups: %{},
       counts: %{}
     }}
  end

  @impl true
  def handle_info({:host, handle}, state), do: {:noreply, %{state | handle: handle}}

  def handle_info({:sconce_host, 0, {:close, group}}, state) do
    {own, groups} = Map.pop(state.groups, group)
    if own != nil and function_exported?(state.module, :close, 1), do: close(state.module, own)
    {:noreply, %{state | groups: groups, counts: Map.delete(state.counts, group)}}
  end

  def handle_info({:sconce_host, number, request}, state) do
    {answer, state} = answer(request, state)
    Native.host_answer(state.handle, number, answer)
    {:noreply, state}
  end

  # The groups of others go on if a world cannot close its own.
  defp close(module, own) do
    module.close(own)
  catch
    kind, reason ->
      text = Exception.format_banner(kind, reason, __STACKTRACE__)
      Logger.warning("#{inspect(module)}.close/1: #{Text.lines(text)}")
  end

  defp answer(request, state) do
    act(request, state)
  catch
    kind, reason ->
      text = kind |> Exception.format(reason, __STACKTRACE__) |> String.slice(0, @most)
      {text, state}
  end

  defp act({:open, group, first, count}, state) do
    own = state.module.open(%{options: state.options, first: first, count: count})
    {[], put_in(put_in(state.groups[group], own).counts[group], count)}
  end

  defp act({:reset, group, begins}, state) do
    begins =
      for {at, env, episode, seed} <- begins,
          do: %{at: at, env: env, episode: episode, seed: seed}

    {seen, own} = state.module.reset(begins, state.groups[group])
    masks = masks(own, state)
    size = div(byte_size(masks), state.counts[group])
    masks = for begin <- begins, into: <<>>, do: binary_part(masks, begin.at * size, size)
    {[IO.iodata_to_binary(seen), masks], put_in(state.groups[group], own)}
  end

  defp act({:step, group, inputs, active}, state) do
    {seen, rewards, flags, own} = state.module.step(inputs, active, state.groups[group])
    answer = Enum.map([seen, rewards, flags], &IO.iodata_to_binary/1) ++ [masks(own, state)]
    {answer, put_in(state.groups[group], own)}
  end

  defp act({:save, group}, state) do
    if function_exported?(state.module, :save, 1),
      do: {saved!(state, group), state},
      else: {List.duplicate("", state.counts[group]), state}
  end

  defp act({:restore, group, binaries}, state) do
    if function_exported?(state.module, :restore, 2) do
      {taken, own} = state.module.restore(binaries, state.groups[group])
      bytes = for taken? <- taken, into: <<>>, do: if(taken?, do: <<1>>, else: <<0>>)
      {[bytes], put_in(state.groups[group], own)}
    else
      {[:binary.copy(<<0>>, length(binaries))], state}
    end
  end

  # The masks of all environments of a group.
  defp masks(own, %{masks?: true} = state),
    do: own |> state.module.action_masks() |> IO.iodata_to_binary()

  defp masks(_own, _state), do: ""

  defp saved!(state, group) do
    {saved, count} = {state.module.save(state.groups[group]), state.counts[group]}
    whole? = is_list(saved) and length(saved) == count and Enum.all?(saved, &is_binary/1)
    whole? || raise ArgumentError, "#{inspect(state.module)}.save/1: expected #{count} binaries"
    saved
  end
end
