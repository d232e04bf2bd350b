# Scores a policy on games that it has not seen: two of the fourteen are left out in turn, and scored.
#
#     SCONCE_REPLAYS=replays mix run learning/left_out.exs --into left_out > learning/left_out.txt
#     ... mix run learning/left_out.exs --into left_out --variants base,decay --seeds 1,2,3 --only 0,2 --steps 1200
#
# The games in `replays/train` are divided by name into `--folds` folds. For each fold, variant and seed, a
# run trains on the games of the other folds. Its policy is scored on every frame of each game in the
# fold, with the state carried. `--only` names the folds to run. Corpora and runs stay in `--into` and are
# reused by later calls, so rows can be added one call at a time.
#
# Figures are nats per frame, buttons summed over their eight bits, averaged over the games left out.
# `repeat` and `pairs` are the baselines of `mix sconce.eval --train`, fitted on the games of the other
# folds. `lost` is the number of games whose buttons `repeat` scores better. `times` multiplies what the
# heads add to their prior: 1 is the policy, 0 its prior alone. `spread` is the largest value over the seeds
# minus the smallest.

defmodule LeftOut do
  alias Sconce.{Corpus, Trainer}

  @defaults [
    folds: 7,
    variants: "base",
    seeds: "1",
    steps: 1200,
    every: 200,
    threads: 1,
    times: "1,0.75,0.5,0.25,0"
  ]
  @switches [
    into: :string,
    only: :string,
    folds: :integer,
    variants: :string,
    seeds: :string,
    steps: :integer,
    every: :integer,
    threads: :integer,
    times: :string
  ]

  # The run in README.md.
  @base [
    backbone: :gru,
    heads: :autoregressive,
    prior: true,
    loss: :plain,
    mirror: 0.5,
    dropout: 0.3,
    input_dropout: 0.3
  ]

  # Options changed by each variant. `:without` matches games that are not used for training, here those in
  # which a script repeats one move.
  @variants %{
    "base" => [],
    "prior25" => [prior_weight: 0.25],
    "plain" => [without: ~r/multishine|ms_teacher/],
    "noinput" => [input_dropout: 0.0],
    "dropout" => [dropout: 0.5, input_dropout: 0.5],
    "decay" => [weight_decay: 3.0, freeze: ["heads.prior"]]
  }

  @heads ~w(all buttons main_x main_y c_x c_y shoulder)

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)
    opts = Keyword.merge(@defaults, opts)
    into = opts[:into] || raise "--into is not set, see the top of this script"
    folds = folds(opts)
    runs = for variant <- list(opts[:variants]), seed <- list(opts[:seeds]), do: {variant, seed}
    games = folds |> Enum.map(fn {games, _others, _fold} -> length(games) end) |> Enum.sum()

    IO.puts(
      "#{games} games left out, #{length(folds)} of #{opts[:folds]} folds, #{opts[:steps]} steps"
    )

    scored =
      for {games, others, fold} <- folds, {variant, seed} <- runs do
        run = run({variant, seed}, fold, others, into, opts)
        run = Map.put(run, :first?, {variant, seed} == hd(runs))
        for game <- games, do: scores(run, game, into, opts)
      end

    scored |> List.flatten() |> tables(runs, opts)
  end

  # `{games, other games, number}` of each fold to run.
  defp folds(opts) do
    replays =
      System.get_env("SCONCE_REPLAYS") ||
        raise "SCONCE_REPLAYS is not set, see the top of this script"

    all = [replays, "train", "*.slp"] |> Path.join() |> Path.wildcard() |> Enum.sort()
    only = opts[:only] && list(opts[:only])
    size = ceil(length(all) / opts[:folds])

    for {games, fold} <- all |> Enum.chunk_every(size) |> Enum.with_index(),
        only == nil or "#{fold}" in only,
        do: {games, all -- games, fold}
  end

  defp run({variant, seed}, fold, others, into, opts) do
    {without, changed} = @variants |> Map.fetch!(variant) |> Keyword.pop(:without)
    name = if without, do: "train-#{fold}-#{variant}", else: "train-#{fold}"
    learned = if without, do: Enum.reject(others, &(Path.basename(&1) =~ without)), else: others
    out = Path.join([into, "runs", variant, "seed-#{seed}", "fold-#{fold}"])

    saving = [
      out: out,
      steps: opts[:steps],
      save_every: opts[:every],
      keep_last: 1_000,
      save_minutes: nil,
      val_split: 0.0,
      evaluate: false,
      threads: opts[:threads],
      seed: String.to_integer(seed)
    ]

    corpus = corpus(learned, name, into)

    unless File.exists?(Path.join(out, "report.json")) do
      # A run that was killed starts again.
      File.rm_rf!(out)
      {:ok, run} = Trainer.start_link([corpus: corpus] ++ saving ++ Keyword.merge(@base, changed))
      {:ok, _report} = Trainer.await(run)
      GenServer.stop(run)
    end

    {:ok, %{steps: steps, seconds: seconds}} = Trainer.report(out)
    steps == opts[:steps] || raise "#{out} has #{steps} steps"
    # All variants are compared with the same baselines.
    baselines = if without, do: corpus(others, "train-#{fold}", into), else: corpus
    %{key: {variant, seed}, out: out, train: baselines, seconds: seconds}
  end

  defp corpus(replays, name, into) do
    dir = Path.join([into, "corpora", name])
    unless File.exists?(dir), do: {:ok, _corpus} = Corpus.import(replays, into: dir)
    dir
  end

  # The scores of a game, and of the baselines on it. For the first variant and seed, also the scores of
  # every checkpoint, and of the last one with its corrections multiplied.
  defp scores(run, replay, into, opts) do
    name = Path.basename(replay, ".slp")
    game = corpus([replay], name, into)
    last = state(run.out, opts[:steps])

    {:ok, whole} =
      Trainer.evaluate(last, game, mode: :carry, train: run.train, threads: opts[:threads])

    baselines =
      for %{name: name, report: report} <- whole.baselines,
          into: %{},
          do: {name, figures(report)}

    scores = %{
      key: run.key,
      game: name,
      seconds: run.seconds,
      baselines: baselines,
      policy: figures(whole.policy)
    }

    if run.first?, do: Map.merge(scores, looks(run.out, last, game, opts)), else: scores
  end

  defp looks(out, last, game, opts) do
    curve = for step <- steps(opts), into: %{}, do: {step, score(state(out, step), game, opts)}

    shrunk =
      for times <- list(opts[:times]),
          into: %{},
          do: {times, shrunk(last, number(times), game, opts)}

    %{curve: curve, shrunk: shrunk}
  end

  defp state(out, step),
    do: Path.join(out, "last-#{String.pad_leading("#{step}", 8, "0")}.safetensors")

  defp steps(opts), do: Enum.to_list(opts[:every]..opts[:steps]//opts[:every])

  defp score(checkpoint, game, opts) do
    {:ok, %{policy: report}} =
      Trainer.evaluate(checkpoint, game, mode: :carry, threads: opts[:threads])

    figures(report)
  end

  defp figures(%{nll: nll, heads: heads}), do: [nll | Enum.map(heads, & &1.nll)]

  defp shrunk(checkpoint, times, game, opts) do
    File.write!(copy(), checkpoint |> File.read!() |> shrink(times))
    score(copy(), game, opts)
  after
    File.rm(copy())
  end

  defp copy, do: Path.join(System.tmp_dir!(), "sconce-left-out-#{System.pid()}.safetensors")

  # A head's logits are its prior plus the output of `heads.decode`, which is linear in its weights.
  # Multiplying these weights multiplies the correction. The digest no longer matches, so its key is renamed
  # and it is not checked.
  defp shrink(<<length::little-64, header::binary-size(length), numbers::binary>>, times) do
    found = Regex.scan(~r/"heads\.decode\.[^"]*":\{[^}]*"data_offsets":\[(\d+),(\d+)\]/, header)
    places = for [_whole, from, to] <- found, do: {String.to_integer(from), String.to_integer(to)}
    places == [] && raise "the heads are not autoregressive"

    multiplied =
      Enum.reduce(places, numbers, fn {from, to}, numbers ->
        <<before::binary-size(from), part::binary-size(to - from), rest::binary>> = numbers
        part = for <<x::little-float-32 <- part>>, into: <<>>, do: <<x * times::little-float-32>>
        before <> part <> rest
      end)

    <<length::little-64>> <> String.replace(header, "sha256", "_ha256") <> multiplied
  end

  defp tables(scored, runs, opts) do
    [{first, _seed} = key | _others] = runs
    of_first = Enum.filter(scored, &(&1.key == key))
    head("mean over games", @heads ++ ["lost"])

    for name <- ~w(repeat pairs),
        do: row(name, mean(for one <- of_first, do: one.baselines[name]))

    for {variant, of_variant} <- Enum.group_by(runs, &elem(&1, 0)) do
      seeds = for key <- of_variant, do: Enum.filter(scored, &(&1.key == key))
      means = for of_seed <- seeds, do: mean(for one <- of_seed, do: one.policy)

      for {{_variant, seed}, games, figures} <- Enum.zip([of_variant, seeds, means]),
          do: row("#{variant}, seed #{seed}", figures, ["#{Enum.count(games, &worse?/1)}"])

      if length(means) > 1 do
        row("#{variant}, mean", mean(means))
        row("#{variant}, spread", spread(means))
      end
    end

    head("#{first}, by step", @heads)
    for step <- steps(opts), do: row("#{step}", mean(for one <- of_first, do: one.curve[step]))

    head("#{first}, times", @heads)

    for times <- list(opts[:times]),
        do: row(times, mean(for one <- of_first, do: one.shrunk[times]))

    head("by game, seed #{elem(key, 1)}", ["buttons", "repeat", "all", "pairs"])

    for {variant, seed} <- runs,
        seed == elem(key, 1),
        one <- scored,
        one.key == {variant, seed} do
      [all, buttons | _rest] = one.policy

      row("#{variant}, #{one.game}", [
        buttons,
        Enum.at(one.baselines["repeat"], 1),
        all,
        hd(one.baselines["pairs"])
      ])
    end

    seconds = for one <- scored, uniq: true, do: {one.key, one.seconds}
    IO.puts("\nSeconds of a run: #{round(mean_of(for {_key, seconds} <- seconds, do: seconds))}")
  end

  defp worse?(one), do: Enum.at(one.policy, 1) > Enum.at(one.baselines["repeat"], 1)

  defp mean(rows), do: rows |> Enum.zip_with(& &1) |> Enum.map(&mean_of/1)
  defp mean_of(numbers), do: Enum.sum(numbers) / length(numbers)
  # Largest value minus smallest.
  defp spread(rows), do: Enum.zip_with(rows, &(Enum.max(&1) - Enum.min(&1)))

  defp head(title, columns), do: IO.puts("\n" <> label(title) <> Enum.map_join(columns, &cell/1))

  defp row(title, figures, more \\ []) do
    figures = Enum.map(figures, &:erlang.float_to_binary(&1 / 1, decimals: 3))
    IO.puts(label(title) <> Enum.map_join(figures ++ more, &cell/1))
  end

  defp label(text), do: String.pad_trailing(text, 40)
  defp cell(text), do: String.pad_leading(text, 10)
  defp list(text), do: String.split(text, ",")
  defp number(text), do: text |> Float.parse() |> elem(0)
end

LeftOut.main(System.argv())
