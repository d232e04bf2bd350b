defmodule Sconce.Trainer.SelectionTest do
  use ExUnit.Case, async: true

  alias Sconce.{Corpus, Error, Loader, Native, Trainer}

  @moduletag :tmp_dir

  @small [backbone: :gru, hidden_size: 8, num_layers: 1, head_hidden_size: 8, dropout: 0.0] ++
           [batch_size: 4, window_size: 6, stride: 6, steps: 4, validation_stride: 100] ++
           [evaluate: false, loss: :plain, warmup_steps: 0, lr_schedule: :constant]

  setup_all do
    dir = Sconce.Test.Scratch.tmp_dir!("selection")
    :ok = Native.corpus_fixtures(Path.join(dir, "replays"))
    {:ok, corpus} = Corpus.import(Path.join(dir, "replays"), into: Path.join(dir, "corpus"))
    %{corpus: corpus, replays: Path.join(dir, "replays")}
  end

  defp train(context, out, more) do
    own = [corpus: context.corpus, out: Path.join(context.tmp_dir, out)] ++ @small

    with {:ok, run} <- Trainer.start_link(Keyword.merge(own, more)) do
      :ok = Trainer.subscribe(run)
      Trainer.await(run, 60_000)
    end
  end

  test "a loss on the last frame equals a burn-in of the others, and resumes to the same bits",
       context do
    {:ok, last} = train(context, "last", loss_on: :last)
    {:ok, burnt} = train(context, "burnt", burn_in: 5)
    losses = fn report -> for %{heads: [_ | _] = heads} <- report.history, do: heads end
    assert losses.(last) != []
    assert losses.(last) == losses.(burnt)
    assert last.options.loss_on == "last"
    policy = fn report -> Sconce.Policy.load(Path.join(report.out, "best.safetensors")) end
    {:ok, a} = policy.(last)
    {:ok, b} = policy.(burnt)
    rows = [List.duplicate(<<0::size(32 * a.raw_width)>>, 6)]
    assert Sconce.Policy.forward(a, rows) == Sconce.Policy.forward(b, rows)

    {:ok, all} = train(context, "every", [])
    assert losses.(all) != losses.(last)

    {:ok, _part} = train(context, "part", loss_on: :last, steps: 2)

    {:ok, run} =
      Trainer.start_link(resume: true, out: Path.join(context.tmp_dir, "part"), steps: 4)

    {:ok, resumed} = Trainer.await(run, 60_000)
    {:ok, c} = policy.(resumed)
    assert Sconce.Policy.forward(a, rows) == Sconce.Policy.forward(c, rows)

    {:ok, plan} = Trainer.plan(nil, [corpus: context.corpus, loss_on: :last] ++ @small)
    assert plan.epoch_steps > 0

    assert_raise ArgumentError, ~r/option :burn_in has no effect with loss_on: :last/, fn ->
      train(context, "both", loss_on: :last, burn_in: 2)
    end
  end

  test "filters leave views out, counted by reason in the events of a run", context do
    {:ok, games} = Corpus.games(context.corpus)
    [%{stage: stage} | _] = games
    on_stage = Enum.count(games, &(&1.stage == stage))

    filters = [stages: [stage], dual_port: false, val_split: 0.0]
    {:ok, report} = train(context, "filtered", filters)
    assert report.train.games == on_stage
    assert_received {:sconce_trainer, _run, %{event: :start, left_out: left_out}}
    others = 2 * (length(games) - on_stage)
    expected = if others > 0, do: %{stage: others, port: on_stage}, else: %{port: on_stage}
    assert left_out == expected

    assert {:error, %Error{kind: :not_found} = error} = train(context, "none", stages: [1])
    assert Exception.message(error) =~ "a view that the filters keep"

    assert_raise ArgumentError,
                 ~r/:stages: no stage "Batlefield", did you mean "Battlefield"/,
                 fn ->
                   train(context, "wrong", stages: ["Batlefield"])
                 end
  end

  test "a stream has the same filters, and its sizes count them", context do
    {:ok, all} = Loader.info(context.corpus, window_size: 10)
    assert all.left_out == %{}
    {:ok, one} = Loader.info(context.corpus, window_size: 10, dual_port: false)
    assert one.left_out == %{port: context.corpus.info.games}
    {:ok, games} = Corpus.games(context.corpus)
    most = games |> Enum.map(& &1.frames) |> Enum.max()
    least = Enum.count(games, &(&1.frames < most))
    {:ok, long} = Loader.info(context.corpus, window_size: 10, min_frames: most)
    assert long.left_out == if(least > 0, do: %{too_short: 2 * least}, else: %{})
  end

  test "the loss of a stream is on the last frame, and marked frames come to it", context do
    options = [batch_size: 8, window_size: 4, stride: 4, as: :binaries, loss_on: :last]
    [batch | _] = context.corpus |> Loader.stream(options) |> Enum.take(1)
    weights = for <<weight::float-32-little <- batch.frame_weights.data>>, do: weight
    assert weights == List.flatten(List.duplicate([0.0, 0.0, 0.0, 1.0], 8))

    pressed = fn more ->
      batches = context.corpus |> Loader.stream(more ++ options) |> Enum.take(10)

      windows =
        for %{actions: %{data: data}} <- batches,
            labels <- data |> words() |> Enum.chunk_every(4 * 13),
            do: labels |> Enum.drop(3 * 13) |> Enum.take(8) |> Enum.any?(&(&1 == 1))

      Enum.count(windows, & &1) / length(windows)
    end

    assert pressed.(sampling: :buttons, action_oversample: 1000.0) > 0.95
    assert pressed.([]) < 0.6
    marked = [sampling: :column, oversample_column: :"own.on_ground", action_oversample: 2.0]
    assert pressed.(marked) < 0.6

    assert_raise Error, ~r/column own.luck of a frame of melee/, fn ->
      pressed.(sampling: :column, oversample_column: "own.luck")
    end
  end

  defp words(data), do: for(<<word::16-little <- data>>, do: word)

  test "an import has the same filters, and skips games by reason", context do
    {:ok, games} = Corpus.games(context.corpus)
    into = Path.join(context.tmp_dir, "corpus")
    {:ok, corpus} = Corpus.import(context.replays, into: into, humans: true, stages: [32])
    reasons = Enum.frequencies_by(corpus.report.skipped, & &1.reason)
    assert reasons[:not_human] == Enum.count(games, &("cpu" in &1.kinds))
    assert corpus.info.games == length(games) - reasons[:not_human]

    for {filter, reason} <- [
          {[max_frames: 799], :too_long},
          {[stages: ["Battlefield"]], :stage},
          {[characters: ["Roy"]], :character},
          {[min_damage_dealt: 10_000], :damage},
          {[min_quality: 99.9], :quality}
        ] do
      assert {:error, %Error{kind: :not_found, details: %{skipped: skipped}}} =
               Corpus.import(context.replays, [into: into <> "2"] ++ filter)

      assert {reason, Enum.count(skipped, &(&1.reason == reason))} == {reason, length(games)}
    end
  end
end
