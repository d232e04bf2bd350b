defmodule Sconce.LeagueTest do
  use ExUnit.Case, async: true

  alias Sconce.{Env, Error, League, Policy, PPO}

  doctest League

  @moduletag :tmp_dir
  @duel [env: :duel, games: 40]

  defp policy(width, seed) do
    {:ok, env} = Env.spec(:duel)
    own = [embedding: {:vector, width}, heads: env.heads, backbone: :mlp, hidden_sizes: [8]]
    {:ok, policy} = Policy.init(own, seed: seed)
    policy
  end

  test "each pair has its games, and both views of a pair add up" do
    {:ok, league} = League.play([:striker, :idle, {"new", policy(19, 1)}], @duel)

    for {row, i} <- Enum.with_index(league.payoff), {rate, j} <- Enum.with_index(row) do
      assert_in_delta rate + (league.payoff |> Enum.at(j) |> Enum.at(i)), 1.0, 1.0e-12
      losses = league.wins |> Enum.at(j) |> Enum.at(i)
      draws = league.draws |> Enum.at(i) |> Enum.at(j)
      games = (league.wins |> Enum.at(i) |> Enum.at(j)) + losses + draws
      assert games == if(i == j, do: 0, else: 40)
    end

    assert_in_delta league.ratings |> Enum.map(& &1.elo) |> Enum.sum(), 3600.0, 1.0e-6
    for %{elo: elo, low: low, high: high} <- league.ratings, do: assert(low < elo and elo < high)
  end

  test "a run joins with its past selves and its last policy, and names the environment", %{
    tmp_dir: dir
  } do
    out = Path.join(dir, "run")
    small = [environments: 4, rollout_steps: 8, minibatches: 2, hidden_sizes: [8], steps: 300]
    league = [env: :duel, time_limit: 20, past_selves: 2, snapshot_every: 1, opponents: [:mixer]]
    {:ok, run} = PPO.start_link([out: out] ++ small ++ league)
    {:ok, _report} = PPO.await(run)
    {:ok, league} = League.play([out, :mixer], games: 4)
    assert league.env == :duel
    assert "run/self-0" in league.players
    assert ["run/last", "mixer"] == Enum.take(league.players, -2)
    file = Path.join(out, "last.safetensors")
    assert {:ok, %{players: ["run/last", "me"]}} = League.play([file, {"me", file}], games: 2)
  end

  test "runs in folders of one name have the names of their paths", %{tmp_dir: dir} do
    files =
      for run <- ["a/run", "b/run", "c [1]/{x}"], part <- ["league/self-00000010", "last"] do
        file = Path.join([dir, run, part <> ".safetensors"])
        File.mkdir_p!(Path.dirname(file))
        :ok = Policy.save(policy(19, 1), file)
        file
      end

    [a, b, c] = for run <- ["a/run", "b/run", "c [1]/{x}"], do: Path.join(dir, run)

    named = fn players ->
      League.play(players, env: :duel, games: 2) |> elem(1) |> Map.get(:players)
    end

    assert named.([a]) == ["run/self-10", "run/last"]
    assert named.([c]) == ["{x}/self-10", "{x}/last"]
    assert named.([a, c]) == ["run/self-10", "run/last", "{x}/self-10", "{x}/last"]
    assert named.([a, b]) == for(run <- [a, b], part <- ["self-10", "last"], do: "#{run}/#{part}")

    assert named.([{"run", a}, {b, b}]) == [
             "run/self-10",
             "run/last",
             "#{b}/self-10",
             "#{b}/last"
           ]

    assert named.([{"a/run", a}]) == ["a/run/self-10", "a/run/last"]
    [_self_a, last_a, _self_b, last_b | _] = files
    assert named.([last_a, last_b]) == [a <> "/last", b <> "/last"]
    assert named.([last_a, {"new", policy(19, 1)}]) == ["run/last", "new"]
  end

  test "a scripted player wins over a folder of its name", %{tmp_dir: dir} do
    File.mkdir_p!(Path.join(dir, "mixer"))

    # Only a VM of its own has another working directory.
    script = """
    for player <- ["mixer", "./mixer"] do
      {status, _result} = Sconce.League.play([player, :idle], env: :duel, games: 2)
      IO.puts(status)
    end
    """

    paths = Enum.flat_map(:code.get_path(), &["-pa", to_string(&1)])
    assert System.cmd("elixir", paths ++ ["-e", script], cd: dir) == {"ok\nerror\n", 0}
  end

  test "the picture and the table have every player", %{tmp_dir: dir} do
    {:ok, league} = League.play([{"a<b", :striker}, :thrower, :guarder], @duel)
    path = Path.join(dir, "league.svg")
    assert League.write(league, path) == :ok
    svg = File.read!(path)
    assert svg =~ "a&lt;b" and svg =~ "thrower" and length(String.split(svg, "<circle")) == 4
    assert length(String.split(League.table(league), "\n")) == 5
    assert {:error, %Error{kind: :mismatch}} = League.write(league, path <> ".png")
  end

  test "players that cannot be are refused" do
    refused = fn players, opts -> League.play(players, opts) |> elem(1) |> Exception.message() end
    raised = &assert_raise(ArgumentError, &1, fn -> League.play(&2, &3) end)
    raised.(~r/unknown player of :duel "mixr", did you mean "mixer"/, ["mixr", :idle], @duel)
    raised.(~r/two players are named "idle"/, [:idle, :idle], @duel)
    raised.(~r/option :env is required/, [:idle, :mixer], [])
    raised.(~r/player/, [{:idle, 3}], @duel)
    raised.(~r/players/, :idle, @duel)
    raised.(~r/player.*""/, ["", :mixer], @duel)
    raised.(~r/player.*"\/"/, ["/"], @duel)
    assert refused.(["gone.safetensors", :idle], @duel) =~ "gone.safetensors"
    assert refused.([:idle], @duel) =~ "players"
    assert refused.([:idle, {"narrow", policy(3, 1)}], @duel) =~ "observation"
    assert refused.([:idle, :mixer], env: :cart_pole) =~ "seats of cart_pole"
    assert refused.([{"new", policy(19, 1)}, :idle], []) =~ "a name"
  end
end
