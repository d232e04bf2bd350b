defmodule Sconce.Leader.MemberTest do
  use ExUnit.Case, async: true

  alias Sconce.Test.Elections

  # The slow test runs many more.
  @schedules 400
  @many 20_000
  @drifts [no_margin: 0.2]

  # `mix test --seed` repeats the schedules.
  defp seeds(count), do: for(n <- 1..count, do: {ExUnit.configuration()[:seed], n, 7})

  test "no schedule of losses, delays, drift, partitions and crashes has two leaders at a time" do
    hold(@schedules)
  end

  @tag :slow
  @tag timeout: :infinity
  test "no schedule of many has two leaders at a time" do
    {elections, failed} = hold(@many)
    IO.puts("#{@many} schedules: #{elections} elections, #{failed} failed ones")
  end

  defp hold(count) do
    total =
      for seed <- seeds(count), reduce: {0, 0} do
        {elections, failed} ->
          assert {:ok, summary} = Elections.run(seed), "schedule #{inspect(seed)}"
          {elections + summary.elections, failed + summary.failed}
      end

    # The schedules have elections, of which some fail.
    assert {elections, failed} = total
    assert elections > count and failed > count
    total
  end

  for {bug, what} <- [
        no_quiet: "votes at once after a restart",
        no_margin: "trusts all clocks to run alike",
        any_release: "takes back a vote for a release of an earlier round",
        from_arrival: "counts a vote from its arrival",
        half_lease: "forgets a vote after half a lease"
      ] do
    test "a member that #{what} is found out" do
      found =
        Enum.find_value(seeds(20_000), fn seed ->
          # The margin for drift hides other mistakes.
          drift = @drifts[unquote(bug)] || 0.0

          case Elections.run(seed, bug: unquote(bug), drift: drift, slow: 0.3) do
            {:error, what, _trace} -> elem(what, 0)
            {:ok, _summary} -> nil
          end
        end)

      assert found in [:leaders, :working, :term]
    end
  end

  test "without faults a group elects a leader and keeps it" do
    for seed <- seeds(50) do
      assert {:ok, %{elections: 1, leaders: [_one]}} =
               Elections.run(seed, faults?: false, late?: false, members: [3, 5])
    end
  end
end
