defmodule Sconce.Config.Catalogue do
  @moduledoc false
  # The settings of `Sconce.Config` and the environment variables as tables.

  alias Sconce.Device
  alias Sconce.Preset.Catalogue

  @presets Catalogue.names()
  @other_presets Enum.map(@presets, &{:exphil, &1}) ++
                   Enum.map(Keyword.keys(Catalogue.cards()), &{:gpu, &1})
  @priorities [:nice, :idle, :normal]
  @precisions [:f32, :bf16, :f16]

  # `variables` are environment variables and how each is parsed; the first variable with a value counts. `exphil` is the
  # key of `config :exphil` with the same meaning.
  @settings [
    device: [
      type: Device.run_type(),
      default: :cpu,
      exphil: :devices,
      doc:
        "Device of policies and runs, see `Sconce.Device`. Of several cards, as `{:cuda, [0, 1]}`, " <>
          "runs of `Sconce.Trainer` use all, and others the first.",
      variables: [
        SCONCE_DEVICE: :device,
        CUDA_VISIBLE_DEVICES: :hidden,
        EXPHIL_GPU: :flag,
        EXLA_TARGET: :target,
        XLA_TARGET: :target
      ]
    ],
    distribution: [
      type: {:in, [:data_parallel]},
      default: :data_parallel,
      exphil: :distribution,
      doc: "How several cards of a run share its work: each batch is divided among them.",
      variables: []
    ],
    precision: [
      type: {:in, @precisions},
      default: :f32,
      exphil: :training_dtype,
      doc:
        "Precision of runs of `Sconce.Trainer`, as their option `:precision`. It overrides that of a preset.",
      variables: [SCONCE_PRECISION: :precision]
    ],
    accumulation_dtype: [
      type: {:in, [:f32]},
      default: :f32,
      exphil: :accumulation_dtype,
      doc: "Type in which a run sums products. There is no other.",
      variables: []
    ],
    memory_fraction: [
      type: :float,
      default: 1.0,
      min: 0.01,
      max: 1.0,
      doc: "Largest share of a card's memory in use, see `Sconce.GPU.Ledger`.",
      variables: [
        SCONCE_MEMORY_FRACTION: :share,
        EXPHIL_GPU_MEMORY_FRACTION: :share,
        EXLA_MEMORY_FRACTION: :share
      ]
    ],
    memory_budget: [
      type: {:or, [:bytes, nil]},
      default: nil,
      doc: "The same limit in bytes, as in `\"8GB\"`; the lower one counts.",
      variables: [SCONCE_MEMORY_BUDGET: :text]
    ],
    threads: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      doc: "Threads of training and evaluation; `nil` keeps the current number.",
      variables: [SCONCE_THREADS: :number]
    ],
    background: [
      type: {:in, @priorities},
      default: :nice,
      doc:
        "Priority on Linux of native threads that train, evaluate and import: nice 19, `SCHED_IDLE` or " <>
          "normal, see `Sconce.Serving`. Read at the start of such work.",
      variables: [SCONCE_BACKGROUND: :background]
    ],
    preset: [
      type: {:or, [{:in, @presets ++ @other_presets}, nil]},
      default: nil,
      doc:
        "Preset of `mix sconce.train`, see `Sconce.Preset`; as text also `exphil:quick` and `gpu:rtx_3090`.",
      variables: [SCONCE_PRESET: :preset, EXPHIL_DEFAULT_PRESET: :preset]
    ],
    replays: [
      type: {:or, [:path, nil]},
      default: nil,
      doc: "Path that `mix sconce.import` reads if none is given.",
      variables: [EXPHIL_REPLAYS_DIR: :text]
    ],
    monitor: [
      type: :boolean,
      default: true,
      doc: "Whether this VM and its runs write the files that `mix sconce.monitor` reads.",
      variables: [SCONCE_MONITOR: :switch]
    ],
    nvml: [
      type: {:or, [:path, nil]},
      default: nil,
      doc:
        "Path of the driver's `libnvidia-ml.so.1` or its folder, if `Sconce.GPU` does not find it.",
      variables: [SCONCE_NVML: :text]
    ],
    monitor_dir: [
      type: {:or, [:path, nil]},
      default: nil,
      doc:
        "Folder in which each run and each VM keeps a file of its figures, for `mix sconce.monitor`; by default " <>
          "`sconce` in `$XDG_STATE_HOME`, or else in `~/.local/state`.",
      variables: [SCONCE_MONITOR_DIR: :text]
    ],
    trace: [
      type: {:or, [:path, nil]},
      default: nil,
      doc:
        "File for a trace of this VM, written when it ends: spans of native threads for Perfetto, see " <>
          "`Sconce.Monitor.trace/2`.",
      variables: [SCONCE_TRACE: :text]
    ],
    tuner: [
      type: :boolean,
      default: true,
      doc: "Whether `Sconce.Tuner` measures and keeps what is fastest on this machine.",
      variables: [SCONCE_TUNER: :switch]
    ],
    tuner_dir: [
      type: {:or, [:path, nil]},
      default: nil,
      doc: "Folder of these measurements; by default `sconce/tuner` in the user's cache.",
      variables: [SCONCE_TUNER_DIR: :text]
    ]
  ]

  # Environment variables of the build, the tests and the benchmarks, with their meanings.
  @build [
    SCONCE_BUILD: "1: build the native part, even if a library is published",
    SCONCE_PRECOMPILED_URL: "address of the folder of published libraries",
    SCONCE_CACHE_DIR: "folder of downloaded libraries, sconce in the user's cache by default",
    SCONCE_SKIP_NATIVE: "1: do not build the native part",
    SCONCE_NATIVE_PATH: "a native library that was built elsewhere, to install",
    SCONCE_SOURCE_URL: "address of the public repository, for a package",
    SCONCE_CUDA: "1: build for NVIDIA cards, too; flash-attn: with flash attention",
    SCONCE_CUDA_DIR:
      "folder of the toolkit that bin/cuda-toolkit lays out, ~/.cache/sconce by default",
    SCONCE_PROFILE:
      "cargo's profile, release by default; profiling keeps line tables and frame pointers",
    SCONCE_FEATURES: "cargo features, comma-separated",
    SCONCE_TARGET_DIR: "cargo's target folder",
    SCONCE_REPLAYS: "a folder of real games, for tests",
    SCONCE_PEERS: "a folder of peers, for benchmarks",
    SCONCE_NX: "a folder with the sources of nx, axon, polaris, complex and telemetry, for tests",
    SCONCE_CPU: "portable, avx2 or avx512: the widest instructions, without a matrix unit",
    SCONCE_EMULATED_CARDS: "number of emulated cards, 1 by default",
    SCONCE_EMULATED_CARD_MB: "memory of all emulated cards, in MiB, 4096 by default",
    SCONCE_EMULATED_BLOCK_MB: "blocks of MiB in which pools of emulated cards grow and shrink"
  ]

  # Keys that the build reads, in config/config.exs.
  @build_keys [:precompiled_url]

  @no_grab "memory is allocated on demand and freed again"
  @no_xla "Sconce has no XLA and compiles nothing at the start of a run"
  @ignored [
    XLA_PYTHON_CLIENT_ALLOCATOR: @no_grab,
    XLA_CACHE_PATH: @no_xla,
    XLA_FLAGS: @no_xla,
    TF_CPP_MIN_LOG_LEVEL: @no_xla,
    FLASH_ATTENTION_CUDA: "SCONCE_CUDA=flash-attn selects it when Sconce is built",
    EXPHIL_MEMORY_LEDGER: "Sconce.GPU.ledger/1 is always available",
    EXPHIL_WANDB_PROJECT: "a run reports to its folder and by messages",
    EXPHIL_SKIP_NIF_COMPILE: "SCONCE_SKIP_NATIVE=1 skips the native build of Sconce",
    EDIFICE_LOCAL_NX: "backbones are Sconce's own",
    EDIFICE_PATH: "backbones are Sconce's own"
  ]
  @ignored_keys [
    training_dtype: "it is a key of config :exphil; config :sconce has precision",
    devices: "it is a key of config :exphil; config :sconce has device, as {:cuda, [0, 1]}"
  ]

  @doc "Each setting: type, default, documentation and variables."
  @spec settings() :: keyword
  def settings, do: @settings

  @doc "Variables of the build, each with its meaning."
  @spec build() :: keyword(String.t())
  def build, do: @build

  @doc "Keys of `config :sconce` that the build reads."
  @spec build_keys() :: [atom]
  def build_keys, do: @build_keys

  @doc "Variables without effect, each with the reason."
  @spec ignored() :: keyword(String.t())
  def ignored, do: @ignored

  @doc "Keys of `config :sconce` without effect, each with the reason."
  @spec ignored_keys() :: keyword(String.t())
  def ignored_keys, do: @ignored_keys

  @doc "The values of a setting that a variable names by their text."
  @spec named(atom) :: [term]
  def named(:preset), do: @presets ++ @other_presets
  def named(:background), do: @priorities
  def named(:precision), do: @precisions
end
