defmodule Sconce.Trainer.QueueTest do
  # Policies that read the latest inputs and the delay: trained, also on their own inputs, and played.
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Embedding, Error, Native, Policy, Session, Trainer}
  alias Sconce.Policy.Spec

  @deep {:melee, queue_depth: 4, num_delays: 9}
  @model [backbone: :gru, hidden_size: 8, num_layers: 1, prior: true]
  @options @model ++
             [embedding: @deep, frame_delay: 3, steps: 4, batch_size: 4, window_size: 10] ++
             [validate_every: 2, validation_stride: 50, val_split: 0.5, evaluate: false]

  setup do
    dir = tmp_dir!("queue")
    :ok = Native.corpus_fixtures(Path.join(dir, "replays"))
    games = for name <- ~w(valid valid_2), do: Path.join(dir, "replays/#{name}.slp")
    {:ok, corpus} = Corpus.import(games, into: Path.join(dir, "corpus"))
    {:ok, dir: dir, corpus: corpus}
  end

  defp train(context, name, opts) do
    out = Path.join(context.dir, name)
    options = Keyword.merge(@options ++ [corpus: context.corpus, out: out], opts)
    {:ok, run} = Trainer.start_link(options)
    answer = Trainer.await(run, 60_000)
    GenServer.stop(run)
    {answer, Path.join(out, "last.safetensors")}
  end

  defp trained!(context, name, opts) do
    {{:ok, %{stopped: :finished}}, path} = train(context, name, opts)
    {:ok, policy} = Policy.load(path)
    policy
  end

  defp refused(context, opts) do
    {{:error, error}, _path} = train(context, "refused", opts)
    Exception.message(error)
  end

  test "a policy that learned several delays and reads its delay must be given one", context do
    policy = trained!(context, "several", frame_delay: 1, frame_delay_max: 3, steps: 1)
    assert {:error, %Error{kind: :mismatch} = error} = Session.open(policy)
    assert Exception.message(error) =~ "frame_delay: expected one of 1..=3"
    assert {:ok, _session} = Session.open(policy, frame_delay: 2)

    # A delay out of range in a file is refused.
    path = Path.join(context.dir, "endless.safetensors")
    :ok = Policy.save(policy, path, notes: %{frame_delay: 1_000_000_000_000})
    {:ok, endless} = Policy.load(path)
    assert {:error, %Error{kind: :out_of_range} = error} = Session.open(endless)
    assert Exception.message(error) =~ "frame_delay"
  end

  test "a policy that learned one delay plays at that delay", context do
    policy = trained!(context, "run", scheduled_sampling: 0.5, scheduled_sampling_steps: 2)
    assert {:ok, %{spec: %{embedding: embedding}}} = Policy.info(policy)
    assert embedding == Embedding.new!(@deep)

    {:ok, session} = Session.open(policy, seed: 1, logits: true)
    assert {:ok, %{frame_delay: 3}} = Session.info(session)
    {:ok, recording} = Corpus.recording(context.corpus, 0, 0)
    frames = for {frame, _labels} <- Enum.take(recording, 30), do: frame
    {before, later} = Enum.split(frames, 15)
    Enum.each(before, &({:ok, _action} = Session.act(session, &1)))
    {:ok, snapshot} = Session.snapshot(session)
    play = fn session -> Enum.map(later, &Session.act(session, &1)) end
    first = play.(session)
    # The same frames again, as after a rollback of the game.
    :ok = Session.restore(session, snapshot)
    assert play.(session) == first

    # The policy reads the delay, so another delay changes the logits.
    {:ok, sooner} = Session.open(policy, seed: 1, logits: true, frame_delay: 2)
    {:ok, same} = Session.open(policy, seed: 1, logits: true, frame_delay: 3)
    {:ok, %{logits: logits}} = Session.act(same, hd(frames))
    assert {:ok, %{logits: ^logits}} = Session.act(session |> tap(&Session.reset/1), hd(frames))
    assert {:ok, %{logits: other}} = Session.act(sooner, hd(frames))
    assert other != logits
  end

  test "scheduled sampling changes the weights from its first sampled step on",
       context do
    weights = fn name, opts ->
      policy = trained!(context, name, opts)
      {:ok, names} = Policy.weights(policy)
      for {name, _shape} <- names, {:ok, numbers} = Policy.weight(policy, name), do: numbers
    end

    plain = weights.("plain", [])
    own = weights.("own", scheduled_sampling: 0.5)
    assert own != plain
    assert weights.("threads", scheduled_sampling: 0.5, threads: 1, prefetch: 0) == own
    assert weights.("newest", scheduled_sampling: 0.5, scheduled_sampling_slots: 1) != own
    # A rising probability is 0 at the first step.
    rising = [scheduled_sampling: 0.5, scheduled_sampling_steps: 100, steps: 1]
    assert weights.("rising", rising) == weights.("one", steps: 1)
  end

  test "a plan includes the width of the queue", context do
    plan = fn opts ->
      {:ok, plan} = Trainer.plan(Keyword.merge(@options ++ [corpus: context.corpus], opts))
      plan
    end

    shallow = plan.(embedding: :melee).num_weights
    # Weights of the input's norm, and of three gates of eight units.
    assert plan.([]).num_weights - shallow == (3 * 13 + 9) * (2 + 3 * 8)
  end

  test "wrong options are refused by name", context do
    assert_raise ArgumentError, ~r/:scheduled_sampling: expected a number from 0 to 1/, fn ->
      train(context, "refused", scheduled_sampling: 1.5)
    end

    assert_raise ArgumentError, ~r/:queue_depth: expected one of 1..64, got: 0/, fn ->
      train(context, "refused", embedding: {:melee, queue_depth: 0})
    end

    assert refused(context, scheduled_sampling: 0.5, scheduled_sampling_slots: 5) ==
             "train: scheduled_sampling_slots: 5 is outside 1..4"

    varying = [embedding: :melee, scheduled_sampling: 0.5, frame_delay_max: 9]

    assert refused(context, varying) ==
             "train: scheduled_sampling: expected a queue_depth above 1 beside frame_delay_max, got 1"

    vector = Spec.new(embedding: {:vector, 3}, heads: [go: {:categorical, 2}])
    only = Keyword.take(@options, [:steps, :batch_size, :window_size])

    assert {:error, error} = Trainer.plan(vector, only ++ [scheduled_sampling: 0.5])

    assert Exception.message(error) =~
             "scheduled_sampling: expected a game whose inputs are declared"

    # A resumed run cannot change its embedding.
    trained!(context, "run", [])
    changed = [resume: true, steps: 6, embedding: {:melee, queue_depth: 2, num_delays: 9}]
    assert {{:error, error}, _path} = train(context, "run", changed)
    assert Exception.message(error) =~ "queue_depth is 4"
  end
end
