defmodule Sconce.Application do
  @moduledoc false

  use Application

  @impl true
  def start(_type, _args) do
    # This process lives as long as the application, unlike one that a supervisor restarts.
    Sconce.Store.Handles.new()

    children = [
      Sconce.Monitor.Tracing,
      Sconce.Run.Keeper,
      Sconce.Lock,
      {Registry, keys: :unique, name: Sconce.Serving.Registry},
      Sconce.Serving.Group,
      {DynamicSupervisor, name: Sconce.Session.Proxies, strategy: :one_for_one},
      Sconce.Monitor.Vm
    ]

    Supervisor.start_link(children, strategy: :one_for_one, name: Sconce.Supervisor)
  end
end
