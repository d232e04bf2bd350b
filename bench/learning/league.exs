# Learns the duel in a league, five seeds:
#
#     mix run learning/league.exs | tee learning/league.txt    # six minutes on two cores
#     SEEDS=1 mix run learning/league.exs                      # a single seed
#
# Three parts, each with the median of the seeds; the status is 1 if a claim does not hold.
#
# 1. The last policy of a run beats each scripted player, and 80 % of its past selves (a win rate above 0.5).
# 2. Three scripted players beat each other in a ring, and the payoff matrix shows it.
# 3. A policy that beats one of these three and not another meets the harder ones more often by priority than uniformly.
#
# Win rates, games and steps depend on the seed alone, and seconds on the machine and its load. The pictures of seed 1
# are league.svg and ring.svg.

defmodule LeagueBench do
  alias Sconce.{Figures, League, PPO}

  @scripted [:striker, :guarder, :thrower, :mixer, :idle]
  @ring [:striker, :thrower, :guarder]
  @games 400
  @learn [
    env: :duel,
    environments: 128,
    learning_rate: 1.0e-3,
    discount: 0.995,
    entropy_weight: 0.005
  ]
  @league [
    opponents: @scripted,
    past_selves: 10,
    snapshot_every: 10,
    opponent_choice: :prioritised,
    self_play_share: 0.25,
    steps: 4_000_000,
    learning_rate_to: 1.0e-4
  ]

  def main do
    seeds = 1..String.to_integer(System.get_env("SEEDS", "5"))
    holds = [self_play(seeds), ring(seeds), choice(seeds)]
    unless Enum.all?(holds), do: System.halt(1)
  end

  defp self_play(seeds) do
    IO.puts("\nself-play: win rates of the last policy of a run\n")
    IO.puts(row("", @scripted ++ ["past selves", "beaten", "Elo", "steps", "s"]))

    results =
      for seed <- seeds do
        {report, league} = run(seed, @league)
        if seed == 1, do: :ok = League.write(league, Path.join(__DIR__, "league.svg"))
        rates = last(league)
        past = for {"run/self-" <> _update, rate} <- rates, do: rate
        scripted = for name <- @scripted, do: rates[to_string(name)]
        beaten = Enum.count(past, &(&1 > 0.5)) / length(past)
        elo = Enum.find(league.ratings, &(&1.name == "run/last")).elo
        result = scripted ++ [mean(past), beaten, elo, report.steps, report.seconds]
        IO.puts(row("seed #{seed}", shown(result)))
        result
      end

    [scripted, [_mean, beaten | _]] = results |> medians() |> Enum.split(5) |> Tuple.to_list()
    IO.puts(row("median", shown(medians(results))))
    Enum.all?(scripted, &(&1 > 0.5)) and beaten >= 0.8
  end

  defp ring(seeds) do
    IO.puts("\nring: median payoff of the seeds, win rate of the row\n")
    IO.puts(row("", @ring))

    payoffs =
      for seed <- seeds do
        {:ok, league} = League.play(@ring, env: :duel, games: @games, seed: seed)
        if seed == 1, do: :ok = League.write(league, Path.join(__DIR__, "ring.svg"))
        league.payoff
      end

    median = for rows <- Enum.zip_with(payoffs, & &1), do: medians(rows)
    for {name, rates} <- Enum.zip(@ring, median), do: IO.puts(row(name, Enum.map(rates, &rate/1)))
    [[_a, ab, _ac], [_ba, _b, bc], [ca, _cb, _c]] = median
    Enum.all?([ab, bc, ca], &(&1 > 0.5))
  end

  # A policy learns against the thrower alone, and then plays against the ring without learning.
  defp choice(seeds) do
    IO.puts("\nchoice: share of the games against each opponent, and the win rate against it\n")

    IO.puts(
      row(
        "",
        for(what <- ["share", "rate"], at <- ~w(hardest middle easiest), do: "#{at} #{what}")
      )
    )

    rows =
      for seed <- seeds do
        out = folder()
        thrower = [opponents: [:thrower], self_play_share: 0.0, steps: 100_000]
        _report = learn(seed, thrower, out)
        policy = Path.join(out, "last.safetensors")
        both = for choice <- [:uniform, :prioritised], do: shares(seed, choice, policy)
        File.rm_rf!(Path.dirname(out))
        both
      end

    [uniform, prioritised] = rows |> Enum.zip_with(& &1) |> Enum.map(&medians/1)
    IO.puts(row("median uniform", Enum.map(uniform, &rate/1)))
    IO.puts(row("median prioritised", Enum.map(prioritised, &rate/1)))
    hd(prioritised) > hd(uniform) + 0.1
  end

  defp shares(seed, choice, policy) do
    fixed = [policy: policy, learning_rate: 1.0e-12, self_play_share: 0.0, steps: 200_000]
    out = policy |> Path.dirname() |> Path.join("../#{choice}") |> Path.expand()
    report = learn(seed, fixed ++ [opponents: @ring, opponent_choice: choice], out)
    members = Enum.sort_by(report.opponents, &record/1)
    games = members |> Enum.map(& &1.games) |> Enum.sum()
    result = Enum.map(members, &(&1.games / games)) ++ Enum.map(members, &record/1)
    IO.puts(row("seed #{seed} #{choice}", Enum.map(result, &rate/1)))
    result
  end

  defp record(%{games: 0}), do: 0.5
  defp record(member), do: (member.wins + member.draws / 2) / member.games

  # Returns the report of a run, and the league of its policies and opponents.
  defp run(seed, options) do
    out = folder()
    report = learn(seed, options, out)
    {:ok, league} = League.play([out | options[:opponents]], games: @games, seed: seed)
    File.rm_rf!(Path.dirname(out))
    {report, league}
  end

  defp folder, do: Path.join(System.tmp_dir!(), "sconce-league-#{System.pid()}/run")

  defp learn(seed, options, out) do
    {:ok, run} = PPO.start_link(Keyword.merge(@learn, options) ++ [seed: seed, out: out])
    {:ok, report} = PPO.await(run)
    report
  end

  # Returns the win rates of the last policy by name.
  defp last(league) do
    at = Enum.find_index(league.players, &(&1 == "run/last"))
    league.players |> Enum.zip(Enum.at(league.payoff, at)) |> Map.new()
  end

  defp medians(rows), do: Enum.zip_with(rows, &Figures.percentile(&1, 50))
  defp mean(rates), do: Enum.sum(rates) / length(rates)

  defp shown(result) do
    {rates, [elo, steps, seconds]} = Enum.split(result, 7)
    Enum.map(rates, &rate/1) ++ [round(elo), round(steps), round(seconds)]
  end

  defp rate(value), do: :erlang.float_to_binary(value / 1, decimals: 2)

  defp row(name, cells) do
    String.pad_trailing("#{name}", 20) <>
      Enum.map_join(cells, &String.pad_leading("#{&1}", 15))
  end
end

LeagueBench.main()
