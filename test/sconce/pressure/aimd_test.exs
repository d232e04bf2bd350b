defmodule Sconce.Pressure.AimdTest do
  use ExUnit.Case, async: true

  alias Sconce.Pressure.Aimd

  doctest Aimd

  # Sizes after each window, whose latency is a function of the size.
  defp sizes(aimd, windows, latency) do
    {sizes, aimd} =
      Enum.map_reduce(windows, aimd, fn window, aimd ->
        {_move, aimd} = Aimd.observe(aimd, latency.(aimd.size, window))
        {aimd.size, aimd}
      end)

    {sizes, aimd}
  end

  test "a size falls by a factor while the latency is too large, and never below the floor" do
    aimd = Aimd.new(objective: 10, ceiling: 100, floor: 3, decrease: 0.5, dwell: 0)
    assert {[50, 25, 12, 6, 3, 3], _} = sizes(aimd, 1..6, fn _, _ -> 99 end)
  end

  test "a size grows by a sum while the latency is small, and never above the ceiling" do
    aimd = Aimd.new(objective: 10, ceiling: 10, size: 1, increase: 4)
    assert {[5, 9, 10, 10], _} = sizes(aimd, 1..4, fn _, _ -> 1 end)
  end

  test "a size stays in the dead band, at its ends too" do
    aimd = Aimd.new(objective: 10, ceiling: 64, size: 32, dead_band: 0.2)
    for latency <- [8.1, 9, 10], do: assert({:same, _} = Aimd.observe(aimd, latency))
    assert {:larger, _} = Aimd.observe(aimd, 8)
    assert {:smaller, _} = Aimd.observe(aimd, 10.1)
  end

  test "a size rests after it fell, whatever is measured" do
    aimd = Aimd.new(objective: 10, ceiling: 64, dwell: 3)
    {:smaller, aimd} = Aimd.observe(aimd, 11)
    assert {[44, 44, 44, 30], _} = sizes(aimd, 1..4, fn _, _ -> 99 end)
    assert {[44, 44, 44, 46], _} = sizes(aimd, 1..4, fn _, _ -> 1 end)
  end

  test "a size that is not in use does not grow" do
    aimd = Aimd.new(objective: 10, ceiling: 64, size: 30)
    assert {:same, _} = Aimd.observe(aimd, 1, 14)
    assert {:larger, _} = Aimd.observe(aimd, 1, 15)
    # It falls all the same.
    assert {:smaller, _} = Aimd.observe(aimd, 11, 0)
  end

  test "a window without measurements changes nothing, not even the rest" do
    aimd = Aimd.new(objective: 10, ceiling: 64, dwell: 1)
    {:smaller, aimd} = Aimd.observe(aimd, [11])
    assert {:same, ^aimd} = Aimd.observe(aimd, [])
  end

  test "follows a load that steps up, down and bursts, without swinging in between" do
    # A request takes 0.25 ms for each one that is ahead of it; the machine is a third as fast in the middle.
    latency = fn size, window -> size * if(window in 41..80, do: 0.75, else: 0.25) end
    aimd = Aimd.new(objective: 12, ceiling: 256, size: 8, increase: 2)
    {before, aimd} = sizes(aimd, 1..40, latency)
    {slow, aimd} = sizes(aimd, 41..80, latency)
    {later, _aimd} = sizes(aimd, 81..120, latency)
    # From 9 to 12 ms is the dead band: 36 to 48, and 12 to 16. Steps are 2.
    assert before |> Enum.drop(20) |> Enum.uniq() == [38]
    assert [level] = slow |> Enum.drop(20) |> Enum.uniq()
    assert level in 12..16
    assert [level] = later |> Enum.drop(30) |> Enum.uniq()
    assert level in 36..39
  end

  test "the mean and the p99 are those of the measurements" do
    latencies = Enum.to_list(1..200)
    {_, mean} = Aimd.observe(Aimd.new(objective: 500, figure: :mean), latencies)
    {_, p99} = Aimd.observe(Aimd.new(objective: 500), Enum.shuffle(latencies))
    assert {mean.last, p99.last} == {100.5, 198}
    {_, one} = Aimd.observe(Aimd.new(objective: 500), [7])
    assert one.last == 7
  end

  test "wrong options and measurements are refused by name" do
    assert_raise ArgumentError, ~r/:objective/, fn -> Aimd.new([]) end
    assert_raise ArgumentError, ~r/:size/, fn -> Aimd.new(objective: 1, ceiling: 4, size: 5) end
    aimd = Aimd.new(objective: 1)
    assert_raise ArgumentError, ~r/latencies/, fn -> Aimd.observe(aimd, [1, :a]) end
    assert_raise ArgumentError, ~r/latencies/, fn -> Aimd.observe(aimd, [1 | 2]) end
    assert_raise ArgumentError, ~r/used/, fn -> Aimd.observe(aimd, 1, -1) end
  end
end
