defmodule Sconce.Run.FollowTest do
  use ExUnit.Case, async: true

  alias Sconce.{Corpus, Env, PPO, Trainer}

  @moduletag :tmp_dir
  @play [environments: 4, rollout_steps: 8, minibatches: 2, hidden_sizes: [8], steps: 320]

  # A device whose process is gone, like a terminal that was closed.
  defp closed do
    {:ok, device} = StringIO.open("")
    StringIO.close(device)
    device
  end

  test "a closed device does not end a run of PPO", %{tmp_dir: out} do
    {:ok, run} = PPO.start_link([env: :cart_pole, out: out] ++ @play)
    assert {:ok, report} = PPO.Progress.follow(run, device: closed(), terminal: true)
    assert {report.stopped, report.updates} == {:finished, 10}
  end

  test "a closed device does not end a training run", %{tmp_dir: dir} do
    {:ok, games} = Env.CartPole.demonstrations(games: 4, steps: 60)
    {:ok, %Corpus{} = corpus} = Env.CartPole.corpus(games, into: Path.join(dir, "corpus"))
    small = [backbone: :mlp, hidden_sizes: [4], batch_size: 2, window_size: 4, steps: 4]
    {:ok, run} = Trainer.start_link([corpus: corpus, out: Path.join(dir, "run")] ++ small)
    assert {:ok, report} = Trainer.Progress.follow(run, device: closed(), terminal: true)
    assert {report.stopped, report.steps} == {:finished, 4}
  end

  test "a run is followed by its name, and a run that is gone is cancelled", %{tmp_dir: out} do
    name = :"follow_#{System.unique_integer([:positive])}"
    {:ok, run} = PPO.start_link([env: :cart_pole, out: out, name: name] ++ @play)
    {:ok, device} = StringIO.open("")
    assert {:ok, report} = PPO.Progress.follow(name, device: device, terminal: false)
    assert report.updates == 10
    GenServer.stop(run)
    assert {:error, %{kind: :cancelled, op: :learn}} = PPO.Progress.follow(name)
    assert_raise ArgumentError, ~r/a run/, fn -> PPO.Progress.follow("run") end
  end
end
