defmodule HostApp.MixProject do
  use Mix.Project

  def project do
    [
      app: :host_app,
      version: "0.1.0",
      elixir: "~> 1.14",
      elixirc_paths: ["lib"] ++ libmelee(),
      start_permanent: Mix.env() == :prod,
      deps: [{:sconce, path: "../.."}],
      releases: [host_app: [include_executables_for: [:unix]]]
    ]
  end

  # Stubs of the library for Dolphin. The tests build this app with and without it.
  defp libmelee, do: if(System.get_env("HOST_APP_LIBMELEE"), do: ["libmelee"], else: [])

  def application do
    [extra_applications: [:logger], mod: {HostApp, []}]
  end
end
