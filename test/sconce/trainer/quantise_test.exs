defmodule Sconce.Trainer.QuantiseTest do
  # Policies that are trained for integers of few bits.
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Env, Error, Policy, Session, Trainer}
  alias Sconce.Env.CartPole

  @options [backbone: :mlp, hidden_sizes: [32, 32], window_size: 8, batch_size: 16] ++
             [loss: :plain, learning_rate: 3.0e-3, steps: 200, validate_every: 50]

  setup_all do
    dir = tmp_dir!("quantise")
    {:ok, games} = CartPole.demonstrations(games: 16, steps: 120, velocities: true, seed: 3)
    into = Path.join(dir, "corpus")
    {:ok, corpus} = CartPole.corpus(games, into: into, velocities: true)
    {:ok, dir: dir, corpus: corpus}
  end

  defp train(context, name, opts) do
    out = Path.join(context.dir, name)
    options = Keyword.merge([corpus: context.corpus, out: out] ++ @options, opts)
    {:ok, run} = Trainer.start_link(options)
    answer = Trainer.await(run, 120_000)
    GenServer.stop(run)
    answer
  end

  defp refused(context, opts) do
    assert {:error, %Error{} = error} = train(context, "refused", opts)
    Exception.message(error)
  end

  defp play(report) do
    {:ok, policy} = Policy.load(Path.join(report.out, "best.safetensors"))
    assert policy.bits == bits(report.options[:quantise])
    {:ok, played} = Env.play(policy, :cart_pole, episodes: 20)
    played
  end

  defp bits(nil), do: 32
  defp bits("int8"), do: 8
  defp bits("int4"), do: 4

  defp logits(path) do
    {:ok, policy} = Policy.load(path)
    {:ok, session} = Session.open(policy, deterministic: true)
    {:ok, action} = Session.act(session, [0.1, 0.1, -0.05, 0.0], logits: true)
    action.logits
  end

  test "cart pole is imitated with few bits as well as in f32", context do
    assert {:ok, plain} = train(context, "f32", [])
    played = play(plain)
    assert played.mean > 100

    for format <- [:int8, :int4] do
      assert {:ok, report} = train(context, to_string(format), quantise: format)
      assert report.options.quantise == to_string(format)
      assert report.policy.nll < plain.policy.nll + 0.1
      assert play(report).mean > 0.7 * played.mean
      # The state has the weights that learn, which are not on the grid.
      [best, last] = for file <- ~w(best last), do: logits("#{report.out}/#{file}.safetensors")
      assert best != last
    end
  end

  test "learned steps and rounded activations give the policy that a session plays", context do
    for format <- [:int8, :int4] do
      opts = [quantise: format, quantise_steps: :learned, quantise_activations: true]
      assert {:ok, report} = train(context, "learned_#{format}", opts)
      assert %{quantise_steps: "learned", quantise_activations: true} = report.options
      assert play(report).mean > 100
    end

    out = Path.join(context.dir, "learned_int4")
    {:ok, run} = Trainer.start_link(resume: true, out: out, quantise_steps: :largest)
    assert {:error, %Error{kind: :mismatch} = error} = Trainer.await(run, 60_000)
    assert Exception.message(error) =~ "quantise_steps is learned, not largest"
  end

  test "a resumed run keeps its groups, and others are refused", context do
    {:ok, report} = train(context, "resumed", steps: 6, quantise: :int4, quantise_group: 16)
    {:ok, run} = Trainer.start_link(resume: true, out: report.out, quantise_group: 8)
    assert {:error, %Error{kind: :mismatch} = error} = Trainer.await(run, 60_000)
    assert Exception.message(error) =~ "quantise_group is 16, not 8"
  end

  test "options that fit no run are refused by name", context do
    raised = fn opts ->
      assert_raise(ArgumentError, fn -> train(context, "refused", opts) end).message
    end

    assert raised.(quantise: :int3) =~ ":quantise"
    assert raised.(quantise: :int4, quantise_group: 0) =~ ":quantise_group"
    assert raised.(quantise: :int4, quantise_after: 1.5) =~ ":quantise_after"
    assert raised.(quantise: :int8, quantise_group: 32) =~ ":quantise_group"
    assert raised.(quantise_ramp: 0.1) =~ ":quantise_ramp"
    assert raised.(quantise: :int4, quantise_steps: :median) =~ ":quantise_steps"
    assert raised.(quantise_steps: :learned) =~ ":quantise_steps"
    assert raised.(quantise_activations: true) =~ ":quantise_activations"

    assert refused(context, quantise: :int4, quantise_after: 0.9, quantise_ramp: 0.5) =~
             "quantise_ramp: 0.5 is outside"

    assert refused(context, quantise: :int4, quantise_activations: true, quantise_group: 48) =~
             "quantise_group: expected a multiple of 32 beside quantise_activations"

    assert refused(context, quantise: :int4, quantise_activations: true, freeze: ["heads"]) =~
             "freeze: expected no parts beside quantise_activations"

    assert refused(context, quantise: :int8, hidden_sizes: [16], head_hidden_size: 8) =~
             "quantise: expected a matrix with 32 inputs or more that learns"
  end
end
