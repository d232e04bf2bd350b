defmodule HRRMemory do
  @moduledoc false
  # Recall: an episode shows pairs of a key and a value, one in a frame, then asks keys one by one. The answer is the value that
  # the key was shown with last; in all other frames the answer is "none". Three tasks:
  #
  #   * `8 pairs`: 8 of 16 keys, then all are asked;
  #   * `8 pairs, 32 empty`: 32 empty frames before the questions;
  #   * `24 writes`: 24 times one of 8 keys with a new value, then all 8 keys are asked.
  #
  # Each policy learns from 1,000 recorded episodes and answers 300 others. An MLP sees the frame. A second MLP sees the frame
  # and a holographic memory, read at the key of the frame. A GRU, an attention and a gated linear attention (GLA) see the
  # frame, with windows of whole episodes. The GRU learns for 1,500 steps, the others for 400. The memory is a vector M of 256 numbers: each shown pair
  # makes it `decay * M + key (*) value`, where keys and values are projections of the frame's numbers, keys made unitary.
  # The numbers that `unbind/2` reads at a key are 256 more features.
  #
  # `right` is the share of asked keys whose answer is right, over all seeds: the mean, and the least. `us` is the median time
  # of a decision by `Sconce.Session.act/2`, with the update and the reading of the memory from Elixir.

  alias Sconce.{Corpus, HRR, Policy, Session, Trainer}

  @dimension 256
  @train 1000
  @test 300
  @tasks [
    {"8 pairs", [keys: 16, shown: 8, empty: 0, writes: 8]},
    {"8 pairs, 32 empty", [keys: 16, shown: 8, empty: 32, writes: 8]},
    {"24 writes", [keys: 8, shown: 8, empty: 0, writes: 24]}
  ]
  @values 8
  @common [dropout: 0.0, head_hidden_size: 0, loss: :plain, batch_size: 32, val_split: 0.1] ++
            [learning_rate: 0.003]
  @mlp [backbone: :mlp, hidden_sizes: [128], layer_norm: false, steps: 400]
  @gru [backbone: :gru, hidden_size: 64, num_layers: 1, steps: 1500]
  @attention [backbone: :sliding_window, hidden_size: 64, num_layers: 2, steps: 400]
  @gla [backbone: :gla, hidden_size: 64, num_layers: 2, steps: 400]
  @policies [
    {"MLP, frame", nil, @mlp},
    {"MLP, frame and memory", 1.0, @mlp},
    {"MLP, memory with decay 0.9", 0.9, @mlp},
    {"GRU 64", nil, @gru},
    {"attention 64 x 2", nil, @attention},
    {"GLA 64 x 2", nil, @gla}
  ]

  def main(seeds, task_named, policy_named) do
    dir = Path.join(System.tmp_dir!(), "sconce-hrr-#{System.pid()}")

    IO.puts(
      line(["task", "policy", "right, mean", "least", "weights", "seconds of training", "us"])
    )

    try do
      # Only overwritten pairs give decay a meaning.
      for {name, task} <- @tasks,
          task_named == nil or task_named == name,
          {policy, decay, options} <- @policies,
          policy_named == nil or policy_named == policy,
          decay != 0.9 or task[:writes] > task[:shown] do
        work = &run(Map.new(task), {decay, options}, &1, dir)
        runs = Task.async_stream(seeds, work, timeout: :infinity, max_concurrency: 5)
        report(name, policy, for({:ok, row} <- runs, do: row))
      end
    after
      File.rm_rf!(dir)
    end
  end

  defp report(task, policy, rows) do
    right = for row <- rows, do: row.right
    mean = fn key -> Enum.sum(for row <- rows, do: Map.fetch!(row, key)) / length(rows) end

    IO.puts(
      line([
        task,
        policy,
        percent(mean.(:right)),
        percent(Enum.min(right)),
        "#{hd(rows).weights}",
        :erlang.float_to_binary(mean.(:seconds), decimals: 1),
        :erlang.float_to_binary(mean.(:us), decimals: 1)
      ])
    )
  end

  defp line(columns) do
    widths = [20, 28, 12, 8, 8, 20, 8]
    columns = for {text, width} <- Enum.zip(columns, widths), do: String.pad_trailing(text, width)
    String.trim_trailing(Enum.join(columns, " "))
  end

  defp percent(share), do: "#{:erlang.float_to_binary(100 * share, decimals: 1)} %"

  defp run(task, {decay, options}, seed, dir) do
    folder = Path.join(dir, "#{System.unique_integer([:positive])}")
    {time, width} = {task.writes + task.empty + task.shown, task.keys + @values + 1}
    {frames, labels} = episodes(task, seed, 1, @train)
    {seen, wide} = features(frames, @train, {time, width}, task, decay)
    bytes = 4 * wide * time
    games = Enum.zip(parts(seen, bytes), parts(labels, 2 * time))
    heads = [answer: {:categorical, @values + 1}]
    {:ok, corpus} = Corpus.build({:vector, wide}, games, into: folder <> "-corpus", heads: heads)
    windows = [window_size: time, stride: time, validation_stride: time]
    all = @common ++ options ++ windows ++ [corpus: corpus, out: folder, seed: seed]
    {:ok, run} = Trainer.start_link(all)
    {:ok, report} = Trainer.await(run, :infinity)
    GenServer.stop(run)
    {:ok, policy} = Policy.load(Path.join(folder, "best.safetensors"))
    {frames, labels} = episodes(task, seed, 2, @test)
    {seen, ^wide} = features(frames, @test, {time, width}, task, decay)

    {:ok, out} =
      Policy.forward(policy, for(game <- parts(seen, bytes), do: parts(game, 4 * wide)))

    right = right(out.logits, labels, task)
    us = decision(policy, binary_part(seen, 0, bytes), wide, task, decay)
    %{right: right, weights: report.weights, seconds: report.seconds, us: us}
  end

  # The logits of all frames and the labels: the share of asked frames whose likeliest class is the label.
  defp right(logits, labels, task) do
    n = @values + 1
    found = for row <- parts(logits(logits), 4 * n), do: likeliest(row)
    pairs = Enum.zip(found, for(<<label::16-little <- labels>>, do: label))
    time = task.writes + task.empty + task.shown
    asked = for {pair, at} <- Enum.with_index(pairs), rem(at, time) >= time - task.shown, do: pair
    Enum.count(asked, fn {one, other} -> one == other end) / length(asked)
  end

  defp logits(data) when is_binary(data), do: data
  defp logits(%{data: data}), do: data

  defp likeliest(row) do
    row = for <<v::float-32-little <- row>>, do: v
    Enum.find_index(row, &(&1 == Enum.max(row)))
  end

  # -- episodes
  defp episodes(task, seed, side, count) do
    :rand.seed(:exsss, {seed, side, :erlang.phash2(task)})
    games = for _ <- 1..count, do: episode(task)
    {for({frames, _} <- games, do: frames), labels(games)}
  end

  defp labels(games),
    do: for({_frames, labels} <- games, label <- labels, into: <<>>, do: <<label::16-little>>)

  # Frames are {key, value, asked?}, with nil for nothing.
  defp episode(task) do
    keys = Enum.take_random(0..(task.keys - 1), task.shown)
    more = for _ <- 1..(task.writes - task.shown)//1, do: Enum.random(keys)
    shown = for key <- Enum.shuffle(keys ++ more), do: {key, :rand.uniform(@values) - 1, false}
    last = Map.new(shown, fn {key, value, _} -> {key, value} end)
    empty = for _ <- 1..task.empty//1, do: {nil, nil, false}
    asked = for key <- Enum.shuffle(keys), do: {key, nil, true}
    answers = for {key, nil, true} <- asked, do: last[key]
    {shown ++ empty ++ asked, List.duplicate(@values, task.writes + task.empty) ++ answers}
  end

  defp row({key, value, asked?}, task) do
    hot = fn at, n -> for i <- 0..(n - 1), into: <<>>, do: number(if(i == at, do: 1, else: 0)) end
    [hot.(key, task.keys), hot.(value, @values), number(if(asked?, do: 1, else: 0))]
  end

  defp number(v), do: <<v::float-32-little>>

  # -- features
  defp features(games, _count, {_time, width}, task, nil),
    do: {IO.iodata_to_binary(for game <- games, frame <- game, do: row(frame, task)), width}

  defp features(games, count, {time, width}, task, decay) do
    # One batch for each frame of all episodes; `reads` are [time][episode].
    {_memory, reads} =
      Enum.reduce(0..(time - 1), {zeros(count), []}, fn t, {memory, reads} ->
        frames = for game <- games, do: Enum.at(game, t)
        {memory, read} = update(memory, frames, task, decay)
        {memory, [parts(read, 4 * @dimension) | reads]}
      end)

    by_episode = reads |> Enum.reverse() |> Enum.zip_with(& &1)

    rows =
      for {game, reads} <- Enum.zip(games, by_episode),
          {frame, read} <- Enum.zip(game, reads),
          do: [row(frame, task), read]

    {IO.iodata_to_binary(rows), width + @dimension}
  end

  defp zeros(count) do
    data = :binary.copy(<<0::32>>, count * @dimension)

    {:ok, memory} =
      HRR.from_tensor(%{data: data, shape: {count, @dimension}, type: {:f, 32}}, as: :binaries)

    {:ok, memory} = HRR.in_domain(memory, :spectrum)
    memory
  end

  # Reads the memory at the keys of the frames, then writes the pairs that they show: the new memory and the numbers read.
  defp update(memory, frames, task, decay) do
    {keys, values} = projected(frames, task)
    {:ok, read} = HRR.unbind(memory, keys)
    {:ok, %{data: data}} = HRR.to_tensor(read)
    {:ok, pairs} = HRR.bind(keys, values)

    # A frame without a value binds a vector of zeros. Only frames that show a pair make the memory decay.
    decay = if match?([{_, nil, _} | _], frames), do: 1.0, else: decay
    {:ok, memory} = HRR.superpose([memory, pairs], weights: [decay, 1.0], normalise: false)
    {memory, scaled(data)}
  end

  # Unit vectors of 256 numbers become numbers of about 1.
  defp scaled(data) do
    scale = :math.sqrt(@dimension)
    for <<v::float-32-little <- data>>, into: <<>>, do: number(v * scale)
  end

  defp projected(frames, task) do
    hot = fn at, n -> for i <- 0..(n - 1), into: <<>>, do: number(if(i == at, do: 1, else: 0)) end
    count = length(frames)
    keys = for {key, _, _} <- frames, into: <<>>, do: hot.(key, task.keys)
    values = for {_, value, _} <- frames, into: <<>>, do: hot.(value, @values)
    opts = fn seed -> [seed: seed, as: :binaries] end

    {:ok, keys} =
      HRR.project(%{data: keys, shape: {count, task.keys}, type: {:f, 32}}, @dimension, opts.(1))

    {:ok, values} =
      HRR.project(%{data: values, shape: {count, @values}, type: {:f, 32}}, @dimension, opts.(2))

    {:ok, keys} = HRR.unitary(keys)
    {keys, values}
  end

  # -- the time of a decision
  defp decision(policy, episode, wide, task, decay) do
    {:ok, session} = Session.open(policy, deterministic: true)
    frame = for <<v::float-32-little <- binary_part(episode, 0, 4 * wide)>>, do: v
    width = task.keys + @values + 1
    plain = Enum.take(frame, width)
    memory = if decay, do: zeros(1)
    act(session, frame, plain, memory, task, decay, 200)
    times = act(session, frame, plain, memory, task, decay, 2000)
    :ok = Session.close(session)
    Enum.at(Enum.sort(times), 1000)
  end

  defp act(session, frame, plain, memory, task, decay, count) do
    {times, _memory} =
      Enum.map_reduce(1..count, memory, fn _, memory ->
        start = System.monotonic_time(:nanosecond)
        {memory, frame} = remembered(memory, frame, plain, task, decay)
        {:ok, _action} = Session.act(session, frame)
        {(System.monotonic_time(:nanosecond) - start) / 1000, memory}
      end)

    times
  end

  defp remembered(nil, frame, _plain, _task, _decay), do: {nil, frame}

  defp remembered(memory, _frame, plain, task, decay) do
    {memory, read} = update(memory, [{3, 2, false}], task, decay)
    {memory, plain ++ for(<<v::float-32-little <- read>>, do: v)}
  end

  defp parts(data, bytes), do: for(<<part::binary-size(bytes) <- data>>, do: part)
end
