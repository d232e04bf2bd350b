defmodule Mix.Tasks.Sconce.EvolveTest do
  use ExUnit.Case, async: false

  alias Mix.Tasks.Sconce.Evolve
  alias Sconce.Evolve.Archive

  @moduletag :tmp_dir

  setup do
    shell = Mix.shell()
    Mix.shell(Mix.Shell.Process)
    on_exit(fn -> Mix.shell(shell) end)
  end

  @small ~w(--env cart_pole --archive grid:10x10 --measures final:0,input:0 --ranges=-2.4..2.4,0..1) ++
           ~w(--hidden-sizes 4 --batch 32)

  defp evolve(args) do
    ExUnit.CaptureIO.capture_io(fn -> Evolve.run(args) end) <> said("")
  end

  defp said(text) do
    receive do
      {:mix_shell, :info, [line]} -> said(text <> line <> "\n")
    after
      0 -> text
    end
  end

  test "a run writes its files, and a resumed one equals one that was not interrupted", %{
    tmp_dir: dir
  } do
    [whole, part] = for name <- ["whole", "part"], do: Path.join(dir, name)
    text = evolve(@small ++ ["--generations", "8", "--out", whole])
    assert text =~ "generation 8/8"
    assert text =~ "time: variation"
    assert text =~ "best.safetensors"
    assert File.read!(Path.join(whole, "archive.svg")) =~ "<svg"
    evolve(@small ++ ["--generations", "3", "--out", part])
    evolve(["--resume", part, "--generations", "8"])
    [one, other] = for run <- [whole, part], do: Path.join(run, "archive.safetensors")
    assert File.read!(one) == File.read!(other)
    {:ok, archive} = Archive.load(one)
    assert archive.cells == 100
    {:ok, played} = Sconce.Env.play(Path.join(whole, "best.safetensors"), nil, episodes: 2)
    assert length(played.returns) == 2
    assert_raise Mix.Error, ~r/has a run/, fn -> evolve(@small ++ ["--out", whole]) end
  end

  test "cells are made where behaviours are", %{tmp_dir: dir} do
    switches =
      ~w(--env cart_pole --archive unstructured:200:0.1 --measures final:0,input:0) ++
        ~w(--hidden-sizes 4 --batch 32 --generations 3 --out #{dir}/balls)

    assert evolve(switches) =~ ~r/ of 200 cells/
    {:ok, archive} = Archive.load(Path.join(dir, "balls/archive.safetensors"))
    {:ok, stats} = Archive.stats(archive)
    assert stats.elites in 2..96
  end

  test "an archive of one measure has no picture", %{tmp_dir: dir} do
    switches =
      ~w(--env cart_pole --archive grid:50 --measures length --ranges 0..500) ++
        ~w(--hidden-sizes 4 --batch 32 --generations 2 --out #{dir}/line)

    assert evolve(switches) =~ "archive.safetensors"
    {:ok, archive} = Archive.load(Path.join(dir, "line/archive.safetensors"))
    assert archive.measures == 1
    refute File.exists?(Path.join(dir, "line/archive.svg"))
  end

  test "the return of the best elite is shown if a worse one replaced the best candidate", %{
    tmp_dir: dir
  } do
    switches =
      ~w(--env cart_pole --archive grid:1x1 --measures final:0,input:0) ++
        ~w(--ranges=-2.4..2.4,0..1 --hidden-sizes 4 --batch 32 --generations 3)

    lost = ~w(--source cma_mae:4 --archive-rate 0 --threshold-min 0 --out #{dir}/lost)
    text = evolve(switches ++ lost)
    {:ok, archive} = Archive.load(Path.join(dir, "lost/archive.safetensors"))
    {:ok, %{objectives: [left]}} = Archive.elites(archive)

    assert text =~
             "best.safetensors  return #{Float.round(left, 2)}; no elite has the best return"

    [_line, best] = Regex.run(~r/best return ([\d.]+)/, text)
    assert String.to_float(best) > left
    {:ok, played} = Sconce.Env.play(Path.join(dir, "lost/best.safetensors"), nil, episodes: 1)
    assert length(played.returns) == 1

    refute evolve(switches ++ ["--out", Path.join(dir, "kept")]) =~ "no elite has"
  end

  test "NEAT learns XOR and draws its best network", %{tmp_dir: dir} do
    text = evolve(["--preset", "xor", "--out", dir, "--seed", "1"])
    assert text =~ "XOR solved after"
    assert [_line, rate] = Regex.run(~r/^([\d,]+) genome-generations a second$/m, text)
    assert rate |> String.replace(",", "") |> String.to_integer() > 0
    stages = ~r/^time: variation ([\d.]+) %, evaluation ([\d.]+) %, species ([\d.]+) %$/m
    assert [_line | shares] = Regex.run(stages, text)
    assert_in_delta shares |> Enum.map(&String.to_float/1) |> Enum.sum(), 100, 0.2
    assert File.read!(Path.join(dir, "best.svg")) =~ "<svg"
  end

  test "a plan and a sweep write nothing", %{tmp_dir: dir} do
    File.cd!(dir, fn ->
      plan = evolve(["--preset", "cart_pole", "--hidden-sizes", "2", "--plan"])
      assert plan =~ ~r/time +\d/
      assert plan =~ ~r/strategy +640 B/
      int8 = evolve(~w(--preset cart_pole --hidden-sizes 2 --plan --storage int8))
      refute Regex.run(~r/population .*/, int8) == Regex.run(~r/population .*/, plan)
      text = evolve(~w(--env cart_pole --hidden-sizes 2 --episodes 1 --sweep --time-limit 5))
      assert text =~ "evaluations a second  best"
      assert File.ls!(".") == []
    end)
  end

  test "a sweep measures batches that emitters can share" do
    switches = ~w(--sweep --source cma_me:999 --hidden-sizes 2 --time-limit 5)
    text = evolve(@small ++ switches)

    for size <- ["1,998", "2,997", "4,995", "8,991"],
        do: assert(text =~ ~r/^batch +#{size}  .* evaluations a second/m)

    assert length(String.split(text, "batch ")) == 5
  end

  test "a plan of CMA-MAE needs a rate and a threshold" do
    switches = ~w(--plan --source cma_mae:4 --archive-rate 0.1 --threshold-min 0)
    assert evolve(@small ++ switches) =~ ~r/time +\d/
  end

  test "invalid switches are named", %{tmp_dir: dir} do
    for {args, message} <- [
          {[], "--out is required"},
          {["--out", dir], "--env is required"},
          {~w(--out x --env cart), "cart_pole"},
          {~w(--out x --preset cart), "carts"},
          {~w(--out x --env cart_pole --archive grid:0x2), "--archive cannot be"},
          {~w(--out x --env cart_pole --archive unstructured:9:0), "--archive cannot be"},
          {~w(--out x --env cart_pole --ranges 1 --archive grid:2), "--ranges cannot be"},
          {~w(--out x --env cart_pole --measures middle:1), "--measures cannot be"},
          {~w(--out x --env cart_pole --source cma_me), "--source cannot be"},
          {~w(--out x --env cart_pole --crossover swap), "--crossover cannot be"},
          {~w(--out x --env cart_pole --reward-weights coins=1), "--reward-weights cannot be"},
          {~w(--out x --env cart_pole --source elites), "expected one"},
          {["--resume", dir], "switches"},
          {["--resume", dir, "--plan"], "--resume does not go with --plan"},
          {~w(--preset xor --out x --env duel), "--env does not go with --preset xor"},
          {~w(--sweep --env cart_pole --source cma_me:0), "--source cannot be"},
          {~w(--sweep --env cart_pole --source cma_me:x), "--source cannot be"},
          {@small ++ ~w(--out x --source cma_mae:4), "--source cma_mae:4 needs --threshold-min"},
          {@small ++ ~w(--out x --source cma_mae:4 --threshold-min 0), "--archive-rate below 1"},
          {@small ++ ~w(--plan --source cma_mae:4 --archive-rate 0.1), "needs --threshold-min"},
          {~w(--plan --sweep --env cart_pole), "--plan does not go with --sweep"}
        ] do
      error = assert_raise Mix.Error, fn -> evolve(args) end
      assert error.message =~ message, "#{inspect(args)}: #{error.message}"
    end
  end
end
