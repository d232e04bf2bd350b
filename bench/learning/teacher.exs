# Learns from play what imitation left open: a policy that imitates an expert of CartPole to about 60 % of the best
# return becomes the best policy, and does not forget what its teacher knew.
#
#     mix run learning/teacher.exs | tee learning/teacher.txt              # a minute on two idle cores
#     mix run learning/teacher.exs --seeds 1,2                             # some seeds
#
# For each seed:
#
#   1. A policy imitates the expert of `Sconce.Env.CartPole`. Of several lengths of training, the one whose policy has
#      the return nearest to 300 of 500 is kept. This policy is the teacher.
#   2. `Sconce.PPO` starts from the teacher's weights and stays close to it (`policy:`, `teacher:`): run `near`. Run
#      `free` has the same options and no teacher. Both have a fixed number of steps and no target.
#   3. The policies after 20 updates, while the value is still wrong, and the best ones are compared with the teacher on
#      states in which the teacher acted. `KL` is the mean of KL(policy || teacher) in nats, and `same` the share of
#      states with the same likeliest action. `expert` is the share of held-out demonstrations in which the likeliest
#      action is the expert's. A third of the demonstrated actions is random, so they visit states that no good policy
#      reaches.
#
# `return` is the mean return of 200 episodes with sampled actions. `first_475` is the number of steps after which the
# mean of the last 100 episodes was at least 475, and `lowest` is the lowest such mean. The first hundred episodes to
# end are the short ones, so `lowest` is a little below the teacher's return in a run that forgets nothing.
#
# The status is 1 if a run `near` does not reach 475 or falls below `@kept` of its teacher's return, and if the medians
# of `lowest`, or of `KL` and `same` after 20 updates, are no better than those of `free`. Figures depend on the seed
# alone.

