# Evolves tables of tricks by `mix sconce.evolve --preset billiards`, and plays the elites again in sessions.
#
#     mix run evolve_billiards.exs --into tricks | tee evolve_billiards.txt
#     mix run evolve_billiards.exs --into tricks --seeds 1 --generations 5      # a short try
#
# For each seed it runs the preset's 50 generations of 4,800, and keeps the picture of the archive after one generation
# (`SEED-before.svg`) and at the end (`SEED-after.svg`). It then plays the `@best` elites with the highest returns and
# `@others` spread evenly over the archive, each by a session of its policy, shot by shot. The return and the measures must
# equal those of the archive, and the balls that fell in the simulated events must be as many as the last observation says.
# The status is 1 if one differs. Figures but the times depend on the seed alone.

defmodule EvolveBilliards do
  alias Sconce.Env
  alias Sconce.Env.Billiards
  alias Sconce.Evolve.{Archive, Population}

  @switches [seeds: :string, generations: :integer, into: :string]
  @best 20
  @others 100

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    seeds = opts |> Keyword.get(:seeds, "0,1,2") |> String.split(",")
    into = Keyword.fetch!(opts, :into)
    File.mkdir_p!(into)
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    correct = for seed <- seeds, do: seed(seed, Keyword.get(opts, :generations, 50), into)
    if Enum.all?(correct), do: :ok, else: exit({:shutdown, 1})
  end

  defp seed(seed, generations, into) do
    out = Path.join(into, seed)

    IO.puts(
      "\n$ mix sconce.evolve --preset billiards --generations #{generations} --seed #{seed}"
    )

    evolve(~w(--preset billiards --generations 1 --seed #{seed} --out #{out}))
    kept(out, into, "#{seed}-before")
    evolve(~w(--resume #{out} --generations #{generations}))
    kept(out, into, "#{seed}-after")
    {:ok, archive} = Archive.load(Path.join(out, "archive.safetensors"))
    replayed(archive)
  end

  # Each stage is a task of its own, and its name would mark it as done.
  defp evolve(args) do
    Mix.Task.reenable("sconce.evolve")
    Mix.Task.run("sconce.evolve", args)
  end

  defp kept(out, into, name),
    do: File.cp!(Path.join(out, "archive.svg"), Path.join(into, name <> ".svg"))

  defp replayed(archive) do
    {:ok, elites} = Archive.elites(archive)

    rows =
      Enum.sort_by(
        Enum.zip([elites.solutions, elites.objectives, elites.measures]),
        &(-elem(&1, 1))
      )

    {best, rest} = Enum.split(rows, @best)
    others = Enum.take_every(rest, max(div(length(rest), @others), 1))
    spec = Population.spec(:billiards, hidden_sizes: [32, 16])
    best = for row <- best, do: played(spec, row)
    others = for row <- others, do: played(spec, row)
    all = best ++ others
    right = Enum.count(all, & &1.right)

    IO.puts(
      "replayed in sessions: #{right} of #{length(all)} elites have the return and the measures that the archive claims"
    )

    IO.puts("the best #{length(best)}: #{falls(best)}")
    IO.puts("#{length(others)} of the others: #{falls(others)}")
    right == length(all)
  end

  defp falls(rows) do
    returns = for row <- rows, do: row.return
    balls = for row <- rows, do: row.balls
    mean = Float.round(Enum.sum(balls) / max(length(balls), 1), 2)
    scratched = Enum.count(rows, & &1.scratched)

    "returns #{figure(Enum.min(returns))} to #{figure(Enum.max(returns))}, #{mean} balls fall on average, " <>
      "#{Enum.max(balls)} at most, the cue ball fell in #{scratched} episodes"
  end

  defp figure(number), do: :erlang.float_to_binary(number / 1, decimals: 2)

  defp played(spec, {solution, claimed, measures}) do
    {:ok, policy} = Population.policy(spec, solution)
    {:ok, session} = Sconce.Session.open(policy, deterministic: true, seed: 0)
    {:ok, env} = Env.new(:billiards)
    {:ok, observation} = Env.read(env, :observation)
    row = shots(session, env, observation, %{return: 0.0, fallen: [], scratched: false})
    :ok = Sconce.Session.close(session)
    balls = length(Enum.uniq(row.fallen))

    right =
      abs(row.return - claimed) < 1.0e-6 and Enum.take(row.seen, 2) == measures and
        round(7 * Enum.at(row.seen, 27)) == balls

    Map.merge(row, %{right: right, balls: balls})
  end

  defp shots(session, env, observation, row) do
    {:ok, %{choices: choices}} = Sconce.Session.act(session, numbers(observation))
    input = List.flatten(for name <- [:angle, :power, :top, :side], do: choices[name])
    {:ok, state} = Env.state(env)
    {:ok, shot} = Billiards.shot(state, Enum.zip([:angle, :power, :top, :side], input))
    {:ok, step} = Env.step(env, input)
    [reward] = numbers(step.reward)
    fallen = for %{kind: :pocket, ball: ball} <- shot.events, ball > 0, do: ball
    scratched = Enum.any?(shot.events, &(&1.kind == :pocket and &1.ball == 0))

    row = %{
      row
      | return: row.return + reward,
        fallen: fallen ++ row.fallen,
        scratched: row.scratched or scratched
    }

    case step.ended do
      [] -> shots(session, env, step.observation, row)
      [0] -> Map.put(row, :seen, numbers(step.final_observation))
    end
  end

  defp numbers(binary), do: for(<<number::float-32-little <- binary>>, do: number)
end

EvolveBilliards.main(System.argv())
