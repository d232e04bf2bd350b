# Distils a policy of CartPole into one with an 85th of its weights, on the steps that the small one plays itself.
#
#     mix run learning/distil.exs | tee learning/distil.txt              # a minute on two cores
#     mix run learning/distil.exs --seeds 1,2                            # some seeds
#
# For each seed:
#
#   1. `Sconce.PPO` learns a policy of two layers of 64 until its mean return of 100 episodes is 475: the teacher.
#   2. A policy of one layer of 8 learns from it alone, on the steps that it plays itself (`policy_weight: 0`): `distilled`. For
#      `two` a second such policy of another seed teaches beside the first, and `soft` has a temperature of 2.
#   3. `alone` is the small policy by PPO with rewards, and no teacher; `longer` has six times the steps.
#
# All runs of a small policy have the same options otherwise, and no target. `weights` has those of actor and critic, and
# `steps` is the length of the run. `return` is the mean return of 200 episodes with sampled actions, of the last policy of
# a run (of the teacher, the best one). `KL` is that of the last update.
#
# The status is 1 if the median of `distilled` is below `@kept` of that of the teachers, or below that of `alone`. Figures
# depend on the seed alone.

defmodule Distil do
  alias Sconce.{Env, PPO}

  @switches [seeds: :string]
  @solved 475
  @kept 0.95
  @steps 81_920
  @small [hidden_sizes: [8]]
  @student [policy_weight: 0, value_weight: 0, entropy_weight: 0, teacher_weight: 1]

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    seeds = opts |> Keyword.get(:seeds, "1,2,3,4,5") |> String.split(",")
    dir = Path.join(System.tmp_dir!(), "sconce-distil-#{System.pid()}")

    try do
      IO.puts(line(~w(seed run weights steps return KL)))
      rows = Enum.flat_map(seeds, &seed(String.to_integer(&1), Path.join(dir, &1)))
      medians = for name <- Enum.uniq(for row <- rows, do: row.name), do: median(name, rows)
      for median <- medians, do: IO.puts(line(median))
      finish(Map.new(medians, &{&1.name, &1.return}))
    after
      File.rm_rf!(dir)
    end
  end

  defp seed(seed, dir) do
    [first, second] =
      for i <- [0, 100], do: learned("teacher", seed + i, dir, target_return: @solved)

    best = Path.join(first.out, "best.safetensors")
    both = [best, Path.join(second.out, "best.safetensors")]

    students = [
      {"distilled", [teacher: best] ++ @student},
      {"two", [teacher: both] ++ @student},
      {"soft", [teacher: best, teacher_temperature: 2] ++ @student},
      {"alone", []},
      {"longer", [steps: 6 * @steps]}
    ]

    small =
      for {name, more} <- students,
          do: learned(name, seed, dir, Keyword.merge(@small ++ [steps: @steps], more))

    for row <- [first | small], do: tap(row, &IO.puts(line(&1)))
  end

  defp learned(name, seed, dir, opts) do
    out = Path.join(dir, "#{name}-#{seed}")
    {:ok, run} = PPO.start_link([env: :cart_pole, out: out, seed: seed] ++ opts)
    {:ok, report} = PPO.await(run)
    GenServer.stop(run)
    file = if name == "teacher", do: "best", else: "last"
    path = Path.join(out, "#{file}.safetensors")
    {:ok, played} = Env.play(path, :cart_pole, episodes: 200, seed: seed, deterministic: false)
    kl = List.last(report.history).figures[:teacher_kl]

    %{name: name, seed: seed, out: out, weights: report.weights, return: played.mean}
    |> Map.merge(%{steps: report.steps, kl: kl})
  end

  defp median(name, rows) do
    own = for row <- rows, row.name == name, do: row
    of = fn key -> own |> Enum.map(&Map.fetch!(&1, key)) |> middle() end

    %{
      name: name,
      seed: "median",
      weights: of.(:weights),
      return: of.(:return),
      steps: of.(:steps),
      kl: of.(:kl)
    }
  end

  defp middle(values), do: values |> Enum.sort() |> Enum.at(div(length(values), 2))

  defp finish(%{"teacher" => teacher, "distilled" => distilled, "alone" => alone}) do
    wrong =
      for {true, text} <- [
            {distilled < @kept * teacher, "distilled is below #{@kept} of the teachers"},
            {distilled < alone, "distilled is below the small policy alone"}
          ],
          do: text

    Enum.each(wrong, &IO.puts(:stderr, &1))
    if wrong != [], do: System.halt(1)
  end

  defp line(%{} = row) do
    kl = if row.kl, do: :erlang.float_to_binary(row.kl, decimals: 4), else: "-"
    return = :erlang.float_to_binary(row.return, decimals: 1)
    line([row.seed, row.name, row.weights, row.steps, return, kl])
  end

  defp line([seed, name | cells]) do
    String.pad_trailing("#{seed}", 7) <>
      String.pad_trailing(name, 10) <> Enum.map_join(cells, &String.pad_leading("#{&1}", 10))
  end
end

Distil.main(System.argv())
