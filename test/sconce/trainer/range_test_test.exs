defmodule Sconce.Trainer.RangeTestTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Error, Policy, Trainer}
  alias Sconce.Policy.Spec
  alias Sconce.Trainer.RangeTest

  doctest RangeTest

  @training [batch_size: 8, window_size: 16, stride: 16, loss: :plain, seed: 3]

  setup_all do
    dir = tmp_dir!("range_test")
    heads = [action: {:categorical, 2}]
    :rand.seed(:exsss, 3)

    # The action equals the observation.
    games =
      for _game <- 1..8 do
        bits = for _frame <- 1..64, do: :rand.uniform(2) - 1
        {for(bit <- bits, do: [2.0 * bit - 1.0, 0.5]), bits}
      end

    {:ok, corpus} =
      Corpus.build({:vector, 2}, games, into: Path.join(dir, "corpus"), heads: heads)

    spec = Spec.new(embedding: {:vector, 2}, heads: heads, backbone: :gru, hidden_size: 16)
    {:ok, dir: dir, corpus: corpus, spec: spec}
  end

  defp find!(given, context, more) do
    opts = Keyword.merge([corpus: context.corpus] ++ @training, more)
    {:ok, test} = Trainer.find_learning_rate(given, opts)
    test
  end

  test "steps use the precision of a run", context do
    for {more, used} <- [
          {[], "f32"},
          {[precision: :f16], "f32"},
          {[precision: :f16, force_precision: true], "f16"}
        ] do
      test = find!(context.spec, context, [num_it: 5] ++ more)
      assert test.precision == used
      assert to_string(test) =~ "training loss in #{used}, rates"
    end
  end

  test "rates grow by one factor until the loss diverges, and the suggestion is where the loss fell",
       context do
    test = find!(context.spec, context, num_it: 60)
    rates = for point <- test.points, do: point.learning_rate
    assert_in_delta hd(rates), 1.0e-7, 1.0e-12

    for {one, next} <- Enum.zip(rates, tl(rates)),
        do: assert_in_delta(next / one, :math.pow(1.0e8, 1 / 59), 1.0e-6)

    lowest = Enum.min_by(test.points, & &1.smoothed)
    assert lowest.smoothed < hd(test.points).smoothed
    assert test.steepest < lowest.learning_rate
    assert test.steepest > 1.0e-5
    assert lowest.smoothed < 0.9 * hd(test.points).smoothed
    assert_in_delta test.minimum, lowest.learning_rate / 10, 0.5 * test.minimum
  end

  test "a teacher is part of the loss, as in a run", context do
    dir = tmp_dir!("range_test_teacher")
    {:ok, policy} = Policy.init(context.spec, seed: 9)
    path = Path.join(dir, "teacher.safetensors")
    :ok = Policy.save(policy, path)
    loss = fn more -> hd(find!(context.spec, context, [num_it: 2] ++ more).points).loss end
    alone = loss.([])
    assert [one, ten] = for(w <- [1.0, 10.0], do: loss.(teacher: path, teacher_weight: w) - alone)
    assert one > 0.0
    assert_in_delta ten / one, 10, 1.0e-6
  end

  test "equal seeds give equal curves on any number of threads, and other seeds do not",
       context do
    losses = fn more -> for point <- find!(context.spec, context, more).points, do: point.loss end
    first = losses.(num_it: 12, threads: 1)
    assert losses.(num_it: 12, threads: 2) == first
    assert losses.(num_it: 12, seed: 4) != first
  end

  test "a given policy is trained as a copy, and no folder is written", context do
    {:ok, policy} = Policy.init(context.spec, seed: 3)
    {:ok, names} = Policy.weights(policy)
    weights = fn -> for {name, _shape} <- names, do: Policy.weight(policy, name) end
    before = weights.()
    out = Path.join(context.dir, "run")
    test = find!(policy, context, num_it: 12, out: out)
    assert weights.() == before
    refute File.exists?(out)
    # New weights of the same seed equal those of the policy.
    assert test.points == find!(context.spec, context, num_it: 12).points
  end

  test "a diverging loss ends the range test, which reports it", context do
    test = find!(context.spec, context, num_it: 40, start_lr: 50, end_lr: 100, optimizer: :sgd)
    assert test.diverged
    assert length(test.points) < 40
    assert to_string(test) =~ "where the loss diverged"
    assert inspect(test) =~ ~r/^#Sconce.Trainer.RangeTest<\d+ steps/
  end

  test "a range test is drawn on a logarithmic axis, with both suggestions marked", context do
    test = find!(context.spec, context, num_it: 60)
    path = Path.join(context.dir, "range.svg")
    assert :ok = RangeTest.write(test, path)
    svg = File.read!(path)
    assert svg == RangeTest.svg(test)

    for text <- ["1.0e-5", "1.0e-3", "learning rate", "steepest", "minimum", "</svg>"],
        do: assert(svg =~ ">#{text}" or svg =~ text)

    assert {:error, %Error{kind: :io}} = RangeTest.write(test, Path.join(context.dir, "no/file"))
    assert to_string(test) =~ ~r/^steepest  \d\.\de-\d+$/m
  end

  test "wrong options are named", context do
    assert_raise ArgumentError, ~r/option :corpus is required/, fn ->
      Trainer.find_learning_rate(context.spec, @training)
    end

    opts = [corpus: context.corpus] ++ @training
    wrong = Trainer.find_learning_rate(context.spec, opts ++ [start_lr: 1.0, end_lr: 0.1])
    assert {:error, %Error{kind: :out_of_range, details: %{field: "start_lr"}}} = wrong
    other = Spec.new(embedding: {:vector, 3}, heads: [action: {:categorical, 2}])
    assert {:error, %Error{kind: :mismatch}} = Trainer.find_learning_rate(other, opts)
  end
end
