defmodule Sconce.PackageTest do
  use ExUnit.Case, async: false

  import Sconce.Test.Scratch

  @root Path.expand("../..", __DIR__)

  test "a package contains each member of the cargo workspace" do
    [_, members] =
      Regex.run(~r/^members = \[(.*)\]$/m, File.read!(Path.join(@root, "Cargo.toml")))

    files = Sconce.MixProject.project()[:package][:files]

    for [_, member] <- Regex.scan(~r/"([^"]+)"/, members), part <- ["Cargo.toml", "src"] do
      path = Path.join(member, part)
      assert Enum.any?(files, &(path == &1 or String.starts_with?(path, &1 <> "/"))), path
    end
  end

  test "a package links to the repository that a release names" do
    System.put_env("SCONCE_SOURCE_URL", "https://example.org/sconce")
    on_exit(fn -> System.delete_env("SCONCE_SOURCE_URL") end)
    project = Sconce.MixProject.project()
    assert project[:source_url] == "https://example.org/sconce"
    assert %{"Source" => _, "Changelog" => changelog} = project[:package][:links]
    assert changelog =~ ~r{^https://example.org/sconce/.*CHANGELOG.md$}
    assert project[:package][:licenses] == ["Apache-2.0"]
    assert byte_size(project[:description]) in 20..300
  end

  test "Elixir and Rust have one version" do
    workspace = File.read!(Path.join(@root, "Cargo.toml"))
    assert capture(workspace, ~r/^version = "(.+)"$/m) == Mix.Project.config()[:version]
  end

  test "a package has no tests, and is small" do
    named = Sconce.MixProject.project()[:package][:files]
    for path <- named, do: assert(File.exists?(Path.join(@root, path)), path)
    files = files()
    assert "native/nif/Cargo.toml" in files

    for file <- files do
      refute file =~ ~r{(^|/)tests?(/|\.rs$)}, file
      refute file =~ ~r/\.(safetensors|slp|npz|bin)$/, file
      refute String.starts_with?(file, ["test/", "bench/", "fuzz/corpus"]), file
    end

    archive = Path.join(tmp_dir!("package"), "contents.tar.gz")
    entries = for file <- files, do: {to_charlist(file), to_charlist(Path.join(@root, file))}
    :ok = :erl_tar.create(archive, entries, [:compressed])
    assert File.stat!(archive).size < 5_000_000
  end

  test "Rust's workspace is whole in a package" do
    root = tmp_dir!("package")

    for file <- files() do
      File.mkdir_p!(Path.join(root, Path.dirname(file)))
      File.cp!(Path.join(@root, file), Path.join(root, file))
    end

    metadata = ~w(metadata --locked --no-deps --format-version 1)
    assert {output, 0} = run("cargo", metadata, root)
    assert output =~ ~s("name":"sconce-nif")
  end

  test "a package contains the programs of a build with CUDA" do
    files = Sconce.MixProject.project()[:package][:files]
    for folder <- ~w(bin tools native), do: assert(folder in files)
    build = File.read!(Path.join(@root, "native/cuda/build.rs"))
    [_, program] = Regex.run(~r{"\.\./\.\./(tools/[\w-]+)"}, build)
    assert File.regular?(Path.join(@root, program))
  end

  test "each crate outside the workspace is published and has a checksum" do
    # The one patch is a crate of this repository.
    cargo = File.read!(Path.join(@root, "Cargo.toml"))
    assert [_before, patches] = String.split(cargo, "[patch.crates-io]\n")
    assert ["gemm = { path = \"tools/gemm\" }" | _profiles] = String.split(patches, "\n\n")
    [_ | packages] = String.split(File.read!(Path.join(@root, "Cargo.lock")), "[[package]]\n")
    names = for package <- packages, do: capture(package, ~r/^name = "(.+)"$/m)
    own = for {name, package} <- Enum.zip(names, packages), not (package =~ "source ="), do: name

    assert Enum.reject(own, &String.starts_with?(&1, "sconce-")) == ["gemm"]
    assert ["candle-flash-attn", "candle-kernels"] -- names == []

    for {name, package} <- Enum.zip(names, packages), name not in own do
      assert package =~ ~r/^checksum = "[0-9a-f]{64}"$/m, name
    end
  end

  test "each bound in SECURITY.md equals the constant in the file that it names" do
    rows = Regex.scan(~r/^\| [^|]+ \| `([^`|]+)` \| ([^|]+) \| `([^`|]+)` \|$/m, security())

    compared =
      for [_, names, values, places] <- rows,
          texts = for(place <- String.split(places, ", "), do: source(place)),
          {name, i} <- names |> String.split(", ") |> Enum.with_index(),
          declared = Enum.find_value(texts, &declared(&1, name)),
          assert(declared, "#{name} is no constant of #{places}"),
          number = number(declared),
          written = values |> String.split(", ") |> Enum.at(i, "") |> number(),
          written != nil do
        assert number == written,
               "#{name} is #{declared} in #{places}, and #{values} in SECURITY.md"
      end

    assert length(compared) > 30
  end

  # The files of the package, as Hex chooses them.
  defp files do
    package = Sconce.MixProject.project()[:package]
    {listed, 0} = System.cmd("git", ["ls-files", "--" | package[:files]], cd: @root)
    files = String.split(listed, "\n", trim: true)
    Enum.reject(files, fn file -> Enum.any?(package[:exclude_patterns], &(file =~ &1)) end)
  end

  defp declared(text, "@" <> name), do: capture(text, ~r/^  @#{name} (.+)$/m)
  defp declared(text, name), do: capture(text, ~r/const #{name}: [^=]+ = ([^;]+);/)

  defp capture(text, regex) do
    case Regex.run(regex, text) do
      [_, value] -> String.trim(value)
      nil -> nil
    end
  end

  # Reads `1 << 28` and `4_096` of the source and `2^28` and `4,096` of the page; nil for other texts.
  defp number(text) do
    plain = String.replace(text, ["_", ","], "")

    case Regex.run(~r/^(?:(?:1 << |2\^)(\d+)|(\d+))$/, plain) do
      [_, power] -> Integer.pow(2, String.to_integer(power))
      [_, "", number] -> String.to_integer(number)
      nil -> nil
    end
  end

  defp security, do: File.read!(Path.join(@root, "SECURITY.md"))

  defp source(place) do
    case String.split(place, "/", parts: 2) do
      ["sconce", _file] -> File.read!(Path.join([@root, "lib", place]))
      [crate, file] -> File.read!(Path.join([@root, "native", crate, "src", file]))
    end
  end
end
