defmodule HostApp do
  @moduledoc "An app that depends on Sconce and calls it at its start."
  use Application

  @impl true
  def start(_type, _args) do
    {:ok, %{version: version}} = Sconce.native_info()
    Supervisor.start_link([{Agent, fn -> version end}], strategy: :one_for_one)
  end

  @doc "One line that only a loaded native library can give."
  def report do
    {:ok, info} = Sconce.native_info()
    "sconce #{info.version} with candle #{info.candle} on #{info.target}"
  end
end
