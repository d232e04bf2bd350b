Code.require_file("cargo.exs", __DIR__)

defmodule Mix.Tasks.Compile.SconceNative do
  @shortdoc "Builds the native part of Sconce with cargo"

  @moduledoc """
  Builds the native part of Sconce with cargo and puts it where the VM loads it from.

  What only tests and benchmarks call stands behind the feature `fixtures`. It is off in the environment `:prod`,
  which is that of a dependency: an app does without.

  Cargo is not started when nothing it builds from has changed. Its target folder is shared by all
  Mix environments and by all apps that depend on this copy of Sconce; the library is copied into
  each `_build`.

  | environment variable | effect |
  |---|---|
  | `SCONCE_SKIP_NATIVE=1` | builds nothing |
  | `SCONCE_CUDA=1` | for NVIDIA cards, too; wants what `bin/cuda-toolkit` lays out, and loads where there is no CUDA |
  | `SCONCE_CUDA=flash-attn` | the same with flash attention |
  | `SCONCE_PROFILE` | cargo's profile, `release` by default |
  | `SCONCE_FEATURES` | cargo features, comma-separated; outside of `MIX_ENV=prod` `fixtures` is one |
  | `SCONCE_TARGET_DIR` | cargo's target folder, `target` beside `mix.exs` by default; with CUDA `cuda` in it |
  | `CARGO` | the cargo to use |
  | `CI` | set: `Cargo.lock` must fit (`--locked`) |
  """

  use Mix.Task.Compiler
  alias Mix.Task.Compiler.Diagnostic
  alias Sconce.Build.Cargo

  @recursive true
  @crate "sconce-nif"
  @library "sconce_nif"
  @sources ["Cargo.toml", "Cargo.lock", "native/*/Cargo.toml", "native/*/build.rs"] ++
             ["native/*/src/**/*.{rs,toml}", "native/**/*.{cu,cuh}", "tools/cuda-kernels"]

  @impl true
  def run(args) do
    if skip?(), do: {:noop, []}, else: build_stale(args, fingerprint(root()))
  end

  defp build_stale(args, fingerprint) do
    if "--force" not in args and fresh?(fingerprint),
      do: {:noop, []},
      else: with({:ok, environment} <- environment(), do: build(fingerprint, environment))
  end

  @impl true
  def manifests, do: [manifest()]

  @impl true
  def clean do
    File.rm(manifest())
    File.rm(library())
    :ok
  end

  @doc "Where the VM loads the library from."
  def library, do: Path.join([Mix.Project.app_path(), "priv", "native", @library <> ".so"])

  @doc """
  A digest of everything the library is built from: path, size and time of each source, and the
  settings.
  """
  def fingerprint(root) do
    sources =
      for pattern <- @sources, path <- Path.wildcard(Path.join(root, pattern)) do
        %File.Stat{size: size, mtime: mtime} = File.stat!(path, time: :posix)
        {Path.relative_to(path, root), size, mtime}
      end

    settings = [profile(), features(), System.get_env("RUSTFLAGS")]
    {sources, settings} |> :erlang.term_to_binary() |> :erlang.md5() |> Base.encode16()
  end

  @doc """
  Copies beside the destination and renames: a running VM may have the old file mapped, and writing
  into that would kill it.
  """
  def install(source, destination) do
    File.mkdir_p!(Path.dirname(destination))
    beside = "#{destination}.#{System.pid()}"
    File.cp!(source, beside)
    File.rename!(beside, destination)
  end

  defp build(fingerprint, environment) do
    cargo = cargo!()
    Mix.shell().info("Building the native part of Sconce (#{profile()})")

    case Cargo.run(cargo, cargo_args(), root(), environment) do
      {0, diagnostics} ->
        install(built(), library())
        File.mkdir_p!(Path.dirname(manifest()))
        File.write!(manifest(), fingerprint)
        {:ok, diagnostics}

      {_status, diagnostics} ->
        {:error, diagnostics}
    end
  end

  defp environment, do: if(cuda?(), do: toolkit(), else: {:ok, []})

  # What cargo has to know of the toolkit, or what is said where there is none.
  defp toolkit do
    script = Path.join(root(), "bin/cuda-toolkit")

    case System.cmd(script, ["--env"], stderr_to_stdout: true) do
      {lines, 0} ->
        variables = Regex.scan(~r/^(\w+)=(.+)$/m, lines, capture: :all_but_first)
        {:ok, Enum.map(variables, &List.to_tuple/1)}

      {reason, _status} ->
        {:error, [refused(script, "SCONCE_CUDA: " <> String.trim(reason))]}
    end
  end

  defp refused(file, message) do
    Mix.shell().error(message)

    %Diagnostic{
      compiler_name: "cargo",
      severity: :error,
      message: message,
      file: file,
      position: 0
    }
  end

  defp cargo_args do
    ["build", "--package", @crate, "--profile", profile(), "--target-dir", target_dir()] ++
      if(features() == "", do: [], else: ["--features", features()]) ++
      if(cuda?(), do: ["--config", Path.join(root(), "tools/cuda-toolkit/cargo.toml")], else: []) ++
      if(flag?("CI"), do: ["--locked"], else: [])
  end

  defp cargo! do
    System.find_executable(System.get_env("CARGO", "cargo")) ||
      Mix.raise(
        "Sconce builds its native part with cargo, which was not found: " <>
          "install Rust (https://rustup.rs) and run the command again."
      )
  end

  # Cargo names the folder after the profile, except for its oldest one.
  defp built do
    folder = if profile() == "dev", do: "debug", else: profile()
    extension = if match?({:unix, :darwin}, :os.type()), do: "dylib", else: "so"
    Path.join([target_dir(), folder, "lib#{@library}.#{extension}"])
  end

  # The doctor looks at what is there, also where nothing can be built.
  defp skip?, do: flag?("SCONCE_SKIP_NATIVE") or match?(["sconce.doctor" | _], System.argv())

  defp fresh?(fingerprint),
    do: File.exists?(library()) and File.read(manifest()) == {:ok, fingerprint}

  defp flag?(name), do: System.get_env(name, "") not in ["", "0", "false"]
  defp profile, do: System.get_env("SCONCE_PROFILE", "release")
  defp cuda?, do: cuda() != []

  defp cuda do
    case System.get_env("SCONCE_CUDA", "") do
      off when off in ["", "0", "false"] -> []
      on when on in ["1", "true"] -> ["cuda"]
      "flash-attn" -> ["flash-attn"]
      other -> Mix.raise("SCONCE_CUDA: expected 1 or flash-attn, got: #{other}")
    end
  end

  defp features do
    given = System.get_env("SCONCE_FEATURES", "") |> String.split(",", trim: true)
    fixtures = if Mix.env() == :prod, do: [], else: ["fixtures"]
    Enum.join(given ++ cuda() ++ fixtures, ",")
  end

  defp root, do: Path.dirname(Mix.Project.project_file())
  defp manifest, do: Path.join(Mix.Project.manifest_path(), "compile.sconce_native")

  # Cargo names a library by its crate alone: with other features it would be the same file.
  defp target_dir do
    folder = Path.expand(System.get_env("SCONCE_TARGET_DIR", "target"), root())
    if cuda?(), do: Path.join(folder, "cuda"), else: folder
  end
end
