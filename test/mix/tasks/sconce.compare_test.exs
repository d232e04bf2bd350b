defmodule Mix.Tasks.Sconce.CompareTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Mix.Tasks.Sconce.Compare
  alias Sconce.Env.CartPole
  alias Sconce.Trainer

  @small [hidden_size: 8, num_layers: 1, window_size: 16, stride: 16, batch_size: 8, steps: 4]

  test "runs are printed side by side and drawn into one file" do
    dir = tmp_dir!("compare")
    {:ok, games} = CartPole.demonstrations(games: 8, steps: 60)
    {:ok, corpus} = CartPole.corpus(games, into: Path.join(dir, "corpus"))

    for {name, rate} <- [slow: 1.0e-4, fast: 1.0e-2] do
      opts = [corpus: corpus, out: Path.join(dir, to_string(name)), learning_rate: rate] ++ @small
      {:ok, run} = Trainer.start_link(opts)
      {:ok, _report} = Trainer.await(run, 60_000)
    end

    svg = Path.join(dir, "both.svg")
    runs = [Path.join(dir, "slow"), Path.join(dir, "fast")]
    text = capture_io(fn -> Compare.run(runs ++ ["--svg", svg]) end)
    assert text =~ ~r/^ +slow +fast$/m
    assert text =~ ~r/^learning_rate +(0.0001|1.0e-4) +0.01$/m
    assert text =~ "curves  #{svg}"
    assert File.read!(svg) =~ "2 runs"
    assert text =~ ~r/^NLL .*\*/m

    assert_raise Mix.Error, ~r/both.png: expected a file that ends in .svg, got .png/, fn ->
      Compare.run(runs ++ ["--svg", Path.join(dir, "both.png")])
    end

    text = capture_io(fn -> Compare.run(runs) end)
    refute text =~ "curves"
    refute File.exists?("compare.svg")
  end

  test "an error ends the task with a sentence" do
    assert_raise Mix.Error, ~r/^usage: mix sconce.compare RUN/, fn -> Compare.run([]) end
    assert_raise Mix.Error, ~r/did you mean --svg/, fn -> Compare.run(["a", "--sgv", "b"]) end
    none = Path.join(tmp_dir!("compare"), "none")
    assert_raise Mix.Error, ~r/#{none}.*not found/, fn -> Compare.run([none]) end
  end
end
