Code.require_file("cargo.exs", __DIR__)
Code.require_file("library.exs", __DIR__)
Code.require_file("precompiled.exs", __DIR__)

defmodule Mix.Tasks.Compile.SconceNative do
  @shortdoc "Installs the native part of Sconce: the published library, or one that cargo builds"

  @moduledoc """
  Installs the native library of Sconce where the VM loads it.

  A published package has checksums of libraries, and the one for this machine is downloaded, see
  `Sconce.Build.Precompiled`. Everything else is built with cargo: a copy from git, the environments `:dev` and `:test`
  of Sconce itself, a machine for which no library is published, and whatever the variables below ask for.

  Functions that only tests and benchmarks call need the cargo feature `fixtures`. The feature is off in the
  environment `:prod`, in which Mix compiles dependencies, so apps do not get these functions.

  Cargo is not started if no source has changed. Cargo's target folder is shared by all Mix environments and by
  all apps that depend on this copy of Sconce. The library is copied into each `_build`.

  | environment variable | effect |
  |---|---|
  | `SCONCE_BUILD=1` | builds the library, even if one is published |
  | `SCONCE_PRECOMPILED_URL` | address of the folder of published libraries; an app may also set `config :sconce, precompiled_url: url` |
  | `SCONCE_CACHE_DIR` | folder of downloaded libraries, `sconce` in the user's cache by default |
  | `SCONCE_NATIVE_PATH=file.so` | installs this library, which was built elsewhere, and builds nothing |
  | `SCONCE_SKIP_NATIVE=1` | builds nothing, and leaves the library that is in place |
  | `SCONCE_CUDA=1` | supports NVIDIA cards; needs `bin/cuda-toolkit`; the library also loads without CUDA |
  | `SCONCE_CUDA=flash-attn` | supports NVIDIA cards, with flash attention |
  | `SCONCE_PROFILE` | cargo's profile, `release` by default; `profiling` keeps line tables and frame pointers |
  | `SCONCE_FEATURES` | cargo features, comma-separated; `fixtures` is added outside of `MIX_ENV=prod` |
  | `SCONCE_TARGET_DIR` | cargo's target folder, `target` beside `mix.exs` by default; for CUDA its subfolder `cuda` |
  | `CARGO` | the cargo to use |
  | `CI` | if set, `Cargo.lock` has to be up to date (`--locked`) |
  """

  use Mix.Task.Compiler
  alias Mix.Task.Compiler.Diagnostic
  alias Sconce.Build.{Cargo, Library, Precompiled}

  @recursive true
  @crate "sconce-nif"
  @library "sconce_nif"
  @sources ["Cargo.toml", "Cargo.lock", "native/*/Cargo.toml", "native/*/build.rs"] ++
             ["native/*/src/**/*.{rs,toml}", "native/**/*.{cu,cuh}", "tools/cuda-kernels"] ++
             ["tools/gemm/**/*.{rs,toml}"]

  @impl true
  def run(args) do
    cond do
      doctor?() -> {:noop, []}
      given = given() -> install_given(given, args)
      flag?("SCONCE_SKIP_NATIVE") -> skip()
      published = published() -> install_published(published, args)
      true -> build_stale(args, fingerprint(root()))
    end
  end

  defp given do
    path = System.get_env("SCONCE_NATIVE_PATH", "")
    if path != "", do: path
  end

  defp install_given(path, args) do
    # A relative path would be resolved in the folder of a dependency.
    with :absolute <- Path.type(path),
         {:ok, %File.Stat{size: size, mtime: mtime}} <- File.stat(path, time: :posix) do
      changed("#{path} #{size} #{mtime} #{version()}", args, fn ->
        Mix.shell().info("Installing the native part of Sconce from #{path}")
        read_given(path)
      end)
    else
      :relative -> refuse_given(path, "is relative, expected an absolute path")
      {:error, reason} -> refuse_given(path, to_string(:file.format_error(reason)))
    end
  end

  defp read_given(path) do
    with {:ok, bytes} <- File.read(path),
         {:ok, target} <- Library.check(bytes, version()) do
      if target != Library.target(),
        do: Mix.shell().info("It runs on #{target}; this machine is #{Library.target()}")

      {:ok, bytes}
    else
      {:error, why} when is_binary(why) -> refuse_given(path, why)
      {:error, reason} -> refuse_given(path, to_string(:file.format_error(reason)))
    end
  end

  defp refuse_given(path, why),
    do: {:error, [refused(path, "SCONCE_NATIVE_PATH: #{path}: #{why}")]}

  # Without a published library for this machine, cargo builds one if it is there.
  defp published do
    asked = Mix.env() != :prod or flag?("SCONCE_BUILD") or cuda?() or features() != ""
    asked = asked or System.get_env("SCONCE_PROFILE", "") != ""
    published = if not asked, do: Precompiled.published(root())

    if published && (Map.has_key?(published.archives, archive()) or cargo() == nil),
      do: published
  end

  defp install_published(published, args) do
    changed("#{archive()} #{published.archives[archive()]}", args, fn ->
      with {:error, text} <-
             Precompiled.library(published, version(), Library.target(), precompiled_url()) do
        {:error, [refused(archive(), text)]}
      end
    end)
  end

  defp precompiled_url do
    case System.get_env("SCONCE_PRECOMPILED_URL", "") do
      "" -> Application.get_env(:sconce, :precompiled_url)
      url -> url
    end
  end

  # `read` returns the bytes of the library; it is called if the library in place is another one.
  defp changed(fingerprint, args, read) do
    if "--force" not in args and fresh?(fingerprint) do
      {:noop, []}
    else
      with {:ok, bytes} <- read.() do
        Library.install(bytes, library())
        remember(fingerprint)
        {:ok, []}
      end
    end
  end

  # A release without the library would start and answer each call with an error, so the build fails here.
  defp skip do
    if release?() and not File.exists?(library()) do
      text =
        "SCONCE_SKIP_NATIVE is set and there is no native library for this release: unset it, or set " <>
          "SCONCE_NATIVE_PATH to a library that was built elsewhere"

      {:error, [refused(library(), text)]}
    else
      {:noop, []}
    end
  end

  # Mix compiles a dependency in the environment :prod; the variable has the environment of the app.
  defp release?, do: System.get_env("MIX_ENV") == "prod" or match?(["release" | _], System.argv())

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

  @doc "Returns the path from which the VM loads the library."
  def library, do: Path.join([Mix.Project.app_path(), "priv", "native", @library <> ".so"])

  @doc """
  Returns a digest of all inputs of the build: path, size and time of each source, and the settings.
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

  defp build(fingerprint, environment) do
    cargo = cargo!()
    Mix.shell().info("Building the native part of Sconce (#{profile()})")

    case Cargo.run(cargo, cargo_args(), root(), environment ++ frame_pointers()) do
      {0, diagnostics} ->
        Library.install(File.read!(built()), library())
        remember(fingerprint)
        {:ok, diagnostics}

      {_status, diagnostics} ->
        {:error, diagnostics}
    end
  end

  defp remember(fingerprint) do
    File.mkdir_p!(Path.dirname(manifest()))
    File.write!(manifest(), fingerprint)
  end

  # A profiler follows frame pointers from a native function to its callers.
  defp frame_pointers do
    flags = "#{System.get_env("RUSTFLAGS")} -C force-frame-pointers=yes"
    if profile() == "profiling", do: [{"RUSTFLAGS", String.trim(flags)}], else: []
  end

  defp environment, do: if(cuda?(), do: toolkit(), else: {:ok, []})

  # The environment variables of the toolkit for cargo, or a diagnostic if it is not installed.
  defp toolkit do
    script = Path.join(root(), "bin/cuda-toolkit")

    case System.cmd(script, ["--env"], stderr_to_stdout: true) do
      {lines, 0} ->
        variables = Regex.scan(~r/^(\w+)=(.+)$/m, lines, capture: :all_but_first)
        {:ok, Enum.map(variables, &List.to_tuple/1)}

      {reason, _status} ->
        # The script prints its path relative to the folder of Sconce, but an app has another folder.
        reason = String.replace(String.trim(reason), "bin/cuda-toolkit", script)
        {:error, [refused(script, "SCONCE_CUDA: " <> reason)]}
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

  defp cargo, do: System.find_executable(System.get_env("CARGO", "cargo"))

  defp cargo! do
    cargo() ||
      Mix.raise(
        "Sconce builds its native part with cargo, which was not found: " <>
          "install Rust (https://rustup.rs) and run the command again."
      )
  end

  # Cargo names the folder after the profile, except that `dev` builds into `debug`.
  defp built do
    folder = if profile() == "dev", do: "debug", else: profile()
    extension = if match?({:unix, :darwin}, :os.type()), do: "dylib", else: "so"
    Path.join([target_dir(), folder, "lib#{@library}.#{extension}"])
  end

  # The doctor inspects the installation as it is, even if nothing can be built.
  defp doctor?, do: match?(["sconce.doctor" | _], System.argv())

  defp fresh?(fingerprint),
    do: File.exists?(library()) and File.read(manifest()) == {:ok, fingerprint}

  defp flag?(name), do: System.get_env(name, "") not in ["", "0", "false"]

  defp profile do
    with "" <- System.get_env("SCONCE_PROFILE", ""), do: "release"
  end

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

  defp version, do: Mix.Project.config()[:version]
  defp archive, do: Precompiled.archive(version(), Library.target())
  defp root, do: Path.dirname(Mix.Project.project_file())
  defp manifest, do: Path.join(Mix.Project.manifest_path(), "compile.sconce_native")

  # Cargo names a library after its crate only, so a build with other features needs another folder.
  defp target_dir do
    folder = Path.expand(System.get_env("SCONCE_TARGET_DIR", "target"), root())
    if cuda?(), do: Path.join(folder, "cuda"), else: folder
  end
end
