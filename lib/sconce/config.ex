defmodule Sconce.Config do
  alias Sconce.{Device, Options}
  alias Sconce.Preset.Catalogue

  @presets Catalogue.names()
  @priorities [:nice, :idle, :normal]

  # `variables`: environment variables, the first that says something counts, and how each is read.
  @settings [
    device: [
      type: Device.type(),
      default: :cpu,
      doc: "Where policies live, see `Sconce.Device`.",
      variables: [
        SCONCE_DEVICE: :device,
        CUDA_VISIBLE_DEVICES: :hidden,
        EXPHIL_GPU: :flag,
        EXLA_TARGET: :target,
        XLA_TARGET: :target
      ]
    ],
    memory_fraction: [
      type: :float,
      default: 1.0,
      min: 0.01,
      max: 1.0,
      doc: "Share of a card's memory that may be taken, see `Sconce.GPU.Ledger`.",
      variables: [
        SCONCE_MEMORY_FRACTION: :share,
        EXPHIL_GPU_MEMORY_FRACTION: :share,
        EXLA_MEMORY_FRACTION: :share
      ]
    ],
    memory_budget: [
      type: {:or, [:bytes, nil]},
      default: nil,
      doc: "The same in bytes, as in `\"8GB\"`; the lesser of both counts.",
      variables: [SCONCE_MEMORY_BUDGET: :text]
    ],
    threads: [
      type: {:or, [:pos_integer, nil]},
      default: nil,
      doc: "Of training and evaluation; `nil` leaves them as they are.",
      variables: [SCONCE_THREADS: :number]
    ],
    background: [
      type: {:in, @priorities},
      default: :nice,
      doc:
        "How native threads that train, evaluate and import give way to all others on Linux: nice 19, " <>
          "`SCHED_IDLE`, or not, see `Sconce.Serving`. Read when work begins.",
      variables: [SCONCE_BACKGROUND: :background]
    ],
    preset: [
      type: {:or, [{:in, @presets}, nil]},
      default: nil,
      doc: "Of `mix sconce.train`, see `Sconce.Preset`.",
      variables: [SCONCE_PRESET: :preset, EXPHIL_DEFAULT_PRESET: :preset]
    ],
    replays: [
      type: {:or, [:path, nil]},
      default: nil,
      doc: "What `mix sconce.import` reads where no path is given.",
      variables: [EXPHIL_REPLAYS_DIR: :text]
    ],
    nvml: [
      type: {:or, [:path, nil]},
      default: nil,
      doc: "The driver's `libnvidia-ml.so.1` or its folder, where `Sconce.GPU` does not find it.",
      variables: [SCONCE_NVML: :text]
    ]
  ]

  # Read where Sconce is built, tested and measured.
  @build [
    SCONCE_SKIP_NATIVE: "1: do not build the native part",
    SCONCE_CUDA: "1: build for NVIDIA cards, too; flash-attn: with flash attention",
    SCONCE_CUDA_DIR:
      "where bin/cuda-toolkit lays out what that needs, ~/.cache/sconce by default",
    SCONCE_PROFILE: "cargo's profile, release by default",
    SCONCE_FEATURES: "cargo features, comma-separated",
    SCONCE_TARGET_DIR: "cargo's target folder",
    SCONCE_REPLAYS: "a folder of real games, for tests",
    SCONCE_PEERS: "a folder of peers, for benchmarks",
    SCONCE_CPU: "portable, avx2 or avx512: no wider instructions are used, nor a matrix unit",
    SCONCE_EMULATED_CARDS: "how many cards the emulated one is, 1 by default",
    SCONCE_EMULATED_CARD_MB: "the memory of all of them, in MiB, 4096 by default"
  ]

  @no_grab "memory is taken when it is needed, and given back"
  @no_xla "there is no XLA here, and nothing is compiled when a run begins"
  @ignored [
    XLA_PYTHON_CLIENT_ALLOCATOR: @no_grab,
    XLA_CACHE_PATH: @no_xla,
    XLA_FLAGS: @no_xla,
    TF_CPP_MIN_LOG_LEVEL: @no_xla,
    FLASH_ATTENTION_CUDA: "SCONCE_CUDA=flash-attn says it when Sconce is built",
    EXPHIL_MEMORY_LEDGER: "Sconce.GPU.ledger/1 is always there",
    EXPHIL_WANDB_PROJECT: "a run reports into its folder and by messages",
    EXPHIL_SKIP_NIF_COMPILE: "SCONCE_SKIP_NATIVE=1 leaves the native part of Sconce alone",
    EDIFICE_LOCAL_NX: "backbones are Sconce's own",
    EDIFICE_PATH: "backbones are Sconce's own"
  ]
  @ignored_keys [
    training_dtype: "the option :precision of a run says it",
    accumulation_dtype: "products are added in f32, norms in f64",
    devices: "the option :device of a run says it, as {:cuda, [0, 1]}",
    distribution: "several devices of a run always share its batches"
  ]

  setting_docs = fn {name, spec} ->
    variables = Enum.map_join(spec[:variables], ", ", fn {variable, _} -> "`#{variable}`" end)
    "| `#{name}` | `#{inspect(spec[:default])}` | #{variables} | #{spec[:doc]} |"
  end

  @moduledoc """
  Where settings come from that no option says: the application environment (`config :sconce, threads: 2`),
  over that environment variables, over that the options of a call, which are always worth most.

  | setting | default | variables, the first counts | what it is |
  |---|---|---|---|
  #{Enum.map_join(@settings, "\n", setting_docs)}

  `CUDA_VISIBLE_DEVICES` says `:cpu` where it hides every GPU (empty or `-1`) and else nothing; `EXPHIL_GPU`
  is `0` or `1`; `SCONCE_DEVICE` may name a card, as in `cuda:1`; `EXLA_TARGET` and `XLA_TARGET` are `host`,
  `cpu`, or the kind of a GPU as in `cuda12`. `mix sconce.doctor` prints all of it for this machine.

  ## No effect

  Of ExPhil's and EXLA's variables, and of keys an app may have set, these have none, and are named by
  `explain/0` and the doctor where they are set, as are variables whose name begins with `SCONCE_` and is
  none:

  | variable or key | why |
  |---|---|
  #{Enum.map_join(@ignored ++ @ignored_keys, "\n", fn {name, why} -> "| `#{name}` | #{why} |" end)}
  """

  @typedoc "`source` is `:default`, `:application`, or the name of a variable."
  @type setting :: %{name: atom, value: term, source: atom | String.t()}

  @doc """
  The value of a setting.

      iex> Sconce.Config.get(:thread)
      ** (ArgumentError) unknown setting :thread, did you mean :threads?
  """
  @spec get(atom) :: term
  def get(name), do: fetch(name).value

  @doc """
  A setting and where it comes from. Raises `ArgumentError` for a value that it cannot have.

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

  @doc "All settings. Raises `ArgumentError` for the first value that cannot be."
  @spec settings() :: [setting]
  def settings, do: Enum.map(@settings, fn {name, _spec} -> fetch(name) end)

  @doc """
  Every value that a setting cannot have, with what would be right as `wrong`, also of variables that an
  earlier one of their setting overrides.

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
  # What `explain/0` and the doctor show: every setting, also one whose value is wrong.
  def shown, do: Enum.map(@settings, fn {name, spec} -> first(name, spec) end)

  @doc "What is set and has no effect: where, its value, and why."
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
  # Settings that are allowed and delay decisions.
  def harmful do
    for %{value: :normal} = setting <- shown(), setting.name == :background do
      {source_text(setting.source),
       "background :normal lets training and import delay decisions and processes by tens of milliseconds"}
    end
  end

  @doc false
  # Variables that the doctor shows, each with what it is for.
  def build_variables, do: @build

  defp unknown_cpu do
    for cpu <- List.wrap(System.get_env("SCONCE_CPU")),
        cpu not in ~w(portable avx2 avx512),
        do: {"SCONCE_CPU", cpu, "expected portable, avx2 or avx512: all that the CPU has is used"}
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
  Prints each setting with its value and where that comes from, then what is wrong and what is set
  without effect:

  ```text
  device          :cuda       EXLA_TARGET
  memory_fraction 1.0         default
  memory_budget   nil         default
  threads         2           config :sconce
  background      :nice       default
  preset          nil         default
  replays         nil         default
  nvml            nil         default
  XLA_FLAGS --fast has no effect: there is no XLA here, and nothing is compiled when a run begins
  ```
  """
  @spec explain() :: :ok
  def explain do
    for %{name: name, value: value, source: source} = setting <- shown() do
      columns = [String.pad_trailing("#{name}", 16), String.pad_trailing(inspect(value), 12)]
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
  def wrong_value(%{name: name, value: value, wrong: expected}),
    do: "#{name} cannot be #{inspect(value)}, #{expected}"

  @doc false
  def source_text(:default), do: "default"
  def source_text(:application), do: "config :sconce"
  def source_text(variable), do: variable

  @doc false
  # Every environment variable that is read here, also those without effect.
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

  # What the variables and the application's environment say of a setting, in the order in which it counts.
  defp said(name, spec) do
    variables =
      for {variable, how} <- spec[:variables],
          text = variable(variable),
          value = read(how, text),
          value != :unset,
          do: setting(name, value, to_string(variable), spec, how)

    variables ++ from_application(name, spec)
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

  # What would be right where it stands: a term, or the text of a variable.
  defp right(:flag, _given, _spec), do: "expected 0 or 1"
  defp right(:number, _given, _spec), do: "expected a positive integer"
  defp right(:share, _given, _spec), do: "expected a number from 0.01 to 1"

  defp right(how, given, _spec) when how in [:device, :target, :preset, :background] do
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

  # The value that a variable's text stands for, `:unset` where it says nothing, or the text itself
  # where it is none, which is then refused.
  defp read(:hidden, text), do: if(String.trim(text) in ["", "-1"], do: :cpu, else: :unset)
  defp read(_how, ""), do: :unset
  defp read(:text, text), do: text
  defp read(:preset, text), do: Enum.find(@presets, text, &(to_string(&1) == text))
  defp read(:background, text), do: Enum.find(@priorities, text, &(to_string(&1) == text))
  defp read(:flag, "0"), do: :cpu
  defp read(:flag, "1"), do: :cuda
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

  defp read(:flag, text), do: text

  # A target may name a version: `cuda12`.
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
      Keyword.has_key?(@settings, key) -> nil
      why = @ignored_keys[key] -> why
      near = Options.nearest(key, Keyword.keys(@settings)) -> "did you mean #{inspect(near)}?"
      true -> "there is no such setting"
    end
  end
end
