defmodule Sconce.LoadedTest do
  use ExUnit.Case, async: true

  alias Sconce.Loaded

  test "a module that the app has is loaded, and one that it lacks is not, until it is there" do
    assert Loaded.loaded?(Sconce.League)
    later = Module.concat(__MODULE__, "Later#{System.unique_integer([:positive])}")
    refute Loaded.loaded?(later)
    refute Loaded.loaded?(later)
    Module.create(later, quote(do: :ok), Macro.Env.location(__ENV__))
    assert Loaded.loaded?(later)
  end
end
