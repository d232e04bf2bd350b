defmodule SconceTest do
  use ExUnit.Case, async: true

  doctest Sconce

  test "native_info has versions, threads and the CPU's instruction sets" do
    assert {:ok, info} = Sconce.native_info()

    for part <- [:candle, :rustler, :rustc], do: assert(info[part] =~ ~r/^\d+\.\d+\.\d+$/)
    assert info.threads >= 1
    assert Enum.all?(info.cpu, fn {_feature, found} -> is_boolean(found) end)
  end
end
