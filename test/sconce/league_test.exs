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

  describe "results of games that were played elsewhere" do
    defp rated(results, opts \\ []) do
      {:ok, league} = League.rate(results, opts)
      league
    end

    test "have the ratings that the same matrix of played games has" do
      {:ok, played} = League.play([:striker, :thrower, :guarder, :idle], @duel)

      results =
        for {a, i} <- Enum.with_index(played.players),
            {b, j} <- Enum.with_index(played.players),
            i < j do
          at = fn matrix, row, column -> matrix |> Enum.at(row) |> Enum.at(column) end
          {a, b, {at.(played.wins, i, j), at.(played.draws, i, j), at.(played.wins, j, i)}}
        end

      league = rated(results, players: played.players, label: "elsewhere")
      assert %{league | env: :duel} == played
      assert League.groups(league) == [played.players]
    end

    test "may come in any order and in any form" do
      forms = [
        {:ann, "bob", :win},
        {"bob", :ann, "draw"},
        {"cy", "ann", {1, 2, 3}},
        %{players: ["cy", "bob"], winner: :bob},
        %{"players" => ["cy", "bob"], "winner" => nil},
        "bob , cy,loss\n",
        ~s({"players": ["ann", "cy"], "winner": "ann", "stage": 3}),
        "\n"
      ]

      league = rated(forms)
      assert league.players == ["ann", "bob", "cy"]
      assert league.wins == [[0, 1, 4], [0, 0, 1], [1, 1, 0]]
      assert league.draws == [[0, 1, 2], [1, 0, 1], [2, 1, 0]]
      assert league.games == nil
      assert_in_delta league.payoff |> hd() |> Enum.at(2), 5 / 7, 1.0e-12
      for seed <- 1..5, do: assert(rated(shuffled(forms, seed)) == league)
      turned = rated(forms, players: ["cy", "bob", "ann"])
      assert turned.wins == league.wins |> Enum.reverse() |> Enum.map(&Enum.reverse/1)
    end

    defp shuffled(list, seed) do
      {keyed, _state} =
        Enum.map_reduce(list, :rand.seed_s(:exsss, seed), fn item, state ->
          {key, state} = :rand.uniform_s(state)
          {{key, item}, state}
        end)

      for {_key, item} <- Enum.sort(keyed), do: item
    end

    test "come from a file that grows over days", %{tmp_dir: dir} do
      path = Path.join(dir, "games.jsonl")
      line = &~s({"players":["new","old"],"winner":"#{&1}"}\n)
      for _game <- 1..3, do: File.write!(path, line.("new"), [:append])
      monday = path |> File.stream!() |> rated()
      for _game <- 1..3, do: File.write!(path, line.("old"), [:append])
      tuesday = path |> File.stream!() |> rated()
      assert {monday.games, tuesday.games} == {3, 6}
      assert hd(monday.ratings).elo > 1200
      assert_in_delta hd(tuesday.ratings).elo, 1200, 1.0e-6
    end

    test "give intervals that shrink with the square root of their number" do
      ring = fn n -> [{"a", "b", {n, 0, n}}, {"b", "c", {n, 0, n}}, {"c", "a", {n, 0, n}}] end
      width = fn n -> hd(rated(ring.(n)).ratings) |> then(&(&1.high - &1.low)) end
      assert_in_delta width.(1000) / width.(2000), :math.sqrt(2), 0.01
      assert width.(10) > width.(20)
    end

    test "give intervals of which about 95 in 100 contain the true rating" do
      strengths = [-240.0, -120.0, -30.0, 60.0, 90.0, 240.0]
      names = for i <- 0..5, do: "player #{i}"
      state = :rand.seed_s(:exsss, 11)

      {hits, _state} =
        Enum.map_reduce(1..100, state, fn _league, state ->
          {results, state} = drawn(strengths, names, 20, state)
          ratings = rated(results, players: names).ratings

          hits =
            for {strength, %{low: low, high: high}} <- Enum.zip(strengths, ratings),
                low <= 1200 + strength and 1200 + strength <= high,
                do: 1

          {length(hits), state}
        end)

      # 600 intervals; the standard deviation of the share is 0.009.
      assert_in_delta Enum.sum(hits) / 600, 0.95, 0.03
    end

    test "give intervals of differences of which about 95 in 100 contain the true one" do
      strengths = [-240.0, -30.0, 60.0, 240.0]
      names = for i <- 0..3, do: "player #{i}"
      state = :rand.seed_s(:exsss, 12)

      {hits, _state} =
        Enum.map_reduce(1..100, state, fn _league, state ->
          {results, state} = drawn(strengths, names, 20, state)
          league = rated(results, players: names)

          hits =
            for {own, a} <- Enum.zip(strengths, names),
                {its, b} <- Enum.zip(strengths, names),
                a < b,
                {:ok, %{low: low, high: high}} = League.difference(league, a, b),
                low <= own - its and own - its <= high,
                do: 1

          {length(hits), state}
        end)

      # 600 intervals of 100 leagues.
      assert_in_delta Enum.sum(hits) / 600, 0.95, 0.03
    end

    test "give the difference of two players, with the sign of their order" do
      league = rated([{"a", "b", {70, 10, 20}}])
      assert {:ok, there} = League.difference(league, :a, "b")
      assert {:ok, back} = League.difference(league, "b", "a")
      [a, b] = league.ratings
      assert_in_delta there.elo, a.elo - b.elo, 1.0e-9
      # The mean is in the middle of two players.
      assert_in_delta there.high - there.elo, 2 * (a.high - a.elo), 1.0e-6
      assert_in_delta back.low, -there.high, 1.0e-6
      assert {:ok, %{elo: 0.0, low: low, high: high}} = League.difference(league, "a", "a")
      assert low == 0 and high == 0

      # Intervals that overlap, of players that differ: most of the uncertainty is that of their common opponent.
      far = {995, 0, 5}
      league = rated([{"a", "b", {600, 0, 400}}, {"a", "c", far}, {"b", "c", far}])
      [a, b, _c] = league.ratings
      assert a.low < b.high
      assert {:ok, %{low: low}} = League.difference(league, "a", "b")
      assert low > 0
    end

    test "give no difference of players that no results connect" do
      league = rated([{"a", "b", :win}, {"x", "y", :win}])
      assert {:error, %Error{kind: :mismatch} = error} = League.difference(league, "a", "x")
      assert Exception.message(error) =~ ~s(two that results connect, got "a" and "x")

      assert_raise ArgumentError, ~r/unknown player "z"/, fn ->
        League.difference(league, "a", "z")
      end
    end

    defp drawn(strengths, names, games, state) do
      players = strengths |> Enum.zip(names) |> Enum.with_index()
      pairs = for {a, i} <- players, {b, j} <- players, i < j, do: {a, b}

      Enum.map_reduce(pairs, state, fn {{own, a}, {its, b}}, state ->
        chance = 1 / (1 + :math.pow(10, (its - own) / 400))
        {dice, state} = Enum.map_reduce(1..games, state, fn _, s -> :rand.uniform_s(s) end)
        wins = Enum.count(dice, &(&1 < chance))
        {{a, b, {wins, 0, games - wins}}, state}
      end)
    end

    test "of a player that always wins give a finite rating" do
      league = rated(for _game <- 1..1000, do: {"ace", "bob", :win})
      [ace, bob] = league.ratings
      assert ace.elo > 1500 and ace.elo < 3000 and bob.elo < ace.low
      assert League.ranking(league) == [0, 1]
    end

    test "of groups that never met carry a warning in text, picture and table" do
      league = rated([{"a", "b", :win}, {"b", "c", :win}, {"x", "y", :win}, {"y", "z", :win}])
      assert League.groups(league) == [["a", "b", "c"], ["x", "y", "z"]]
      assert inspect(league) =~ "6 players · 4 games · best a · 2 groups that have not met"
      said = "2 groups that have not met; only ratings of one group can be compared"
      lines = league |> League.table() |> String.split("\n")
      assert List.last(lines) == said
      assert hd(lines) == "4 games · win rate of the row, a draw is half a win"
      # The best players of both groups are equal, and have not met.
      assert Enum.at(lines, 2) =~ ~r/^1 a +- +- +1\.00/
      svg = League.svg(league)
      assert svg =~ said and svg =~ "6 players, 4 games;" and svg =~ "rgb(226,232,240)"
      assert svg =~ ">League<"
      [[own, _, _, other | _] | _] = league.payoff
      assert {own, other} == {0.5, nil}
      joined = rated([{"a", "b", :win}, {"c", "d", :win}, {"d", "a", :draw}])
      assert League.groups(joined) == [["a", "b", "c", "d"]]
      assert League.table(rated([{"a", "b", :win}])) =~ "1 games a pair"
    end

    test "of a player without games keep it at the mean, with a wide interval" do
      league = rated([{"a", "b", :win}, {"b", "a", :win}], players: [:a, :b, :new])
      [a, _b, new] = league.ratings
      assert_in_delta new.elo, 1200.0, 1.0e-6
      assert new.high > a.high
      assert League.groups(league) == [["a", "b"], ["new"]]
    end

    test "of 256 players and many games are rated" do
      results =
        Stream.map(1..50_000, fn i ->
          a = rem(i * 7919, 256)
          b = rem(a + 1 + rem(i * 104_729, 255), 256)
          {"player #{a}", "player #{b}", if(a < b, do: :win, else: :loss)}
        end)

      league = rated(results)
      assert length(league.players) == 256
      [first | _] = League.ranking(league)
      assert Enum.at(league.players, first) == "player 0"
      assert League.svg(league) =~ "256 players, 50,000 games"
    end

    test "that are wrong are named" do
      refused = fn results, opts ->
        {:error, %Error{op: :rate} = error} = League.rate(results, opts)
        {error.kind, Exception.message(error)}
      end

      good = {"a", "b", :win}

      for {bad, said} <- [
            {{"a", "a", :win}, ~s(players: expected two, got "a" against itself)},
            {{:a, "a", :win}, ~s("a" against itself)},
            {{"a", "b", :won}, "outcome: expected :win, :loss, :draw"},
            {{"a", "b", {1, -1, 0}}, "outcome"},
            {{"a", nil, :win}, "player: expected a name as text or an atom, got nil"},
            {{"a", <<255>>, :win}, "player"},
            {{"a", "", :win}, "player"},
            {%{players: ["a"], winner: "a"}, "players: expected a list of two names"},
            {%{players: ["a", "b"]},
             "winner: expected a name, or nil for a draw, got no such key"},
            {%{players: ["a", "b"], winner: "c"}, "winner: expected one of the players"},
            {"a,b", "line: expected player,player,outcome, got 2 columns"},
            {~s({"players": ), "JSON: expected an object, got byte"},
            {:win, "expected {player, player, :win | :loss | :draw}"}
          ] do
        assert {:mismatch, message} = refused.([good, bad], [])
        assert message =~ "rate: result 2" and message =~ said, message
      end

      assert {:mismatch, message} = refused.([{"a", "x", :win}], players: ["a", "b"])
      assert message =~ ~s(player: expected one of the option :players, got "x")
      assert {:out_of_range, _said} = refused.([], [])
      many = for i <- 1..256, do: {"player #{i}", "player 0", :win}
      assert {:out_of_range, message} = refused.(many, [])
      assert message =~ "players: 257 is outside 2..256"
      huge = {"a", "b", {4_000_000_000, 0, 4_000_000_000}}
      assert {:out_of_range, message} = refused.([huge], [])
      assert message =~ "games of a and b"
      raised = &assert_raise(ArgumentError, &1, fn -> League.rate(&2, &3) end)
      raised.(~r/option :players: "a" is there twice/, [good], players: ["a", :a])
      raised.(~r/option :players.*got: 3/, [good], players: ["a", 3])
      raised.(~r/results.*an enumerable/, 3, [])
      # An error inside the app's stream is not one of the results.
      broken = Stream.map([good], fn _result -> Enum.count(7) end)

      assert_raise Protocol.UndefinedError, ~r/7/, fn -> League.rate(broken, []) end
      raised.(~r/label/, [good], label: 3)
    end
  end
end
