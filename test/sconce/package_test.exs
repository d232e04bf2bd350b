defmodule Sconce.PackageTest do
  use ExUnit.Case, async: true

  @root Path.expand("../..", __DIR__)

  test "a package has every member of the cargo workspace" do
    [_, members] =
      Regex.run(~r/^members = \[(.*)\]$/m, File.read!(Path.join(@root, "Cargo.toml")))

    files = Sconce.MixProject.project()[:package][:files]

    for [_, member] <- Regex.scan(~r/"([^"]+)"/, members), part <- ["Cargo.toml", "src"] do
      path = Path.join(member, part)
      assert Enum.any?(files, &(path == &1 or String.starts_with?(path, &1 <> "/"))), path
    end
  end

  test "each bound in SECURITY.md is a constant of the file that it names" do
    rows = Regex.scan(~r/^\| [^|]+ \| `([^`|]+)` \| [^|]+ \| `([^`|]+)` \|$/m, security())
    assert length(rows) > 20

    for [_, names, places] <- rows do
      texts = for place <- String.split(places, ", "), do: source(place)

      for name <- String.split(names, ", "),
          do: assert(Enum.any?(texts, &(&1 =~ name)), "#{name} in #{places}")
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
