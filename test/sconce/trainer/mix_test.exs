defmodule Sconce.Trainer.MixTest do
  use ExUnit.Case, async: true

  alias Sconce.{Corpus, Error, Trainer}

  @moduletag :tmp_dir

  setup %{tmp_dir: dir} do
    for {name, label} <- [zeros: 0, ones: 1] do
      games =
        for game <- 1..4,
            do: {for(i <- 1..64, do: rem(i * game, 7) / 7), List.duplicate(label, 64)}

      into = Path.join(dir, "#{name}")
      {:ok, _} = Corpus.build({:vector, 1}, games, into: into, heads: [go: {:categorical, 2}])
    end

    %{zeros: Path.join(dir, "zeros"), ones: Path.join(dir, "ones"), dir: dir}
  end

  defp train(context, out, opts) do
    own = [
      corpus: context.zeros,
      out: Path.join(context.dir, out),
      backbone: :mlp,
      hidden_sizes: [8],
      loss: :plain,
      steps: 300,
      batch_size: 16,
      window_size: 4,
      learning_rate: 0.02,
      seed: 3
    ]

    with {:ok, run} <- Trainer.start_link(Keyword.merge(own, opts)),
         do: Trainer.await(run, 60_000)
  end

  # All labels of the base corpus are 0. NLL on that corpus of a policy trained with this share of ones.
  defp nll(share), do: -:math.log(1 - share)

  test "a policy learns a mixed corpus in proportion to its share", context do
    for {share, mix} <- [{0.5, {context.ones, 0.5}}, {0.2, "#{context.ones}=0.2"}] do
      opts = [mix: [mix], validate_every: 10, evaluate: false]
      {:ok, report} = train(context, "share-#{share}", opts)
      late = for %{step: step, nll: nll} <- report.history, nll && step > 150, do: nll
      assert_in_delta Enum.sum(late) / length(late), nll(share), 0.05
      assert [%{share: ^share, to: nil}] = report.options.mix
    end
  end

  test "a share moves to its final value, also in a resumed run", context do
    mix = [mix: [{context.ones, 0.9, 0.0}], mix_steps: 100, validate_every: 50]
    {:ok, whole} = train(context, "whole", mix)
    assert whole.policy.nll < 0.05
    {:ok, _part} = train(context, "part", mix ++ [steps: 60, decay_steps: 290, warmup_steps: 10])
    {:ok, run} = Trainer.start_link(resume: true, out: Path.join(context.dir, "part"), steps: 300)
    {:ok, on} = Trainer.await(run, 60_000)
    {:ok, alone} = train(context, "alone", mix ++ [decay_steps: 290, warmup_steps: 10])
    assert on.policy == alone.policy
  end

  test "a corpus or share that does not fit is refused by name", context do
    third = Path.join(context.dir, "third")
    game = {[0.5, 0.5], [1, 2]}
    {:ok, _} = Corpus.build({:vector, 1}, [game], into: third, heads: [go: {:categorical, 3}])

    for {mix, said} <- [
          {[{context.ones, 0.75}, {context.ones, 0.5}],
           "shares of mix together: 1.25 is outside 0..1"},
          {[{context.ones, -0.5}], "mix[0] (share): -0.5 is outside 0..1"},
          {[{third, 0.5}],
           "heads of the corpus for this spec: expected go Categorical(2), got go Categorical(3)"},
          {[{context.zeros, 0.5}], "expected games that are not measured on"},
          {[{Path.join(context.dir, "nowhere"), 0.5}], "not found"}
        ] do
      assert {:error, %Error{} = error} = train(context, "bad", mix: mix)
      assert Exception.message(error) =~ said
    end

    for {mix, said} <- [
          {["ones"], "option :mix: expected {folder, share}"},
          {["ones=x..1"], "option :mix: expected {folder, share}"},
          {[{"ones", :half}], "option :mix"}
        ] do
      assert_raise ArgumentError, ~r/#{Regex.escape(said)}/, fn ->
        train(context, "bad", mix: mix)
      end
    end

    assert_raise ArgumentError, ~r/option :mix has no effect with unroll: :carry/, fn ->
      train(context, "bad", mix: [{context.ones, 0.5}], unroll: :carry)
    end
  end

  test "a run from another's run.json mixes the same corpora", context do
    {:ok, first} = train(context, "first", mix: [{context.ones, 0.25, 0.5}], steps: 20)
    file = Path.join(context.dir, "first/run.json")
    {:ok, run} = Trainer.start_link(options: file, out: Path.join(context.dir, "second"))
    {:ok, second} = Trainer.await(run, 60_000)
    assert Enum.map(first.history, & &1.loss) == Enum.map(second.history, & &1.loss)
    assert first.options.mix == second.options.mix
  end
end
