defmodule SconceTest do
  use ExUnit.Case, async: true

  doctest Sconce

  test "native_info names versions, threads and what the CPU can do" do
    assert {:ok, info} = Sconce.native_info()

    for part <- [:candle, :rustler, :rustc], do: assert(info[part] =~ ~r/^\d+\.\d+\.\d+$/)
    assert info.threads >= 1
    assert Enum.all?(info.cpu, fn {_feature, found} -> is_boolean(found) end)
  end
end
