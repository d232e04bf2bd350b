defmodule Sconce.Trainer.CallbackTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureLog

  alias Sconce.{Corpus, Trainer}

  @moduletag :tmp_dir

  setup %{tmp_dir: dir} do
    games =
      for game <- 1..4,
          do: {for(i <- 1..64, do: rem(i * game, 7) / 7), for(i <- 1..64, do: rem(i, 2))}

    {:ok, corpus} =
      Corpus.build({:vector, 1}, games, into: dir <> "/corpus", heads: [go: {:categorical, 2}])

    %{corpus: corpus, dir: dir}
  end

  defp run(%{corpus: corpus, dir: dir}, out, opts) do
    own = [
      corpus: corpus,
      out: Path.join(dir, out),
      backbone: :mlp,
      hidden_sizes: [8],
      steps: 20,
      batch_size: 4,
      window_size: 4,
      validate_every: 10,
      lr_schedule: :constant,
      callback_every: 5,
      seed: 3
    ]

    {:ok, run} = Trainer.start_link(Keyword.merge(own, opts))
    :ok = Trainer.subscribe(run)
    {run, Trainer.await(run, 60_000)}
  end

  defp asked do
    receive do
      {:asked, pid} -> [pid | asked()]
    after
      0 -> []
    end
  end

  defp rates(report), do: Map.new(report.history, &{&1.step, &1.learning_rate})

  test "gets the figures of its steps, and :ok changes nothing", context do
    me = self()
    look = fn seen -> send(me, {:seen, seen}) && :ok end
    {_run, {:ok, report}} = run(context, "looked", callback: look)
    steps = for _ <- 1..3, do: assert_receive({:seen, seen}) && seen
    assert [5, 10, 15] == Enum.map(steps, & &1.step.step)
    assert [nil, 10, 10] == Enum.map(steps, & &1.validation[:step])
    refute_received {:seen, _seen}
    {_run, {:ok, alone}} = run(context, "alone", [])
    assert Enum.map(report.history, & &1.loss) == Enum.map(alone.history, & &1.loss)
  end

  test "sets the learning rate, which a resumed run keeps", context do
    slower = fn %{step: %{step: step}} ->
      if step == 10, do: {:learning_rate, 1.0e-5}, else: :ok
    end

    {_run, {:ok, whole}} = run(context, "whole", callback: slower)
    assert %{10 => first, 12 => 1.0e-5, 20 => 1.0e-5} = rates(whole)
    assert first > 1.0e-4

    stop = fn seen -> if seen.step.step == 15, do: :stop, else: slower.(seen) end
    {_run, {:ok, cut}} = run(context, "cut", callback: stop)
    assert %{steps: 15, stopped: :stopped} = cut
    {:ok, run} = Trainer.start_link(resume: true, out: Path.join(context.dir, "cut"))
    {:ok, on} = Trainer.await(run, 60_000)
    assert {on.steps, rates(on)} == {20, rates(whole)}
    assert Enum.map(on.history, & &1.loss) == Enum.map(whole.history, & &1.loss)
    assert on.policy == whole.policy
  end

  test "that is late is ended and reported, and the run continues", context do
    me = self()

    slow = fn _seen ->
      send(me, {:asked, self()})
      Process.sleep(:infinity)
    end

    {run, {:ok, report}} = run(context, "late", callback: slow, callback_ms: 20)
    assert report.stopped == :finished

    for step <- [5, 10, 15],
        do: assert_receive({:sconce_trainer, ^run, %{event: :callback_late, step: ^step}})

    # On a busy machine a callback may be ended before its first line: it sends no pid then.
    for pid <- asked() do
      monitor = Process.monitor(pid)
      assert_receive {:DOWN, ^monitor, :process, ^pid, _reason}, 10_000
    end
  end

  test "that raises, exits or returns another term is dropped with one report, and the run continues",
       context do
    for {name, callback, said} <- [
          {"raises", fn _seen -> raise "no idea" end, "no idea"},
          {"exits", fn _seen -> exit(:gone) end, ":gone"},
          {"killed", fn _seen -> Process.exit(self(), :kill) end, "killed"},
          {"odd", fn _seen -> {:learning_rate, -1} end, "expected :ok, :stop or"}
        ] do
      log =
        capture_log(fn ->
          assert {_run, {:ok, %{stopped: :finished}}} = run(context, name, callback: callback)
        end)

      assert log =~ "callback dropped"
      assert log =~ said
      assert length(String.split(log, "callback dropped")) == 2
    end
  end

  test "may call its run, and ends with it", context do
    me = self()

    look = fn _seen ->
      run = receive(do: ({:run, run} -> run))
      send(me, {:info, Trainer.info(run)})
      send(me, {:asked, self()})
      Process.sleep(:infinity)
    end

    opts = [callback: fn seen -> send(me, {:pid, self()}) && look.(seen) end, callback_ms: 60_000]

    {:ok, run} =
      Trainer.start_link(
        [
          corpus: context.corpus,
          out: context.dir <> "/ended",
          backbone: :mlp,
          hidden_sizes: [8],
          steps: 1000,
          batch_size: 4,
          window_size: 4,
          callback_every: 5
        ] ++ opts
      )

    assert_receive {:pid, pid}, 10_000
    send(pid, {:run, run})
    assert_receive {:info, %{status: :running}}, 10_000
    assert_receive {:asked, ^pid}
    monitor = Process.monitor(pid)
    :ok = Trainer.stop(run)
    assert {:ok, %{stopped: :stopped}} = Trainer.await(run, 10_000)
    assert_receive {:DOWN, ^monitor, :process, ^pid, :killed}
  end
end
