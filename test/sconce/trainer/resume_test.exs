defmodule Sconce.Trainer.ResumeTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Error, Policy, Trainer}
  alias Sconce.Policy.Spec
  alias Sconce.Trainer.Table

  @small [backbone: :gru, hidden_size: 8, num_layers: 1, head_hidden_size: 8] ++
           [batch_size: 8, window_size: 8, stride: 4, loss: :plain, learning_rate: 0.01] ++
           [val_split: 0.25, evaluate: false, warmup_steps: 2]

  setup do
    dir = tmp_dir!("resume")
    {:ok, dir: dir, corpus: corpus!(Path.join(dir, "corpus"), 1), out: Path.join(dir, "run")}
  end

  defp corpus!(into, seed) do
    :rand.seed(:exsss, {seed, 2, 3})
    bit = fn -> :rand.uniform(2) - 1 end

    games =
      for _game <- 1..8 do
        bits = for _frame <- 1..48, do: bit.()
        {Enum.map(bits, &[&1 * 2.0 - 1.0]), bits}
      end

    {:ok, corpus} = Corpus.build({:vector, 1}, games, into: into, heads: [go: {:categorical, 2}])
    corpus
  end

  defp train(opts) do
    {:ok, run} = Trainer.start_link(opts)
    outcome = Trainer.await(run, 60_000)
    GenServer.stop(run)
    outcome
  end

  defp begin(context, more),
    do: train(Keyword.merge(@small ++ [corpus: context.corpus, out: context.out], more))

  defp resume(context, more \\ []), do: train([resume: true, out: context.out] ++ more)

  defp refused(outcome) do
    assert {:error, %Error{kind: :mismatch} = error} = outcome
    Exception.message(error)
  end

  test "a folder without a run cannot be resumed, and stays empty", context do
    assert {:error, %Error{kind: :not_found, op: :train} = error} = resume(context)
    assert Exception.message(error) =~ "a run in #{context.out} not found"
    assert Exception.message(error) =~ "corpus: DIR"
    refute File.exists?(context.out)
  end

  test "a run that began with a :decision_transformer resumes with a :causal_transformer",
       context do
    model = [backbone: :causal_transformer, num_heads: 1, head_dim: 4, save_every: 1, steps: 12]
    {:ok, straight} = begin(context, model ++ [out: Path.join(context.dir, "straight")])
    opts = Keyword.merge(@small ++ [corpus: context.corpus, out: context.out], model)
    {:ok, run} = Trainer.start_link(opts)
    :ok = Trainer.subscribe(run)
    assert_receive {:sconce_trainer, ^run, %{event: :step}}
    :ok = Trainer.stop(run)
    {:ok, _report} = Trainer.await(run, 60_000)

    before = &String.replace(&1, "causal_transformer", "decision_transformer")
    record = Path.join(context.out, "run.json")
    assert before.(File.read!(record)) != File.read!(record)
    File.write!(record, before.(File.read!(record)))
    last = Path.join(context.out, "last.safetensors")
    <<length::64-little, header::binary-size(length), numbers::binary>> = File.read!(last)
    # The header changed, so the digest no longer fits and is removed.
    header = header |> before.() |> String.replace("sha256", "sha255")
    File.write!(last, [<<byte_size(header)::64-little>>, header, numbers])

    assert {:ok, report} = resume(context)
    assert report.spec == straight.spec
    assert {report.steps, tensors(report.out)} == {12, tensors(straight.out)}
    refute File.read!(record) =~ "decision_transformer"
  end

  test "the folder contains all that a run needs to resume", context do
    {:ok, straight} = begin(context, out: Path.join(context.dir, "straight"), steps: 12)

    {:ok, run} =
      Trainer.start_link(@small ++ [corpus: context.corpus, out: context.out] ++ [steps: 12])

    :ok = Trainer.subscribe(run)
    assert_receive {:sconce_trainer, ^run, %{event: :step}}
    :ok = Trainer.stop(run)
    {:ok, %{stopped: stopped}} = Trainer.await(run, 60_000)
    assert stopped in [:stopped, :finished]

    assert {:ok, report} = resume(context)
    assert {report.steps, report.stopped, report.spec} == {12, :finished, straight.spec}
    assert report.options == straight.options
    assert tensors(report.out) == tensors(straight.out)
  end

  test "a run that was killed before its first save restarts with its options", context do
    {:ok, straight} = begin(context, steps: 6)
    for name <- ~w(last best), do: File.rm!(Path.join(context.out, name <> ".safetensors"))
    assert {:ok, report} = resume(context)
    assert {report.steps, report.options} == {6, straight.options}
  end

  test "options that may change do, and are recorded from then on", context do
    {:ok, _report} = begin(context, steps: 4)
    more = [validate_every: 1, keep_last: 2, prefetch: 0, threads: 1, patience: 50]
    assert {:ok, report} = resume(context, more)
    assert Map.take(report.options, Keyword.keys(more)) == Map.new(more)
    assert {:ok, %{options: again}} = resume(context)
    assert again == report.options
  end

  test "changes of fixed options are refused at once, with both values", context do
    {:ok, _report} = begin(context, steps: 4, ema_decay: 0.9)
    other = corpus!(Path.join(context.dir, "other"), 7)

    text =
      context
      |> resume(hidden_size: 16, seed: 3, noise: 0.3, ema_decay: 0.5, corpus: other)
      |> refused()

    assert text =~ "last.safetensors: a resumed run cannot change these: "

    for part <- [
          "hidden_size is 8, not 16",
          "seed is 0, not 3",
          "noise is 0.0, not 0.3",
          "ema_decay is 0.9, not 0.5",
          "games is those of the run, not others"
        ],
        do: assert(text =~ part)

    assert context |> resume(backbone: :lstm) |> refused() =~ "backbone is gru, not lstm"
    loss = [loss: [label_smoothing: 0.2]]
    assert context |> resume(loss) |> refused() =~ "label_smoothing is 0.0, not 0.2"
    # Options of the optimiser, the loss and the Spec may be given again with the same values.
    same = [beta1: 0.9, weight_decay: 0.01, loss: :plain, hidden_size: 8, backbone: :gru]
    assert {:ok, _report} = resume(context, same)
    assert context |> resume(beta1: 0.8) |> refused() =~ "beta1 is 0.9, not 0.8"
  end

  test "a run resumes only in its own precision", context do
    {:ok, _report} = begin(context, steps: 4, precision: :bf16, force_precision: true)
    assert {:ok, %{precision: "bf16"}} = resume(context)
    text = context |> resume(precision: :f32) |> refused()
    assert text =~ "precision is bf16, not f32 (resume with precision bf16)"
    text = context |> resume(precision: :f16) |> refused()
    assert text =~ "precision is bf16, not f32 (f16 gains nothing on this machine)"
    {:ok, %{precision: "bf16"}} = resume(context, precision: :bf16, force_precision: true)
  end

  test "a run can be extended with its own schedule", context do
    {:ok, %{options: %{warmup_steps: 2, decay_steps: nil}}} =
      begin(context, steps: 8, lr_schedule: :exponential)

    assert {:ok, report} = resume(context, steps: 12)
    assert {report.steps, report.options.decay_steps} == {12, 6}
    rate = List.last(report.history).learning_rate
    assert_in_delta rate, 0.01 * :math.pow(0.95, 10 / 6), 1.0e-9
    assert {:ok, %{steps: 12}} = resume(context)

    assert context |> resume(steps: 3) |> refused() =~ "at least the 12 steps made so far"
  end

  test "a run whose learning rate reached 0 can be extended only with a longer decay", context do
    {:ok, _report} = begin(context, steps: 8)
    text = context |> resume(steps: 12) |> refused()
    assert text =~ "steps: expected at most 8 steps, after which the learning rate"
    assert text =~ "decay_steps 10 reaches the new end"
    assert {:ok, %{steps: 12, options: options}} = resume(context, steps: 12, decay_steps: 10)
    assert {options.warmup_steps, options.decay_steps} == {2, 10}
  end

  test "more epochs extend a run, also one with a number of steps", context do
    {:ok, _report} = begin(context, steps: 2, lr_schedule: :constant)
    assert {:ok, %{steps: steps, options: %{steps: nil, epochs: 1}}} = resume(context, epochs: 1)
    assert steps > 2
  end

  test "a damaged state is named, with a remedy", context do
    {:ok, _report} = begin(context, steps: 4, keep_last: 1)
    last = Path.join(context.out, "last.safetensors")
    bytes = File.read!(last)
    File.rm!(last)
    File.write!(last, binary_part(bytes, 0, 100))
    assert {:error, %Error{kind: :corrupt} = error} = resume(context)
    assert Exception.message(error) =~ "#{last}: cut short, damaged, or no checkpoint"
    assert Exception.message(error) =~ "last-00000004.safetensors over it"
    assert {:error, %Error{kind: :corrupt} = error} = Policy.load(last)
    assert Exception.message(error) =~ "#{last}: cut short, damaged"
  end

  test "a flipped bit in the last state is found, with a remedy", context do
    {:ok, _report} = begin(context, steps: 4)
    last = Path.join(context.out, "last.safetensors")
    whole = File.read!(last)
    <<header::little-64, _rest::binary>> = whole

    # The flipped bit is among the numbers: a changed header would be invalid JSON or have wrong sizes.
    size = div(8 + header + byte_size(whole), 2)
    <<before::binary-size(size), byte, after_it::binary>> = whole
    File.write!(last, [before, Bitwise.bxor(byte, 1), after_it])

    for outcome <- [resume(context), Policy.load(last)] do
      assert {:error, %Error{kind: :corrupt} = error} = outcome
      assert Exception.message(error) =~ "#{last}: damaged: its bytes are not those"
    end

    assert {:error, error} = resume(context)
    assert Exception.message(error) =~ ~r/start again .*best.safetensors; keep_last/
  end

  test "the documentation names all options that may change" do
    names = Table.free()
    assert length(names) > 20
    {:docs_v1, _, _, _, %{"en" => text}, _, _} = Code.fetch_docs(Trainer)
    [_, going_on] = Regex.run(~r/## Resume\n(.*?)\n## /s, text)
    assert for(name <- names, not (going_on =~ ~r/`:?#{name}\b/), do: name) == []
  end

  test "the last state reveals as little about players as the best policy", context do
    {:ok, _report} = begin(context, steps: 4)

    [best, last] =
      for name <- ~w(best last) do
        {:ok, policy} = Policy.load(Path.join(context.out, name <> ".safetensors"))
        {:ok, info} = Policy.info(policy)
        info
      end

    assert Map.keys(last.notes) == Map.keys(best.notes)
    assert {last.notes["step"], last.notes["window_size"]} == {4, 8}
  end

  test "a Spec can be rebuilt from its options" do
    for opts <- [
          [],
          [heads: :autoregressive, prior: true, stream_size: 32, axis_buckets: 8],
          [backbone: :mlp, hidden_sizes: [16, 8], head_hidden_size: 12, shoulder_buckets: 2],
          [backbone: :griffin, window_size: 8, embedding: {:melee, layout: :packed}],
          [embedding: {:vector, 3}, heads: [a: {:bernoulli, 2}, b: {:categorical, 4}]],
          [embedding: {:vector, 3}, heads: [a: {:bernoulli, 2}], heads_kind: :autoregressive]
        ] do
      spec = Spec.new(opts)
      assert spec |> Spec.to_options() |> Spec.new() == spec
    end
  end

  test "a VM that gets a signal to stop first saves the state of its run", context do
    opts = @small ++ [corpus: context.corpus.dir, out: context.out, steps: 10_000_000]
    pid = Path.join(context.dir, "pid")

    script = """
    {:ok, _apps} = Application.ensure_all_started(:sconce)
    {:ok, run} = Sconce.Trainer.start_link(#{inspect(opts ++ [validate_every: 10_000_000], limit: :infinity)})
    :ok = Sconce.Trainer.subscribe(run)
    receive do: ({:sconce_trainer, ^run, %{event: :step, step: 5}} -> :ok)
    File.write!(#{inspect(pid)}, System.pid())
    Sconce.Trainer.await(run)
    """

    last = Path.join(context.out, "last.safetensors")
    assert elixir_told_to_stop(script, pid, fn -> refute File.exists?(last) end)
    assert {:ok, policy} = Policy.load(last)
    assert {:ok, %{notes: %{"step" => step}}} = Policy.info(policy)
    assert step >= 5
    assert {:ok, %{stopped: :budget}} = resume(context, max_minutes: 0.001)
  end

  defp tensors(out) do
    <<length::64-little, _header::binary-size(length), tensors::binary>> =
      File.read!(Path.join(out, "last.safetensors"))

    tensors
  end
end
