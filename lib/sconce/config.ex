defmodule Sconce.Config do
  alias Sconce.Config.ExPhil
  alias Sconce.{Device, Options}
  alias Sconce.Preset.{Catalogue, Text}

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

  setting_docs = fn {name, spec} ->
    variables = Enum.map_join(spec[:variables], ", ", fn {variable, _} -> "`#{variable}`" end)
    key = if spec[:exphil], do: "`#{spec[:exphil]}`", else: ""
    "| `#{name}` | `#{inspect(spec[:default])}` | #{variables} | #{key} | #{spec[:doc]} |"
  end

  @moduledoc """
  Settings that apply when a call does not set them as an option.

  An option of a call overrides an environment variable, which overrides the application environment
  (`config :sconce, threads: 2`), which overrides the key of `config :exphil`, which overrides the default.

  | setting | default | variables, the first counts | key of `config :exphil` | meaning |
  |---|---|---|---|---|
  #{Enum.map_join(@settings, "\n", setting_docs)}

  `CUDA_VISIBLE_DEVICES` selects `:cpu` if it hides every GPU (empty or `-1`), and is ignored otherwise; `EXPHIL_GPU`
  is `0` or `1`; `SCONCE_DEVICE` may name a card, as in `cuda:1`; `EXLA_TARGET` and `XLA_TARGET` are `host`,
  `cpu`, or the kind of a GPU as in `cuda12`. `mix sconce.doctor` prints all settings of this machine.

  `config :exphil, devices: [:cuda0, :cuda1], training_dtype: :bf16` sets two cards and bf16. A value that no run can
  follow, such as `accumulation_dtype: :bf16`, is refused with the name of its key.

  ## No effect

  These variables of ExPhil and EXLA, and these keys of an app, have no effect. If one of them is set, `explain/0` and
  `mix sconce.doctor` name it, and also unknown variables whose name begins with `SCONCE_`:

  | variable or key | why |
  |---|---|
  #{Enum.map_join(@ignored ++ @ignored_keys, "\n", fn {name, why} -> "| `#{name}` | #{why} |" end)}
  """

  @typedoc "`source` is `:default`, `:exphil`, `:application`, or the name of a variable."
  @type setting :: %{name: atom, value: term, source: atom | String.t()}

  @doc """
  Returns the value of a setting. Raises `ArgumentError` like `fetch/1`.

      iex> Sconce.Config.get(:thread)
      ** (ArgumentError) unknown setting :thread, did you mean :threads?
  """
  @spec get(atom) :: term
  def get(name), do: fetch(name).value

  @doc """
  Returns a setting with its source. Raises `ArgumentError` for an unknown setting or an invalid value.

      iex> Application.put_env(:sconce, :threads, 2)
      iex> Sconce.Config.fetch(:threads)
      %{name: :threads, value: 2, source: :application}
      iex> Application.delete_env(:sconce, :threads)
      :ok
  """
  @spec fetch(atom) :: setting
  def fetch(name) do
    Options.known!(name, Keyword.keys(@settings), "setting")
    spec = @settings[name]

    case first(name, spec) do
      %{wrong: _expected} = wrong -> raise ArgumentError, wrong_text(wrong)
      setting -> setting
    end
  end

  @doc """
  Returns all settings. Raises `ArgumentError` for the first invalid value.

      iex> Enum.find(Sconce.Config.settings(), &(&1.name == :nvml))
      %{name: :nvml, value: nil, source: :default}
  """
  @spec settings() :: [setting]
  def settings, do: Enum.map(@settings, fn {name, _spec} -> fetch(name) end)

  @doc """
  Returns every invalid value of a setting, with the expectation as `wrong`. The list includes variables that an earlier
  variable of the setting overrides.

      iex> Application.put_env(:sconce, :threads, "2")
      iex> Application.put_env(:sconce, :preset, :quik)
      iex> Sconce.Config.wrong()
      [
        %{name: :threads, value: "2", source: :application, wrong: "expected a positive integer or nil"},
        %{name: :preset, value: :quik, source: :application, wrong: "did you mean :quick?"}
      ]
      iex> for name <- [:threads, :preset], do: Application.delete_env(:sconce, name)
      [:ok, :ok]
  """
  @spec wrong() :: [map]
  def wrong do
    for {name, spec} <- @settings, %{wrong: _} = found <- said(name, spec), do: found
  end

  @doc false
  # Every setting, including those with an invalid value, for `explain/0` and the doctor.
  def shown, do: Enum.map(@settings, fn {name, spec} -> first(name, spec) end)

  @doc """
  Returns the variables and keys that are set without effect: name, value and reason.

      iex> System.put_env("XLA_FLAGS", "--fast")
      iex> List.keyfind(Sconce.Config.ignored(), "XLA_FLAGS", 0)
      {"XLA_FLAGS", "--fast", "Sconce has no XLA and compiles nothing at the start of a run"}
      iex> System.delete_env("XLA_FLAGS")
      :ok
  """
  @spec ignored() :: [{String.t(), String.t(), String.t()}]
  def ignored do
    variables =
      for {name, why} <- @ignored, value = variable(name), do: {to_string(name), value, why}

    keys =
      for {key, value} <- Enum.sort(Application.get_all_env(:sconce)), why = no_effect(key) do
        {"config :sconce, #{key}", inspect(value), why}
      end

    variables ++ unknown_variables() ++ unknown_cpu() ++ keys
  end

  @doc false
  # Returns the table of settings: type, default, documentation and variables of each setting.
  def table, do: @settings

  @doc false
  # Returns the settings that are valid but delay decisions.
  def harmful do
    for %{value: :normal} = setting <- shown(), setting.name == :background do
      {source_text(setting.source),
       "background :normal lets training and import delay decisions and processes by tens of milliseconds"}
    end
  end

  @doc false
  # Returns the variables of the build, each with its meaning, for the doctor.
  def build_variables, do: @build

  defp unknown_cpu do
    for cpu <- List.wrap(System.get_env("SCONCE_CPU")),
        cpu not in ~w(portable avx2 avx512),
        do:
          {"SCONCE_CPU", cpu,
           "expected portable, avx2 or avx512: all features of the CPU are used"}
  end

  defp unknown_variables do
    known = variables() ++ Enum.map(Keyword.keys(@build), &to_string/1)

    for {"SCONCE_" <> own = name, value} <- Enum.sort(System.get_env()), name not in known do
      near = Options.nearest(own, for("SCONCE_" <> other <- known, do: other))

      {name, value,
       if(near, do: "did you mean SCONCE_#{near}?", else: "there is no such variable")}
    end
  end

  @doc """
  Prints each setting with its value and its source, then invalid values, then variables and keys without effect:

  ```text
  device             :cuda           EXLA_TARGET
  distribution       :data_parallel  default
  precision          :bf16           config :exphil
  accumulation_dtype :f32            default
  memory_fraction    1.0             default
  memory_budget      nil             default
  threads            2               config :sconce
  background         :nice           default
  preset             nil             default
  replays            nil             default
  monitor            true            default
  nvml               nil             default
  monitor_dir        nil             default
  trace              nil             default
  tuner              true            default
  tuner_dir          nil             default
  XLA_FLAGS --fast has no effect: Sconce has no XLA and compiles nothing at the start of a run
  ```

      iex> ExUnit.CaptureIO.capture_io(&Sconce.Config.explain/0) =~ "memory_fraction    1.0             default"
      true
  """
  @spec explain() :: :ok
  def explain do
    for %{name: name, value: value, source: source} = setting <- shown() do
      columns = [String.pad_trailing("#{name}", 19), String.pad_trailing(inspect(value), 16)]
      wrong = if setting[:wrong], do: " (wrong, see below)", else: ""
      IO.puts([columns, source_text(source), wrong])
    end

    for setting <- wrong(), do: IO.puts(wrong_text(setting))
    for {name, value, why} <- ignored(), do: IO.puts("#{name} #{value} has no effect: #{why}")
    :ok
  end

  @doc false
  def wrong_text(setting), do: "#{source_text(setting.source)}: #{wrong_value(setting)}"

  @doc false
  # A wrong key of another app is named as it is written there.
  def wrong_value(%{name: name, value: value, wrong: expected} = setting),
    do: "#{setting[:key] || name} cannot be #{inspect(value)}, #{expected}"

  @doc false
  def source_text(:default), do: "default"
  def source_text(:application), do: "config :sconce"
  def source_text(:exphil), do: "config :exphil"
  def source_text(variable), do: variable

  @doc false
  # Returns whether `EXPHIL_GPU` says that there is a usable card; nil if it is not set.
  @spec card_forced?() :: boolean | nil
  def card_forced? do
    case Enum.find(said(:device, @settings[:device]), &(&1.source == "EXPHIL_GPU")) do
      nil -> nil
      %{wrong: _expected} = wrong -> raise ArgumentError, wrong_text(wrong)
      %{value: value} -> value == :cuda
    end
  end

  @doc false
  # Returns every environment variable that is read, including those without effect.
  def variables do
    honoured = for {_name, spec} <- @settings, {variable, _how} <- spec[:variables], do: variable
    Enum.map(honoured ++ Keyword.keys(@ignored), &to_string/1)
  end

  defp first(name, spec) do
    case said(name, spec) do
      [first | _] -> first
      [] -> %{name: name, value: spec[:default], source: :default}
    end
  end

  # Returns the values of a setting in variables and in the environments of both applications, by falling precedence.
  defp said(name, spec) do
    variables =
      for {variable, how} <- spec[:variables],
          text = variable(variable),
          value <- [read(how, text)],
          value != :unset,
          do: setting(name, value, to_string(variable), spec, how)

    variables ++ from_application(name, spec) ++ from_exphil(name, spec)
  end

  defp from_exphil(name, spec) do
    with key when key != nil <- spec[:exphil],
         given when given != nil <- Application.get_env(:exphil, key) do
      [exphil(name, key, given, spec)]
    else
      nil -> []
    end
  end

  defp exphil(name, key, given, spec) do
    with {:ok, value} <- ExPhil.convert(key, given),
         {:ok, value} <- Options.fit(value, spec) do
      %{name: name, value: value, source: :exphil}
    else
      :error ->
        %{name: name, key: key, value: given, source: :exphil, wrong: ExPhil.expected(key)}
    end
  end

  defp from_application(name, spec) do
    case Application.fetch_env(:sconce, name) do
      {:ok, value} when name == :preset and is_binary(value) ->
        [setting(name, read(:preset, value), :application, spec, :term)]

      {:ok, value} ->
        [setting(name, value, :application, spec, :term)]

      :error ->
        []
    end
  end

  defp setting(name, given, source, spec, how) do
    case Options.fit(given, spec) do
      {:ok, value} -> %{name: name, value: value, source: source}
      :error -> %{name: name, value: given, source: source, wrong: right(how, given, spec)}
    end
  end

  # Describes the valid values in the form of the source: as a term, or as the text of a variable.
  defp right(how, _given, _spec) when how in [:flag, :switch], do: "expected 0 or 1"
  defp right(:number, _given, _spec), do: "expected a positive integer"
  defp right(:share, _given, _spec), do: "expected a number from 0.01 to 1"

  defp right(how, given, _spec)
       when how in [:device, :target, :preset, :background, :precision] do
    known = known(how)

    case Options.nearest(given, known) do
      nil -> "expected one of #{Enum.join(known, ", ")}"
      near -> "did you mean #{near}?"
    end
  end

  defp right(_term, given, spec) do
    case Options.near(given, spec) do
      nil -> "expected #{Options.expected(given, spec)}"
      near -> "did you mean #{inspect(near)}?"
    end
  end

  defp known(:target), do: ["host" | Device.kinds() -- [:auto]]
  defp known(:device), do: Device.kinds()
  defp known(:preset), do: @presets
  defp known(:background), do: @priorities
  defp known(:precision), do: @precisions

  # Parses the text of a variable. Returns `:unset` for a text without a value, and an invalid text unchanged:
  # `setting/5` marks it as wrong.
  defp read(:hidden, text), do: if(String.trim(text) in ["", "-1"], do: :cpu, else: :unset)
  defp read(_how, ""), do: :unset
  defp read(:text, text), do: text

  defp read(:preset, text),
    do: Enum.find(@presets ++ @other_presets, text, &(Text.name(&1) == text))

  defp read(:background, text), do: Enum.find(@priorities, text, &(to_string(&1) == text))
  defp read(:precision, text), do: Enum.find(@precisions, text, &(to_string(&1) == text))
  defp read(:flag, "0"), do: :cpu
  defp read(:flag, "1"), do: :cuda
  defp read(:switch, "0"), do: false
  defp read(:switch, "1"), do: true
  defp read(:target, "host"), do: :cpu
  defp read(how, text) when how in [:device, :target], do: device(text, how)

  defp read(:number, text) do
    case Integer.parse(text) do
      {number, ""} -> number
      _ -> text
    end
  end

  defp read(:share, text) do
    case Float.parse(text) do
      {share, ""} -> share
      _ -> text
    end
  end

  defp read(how, text) when how in [:flag, :switch], do: text

  # `EXLA_TARGET` and `XLA_TARGET` may name a version, as in `cuda12`.
  defp device(text, :target),
    do: kind(String.replace(text, ~r/\d+$/, ""), Device.kinds() -- [:auto], text)

  defp device(text, :device) do
    case Regex.run(~r/^cuda:(\d+)$/, text) do
      [_, index] -> {:cuda, String.to_integer(index)}
      nil -> kind(text, Device.kinds(), text)
    end
  end

  defp kind(name, kinds, text), do: Enum.find(kinds, text, &(to_string(&1) == name))

  defp variable(name), do: name |> to_string() |> System.get_env()

  defp no_effect(key) do
    cond do
      Keyword.has_key?(@settings, key) or key in @build_keys -> nil
      why = @ignored_keys[key] -> why
      near = Options.nearest(key, Keyword.keys(@settings)) -> "did you mean #{inspect(near)}?"
      true -> "there is no such setting"
    end
  end
end
