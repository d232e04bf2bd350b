Code.require_file("build/compile_native.exs", __DIR__)

defmodule Sconce.MixProject do
  use Mix.Project

  @version "0.1.0"

  def project do
    [
      app: :sconce,
      version: @version,
      elixir: "~> 1.14",
      # Native first: a module that loads the library finds it when it is compiled.
      compilers: [:sconce_native] ++ Mix.compilers(),
      elixirc_paths: elixirc_paths(Mix.env()),
      start_permanent: Mix.env() == :prod,
      deps: [],
      aliases: [bench: &bench/1],
      test_ignore_filters: [&String.starts_with?(&1, ["test/host_app/", "test/support/"])],
      name: "Sconce",
      description:
        "Native policies for games: act 60 times a second, learn from replays and from play",
      package: package(),
      docs: [
        main: "readme",
        extras: [
          "README.md",
          "guides/games.md",
          "guides/imitation.md",
          "SECURITY.md",
          "CHANGELOG.md"
        ]
      ]
    ]
  end

  def application do
    # A host's telemetry runs before Sconce does; without one nothing is missing.
    [
      mod: {Sconce.Application, []},
      extra_applications: [:logger, telemetry: :optional]
    ]
  end

  defp elixirc_paths(:test), do: ["lib", "test/support"]
  defp elixirc_paths(_env), do: ["lib"]

  # The benchmarks are a project of their own; paths among the arguments are relative to this folder.
  defp bench(args) do
    task = ~S|File.cd!(".."); Mix.Task.run("bench", System.argv())|
    command = ["run", "--no-start", "-e", task, "--" | args]
    dir = Path.join(__DIR__, "bench")
    {_output, status} = System.cmd("mix", command, cd: dir, into: IO.binstream())
    if status != 0, do: exit({:shutdown, status})
  end

  defp package do
    [
      licenses: ["Apache-2.0"],
      # Cargo wants every member of the workspace.
      files:
        ~w(lib bin build tools guides native fuzz/Cargo.toml fuzz/src config Cargo.toml Cargo.lock
                mix.exs .formatter.exs README.md CHANGELOG.md SECURITY.md LICENSE)
    ]
  end
end
