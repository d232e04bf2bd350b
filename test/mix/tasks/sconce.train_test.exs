defmodule Mix.Tasks.Sconce.TrainTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureIO
  import Sconce.Test.Scratch

  alias Mix.Tasks.Sconce.{Demo, Eval, Train}
  alias Sconce.Env.CartPole
  alias Sconce.{Switches, Temporal}
  alias Sconce.Trainer.Catalogue

  @small ~w(--hidden-size 8 --num-layers 1 --head-hidden-size 8 --steps 4 --validate-every 2
            --window-size 16 --stride 16 --batch-size 8 --loss plain)

  @optimizers "expected one of " <>
                Enum.join(Sconce.Trainer.Optimiser.names(), ", ")

  defp corpus! do
    dir = tmp_dir!("task")
    {:ok, games} = CartPole.demonstrations(games: 8, steps: 60)
    {:ok, _corpus} = CartPole.corpus(games, into: Path.join(dir, "corpus"))
    dir
  end

  defp train(dir, more),
    do: Train.run(["--corpus", Path.join(dir, "corpus"), "--out", Path.join(dir, "run")] ++ more)

  test "a run is trained, printed, scored and drawn; its checkpoint is scored again" do
    dir = corpus!()
    output = capture_io(fn -> train(dir, ["--backbone", "gru" | @small]) end)

    assert output =~ ~r/^ epoch +step +loss +NLL .*\n +\d+ +2 /m
    assert output =~ "gru 8x1 -> action(2)"
    assert output =~ ~r/^policy +0\.\d{3} +0\.\d{3}$/m
    [_before, screen] = String.split(output, "\n\nvector", parts: 2)
    # The blank line above is the 24th.
    assert screen |> String.trim() |> String.split("\n") |> length() <= 23
    assert screen =~ ~r/validation NLL\n/

    for file <- ~w(best.safetensors curve.svg report.json),
        do: assert(File.exists?(Path.join([dir, "run", file])))

    best = Path.join([dir, "run", "best.safetensors"])
    corpus = Path.join(dir, "corpus")

    scored =
      capture_io(fn ->
        Eval.run([best, "--corpus", corpus, "--train", corpus, "--mode", "carry"])
      end)

    assert scored =~ "480 frames"
    assert scored =~ ~r/policy +marginal +repeat +pairs/
  end

  test "a run can be planned, tuned and its learning rate found beforehand, without leaving files" do
    dir = corpus!()
    say = fn more -> capture_io(fn -> train(dir, @small ++ more) end) end
    planned = say.(~w(--plan --memory-limit 2GB))

    assert planned =~
             ~r/gru 8x1 -> action\(2\).*\nweights .*\nat the peak +.* of 2.0 GB allowed\n/s

    assert say.(~w(--tune --initial 2 --max 4)) =~ ~r/^batch_size +a step.*\n +2 .*best/ms
    svg = Path.join(dir, "range.svg")
    found = say.(["--find-lr", "--num-it", "30", "--svg", svg])
    assert found =~ "smoothed training loss in f32, rates 1.0e-7 to"
    assert File.read!(svg) =~ "</svg>"
    assert Enum.sort(File.ls!(dir)) == ["corpus", "range.svg"]

    for {args, says} <- [
          {~w(--plan --tune), "--tune does not go with --plan"},
          {~w(--plan --initial 3), "--initial needs --tune"},
          {~w(--num-it 3), "--num-it needs --find-lr"},
          {~w(--plan --memory-limit 1KB), ~r/needs .* and may have 1.0 KB/},
          {~w(--find-lr --num-it 30 --svg range.png),
           "write_curve: range.png: expected a file that ends in .svg, got .png"}
        ],
        do: assert_raise(Mix.Error, says, fn -> train(dir, @small ++ args) end)
  end

  @tag timeout: 180_000
  test "SIGTERM, SIGHUP and SIGQUIT end a run with its state saved" do
    dir = corpus!()

    for signal <- ~w(TERM HUP QUIT) do
      {pid, out} = {Path.join(dir, "pid" <> signal), Path.join(dir, "run" <> signal)}
      long = ~w(--steps 10000000 --validate-every 10000000 --gradient-report 500)
      args = ["--corpus", Path.join(dir, "corpus"), "--out", out] ++ @small ++ long

      script = """
      Mix.start()
      gradients = #{inspect(Path.join(out, "gradients.jsonl"))}
      wait = fn wait -> File.exists?(gradients) || (Process.sleep(5) && wait.(wait)) end
      spawn(fn -> wait.(wait) && File.write!(#{inspect(pid)}, System.pid()) end)
      Mix.Tasks.Sconce.Train.run(#{inspect(args, limit: :infinity)})
      """

      last = Path.join(out, "last.safetensors")

      ended =
        Task.async(fn ->
          elixir_told_to_stop(script, pid, fn -> refute File.exists?(last) end, signal)
        end)

      {ended, last}
    end
    |> Enum.each(fn {ended, last} ->
      assert Task.await(ended, 150_000)
      assert {:ok, policy} = Sconce.Policy.load(last)
      assert {:ok, %{notes: %{"step" => step}}} = Sconce.Policy.info(policy)
      assert step >= 500
    end)
  end

  test "a starting run prints how to end it and what an end loses" do
    dir = corpus!()
    out = ["--out", Path.join(dir, "run")]
    said = capture_io(fn -> train(dir, @small) end)
    assert said =~ "Ctrl-C loses all steps since the last save, up to 5 min (--save-minutes)\n"
    args = ~w(--resume --steps 5 --decay-steps 4 --save-minutes none)
    said = capture_io(fn -> Train.run(args ++ out) end)
    assert said =~ "Ctrl-C loses all steps since the last save (no --save-minutes)\n"
    # The resumed run keeps its options.
    said = capture_io(fn -> Train.run(["--resume" | out]) end)
    assert said =~ "(no --save-minutes)\n"
  end

  test "a precision without a gain is replaced by f32 with a message, unless it is forced" do
    dir = corpus!()

    say = fn name, more ->
      out = ["--out", Path.join(dir, name), "--steps", "2"]
      capture_io(fn -> train(dir, @small ++ out ++ more) end)
    end

    said = say.("f32", ~w(--precision f16))
    assert said =~ "f16 gains nothing on this machine: the run computes in f32\n"
    assert said =~ "computed in f32, as f16 gains nothing on this machine\n"
    said = say.("f16", ~w(--precision f16 --force-precision))
    assert said =~ "  in f16\n"
    refute said =~ "gains nothing"

    says = "--force-precision has no effect with --precision f32"
    assert_raise Mix.Error, ~r/#{says}/, fn -> say.("none", ~w(--force-precision)) end
    says = ~r/--precision cannot be "f8", did you mean f32\?/
    assert_raise Mix.Error, says, fn -> say.("none", ~w(--precision f8)) end
  end

  test "an unknown switch is named, with the nearest known one" do
    assert_raise Mix.Error, "unknown option --hiden-size, did you mean --hidden-size?", fn ->
      Train.run(["--hiden-size", "3"])
    end

    assert_raise Mix.Error, ~r/unknown option --modee, did you mean --mode/, fn ->
      Eval.run(["--modee", "carry"])
    end

    assert_raise Mix.Error, ~r/did you mean --steps/, fn -> Demo.run(["--stesp", "3"]) end
  end

  test "--help prints a task's purpose and switches, and does nothing else" do
    for {name, says} <- [
          train: "--hidden-size",
          eval: "--corpus",
          demo: "--backbone",
          import: "--min-frames",
          bench: "--batch-size",
          compare: "--svg",
          doctor: "Checks this machine"
        ],
        switch <- ["--help", "-h"] do
      output = capture_io(fn -> Mix.Task.rerun("sconce.#{name}", [switch]) end)
      assert output =~ "mix sconce.#{name}"
      assert output =~ says
    end
  end

  test "--help prints what mix help prints, within 80 columns" do
    for name <- ~w(bench compare demo doctor eval import train) do
      own = capture_io(fn -> Mix.Task.rerun("sconce.#{name}", ["--help"]) end)
      assert own == capture_io(fn -> Mix.Task.rerun("help", ["sconce.#{name}"]) end)
      # The last line is the path of the task.
      [text, _path] = String.split(own, "\nLocation:")
      assert for(line <- String.split(text, "\n"), String.length(line) > 80, do: line) == []
    end
  end

  test "only the help of :preset refers to a text below it" do
    pointing = for {name, spec} <- Train.schema(), spec[:doc] =~ "below", do: name
    assert pointing == [:preset]
  end

  test "a wrong value is refused, and the error names its switch" do
    for args <- [["--batch-size", "many"], ["--lr-schedule", "wild"], ["--backbone", "grue"]] do
      assert_raise Mix.Error, ~r/^#{hd(args)} cannot be/, fn -> Train.run(args) end
    end

    assert_raise Mix.Error, ~r/^--batch-size cannot be "0", expected a positive integer/, fn ->
      Train.run(~w(--corpus nowhere --out nowhere --batch-size 0))
    end

    assert_raise Mix.Error, "--corpus is required", fn -> Train.run([]) end
    assert_raise Mix.Error, "unknown argument x", fn -> Train.run(["x"]) end
  end

  test "an optimiser, its schedule and the average of the weights are switches" do
    args = ~w(--optimizer sgd --momentum 0.8 --nesterov --lr-schedule cosine_restarts
              --restart-period 5 --ema-decay 0.9 --accumulation-steps 2 --weight-decay none)

    dir = corpus!()
    output = capture_io(fn -> train(dir, args ++ @small) end)
    assert output =~ ~r/^ +\d+ +4 +\d.\d{3} /m
    {:ok, report} = dir |> Path.join("run/report.json") |> File.read()

    for text <- [
          ~s("optimizer": "sgd"),
          ~s("momentum": 0.8),
          ~s("nesterov": true),
          ~s("ema_decay": 0.9)
        ],
        do: assert(report =~ text)

    assert_raise Mix.Error, "--optimizer cannot be \"sdg\", did you mean sgd?", fn ->
      Train.run(~w(--optimizer sdg))
    end

    assert_raise Mix.Error, "--optimizer cannot be \"xyz\", " <> @optimizers, fn ->
      Train.run(~w(--optimizer xyz))
    end
  end

  test "a run resumes from its folder alone, for more steps if asked" do
    dir = corpus!()
    run = Path.join(dir, "run")
    capture_io(fn -> train(dir, ~w(--backbone gru --lr-schedule constant) ++ @small) end)

    output = capture_io(fn -> Train.run(["--resume", run, "--steps", "6"]) end)
    assert output =~ "continues from step 4"
    assert output =~ "6 steps in"
    again = capture_io(fn -> Train.run(["--out", run, "--resume"]) end)

    assert again =~
             "already finished at step 6: nothing to do (--steps N, or steps: N, continues)"

    refute again =~ "continues from"

    assert_raise Mix.Error,
                 ~r/--hidden-size is 8, not 9; --seed is 0, not 3; games/,
                 fn -> Train.run(["--resume", "--out", run] ++ ~w(--hidden-size 9 --seed 3)) end

    assert_raise Mix.Error, ~r/--loss plain/, fn ->
      Train.run(["--resume", run] ++ ~w(--loss plain --clamp 3))
    end

    assert_raise Mix.Error, ~r/label_smoothing is 0.0, not 0.1|--label-smoothing is 0.0/, fn ->
      Train.run(["--resume", run, "--loss", "full"])
    end

    assert_raise Mix.Error,
                 ~r/run.*expected a folder without a run, or --resume, got a run/,
                 fn ->
                   train(dir, @small)
                 end

    nowhere = Path.join(dir, "nowhere")

    assert_raise Mix.Error,
                 ~r/a run in #{nowhere} not found.*--corpus DIR and without --resume/,
                 fn ->
                   Train.run(["--resume", nowhere])
                 end

    assert_raise Mix.Error, ~r/continues in its folder, not in --out/, fn ->
      Train.run(["--resume", nowhere, "--out", run])
    end
  end

  test "errors of the run name switches" do
    dir = corpus!()

    for {args, message} <- [
          {~w(--device cuda), ~r/^device: --device: .*\(to mend it: .*--device cpu\)/},
          {~w(--device cuda:7), ~r/--device: .*\(to mend it: .*--device cpu\)/},
          {~w(--device cuba), ~s(--device cannot be "cuba", did you mean cuda?)},
          {~w(--device cuda:x), ~r/^--device cannot be "cuda:x"/},
          {~w(--momentum 0.5), ~r/--momentum/},
          {~w(--decay-rate 0.5), ~r/--decay-rate has no effect with --lr-schedule cosine/},
          {~w(--teacher-weight 0.5), "--teacher-weight has no effect without --teacher"},
          {~w(--decay-steps 2 --warmup-steps 1),
           ~r/--decay-steps: expected at least 3, .* got 2/},
          {~w(--max-grad-norm 0), ~s(--max-grad-norm cannot be "0", expected a number above 0)},
          {~w(--steps 99999999999999999999), ~r/^--steps cannot be .* an integer of 64 bits/},
          {~w(--lr-schedule cosin), "--lr-schedule cannot be \"cosin\", did you mean cosine?"},
          {~w(--characters fax), ~r/--characters: no character "fax", did you mean "Fox"/}
        ] do
      assert_raise Mix.Error, message, fn ->
        train(dir, @small ++ args)
      end
    end
  end

  test "a preset is a switch that other switches override" do
    dir = corpus!()
    output = capture_io(fn -> train(dir, ~w(--preset quick --hidden-sizes 16 --batch-size 8)) end)
    assert output =~ "mlp 16 -> action(2)"
    {:ok, report} = dir |> Path.join("run/report.json") |> File.read()
    for text <- [~s("optimizer": "adam"), ~s("batch_size": 8)], do: assert(report =~ text)

    assert_raise Mix.Error, ~s(unknown preset "quik", did you mean quick?), fn ->
      Train.run(~w(--preset quik --corpus nowhere --out nowhere))
    end

    assert_raise Mix.Error,
                 ~r/^device: preset full: .*mend it: .*--device cpu/,
                 fn ->
                   train(dir, ~w(--preset full))
                 end
  end

  test "an error of the run ends the task with the error's sentence" do
    dir = corpus!()

    assert_raise Mix.Error, ~r/nowhere.* not found/, fn ->
      Train.run(["--corpus", Path.join(dir, "nowhere"), "--out", Path.join(dir, "run")])
    end

    assert_raise Mix.Error, ~r/nowhere.* not found/, fn ->
      Eval.run([Path.join(dir, "nowhere"), "--corpus", Path.join(dir, "corpus")])
    end
  end

  test "each option of training, loss and Spec has a switch" do
    names = Keyword.keys(Train.schema())
    wanted = Keyword.keys(Catalogue.schema(:training) ++ Catalogue.schema(:loss))
    assert wanted -- names == []
    assert Sconce.Policy.Spec.options() -- names == []
    assert names == Enum.uniq(names)
  end

  test "the text of a switch becomes a value of the schema's type" do
    args =
      ~w(--hidden-sizes 64,32 --learning-rate 1e-3 --pos-weight none --steps none --no-fit-prior
              --focal-gamma 2 --mirror 0.5 --embedding packed --pos-weight 1,2.5)

    {opts, []} = Switches.parse!(args, Train.schema())

    assert opts[:hidden_sizes] == [64, 32]
    assert opts[:learning_rate] == 0.001

    for {text, value} <- [{"a", "a"}, {"a,b/c", ["a", "b/c"]}],
        do: assert({[teacher: ^value], []} = Switches.parse!(["--teacher", text], Train.schema()))

    assert {:ok, nil} = Keyword.fetch(opts, :steps)
    assert opts[:fit_prior] == false
    # The last of two equal switches wins.
    assert opts[:pos_weight] == [1.0, 2.5]

    assert Sconce.Trainer.Switches.training(embedding: :packed, label_smoothing: 0.2) ==
             [loss: [label_smoothing: 0.2], embedding: {:melee, layout: :packed}]

    for {said, embedding} <- [
          {[queue_depth: 4], {:melee, queue_depth: 4}},
          {[embedding: :melee, num_delays: 9], {:melee, num_delays: 9}},
          {[embedding: :packed, queue_depth: 2, num_delays: 9],
           {:melee, layout: :packed, queue_depth: 2, num_delays: 9}},
          {[embedding: :packed, previous_action: false],
           {:melee, layout: :packed, previous_action: false}}
        ] do
      assert Sconce.Trainer.Switches.training(said) == [embedding: embedding]
    end

    assert_raise ArgumentError, ~r/--clamp does not go with --loss plain/, fn ->
      Sconce.Trainer.Switches.training(loss: :plain, clamp: 3.0)
    end
  end

  describe "the demo" do
    test "prints its result, and exits with status 1 if memory did not pay" do
      args = ["--games", "20", "--steps", "8", "--out", tmp_dir!("demo")]

      output = capture_io(fn -> assert catch_exit(Demo.run(args)) == {:shutdown, 1} end)

      last = output |> String.trim() |> String.split("\n") |> List.last()
      assert last =~ ~r/^recurrent [\d.]+ of 500 · memoryless [\d.]+ · [\d.]+ us a decision$/
      assert output =~ ~r/curve +.*curve\.svg/
    end

    test "trains and plays each backbone with a memory, at its smallest size" do
      for backbone <- Temporal.backbones() -- [:mlp] do
        args = ~w(--games 2 --steps 1 --backbone #{backbone} --out #{tmp_dir!("demo")})
        output = capture_io(fn -> assert catch_exit(Demo.run(args)) == {:shutdown, 1} end)
        assert output =~ ~r/^vector 2 -> #{backbone} 32x[123] -> action\(2\)/m
        assert output =~ "us a decision"
      end
    end

    test "refuses unknown backbones and those without a memory" do
      for name <- ~w(grue mlp) do
        assert_raise Mix.Error,
                     ~r/^--backbone cannot be "#{name}", (expected one of lstm, |did you mean \w+\?$)/,
                     fn ->
                       Demo.run(["--backbone", name])
                     end
      end
    end

    @tag :slow
    test "shows that memory pays" do
      output = capture_io(fn -> Demo.run(["--out", tmp_dir!("demo"), "--seed", "3"]) end)

      [_, recurrent, memoryless] =
        Regex.run(~r/recurrent ([\d.]+) of 500 · memoryless ([\d.]+)/, output)

      assert String.to_float(recurrent) >= 450
      assert String.to_float(memoryless) < 225
    end
  end
end