defmodule FromTeacher do
  alias Sconce.{Corpus, Env, Policy, PPO, Trainer}

  @switches [seeds: :string]
  @solved 475
  @wanted 300
  @kept 0.7
  @early 20
  @steps 250_000
  # Scales of the expert's frames: position, velocity, angle and angular velocity of the environment.
  @scales [2.4, 2.0, 12 * 2 * :math.pi() / 360, 2.0]
  @policy [backbone: :mlp, hidden_sizes: [64, 64], activation: :tanh, layer_norm: false] ++
            [residual: false, dropout: 0.0, head_hidden_size: 0]
  # Steps of imitation.
  @lengths 40..200//5
  @play [learning_rate_to: 1.0e-4, entropy_to: 0.0, critic: :separate]
  @near [teacher_weight: 0.2]

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    seeds = opts |> Keyword.get(:seeds, "1,2,3,4,5") |> String.split(",")
    dir = Path.join(System.tmp_dir!(), "sconce-teacher-#{System.pid()}")

    try do
      IO.puts(line(~w(seed run return first_475 lowest KL same expert)))
      rows = Enum.flat_map(seeds, &seed(String.to_integer(&1), Path.join(dir, &1)))
      medians = for name <- names(), do: median(name, rows)
      for median <- medians, do: IO.puts(line(median))
      finish(wrong(rows) ++ wrong_medians(medians))
    after
      File.rm_rf!(dir)
    end
  end

  defp seed(seed, dir) do
    teacher = teacher(seed, dir)
    states = states(teacher.path, seed)
    shown = demonstrations(seed + 1000, 20)

    learned =
      for {name, more} <- [{"near", [teacher: teacher.path] ++ @near}, {"free", []}],
          row <- learned(name, seed, Path.join(dir, name), teacher.path, more),
          do: row

    for row <- [teacher | learned] do
      row
      |> Map.merge(beside(row.path, teacher.path, states))
      |> Map.merge(%{seed: seed, expert: accuracy(row.path, shown)})
      |> tap(&IO.puts(line(&1)))
    end
  end

  # Imitation

  defp teacher(seed, dir) do
    {:ok, corpus} =
      Corpus.build({:vector, 4}, demonstrations(seed, 40),
        into: Path.join(dir, "expert"),
        heads: [action: {:categorical, 2}]
      )

    @lengths
    |> Enum.reduce_while([], fn steps, shorter ->
      teacher = imitated(steps, corpus, seed, dir)
      {if(teacher.return < @wanted, do: :cont, else: :halt), [teacher | shorter]}
    end)
    |> Enum.min_by(&abs(&1.return - @wanted))
  end

  defp imitated(steps, corpus, seed, dir) do
    out = Path.join(dir, "imitated-#{steps}")

    {:ok, run} =
      Trainer.start_link(
        [corpus: corpus, out: out, steps: steps, batch_size: 256, window_size: 1, seed: seed] ++
          [learning_rate: 3.0e-3, loss: :plain] ++ @policy
      )

    {:ok, _report} = Trainer.await(run)
    path = Path.join(out, "last.safetensors")
    row("teacher", path, seed)
  end

  defp row(name, path, seed) do
    {:ok, played} = Env.play(path, :cart_pole, episodes: 200, deterministic: false, seed: seed)
    %{name: name, path: path, return: played.mean, lowest: nil, first: nil}
  end

  # Games of the expert with the observations of the environment.
  defp demonstrations(seed, games) do
    {:ok, games} =
      Env.CartPole.demonstrations(
        games: games,
        steps: 200,
        perturb: 0.3,
        velocities: true,
        seed: seed
      )

    for {frames, labels} <- games, do: {scaled(frames), labels}
  end

  defp scaled(frames) do
    for <<row::binary-size(16) <- frames>>,
        {number, scale} <- Enum.zip(floats(row), @scales),
        into: <<>>,
        do: <<number * scale::float-32-little>>
  end

  # Play

  # Returns the rows of the policies after 20 updates and of the best one.
  defp learned(name, seed, out, path, more) do
    early = Path.join(out, "early.safetensors")

    copy = fn
      %{event: :saved, update: @early, path: path} -> File.cp!(path, early)
      _event -> :ok
    end

    {:ok, run} =
      PPO.start_link(
        [env: :cart_pole, out: out, seed: seed, steps: @steps, policy: path] ++
          [save_every: @early, progress: copy] ++ @play ++ more ++ @policy
      )

    {:ok, report} = PPO.await(run)
    full = Enum.filter(report.history, &(&1.episodes >= 100))
    first = Enum.find(full, &(&1.mean_return >= @solved))
    lowest = full |> Enum.map(& &1.mean_return) |> Enum.min()
    best = row(name, Path.join(out, "best.safetensors"), seed)
    [row("#{name} #{@early}", early, seed), %{best | lowest: lowest, first: first[:steps]}]
  end

  # Comparison

  # States before each action of twenty episodes that the teacher plays.
  defp states(path, seed) do
    for episode <- 1..20, into: <<>> do
      {:ok, trace} = Env.trace(path, :cart_pole, seed: 100 * seed + episode, deterministic: false)

      for state <- Enum.drop(trace.states, -1),
          number <- state,
          into: <<>>,
          do: <<number::float-32-little>>
    end
  end

  defp beside(path, teacher, states) do
    pairs = Enum.zip(logits(path, states), logits(teacher, states))

    %{
      kl: mean(for {ours, theirs} <- pairs, do: kl(softmax(ours), softmax(theirs))),
      same: mean(for {ours, theirs} <- pairs, do: if(best(ours) == best(theirs), do: 1, else: 0))
    }
  end

  defp accuracy(path, games) do
    hits =
      for {frames, labels} <- games,
          {logits, <<label::16-little>>} <-
            Enum.zip(logits(path, frames), for(<<two::binary-size(2) <- labels>>, do: two)),
          do: if(best(logits) == label, do: 1, else: 0)

    mean(hits)
  end

  # The two logits of the action in each state. A value, if the policy has one, comes after them.
  defp logits(path, states) do
    {:ok, policy} = Policy.load(path)
    {:ok, out} = Policy.forward(policy, states, batch: 1)

    for <<row::binary-size(4 * policy.num_logits) <- out.logits>>,
      do: row |> floats() |> Enum.take(2)
  end

  defp floats(row), do: for(<<number::float-32-little <- row>>, do: number)
  defp best([left, right]), do: if(right > left, do: 1, else: 0)

  defp softmax([left, right]) do
    share = 1 / (1 + :math.exp(right - left))
    [share, 1 - share]
  end

  defp kl(ours, theirs) do
    Enum.zip_with(ours, theirs, fn p, q ->
      if p > 0, do: p * :math.log(p / max(q, 1.0e-12)), else: 0
    end)
    |> Enum.sum()
  end

  # Output

  defp names, do: ["teacher", "near #{@early}", "near", "free #{@early}", "free"]

  defp wrong(rows) do
    teachers = for %{name: "teacher"} = row <- rows, into: %{}, do: {row.seed, row}

    for %{name: "near", seed: seed} = near <- rows,
        teacher = teachers[seed],
        {text, true} <- [
          {"the teacher's return is not near #{@wanted}", abs(teacher.return - @wanted) > 60},
          {"did not reach #{@solved}", near.first == nil or near.return < @solved},
          {"fell below its teacher", near.lowest < @kept * teacher.return}
        ],
        do: "seed #{seed}: #{text}"
  end

  defp wrong_medians([_teacher, near_early, near, free_early, free]) do
    for {name, true} <- [
          {"lowest return", near.lowest <= free.lowest},
          {"divergence", near_early.kl >= free_early.kl},
          {"agreement", near_early.same <= free_early.same}
        ],
        do: "the #{name} is no better than without a teacher"
  end

  defp median(name, rows) do
    rows = Enum.filter(rows, &(&1.name == name))

    for key <- [:return, :first, :lowest, :kl, :same, :expert], into: %{} do
      values = rows |> Enum.map(& &1[key]) |> Enum.sort()
      {key, Enum.at(values, div(length(values), 2))}
    end
    |> Map.merge(%{name: name, seed: "median"})
  end

  defp line(%{} = row) do
    line([
      to_string(row.seed),
      row.name,
      number(row.return, 1),
      if(row.first, do: to_string(row.first), else: "-"),
      number(row.lowest, 1),
      number(row.kl, 4),
      number(row.same, 3),
      number(row.expert, 3)
    ])
  end

  defp line([seed, name | figures]) do
    figures = for figure <- figures, do: String.pad_leading(figure, 10)
    Enum.join([String.pad_trailing(seed, 7), String.pad_trailing(name, 9) | figures])
  end

  defp number(nil, _digits), do: "-"
  defp number(value, digits), do: :erlang.float_to_binary(value / 1, decimals: digits)
  defp mean(numbers), do: Enum.sum(numbers) / length(numbers)

  defp finish([]), do: :ok

  defp finish(wrong) do
    for text <- wrong, do: IO.puts(text)
    exit({:shutdown, 1})
  end
end

FromTeacher.main(System.argv())
