defmodule Sconce.Trainer.CompareTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.Env.CartPole
  alias Sconce.{Error, Trainer}
  alias Sconce.Policy.Spec
  alias Sconce.Trainer.Compare

  doctest Compare

  @small [head_hidden_size: 8, window_size: 16, stride: 16, batch_size: 8, loss: :plain] ++
           [steps: 6, validate_every: 3]

  defp report(more \\ %{}) do
    history =
      for step <- 10..200//10 do
        nll = if rem(step, 50) == 0, do: 1.0 + 50 / step

        %{step: step, loss: 2.0, learning_rate: 1.0e-3, nll: nll, seconds: step / 1.0}
        |> paced(step)
      end

    Map.merge(
      %{
        spec: Spec.new(embedding: {:vector, 2}, heads: [go: {:categorical, 2}]),
        options: %{loss: %{clamp: 60.0}, seed: 0, resume: false, learning_rate: 1.0e-3},
        train: %{games: 7, frames: 7_000},
        validation: %{games: 1, frames: 1_000},
        history: history,
        policy: %{nll: 1.26},
        weights: 1234,
        stopped: :finished,
        steps: 200,
        best_step: 200,
        seconds: 200.0
      },
      more
    )
  end

  # Every second point has half the speed of the others.
  defp paced(point, step) do
    pace = if rem(step, 20) == 0, do: 1_000.0, else: 2_000.0
    Map.merge(point, %{frames_per_second: pace, data_wait: 0.1})
  end

  defp runs(reports) do
    for {report, i} <- Enum.with_index(reports, 1), do: %{name: "run#{i}", report: report}
  end

  defp rows(reports) do
    for line <- reports |> runs() |> Compare.table() |> String.split("\n", trim: true),
        [name | cells] = String.split(line, ~r/ {3,}/),
        into: %{},
        do: {name, cells}
  end

  test "the table contains only differing rows" do
    other = %{options: %{loss: %{clamp: 30.0}, seed: 1, resume: true, learning_rate: 1.0e-3}}
    spec = Spec.new(embedding: {:vector, 2}, heads: [go: {:categorical, 2}], backbone: :mlp)
    rows = rows([report(), report(Map.put(other, :spec, spec))])

    assert %{"seed" => ["0", "1"], "clamp" => ["60.0", "30.0"]} = rows
    assert %{"backbone" => ["gru 256x2", "mlp 512-512"], "hidden_size" => ["256", "-"]} = rows
    for same <- ~w(learning_rate resume heads), do: refute(Map.has_key?(rows, same))
  end

  test "figures that were measured differently have no star, and the table says so" do
    games = %{validation: %{games: 1, frames: 1_000, digest: "b"}}
    of = %{validation: %{games: 1, frames: 1_000, digest: "a"}}
    reports = [report(of), report(games)]
    assert %{"NLL" => ["1.250", "1.250"], "all frames" => ["1.260", "1.260"]} = rows(reports)

    assert reports |> runs() |> Compare.table() =~
             "No star, as runs were not measured alike: other validation games.\n"

    assert reports |> runs() |> Compare.svg() =~ "not measured alike"

    strides = for n <- [1, 10], do: report(%{options: %{loss: %{}, validation_stride: n}})
    assert %{"NLL" => ["1.250", "1.250"], "all frames" => ["1.260*", "1.260*"]} = rows(strides)
    heads = Spec.new(embedding: {:vector, 2}, heads: [go: {:categorical, 3}])
    assert %{"NLL" => ["1.250", "1.250"]} = rows([report(%{}), report(%{spec: heads})])
    # A run without a score does not affect the comparison.
    unscored = report(%{validation: %{games: 2, frames: 5}, policy: nil, best_step: nil})
    assert %{"NLL" => ["1.250*", "-"]} = rows([report(%{}), unscored])
  end

  test "the table ends with the results, the lowest marked with a star" do
    worse = %{best_step: 100, stopped: :early, policy: nil, seconds: 3_725.0, weights: 5}
    rows = rows([report(worse), report()])
    assert rows["NLL"] == ["1.500", "1.250*"]
    assert rows["at step"] == ["100", "200"]
    assert rows["all frames"] == ["-", "1.260*"]
    assert rows["ended"] == ["early", "finished"]
    assert rows["time"] == ["1:02:05", "3:20"]
    assert rows["waiting"] == ["10.0 %", "10.0 %"]
    # The harmonic mean of 1,000 and 2,000 frames per second is 1,333.
    assert rows["frames/s"] == ["1,333", "1,333"]
  end

  test "validation games that differ are a row" do
    rows = rows([report(), report(%{validation: %{games: 2, frames: 2_000}})])
    assert rows["measured_on"] == ["1,000 of 1 games", "2,000 of 2 games"]
  end

  test "a run without a validation is shown" do
    none = %{history: [], best_step: nil, policy: nil}
    assert %{"NLL" => ["-"], "frames/s" => ["-"]} = rows([report(none)])
    svg = [report(none)] |> runs() |> Compare.svg()
    assert svg =~ "no run was validated"
  end

  test "the SVG has a curve of each run in each panel, with a ring at its best" do
    svg = [report(), report(%{best_step: 100}), report()] |> runs() |> Compare.svg()
    assert svg =~ "3 runs"
    assert svg =~ "best validation NLL 1.250, run1"
    for text <- ["run1 1.250", "run2 1.500", "run3 1.250"], do: assert(svg =~ ">#{text}<")
    assert length(Regex.scan(~r/<circle [^>]*fill="none"/, svg)) == 3
    assert length(Regex.scan(~r/<clipPath /, svg)) == 5

    for color <- ~w(#2563eb #ea580c #0d9488),
        do:
          assert(length(Regex.scan(~r/<path d="M[^"]*L[^"]*" [^>]*stroke="#{color}"/, svg)) == 7)
  end

  test "the unit of time fits the longest run" do
    for {seconds, unit} <- [{30.0, "seconds"}, {600.0, "minutes"}, {90_000.0, "hours"}] do
      assert [report(), report(%{seconds: seconds})] |> runs() |> Compare.svg() =~ ">#{unit}<"
    end
  end

  describe "load" do
    setup do
      dir = tmp_dir!("compare")
      {:ok, games} = CartPole.demonstrations(games: 8, steps: 60)
      {:ok, corpus} = CartPole.corpus(games, into: Path.join(dir, "corpus"))
      {:ok, dir: dir, corpus: corpus}
    end

    defp train!(context, name, more) do
      out = Path.join(context.dir, name)
      {:ok, run} = Trainer.start_link([corpus: context.corpus, out: out] ++ @small ++ more)
      {:ok, report} = Trainer.await(run, 60_000)
      GenServer.stop(run)
      report
    end

    test "reads the report of each run, under its shortest unique name", context do
      gru = train!(context, "gru", backbone: :gru, hidden_size: 8, num_layers: 1)
      mlp = train!(context, "mlp", backbone: :mlp, hidden_sizes: [8])
      assert {:ok, [first, second]} = Compare.load([gru.out, mlp.out])
      assert %{name: "gru", report: ^gru} = first
      assert %{name: "mlp", report: ^mlp} = second
      assert rows([gru, mlp])["backbone"] == ["gru 8x1", "mlp 8"]

      path = Path.join(context.dir, "compare.svg")
      assert :ok = Compare.write([first, second], path)
      assert File.read!(path) =~ "2 runs"

      File.mkdir_p!(Path.join(context.dir, "other/gru"))
      File.cp!(Path.join(gru.out, "report.json"), Path.join(context.dir, "other/gru/report.json"))
      other = Path.join(context.dir, "other/gru")
      assert {:ok, [%{name: one}, %{name: another}]} = Compare.load([gru.out, other])
      assert one != another
    end

    test "names the folder of a missing, unfinished or damaged run", context do
      none = Path.join(context.dir, "none")

      assert {:error, %Error{kind: :not_found, op: :report, details: %{what: what}}} =
               Compare.load([none])

      assert what =~ none
      File.mkdir_p!(none)
      assert {:error, %Error{kind: :not_found}} = Compare.load([none])

      for text <- ["{\"steps\":", "{}", "[]", <<0, 255>>] do
        File.write!(Path.join(none, "report.json"), text)

        assert {:error, %Error{kind: :corrupt, details: %{what: what, reason: reason}}} =
                 Compare.load([none])

        assert what =~ none and reason != ""
      end
    end

    test "a file that cannot be written is an error that names it", context do
      path = Path.join(context.dir, "corpus/manifest.json/no.svg")

      assert {:error, %Error{kind: :io, details: %{path: ^path}}} =
               Compare.write(runs([report()]), path)
    end
  end
end
