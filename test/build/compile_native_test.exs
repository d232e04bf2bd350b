defmodule Sconce.Build.CompileNativeTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Mix.Tasks.Compile.SconceNative
  alias Sconce.Build.{Cargo, Library}

  @moduletag timeout: 300_000

  test "an unchanged source is not built again" do
    assert SconceNative.run([]) == {:noop, []}
  end

  test "the source has no priv folder, because Mix would link it into every build" do
    refute File.exists?("priv")
  end

  test "the fingerprint depends only on the sources" do
    root = native_project!()
    before = SconceNative.fingerprint(root)

    File.write!(Path.join(root, "README.md"), "more")
    File.write!(Path.join(root, "native/nif/notes.txt"), "more")
    assert SconceNative.fingerprint(root) == before

    File.touch!(Path.join(root, "native/nif/src/lib.rs"), 0)
    touched = SconceNative.fingerprint(root)
    assert touched != before

    File.write!(Path.join(root, "native/nif/src/new.rs"), "")
    assert SconceNative.fingerprint(root) != touched
  end

  test "the library is replaced by renaming, so a mapped library stays whole" do
    library = Path.join(tmp_dir!(), "native/lib.so")
    Library.install("old", library)
    before = File.stat!(library).inode
    {:ok, mapped} = File.open(library)
    Library.install("new", library)

    assert File.read!(library) == "new"
    assert File.stat!(library).inode != before
    assert IO.read(mapped, :eof) == "old"
    assert File.ls!(Path.dirname(library)) == ["lib.so"]
  end

  test "a project is built once, and again only after a change" do
    root = native_project!()
    library = Path.join(root, "_build/prod/lib/sconce/priv/native/sconce_nif.so")
    without_cargo = [{"CARGO", "/nowhere/cargo"}]

    assert {output, 0} = mix(["compile"], root)
    assert output =~ "Compiling sconce-nif v0.0.0"
    assert File.exists?(library)
    assert {_output, 0} = mix(["compile"], root, without_cargo)

    write_lib!(root, "pub fn two() {}\npub fn three() {}\n")
    inode = File.stat!(library).inode
    assert {_output, 0} = mix(["compile"], root)
    assert File.stat!(library).inode != inode

    write_lib!(root, "\npub fn broken() -> u32 { \"text\" }\n")
    assert {output, 1} = mix(["compile"], root)
    assert output =~ "error[E0308]: mismatched types"
    assert output =~ "--> native/nif/src/lib.rs:2:26"
    assert {_output, 0} = mix(["compile"], root, [{"SCONCE_SKIP_NATIVE", "1"}])
  end

  test "without cargo the error names the remedy in one sentence" do
    assert {output, 1} = mix(["compile"], native_project!(), [{"CARGO", "/nowhere/cargo"}])

    assert [sentence] = String.split(output, "\n", trim: true)

    assert sentence =~
             "cargo, which was not found: install Rust (https://rustup.rs) and run the command again."
  end

  test "a library that was built elsewhere is installed, again when it changes" do
    root = native_project!()
    library = Path.join(root, "_build/prod/lib/sconce/priv/native/sconce_nif.so")
    given = Path.join(root, "given.so")
    env = [{"SCONCE_NATIVE_PATH", given}, {"CARGO", "/nowhere/cargo"}]

    assert {output, 1} = mix(["compile"], root, env)
    assert output =~ "SCONCE_NATIVE_PATH: #{given}: no such file or directory"

    File.write!(given, "no library")
    assert {output, 1} = mix(["compile"], root, env)
    assert output =~ "SCONCE_NATIVE_PATH: #{given}: is no native library of Sconce"

    assert {output, 1} = mix(["compile"], root, [{"SCONCE_NATIVE_PATH", "given.so"}])
    assert output =~ "SCONCE_NATIVE_PATH: given.so: is relative, expected an absolute path"

    File.write!(given, "\0sconce-nif 0.0.9 #{Library.target()}\0")
    assert {output, 1} = mix(["compile"], root, env)
    assert output =~ "#{given}: is the native library of Sconce 0.0.9 for #{Library.target()}"

    other = "\0sconce-nif #{Mix.Project.config()[:version]} riscv64gc-unknown-linux-gnu\0"
    File.write!(given, other)
    assert {output, 0} = mix(["compile"], root, env)
    assert output =~ "It runs on riscv64gc-unknown-linux-gnu; this machine is #{Library.target()}"

    name = "\0sconce-nif #{Mix.Project.config()[:version]} #{Library.target()}\0"

    for bytes <- ["one" <> name, "number two" <> name] do
      File.write!(given, bytes)
      assert {output, 0} = mix(["compile"], root, env)
      assert output =~ "Installing the native part of Sconce from #{given}"
      assert File.read!(library) == bytes
    end

    assert {output, 0} = mix(["compile"], root, env)
    refute output =~ "Installing"
  end

  test "a release without the library fails when it is made" do
    root = native_project!()
    skip = [{"SCONCE_SKIP_NATIVE", "1"}]
    assert {output, 1} = mix(["compile"], root, [{"MIX_ENV", "prod"} | skip])
    assert output =~ "there is no native library for this release"
    assert output =~ "SCONCE_NATIVE_PATH"
    assert {_output, 0} = mix(["compile"], root, [{"MIX_ENV", "dev"} | skip])
  end

  test "a build with CUDA is another library in its own folder, and needs the toolkit" do
    root = native_project!()
    features = "[features]\ncuda = []\nflash-attn = []\n"
    File.write!(Path.join(root, "native/nif/Cargo.toml"), features, [:append])
    for part <- ["bin", "tools"], do: File.cp_r!(part, made!(Path.join(root, part)))
    cuda = [{"SCONCE_CUDA", "1"}, {"SCONCE_CUDA_DIR", Path.join(root, "cuda")}]

    assert {output, 1} = mix(["compile"], root, cuda)
    assert [_, toolkit] = Regex.run(~r/^SCONCE_CUDA: CUDA's toolkit is not in (.+) \(/m, output)
    assert output =~ "(to mend it: #{root}/bin/cuda-toolkit)"

    File.mkdir_p!(toolkit)
    assert {_output, 0} = mix(["compile"], root, cuda)
    assert File.exists?(Path.join(root, "target/cuda/release/libsconce_nif.so"))
    refute File.exists?(Path.join(root, "target/release"))
    assert {_output, 0} = mix(["compile"], root)
    assert File.exists?(Path.join(root, "target/release/libsconce_nif.so"))

    write_lib!(root, ~s|#[cfg(feature = "flash-attn")] compile_error!("with flash attention");\n|)
    assert {_output, 0} = mix(["compile"], root, cuda)
    assert {output, 1} = mix(["compile"], root, [{"SCONCE_CUDA", "flash-attn"} | tl(cuda)])
    assert output =~ "with flash attention"
    assert {output, 1} = mix(["compile"], root, [{"SCONCE_CUDA", "flash"} | tl(cuda)])
    assert output =~ "SCONCE_CUDA: expected 1 or flash-attn, got: flash"
  end

  test "rustc's diagnostics become Mix's, with file, line and text" do
    root = native_project!()
    source = Path.join(root, "native/nif/src/lib.rs")

    write_lib!(root, "fn unused() {}\n")
    assert {0, [warning]} = check(root)
    assert %{severity: :warning, file: ^source, position: 1, compiler_name: "cargo"} = warning
    assert warning.message =~ "function `unused` is never used"

    write_lib!(root, "\npub fn broken() -> u32 {\n    \"text\"\n}\n")
    assert {101, [error]} = check(root)
    assert %{severity: :error, file: ^source, position: 3, details: %{code: "E0308"}} = error
    assert error.message =~ "error[E0308]: mismatched types\n --> native/nif/src/lib.rs:3:5"
    assert error.message =~ "expected `u32`, found `&str`"
  end

  test "a failure without a source location is cargo's own message" do
    root = native_project!()
    File.write!(Path.join(root, "native/nif/Cargo.toml"), "[package]\n")

    assert {status, [error | _]} = check(root)
    assert status != 0
    assert %{severity: :error, position: 0} = error
    assert error.file == Path.join(root, "Cargo.toml")
  end

  test "colours do not hide a diagnostic" do
    lines = [
      "\e[1m\e[33mwarning\e[0m\e[1m: unused variable: `x`\e[0m",
      " \e[1m\e[94m--> \e[0mnative/core/src/a.rs:7:9",
      "  |",
      "",
      "\e[33mwarning\e[0m: `sconce-nn` (lib) generated 1 warning"
    ]

    assert [%{severity: :warning, file: "/project/native/core/src/a.rs", position: 7} = warning] =
             Cargo.diagnostics(lines, "/project")

    assert warning.message == "warning: unused variable: `x`\n --> native/core/src/a.rs:7:9\n  |"
  end

  test "a missing library is a typed error at each call, not a crash" do
    ebin = Path.join(tmp_dir!(), "sconce/ebin")
    File.mkdir_p!(Path.dirname(ebin))
    File.cp_r!(Application.app_dir(:sconce, "ebin"), ebin)

    script = """
    {:error, error} = Sconce.native_info()
    {:error, ^error} = Sconce.native_info()
    IO.puts(error.kind)
    IO.puts(Exception.message(error))
    """

    assert {output, 0} = run("elixir", ["-pa", ebin, "-e", script], System.tmp_dir!())
    assert ["unavailable", sentence] = String.split(output, "\n", trim: true)
    assert sentence =~ "native_info: native library: Failed to load NIF library"
    assert sentence =~ "mix sconce.doctor"
  end

  # A project with Sconce's mix.exs and compiler and a native part that builds quickly.
  defp native_project! do
    root = tmp_dir!("native")
    File.cp!("mix.exs", Path.join(root, "mix.exs"))
    File.cp_r!("build", Path.join(root, "build"))
    File.mkdir_p!(Path.join(root, "native/nif/src"))
    File.write!(Path.join(root, "Cargo.toml"), ~s([workspace]\nmembers = ["native/nif"]\n))

    File.write!(Path.join(root, "native/nif/Cargo.toml"), """
    [package]
    name = "sconce-nif"
    version = "0.0.0"
    [lib]
    name = "sconce_nif"
    crate-type = ["cdylib"]
    """)

    write_lib!(root, "pub fn one() {}\n")
    {_output, 0} = run("cargo", ["generate-lockfile"], root)
    root
  end

  defp made!(folder), do: tap(folder, &File.mkdir_p!/1)

  defp write_lib!(root, source), do: File.write!(Path.join(root, "native/nif/src/lib.rs"), source)

  defp check(root) do
    cargo = System.find_executable("cargo")
    args = ["check", "--target-dir", Path.join(root, "target")]

    {result, _echoed} = with_io(:stderr, fn -> Cargo.run(cargo, args, root) end)

    result
  end
end
