defmodule Sconce.Bot.Listing do
  @moduledoc false
  # The entry of a bot in the registry, for `Sconce.Monitor`. A process is linked to the registry in which it has an entry,
  # so a process of its own has that of a bot: a registry that restarts does not end a game.

  use Sconce.Server

  alias Sconce.Bot.Totals

  @registry Sconce.Serving.Registry
  @again_ms 50
  @longest_ms 5_000

  @doc "Lists the calling bot until it ends, and again after each restart of the registry."
  @spec start(Totals.t()) :: :ok
  def start(totals) do
    _started = GenServer.start(__MODULE__, {self(), totals})
    :ok
  end

  @impl true
  def init({bot, totals}) do
    # The end of the registry is a message.
    Process.flag(:trap_exit, true)

    {:ok,
     listed(%{
       bot: bot,
       totals: totals,
       monitor: Process.monitor(bot),
       timer: nil,
       wait: @again_ms
     })}
  end

  @impl true
  def handle_info({:DOWN, monitor, :process, _bot, _reason}, %{monitor: monitor} = state),
    do: {:stop, :normal, state}

  def handle_info({:EXIT, _registry, _reason}, state), do: {:noreply, later(state)}
  def handle_info(:list, state), do: {:noreply, listed(%{state | timer: nil})}

  defp listed(%{bot: bot, totals: totals} = state) do
    # The entry may be there already.
    _entry = Registry.register(@registry, {Sconce.Bot, bot}, totals)
    %{state | wait: @again_ms}
  rescue
    # The application has not started, or the registry restarts.
    ArgumentError -> later(state)
  end

  defp later(%{timer: nil, wait: wait} = state) do
    timer = Process.send_after(self(), :list, wait)
    %{state | timer: timer, wait: min(2 * wait, @longest_ms)}
  end

  defp later(state), do: state
end
