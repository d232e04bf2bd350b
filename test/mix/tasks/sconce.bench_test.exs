defmodule Mix.Tasks.Sconce.BenchTest do
  # The task prints through the shell that all tests share.
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Mix.Tasks.Sconce.Bench
  alias Sconce.{Corpus, Policy}

  @heads [go: {:categorical, 2}]
  @quick ~w(--seconds 0 --batch-size 2 --window-size 4 --threads 1)

  setup do
    Mix.shell(Mix.Shell.IO)
    dir = tmp_dir!("bench")
    {:ok, dir: dir, checkpoint: Path.join(dir, "policy.safetensors")}
  end

  defp bench(args), do: capture_io(fn -> Bench.run(args ++ @quick) end)

  defp saved!(path) do
    spec = [embedding: {:vector, 2}, heads: @heads, backbone: :gru, hidden_size: 8, num_layers: 1]
    {:ok, policy} = Policy.init(spec, seed: 1)
    :ok = Policy.save(policy, path)
  end

  test "measures the decisions of a checkpoint in each format, and a training step", context do
    saved!(context.checkpoint)
    output = bench([context.checkpoint])
    assert output =~ "vector 2 -> gru 8x1"

    for format <- ~w(f32 bf16 int8),
        do: assert(output =~ ~r/^#{format} +\w+ +(inline|worker)( +[\d.,]+){3} +1,000$/m)

    assert output =~
             ~r"a training step of 2 windows of 4 frames, 1 thread, .+: [\d.,]+ ms, [\d,]+ frames/s"
  end

  test "plays the games of a corpus", context do
    saved!(context.checkpoint)
    game = {for(t <- 1..20, do: [t / 20, 0.5]), for(_ <- 1..20, do: 1)}
    into = Path.join(context.dir, "corpus")
    {:ok, _corpus} = Corpus.build({:vector, 2}, [game], into: into, heads: @heads)
    output = bench([context.checkpoint, "--corpus", into, "--weights", "f32"])
    assert output =~ ~r/^f32 /m
    refute output =~ ~r/^int8 /m
  end

  test "makes a policy for Melee if no checkpoint is given" do
    assert bench(~w(--backbone mlp --weights f32)) =~ ~r/melee -> mlp .*\n\n.*\nf32 /
  end

  test "names a wrong argument", context do
    for {args, sentence} <- [
          {[Path.join(context.dir, "none")], ~r/none not found/},
          {["a", "b"], "unknown argument b"},
          {["--backbone", "grue"], ~r/^--backbone cannot be "grue"/},
          {["--corpus", context.dir], ~r/^open: /}
        ] do
      assert_raise Mix.Error, sentence, fn -> bench(args) end
    end
  end
end
