defmodule Sconce.Env.BilliardsTest do
  use ExUnit.Case, async: true

  alias Sconce.{Env, Error}
  alias Sconce.Env.Billiards

  doctest Billiards

  defp numbers(binary), do: for(<<number::float-32-little <- binary>>, do: number)

  describe "the environment" do
    test "has a shot as its input, and terms of a reward" do
      {:ok, spec} = Env.spec(:billiards)
      assert {spec.observation_size, spec.num_labels, spec.time_limit} == {29, 4, 3}
      assert Keyword.keys(spec.heads) == [:angle, :power, :top, :side]
      assert spec.reward_terms == ["target", "other", "scratch", "miss", "centre"]
      assert {:ok, %{observation_size: 29}} = Env.spec(:billiards_published)
    end

    test "ends an episode after three shots with the measures in the final observation" do
      for name <- [:billiards, :billiards_published] do
        {:ok, env} = Env.new(name, count: 20, seed: 4)
        shots = for row <- 0..19, do: [row / 10 - 1, 0.6, 0, 0]
        for _ <- 1..2, do: assert({:ok, %{ended: []}} = Env.step(env, shots))
        assert {:ok, %{ended: ended, final_observation: final}} = Env.step(env, shots)
        assert ended == Enum.to_list(0..19)

        for row <- final |> numbers() |> Enum.chunk_every(29) do
          assert Enum.all?(row, &(&1 >= -1.001 and &1 <= 1.001))
          assert Enum.at(row, 25) == 1.0
        end
      end
    end
  end

  describe "a shot" do
    test "is the step of the environment" do
      {:ok, env} = Env.new(:billiards, seed: 9, autoreset: :disabled)
      {:ok, before} = Env.state(env)
      {:ok, step} = Env.step(env, [-0.2, 0.7, 0.4, -0.3])
      {:ok, shot} = Billiards.shot(9, angle: -0.2, power: 0.7, top: 0.4, side: -0.3)
      assert {:ok, shot.state} == Env.state(env)
      assert {:ok, ^shot} = Billiards.shot(before, angle: -0.2, power: 0.7, top: 0.4, side: -0.3)
      assert_in_delta Enum.sum(Map.values(shot.terms)), hd(numbers(step.reward)), 1.0e-4
    end

    test "has frames and events in order of time" do
      {:ok, shot} = Billiards.shot(2, angle: -0.11, power: 0.6, interval_ms: 50)
      times = Enum.map(shot.frames, & &1.time)
      assert times == Enum.sort(times) and hd(times) == 0.0
      assert Enum.any?(shot.events, &(&1.kind == :balls and &1.other in 1..7))
      assert Enum.all?(shot.events, &(&1.kind == :balls or &1.other == nil))
      assert Enum.all?(shot.events, &(&1.time <= List.last(times)))
      {:ok, dense} = Billiards.shot(2, angle: -0.11, power: 0.6, interval_ms: 20)
      assert length(dense.frames) > length(shot.frames)
      assert dense.events == shot.events
    end

    test "shows a ball that fell as nil, and counts it" do
      state = List.replace_at(List.duplicate(0.0, 33), 16, 1.0)
      # On the line from the middle of the table to a corner.
      state = state |> List.replace_at(1, 1.14) |> List.replace_at(9, 0.57)
      angle = :math.atan2(0.57, 1.14) / :math.pi()
      {:ok, shot} = Billiards.shot(state, angle: angle, power: 0.2, top: -0.6)
      assert shot.terms.target == 20.0
      assert Enum.at(List.last(shot.frames).balls, 1) == nil
      assert Enum.any?(shot.events, &match?(%{kind: :pocket, ball: 1}, &1))
    end

    test "refuses what is no table and no shot" do
      assert {:error, %Error{kind: :mismatch, op: :shot}} = Billiards.shot([0.0])
      assert_raise ArgumentError, ~r/from: expected a seed/, fn -> Billiards.shot(-1) end
      assert_raise ArgumentError, ~r/from: expected a seed/, fn -> Billiards.shot([:a]) end
      assert_raise ArgumentError, fn -> Billiards.shot(1, power: 2) end
      assert_raise ArgumentError, ~r/did you mean :angle/, fn -> Billiards.shot(1, angel: 0) end
      assert_raise ArgumentError, ~r/shot: expected/, fn -> Billiards.svg(%{}) end
    end

    test "shows itself in one line" do
      {:ok, shot} = Billiards.shot(1, power: 0.3)

      assert inspect(shot) =~
               ~r/^#Sconce.Env.Billiards<[\d.]+ s · \d+ events? · reward -?[\d.]+>$/
    end
  end

  test "a picture has the table, six pockets, and each ball before and after the shot" do
    {:ok, shot} = Billiards.shot(3, angle: -0.11, power: 0.4)
    svg = Billiards.svg(shot)
    assert svg =~ ~r/^<svg .*<\/svg>\n$/s
    left = Enum.count(List.last(shot.frames).balls, & &1)
    assert length(Regex.scan(~r/<circle /, svg)) == 6 + 8 + left
    assert svg =~ "<polyline points="
    refute svg =~ "NaN"
  end
end
