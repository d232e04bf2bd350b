defmodule Mix.Tasks.Sconce.Doctor do
  @shortdoc "Checks this machine and says how to fix what is missing"

  @moduledoc """
  Checks this machine and prints what Sconce finds.

      $ mix sconce.doctor

  prints

    * versions, the machine and its GPUs;
    * the native library;
    * each setting with its source (`Sconce.Config`), and settings without effect;
    * settings of this VM, and those known to delay decisions (`Sconce.Serving`);
    * VMs that run, with their leaders, stores and bots (`Sconce.Monitor`);
    * everything that is missing or wrong, with its remedy.

  The task builds nothing, and runs even if what it checks is missing. The exit
  status is 1 if a part that Sconce needs is missing, a setting is wrong or a
  corpus is damaged.

      $ mix sconce.doctor --corpus DIR

  checks every byte of that corpus and nothing else, see `Sconce.Corpus.verify/2`.

      $ mix sconce.doctor --store DIR

  checks every block of that `Sconce.Store` and nothing else, also while another
  process writes it.

      $ mix sconce.doctor --production

  checks the settings of the machine and of the VM that cost latency: the CPU
  governor, limits and throttling of the container, heat, memory, schedulers
  beside training threads, flags of the VM, the log level, free disk and the
  profile of the native library. The exit status is 1 if one of them should
  change.

      $ mix sconce.doctor --run DIR

  reads the report or the last saved state of a run, and prints what slowed the
  run down and which option changes that.
  """

  use Mix.Task

  alias Sconce.{Config, Corpus, Figures, GPU, Memory, Native, Store, Switches, Text}
  alias Sconce.Doctor.{Production, Run, Running}
  alias Sconce.{Trainer, Tuner, VM}
  alias Sconce.GPU.Diagnosis
  alias Sconce.Native.Call

  # The oldest Rust that builds Sconce, `rust-version` in Cargo.toml.
  @rust "1.91.0"

  @schema [
    corpus: [type: :path, doc: "Folder of a corpus to check, byte by byte."],
    production: [type: :boolean, default: false, doc: "Check the settings that cost latency."],
    run: [type: :path, doc: "Folder of a run to examine."],
    store: [type: :path, doc: "Folder of a store to check, block by block."]
  ]

  # A package with checksums downloads its library, so Rust is no requirement.
  @checksums Path.expand("../../../checksums.txt", __DIR__)

  @rustup "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"

  @impl true
  def run(args), do: Switches.help?(args, __MODULE__) || args |> parse!() |> examine()

  defp parse!(args) do
    case Switches.parse!(args, @schema) do
      {opts, []} -> one!(for({name, value} <- opts, value, do: {name, value}))
      {_opts, [argument | _]} -> raise ArgumentError, "unknown argument #{argument}"
    end
  rescue
    error in ArgumentError -> Mix.raise(Exception.message(error))
  end

  defp one!([]), do: nil
  defp one!([asked]), do: asked

  defp one!([{first, _}, {second, _} | _]),
    do: raise(ArgumentError, "--#{first} and --#{second} exclude each other")

  defp examine({:production, true}) do
    runtime_config()
    checks = Production.checks(profile: native_info()[:profile])
    print_found("production", checks)
  end

  defp examine({:run, dir}) do
    case Trainer.progress(dir) do
      {:ok, run} -> print_found(run.out, Run.findings(run), 0)
      {:error, error} -> ill(error)
    end
  end

  defp examine({:corpus, corpus}) do
    case Corpus.verify(corpus) do
      {:ok, found} -> Mix.shell().info(sound(found))
      {:error, error} -> ill(error)
    end
  end

  defp examine({:store, path}) do
    with {:ok, store} <-
           Store.open(path, read_only: true, ram: 2 ** 20, compressed: 0, threads: 0),
         {:ok, damaged} <- Store.verify(store),
         {:ok, stats} <- Store.stats(store) do
      Mix.shell().info(blocks(stats))
      faults = List.wrap(store.fault) ++ Enum.map(damaged, &damage/1)
      Enum.each(faults, &Mix.shell().info(Text.printable("damaged " <> &1)))
      faults == [] || exit({:shutdown, 1})
    else
      {:error, error} -> ill(error)
    end
  end

  defp examine(nil) do
    wrong = runtime_config()
    native = Sconce.Native.status()
    info = native_info()
    Enum.each(sections(native, info), &print_section/1)

    wrong = wrong ++ wrong() ++ wrong_build() ++ wrong_device(native)

    case Enum.reject([{"missing", missing(native)}, {"wrong", wrong}], &match?({_, []}, &1)) do
      [] ->
        Mix.shell().info("\nNothing is missing.")

      found ->
        Enum.each(found, &print_section/1)
        exit({:shutdown, 1})
    end
  end

  # Applies config/runtime.exs, which Mix reads only when an app starts. Returns the error of a file that fails.
  defp runtime_config do
    path = Mix.Project.config()[:config_path] |> Path.dirname() |> Path.join("runtime.exs")

    if File.regular?(path) do
      path
      |> Elixir.Config.Reader.read!(env: Mix.env(), target: Mix.target())
      |> Application.put_all_env(persistent: true)
    end

    []
  rescue
    error -> [{"config/runtime.exs", Exception.message(error)}]
  end

  # Prints the findings, then the remedies. If there is a remedy, the task exits with `status`.
  defp print_found(title, found, status \\ 1) do
    print_section({title, Enum.map(found, &{&1.name, &1.found})})
    wrong = for %{mend: mend} = check <- found, mend, do: {check.name, mend}

    if wrong == [] do
      Mix.shell().info("\nNothing is to be changed.")
    else
      print_section({"to change", wrong})
      if status != 0, do: exit({:shutdown, status})
    end
  end

  defp sound(found) do
    unknown =
      case found.unrecorded do
        0 -> "all bytes match their digests"
        n -> "#{n} of them have no recorded digest; all numbers in these are valid"
      end

    size = "#{Figures.counted(found.games, "game")}, #{Figures.size(found.bytes)}"
    "#{size} in #{Float.round(found.seconds, 1)} s: #{unknown}"
  end

  defp blocks(stats) do
    tensors = Figures.counted(stats.tensors, "tensor")
    unused = Figures.size(max(stats.disk_bytes - stats.stored_bytes - 40 * stats.blocks, 0))

    "#{tensors} in #{Figures.counted(stats.blocks, "block")}: #{Figures.size(stats.bytes)}, " <>
      "#{Figures.size(stats.stored_bytes)} as stored, #{unused} unused"
  end

  defp damage(found) do
    names = Enum.map_join(found.tensors, ", ", &inspect/1)
    "#{found.file} at byte #{found.offset}, of #{names}: #{found.reason}; put these tensors again"
  end

  defp ill(error) do
    for game <- Map.get(error.details, :damaged, []),
        do:
          Mix.shell().info(
            Text.printable("damaged #{game.file}, of #{game.source}: #{game.reason}")
          )

    Switches.fail!(error, @schema)
  end

  @doc false
  # Returns the oldest Rust that builds Sconce, for a test.
  def rust, do: @rust

  defp sections(native, info) do
    [
      {"versions", versions(info)},
      {"machine", machine(info)},
      {"gpu", Diagnosis.rows(GPU.diagnose())},
      {"native library", native_library(native, info)},
      {"tuner", tuner()},
      {"settings", settings()},
      {"configuration", configuration()},
      {"set without effect", ignored()},
      {"vm", vm(VM.settings())},
      {"set and known to hurt", harmful(VM.settings())},
      {"running", Running.rows()}
    ]
  end

  defp vm(settings) do
    [
      {"schedulers", "#{settings.schedulers} on #{settings.processors} processors"},
      {"dirty CPU", "#{settings.dirty_cpu} schedulers"},
      {"busy wait", "+sbwt #{settings.busy_wait}"},
      {"background", background()}
    ]
  end

  # Describes the priority of the threads that train and import.
  defp background do
    priority = Enum.find(Config.shown(), &(&1.name == :background))

    with false <- Map.has_key?(priority, :wrong),
         :ok <- Call.give_way(),
         {:ok, given} <- Call.run(&Native.background_given/1) do
      if given,
        do: "training and import run at #{priority.value} priority",
        else: "training and import run at normal priority: this system does not lower it"
    else
      true -> "unknown: the setting is not valid"
      {:error, _reason} -> "unknown without the native library"
    end
  end

  defp harmful(settings) do
    case VM.harmful(settings) ++ Config.harmful() do
      [] -> [{"nothing", "of this VM's flags (an app's own are in its rel/vm.args.eex)"}]
      harmful -> harmful
    end
  end

  defp versions(info) do
    [
      {"sconce", Sconce.version()},
      {"elixir", "#{System.version()} on OTP #{System.otp_release()}"},
      {"cargo", version_of(cargo()) || "not found"},
      {"rustc", version_of("rustc") || "not found"},
      {"candle", info[:candle] || "unknown without the native library"},
      {"rustler", info[:rustler] || "unknown without the native library"}
    ]
  end

  defp machine(info) do
    [
      {"system", "#{system()}, #{:erlang.system_info(:system_architecture)}"},
      {"cpu", "#{:erlang.system_info(:logical_processors_available)} threads, #{features(info)}"},
      {"memory", memory()}
    ]
  end

  defp features(%{cpu: cpu}) do
    case for {name, true} <- cpu, do: name do
      [] -> "none of #{Enum.map_join(cpu, " ", &elem(&1, 0))}"
      found -> Enum.join(found, " ")
    end
  end

  defp features(_unknown), do: "features unknown without the native library"

  defp native_library(:ok, info),
    do: [
      {"loaded", "#{library()} (#{info[:profile]}, rustc #{info[:rustc]}#{cards(info)})"},
      {"packed weights", "maps those for #{info[:packed]}"}
    ]

  defp native_library({:error, reason}, _info), do: [{"not loaded", reason}]

  defp tuner do
    case Tuner.info() do
      {:ok, info} ->
        {holding, refused} = Enum.split_with(info.entries, & &1.holds?)
        off = if info.enabled, do: "", else: "; switched off"
        count = Figures.counted(length(holding), "measured choice")
        [{"kept", "#{count} for this machine in #{info.dir}#{off}"} | refused(refused)]

      {:error, error} ->
        [{"unknown", Exception.message(error)}]
    end
  end

  defp refused(entries) do
    for {why, same} <- Enum.group_by(entries, & &1.why) |> Enum.sort(),
        do: {"refused", "#{length(same)}: #{why}"}
  end

  defp cards(%{flash_attn: true}), do: ", for NVIDIA cards with flash attention"
  defp cards(%{cuda: true}), do: ", for NVIDIA cards"
  defp cards(_cpu), do: ""

  defp settings do
    for {name, meaning} <- Config.build_variables() do
      {to_string(name), System.get_env(to_string(name)) || "unset (#{meaning})"}
    end
  end

  defp configuration do
    for %{name: name, value: value, source: source} = setting <- Config.shown() do
      wrong = if setting[:wrong], do: ", wrong", else: ""
      {to_string(name), "#{inspect(value)} (#{Config.source_text(source)}#{wrong})"}
    end
  end

  # Invalid settings, each with the expected value.
  defp wrong do
    for setting <- Config.wrong(),
        do: {Config.source_text(setting.source), Config.wrong_value(setting)}
  end

  defp wrong_build do
    known = ["", "0", "false", "1", "true", "flash-attn"]
    value = System.get_env("SCONCE_CUDA", "")
    if value in known, do: [], else: [{"SCONCE_CUDA", "expected 1 or flash-attn, got: #{value}"}]
  end

  # A configured device that cannot be used.
  defp wrong_device({:error, _reason}), do: []

  defp wrong_device(:ok) do
    setting = Enum.find(Config.shown(), &(&1.name == :device))
    told = if Config.wrong() == [], do: Sconce.Device.resolve_run(nil)

    case told do
      {:error, error} -> [{Config.source_text(setting.source), reason(error.details)}]
      _usable -> []
    end
  rescue
    wrong in ArgumentError -> [{"device", Exception.message(wrong)}]
  end

  defp reason(%{reason: reason, mend: mend}), do: "#{reason} (to mend it: #{mend})"

  defp ignored do
    case for({name, value, why} <- Config.ignored(), do: {name, "#{value} (#{why})"}) do
      [] -> [{"nothing", "no setting of Nx, EXLA or ExPhil was found"}]
      ignored -> ignored
    end
  end

  # Pairs of a missing part and its remedy.
  defp missing(native) do
    build = if File.exists?(@checksums), do: [], else: missing_rust() ++ missing_compiler()
    build ++ missing_native(native) ++ missing_locale()
  end

  defp missing_rust do
    cond do
      version_of(cargo()) == nil -> [{"cargo", @rustup}]
      version_of("rustc") == nil -> [{"rustc", @rustup}]
      Version.compare(version_of("rustc"), @rust) == :lt -> [{"rustc #{@rust}", newer_rust()}]
      true -> []
    end
  end

  defp newer_rust, do: if(System.find_executable("rustup"), do: "rustup update", else: @rustup)

  defp missing_compiler do
    cond do
      System.find_executable("cc") ->
        []

      System.find_executable("apt-get") ->
        [{"C compiler", "sudo apt-get install -y gcc libc6-dev"}]

      true ->
        [{"C compiler", "install gcc or clang, as `cc`"}]
    end
  end

  defp missing_native(:ok), do: []
  defp missing_native({:error, _reason}), do: [{"native library", build_command()}]

  defp build_command do
    cond do
      System.get_env("SCONCE_SKIP_NATIVE") -> "unset SCONCE_SKIP_NATIVE; #{compile()}"
      true -> compile()
    end
  end

  defp compile do
    if Mix.Project.config()[:app] == :sconce,
      do: "mix compile --force",
      else: "mix deps.compile sconce --force"
  end

  defp missing_locale do
    case :file.native_name_encoding() do
      :utf8 -> []
      _latin1 -> [{"UTF-8 file names", "export LC_ALL=C.UTF-8 ELIXIR_ERL_OPTIONS=+fnu"}]
    end
  end

  defp native_info do
    case Sconce.native_info() do
      {:ok, info} -> info
      {:error, _reason} -> %{}
    end
  end

  defp library, do: Path.join(to_string(:code.priv_dir(:sconce)), "native/sconce_nif.so")
  defp cargo, do: System.get_env("CARGO", "cargo")

  # `cargo 1.95.0 (f2d3ce0bd 2026-03-21)` is 1.95.0; nil if the program is missing.
  defp version_of(program) do
    with path when path != nil <- System.find_executable(program),
         {output, 0} <- System.cmd(path, ["--version"], stderr_to_stdout: true),
         [version] <- Regex.run(~r/\d+\.\d+\.\d+/, output) do
      version
    else
      _ -> nil
    end
  end

  defp system do
    with {:ok, text} <- File.read("/etc/os-release"),
         [_, name] <- Regex.run(~r/^PRETTY_NAME="(.+)"$/m, text) do
      name
    else
      _ -> inspect(:os.type())
    end
  end

  defp memory do
    case {Memory.total(), Memory.available()} do
      {total, %{bytes: free, bound: bound}} when is_integer(total) ->
        "#{gib(total)} GiB, #{gib(free)} GiB available (#{Memory.bound(bound)})"

      _unknown ->
        "unknown on this system"
    end
  end

  defp gib(bytes), do: Float.round(bytes / 1_073_741_824, 1)

  defp print_section({title, rows}) do
    width = rows |> Enum.map(fn {name, _text} -> String.length(name) end) |> Enum.max()
    Mix.shell().info("\n#{title}")

    for {name, text} <- rows,
        do: Mix.shell().info(Text.lines("  #{String.pad_trailing(name, width)}  #{text}"))
  end
end
