defmodule Mix.Tasks.Sconce.ExportTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Mix.Tasks.Sconce.Export
  alias Sconce.Policy

  setup do
    dir = tmp_dir!("export")
    spec = [embedding: {:vector, 2}, hidden_size: 8, num_layers: 1, heads: [go: {:bernoulli, 1}]]
    {:ok, policy} = Policy.init([backbone: :gru] ++ spec, seed: 1)
    checkpoint = Path.join(dir, "policy.safetensors")
    :ok = Policy.save(policy, checkpoint)
    {:ok, checkpoint: checkpoint, out: Path.join(dir, "policy.onnx")}
  end

  test "the model of a checkpoint is written, and its inputs and outputs are printed", context do
    args = [context.checkpoint, "--out", context.out]

    assert capture_io(fn -> Export.run(args) end) == """
           inputs   continuous f32 {:batch, 2}
           inputs   state.backbone.h_l0 f32 {:batch, 8}
           outputs  logits f32 {:batch, 1}
           outputs  next_state.backbone.h_l0 f32 {:batch, 8}
           """

    assert File.regular?(context.out)
    text = capture_io(fn -> Export.run(args ++ ["--form", "window", "--state"]) end)
    assert text =~ "continuous f32 {:batch, :time, 2}"
    assert text =~ "state.backbone.h_l0"
  end

  test "missing arguments and files are errors", context do
    assert_raise Mix.Error, ~r/usage: mix sconce.export/, fn -> Export.run([]) end
    assert_raise Mix.Error, ~r/--out is required/, fn -> Export.run([context.checkpoint]) end

    assert_raise Mix.Error, ~r/did you mean step/, fn ->
      Export.run([context.checkpoint, "--out", context.out, "--form", "steps"])
    end

    assert_raise Mix.Error, ~r/missing/, fn ->
      Export.run(["missing.safetensors", "--out", context.out])
    end

    refute File.exists?(context.out)
  end
end
