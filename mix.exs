Code.require_file("build/compile_native.exs", __DIR__)

defmodule Sconce.MixProject do
  use Mix.Project

  @version "0.1.0"

  def project do
    [
      app: :sconce,
      version: @version,
      elixir: "~> 1.14",
      # The native compiler runs first, so that a module that loads the library finds it at compile time.
      compilers: [:sconce_native] ++ Mix.compilers(),
      elixirc_paths: elixirc_paths(Mix.env()),
      start_permanent: Mix.env() == :prod,
      deps: [],
      aliases: [bench: &bench/1],
      test_ignore_filters: [
        &String.starts_with?(&1, ["test/host_app/", "test/host_nx/", "test/support/"])
      ],
      name: "Sconce",
      description:
        "Native policies for games: act 60 times a second, learn from replays and from play",
      package: package(),
      source_url: source_url(),
      docs: docs()
    ]
  end

  # test/docs_test.exs checks that every guide and every documented module is listed once.
  defp docs do
    [
      main: "readme",
      extras:
        ["README.md" | Path.wildcard("guides/*.livemd")] ++
          ~w(bench/RESULTS.md CONTRIBUTING.md SECURITY.md CHANGELOG.md),
      groups_for_extras: [
        Guides: ~r{^guides/},
        Project: ["bench/RESULTS.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
      ],
      groups_for_modules: [
        "Agreement across nodes": [Sconce.Leader, Sconce.Leader.Events, Sconce.Votes],
        Library: [
          Sconce,
          Sconce.Config,
          Sconce.Error,
          Sconce.Options,
          Sconce.Pressure,
          Sconce.Pressure.Aimd,
          Sconce.Tuner
        ],
        Policies: [Sconce.Policy, Sconce.Policy.Spec, Sconce.Embedding, Sconce.Temporal],
        Play: [
          Sconce.Session,
          Sconce.Serving,
          Sconce.Serving.Events,
          Sconce.Frame,
          Sconce.Frame.Player,
          Sconce.Action
        ],
        Bots: [
          Sconce.Bot,
          Sconce.Bot.Bridge,
          Sconce.Bot.Bridge.Libmelee,
          Sconce.Bot.Bridge.Program,
          Sconce.Bot.Bridge.Recording,
          Sconce.Bot.Game,
          Sconce.Compat.ExPhil.Agent,
          Sconce.Compat.Melee
        ],
        Games: [Sconce.Game],
        Environments: [
          Sconce.Env,
          Sconce.Env.World,
          Sconce.Env.Batch,
          Sconce.Env.Gymnasium,
          Sconce.Env.CartPole,
          Sconce.Env.Billiards
        ],
        Data: [Sconce.Corpus, Sconce.Loader, Sconce.Store],
        Reports: [Sconce.Report, Sconce.Report.Game, Sconce.Report.Summary],
        Training: [
          Sconce.Trainer,
          Sconce.Preset,
          Sconce.Events,
          Sconce.Trainer.Compare,
          Sconce.Trainer.Curve,
          Sconce.Trainer.Gradients,
          Sconce.Trainer.Plan,
          Sconce.Trainer.Progress,
          Sconce.Trainer.RangeTest,
          Sconce.Trainer.Report,
          Sconce.Trainer.Tuning
        ],
        "Learning from play": [
          Sconce.PPO,
          Sconce.League,
          Sconce.Dagger,
          Sconce.Rollout,
          Sconce.PPO.Curve,
          Sconce.PPO.Plan,
          Sconce.PPO.Progress,
          Sconce.PPO.Tuning
        ],
        Evolution: [
          Sconce.Evolve,
          Sconce.Evolve.Archive,
          Sconce.Evolve.Island,
          Sconce.Evolve.Neat,
          Sconce.Evolve.Population,
          Sconce.Evolve.Progress,
          Sconce.Evolve.Run,
          Sconce.Evolve.Search,
          Sconce.Evolve.Strategy
        ],
        "Holographic vectors": [Sconce.HRR, Sconce.HRR.Quantised],
        "Small networks": [Sconce.Net, Sconce.Net.Outline, Sconce.Net.Spec, Sconce.Zoo],
        Compression: [Sconce.Compress, Sconce.Compress.Policy, Sconce.Compress.Search],
        Export: [Sconce.Compat, Sconce.Onnx],
        Nx: [Sconce.Nx],
        Watching: [
          Sconce.Monitor,
          Sconce.Monitor.Endpoint,
          Sconce.Monitor.Events,
          Sconce.Monitor.Metric,
          Sconce.Monitor.Snapshot,
          Sconce.Monitor.Trace
        ],
        Devices: [Sconce.Device, Sconce.GPU, Sconce.GPU.Diagnosis, Sconce.GPU.Ledger],
        Tasks: [
          Mix.Tasks.Sconce.Adopt,
          Mix.Tasks.Sconce.Bench,
          Mix.Tasks.Sconce.Compare,
          Mix.Tasks.Sconce.Compress,
          Mix.Tasks.Sconce.Demo,
          Mix.Tasks.Sconce.Doctor,
          Mix.Tasks.Sconce.Eval,
          Mix.Tasks.Sconce.Evolve,
          Mix.Tasks.Sconce.Export,
          Mix.Tasks.Sconce.Import,
          Mix.Tasks.Sconce.Monitor,
          Mix.Tasks.Sconce.Play,
          Mix.Tasks.Sconce.Report,
          Mix.Tasks.Sconce.Runs,
          Mix.Tasks.Sconce.Train
        ]
      ]
    ]
  end

  def application do
    # If the host app has telemetry, it starts before Sconce. Sconce also runs without it, and without inets, whose server
    # Sconce.Monitor.Endpoint starts. Tests serve files by TLS.
    tests = if Mix.env() == :test, do: [:ssl], else: []

    [
      mod: {Sconce.Application, []},
      extra_applications: [:logger, telemetry: :optional, inets: :optional] ++ tests
    ]
  end

  defp elixirc_paths(:test), do: ["lib", "test/support"]
  defp elixirc_paths(_env), do: ["lib"]

  # The benchmarks are a separate project; paths among the arguments are relative to this folder.
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
      links: links(),
      # Cargo needs every member of the workspace. bin/package writes the checksums of published libraries.
      files:
        ~w(lib bin build tools guides native fuzz/Cargo.toml fuzz/src config Cargo.toml Cargo.lock
                mix.exs .formatter.exs README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE) ++
          Path.wildcard("checksums.txt"),
      exclude_patterns: [~r{^native/.*/tests(/|\.rs$)}, ~r{^tools/(emulated-card|seams)/}]
    ]
  end

  # The address of the public repository is that of a release: SCONCE_SOURCE_URL.
  defp source_url, do: System.get_env("SCONCE_SOURCE_URL")

  defp links do
    if url = source_url(),
      do: %{"Source" => url, "Changelog" => url <> "/blob/main/CHANGELOG.md"},
      else: %{}
  end
end
