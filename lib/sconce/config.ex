defmodule Sconce.Config do
  alias Sconce.Config.{Catalogue, ExPhil, Variable}
  alias Sconce.Options

  @settings Catalogue.settings()
  @ignored Catalogue.ignored()
  @ignored_keys Catalogue.ignored_keys()

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
  def build_variables, do: Catalogue.build()

  defp unknown_cpu do
    for cpu <- List.wrap(System.get_env("SCONCE_CPU")),
        cpu not in ~w(portable avx2 avx512),
        do:
          {"SCONCE_CPU", cpu,
           "expected portable, avx2 or avx512: all features of the CPU are used"}
  end

  defp unknown_variables do
    known = variables() ++ Enum.map(Keyword.keys(Catalogue.build()), &to_string/1)

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
          value <- [Variable.read(how, text)],
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
        [setting(name, Variable.read(:preset, value), :application, spec, :term)]

      {:ok, value} ->
        [setting(name, value, :application, spec, :term)]

      :error ->
        []
    end
  end

  defp setting(name, given, source, spec, how) do
    case Options.fit(given, spec) do
      {:ok, value} ->
        %{name: name, value: value, source: source}

      :error ->
        %{name: name, value: given, source: source, wrong: Variable.expected(how, given, spec)}
    end
  end

  defp variable(name), do: name |> to_string() |> System.get_env()

  defp no_effect(key) do
    cond do
      Keyword.has_key?(@settings, key) or key in Catalogue.build_keys() -> nil
      why = @ignored_keys[key] -> why
      near = Options.nearest(key, Keyword.keys(@settings)) -> "did you mean #{inspect(near)}?"
      true -> "there is no such setting"
    end
  end
end
