defmodule Sconce.Trainer.PlanTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.Env.CartPole
  alias Sconce.{Error, Temporal, Trainer}
  alias Sconce.Policy.Spec
  alias Sconce.Trainer.{Plan, Tuning}

  @vector [embedding: {:vector, 24}, heads: [go: {:categorical, 4}, hold: {:bernoulli, 3}]]

  defp spec(backbone, more \\ []), do: Spec.new([backbone: backbone] ++ @vector ++ more)

  defp plan!(spec, opts) do
    {:ok, plan} = Trainer.plan(spec, opts)
    plan
  end

  describe "a plan" do
    test "has the measured bytes of a step, for each backbone" do
      for backbone <- Temporal.backbones() do
        size = if backbone == :mlp, do: [], else: [hidden_size: 64]
        spec = spec(backbone, size)
        opts = [window_size: 20, val_split: 0.0]
        plan = plan!(spec, [batch_size: 48] ++ opts)

        {:ok, %{rows: [row]}} =
          Trainer.tune(spec, [initial: 48, max: 48, memory_limit: "1000GB"] ++ opts)

        assert_in_delta plan.bytes / row.bytes,
                        1,
                        0.05,
                        "#{backbone}: #{plan.bytes}, #{row.bytes}"

        assert plan.owners.activations > plan.owners.batches
      end
    end

    test "has owners whose bytes add up and grow with the options" do
      plan = plan!(spec(:gru), batch_size: 16, ema_decay: 0.9)
      {step, kept} = Map.split(plan.owners, [:activations, :validation])
      assert plan.bytes == Enum.sum(Map.values(kept)) + Enum.max(Map.values(step))
      weights = 4 * plan.num_weights
      assert %{weights: ^weights, gradients: ^weights, average: ^weights} = plan.owners
      assert plan.owners.moments == 2 * weights
      assert plan!(spec(:gru), batch_size: 16, optimizer: :lion).owners.moments == weights
      assert %{average: 0} = plan!(spec(:gru), batch_size: 16).owners

      less = plan!(spec(:sliding_window, num_layers: 4), batch_size: 16)
      opts = [batch_size: 16, gradient_checkpoint: true]
      least = plan!(spec(:sliding_window, num_layers: 4), opts)
      assert least.owners.activations < 0.8 * less.owners.activations
    end

    test "of a corpus has bytes, epochs and the time of the run, and writes no file" do
      dir = tmp_dir!("plan")
      {:ok, games} = CartPole.demonstrations(games: 8, steps: 60)
      {:ok, corpus} = CartPole.corpus(games, into: Path.join(dir, "corpus"))
      out = Path.join(dir, "run")
      opts = [corpus: corpus, out: out, epochs: 3, window_size: 16, batch_size: 4, val_split: 0.0]
      {:ok, plan} = Trainer.plan([backbone: :gru, hidden_size: 8] ++ opts)

      assert plan.mapped == corpus.info.bytes
      assert plan.steps == 3 * plan.epoch_steps
      assert_in_delta plan.seconds, plan.steps * plan.step_seconds, 1.0e-9
      assert plan.owners.validation == 0
      refute File.exists?(out)

      assert inspect(plan) =~ ~r/^#Sconce.Trainer.Plan<vector 2 -> gru 8x2 .* 4 windows of 16 · /
      text = to_string(plan)

      for owner <- ~w(weights gradients moments activations batches mapped),
          do: assert(text =~ ~r/^#{owner} +[\d.]+ [KM]?B/m)

      assert text =~ ~r/^at the peak +[\d.]+ [KM]B +of .* free$/m
      assert text =~ ~r/^the run +[\d.]+ ms +\d+ steps/m
      refute text =~ "average"
    end

    test "within a limit has the number of windows at a time, and is an error if none fits" do
      opts = [batch_size: 64, val_split: 0.0]
      whole = plan!(spec(:gru), opts)
      assert whole.micro_batch == 64
      limit = whole.bytes - div(whole.owners.activations, 3)
      half = plan!(spec(:gru), [memory_limit: limit] ++ opts)
      assert half.micro_batch == 32
      assert half.bytes <= limit
      assert to_string(half) =~ "32 windows at a time to fit into the memory"

      assert {:error, %Error{kind: :out_of_memory, op: :plan, details: details} = error} =
               Trainer.plan(spec(:gru), batch_size: 64, memory_limit: "10KB")

      assert %{memory_limit: 10_000, bytes: bytes} = details
      assert bytes > 10_000
      assert Exception.message(error) =~ ~r/needs [\d.]+ MB and may have 10.0 KB/
    end

    test "names unknown options and a missing device" do
      assert_raise ArgumentError, ~r/:bacth_size, did you mean :batch_size/, fn ->
        Trainer.plan(spec(:gru), bacth_size: 3)
      end

      assert_raise ArgumentError, ~r/:hidden_size belongs to the Spec/, fn ->
        Trainer.plan(spec(:gru), hidden_size: 3)
      end

      assert_raise ArgumentError, ~r/:memory_limit: expected nil or bytes, as in 8GB/, fn ->
        Trainer.plan(spec(:gru), memory_limit: "much")
      end

      assert {:error, %Error{kind: :unavailable}} = Trainer.plan(spec(:gru), device: :cuda)
    end

    test "prints one thread in the singular, and seconds as a readable time" do
      plan = %{plan!(spec(:mlp), threads: 1, steps: 10_000) | seconds: 3725.0, step_seconds: 0.01}

      # The number of threads is a setting of the whole VM, which other tests change, so the plan is edited.
      assert Plan.text(%{plan | threads: 1}) =~ "frames, 1 thread of the CPU, f32\n"
      assert Plan.summary(plan) =~ "10.0 ms a step · 1:02:05 in all"
    end
  end

  describe "tuning" do
    test "tries doubling batch sizes and returns the best" do
      {:ok, %Tuning{} = tuning} = Trainer.tune(spec(:gru), initial: 2, max: 9, window_size: 8)
      sizes = for row <- tuning.rows, do: row.batch_size
      assert List.starts_with?([2, 4, 8], sizes)
      best = Enum.max_by(tuning.rows, & &1.frames_per_second)
      assert tuning.batch_size == best.batch_size
      assert tuning.stopped in [:max, :throughput]
      text = to_string(tuning)
      assert text =~ ~r/^ +#{best.batch_size} +[\d.]+ ms +[\d,]+ +[\d.]+ MB  best$/m
      assert inspect(tuning) =~ "batch_size #{best.batch_size} of 2"
    end

    test "and planning use the precision of a run" do
      opts = [batch_size: 4, initial: 4, max: 4, window_size: 8, val_split: 0.0]

      for {more, used} <- [
            {[], "f32"},
            {[precision: :f16], "f32"},
            {[precision: :f16, force_precision: true], "f16"},
            {[precision: :bf16, force_precision: true], "bf16"}
          ] do
        assert %{precision: ^used} =
                 plan = plan!(spec(:gru), Keyword.drop(opts, [:initial, :max]) ++ more)

        assert to_string(plan) =~ ~r/frames, \d threads? of the CPU, #{used}$/m
        {:ok, tuning} = Trainer.tune(spec(:gru), opts ++ more)
        assert tuning.precision == used
        assert to_string(tuning) =~ "windows of 8 · #{used}\n"
      end
    end

    test "stays within its share of a limit, even if the first batch size exceeds it" do
      plan = plan!(spec(:gru), batch_size: 16, val_split: 0.0)
      opts = [initial: 64, memory_limit: plan.bytes * 2, backoff: 0.5, val_split: 0.0]
      {:ok, tuning} = Trainer.tune(spec(:gru), opts)
      assert [%{batch_size: 16}] = tuning.rows
      assert %{stopped: :memory, batch_size: 16} = tuning

      assert {:error, %Error{kind: :out_of_memory, op: :tune}} =
               Trainer.tune(spec(:gru), memory_limit: "10KB")
    end

    test "refuses wrong options" do
      assert {:error, %Error{kind: :out_of_range, details: %{field: "initial"}}} =
               Trainer.tune(spec(:gru), initial: 8, max: 4)
    end
  end
end
