defmodule Sconce.Build.BinCardTest do
  use ExUnit.Case, async: true

  @root Path.expand("../..", __DIR__)

  test "bin/card runs only test programs of the folders that it names" do
    program = File.read!(Path.join(@root, "bin/card"))
    [_, list] = Regex.run(~r/^TESTS = \[\n(.*?)^\]/ms, program)
    [_, emulated] = Regex.run(~r/^OF_EMULATED = "(.+)"$/m, program)
    names = Regex.scan(~r/^    \("([\w-]+)"/m, list, capture: :all_but_first)
    assert length(names) > 3

    for name <- [emulated | List.flatten(names)] do
      [crate, tests] = String.split(name, "-", parts: 2)

      path = Path.join([@root, "native", crate, "tests", tests])
      assert File.exists?(path <> ".rs") or File.exists?(Path.join(path, "main.rs")), name
    end
  end
end
