defmodule HostApp.Bridge do
  @moduledoc "The app's own bridge: a process that is a game sends frames and receives inputs."
  @behaviour Sconce.Bot.Bridge

  @impl true
  def connect(opts) do
    case Process.whereis(opts[:game]) do
      nil -> {:error, :no_game}
      game -> {:ok, tap(game, &send(&1, {:connected, self()}))}
    end
  end

  @impl true
  def next(game, timeout_ms) do
    receive do
      {:frame, ^game, state} -> {{:frame, state}, game}
    after
      timeout_ms -> {:none, game}
    end
  end

  @impl true
  def put(game, input) do
    send(game, {:input, self(), input})
    {:ok, game}
  end

  @impl true
  def disconnect(_game), do: :ok
end
