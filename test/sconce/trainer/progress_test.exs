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
      step_seconds: 0.1,
      data_wait: 0.0015,
      heads: [],
      figures: %{},
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
    heads: [%{name: "buttons", nll: 0.9}, %{name: "shoulder", nll: 0.6}],
    best: false,
    seconds: 10.0
  }
  @start %{
    event: :start,
    steps: 1000,
    epoch_steps: 50,
    weights: 1,
    train_games: 1,
    train_frames: 1,
    validation_games: 0,
    validation_frames: 0,
    threads: 1,
    skipped_views: 0,
    left_out: %{},
    precision: "f32"
  }
  @epoch %{
    event: :epoch,
    step: 50,
    epoch: 1,
    avg_loss: 1.0,
    val_loss: nil,
    heads: [],
    seconds: 10.0
  }

  defp play(progress, events) do
    {texts, _progress} = Enum.map_reduce(events, progress, &Progress.write(&2, &1))
    Enum.map(texts, &IO.iodata_to_binary/1)
  end

  test "the divergence from a teacher follows the loss" do
    [line] = play(Progress.new(terminal: true), [%{step(1, 1.0) | figures: %{teacher_kl: 0.25}}])
    assert line =~ "loss 1.2346  kl 0.2500  lr "
  end

  test "in a terminal a step rewrites its line, with the remaining time" do
    [first, second] = play(Progress.new(terminal: true), [step(1, 1.0), step(101, 11.0)])
    line = "step 1/1,000  loss 1.2346  lr 3.0e-4  12,346 frames/s  wait 1.5 %  eta -"
    assert first == "\r\e[K" <> line
    # A hundred steps took ten seconds, so the remaining 899 take ninety.
    assert second =~ "eta 1:30"
  end

  test "steps in fast succession are skipped, except the last one" do
    events = [step(1, 1.0), step(2, 1.01), step(3, 1.2), %{step(1000, 1.21) | step: 1000}]
    assert [_, "", third, last] = play(Progress.new(terminal: true), events)
    assert third =~ "step 3/"
    assert last =~ "step 1,000/1,000"
  end

  test "a failed save is a line that stays" do
    failed = %{event: :save_failed, step: 1200, path: "last", reason: "last: no space left"}
    line = "step 1,200  not saved: last: no space left\n"
    assert [_, "\r\e[K" <> ^line] = play(Progress.new(terminal: true), [step(1, 1.0), failed])
    assert [^line] = play(Progress.new(terminal: false), [failed])
  end

  test "a batch computed in parts is a line that stays" do
    event = %{event: :out_of_memory, step: 1200, micro_batch: 16, bytes: nil, memory_limit: nil}
    more = %{event | bytes: 2_100_000_000, memory_limit: 2_000_000_000}
    assert [one, two] = play(Progress.new(terminal: false), [event, more])
    assert one == "step 1,200  too little memory: 16 windows of a batch at a time\n"
    assert two =~ "too little memory (2.1 GB of 2.0 GB): 16 windows"
    grown = %{event: :grown, step: 1216, micro_batch: 32}
    assert [one] = play(Progress.new(terminal: false), [grown])
    assert one == "step 1,216  enough memory: 32 windows of a batch at a time\n"
  end

  test "a precision that is replaced by f32 or overflows is a line that stays" do
    asked = %{event: :precision, asked: "bf16", used: "f32"}
    overflow = %{event: :overflow, step: 1200, loss_scale: 32_768.0, skipped_updates: 1}
    started = %{@start | precision: "bf16"}
    assert [one, two, three] = play(Progress.new(terminal: false), [asked, overflow, started])
    assert one == "bf16 gains nothing on this machine: the run computes in f32\n"
    assert two == "step 1,200  a gradient overflowed f16: no update, loss scale 32,768\n"
    assert three =~ ~r/  in bf16$/
  end

  test "a live line is no wider than the terminal, so that it can be erased" do
    [line] = play(Progress.new(terminal: true, columns: 30), [step(1, 1.0)])
    assert String.length(line) == String.length("\r\e[K") + 29
  end

  test "a validation is a row of a table, which replaces the live line and stays" do
    slow = %{step(99, 0.9) | loss: 2.0, frames_per_second: 1000.0, data_wait: 0.0485}
    events = [slow, %{step(100, 1.0) | loss: 1.0}, @validation, step(101, 2.0)]
    [_slow, _step, table, after_it] = play(Progress.new(terminal: true), events)

    # The row has means of both steps, whose data took 50 of 200 milliseconds.
    assert table ==
             "\r\e[K epoch     step    loss     NLL  changed  acc %  buttons  shoulder" <>
               "  frames/s  wait %    time\n" <>
               "     1      100   1.500   1.500    4.250   50.0    0.900     0.600" <>
               "     6,673    25.0    0:01\n"

    assert after_it =~ "step 101"
  end

  test "later rows have no titles and count from the row before" do
    better = %{@validation | step: 200, best: true}
    events = [step(100, 1.0), @validation, %{step(200, 62.0) | loss: 9.0}, better]
    assert [_, _, _, row] = play(Progress.new(terminal: false), events)
    assert [_epoch, "200", "9.000" | cells] = String.split(row)
    assert ["1:02", "best"] = Enum.take(cells, -2)
    assert length(String.split(row, "\n", trim: true)) == 1
  end

  test "heads are left out if the line would wrap, or if there is only one" do
    [narrow] = play(Progress.new(terminal: true, columns: 80), [@validation])
    refute narrow =~ "shoulder"
    assert narrow |> String.split("\n") |> Enum.all?(&(String.length(&1) <= 80))

    [one] = play(Progress.new(terminal: false), [%{@validation | heads: tl(@validation.heads)}])
    refute one =~ "shoulder"
  end

  test "only a run without validation games has a row for each epoch" do
    assert [_start, "", row] =
             play(Progress.new(terminal: false), [@start, step(50, 1.0), @epoch])

    assert row |> String.split("\n") |> Enum.at(1) |> String.split() ==
             ~w(1 50 1.235 - - - 12,346 1.5 0:01)

    measured = %{@start | validation_games: 1}
    assert [_, "", ""] = play(Progress.new(terminal: false), [measured, step(50, 1.0), @epoch])
  end

  test "without a terminal each validation has a row, and steps have none" do
    assert ["", table] = play(Progress.new(terminal: false), [step(1, 1.0), @validation])
    refute table =~ "\e"
    assert String.ends_with?(table, "\n")
  end

  test "without a terminal one line says that the best policy is scored" do
    events = for done <- [0, 1000, 2000], do: %{event: :evaluating, done: done, total: 2000}
    assert ["scoring 2,000 frames\n", "", ""] = play(Progress.new(terminal: false), events)
    printer = Progress.printer(terminal: false)
    assert capture_io(fn -> Enum.each(events, printer) end) == "scoring 2,000 frames\n"
  end

  test "the live line is erased at the end" do
    events = [step(1, 1.0), %{event: :done, result: :any}]
    assert [_line, "\r\e[K"] = play(Progress.new(terminal: true), events)

    scored = [
      %{event: :evaluating, done: 5, total: 10},
      %{event: :evaluating, done: 10, total: 10}
    ]

    assert ["\r\e[Kscored 5/10 frames", "\r\e[K"] = play(Progress.new(terminal: true), scored)
  end

  test "a label precedes each line" do
    assert [line] = play(Progress.new(terminal: false, label: "gru"), [@validation])
    assert [titles, row, ""] = String.split(line, "\n")
    assert titles =~ ~r/^gru   epoch /
    assert row =~ ~r/^gru       1 /
  end

  test "a run is followed by its name or its pid" do
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
    assert text =~ ~r/ epoch +step +loss +NLL.*\n +\d+ +500 /
    assert text =~ ~r/^scoring \d+ frames$/m

    GenServer.stop(run)
    assert {:error, %Error{kind: :cancelled}} = Progress.follow(run)
    assert {:error, %Error{kind: :cancelled}} = Progress.follow(__MODULE__)
  end
end
