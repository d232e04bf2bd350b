# What fewer bits and fewer weights cost and gain on real games:
#
#     SCONCE_REPLAYS=replays mix run smaller.exs | tee smaller.txt             # about a quarter of an hour on two idle cores
#     SCONCE_REPLAYS=replays mix run smaller.exs --steps 100 --hidden 64       # a short look
#     SCONCE_REPLAYS=replays mix run smaller.exs --no-quantise --keep runs     # without fewer bits; `runs` keeps what was trained
#     SCONCE_REPLAYS=replays mix run smaller.exs --only "int4 learned steps"   # rows whose names begin so, beside f32
#
# A GRU with autoregressive heads imitates the games of the folder `train`, in 32-bit floats, with `quantise:` and with `prune:`. Each
# row is a policy, scored on every frame of `validation` with its memory carried: its NLL as a part of that of f32, the
# share of the likeliest actions that change, the bytes of its checkpoint, and microseconds of a decision of a session.
#
# `half` has lost units until half of the weights are left (`Sconce.Compress.Policy.shrink/2`), chosen by norms or by a
# calibration on the training games; `half trained` and `half distilled` then had a run of their own, the second with the
# GRU as its teacher (`teacher:`), and `f32 trained on` is the GRU after such a run. `mlp` has a tenth of the weights and no
# memory; `mlp distilled` learned from the GRU too.
#
# `nearest` rounds the weights of the f32 policy, `gptq` calibrates them on the training games, and `trained` learned its
# weights on the grid; `learned steps` learned the steps of the grid too (`quantise_steps: :learned`), and `and activations`
# also rounded the inputs of products while it learned (`quantise_activations: true`). `2:4` keeps two of four inputs: the
# largest magnitudes, by SparseGPT, or as training removed them (`prune:`). Decisions are those of a session, so that
# rounded inputs count too. `low rank` has products of two matrices, of a rank or of an energy of the matrices' outputs
# (`Sconce.Compress.Policy.low_rank/2`), each also with factors that a session rounds to 8 bits. `bits/group` without a group has a scale per output.

