defmodule Sconce.Leader.MemberTest do
  use ExUnit.Case, async: true

  alias Sconce.Test.Elections

  # `bench/schedules.exs` runs many more.
  @schedules 400
  @drifts [no_margin: 0.2]

  # `mix test --seed` repeats the schedules.
  defp seeds(count), do: for(n <- 1..count, do: {ExUnit.configuration()[:seed], n, 7})

  test "no schedule of losses, delays, drift, partitions and crashes has two leaders at a time" do
    results = for seed <- seeds(@schedules), do: {seed, Elections.run(seed)}
    assert for({seed, {:error, what, trace}} <- results, do: {seed, what, trace}) == []
    # The schedules have elections, of which some fail.
    summaries = for {_seed, {:ok, summary}} <- results, do: summary
    assert Enum.sum(Enum.map(summaries, & &1.elections)) > @schedules
    assert Enum.sum(Enum.map(summaries, & &1.failed)) > @schedules
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
            {:error, {kind, _}, _trace} -> kind
            {:ok, _summary} -> nil
          end
        end)

      assert found in [:leaders, :working]
    end
  end

  test "without faults a group elects a leader and keeps it" do
    for seed <- seeds(50) do
      assert {:ok, %{elections: 1, leaders: [_one]}} =
               Elections.run(seed, faults?: false, late?: false, members: [3, 5])
    end
  end
end
