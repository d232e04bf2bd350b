defmodule Sconce.Trainer.PackedTest do
  use ExUnit.Case, async: true

  alias Sconce.{Corpus, Embedding, Error, Loader, Native, Policy, Session, Trainer}
  alias Sconce.Policy.Spec
  alias Sconce.Test.Exphil
  alias Sconce.Trainer.Settings

  @moduletag :tmp_dir
  @packed {:melee, layout: :packed}

  # The same two games as replays of Sconce, and as embedded frames of ExPhil.
  setup %{tmp_dir: dir} do
    :ok = Native.corpus_fixtures(Path.join(dir, "replays"))
    replays = for name <- ["valid.slp", "valid_2.slp"], do: Path.join([dir, "replays", name])
    {:ok, corpus} = Corpus.import(replays, into: Path.join(dir, "ours"))

    games =
      for game <- 0..1, player <- 0..1 do
        {:ok, recording} = Corpus.recording(corpus, game, player)
        {"game#{game}.slp", player + 1, Enum.map(recording, &embedded/1)}
      end

    %{ours: corpus, theirs: Exphil.write!(Path.join(dir, "theirs"), games), dir: dir}
  end

  defp embedded({frame, labels}) do
    {:ok, {numbers, []}} = Embedding.embed(@packed, frame)
    {buttons, classes} = Enum.split(labels, 8)
    mask = buttons |> Enum.with_index() |> Enum.map(fn {bit, i} -> bit * 2 ** i end) |> Enum.sum()
    {floats(numbers), [mask | classes]}
  end

  defp floats(binary), do: for(<<x::float-32-little <- binary>>, do: x)

  @small [backbone: :gru, hidden_size: 8, num_layers: 1, head_hidden_size: 8, dropout: 0.0] ++
           [batch_size: 4, window_size: 6, stride: 6, steps: 3, val_split: 0.5] ++
           [validation_stride: 50, loss: :plain]

  defp train(context, out, more) do
    own = [corpus: context.theirs, out: Path.join(context.dir, out)] ++ @small

    with {:ok, run} <- Trainer.start_link(Keyword.merge(own, more)),
         do: Trainer.await(run, 60_000)
  end

  test "288 numbers of ExPhil are the packed embedding, unless another one is given", context do
    spec = fn more ->
      run = Keyword.merge([corpus: context.theirs, out: context.dir], more)
      %{source: {:ok, {_folder, spec}}} = Settings.new!(run)
      spec
    end

    assert spec.([]).embedding == Spec.new(embedding: @packed).embedding
    assert spec.(embedding: @packed) == spec.([])
    assert spec.(embedding: {:vector, 288}).embedding == {:vector, 288}
    # Vectors of the same width that ExPhil did not write stay vectors.
    vectors = [{List.duplicate(0.5, 288), [1]}]
    into = Path.join(context.dir, "vectors")
    {:ok, other} = Corpus.build({:vector, 288}, vectors, into: into, heads: [go: {:bernoulli, 1}])
    assert spec.(corpus: other).embedding == {:vector, 288}
  end

  test "frames without a previous action are embedded without one, in training as in play",
       context do
    hidden = {:melee, layout: :packed, previous_action: false}
    {:ok, recording} = Corpus.recording(context.ours, 0, 0)

    frames =
      for {frame, _labels} = one <- recording do
        {:ok, {numbers, []}} = Embedding.embed(hidden, frame)
        {floats(numbers), elem(embedded(one), 1)}
      end

    theirs = Exphil.write!(Path.join(context.dir, "hidden"), [{"game.slp", 1, frames}])
    {:ok, opened} = if is_binary(theirs), do: Corpus.open(theirs), else: {:ok, theirs}
    assert Corpus.embedding(opened) == hidden

    # Stored inputs that the policy does not see in play are hidden from its training.
    options = [batch_size: 1, window_size: 5, stride: 100, as: :binaries, embedding: hidden]
    [batch | _] = context.theirs |> Loader.stream(options) |> Enum.take(1)

    for row <- Enum.chunk_every(floats(batch.states.data), 288),
        do: assert(Enum.slice(row, 119, 13) == List.duplicate(0.0, 13))
  end

  test "a stream gives the stored numbers as embedded frames", context do
    options = [batch_size: 2, window_size: 5, stride: 100, as: :binaries]
    stored = context.theirs |> Loader.stream(options) |> Enum.take(3)
    embedded = context.theirs |> Loader.stream([embedding: @packed] ++ options) |> Enum.take(3)
    data = &Enum.map(&1, fn batch -> {batch.states, batch.actions, batch.previous} end)
    assert data.(stored) == data.(embedded)

    # The previous action can be dropped: columns 119 to 131.
    dropped = [embedding: @packed, previous_dropout: 1.0]
    [batch | _] = context.theirs |> Loader.stream(dropped ++ options) |> Enum.take(1)

    for {row, whole} <-
          Enum.zip(
            Enum.chunk_every(floats(batch.states.data), 288),
            Enum.chunk_every(floats(hd(stored).states.data), 288)
          ) do
      assert Enum.slice(row, 119, 13) == List.duplicate(0.0, 13)
      assert Enum.take(row, 119) == Enum.take(whole, 119)
      assert Enum.drop(row, 132) == Enum.drop(whole, 132)
    end
  end

  test "a policy trained on them has the same scores on frames, and plays them", context do
    {:ok, report} = train(context, "run", [])
    assert {:melee, options} = report.spec.embedding
    assert options[:layout] == :packed
    checkpoint = Path.join(report.out, "best.safetensors")

    [theirs, ours] =
      for corpus <- [context.theirs, context.ours] do
        {:ok, scored} = Trainer.evaluate(checkpoint, corpus, stride: 20)
        scored.policy
      end

    assert theirs.frames == ours.frames
    assert_in_delta theirs.nll, ours.nll, 1.0e-6
    for {a, b} <- Enum.zip(theirs.heads, ours.heads), do: assert_in_delta(a.nll, b.nll, 1.0e-6)

    {:ok, policy} = Policy.load(checkpoint)
    {:ok, session} = Session.open(policy)
    {:ok, [{frame, _label} | _]} = Corpus.recording(context.ours, 0, 0)
    assert {:ok, %{main_stick: %{x: _}}} = Session.act(session, frame)
    Session.close(session)
  end

  test "they mix with replays, and refuse what needs the replay by name", context do
    {:ok, report} = train(context, "mixed", mix: [{context.ours.dir, 0.5}], val_split: 0.0)
    assert report.steps == 3

    assert {:error, %Error{kind: :mismatch, details: %{what: "mirror", got: "embedded frames"}}} =
             train(context, "mirrored", mirror: 0.5)

    # The width of a queue is not that of these frames.
    assert {:error, %Error{kind: :mismatch}} =
             train(context, "queue", embedding: {:melee, layout: :packed, queue_depth: 4})
  end
end
