defmodule Sconce.Trainer.ProgressTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Sconce.Env.CartPole
  alias Sconce.{Error, Trainer}
  alias Sconce.Trainer.Progress

  doctest Progress

  defp step(step, seconds) do
    %{
      event: :step,
      step: step,
      steps: 1000,
      epoch: 2,
      loss: 1.23456,
      learning_rate: 3.0e-4,
      grad_norm: 1.0,
      frames_per_second: 12_345.6,
      data_wait: 0.0015,
      seconds: seconds
    }
  end

  @validation %{
    event: :validation,
    step: 100,
    epoch: 1,
    nll: 1.5,
    nll_changed: 4.25,
    accuracy: 0.5,
    best: false,
    seconds: 10.0
  }

  defp play(progress, events) do
    {texts, _progress} = Enum.map_reduce(events, progress, &Progress.write(&2, &1))
    Enum.map(texts, &IO.iodata_to_binary/1)
  end

  test "in a terminal a step writes its line anew, with the time that is left" do
    [first, second] = play(Progress.new(terminal: true), [step(1, 1.0), step(101, 11.0)])
    line = "step 1/1,000  epoch 2  loss 1.2346  lr 3.0e-4  12,346 frames/s  wait 1.5 ms  eta -"
    assert first == "\r\e[K" <> line
    # A hundred steps took ten seconds, so 899 take ninety.
    assert second =~ "eta 1:30"
  end

  test "steps that follow too fast for an eye are left out, the last one is not" do
    events = [step(1, 1.0), step(2, 1.01), step(3, 1.2), %{step(1000, 1.21) | step: 1000}]
    assert [_, "", third, last] = play(Progress.new(terminal: true), events)
    assert third =~ "step 3/"
    assert last =~ "step 1,000/1,000"
  end

  test "a save that failed is a line that stays" do
    failed = %{event: :save_failed, step: 1200, path: "last", reason: "last: no space left"}
    line = "step 1,200  not saved: last: no space left\n"
    assert [_, "\r\e[K" <> ^line] = play(Progress.new(terminal: true), [step(1, 1.0), failed])
    assert [^line] = play(Progress.new(terminal: false), [failed])
  end

  test "a validation takes the place of the live line and stays" do
    [_step, line, after_it] =
      play(Progress.new(terminal: true), [step(100, 1.0), @validation, step(101, 2.0)])

    assert line ==
             "\r\e[Kepoch 1  step 100  validation NLL 1.500 (changed 4.250)  accuracy 50.0 %\n"

    assert after_it =~ "step 101"
  end

  test "without a terminal there is a line for each validation and none for steps" do
    events = [step(1, 1.0), @validation, %{event: :evaluating, done: 1, total: 2}]
    assert ["", line, ""] = play(Progress.new(terminal: false), events)
    refute line =~ "\e"
    assert String.ends_with?(line, "\n")
  end

  test "the live line is gone at the end, whatever it was" do
    events = [step(1, 1.0), %{event: :done, result: :any}]
    assert [_line, "\r\e[K"] = play(Progress.new(terminal: true), events)

    scored = [
      %{event: :evaluating, done: 5, total: 10},
      %{event: :evaluating, done: 10, total: 10}
    ]

    assert ["\r\e[Kscored 5/10 frames", "\r\e[K"] = play(Progress.new(terminal: true), scored)
  end

  test "a label stands before each line" do
    assert [line] = play(Progress.new(terminal: false, label: "gru"), [@validation])
    assert line =~ ~r/^gru  epoch 1/
  end

  test "a run is followed by its name as by its pid" do
    dir = tmp_dir!("progress")
    {:ok, games} = CartPole.demonstrations(games: 8, steps: 60)
    {:ok, corpus} = CartPole.corpus(games, into: Path.join(dir, "corpus"))

    opts = [
      corpus: corpus,
      out: Path.join(dir, "run"),
      steps: 500,
      window_size: 16,
      hidden_size: 8
    ]

    {:ok, run} = Trainer.start_link([name: __MODULE__, validate_every: 500] ++ opts)

    text = capture_io(fn -> assert {:ok, %{steps: 500}} = Progress.follow(__MODULE__) end)
    assert text =~ "step 500  validation NLL"

    GenServer.stop(run)
    assert {:error, %Error{kind: :cancelled}} = Progress.follow(run)
    assert {:error, %Error{kind: :cancelled}} = Progress.follow(__MODULE__)
  end
end
