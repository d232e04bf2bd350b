defmodule Sconce.TrainerTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.{Corpus, Error, Native, Trainer}
  alias Sconce.Policy.Spec
  alias Sconce.Trainer.{Catalogue, Optimiser, Settings, Table}

  doctest Trainer

  @small [backbone: :gru, hidden_size: 8, num_layers: 1, head_hidden_size: 8, dropout: 0.0] ++
           [batch_size: 8, window_size: 8, stride: 4, loss: :plain, learning_rate: 0.01] ++
           [validation_stride: 1, val_split: 0.25]

  # The action equals the observation `delay` frames ago: with a delay the policy needs memory.
  defp corpus!(dir, delay \\ 0, games \\ 12) do
    # The number of games is part of the seed, so a validation corpus shares no game with the training.
    :rand.seed(:exsss, {1, games, delay})

    games =
      for _game <- 1..games do
        bits = for _frame <- 1..48, do: :rand.uniform(2) - 1
        seen = for bit <- bits, do: [bit * 2.0 - 1.0, 0.5]
        {seen, List.duplicate(0, delay) ++ Enum.drop(bits, -delay)}
      end

    games =
      if delay == 0,
        do: Enum.map(games, fn {x, _} -> {x, Enum.map(x, &round((hd(&1) + 1) / 2))} end),
        else: games

    heads = [go: {:categorical, 2}]

    {:ok, corpus} =
      Corpus.build({:vector, 2}, games, into: Path.join(dir, "corpus"), heads: heads)

    corpus
  end

  setup do
    dir = tmp_dir!("trainer")
    {:ok, dir: dir, corpus: corpus!(dir)}
  end

  defp options(context, more),
    do:
      Keyword.merge([corpus: context.corpus, out: Path.join(context.dir, "run")] ++ @small, more)

  test "attention sees the window of the training, unless its option is given", context do
    sees = fn opts ->
      all = [corpus: context.corpus, out: context.dir] ++ opts
      %Settings{source: {:ok, {_corpus, spec}}} = Settings.new!(all)
      elem(spec.backbone, 1)[:window_size]
    end

    assert sees.(backbone: :griffin) == 32
    assert sees.(backbone: :griffin, window_size: 8) == 8
    assert sees.(backbone: {:griffin, num_layers: 3}, window_size: 8) == 8
    assert sees.(backbone: {:griffin, window_size: 5}, window_size: 8) == 5
    assert sees.(backbone: :gru, window_size: 8) == nil

    for wrong <- [{:griffin, [:wide]}, {:grifin, []}, {3, []}, 3],
        do: assert_raise(ArgumentError, fn -> sees.(backbone: wrong, window_size: 8) end)
  end

  defp start!(context, more), do: context |> options(more) |> Trainer.start_link() |> ended()

  # Waits for the run to end, so that it does not write into the folder of the test while it is removed.
  defp ended({:ok, run}) do
    on_exit(fn ->
      monitor = Process.monitor(run)
      assert_receive {:DOWN, ^monitor, :process, ^run, _reason}, 30_000
    end)

    run
  end

  defp train!(context, more) do
    {:ok, report} = context |> start!(more) |> Trainer.await(60_000)
    report
  end

  describe "a run" do
    test "sends its events in order and ends with a report", context do
      test = self()
      run = start!(context, steps: 4, validate_every: 2, progress: &send(test, {:seen, &1}))
      assert {:ok, report} = Trainer.await(run, 60_000)

      names = Enum.map(events(), & &1.event)
      assert hd(names) == :start
      assert List.last(names) == :done
      assert Enum.count(names, &(&1 == :step)) == 4

      assert Enum.filter(names, &(&1 in [:step, :validation])) ==
               [:step, :step, :validation, :step, :step, :validation]

      assert %{stopped: :finished, steps: 4, train: train, validation: validation} = report
      assert train.games + validation.games == 12
      assert report.best_step in [2, 4]
      assert report.policy.frames == validation.games * 48
      assert Enum.map(report.baselines, & &1.name) == ["marginal", "repeat", "pairs"]
      assert %Spec{backbone: {:gru, _options}, heads: [%{name: :go}]} = report.spec
      assert Trainer.await(run) == {:ok, report}
      assert %{status: :done, step: %{step: 4}, validation: %{step: 4}} = Trainer.info(run)
    end

    test "leaves both checkpoints, the report and the curve in its folder", context do
      report = train!(context, steps: 2)
      files = File.ls!(report.out)

      for file <- ~w(best.safetensors last.safetensors report.json curve.svg),
          do: assert(file in files)

      assert File.read!(report.curve) =~ "</svg>"
      assert {:ok, policy} = Sconce.Policy.load(Path.join(report.out, "best.safetensors"))
      assert policy.num_weights == report.weights
    end

    test "gives the same bits for equal seeds, and others for another seed", context do
      [a, b, c] =
        for {seed, name} <- [{7, "a"}, {7, "b"}, {8, "c"}] do
          out = Path.join(context.dir, name)
          train!(context, out: out, seed: seed, steps: 6, dropout: 0.2, evaluate: false)
          weights(Path.join(out, "best.safetensors"))
        end

      assert a == b
      assert a != c
    end

    test "that was stopped and resumed ends as an uninterrupted one", context do
      straight = Path.join(context.dir, "straight")
      train!(context, out: straight, steps: 40, evaluate: false)

      run = start!(context, steps: 40, evaluate: false)
      :ok = Trainer.subscribe(run)
      assert_receive {:sconce_trainer, ^run, %{event: :step}}
      :ok = Trainer.stop(run)
      {:ok, _report} = Trainer.await(run, 60_000)
      # The first run is over, so the folder is free.
      report = train!(context, steps: 40, evaluate: false, resume: true)

      assert report.steps == 40
      last = &weights(Path.join(&1, "last.safetensors"))
      assert last.(report.out) == last.(straight)
    end

    test "through whole games resumes in the middle of games, also with gradient checkpoints",
         context do
      carry = [unroll: :carry, truncate_bptt: 3, steps: 30, batch_size: 3, evaluate: false]
      straight = Path.join(context.dir, "straight")
      train!(context, [out: straight, validation_mode: :carry] ++ carry)

      run = start!(context, [validation_mode: :carry] ++ carry)
      :ok = Trainer.subscribe(run)
      assert_receive {:sconce_trainer, ^run, %{event: :step, step: step}} when step >= 2
      :ok = Trainer.stop(run)
      {:ok, _report} = Trainer.await(run, 60_000)
      again = [validation_mode: :carry, resume: true, gradient_checkpoint: true]
      report = train!(context, again ++ carry)

      assert {report.stopped, report.steps} == {:finished, 30}
      last = &weights(Path.join(&1, "last.safetensors"))
      assert last.(report.out) == last.(straight)
    end

    test "with little memory computes its batches in parts, and keeps the parts when resumed",
         context do
      # Validation is off: it would take more memory than these steps.
      steps = [steps: 30, dropout: 0.2, evaluate: false, val_split: 0.0]
      whole = train!(context, [out: Path.join(context.dir, "whole")] ++ steps)
      assert whole.micro_batch == 8
      {:ok, plan} = context |> options(steps) |> Trainer.plan()
      little = steps ++ [memory_limit: plan.bytes - 1]
      straight = Path.join(context.dir, "straight")
      test = self()
      opts = [out: straight, progress: &send(test, {:seen, &1})]
      report = train!(context, opts ++ little)
      assert %{micro_batch: 4, options: %{memory_limit: limit}} = report

      assert [%{step: 0, micro_batch: 4, memory_limit: ^limit}] =
               Enum.filter(events(), &(&1.event == :out_of_memory))

      assert Trainer.Report.format(report) =~ "memory, 4 windows of a batch at a time"
      # The losses are equal up to rounding error, because the order of sums differs.
      loss = fn report -> report |> Sconce.Trainer.Curve.points(:loss) |> List.last() end
      {30, wanted} = loss.(whole)
      {30, loss} = loss.(report)
      assert_in_delta loss, wanted, 1.0e-4

      run = start!(context, little)
      :ok = Trainer.subscribe(run)
      assert_receive {:sconce_trainer, ^run, %{event: :step}}
      :ok = Trainer.stop(run)
      {:ok, _report} = Trainer.await(run, 60_000)
      report = train!(context, [resume: true] ++ steps)
      assert %{steps: 30, micro_batch: 4} = report
      last = &weights(Path.join(&1, "last.safetensors"))
      assert last.(report.out) == last.(straight)
    end

    test "whose micro-batch may grow halves it for a step over its limit, and grows again",
         context do
      # Attention, whose steps take nearly what was planned.
      quiet =
        [backbone: :griffin, hidden_size: 32, batch_size: 32, window_size: 32, stride: 1] ++
          [evaluate: false, val_split: 0.0, lr_schedule: :constant, grow_micro_batch: true]

      plan = fn limit ->
        {:ok, plan} = context |> options([memory_limit: limit] ++ quiet) |> Trainer.plan()
        plan
      end

      [half, _eight, four] =
        Enum.scan(1..3, plan.(nil), fn _halving, whole -> plan.(whole.bytes - 1) end)

      assert {half.micro_batch, four.micro_batch} == {16, 4}
      report = train!(context, [steps: 2, memory_limit: half.bytes] ++ quiet)
      assert report.micro_batch == 16

      # A resumed run goes on with its micro-batch, of which the first step exceeds the new limit.
      test = self()
      more = [steps: 20, memory_limit: four.bytes, progress: &send(test, {:seen, &1})]
      report = train!(context, [resume: true] ++ more ++ quiet)
      events = Enum.filter(events(), &(&1.event in [:out_of_memory, :grown]))
      assert [%{event: :out_of_memory, step: 2, micro_batch: 16} | events] = events
      {failures, [grown | _later]} = Enum.split_while(events, &(&1.event == :out_of_memory))
      assert [%{micro_batch: 8} | _] = failures
      for failure <- failures, do: assert(failure.step == 2 and failure.bytes > four.bytes)

      # Half the way to the size that failed, after 16 steps that went well.
      %{micro_batch: least} = List.last(failures)
      assert grown == %{event: :grown, step: 18, micro_batch: least + div(least, 2)}
      assert report.steps == 20
    end

    test "in a precision without a gain computes in f32 with a message, unless it is forced",
         context do
      steps = [steps: 12]
      out = &[out: Path.join(context.dir, &1)]
      exact = train!(context, steps ++ out.("f32"))
      assert %{precision: "f32", options: %{precision: "f32"}} = exact

      run = start!(context, [precision: :f16] ++ steps ++ out.("asked"))
      {:ok, asked} = Trainer.await(run, 60_000)
      # A late subscriber gets the events too.
      :ok = Trainer.subscribe(run)
      assert_receive {:sconce_trainer, ^run, %{event: :start, precision: "f32"}}
      assert_receive {:sconce_trainer, ^run, %{event: :precision, asked: "f16", used: "f32"}}
      assert %{precision: "f32", options: %{precision: "f16"}} = asked
      last = &weights(Path.join(&1.out, "last.safetensors"))
      assert last.(asked) == last.(exact)
      assert {:ok, %{precision: "f32"}} = Native.train_record(asked.out)

      # bf16 gains on a CPU with a matrix unit.
      {:ok, %{cpu: %{amx_bf16: unit?}}} = Sconce.native_info()
      bf16 = train!(context, [precision: :bf16] ++ steps ++ out.("bf16"))
      assert bf16.precision == if(unit?, do: "bf16", else: "f32")

      forced = [precision: :bf16, force_precision: true] ++ steps
      forced_run = train!(context, forced ++ out.("forced"))
      assert %{precision: "bf16", skipped_updates: 0} = forced_run
      assert last.(forced_run) != last.(exact)
      assert {:ok, %{precision: "bf16"}} = Native.train_record(forced_run.out)
      assert_in_delta forced_run.policy.nll, exact.policy.nll, 0.02 * exact.policy.nll
    end

    test "in f16 skips steps that overflow, also when resumed", context do
      bits = [go: {:bernoulli, 2}]
      seen = for t <- 1..40, do: [t / 40, 1.0]
      games = for game <- 1..4, do: {seen, for(t <- 1..40, do: [rem(t + game, 2), 0])}
      into = Path.join(context.dir, "bits")
      {:ok, corpus} = Corpus.build({:vector, 2}, games, into: into, heads: bits)
      steep = [steps: 20, loss: [button_weight: 1.0e6], corpus: corpus]
      half = [precision: :f16, force_precision: true] ++ steep
      assert %{skipped_updates: 0} = train!(context, [out: into <> " f32"] ++ steep)
      whole = train!(context, [out: into <> " whole"] ++ half)
      assert whole.skipped_updates in 2..19

      run = start!(context, half)
      :ok = Trainer.subscribe(run)
      assert_receive {:sconce_trainer, ^run, %{event: :step, step: 1, grad_norm: nil}}
      assert_receive {:sconce_trainer, ^run, %{event: :overflow, step: 1} = told}
      assert %{loss_scale: 32_768.0, skipped_updates: 1} = told
      :ok = Trainer.stop(run)
      {:ok, _report} = Trainer.await(run, 60_000)
      out = Path.join(context.dir, "run")
      run = [resume: true, threads: 2, out: out] |> Trainer.start_link() |> ended()
      {:ok, report} = Trainer.await(run, 60_000)
      assert report.skipped_updates == whole.skipped_updates
      last = &weights(Path.join(&1.out, "last.safetensors"))
      assert last.(report) == last.(whole)
    end

    @tag cuda: false
    test "resumes on its own device, or on another if given", context do
      report = train!(context, steps: 2, evaluate: false)
      record = Path.join(report.out, "run.json")
      json = File.read!(record)
      assert json =~ ~s("device": "cpu")
      File.write!(record, String.replace(json, ~s("device": "cpu"), ~s("device": "cuda:0")))
      again = [resume: true, steps: 4, decay_steps: 3, evaluate: false, out: report.out]
      run = again |> Trainer.start_link() |> ended()
      assert {:error, %{kind: :unavailable} = error} = Trainer.await(run, 60_000)
      assert Exception.message(error) =~ "cuda:0"
      run = [device: :cpu] |> Kernel.++(again) |> Trainer.start_link() |> ended()
      assert {:ok, %{steps: 4}} = Trainer.await(run, 60_000)
    end

    test "stops at any step, with its state saved and without scores", context do
      run = start!(context, steps: 100_000)
      :ok = Trainer.subscribe(run)
      assert_receive {:sconce_trainer, ^run, %{event: :step}}
      assert %{status: :running} = Trainer.info(run)
      assert :ok = Trainer.stop(run)
      assert {:ok, %{stopped: :stopped, policy: nil} = report} = Trainer.await(run, 60_000)
      assert report.steps < 100_000
      assert File.exists?(Path.join(report.out, "last.safetensors"))
      assert :ok = Trainer.stop(run)
    end

    test "stops inside a step of many batches, and keeps the state before it", context do
      run = start!(context, steps: 10, accumulation_steps: 65_536)
      :ok = Trainer.subscribe(run)
      assert_receive {:sconce_trainer, ^run, %{event: :start}}, 5000
      assert :ok = Trainer.stop(run)
      assert {:ok, %{stopped: :stopped, steps: 0, out: out}} = Trainer.await(run, 60_000)
      assert File.exists?(Path.join(out, "last.safetensors"))
    end

    test "sends a late subscriber its start and its end", context do
      run = start!(context, steps: 1)
      {:ok, report} = Trainer.await(run, 60_000)
      :ok = Trainer.subscribe(run)
      assert_received {:sconce_trainer, ^run, %{event: :start, steps: 1}}
      assert_received {:sconce_trainer, ^run, %{event: :done, result: {:ok, ^report}}}
    end

    @tag :capture_log
    test "ends with its owner, saves its state and frees its folder", context do
      test = self()

      owner =
        spawn(fn ->
          {:ok, run} = context |> options(steps: 100_000) |> Trainer.start_link()
          :ok = Trainer.subscribe(run)
          receive do: ({:sconce_trainer, _run, %{event: :step}} -> send(test, {:run, run}))
          receive do: (:never -> :ok)
        end)

      assert_receive {:run, run}
      monitor = Process.monitor(run)
      Process.exit(owner, :kill)
      assert_receive {:DOWN, ^monitor, :process, ^run, _reason}, 30_000
      out = Path.join(context.dir, "run")
      assert File.exists?(Path.join(out, "last.safetensors"))
      assert %{steps: steps} = train!(context, steps: 100_000, resume: true, max_minutes: 0.001)
      assert steps > 0
    end

    test "shows its position in a crash report, without all its data", context do
      log =
        ExUnit.CaptureLog.capture_log(fn ->
          run = start!(context, steps: 100_000)
          :ok = Trainer.subscribe(run)
          assert_receive {:sconce_trainer, ^run, %{event: :step}}
          Process.unlink(run)
          monitor = Process.monitor(run)
          assert {:status, ^run, _module, _items} = status = :sys.get_status(run)
          refute inspect(status, limit: :infinity) =~ "learning_rate"
          Process.exit(run, :crash)
          assert_receive {:DOWN, ^monitor, :process, ^run, _reason}, 30_000
        end)

      assert log =~ ~r/State: %\{.*status: :running/
      assert log =~ context.dir
      refute log =~ "learning_rate"
    end

    test "whose process is killed ends, and when resumed ends as an uninterrupted one",
         context do
      straight = Path.join(context.dir, "straight")
      train!(context, out: straight, steps: 500, evaluate: false)

      run = start!(context, steps: 500, evaluate: false)
      :ok = Trainer.subscribe(run)
      assert_receive {:sconce_trainer, ^run, %{event: :step}}
      Process.unlink(run)
      Process.exit(run, :kill)
      assert {:error, %Error{kind: :cancelled}} = Trainer.await(run)
      assert eventually(fn -> folder_free?(context) end)

      test = self()
      again = [resume: true, progress: &send(test, {:seen, &1})]
      report = train!(context, [steps: 500, evaluate: false] ++ again)
      assert [%{step: step}] = Enum.filter(events(), &(&1.event == :resumed))
      assert step in 1..499
      last = &weights(Path.join(&1, "last.safetensors"))
      assert last.(report.out) == last.(straight)
    end

    test "survives any failure of its progress function, and reports it once", context do
      import ExUnit.CaptureLog

      for {fail, said} <- [
            {fn _event -> raise "no screen" end, "(RuntimeError) no screen"},
            {fn _event -> exit(:no_screen) end, "(exit) :no_screen"},
            {fn _event -> throw(:no_screen) end, "(throw) :no_screen"}
          ] do
        log =
          capture_log(fn ->
            out = Path.join(context.dir, said)
            assert %{stopped: :finished} = train!(context, out: out, steps: 2, progress: fail)
          end)

        assert length(String.split(log, "progress function dropped: ** " <> said)) == 2
      end
    end

    test "validates after each epoch by default", context do
      test = self()
      train!(context, epochs: 2, evaluate: false, progress: &send(test, {:seen, &1}))
      events = events()
      %{epoch_steps: epoch, steps: steps} = Enum.find(events, &(&1.event == :start))
      assert steps == 2 * epoch
      assert for(%{event: :validation, step: step} <- events, do: step) == [epoch, steps]
    end

    test "ends early if validations stop improving", context do
      # No validation improves by a hundred nats.
      opts = [steps: 100_000, validate_every: 1, min_delta: 100.0, evaluate: false]
      assert %{stopped: :early, steps: 4, best_step: 1} = train!(context, [patience: 3] ++ opts)
    end

    test "ends at its time limit", context do
      assert %{stopped: :budget, steps: steps} =
               train!(context, steps: 100_000_000, max_minutes: 0.001, evaluate: false)

      assert steps < 100_000_000
    end

    test "that cannot write its states continues, reports it, and keeps the old state whole",
         context do
      opts = [steps: 100_000, hidden_size: 64, validate_every: 1]
      run = start!(context, opts)
      :ok = Trainer.subscribe(run)
      assert_receive {:sconce_trainer, ^run, %{event: :step}}
      :ok = Trainer.stop(run)
      {:ok, %{out: out, steps: steps}} = Trainer.await(run, 60_000)
      last = Path.join(out, "last.safetensors")
      {files, before} = {Enum.sort(File.ls!(out)), File.read!(last)}
      assert byte_size(before) > 32 * 1024

      # A time limit that is reached some steps later.
      minutes = [max_minutes: 0.02, evaluate: false]
      again = opts ++ minutes ++ [corpus: context.corpus.dir, out: out, resume: true]
      again = Keyword.merge(@small, again)

      script = """
      {:ok, run} = Sconce.Trainer.start_link(#{inspect(again, limit: :infinity)})
      {:error, %{kind: :io, details: %{report: report}} = error} = Sconce.Trainer.await(run)
      IO.puts(Exception.message(error))
      IO.inspect({report.stopped, report.steps > #{steps}, report.saves.step})
      for %{path: path} <- report.saves.failed, do: IO.puts("failed " <> Path.basename(path))
      """

      assert {output, 0} = elixir_within(script, 32)
      assert output =~ "{:budget, true, nil}"
      assert output =~ ~r/failed (best|last)\.safetensors/
      assert output =~ ~r/train: .*\.safetensors: .*; no state of the run was saved/
      assert File.read!(last) == before
      assert Enum.sort(File.ls!(out)) == files
    end

    test "leaves no empty or truncated file if no file can be written",
         context do
      out = Path.join(context.dir, "run")
      opts = [corpus: context.corpus.dir, out: out, steps: 4, gradient_report: 1]
      opts = Keyword.merge(@small, opts)

      script = """
      {:ok, run} = Sconce.Trainer.start_link(#{inspect(opts, limit: :infinity)})
      {:error, %{kind: :io, details: %{report: report}}} = Sconce.Trainer.await(run)
      IO.puts(Sconce.Trainer.Report.format(report))
      for %{path: path} <- report.saves.failed, do: IO.puts("failed " <> Path.basename(path))
      """

      assert {output, 0} = elixir_within(script, 0)
      assert output =~ "the state on disk is not of this run"

      for file <- ~w(run.json gradients.jsonl best.safetensors report.json),
          do: assert(output =~ "failed #{file}")

      # The lock file is always empty.
      assert File.ls!(out) == ["lock"]
    end

    test "whose VM is killed leaves whole files, and resumes to the same bits",
         context do
      opts = [steps: 3000, validate_every: 700, save_every: 1, keep_last: 1, keep_best: 2]
      opts = Keyword.merge(@small, opts ++ [evaluate: false, ema_decay: 0.9])
      straight = Path.join(context.dir, "straight")
      train!(context, [out: straight] ++ opts)

      out = Path.join(context.dir, "run")
      again = [corpus: context.corpus.dir, out: out] ++ opts

      script = """
      resume = File.exists?(#{inspect(Path.join(out, "run.json"))})
      opts = [resume: resume] ++ #{inspect(again, limit: :infinity)}
      {:ok, run} = Sconce.Trainer.start_link(opts)
      Sconce.Trainer.await(run)
      """

      # The kill comes some time after the first file, at any point of a write.
      for wait <- [0, 40] do
        last = Path.join(out, "last.safetensors")
        seen = File.stat(last)

        elixir_until(script, fn ->
          changed = File.stat(last) != seen
          if changed, do: Process.sleep(wait)
          changed
        end)

        assert {:ok, _policy} = Sconce.Policy.load(last)
      end

      test = self()
      report = train!(context, [resume: true, progress: &send(test, {:seen, &1})] ++ opts)
      assert [%{step: step}] = Enum.filter(events(), &(&1.event == :resumed))
      assert step in 1..2999
      files = &Enum.sort(File.ls!(&1))
      assert files.(out) == files.(straight)
      assert report.saves.failed == []

      for file <- files.(out), Path.extname(file) == ".safetensors" do
        assert weights(Path.join(out, file)) == weights(Path.join(straight, file)), file
      end
    end

    test "keeps numbered checkpoints on request", context do
      report = train!(context, steps: 6, validate_every: 2, keep_last: 2, keep_best: 1)
      best = "best-#{String.pad_leading(to_string(report.best_step), 8, "0")}.safetensors"
      files = File.ls!(report.out)

      for file <- [best, "last-00000004.safetensors", "last-00000006.safetensors"],
          do: assert(file in files)

      assert Enum.count(files, &String.ends_with?(&1, ".safetensors")) == 5
      assert %{written: 3, step: 6, failed: []} = report.saves
      assert {:ok, _policy} = Sconce.Policy.load(Path.join(report.out, best))
    end

    test "can have a supervisor, which does not restart it", context do
      children = [{Trainer, options(context, steps: 1)}]
      {:ok, supervisor} = Supervisor.start_link(children, strategy: :one_for_one)
      [{Trainer, run, :worker, _modules}] = Supervisor.which_children(supervisor)
      assert {:ok, _report} = Trainer.await(run, 60_000)
      GenServer.stop(run)
      assert Supervisor.which_children(supervisor) == []
    end

    test "may be scored on a separate validation corpus", context do
      other = corpus!(Path.join(context.dir, "other"), 0, 4)
      report = train!(context, steps: 2, validation: other)
      assert %{train: %{games: 12}, validation: %{games: 4}} = report
    end
  end

  describe "errors:" do
    test "an unknown option raises, with the nearest name", context do
      for {option, near} <- [bacth_size: ":batch_size", hiden_size: ":hidden_size"] do
        assert_raise ArgumentError, ~r/unknown option :#{option}, did you mean #{near}/, fn ->
          Trainer.start_link(options(context, [{option, 3}]))
        end
      end

      assert_raise ArgumentError, ~r/:label_smothing, did you mean :label_smoothing/, fn ->
        Trainer.start_link(options(context, loss: [label_smothing: 0.1]))
      end

      assert_raise ArgumentError, ~r/:gru backbone has no option :hidden_sizes/, fn ->
        Trainer.start_link(options(context, hidden_sizes: [8]))
      end

      assert_raise ArgumentError, ~r/:hidden_size belongs to the Spec/, fn ->
        Trainer.start_link(corpus: context.corpus, out: "x", spec: Spec.new(), hidden_size: 8)
      end

      assert_raise ArgumentError, ~r/option :out is required/, fn ->
        Trainer.start_link(corpus: context.corpus)
      end
    end

    test "an unusable corpus is returned by await", context do
      run = start!(context, corpus: Path.join(context.dir, "nowhere"))
      assert {:error, %Error{kind: :not_found}} = Trainer.await(run)
      assert %{status: :failed} = Trainer.info(run)
    end

    test "a Spec that does not fit the corpus is named with it", context do
      spec = Spec.new(embedding: {:vector, 3}, heads: [go: {:categorical, 2}])
      opts = [corpus: context.corpus, out: Path.join(context.dir, "run"), spec: spec]
      {:ok, run} = Trainer.start_link(opts)
      assert {:error, %Error{kind: :mismatch, details: details}} = Trainer.await(run)
      assert details.expected =~ "3"
      assert details.got =~ "vectors of 2"
    end

    test "an unusable folder is an error of the file system", context do
      file = Path.join(context.dir, "file")
      File.write!(file, "in the way")
      run = start!(context, out: file)
      assert {:error, %Error{kind: :io, op: :train}} = Trainer.await(run)
    end

    test "a folder with an earlier run is refused, unless the run is resumed", context do
      train!(context, steps: 1)
      run = start!(context, steps: 1)
      assert {:error, %Error{kind: :mismatch, details: details}} = Trainer.await(run)
      assert details.expected =~ "resume: true"
    end

    test "an option without effect beside the others raises, and names the option that it needs",
         context do
      values = [
        :last,
        5,
        [1.0],
        "x",
        2.0,
        "x",
        [{"folder", 0.5}],
        5,
        0.5,
        0.5,
        :reverse,
        2.0,
        4,
        1,
        3.0,
        0.5,
        0.7,
        64,
        :learned,
        true,
        0.5,
        0.5,
        0.5,
        0.5,
        0.6,
        5,
        0.5,
        5,
        3,
        true
      ]

      assert length(values) == length(Table.needs())

      for {{name, {other, _values}}, value} <- Enum.zip(Table.needs(), values) do
        besides = [
          decay_steps: [lr_schedule: :constant],
          mix: [unroll: :carry],
          loss_on: [unroll: :carry],
          burn_in: [loss_on: :last]
        ]

        beside = besides[name] || []

        assert_raise ArgumentError,
                     ~r/option :#{name} has no effect (without option :(teacher|mix|advantage_temperature|quantise|prune)$|with #{other}: .*requires #{other}: )/,
                     fn -> Trainer.start_link(options(context, [{name, value}] ++ beside)) end
      end
    end

    test "an integer beyond 64 bits is named, as is a value that is not allowed", context do
      for {name, value} <- [steps: 10 ** 20, seed: 2 ** 64, batch_size: 10 ** 30] do
        assert_raise ArgumentError, ~r/option :#{name}: expected an integer of 64 bits/, fn ->
          Trainer.start_link(options(context, [{name, value}]))
        end
      end

      assert_raise ArgumentError, ~r/got: :cosin, did you mean :cosine\?/, fn ->
        Trainer.start_link(options(context, lr_schedule: :cosin))
      end

      for {name, value, said} <- [{:max_grad_norm, 0.0, "above 0"}, {:beta2, 1.0, "below 1"}] do
        assert_raise ArgumentError, ~r/option :#{name}: expected .* #{said}, got: #{value}/, fn ->
          Trainer.start_link(options(context, [{name, value}]))
        end
      end
    end

    test "another Spec than that of the resumed run is a mismatch", context do
      train!(context, steps: 1)
      run = start!(context, steps: 2, resume: true, hidden_size: 16)
      assert {:error, %Error{kind: :mismatch}} = Trainer.await(run)
    end

    test "a second run in one folder is busy", context do
      run = start!(context, steps: 100_000)
      :ok = Trainer.subscribe(run)
      assert_receive {:sconce_trainer, ^run, %{event: :step}}
      second = start!(context, steps: 1)
      assert {:error, %Error{kind: :busy}} = Trainer.await(second, 10_000)
    end

    test "a number out of range is named", context do
      run = start!(context, burn_in: 8)

      assert {:error, %Error{kind: :out_of_range, details: %{field: "burn_in"}}} =
               Trainer.await(run)
    end

    test "await past its deadline is :deadline, and of a dead run :cancelled", context do
      run = start!(context, steps: 100_000)

      assert {:error, %Error{kind: :deadline, details: %{deadline_ms: 20}}} =
               Trainer.await(run, 20)

      GenServer.stop(run)

      for call <- [&Trainer.await/1, &Trainer.stop/1, &Trainer.subscribe/1, &Trainer.info/1] do
        assert {:error, %Error{kind: :cancelled, op: :train}} = call.(run)
      end
    end

    test "a term that is not a list of options raises" do
      assert_raise ArgumentError, "expected options, got: %{}", fn -> Trainer.start_link(%{}) end
    end
  end

  describe "an optimizer" do
    # A suitable learning rate for each optimizer.
    @rates [adamw: 0.01, adam: 0.01, sgd: 0.1, rmsprop: 3.0e-3, radam: 0.05, lamb: 0.03] ++
             [adabelief: 0.01, yogi: 0.01, lion: 3.0e-3]

    test "of each name lowers the loss", context do
      assert Keyword.keys(@rates) == Optimiser.names()

      for {name, rate} <- @rates do
        out = Path.join(context.dir, to_string(name))
        opts = [out: out, optimizer: name, learning_rate: rate, ema_decay: 0.9]
        more = [accumulation_steps: 2, steps: 60, validate_every: 20, evaluate: false]
        report = train!(context, opts ++ more)
        [first | _] = nlls = for %{nll: nll} when nll != nil <- report.history, do: nll
        assert length(nlls) == 3
        assert List.last(nlls) < 0.9 * first, "#{name}: #{inspect(nlls)}"
      end
    end

    test "has its documented defaults", context do
      opts = [steps: 3, evaluate: false, warmup_steps: 0]

      for name <- Optimiser.names() do
        [unsaid, said] =
          for more <- [[], Optimiser.options(name)] do
            out = Path.join(context.dir, "#{name}-#{length(more)}")
            train!(context, [out: out, optimizer: name] ++ more ++ opts)
            weights(Path.join(out, "last.safetensors"))
          end

        assert unsaid == said, "#{name}"
      end
    end

    test "stopped and resumed ends as an uninterrupted one, with its averages", context do
      opts = [optimizer: :lamb, ema_decay: 0.9, accumulation_steps: 3, evaluate: false]
      opts = opts ++ [steps: 24, validate_every: 8, lr_schedule: :cosine_restarts]
      straight = Path.join(context.dir, "straight")
      train!(context, [out: straight] ++ opts)

      run = start!(context, opts)
      :ok = Trainer.subscribe(run)
      assert_receive {:sconce_trainer, ^run, %{event: :step, step: step}} when step >= 2
      :ok = Trainer.stop(run)
      {:ok, _report} = Trainer.await(run, 60_000)
      report = train!(context, [resume: true] ++ opts)

      for file <- ~w(best.safetensors last.safetensors),
          do: assert(weights(Path.join(report.out, file)) == weights(Path.join(straight, file)))
    end

    test "refuses options of others and unknown names", context do
      assert_raise ArgumentError, ~r/unknown option of the :adamw optimizer :momentum/, fn ->
        Trainer.start_link(options(context, momentum: 0.9))
      end

      assert_raise ArgumentError, ~r/option of the :rmsprop optimizer :beta1, did you mean/, fn ->
        Trainer.start_link(options(context, optimizer: :rmsprop, beta1: 0.9))
      end

      assert_raise ArgumentError, ~r/option :optimizer: expected one of :adamw/, fn ->
        Trainer.start_link(options(context, optimizer: :adamm))
      end

      assert_raise ArgumentError, ~r/option :beta2: expected .* below 1, got: 1.0/, fn ->
        Trainer.start_link(options(context, beta2: 1.0))
      end
    end
  end

  test "a schedule restarts at its period", context do
    test = self()
    opts = [lr_schedule: :cosine_restarts, restart_period: 4, restart_mult: 2, warmup_steps: 2]
    show = [progress: &send(test, {:seen, &1})]
    train!(context, [steps: 14, evaluate: false, learning_rate: 1.0e-3] ++ opts ++ show)
    rates = for %{event: :step, learning_rate: rate} <- events(), do: rate / 1.0e-3
    assert_in_delta Enum.at(rates, 0), 0.5, 1.0e-9
    assert_in_delta Enum.at(rates, 4), 0.5, 1.0e-9
    assert_in_delta Enum.at(rates, 10), 0.5, 1.0e-9
    for peak <- [1, 2, 6], do: assert_in_delta(Enum.at(rates, peak), 1.0, 1.0e-9)
  end

  describe "an evaluation" do
    test "returns the scores of the run, and reports progress", context do
      validation = corpus!(Path.join(context.dir, "other"), 0, 3)
      report = train!(context, steps: 4, validation: validation)
      best = Path.join(report.out, "best.safetensors")
      test = self()
      opts = [train: context.corpus, progress: &send(test, {:seen, &1})]

      assert {:ok, again} = Trainer.evaluate(best, validation, opts)
      assert again.policy == report.policy
      assert again.baselines == report.baselines
      assert again.spec == report.spec
      assert %{event: :evaluating, done: 144, total: 144} = List.last(events())

      assert {:ok, rounded} = Trainer.evaluate(best, validation, precision: :bf16)
      assert {again.precision, rounded.precision} == {"f32", "bf16"}
      assert rounded.policy != again.policy
      assert_in_delta rounded.policy.nll, again.policy.nll, 2.0e-2
      assert Trainer.Report.format(rounded) =~ "\ncomputed in bf16\n"
    end

    test "of a policy for other games is a mismatch", context do
      report = train!(context, steps: 1, evaluate: false, validate_every: 1)
      best = Path.join(report.out, "best.safetensors")
      into = Path.join(context.dir, "wider")
      games = [{List.duplicate([0, 0, 0], 48), List.duplicate(0, 48)}]
      {:ok, wider} = Corpus.build({:vector, 3}, games, into: into, heads: [go: {:categorical, 2}])
      assert {:error, %Error{kind: :mismatch}} = Trainer.evaluate(best, wider)
    end

    test "ends with its progress function, and leaves no message behind", context do
      report = train!(context, steps: 1, evaluate: false, validate_every: 1)
      best = Path.join(report.out, "best.safetensors")

      assert_raise RuntimeError, "enough", fn ->
        Trainer.evaluate(best, context.corpus, progress: fn _event -> raise "enough" end)
      end

      fail = fn _event -> throw(:enough) end
      assert catch_throw(Trainer.evaluate(best, context.corpus, progress: fail)) == :enough
      refute_receive {:sconce, _ref, _message}, 20
    end

    test "of a missing file is an error", context do
      nowhere = Path.join(context.dir, "nowhere")
      assert {:error, %Error{kind: :not_found}} = Trainer.evaluate(nowhere, context.corpus)
      report = train!(context, steps: 1)
      best = Path.join(report.out, "best.safetensors")
      assert {:error, %Error{kind: :not_found}} = Trainer.evaluate(best, nowhere)
    end
  end

  test "a GRU learns an action that needs memory, and an MLP does not", context do
    corpus = corpus!(Path.join(context.dir, "delayed"), 2, 40)
    opts = [corpus: corpus, steps: 300, batch_size: 16, window_size: 16, stride: 8]
    gru = train!(context, opts ++ [out: Path.join(context.dir, "gru"), hidden_size: 16])

    mlp =
      [corpus: corpus, out: Path.join(context.dir, "mlp"), backbone: :mlp, hidden_sizes: [16]]
      |> Keyword.merge(Keyword.drop(@small, [:backbone, :hidden_size, :num_layers]))
      |> Keyword.merge(steps: 300, batch_size: 16)
      |> Trainer.start_link()
      |> elem(1)
      |> Trainer.await(60_000)
      |> elem(1)

    assert gru.policy.nll < 0.3
    assert mlp.policy.nll > 0.6
  end

  test "a policy stays closer to the prior with a larger weight, also when resumed", context do
    run = fn weight, more ->
      out = Path.join(context.dir, "prior-#{weight}")
      train!(context, Keyword.merge([steps: 8, prior_weight: weight, out: out], more))
    end

    reports = for weight <- [0.1, 10], do: run.(weight, [])
    [far, near] = for report <- reports, do: List.last(report.history).figures.prior_kl
    assert near < far
    assert [%{options: %{prior_weight: 0.1}} = report | _near] = reports
    assert File.read!(report.curve) =~ "prior kl"

    assert %{steps: 9, options: %{prior_weight: 10.0}} =
             run.(10, steps: 9, resume: true, decay_steps: 9)
  end

  test "a policy learns from several teachers at a temperature, and resumes with them", context do
    teachers =
      for seed <- 1..2 do
        out = Path.join(context.dir, "teacher#{seed}")
        Path.join(train!(context, steps: 2, seed: seed, out: out).out, "best.safetensors")
      end

    opts = [teacher: teachers, teacher_temperature: 2, teacher_direction: :reverse]
    report = train!(context, [steps: 4, decay_steps: 6] ++ opts)
    assert %{teacher: ^teachers, teacher_temperature: 2.0} = report.options
    assert Enum.all?(report.history, &is_float(&1.figures[:teacher_kl]))
    assert File.read!(report.curve) =~ "KL to the teacher"
    assert %{steps: 6} = train!(context, [steps: 6, decay_steps: 6, resume: true] ++ opts)
    # The record of the run has them.
    assert %{steps: 8} = train!(context, steps: 8, decay_steps: 6, resume: true)

    run = start!(context, steps: 9, decay_steps: 6, resume: true, teacher: Enum.reverse(teachers))
    assert {:error, %Error{kind: :mismatch} = error} = Trainer.await(run, 60_000)
    assert Exception.message(error) =~ "teacher"

    {:ok, plan} = context |> options([steps: 1, out: context.dir] ++ opts) |> Trainer.plan()
    assert plan.owners.teacher > 0 and to_string(plan) =~ "teacher"

    for {given, text} <- [{[], "at least one path"}, {[:a], "a path or a list, each a path"}] do
      assert_raise ArgumentError, ~r/option :teacher: expected #{text}/, fn ->
        Trainer.start_link(options(context, teacher: given))
      end
    end

    assert_raise ArgumentError, ~r/:teacher_temperature/, fn ->
      Trainer.start_link(options(context, teacher: teachers, teacher_temperature: 0))
    end
  end

  test "a policy follows its teacher and reports the divergence; a teacher of another action space is refused",
       context do
    teacher = train!(context, steps: 2, out: Path.join(context.dir, "teacher"))
    path = Path.join(teacher.out, "best.safetensors")
    run = start!(context, steps: 4, teacher: path, teacher_weight: 2, progress: &send(self(), &1))
    {:ok, report} = Trainer.await(run, 60_000)
    assert %{teacher: ^path, teacher_weight: 2.0, teacher_direction: "forward"} = report.options
    assert Enum.any?(report.history, &is_float(&1.figures[:teacher_kl]))
    assert File.read!(report.curve) =~ "KL to the teacher"

    other = train!(context, steps: 1, teacher: nil, out: Path.join(context.dir, "alone"))
    assert Enum.all?(other.history, &(&1.figures == %{}))

    games = [
      {[[0.0, 0.5]], [2]}
      | for(_ <- 1..3, do: {List.duplicate([0.0, 0.5], 40), List.duplicate(2, 40)})
    ]

    heads = [go: {:categorical, 3}]
    into = Path.join(context.dir, "wider")
    {:ok, wider} = Corpus.build({:vector, 2}, games, into: into, heads: heads)
    run = start!(context, corpus: wider, teacher: path, out: Path.join(context.dir, "refused"))
    assert {:error, %Error{kind: :mismatch} = error} = Trainer.await(run, 60_000)
    assert Exception.message(error) =~ "action space of the teacher"
  end

  test "the defaults are those of the native side", context do
    path = Path.join(context.dir, "run")
    {:ok, run} = Trainer.start_link(corpus: context.corpus, out: path, window_size: 8, steps: 1)
    {:ok, %{options: options}} = Trainer.await(run, 60_000)

    spec =
      Sconce.Policy.Spec.to_native(
        Spec.new(embedding: {:vector, 2}, heads: [go: {:categorical, 2}])
      )

    ref = make_ref()
    out = Path.join(context.dir, "native")
    own = %{window_size: 8, steps: 1}
    {:ok, task} = Native.train_start(ref, spec, Path.join(context.dir, "corpus"), out, own, false)
    assert_receive {:sconce, ^ref, {:ok, %{options: native}}}, 60_000
    :ok = Native.train_stop(task)

    assert options == Table.by_name(native)
    # The device is resolved before a run begins, and is added to its options.
    {"cpu", options} = Map.pop!(options, :device)
    assert Enum.sort(Map.keys(options)) == Enum.sort(Keyword.keys(Catalogue.schema(:training)))
    assert Enum.sort(Map.keys(options.loss)) == Enum.sort(Keyword.keys(Catalogue.schema(:loss)))
  end

  test "a number beyond a bound of any option is refused", context do
    for {name, spec} <- Catalogue.schema(:training),
        {bound, number} <- Keyword.take(spec, [:min, :max, :above, :below]) do
      beyond = %{min: number - 1, max: number + 1, above: number, below: number}[bound]

      assert_raise ArgumentError, ~r/option :#{name}: expected .*, got: #{beyond}/, fn ->
        Trainer.start_link(options(context, [{name, beyond}]))
      end
    end

    # All other options accept every 64-bit number.
    unbounded =
      for {name, spec} <- Catalogue.schema(:training),
          inspect(spec[:type]) =~ ~r/integer|^:float|\[:float/,
          not Enum.any?([:max, :above, :below], &spec[&1]),
          do: name

    assert Enum.sort(unbounded) == [:characters, :seed, :stages]
  end

  describe "a run that begins with a policy" do
    setup context do
      first = train!(context, steps: 6, out: Path.join(context.dir, "first"))
      {:ok, first: first, policy: Path.join(first.out, "best.safetensors")}
    end

    # Starts a run without options of a Spec.
    defp tuned!(context, more) do
      test = self()

      own =
        Keyword.drop(@small, [:backbone, :hidden_size, :num_layers, :head_hidden_size, :dropout])

      path = Path.join(context.dir, "tuned#{System.unique_integer([:positive])}")

      opts = [
        corpus: context.corpus,
        out: path,
        policy: context.policy,
        progress: &send(test, {:told, &1})
      ]

      {:ok, run} = Trainer.start_link(Keyword.merge(own ++ opts, more))
      Trainer.await(run, 60_000)
    end

    test "has its Spec, and scores the same before it learns", context do
      {:ok, report} = tuned!(context, steps: 1, learning_rate: 0.0)
      assert report.spec == context.first.spec
      assert report.policy.nll == context.first.policy.nll
      assert_receive {:told, %{event: :began, policy: _path, taken: taken, new: []}}
      assert taken > 5
    end

    test "learns heads that the policy lacks", context do
      {:ok, report} = tuned!(context, steps: 2, heads_kind: :autoregressive, freeze: [:backbone])
      assert report.spec.backbone == context.first.spec.backbone
      assert_receive {:told, %{event: :began, new: [_ | _] = new}}
      assert Enum.all?(new, &String.starts_with?(&1, "heads."))
    end

    test "is refused with another backbone or input, an unknown part or a missing file",
         context do
      for {more, said} <- [
            {[hidden_size: 12],
             ~r/weight backbone.* of .*best.safetensors: expected \[36\], got \[24\]/},
            {[backbone: :mlp],
             ~r/backbone of .*best.safetensors: expected mlp, that of the run, which a preset may have set, got gru/},
            {[freeze: [:backbon]],
             ~r/freeze: expected backbone, heads or a name under one of them, got backbon/},
            {[freeze: [:embedding]], ~r/freeze: expected backbone, heads/},
            {[freeze: ["backbone", "heads"]], ~r/freeze: expected something left to learn/},
            {[policy: Path.join(context.dir, "nowhere")], ~r/nowhere.* not found/},
            {[policy: __ENV__.file], ~r/trainer_test.exs/}
          ] do
        assert {:error, %Error{} = error} = tuned!(context, more)
        assert Exception.message(error) =~ said
      end
    end

    test "resumes without the file", context do
      {:ok, report} = tuned!(context, steps: 2, freeze: [:backbone], lr_schedule: :constant)
      File.rm!(context.policy)
      {:ok, run} = Trainer.start_link(resume: true, out: report.out, steps: 4)
      assert {:ok, %{steps: 4, options: %{freeze: ["backbone"]}}} = Trainer.await(run, 60_000)
      {:ok, run} = Trainer.start_link(resume: true, out: report.out, steps: 6, freeze: [:heads])
      assert {:error, %Error{kind: :mismatch} = error} = Trainer.await(run, 60_000)
      assert Exception.message(error) =~ "freeze is"
    end
  end

  describe "a file of options" do
    setup context do
      write = fn name, text ->
        path = Path.join(context.dir, name)
        File.write!(path, text)
        path
      end

      {:ok, write: write}
    end

    test "may be the run.json of another run, with its games, Spec and losses", context do
      loss = [label_smoothing: 0.2, focal_gamma: nil]
      own = [optimizer: :sgd, momentum: 0.5, loss: loss, steps: 4]
      first = train!(context, own)
      file = Path.join(first.out, "run.json")
      again = fn more -> [options: file, out: Path.join(context.dir, "again")] ++ more end

      {:ok, run} = Trainer.start_link(again.([]))
      {:ok, second} = Trainer.await(run, 60_000)
      assert {second.options, second.spec} == {first.options, first.spec}
      losses = &Enum.map(&1.history, fn point -> point.loss end)
      assert losses.(second) == losses.(first)

      said = Settings.new!(again.(steps: 2, hidden_size: 12, loss: [focal_gamma: 1.0]))
      assert {:ok, {_corpus, %{backbone: {:gru, sizes}}}} = said.source
      assert {said.options.steps, sizes[:hidden_size]} == {2, 12}
      assert %{focal_gamma: 1.0, label_smoothing: 0.2} = said.options.loss
    end

    test "may be JSON or Elixir, with groups or without", context do
      for {name, text} <- [
            {"a.json",
             ~s({"data": {"batch_size": 3}, "lr_schedule": "linear", "loss": {"clamp": 9}})},
            {"b.exs", "[data: [batch_size: 3], lr_schedule: :linear, loss: [clamp: 9]]"}
          ] do
        own = [corpus: context.corpus, out: "run", options: context.write.(name, text)]
        assert %{batch_size: 3, lr_schedule: :linear, loss: loss} = Settings.new!(own).options
        assert loss.clamp == 9.0
      end
    end

    test "that is invalid or has unknown options is refused, and the error named", context do
      for {name, text, said} <- [
            {"a.json", "{", ~r/^option :options: .*a.json: no options: EOF/},
            {"b.json", ~s({"data": {"bacth_size": 3}}),
             ~r/"bacth_size", did you mean "batch_size"/},
            {"c.json", ~s({"batch_size": "many"}), ~r/:batch_size: expected a positive/},
            {"d.exs", "[", ~r/^option :options: .*d.exs/},
            {"e.exs", "3", ~r/no keyword list/},
            {"f.exs", "[bacth_size: 3]", ~r/:bacth_size, did you mean :batch_size/},
            {"g.exs", nil, ~r/^option :options: .*g.exs.*enoent/},
            {"h.json", nil, ~r/^option :options: .*h.json.*not found/}
          ] do
        path = if text, do: context.write.(name, text), else: Path.join(context.dir, name)

        assert_raise ArgumentError, said, fn ->
          Trainer.start_link(corpus: context.corpus, out: "run", options: path)
        end
      end
    end
  end

  test "options may be given in groups, by name, or both", context do
    flat = [batch_size: 8, window_size: 8, steps: 2, seed: 3, learning_rate: 0.01]

    grouped = [
      data: [batch_size: 8, window_size: 8],
      schedule: [steps: 2, learning_rate: 0.01],
      machine: [seed: 3]
    ]

    settings = fn opts -> Settings.new!([corpus: context.corpus, out: "run"] ++ opts).options end
    assert settings.(flat) == settings.(grouped)
    assert settings.([data: [batch_size: 8]] ++ tl(flat)) == settings.(flat)

    for {opts, said} <- [
          {[data: [bacth_size: 8]],
           "unknown option of :data :bacth_size, did you mean :batch_size?"},
          {[data: [steps: 8]], "unknown option of :data :steps"},
          {[data: 3], "option :data: expected a keyword list, got: 3"},
          {[dta: [batch_size: 8]], "unknown option :dta"}
        ],
        do: assert_raise(ArgumentError, ~r/^#{Regex.escape(said)}/, fn -> settings.(opts) end)
  end

  test "a number beyond its bounds is refused, and its option named", context do
    for {name, value} <- [accumulation_steps: 2 ** 31, steps: 10 ** 12, keep_last: 10 ** 7] do
      assert_raise ArgumentError, ~r/option :#{name}: expected .* of at most \d+, got/, fn ->
        Trainer.start_link(options(context, [{name, value}]))
      end
    end

    assert_raise ArgumentError, ~r/option :max_minutes: expected .* 0.001 .*, got: 0.0/, fn ->
      Trainer.start_link(options(context, max_minutes: 0.0))
    end
  end

  test "a plain loss is recognised by its values" do
    refute Catalogue.plain?(%{button_weight: 2.0})
    {:ok, run} = Trainer.start_link(corpus: "nowhere", out: "nowhere", loss: :plain)
    assert %Settings{options: %{loss: loss}} = :sys.get_state(run).settings
    assert Catalogue.plain?(loss)
  end

  # Whether the folder is unlocked: a second run then finds the first one's record.
  defp folder_free?(context) do
    run = start!(context, steps: 1)
    {:error, %Error{kind: kind}} = Trainer.await(run)
    GenServer.stop(run)
    kind == :mismatch
  end

  defp eventually(condition, attempts \\ 100) do
    cond do
      condition.() -> true
      attempts == 0 -> false
      true -> Process.sleep(50) && eventually(condition, attempts - 1)
    end
  end

  defp events do
    receive do
      {:seen, event} -> [event | events()]
    after
      0 -> []
    end
  end

  # A checkpoint's tensors, without the manifest, which contains times.
  defp weights(path) do
    <<length::64-little, _header::binary-size(length), tensors::binary>> = File.read!(path)
    tensors
  end
end
