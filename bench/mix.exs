defmodule Sconce.Bench.MixProject do
  use Mix.Project

  def project do
    [
      app: :sconce_bench,
      version: "0.1.0",
      elixir: "~> 1.14",
      # Both projects share one build, so Sconce and its native library are compiled once.
      build_path: "../_build",
      config_path: "../config/config.exs",
      deps_path: "../deps",
      lockfile: "../mix.lock",
      # The same environment, because a production build leaves out the measurements.
      deps: [{:sconce, path: "..", env: Mix.env()}]
    ]
  end

  def application, do: [extra_applications: [:logger]]
end
