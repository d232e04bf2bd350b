defmodule HostNx.MixProject do
  use Mix.Project

  # An app with Nx and Axon, whose sources are in folders of SCONCE_NX. test/nx_test.exs runs its tests.
  @libraries ~w(nx axon polaris complex telemetry)a

  def project do
    [
      app: :host_nx,
      version: "0.1.0",
      elixir: "~> 1.14",
      # The tests of Sconce itself are named `_test.exs`, and Nx must not be loaded beside them.
      test_pattern: "nx_*.exs",
      deps: [{:sconce, path: "../.."} | Enum.map(@libraries, &library/1)]
    ]
  end

  def application, do: [extra_applications: [:logger]]

  defp library(name),
    do: {name, path: Path.join(System.fetch_env!("SCONCE_NX"), "#{name}"), override: true}
end
