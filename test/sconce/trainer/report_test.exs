defmodule Sconce.Trainer.ReportTest do
  use ExUnit.Case, async: true

  alias Sconce.Policy.Spec
  alias Sconce.Trainer.Report

  doctest Report

  defp metrics(nll, precision) do
    %{
      frames: 12_000,
      nll: nll,
      nll_changed: 2 * nll,
      changed_frames: 900,
      heads: [
        %{name: "buttons", nll: nll, accuracy: 0.9, nll_changed: 2 * nll, accuracy_changed: 0.25}
      ],
      buttons: [
        %{
          name: "A",
          precision: precision,
          recall: nil,
          precision_changed: 0.125,
          recall_changed: 0.0,
          presses: 1234
        }
      ]
    }
  end

  defp report do
    %{
      stopped: :early,
      steps: 1500,
      best_step: 1000,
      seconds: 125.0,
      weights: 1_100_000,
      spec: Spec.new(),
      train: %{games: 12, frames: 250_000},
      validation: %{games: 2, frames: 12_000},
      policy: metrics(1.25, 0.5),
      baselines: [%{name: "marginal", report: metrics(4.5, 0.0)}]
    }
  end

  test "the policy is compared with each baseline, on all frames and on changed ones" do
    lines = report() |> Report.format() |> String.split("\n")
    assert row(lines, "all heads") == ~w(1.250 4.500 2.500 9.000)
    assert row(lines, "buttons", 1) == ~w(90.0 90.0 25.0 25.0)
    assert row(lines, "A 1,234") == ~w(50.0 0.0 12.5 12.5)
    assert row(lines, "A 1,234", 1) == ~w(- - 0.0 0.0)
  end

  test "it has the waiting times of loader and training, if a loader was used" do
    flow = %{
      batches: 9,
      rows_per_second: 48_900.4,
      data_wait_seconds: 0.02,
      room_wait_seconds: 55.1
    }

    line = "loaded 48,900 rows/s; training waited 0.02 s for data, the loader 55.10 s for room"
    assert report() |> Map.put(:loader, flow) |> Report.format() =~ "\n" <> line <> "\n"
    refute Report.format(report()) =~ "loaded"
  end

  test "it names files that could not be written, and the last state on disk" do
    file = %{path: "run/last.safetensors", reason: "run/last: full", step: 1500, times: 3}
    text = report() |> Map.put(:saves, %{failed: [file], step: 1200}) |> Report.format()

    assert text =~
             "\nthe state on disk is that of step 1,200\nnot saved (3 x): run/last: full\n"

    text = report() |> Map.put(:saves, %{failed: [file], step: nil}) |> Report.format()
    assert text =~ "\nthe state on disk is not of this run\n"
    refute report() |> Map.put(:saves, %{failed: [], step: 9}) |> Report.format() =~ "disk"
  end

  test "it names the precision, unless f32 was both requested and used" do
    text = fn used, asked ->
      more = %{precision: used, skipped_updates: 12, options: %{precision: asked, batch_size: 1}}
      report() |> Map.merge(more) |> Report.format()
    end

    refute text.("f32", "f32") =~ "computed"
    assert text.("bf16", "bf16") =~ "\ncomputed in bf16\n"
    assert text.("f32", "bf16") =~ "\ncomputed in f32, as bf16 gains nothing on this machine\n"
    said = "\ncomputed in f16, 12 updates skipped after an overflow\n"
    assert text.("f16", "f16") =~ said
  end

  test "it begins with the model, the end of the run and the validation data" do
    text = Report.format(report())
    assert text =~ "gru 256x2 -> controller(81) · 1.1 M weights\n"

    assert text =~
             "stopped early, without further improvement: 1,500 steps in 2:05, best at 1,000\n"

    assert text =~ "trained on 250,000 frames of 12 games, measured on 12,000 frames of 2 games\n"
    assert text =~ "12,000 frames, 900 of them with a changed action"
  end

  test "a policy without buttons has no table of buttons" do
    policy = %{metrics(1.0, nil) | buttons: []}
    text = Report.format(%{policy: policy, baselines: []})
    refute text =~ "precision"
    assert text =~ "accuracy"
  end

  test "a stopped run says that nothing was scored" do
    text =
      Report.format(%{report() | policy: nil, baselines: [], stopped: :stopped, best_step: nil})

    assert text =~ "stopped on request: 1,500 steps in 2:05\n"
    assert text =~ "Nothing was scored."
  end

  defp row(lines, label, skip \\ 0) do
    lines
    |> Enum.filter(&String.starts_with?(&1, label <> " "))
    |> Enum.at(skip)
    |> String.replace_prefix(label, "")
    |> String.split()
  end
end