defmodule Smaller do
  alias Sconce.{Compress, Corpus, Policy, Session, Trainer}

  @switches [
    steps: :integer,
    hidden: :integer,
    seed: :integer,
    threads: :integer,
    quantise: :boolean,
    keep: :string,
    only: :keep
  ]
  @trained [
    {"int8 trained", :int8, []},
    {"int4 trained", :int4, []},
    {"2:4 trained", :two_four, []},
    {"int8 learned steps", :int8, [quantise_steps: :learned]},
    {"int4 learned steps", :int4, [quantise_steps: :learned]},
    {"int4 learned steps and activations", :int4,
     [quantise_steps: :learned, quantise_activations: true]}
  ]
  @mlp [backbone: :mlp, hidden_sizes: [128, 64], stream_size: 32]
  # A teacher's distributions say more than a recorded action (Hinton et al. 2015), so a student that learns mostly from them
  # needs less dropout, and gains from more steps, with which it would otherwise learn the games by heart.
  @distilled [teacher_weight: 4.0, dropout: 0.1, input_dropout: 0.1, learning_rate: 2.0e-3]
  @half [learning_rate: 5.0e-4, warmup_steps: 50]
  @rest [:backbone, :heads, :hidden_size, :prior]
  @rows [
    {"int8 nearest", [bits: 8]},
    {"int8 gptq", [bits: 8, calibration: true]},
    {"int4/32 nearest", [bits: 4]},
    {"int4/32 gptq", [bits: 4, calibration: true]},
    {"int4/128 nearest", [bits: 4, group: 128]},
    {"int4/128 gptq", [bits: 4, group: 128, calibration: true]},
    {"low rank 64 svd", [rank: 64]},
    {"low rank 64 calibrated", [rank: 64, calibration: true]},
    {"low rank 32 calibrated", [rank: 32, calibration: true]},
    {"low rank 99.5 % calibrated", [energy: 0.995, calibration: true]},
    {"low rank 99 % calibrated", [energy: 0.99, calibration: true]},
    {"2:4 magnitude", [pattern: :two_four]},
    {"2:4 sparsegpt", [pattern: :two_four, calibration: true]}
  ]
  @columns [{"policy", 34}, {"NLL", 9}, {"of f32", 9}, {"session", 9}, {"changed %", 10}] ++
             [{"KiB", 8}, {"us", 7}, {"of f32", 7}]

  def main(args) do
    {opts, []} = OptionParser.parse!(args, strict: @switches)

    opts =
      Keyword.merge(
        [steps: 500, hidden: 256, seed: 1, threads: 2, quantise: true, students: true],
        opts
      )

    dir = opts[:keep] || Path.join(System.tmp_dir!(), "sconce-smaller-#{System.pid()}")

    try do
      [train, validation] = for part <- ~w(train validation), do: corpus!(part, dir)
      plain = train!("f32", nil, [], train, validation, dir, opts)
      IO.puts(line(for {title, _width} <- @columns, do: title))
      base = row("f32", plain, validation, nil, dir)

      for {name, own} <- @rows, opts[:quantise] and wanted?(name, opts) do
        own = if own[:calibration], do: Keyword.put(own, :calibration, train), else: own
        {:ok, small} = smaller(plain, own)
        row(name, small.policy, validation, base, dir)
        # A session can round the factors too.
        if name =~ "low rank", do: row("  in int8", small.policy, validation, base, dir, :int8)
      end

      for {name, how, more} <- @trained, opts[:quantise] and wanted?(name, opts) do
        row(name, train!(name, how, more, train, validation, dir, opts), validation, base, dir)
      end

      if opts[:students], do: students(train, validation, base, dir, opts)
    after
      opts[:keep] || File.rm_rf!(dir)
    end
  end

  defp smaller(policy, own) do
    cond do
      own[:pattern] -> Compress.Policy.prune(policy, own)
      own[:rank] || own[:energy] -> Compress.Policy.low_rank(policy, own)
      true -> Compress.Policy.quantise(policy, own)
    end
  end

  # Whether a row is asked for: without `--only` all are.
  defp wanted?(name, opts) do
    only = Keyword.get_values(opts, :only)
    only == [] or Enum.any?(only, &String.starts_with?(name, &1))
  end

  defp students(train, validation, base, dir, opts) do
    teacher = Path.join([dir, "run-f32", "last.safetensors"])
    taught = [teacher: teacher, teacher_direction: :reverse]
    {:ok, large} = Policy.load(teacher)
    path = Path.join(dir, "half.safetensors")

    for {name, own} <- [{"half by norms", []}, {"half calibrated", [calibration: train]}] do
      {:ok, half} = Compress.Policy.shrink(large, [keep: 0.5] ++ own)
      if wanted?(name, opts), do: row(name, half.policy, validation, base, dir)
      :ok = Policy.save(half.policy, path)
    end

    half = [policy: path] ++ @half
    distilled = @mlp ++ taught ++ @distilled ++ [steps: 3 * opts[:steps]]

    rows = [
      {"f32 trained on", [policy: teacher] ++ @half},
      {"half trained", half},
      {"half distilled", [teacher_weight: 1.0] ++ taught ++ half},
      {"mlp", @mlp},
      {"mlp distilled", distilled}
    ]

    for {name, more} <- rows, wanted?(name, opts) do
      row(name, train!(name, nil, more, train, validation, dir, opts), validation, base, dir)
    end
  end

  defp corpus!(part, dir) do
    replays =
      System.get_env("SCONCE_REPLAYS") || raise("SCONCE_REPLAYS names no folder of replays")

    folder = Path.join(dir, part)
    File.dir?(folder) || ({:ok, _} = Corpus.import(Path.join(replays, part), into: folder))
    {:ok, corpus} = Corpus.open(Path.join(dir, part))
    corpus
  end

  defp train!(name, how, more, train, validation, dir, opts) do
    out = Path.join(dir, "run-" <> String.replace(name, " ", "-"))

    given = [
      corpus: train,
      validation: validation,
      out: out,
      backbone: :gru,
      heads: :autoregressive,
      hidden_size: opts[:hidden],
      prior: true,
      mirror: 0.5,
      dropout: 0.3,
      input_dropout: 0.3,
      loss: :plain,
      batch_size: 64,
      window_size: 60,
      learning_rate: 1.0e-3,
      weight_decay: 0.01,
      warmup_steps: 100,
      lr_schedule: :cosine,
      validation_mode: :carry,
      evaluate: false,
      steps: opts[:steps],
      threads: opts[:threads],
      seed: opts[:seed]
    ]

    given = Keyword.merge(given, more)
    given = if more[:backbone], do: Keyword.delete(given, :hidden_size), else: given
    given = if more[:policy], do: Keyword.drop(given, @rest), else: given
    given = given ++ learned(how)
    # With a single validation, at the end, the best policy is the last one.
    learns_steps? = more[:quantise_steps] == :learned
    given = if learns_steps?, do: [{:validate_every, opts[:steps]} | given], else: given
    # With `--keep`, a run that ended is not repeated.
    done = Path.join(out, "done")
    File.exists?(done) || run!(name, given)
    File.touch!(done)

    # The last state has the weights that learn. Their nearest codes, or their largest magnitudes, are those that forward
    # passes read, unless the steps are learned.
    file = if learns_steps?, do: "best.safetensors", else: "last.safetensors"
    {:ok, policy} = Policy.load(Path.join(out, file))
    if learns_steps?, do: policy, else: coded(how, policy)
  end

  defp run!(name, given) do
    {:ok, run} = Trainer.start_link(given)
    {:ok, report} = Trainer.await(run)
    IO.puts("trained #{name}: #{report.steps} steps, #{round(report.seconds)} s")
  end

  defp learned(nil), do: []
  defp learned(:two_four), do: [prune: :two_four]
  defp learned(bits), do: [quantise: bits]

  defp coded(nil, policy), do: policy
  defp coded(:int8, policy), do: quantised(policy, 8)
  defp coded(:int4, policy), do: quantised(policy, 4)

  defp coded(:two_four, policy) do
    {:ok, sparse} = Compress.Policy.prune(policy, pattern: :two_four)
    sparse.policy
  end

  defp quantised(policy, bits) do
    {:ok, small} = Compress.Policy.quantise(policy, bits: bits)
    small.policy
  end

  # A row beside that of f32.
  defp row(name, policy, validation, base, dir, weights \\ :stored) do
    path = Path.join(dir, "row.safetensors")
    :ok = Policy.save(policy, path)
    {:ok, %{policy: %{nll: nll}}} = Trainer.evaluate(path, validation, mode: :carry)
    opts = [deterministic: true, logits: true, seed: 0, weights: weights]
    {:ok, session} = Session.open(policy, opts)
    if weights != :stored, do: :ok = Policy.save(policy, path, packed: weights, weights: false)
    base = base || %{nll: nll, played: nil, us: nil}
    played = play(session, validation, base.played)
    us = time(session, validation)
    base_us = base.us || us
    base_nll = (base.played && base.played.nll) || played.nll

    IO.puts(
      line([
        name,
        decimals(nll, 4),
        decimals(nll / base.nll, 4),
        decimals(played.nll / base_nll, 4),
        if(base.played, do: decimals(100 * played.changed, 3), else: "-"),
        to_string(div(File.stat!(path).size, 1024)),
        decimals(us, 1),
        decimals(us / base_us, 2)
      ])
    )

    %{nll: nll, played: played, us: us}
  end

  # Plays the games and scores the recorded actions. The choices are the likeliest of f32.
  defp play(session, validation, base) do
    frames =
      for game <- 0..(validation.info.games - 1)//1, player <- 0..1 do
        :ok = Session.reset(session)
        {:ok, recording} = Corpus.recording(validation, game, player)

        for {frame, labels} <- recording do
          {:ok, action} = Session.act(session, frame, choices: labels)

          {likeliest(session.spec.heads, action.logits),
           score(session.spec.heads, action.logits, labels)}
        end
      end

    frames = Enum.concat(frames)
    {likeliest, scores} = Enum.unzip(frames)
    changed = base && Enum.count(Enum.zip(likeliest, base.likeliest), fn {a, b} -> a != b end)

    %{
      likeliest: likeliest,
      nll: Enum.sum(scores) / length(scores),
      changed: changed && changed / length(likeliest)
    }
  end

  defp likeliest(heads, logits) do
    for %{name: name, kind: kind} <- heads,
        do: Sconce.Bench.Quantise.likeliest(kind, Map.fetch!(logits, name))
  end

  # The NLL of a recorded action, whose labels are those of the heads in their order.
  defp score(heads, logits, labels) do
    {scores, []} =
      Enum.map_reduce(heads, labels, fn %{name: name, kind: kind}, labels ->
        {own, labels} = Enum.split(labels, num_labels(kind))
        {nll(kind, Map.fetch!(logits, name), own), labels}
      end)

    Enum.sum(scores)
  end

  defp num_labels({:bernoulli, n}), do: n
  defp num_labels({:categorical, _n}), do: 1

  defp nll({:bernoulli, _n}, logits, pressed) do
    Enum.sum(
      for {x, y} <- Enum.zip(logits, pressed),
          do: :math.log(1 + :math.exp(if(y == 1, do: -x, else: x)))
    )
  end

  defp nll({:categorical, _n}, logits, [choice]) do
    most = Enum.max(logits)
    sum = Enum.sum(for x <- logits, do: :math.exp(x - most))
    :math.log(sum) + most - Enum.at(logits, choice)
  end

  # The median of the microseconds of decisions.
  defp time(session, validation) do
    {:ok, recording} = Corpus.recording(validation, 0, 0)
    frames = recording |> Enum.take(2000) |> Enum.map(&elem(&1, 0))

    times =
      for frame <- frames do
        began = :erlang.monotonic_time(:nanosecond)
        {:ok, _action} = Session.act(session, frame)
        (:erlang.monotonic_time(:nanosecond) - began) / 1000
      end

    Sconce.Figures.percentile(times, 50)
  end

  defp line(cells) do
    pad = fn
      {cell, {_title, width}}, 0 -> String.pad_trailing(cell, width)
      {cell, {_title, width}}, _i -> String.pad_leading(cell, width)
    end

    cells
    |> Enum.zip(@columns)
    |> Enum.with_index()
    |> Enum.map_join(" ", fn {cell, i} -> pad.(cell, i) end)
  end

  defp decimals(number, digits), do: :erlang.float_to_binary(number / 1, decimals: digits)
end

Smaller.main(System.argv())
