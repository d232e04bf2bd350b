defmodule Sconce.FilesTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Error, Files}

  test "a file replaces an existing one as a whole, and no temporary file remains" do
    dir = tmp_dir!("files")
    path = Path.join(dir, "a")
    assert :ok = Files.write(path, "old", :test)
    assert :ok = Files.write(path, ["new", ?\n], :test)
    assert File.read!(path) == "new\n"
    assert :ok = Files.check(path)
    assert File.ls!(dir) == ["a"]
  end

  test "a failed write is an error that names the file, and leaves nothing" do
    dir = tmp_dir!("files")
    nowhere = Path.join(dir, "none/a")

    assert {:error, %Error{kind: :io, op: :test, details: %{path: ^nowhere}}} =
             Files.write(nowhere, "x", :test)

    assert {:error, %Error{kind: :mismatch, op: :test}} = Files.write(dir, "x", :test)
    assert {:error, :eisdir} = Files.check(dir)
    assert {:error, :enoent} = Files.check(nowhere)
    assert File.ls!(dir) == []
  end

  test "a full disk keeps the old file" do
    dir = tmp_dir!("files")
    path = Path.join(dir, "a")
    File.write!(path, "old")

    script =
      ~s[IO.inspect(Sconce.Files.write(#{inspect(path)}, String.duplicate("x", 5000), :test))]

    assert {output, 0} = elixir_within(script, 1)
    assert output =~ "kind: :io"
    assert {File.read!(path), File.ls!(dir)} == {"old", ["a"]}
  end
end
