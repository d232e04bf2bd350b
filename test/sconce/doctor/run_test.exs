defmodule Sconce.Doctor.RunTest do
  use ExUnit.Case, async: true

  alias Sconce.Doctor.Run

  @options %{
    loader_threads: 1,
    prefetch: 2,
    validate_every: 100,
    validation_stride: 10,
    threads: 2,
    batch_size: 64,
    precision: "f32"
  }

  # Ten steps take one second.
  @history for i <- 1..30, do: %{seconds: 1.0 * i, data_wait: 0.01}

  @run %{
    history: @history,
    options: @options,
    micro_batch: 64,
    precision: "f32",
    skipped_updates: 0,
    saves: %{failed: [], wait_seconds: 0.1, seconds: 2.0},
    stopped: :finished,
    steps: 300,
    best_step: 300
  }

  defp mended(run),
    do: for(%{mend: mend, name: name} <- Run.findings(run, 2), mend, into: %{}, do: {name, mend})

  test "nothing holds up a run that computes all the time" do
    assert mended(@run) == %{}
    assert Enum.map(Run.findings(@run, 2), & &1.name) == ["data", "pauses", "threads"]
  end

  test "a run without a recorded wait has no finding of its data" do
    unknown = for point <- @history, do: %{point | data_wait: nil}
    assert mended(%{@run | history: unknown}) == %{}
    assert mended(%{@run | history: []}) == %{}
  end

  test "each cause is found with the option that changes it" do
    assert mended(%{@run | history: Enum.map(@history, &%{&1 | data_wait: 0.4})})["data"] =~
             "loader_threads: 2"

    paused =
      for {point, i} <- Enum.with_index(@history),
          do: %{point | seconds: point.seconds + 5 * div(i, 10)}

    assert mended(%{@run | history: paused})["pauses"] =~ "validate_every: 200"

    assert mended(put_in(@run.options.threads, 1))["threads"] == "threads: 2"
    assert mended(%{@run | micro_batch: 8})["memory"] =~ "memory_limit"
    assert mended(put_in(@run.options.precision, "bf16"))["precision"] == "precision: :f32"
    assert mended(%{@run | skipped_updates: 30})["f16"] =~ ":bf16"
    assert mended(%{@run | saves: %{failed: [%{reason: "disk full"}]}})["saving"]

    assert mended(%{@run | saves: %{failed: [], wait_seconds: 9.0, seconds: 9.0}})["saving"] =~
             "save_minutes"

    assert mended(%{@run | stopped: :budget})["end"] =~ "max_minutes"
    assert mended(%{@run | best_step: 100})["overfitting"]
  end
end
