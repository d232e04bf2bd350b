defmodule Sconce.Bench.QuantiseTest do
  use ExUnit.Case, async: false

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Sconce.Bench.{Frames, Quantise}
  alias Sconce.{Corpus, Policy}

  doctest Quantise

  setup_all do
    dir = Path.join(System.tmp_dir!(), "sconce-quantise-#{System.pid()}")
    Frames.make_games(dir)
    {:ok, corpus} = Corpus.import(dir, into: Path.join(dir, "corpus"), progress: false)
    on_exit(fn -> File.rm_rf!(dir) end)
    {:ok, corpus: corpus}
  end

  defp policy(options) do
    {:ok, policy} = Policy.init(options, seed: 3)
    policy
  end

  for {name, options} <- [
        {"a memory", [backbone: :gru, hidden_size: 32]},
        {"heads that follow others", [backbone: :mlp, hidden_sizes: [32], heads: :autoregressive]}
      ] do
    test "with #{name}, f32 has no differences and bf16 has small ones", %{corpus: corpus} do
      policy = policy(unquote(options))
      assert [f32, bf16, int8] = Quantise.run(policy, corpus, [:f32, :bf16, :int8], games: 1)
      assert f32.frames == bf16.frames and f32.frames > 1000
      assert %{changed: 0, kept: :f32, heads: heads} = f32
      assert Enum.all?(f32.differences, &(&1 == 0.0))
      assert heads == for(%{name: name} <- policy.spec.heads, do: {name, 0})

      assert bf16.kept == :bf16
      most = Enum.max(bf16.differences)
      assert most > 1.0e-5 and most < 0.1 * bf16.largest
      # On a CPU without products of bytes, it is bf16 too.
      assert most <= Enum.max(int8.differences)
      assert bf16.changed < 0.2 * bf16.frames
      assert bf16.changed >= bf16.heads |> Keyword.values() |> Enum.max()
    end
  end

  describe "the task" do
    defp quantise(args), do: capture_io(fn -> Mix.Tasks.Bench.run(["quantise" | args]) end)

    setup do
      Mix.shell(Mix.Shell.IO)
      on_exit(fn -> Mix.Task.reenable("bench.quantise") end)
    end

    test "has a row for each format, and names the origin of the weights", %{corpus: corpus} do
      checkpoint = Path.join(tmp_dir!("quantise"), "policy.safetensors")
      :ok = Policy.save(policy(backbone: :mlp, hidden_sizes: [16]), checkpoint)
      args = ~w(--games 1 --weights bf16 --corpus) ++ [corpus.dir]
      output = quantise([checkpoint | args])
      assert output =~ ~r/^#{checkpoint}: #Sconce.Policy<.*\n1 games of #Sconce.Corpus</
      assert [titles, row, matrices] = output |> String.split("\n", trim: true) |> Enum.drop(2)
      assert titles =~ ~r/^weights +kept .* changed % +buttons +main_x .* shoulder$/
      assert row =~ ~r/^bf16 +bf16 +[\d,]+( +[\d.,]+)+$/
      assert matrices =~ ~r/^bf16: (\d+) of \1 matrices, errors up to 0\.00\d\d$/

      Mix.Task.reenable("bench.quantise")
      output = quantise(["--backbone", "lstm" | args])
      assert output =~ ~r/^a policy with random weights: #Sconce.Policy<.* lstm /
    end

    test "refuses invalid arguments" do
      replays = System.get_env("SCONCE_REPLAYS")
      System.delete_env("SCONCE_REPLAYS")
      on_exit(fn -> replays && System.put_env("SCONCE_REPLAYS", replays) end)

      for {args, sentence} <- [
            {[], "--corpus or SCONCE_REPLAYS is required"},
            {["/nowhere.safetensors"], ~r"nowhere.safetensors.* not found"},
            {["--corpus", "/nowhere"], ~r"nowhere.* not found"},
            {["--weights", "f64"], ~r/^--weights cannot be "f64"/},
            {["one", "two"], "unknown argument two"}
          ] do
        Mix.Task.reenable("bench.quantise")
        assert_raise Mix.Error, sentence, fn -> quantise(args) end
      end
    end
  end
end
