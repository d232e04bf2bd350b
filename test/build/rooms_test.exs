defmodule Sconce.Build.RoomsTest do
  use ExUnit.Case, async: true

  @native Path.expand("../../native", __DIR__)

  # Each crate, lowest first, with the crates below it that it may name.
  @below %{
    "cuda" => [],
    "tensor" => ~w(cuda),
    "ops" => ~w(tensor cuda),
    "realtime" => ~w(ops tensor),
    "net" => ~w(ops tensor),
    "game" => ~w(tensor),
    "nn" => ~w(net realtime ops game tensor cuda),
    "fixtures" => ~w(tensor),
    "store" => ~w(tensor),
    "data" => ~w(store nn game tensor),
    "env" => ~w(nn game tensor cuda),
    "train" => ~w(data nn net ops game tensor cuda),
    "play" => ~w(env train data nn realtime ops tensor cuda),
    "serve" => ~w(data nn realtime game tensor),
    "compress" => ~w(data nn realtime ops tensor),
    "evolve" => ~w(env nn ops tensor cuda),
    "hrr" => ~w(tensor cuda),
    "onnx" => ~w(nn ops tensor),
    "compat" => ~w(nn ops tensor),
    "nif" =>
      ~w(onnx compat compress evolve hrr store net play serve train data env fixtures nn realtime ops game tensor cuda)
  }

  # Dependencies that only these crates may name.
  @theirs %{"candle-core" => ~w(tensor ops), "rustler" => ~w(nif)}

  test "a crate names only crates below it" do
    for {crate, below} <- @below do
      named = dependencies(crate)
      for "sconce-" <> other <- named, do: assert(other in below, "#{crate} names #{other}")

      for {name, crates} <- @theirs,
          name in named,
          do: assert(crate in crates, "#{crate} names #{name}")
    end

    crates = @native |> Path.join("*/Cargo.toml") |> Path.wildcard()
    assert Enum.sort(Map.keys(@below)) == crates |> Enum.map(&crate/1) |> Enum.sort()
  end

  test "no files of a crate import each other in a circle" do
    for crate <- Map.keys(@below), do: assert({crate, circles(crate)} == {crate, []})
  end

  test "a circle is found" do
    files = %{
      ~w(a) => "use crate::b::c::X;",
      ~w(b) => "",
      ~w(b c) => "use super::super::{d, a::Y};"
    }

    assert [circle] = circles_of(files)
    assert Enum.sort(circle) == [~w(a), ~w(b c)]
    assert circles_of(%{files | ~w(b c) => "// crate::a"}) == []
  end

  test "a circle through a re-exported name is found" do
    files = %{
      [] => "pub use b::Thing;",
      ~w(a) => "use crate::Thing;",
      ~w(b) => "mod c; pub use c::{Thing, Other as Renamed};",
      ~w(b c) => "use crate::a::X;",
      ~w(d) => "use crate::b::Renamed;"
    }

    assert [circle] = circles_of(files)
    assert Enum.sort(circle) == [~w(a), ~w(b c)]
    assert circles_of(%{files | ~w(a) => "use crate::b;"}) == []
  end

  defp crate(manifest), do: manifest |> Path.dirname() |> Path.basename()

  defp dependencies(crate) do
    manifest = File.read!(Path.join([@native, crate, "Cargo.toml"]))
    [_, section] = Regex.run(~r/^\[dependencies\]\n(.*?)(?=^\[|\z)/ms, manifest)
    for [_, name] <- Regex.scan(~r/^([\w-]+)[ .]/m, section), do: name
  end

  defp circles(crate) do
    src = Path.join([@native, crate, "src"])

    src
    |> Path.join("**/*.rs")
    |> Path.wildcard()
    |> Map.new(&{&1 |> Path.relative_to(src) |> path(), File.read!(&1)})
    |> Map.reject(fn {path, _text} -> List.last(path) == "tests" end)
    |> circles_of()
  end

  # `a/mod.rs` and `a.rs` are `[a]`, `lib.rs` is `[]`.
  defp path(file) do
    case file |> Path.rootname() |> Path.split() do
      ["lib"] -> []
      parts -> if List.last(parts) == "mod", do: Enum.drop(parts, -1), else: parts
    end
  end

  defp circles_of(files) do
    graph = :digraph.new()

    handed_on =
      for {path, text} <- files, {as, name} <- handed_on(path, text), into: %{}, do: {as, name}

    for {path, _text} <- files, do: :digraph.add_vertex(graph, path)

    for {path, text} <- files,
        name <- names(path, text),
        file = file(name, files, handed_on),
        apart?(path, file),
        do: :digraph.add_edge(graph, path, file)

    circles = :digraph_utils.cyclic_strong_components(graph)
    :digraph.delete(graph)
    circles
  end

  # A folder's `mod.rs` and the files in the folder may name each other.
  defp apart?(a, b), do: not List.starts_with?(a, b) and not List.starts_with?(b, a)

  # The paths in a text that begin with `crate`, `self` or `super`.
  defp names(path, text) do
    for [_, from, rest | group] <-
          Regex.scan(~r/\b(crate|self|(?:super::)*super)((?:::\w+)*)(::\{[^}]*\})?/, bare(text)),
        last <- group |> List.first("") |> members() do
      from(from, path) ++ parts(rest) ++ parts(last)
    end
  end

  # A text without its tests and comments.
  defp bare(text) do
    [text | _tests] = String.split(text, "#[cfg(test)]\nmod tests {")
    Regex.replace(~r{//[^\n]*}, text, "")
  end

  defp members(""), do: [""]

  defp members("::{" <> group) do
    for member <- group |> String.trim_trailing("}") |> String.split(","),
        do: member |> String.split() |> List.first("")
  end

  defp parts(name), do: String.split(name, "::", trim: true)

  defp from("crate", _path), do: []
  defp from("self", path), do: path
  defp from(supers, path), do: Enum.drop(path, -length(parts(supers)))

  # The names that a file re-exports, with their origin: `pub use c::Thing` in `b` maps `b::Thing` to `b::c::Thing`.
  defp handed_on(path, text) do
    pattern = ~r/\bpub(?:\([^)]*\))? use ((?:\w+::)*)(\{[^}]*\}|\w+(?: as \w+)?);/

    for [_, from, group] <- Regex.scan(pattern, bare(text)),
        member <-
          group |> String.trim_leading("{") |> String.trim_trailing("}") |> String.split(","),
        [last | as] <- [String.split(member, ~r/\s+(as\s+)?/, trim: true)] do
      name = absolute(parts(from) ++ parts(last), path)
      {path ++ [List.first(as) || List.last(name)], name}
    end
  end

  defp absolute(["crate" | name], _path), do: name
  defp absolute(["self" | name], path), do: path ++ name
  defp absolute(["super" | name], path), do: absolute(name, Enum.drop(path, -1))
  defp absolute(name, path), do: path ++ name

  # The file that defines a name, resolved through re-exports. A file takes precedence over a function of its name.
  defp file(name, files, handed_on) do
    hands_on? = &(is_map_key(handed_on, &1) and not is_map_key(files, &1))
    at = Enum.find(length(name)..1//-1, &hands_on?.(Enum.take(name, &1)))

    case at && Enum.split(name, at) do
      nil -> file(name, files)
      {as, rest} -> file(Map.fetch!(handed_on, as) ++ rest, files, Map.delete(handed_on, as))
    end
  end

  defp file([], _files), do: nil

  defp file(name, files) do
    if is_map_key(files, name), do: name, else: name |> Enum.drop(-1) |> file(files)
  end
end
