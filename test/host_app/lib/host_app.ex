defmodule HostApp do
  @moduledoc "An app that depends on Sconce and calls it at its start."
  use Application

  @impl true
  def start(_type, _args) do
    {:ok, %{version: version}} = Sconce.native_info()
    children = [{Agent, fn -> version end}, {Registry, keys: :unique, name: ExPhil.Registry}]
    Supervisor.start_link(children, strategy: :one_for_one)
  end

  @doc "Plays games of `frames` frames with a policy of ExPhil's, and prints a line about each."
  def play(policy, frames, seed) do
    IO.puts(HostApp.Play.agent(policy, frames))
    IO.puts(HostApp.Play.step(policy, frames))
    IO.puts(HostApp.Play.bridge(policy, frames))
    if Code.ensure_loaded?(Melee.Console), do: dolphin(policy, frames)
    IO.puts(HostApp.Chaos.run(policy, frames, seed))
  end

  # Called by name, because the library may be missing.
  defp dolphin(policy, frames) do
    line = apply(HostApp.Dolphin, :play, [policy, frames])
    ^line = apply(HostApp.Dolphin, :without, [policy, frames])
    IO.puts(line)
  end

  @doc "One line that only a loaded native library can give."
  def report do
    {:ok, info} = Sconce.native_info()
    "sconce #{info.version} with candle #{info.candle} on #{info.target}"
  end
end
